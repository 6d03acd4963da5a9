"""A host whose disk is full: VMs and controller wait, nothing is lost, all runs on with room."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading

import pytest

from reconcilers.qmp import pause_reason
from specs.errors import ChannelError
from tests.vm.harness import Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


def test_a_vm_whose_disk_cannot_grow_waits_and_runs_on(small_home: Home) -> None:
    home = small_home
    home.put("oak")
    home.ready("oak")
    pid = home.pid("oak")
    ballast = home.path / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
    command = "dd if=/dev/zero of=/data/file bs=1M count=16 && sync && echo done"
    results: list[subprocess.CompletedProcess[bytes]] = []
    writer = threading.Thread(
        target=lambda: results.append(home.run("oak", "sh", "-c", command, check=False))
    )
    writer.start()
    try:
        until(lambda: _paused(home), 60, "QEMU holds the CPUs")
        home.look_again()
        until(lambda: "paused (io-error)" in home.log(), 60, "the log says why")
        assert home.vmms("oak") == [pid]
        ballast.unlink()
        home.look_again()
        until(lambda: not _paused(home), 60, "it runs on")
    finally:
        ballast.unlink(missing_ok=True)
        writer.join(120)
    home.ready("oak")
    assert home.vmms("oak") == [pid]
    size = home.run("oak", "sh", "-c", "sync; wc -c < /data/file").stdout
    assert int(size) >= 1 << 20
    home.mended("oak", "vmm.cpus")


def test_a_controller_that_starts_on_a_full_disk_cares_for_what_runs(small_home: Home) -> None:
    home = small_home
    home.put("oak")
    home.ready("oak")
    pid = home.pid("oak")
    home.stop(signal.SIGKILL)
    home.put("elm")
    ballast = home.path / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    home.start()
    until(lambda: "No space left on device" in home.log(), 60, "the log names the full disk")
    assert home.vmms("oak") == [pid]
    until(lambda: home.run("oak", "true", check=False).returncode == 0, 60, "oak is looked after")
    ballast.unlink()
    home.look_again()
    home.ready("elm")
    assert home.vmms("oak") == [pid]


def _paused(home: Home) -> bool:
    """Asked of QEMU itself."""
    try:
        return asyncio.run(pause_reason(home.runtime / "oak" / "qmp.sock")) == "io-error"
    except ChannelError:
        return False
