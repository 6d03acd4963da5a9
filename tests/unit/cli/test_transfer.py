"""What `box data` does where a disk is full, and when it is told to end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from controller.cli import transfer
from reconcilers.layout import Layout
from specs.errors import HostError
from tests.unit.cli.support import ROOT


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


HANGING = """
import sys
from argparse import Namespace
from pathlib import Path
from controller.cli import transfer
from reconcilers.layout import Layout

def hang(*_):
    print("asked", flush=True)
    sys.stdin.read()

home = Path(sys.argv[1])
layout = Layout(home=home, runtime=home / "run", instance="0" * 12)
transfer.needed, transfer.call = lambda: layout, hang
sys.exit(transfer.data(Namespace(action="export", name="oak", folder=sys.argv[2])))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ignored", [False, True])
def test_an_export_that_is_told_to_end_leaves_nothing(
    tmp_path: Path, number: signal.Signals, ignored: bool
) -> None:
    """A closed terminal, `timeout`, the stop of a service; but not where somebody ignores them."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir(mode=0o700)
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        going = subprocess.Popen(
            [sys.executable, "-c", HANGING, str(home), str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    finally:
        signal.signal(number, before)
    assert going.stdout is not None and going.stdout.readline() == b"asked\n"
    assert [each.name[:12] for each in tmp_path.glob(".box*")] == [".box-export-"]
    going.send_signal(number)
    if ignored:
        with pytest.raises(subprocess.TimeoutExpired):
            going.wait(0.5)
    _, said = going.communicate(timeout=60)  # its input ends, and so does what hangs
    if not ignored:
        assert going.returncode == 128 + number and said == b""
    assert not list(tmp_path.glob(".box*")) and not list((home / "transfers").iterdir())
