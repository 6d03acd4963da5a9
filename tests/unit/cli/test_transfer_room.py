"""A disk that is full is named, whichever it is."""

from __future__ import annotations

import errno
import os
from argparse import Namespace
from pathlib import Path

import pytest

from controller.cli import transfer
from reconcilers.layout import Layout
from specs.errors import HostError


@pytest.mark.parametrize("action", ["import", "export"])
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as pwrite(2) says it

    home, source = tmp_path / "home", tmp_path / "source"
    for folder in (home, source):
        folder.mkdir(mode=0o700)
    layout = Layout(home=home, runtime=home / "run", instance="0" * 12)
    monkeypatch.setattr(transfer, "needed", lambda: layout)
    monkeypatch.setattr(transfer, "call", lambda *_: {})
    monkeypatch.setattr(transfer, "pack", full)
    monkeypatch.setattr(transfer, "unpack", full)
    folder = source if action == "import" else tmp_path / "out"
    with pytest.raises(HostError, match="nothing was done: No space left on device") as caught:
        transfer.data(Namespace(action=action, name="oak", folder=str(folder)))
    place = layout.transfers if action == "import" else tmp_path
    assert caught.value.where == str(place) and str(place) in caught.value.fix
    assert not (tmp_path / "out").exists() and not list(layout.transfers.iterdir())
