"""Rules for tests without a VM."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes depends on what else this machine does.
settings.register_profile("box", deadline=None)
settings.load_profile("box")
