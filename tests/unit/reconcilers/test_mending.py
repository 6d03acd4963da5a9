"""A wall that cannot be put back keeps no other from being put back: on a real process, no VM."""

from __future__ import annotations

import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers import procfs
from reconcilers.confinement.policy import confinement_for
from reconcilers.confinement.readback import read_vmm
from reconcilers.confinement.seccomp import load_profile
from reconcilers.launchrecord import LaunchRecord
from reconcilers.mending import Running, mend_readings
from reconcilers.runtimefiles import read_files
from specs.boxfile import Boxfile
from tests.unit.reconcilers.hosts import WEB, host_in
from tests.unit.reconcilers.test_strays import process
from tests.vm.harness import until


@pytest.mark.needs_root
def test_a_socket_that_is_gone_keeps_no_limit_from_being_put_back(tmp_path: Path) -> None:
    box = Boxfile(name="web")
    want = confinement_for(
        box, uid=65533, gid=65533, kvm=False, program=load_profile("qemu", False)
    )
    host = host_in(tmp_path)
    with process() as child:
        begun = procfs.read_stat(child.pid)
        assert begun is not None
        record = LaunchRecord(
            key="", token="", accel="tcg", uid=1, gid=1, kernel_sha256="", kernel_release="",
            initramfs_sha256="", image_sha256="", host_boot_id="", started="", argv=(),
            data_bytes=0, pid=child.pid, start_time=begun.start_time,
        )  # fmt: skip
        missing = [replace(each, mend="in place") for each in read_files(host.layout, "web")]
        found = read_vmm(child.pid, want, WEB, at_launch=())
        size = [each for each in found if (each.layer, each.item) == ("rlimits", "fsize")]
        assert not size[0].ok, "a plain process has no such limit"
        another = replace(record, start_time=begun.start_time + 1)
        before = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
        with pytest.raises(ProcessLookupError):
            mend_readings(Running(WEB, box, another, want, host.networks), size)
        assert resource.prlimit(child.pid, resource.RLIMIT_FSIZE) == before
        with pytest.raises(FileNotFoundError):
            vm = Running(WEB, box, record, want, host.networks)
            mend_readings(vm, [*missing, *size])
        soft, _ = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
        assert ("fsize", soft, -1) in want.rlimits


def test_a_signal_goes_to_the_very_process_or_to_nobody() -> None:
    with process() as child:
        begun = procfs.read_stat(child.pid)
        assert begun is not None
        assert not procfs.send(child.pid, begun.start_time + 1, signal.SIGKILL)
        assert procfs.send(child.pid, begun.start_time, signal.SIGSTOP)
        until(lambda: _frozen(child.pid), 10, "the stop")
        assert procfs.send(child.pid, begun.start_time, signal.SIGKILL)
        child.wait()
        assert not procfs.send(child.pid, begun.start_time, signal.SIGKILL)


def _frozen(pid: int) -> bool:
    found = procfs.read_stat(pid)
    return found is not None and found.frozen
