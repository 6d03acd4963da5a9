"""Rules for tests without a VM."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long one example takes, and making one up, depends on what else this machine does.
settings.register_profile("box", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("box")
