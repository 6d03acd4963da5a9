"""Killing strays: real processes, some of which only have the number of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reconcilers import procfs, steps
from reconcilers.act import Actor
from reconcilers.backend import HostFacts
from reconcilers.boot import BootFiles
from reconcilers.confinement.identity import IdentityRegistry
from reconcilers.host import Host
from reconcilers.image import Images
from reconcilers.layout import Layout
from specs.config import Config
from specs.names import HostNames

WEB = HostNames("0123456789ab", "web")


def host_in(folder: Path) -> Host:
    return Host(
        layout=Layout(folder, folder / "run", WEB.instance),
        config=Config(),
        facts=HostFacts(None, None, None),
        images=Images(folder / "images"),
        boot_files=BootFiles(folder / "kernels"),
        identities=IdentityRegistry(lock=folder / "lock", registry=folder / "ids.toml"),
        backends={},
    )


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *arguments])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def lives(child: subprocess.Popen[bytes]) -> bool:
    found = procfs.read_stat(child.pid)
    return found is not None and not found.dead


async def test_a_process_that_got_a_strays_number_is_not_killed(tmp_path: Path) -> None:
    actor = Actor(host_in(tmp_path), "web", None, None, None, lambda name, pid: None)
    with (
        process("-name", WEB.marker) as stray,
        process() as anybody,
        process("-name", HostNames(WEB.instance, "other").marker) as other,
    ):
        pids = (stray.pid, anybody.pid, other.pid)
        await actor.act(steps.KillStrays("vmm", "no stray process", "3 stray", pids=pids))
        assert [lives(child) for child in (stray, anybody, other)] == [False, True, True]
