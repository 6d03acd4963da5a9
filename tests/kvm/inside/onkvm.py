"""What box promises on a host with hardware virtualization and cgroup v2, seen on a real one.

Runs inside the lab only (its name keeps it from being collected elsewhere), with the installed box.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kvm.inside.who import ISOLATION, ROOT, a_home
from tests.vm.harness import READY, Home, until

# `accel` is left out: auto has to find out that KVM works.
OAK = f"cpus: 2\nram_mib: 192\nisolation: {ISOLATION}\ndata: {{size_mib: 32}}\n"


@pytest.fixture(scope="module")
def oak() -> Iterator[Home]:
    with a_home() as home:
        home.put("oak", OAK)
        home.ready("oak")
        yield home


def group_of(home: Home) -> Path:
    (found,) = home.cgroups("oak")
    return found


def links(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue  # closed since it was listed
    return found


def test_a_sandbox_that_names_no_accelerator_gets_hardware_virtualization(oak: Home) -> None:
    assert oak.condition("oak", "HardwareIsolated") == ("True", "HardwareVirtualization")
    assert oak.condition("oak", "Confined")[0] == "True"
    assert oak.condition("oak", "KernelVerified")[0] == "True"


def status_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def test_the_vmm_really_runs_on_kvm(oak: Home) -> None:
    """Read off the process, by nothing of ours: a VM and both of its CPUs are KVM's."""
    pid = oak.pid("oak")
    held = links(pid)
    wanted = ["anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0", "anon_inode:kvm-vcpu:1"]
    assert [name for name in wanted if name not in held] == []
    assert b"\0-accel\0kvm\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    device = Path(f"/proc/{pid}/root/dev/kvm").stat()
    uid = oak.report("oak")["vmm"]["uid"]
    # Nobody but root can make a node: a user's VMM has the host's, through kvm's group.
    own = (uid, 0o600) if ROOT else (0, 0o660)
    assert (device.st_uid, device.st_mode & 0o777) == own
    if not ROOT:
        groups = {line for line in status_of(pid) if line.startswith("Groups:")}
        assert groups == {f"Groups:\t{device.st_gid} "}


def test_commands_run_in_a_kernel_of_its_own(oak: Home) -> None:
    guest = oak.run("oak", "uname", "-r").stdout.decode().strip()
    assert guest.endswith("-cloud-amd64")
    assert guest != os.uname().release
    assert oak.run("oak", "sh", "-c", "echo out; exit 7", check=False).returncode == 7
    assert oak.run("oak", "nproc").stdout == b"2\n"
    assert oak.run("oak", "ls", "/dev/kvm", check=False).returncode != 0


def test_every_reading_of_verify_is_as_it_must_be(oak: Home) -> None:
    shown = oak.box("verify", "oak", check=False)
    assert shown.returncode == 0, shown.stdout.decode()


def test_doctor_says_that_kvm_was_tried_by_running_a_guest(oak: Home) -> None:
    done = json.loads(oak.box("doctor", "-o", "json", check=False).stdout)
    found = {check["name"]: check for check in done["checks"]}
    kvm = found["hardware virtualization"]
    assert kvm["state"] == "ok", kvm
    assert "booted on KVM" in kvm["found"]
    assert found["cgroups"]["found"].startswith("cpu (v2), memory (v2), pids (v2)")
    assert [check for check in done["checks"] if check["state"] == "fail"] == []


def test_the_limits_stand_in_the_one_tree_of_cgroup_v2(oak: Home) -> None:
    group = group_of(oak)
    assert str(oak.pid("oak")) in (group / "cgroup.procs").read_text().split()
    # guest RAM and 96 MiB for QEMU, no translation buffer: that belongs to emulation
    assert (group / "memory.max").read_text().strip() == str((192 + 96) << 20)
    assert (group / "memory.swap.max").read_text().strip() == "0"
    assert (group / "pids.max").read_text().strip() == "66"
    assert (group / "cpu.max").read_text().strip() == "300000 100000"


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("memory.max", "max"),
        ("memory.swap.max", "max"),
        ("pids.max", "max"),
        ("cpu.max", "max 100000"),
        ("cgroup.freeze", "1"),
    ],
)
def test_a_limit_changed_by_hand_is_put_back_in_place(oak: Home, file: str, value: str) -> None:
    pid, path = oak.pid("oak"), group_of(oak) / file
    before = path.read_text()
    path.write_text(value)
    assert path.read_text() != before
    oak.look_again()
    until(lambda: path.read_text() == before, 40, f"{file} is back")
    assert oak.pid("oak") == pid
    assert oak.run("oak", "echo", "alive").stdout == b"alive\n"


def test_no_thread_of_the_kernel_is_taken_for_a_stray(oak: Home) -> None:
    """KVM puts a worker of its own into the group of each VM's process; nobody can kill it."""
    events = oak.box("events", "oak").stdout.decode()
    assert "stray" not in events, events


def test_a_guest_that_eats_all_its_memory_hurts_only_itself(oak: Home) -> None:
    pid, group = oak.pid("oak"), group_of(oak)
    hog = oak.run("oak", "tail", "/dev/zero", check=False)  # holds the whole line, without an end
    assert hog.returncode == 128 + signal.SIGKILL
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
    assert oak.pid("oak") == pid
    assert "oom_kill 0" in (group / "memory.events").read_text().splitlines()


def test_a_killed_vmm_is_replaced_and_its_data_is_there(oak: Home) -> None:
    oak.run("oak", "sh", "-c", "echo kept >/data/note; sync")
    pid = oak.pid("oak")
    os.kill(pid, signal.SIGKILL)
    until(lambda: oak.pid("oak") != pid, READY, "another VMM")
    oak.ready("oak")
    oak.mended("oak", "vmm")
    assert oak.run("oak", "cat", "/data/note").stdout == b"kept\n"
    assert oak.condition("oak", "HardwareIsolated")[0] == "True"


def test_a_host_that_loses_kvm_never_falls_back_to_emulation(oak: Home) -> None:
    """The VM that runs goes on; another one is not quietly emulated under strict."""
    device, aside = Path("/dev/kvm"), Path("/dev/kvm-aside")
    pid = oak.pid("oak")
    device.rename(aside)
    try:
        oak.put("elm", OAK)
        until(lambda: verdict(oak, "elm") is not None, READY, "elm was judged")
        if ISOLATION == "strict":
            assert oak.vmms("elm") == []
            assert oak.condition("elm", "Ready")[0] == "False"
        assert oak.condition("elm", "HardwareIsolated")[0] == "False"
        assert oak.vmms("oak") == [pid]
    finally:
        aside.rename(device)
    oak.remove("elm")
    oak.nothing_left("elm")


def verdict(home: Home, name: str) -> tuple[str, str] | None:
    found = home.condition(name, "HardwareIsolated")
    return found if found[0] in ("True", "False") else None


def test_a_deleted_sandbox_leaves_nothing(oak: Home) -> None:
    pid, group = oak.pid("oak"), group_of(oak)
    oak.remove("oak")
    oak.nothing_left("oak")
    assert not Path(f"/proc/{pid}").exists()
    assert not group.exists()
    kernel: Any = subprocess.run(["ps", "-e", "-o", "comm="], capture_output=True, text=True)
    # The machine that the lab holds has the only worker.
    assert kernel.stdout.count("kvm-nx-lpage") <= 1
