"""What an earlier controller left of its machines."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

from reconcilers import launchrecord, procfs
from reconcilers.throwaway import TRANSFERS, Throwaways
from tests.unit.reconcilers.hosts import host_in
from tests.unit.reconcilers.test_files import RECORD


def test_one_that_no_control_group_shows_is_ended_all_the_same(tmp_path: Path) -> None:
    """It may be at its very end, or its groups are out of sight."""
    machines = Throwaways(host_in(tmp_path), TRANSFERS)
    path = machines.host.layout.launch_record(machines.named("oak"))
    path.parent.mkdir(parents=True, mode=0o700)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            stat = procfs.read_stat(process.pid)
            assert stat is not None
            record = replace(RECORD, pid=process.pid, start_time=stat.start_time)
            launchrecord.write(path, record)
            machines.sweep()
            assert process.poll() == -signal.SIGKILL
        finally:
            process.kill()
    assert not path.parent.exists()


def test_one_that_had_not_begun_is_forgotten(tmp_path: Path) -> None:
    machines = Throwaways(host_in(tmp_path), TRANSFERS)
    path = machines.host.layout.launch_record(machines.named("oak"))
    path.parent.mkdir(parents=True, mode=0o700)
    launchrecord.write(path, replace(RECORD, pid=0, start_time=0))
    machines.sweep()
    assert not path.parent.exists()
