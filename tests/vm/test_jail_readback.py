"""Readback finds what somebody changed on a live VMM, or what a VMM never had; mend puts it back.

Each test breaks the host by hand and looks at the host again afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers.confinement import syscalls
from reconcilers.confinement.layers import LAYERS
from reconcilers.confinement.readback import mend, read_vmm
from reconcilers.confinement.seccomp import compile_rules, read_profile, rules_for
from specs.reading import Reading
from tests.vm.harness import until
from tests.vm.jailed import Jail, jail, probe

pytestmark = pytest.mark.needs_root


@pytest.fixture
def running() -> Iterator[Jail]:
    with jail() as made:
        made.start_bare()
        made.connect(3).recv(16)  # its greeting: all its threads are there
        yield made


def read(made: Jail) -> tuple[Reading, ...]:
    assert made.launched is not None
    return read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)


def wrong(made: Jail) -> list[tuple[str, str]]:
    return [(each.layer, each.item) for each in read(made) if not each.ok]


def mended(made: Jail) -> list[tuple[str, str]]:
    return [(each.layer, each.item) for each in mend(made.pid, made.want, made.names, read(made))]


def group_file(made: Jail, controller: str, file: str) -> Path:
    at = made.group.tree.controllers[controller]
    return Path(at.folder, made.names.cgroup, file)


def limit_file(made: Jail, v1: str, v2: str) -> Path:
    name = v1.partition(".")[0]
    version = made.group.tree.controllers[name].version
    return group_file(made, name, v1 if version == 1 else v2)


def test_fresh_vmm_has_every_layer_and_no_difference(running: Jail) -> None:
    assert wrong(running) == []
    assert {each.layer for each in read(running)} == {layer.name for layer in LAYERS}


def test_raised_memory_limit_is_found_and_mended(running: Jail) -> None:
    path = limit_file(running, "memory.limit_in_bytes", "memory.max")
    before = path.read_text()
    with contextlib.suppress(OSError):
        path.with_name("memory.memsw.limit_in_bytes").write_text(str(1 << 40))
    path.write_text(str(1 << 40))
    assert ("cgroup", "memory") in wrong(running)
    mended(running)
    assert path.read_text() == before
    assert wrong(running) == []


def test_lowered_memory_limit_is_found_and_mended(running: Jail) -> None:
    path = limit_file(running, "memory.limit_in_bytes", "memory.max")
    before = path.read_text()
    path.write_text(str(200 << 20))
    assert ("cgroup", "memory") in wrong(running)
    mended(running)
    assert path.read_text() == before
    assert wrong(running) == []


def test_removed_pids_limit_is_found_and_mended(running: Jail) -> None:
    path = group_file(running, "pids", "pids.max")
    path.write_text("max")
    assert wrong(running) == [("cgroup", "pids")]
    assert mended(running) == [("cgroup", "pids")]
    assert path.read_text().strip() == str(running.want.limits.pids_max)


def test_removed_cpu_quota_is_found_and_mended(running: Jail) -> None:
    path = limit_file(running, "cpu.cfs_quota_us", "cpu.max")
    before = path.read_text()
    path.write_text("-1" if "cfs" in path.name else "max")
    assert wrong(running) == [("cgroup", "cpu quota")]
    mended(running)
    assert path.read_text() == before


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu", "freezer"])
def test_vmm_moved_out_of_a_group_is_found_and_put_back(running: Jail, controller: str) -> None:
    at = running.group.tree.controllers.get(controller)
    if at is None:
        pytest.skip(f"this host has no {controller} hierarchy of its own")
    Path(at.folder, "cgroup.procs").write_text(str(running.pid))
    [(layer, item)] = wrong(running)
    assert layer == "cgroup" and item.startswith("member of")
    mended(running)
    assert running.pid in running.group.procs()
    assert f"/{running.names.cgroup}\n" in Path(f"/proc/{running.pid}/cgroup").read_text()
    assert wrong(running) == []


def test_single_thread_moved_out_is_found_and_put_back(running: Jail) -> None:
    at = running.group.tree.controllers["pids"]
    if at.version == 2:
        pytest.skip("in the v2 tree all threads of a process are in one group")
    threads = sorted(map(int, os.listdir(f"/proc/{running.pid}/task")))
    assert len(threads) > 1
    Path(at.folder, "tasks").write_text(str(threads[-1]))
    assert wrong(running) == [("cgroup", "member of pids")]
    mended(running)
    tasks = group_file(running, "pids", "tasks").read_text().split()
    assert str(threads[-1]) in tasks


@pytest.mark.parametrize("read_before", [True, False])
def test_frozen_group_is_found_and_thawed(running: Jail, read_before: bool) -> None:
    if read_before:
        assert wrong(running) == []
    running.group.freeze(True)
    found = [each for each in read(running) if not each.ok]
    assert ("cgroup", "frozen") in [(each.layer, each.item) for each in found]
    assert {each.mend for each in found} == {"in place"}, "a frozen guest must not be replaced"
    mended(running)
    # A version 1 group thaws in its own time, and its program is read from a thread that runs.
    until(lambda: wrong(running) == [], 20, "every reading is right again")


def test_changed_resource_limit_is_found_and_mended(running: Jail) -> None:
    uid = str(running.want.uid)
    identity = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    changed = ["prlimit", f"--pid={running.pid}", "--nofile=100:512"]
    subprocess.run([*identity, *changed], check=True, timeout=20)
    assert wrong(running) == [("rlimits", "nofile")]
    assert mended(running) == [("rlimits", "nofile")]
    limits = Path(f"/proc/{running.pid}/limits").read_text()
    assert "Max open files            512                  512" in limits
    assert wrong(running) == []


def test_vmm_of_another_identity_is_found_and_only_replaceable(running: Jail) -> None:
    running.want = replace(running.want, uid=running.want.uid + 1)
    [found] = [each for each in read(running) if not each.ok]
    assert (found.layer, found.item, found.mend) == ("identity", "Uid", "replace")
    assert mended(running) == []


def test_vmm_under_another_program_is_found() -> None:
    """The policy was changed since it was started: it has a filter, but not the one wanted."""
    rules = rules_for(read_profile("qemu"), kvm=False)
    with jail() as made:
        made.start_bare()
        without = [rule for rule in rules if rule["syscall"] != "pipe2"]
        made.want = replace(made.want, seccomp=compile_rules("qemu", without))
        assert wrong(made) == [("seccomp", "program sha256")]


def test_process_that_nobody_confined_is_found_in_every_layer() -> None:
    """A stray that was started by hand, put into the group but into nothing else."""
    with jail() as made:
        stray = subprocess.Popen(
            [probe()], env={"SECRET": "x"}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            made.group.attach(stray.pid)
            readings = read_vmm(stray.pid, made.want, made.names, at_launch=())
            found = {each.layer for each in readings if not each.ok}
            unseen = {"cgroup"} if syscalls.time_slice(0) else {"cgroup", "scheduler"}
            assert found == {layer.name for layer in LAYERS} - unseen
        finally:
            stray.kill()
            stray.wait()


def test_lost_launch_record_is_not_taken_for_good(running: Jail) -> None:
    readings = read_vmm(running.pid, running.want, running.names, at_launch=())
    lost = {(each.layer, each.item) for each in readings if not each.ok}
    assert lost == {
        ("securebits", "securebits"),
        ("session", "death signal"),
        ("landlock", "rules"),
        ("root", "mounts"),
        ("descriptors", "files"),
        ("exec", "binary"),
    }


def test_extra_descriptor_of_a_host_file_is_found(running: Jail) -> None:
    """Given over the VMM's own monitor, as a compromised one could be given it."""
    from socket import SCM_RIGHTS, SOL_SOCKET
    from struct import pack

    monitor = running.connect(3)
    monitor.recv(4096)
    monitor.sendall(b'{"execute":"qmp_capabilities"}')
    monitor.recv(4096)
    secret = os.open("/etc/shadow", os.O_RDONLY)
    command = b'{"execute":"getfd","arguments":{"fdname":"secret"}}'
    monitor.sendmsg([command], [(SOL_SOCKET, SCM_RIGHTS, pack("i", secret))])
    monitor.recv(4096)
    os.close(secret)
    assert wrong(running) == [("descriptors", "files")]


def test_vmm_that_is_just_starting_shows_no_difference() -> None:
    """It still maps its libraries: those are files of its own root."""
    for _ in range(5):
        with jail() as made:
            made.start_bare()
            assert [item for item in wrong(made) if item[0] == "descriptors"] == []


def test_ended_process_is_an_error_and_no_reading(running: Jail) -> None:
    os.kill(running.pid, signal.SIGKILL)
    running.ended()
    with pytest.raises(ProcessLookupError):
        read(running)
