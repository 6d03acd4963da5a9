"""What is read of a helper's process, and put back: on a real process that is none of ours."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers import helpers, procfs
from reconcilers.confinement.policy import Confinement, Limits, Program
from reconcilers.launchrecord import HelperRecord, LaunchRecord
from reconcilers.mounts import Directory
from specs.boxfile import Mount
from specs.names import HostNames
from specs.reading import Reading
from tests.vm.harness import until

PROGRAM = Program("virtiofsd", "0" * 64, b"", ())
VMM = Confinement(
    uid=os.geteuid() or 7000,  # only root may read what another identity holds
    gid=os.getegid() or 7000,
    isolation="strict",
    limits=Limits(1, 1, 1),
    rlimits=(),
    seccomp=PROGRAM,
)
NAMES = HostNames("0123456789ab", "oak")


@pytest.fixture
def helper() -> Iterator[HelperRecord]:
    with subprocess.Popen(["sleep", "60"]) as process:
        stat = procfs.read_stat(process.pid)
        assert stat is not None
        yield HelperRecord(
            role="virtiofsd", item=0, pid=process.pid, start_time=stat.start_time, exe=(0, 0),
            at_launch=(), path="/srv", directory=(1, 2), owner=(1000, 1000), writable=False,
        )  # fmt: skip
        process.kill()


def faults(helper: HelperRecord, owner: tuple[int, int] = (1000, 1000)) -> list[Reading]:
    record = LaunchRecord(
        key="", token="", accel="tcg", uid=0, gid=0, kernel_sha256="", kernel_release="",
        initramfs_sha256="", image_sha256="", host_boot_id="", started="", argv=(), data_bytes=0,
        helpers=(helper,),
    )  # fmt: skip
    mount = Mount.model_validate({"host": "/srv", "guest": "/src"})
    now = Directory(0, mount, "/srv", (1, 2), owner, "")
    found = helpers.readings(record, VMM, PROGRAM, NAMES, (now,))
    return [each for each in found if each.layer == "mounts[0]" and not each.ok]


def mends(found: list[Reading]) -> dict[str, str]:
    return {each.item: each.mend for each in found}


def test_stopped_helper_is_a_fault_that_is_mended_in_place(helper: HelperRecord) -> None:
    assert faults(helper) == []
    os.kill(helper.pid, signal.SIGSTOP)
    state = Path(f"/proc/{helper.pid}/stat")
    until(lambda: state.read_text().split()[2] == "T", 10, "it is stopped")
    found = faults(helper)
    assert mends(found) == {"virtiofsd": "in place"}
    assert helpers.faults_of(helper, found) == tuple(found)
    helpers.mend_one(helper, VMM, PROGRAM, NAMES, found)
    until(lambda: faults(helper) == [], 10, "it goes on")


def test_ended_helper_and_another_owner_need_another_vmm(helper: HelperRecord) -> None:
    assert mends(faults(helper, owner=(0, 0))) == {"owner": "replace"}
    gone = replace(helper, start_time=helper.start_time + 1)  # its PID is another's by now
    assert mends(faults(gone)) == {"virtiofsd": "replace"}
