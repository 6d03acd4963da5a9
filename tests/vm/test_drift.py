"""Each kind of drift, made by hand on the real host, is found, recorded and corrected."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.vm.harness import PATIENCE, READY, SLOWNESS, TINY, Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240 * PATIENCE)]


@pytest.fixture(scope="module")
def oak(shared_home: Home) -> Home:
    shared_home.put("oak", TINY)
    shared_home.ready("oak")
    return shared_home


def state_letter(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def group_file(home: Home, *names: str) -> Path:
    for group in home.cgroups("oak"):
        for name in names:
            if (group / name).exists():
                return group / name
    raise AssertionError(f"no {names} in {home.cgroups('oak')}")


def test_a_raised_memory_limit_is_put_back_without_a_restart(oak: Home) -> None:
    pid = oak.pid("oak")
    limit = group_file(oak, "memory.limit_in_bytes", "memory.max")
    before = limit.read_text()
    swap = limit.parent / "memory.memsw.limit_in_bytes"
    for path in (swap, limit) if swap.exists() else (limit,):
        path.write_text(str(int(before) * 2))
    oak.look_again()
    until(lambda: limit.read_text() == before, 40, "the limit is back")
    oak.mended("oak", "cgroup")
    assert oak.pid("oak") == pid


def test_a_vmm_moved_out_of_its_cgroup_is_moved_back(oak: Home) -> None:
    pid = oak.pid("oak")
    procs = group_file(oak, "memory.limit_in_bytes", "memory.max").parent / "cgroup.procs"
    outside = procs.parent.parent.parent.parent / "cgroup.procs"
    outside.write_text(str(pid))
    assert str(pid) not in procs.read_text().split()
    oak.look_again()
    until(lambda: str(pid) in procs.read_text().split(), 40, "the VMM is back in its cgroup")
    assert oak.pid("oak") == pid


def test_a_frozen_vmm_runs_on(oak: Home) -> None:
    pid = oak.pid("oak")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_letter(pid) == "T", 5, "stopped")
    oak.look_again()
    until(lambda: state_letter(pid) != "T", 40, "running again")
    oak.mended("oak", "vmm.state")
    assert oak.run("oak", "echo", "alive").stdout == b"alive\n"
    assert oak.pid("oak") == pid


def test_a_disk_file_given_away_is_taken_back(oak: Home) -> None:
    disk = oak.path / "disks" / "oak" / "base.raw"
    os.chown(disk, 1234, 1234)
    disk.chmod(0o666)
    oak.look_again()

    def private() -> bool:
        facts = disk.stat()
        return (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (0, 0, 0o600)

    until(private, 40, "owner and mode are back")
    oak.mended("oak", "data.owner")


def test_a_widened_socket_is_narrowed(oak: Home) -> None:
    socket = oak.runtime / "oak" / "agent.sock"
    socket.chmod(0o666)
    oak.look_again()
    until(lambda: socket.stat().st_mode & 0o777 == 0o600, 40, "mode is back")
    oak.mended("oak", "sockets")


def test_a_stray_vmm_started_twice_is_killed_and_the_right_one_lives(oak: Home) -> None:
    pid = oak.pid("oak")
    binary = os.readlink(f"/proc/{pid}/exe")
    marker = f"box:{oak.instance}:oak"
    stray = subprocess.Popen(
        [binary, "-nodefaults", "-display", "none", "-M", "none", "-S", "-name", marker]
    )
    try:
        # Before that nobody can tell whose it is; a timed pass may find it first.
        until(lambda: stray.poll() is not None or stray.pid in oak.vmms("oak"), 20, "it runs")
        oak.look_again()
        assert stray.wait(90) == -signal.SIGKILL
    finally:
        stray.kill()
        stray.wait()
    assert oak.vmms("oak") == [pid]
    assert oak.run("oak", "true").returncode == 0


def test_a_process_put_into_its_cgroup_is_killed(oak: Home) -> None:
    pid = oak.pid("oak")
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        group_file(oak, "memory.limit_in_bytes", "memory.max").parent.joinpath(
            "cgroup.procs"
        ).write_text(str(stranger.pid))
        oak.look_again()
        assert stranger.wait(90) == -signal.SIGKILL
    finally:
        stranger.kill()
        stranger.wait()
    assert oak.pid("oak") == pid


def test_deleted_and_garbled_reports_are_written_again(oak: Home) -> None:
    pid = oak.pid("oak")
    oak.forget_reports()
    oak.look_again()
    until(lambda: oak.condition("oak", "Ready")[0] == "True", 40, "the report is back")
    (oak.path / "observed" / "oak" / "observed.toml").write_text("= garbage")
    oak.look_again()
    until(lambda: oak.condition("oak", "Ready")[0] == "True", 40, "the report is whole")
    assert oak.pid("oak") == pid


@pytest.mark.quiet
def test_a_killed_vmm_is_noticed_within_100_ms_and_replaced(oak: Home) -> None:
    events = oak.path / "observed" / "oak" / "events.jsonl"
    pid = oak.pid("oak")

    def exits() -> int:
        return events.read_text().count('"exited"') if events.exists() else 0

    before = exits()
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: exits() > before, 5, "the exit is on record")
    # polling adds up to 20 ms, a loaded host more
    assert time.monotonic() - killed < (0.1 + 0.1) * SLOWNESS * PATIENCE
    oak.another_vmm("oak", pid)
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
    oak.mended("oak", "vmm")
    assert len(oak.vmms("oak")) == 1


@pytest.mark.quiet  # the registry is all homes'
def test_lost_state_and_identities_are_rebuilt_from_live_vmms(oak: Home) -> None:
    """The controller is restarted over garbage; the VMM it had started is taken up again."""
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
    pid, uid = oak.pid("oak"), oak.report("oak")["vmm"]["uid"]
    oak.stop()
    (oak.path / "state" / "oak.toml").write_text("\x00garbage")
    registry = Path("/var/lib/box/identities.toml")
    kept = registry.read_text()
    before = set(registry.parent.glob("identities.garbled-*"))
    registry.write_text("garbage [")
    try:
        oak.start()
        until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
        assert oak.pid("oak") == pid
        assert oak.report("oak")["vmm"]["uid"] == uid
        assert oak.vmms("oak") == [pid]
        assert f"{uid}" in registry.read_text()
    finally:
        if "garbage" in registry.read_text():
            registry.write_text(kept)
        for aside in set(registry.parent.glob("identities.garbled-*")) - before:
            aside.unlink()


@pytest.mark.quiet
def test_a_claim_the_registry_lost_while_running_goes_back_in(oak: Home) -> None:
    uid = oak.report("oak")["vmm"]["uid"]
    registry = Path("/var/lib/box/identities.toml")
    registry.unlink()
    oak.look_again()
    until(lambda: registry.exists() and f"{uid}" in registry.read_text(), 40, "the claim is back")
    assert len(oak.vmms("oak")) == 1


def test_out_of_memory_on_the_host_is_named(oak: Home) -> None:
    """L5: a VMM that the host kills at its limit is not just "gone"."""
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
    events = oak.path / "observed" / "oak" / "events.jsonl"
    pid = oak.pid("oak")
    limit = group_file(oak, "memory.limit_in_bytes", "memory.max")
    used = group_file(oak, "memory.usage_in_bytes", "memory.current")
    limit.write_text(str(int(used.read_text()) + (8 << 20)))
    oak.run("oak", "dd", "if=/dev/zero", "of=/tmp/fill", "bs=1M", "count=100", check=False)
    until(lambda: "memory limit" in events.read_text(), 40, "the event names it")
    oak.another_vmm("oak", pid)
    oak.ready("oak")


def test_a_sandbox_that_becomes_strict_gets_an_identity_of_its_own(home: Home) -> None:
    home.put("oak", f"{TINY}isolation: standard\n")
    home.ready("oak")
    former, shared = home.pid("oak"), os.stat(f"/proc/{home.pid('oak')}").st_uid
    home.run("oak", "sh", "-c", "echo kept > /data/note")  # still in the guest's page cache
    home.put("oak", TINY)
    home.another_vmm("oak", former)
    home.ready("oak")
    assert os.stat(f"/proc/{home.pid('oak')}").st_uid not in (shared, 0)
    assert home.run("oak", "cat", "/data/note").stdout == b"kept\n"
    assert home.drifted("oak") == []
