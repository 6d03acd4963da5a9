"""The file that says what each name stood for: it never becomes one that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconcilers.images import refs
from reconcilers.images.refs import Refs
from specs.errors import HostError


def test_what_no_longer_fits_is_refused_and_the_others_stay_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Boxfile whose base has another name each time must not make every image unknown."""
    monkeypatch.setattr(refs, "SIZE_MAX", 400)
    known = Refs(tmp_path)
    known.put("example.org/kept:1", "sha256:1")
    with pytest.raises(HostError, match="no room") as caught:
        for number in range(100):
            known.put(f"example.org/tool:{number}", "sha256:2")
    assert "--prune" in caught.value.fix
    again = Refs(tmp_path)
    assert again.get("example.org/kept:1") == "sha256:1"
    again.drop([name for name in again.all() if name != "example.org/kept:1"])
    again.put("example.org/new:1", "sha256:3")
    assert Refs(tmp_path).get("example.org/new:1") == "sha256:3"
