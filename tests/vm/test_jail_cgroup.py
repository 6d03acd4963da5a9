"""The control group of a sandbox on the real hierarchies of this host, v1 and the v2 tree."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement.cgroup import Cgroup, list_sandboxes
from reconcilers.confinement.cgrouptree import CgroupTree, Mounted, host_tree, tree_from
from reconcilers.confinement.policy import MIB, Limits
from specs.errors import ConfinementError, HostError
from specs.names import HostNames
from tests.vm.harness import until

pytestmark = pytest.mark.needs_root

LIMITS = Limits(memory_bytes=64 * MIB, pids_max=20, cpu_quota_us=150_000)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = Cgroup(HostNames(secrets.token_hex(6), "grouped"))
    made.create(LIMITS)
    yield made
    made.kill()
    made.remove()


def joined(group: Cgroup, code: str) -> subprocess.Popen[bytes]:
    """Python code in a process that joined the group before it ran anything."""
    join = "".join(f"open({path!r},'w').write('0');" for path in group.procs_files())
    return subprocess.Popen(
        [sys.executable, "-I", "-c", join + "\n" + code], start_new_session=True
    )


def until_member(group: Cgroup, pid: int) -> None:
    until(lambda: pid in group.procs(), 30, f"{pid} joined")


def test_limits_are_the_ones_written_in_the_files(group: Cgroup) -> None:
    memory = host_tree().controllers["memory"]
    file = "memory.limit_in_bytes" if memory.version == 1 else "memory.max"
    path = Path(memory.folder, group.names.cgroup)
    assert (path / file).read_text().strip() == str(64 * MIB)
    swap = path / "memory.memsw.limit_in_bytes"
    if swap.exists():
        assert swap.read_text().strip() == str(64 * MIB), "memory plus swap may exceed the limit"
    pids = Path(host_tree().controllers["pids"].folder, group.names.cgroup, "pids.max")
    assert pids.read_text().strip() == "20"


def test_limits_can_be_raised_and_lowered_again(group: Cgroup) -> None:
    for size in (128, 32, 256):
        group.apply(Limits(size * MIB, 30, 50_000, 50_000))
        facts = group.read()
        assert (facts.memory_bytes, facts.pids_max) == (size * MIB, 30)
        assert (facts.cpu_quota_us, facts.cpu_period_us) == (50_000, 50_000)


def test_limit_the_kernel_refuses_is_an_error_and_names_it(group: Cgroup) -> None:
    with pytest.raises(ConfinementError) as caught:
        group.apply(Limits(64 * MIB, 20, 1))  # under 1 ms of quota
    assert caught.value.layer == "cgroup"
    assert "cpu" in str(caught.value)


def test_limit_the_kernel_does_not_keep_is_an_error(group: Cgroup) -> None:
    """The kernel takes the largest number there is as no limit, without a word."""
    with pytest.raises(ConfinementError, match="memory_bytes"):
        group.apply(Limits((1 << 63) - 4096, 20, 150_000))


def test_memory_kill_is_counted(group: Cgroup) -> None:
    assert group.read().oom_kills == 0
    eater = joined(group, "x = bytearray(500 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1")
    assert eater.wait(60) == -9
    assert group.read().oom_kills >= 1


def test_process_limit_stops_a_fork_bomb(group: Cgroup) -> None:
    group.apply(Limits(256 * MIB, 20, 150_000))
    code = "import os,time\ntry:\n  for _ in range(100):\n    if os.fork()==0: time.sleep(600)\n"
    bomb = joined(group, code + "except BlockingIOError: time.sleep(600)\n")
    until_member(group, bomb.pid)
    until(lambda: group.read().pids_current >= 20, 30, lambda: str(group.read()))
    assert len(group.procs()) <= 20
    group.kill()
    bomb.wait(60)


def test_kill_reaches_processes_that_keep_forking(group: Cgroup) -> None:
    """Each process is gone before anybody could send it a signal; its child goes on."""
    group.apply(Limits(256 * MIB, 200, 200_000))
    join = ";".join(f"open({path!r},'w').write('0')" for path in group.procs_files())
    # the parent takes in orphans and lets the kernel reap them: zombies would fill the group
    code = (
        "import os,signal,time,ctypes\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "there, here = os.pipe()\n"
        "for _ in range(3):\n"
        "  if os.fork() == 0:\n"
        f"    {join}\n"
        "    os.write(here, b'x')\n"
        "    while True:\n"
        "      try:\n"
        "        if os.fork(): os._exit(0)\n"
        "      except OSError: pass\n"
        "for _ in range(3): os.read(there, 1)\n"
        "print('all', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        # One that joins only when the others are dead already is nobody's to kill.
        assert parent.stdout.readline() == b"all\n"
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        while len(seen) < 20:
            assert time.monotonic() < deadline, seen
            seen.update(group.procs())
        group.kill()
        assert group.procs() == []
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()  # its children may still have the other end


def test_kill_reaches_frozen_and_stopped_processes(group: Cgroup) -> None:
    sleeper = joined(group, "import os,signal\nos.kill(os.getpid(), signal.SIGSTOP)")
    until_member(group, sleeper.pid)
    group.freeze(True)
    group.kill()
    assert sleeper.wait(60) == -9


def test_group_in_use_is_not_removed(group: Cgroup) -> None:
    sleeper = joined(group, "import time; time.sleep(600)")
    until_member(group, sleeper.pid)
    with pytest.raises(HostError):
        group.remove()
    assert group.procs() == [sleeper.pid]
    group.kill()
    sleeper.wait(60)


def test_removed_group_leaves_no_folder_anywhere() -> None:
    one = Cgroup(HostNames(secrets.token_hex(6), "one"))
    two = Cgroup(HostNames(one.names.instance, "two"))
    one.create(LIMITS)
    two.create(LIMITS)
    assert list_sandboxes(one.names.instance) == ("one", "two")
    one.remove()
    assert list_sandboxes(one.names.instance) == ("two",)
    two.remove()
    assert list_sandboxes(one.names.instance) == ()
    assert not any(Path(folder).parent.exists() for folder in two.folders)


def test_create_on_top_of_an_existing_group_sets_the_limits_again(group: Cgroup) -> None:
    group.create(Limits(96 * MIB, 21, 100_000))
    assert group.read().pids_max == 21


@pytest.mark.parametrize("missing", ["memory", "pids", "cpu", "freezer"])
def test_missing_controller_refuses_a_group_and_is_named(missing: str) -> None:
    """The mount table of this host with one hierarchy taken out of it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    if missing == "freezer" and host_tree().controllers["memory"].version == 2:
        pytest.skip("the v2 tree freezes without a controller")
    kept = [line for line in lines if not line.endswith(f",{missing}")]
    tree = tree_from("\n".join(kept), "hugetlb")
    lacking = Cgroup(HostNames(secrets.token_hex(6), "lacking"), tree)
    with pytest.raises(ConfinementError) as caught:
        lacking.create(LIMITS)
    assert caught.value.layer == "cgroup"
    assert missing in str(caught.value)
    assert not lacking.exists()


def test_read_only_hierarchy_refuses_a_group_and_names_the_controller(tmp_path: Path) -> None:
    """As in a container: cgroup file systems are there, but mounted read-only."""
    code = (
        "from reconcilers.confinement.cgroup import *\n"
        "from specs.names import HostNames\nfrom specs.errors import ConfinementError\n"
        "from reconcilers.confinement.policy import Limits\n"
        "try: Cgroup(HostNames('a' * 12, 'x')).create(Limits(1 << 26, 9, 100000))\n"
        "except ConfinementError as error: print(error.layer, error)\n"
    )
    memory = host_tree().controllers["memory"]
    version, folder = memory.version, memory.folder
    script = f'mount -o remount,bind,ro {folder} && exec {sys.executable} -c "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.startswith("cgroup "), done.stdout + done.stderr
    # on v2 all controllers share one tree, and that is what is named
    assert ("memory" if version == 1 else folder) in done.stdout
    assert "read-only" in done.stdout


@pytest.fixture
def unified() -> Iterator[Cgroup]:
    """A group in the v2 tree, whatever controllers that tree has."""
    where = host_tree().unified
    if not where:
        pytest.skip("no cgroup v2 tree is mounted")
    tree = CgroupTree({"hugetlb": Mounted(2, where)}, where)
    made = Cgroup(HostNames(secrets.token_hex(6), "unified"), tree)
    yield made
    made.kill()
    made.remove()


def test_unified_tree_makes_joins_kills_and_removes(unified: Cgroup) -> None:
    unified.make()
    assert unified.exists()
    sleeper = joined(unified, "import os,time\nos.fork()\ntime.sleep(600)")
    until_member(unified, sleeper.pid)
    assert f"0::/{unified.names.cgroup}\n" in Path(f"/proc/{sleeper.pid}/cgroup").read_text()
    unified.freeze(True)
    unified.kill()
    assert sleeper.wait(60) == -9
    assert unified.procs() == []
    unified.remove()
    assert not unified.exists()


@pytest.mark.needs_cgroup2
def test_limits_hold_in_a_unified_tree_with_controllers(unified: Cgroup) -> None:
    real = Cgroup(unified.names)
    real.create(LIMITS)
    assert real.read().memory_bytes == LIMITS.memory_bytes
