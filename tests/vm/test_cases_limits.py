"""S4, S6, L5: a host whose control groups, null device or memory are not what they should be.

The controller runs in a mount namespace of its own, where the host is changed for it alone. Either
a limit holds when it is read back, or nothing starts and the missing thing is named.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reconcilers.confinement.cgrouptree import host_tree
from reconcilers.confinement.groupfiles import GroupV1
from tests.vm.cases import CaseHome, case_home, nothing_left_behind, undisturbed
from tests.vm.harness import BOX, ROOT, TINY, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


def changed_host(script: str) -> Sequence[str]:
    """A prefix that runs `script` in a mount namespace of its own and then the controller in it."""
    shell = ["sh", "-ec", f'{script}; exec "$@"', "sh"]
    return ["unshare", "--mount", "--propagation", "private", *shell]


@contextlib.contextmanager
def refusing(script: str, layer: str, *words: str) -> Iterator[CaseHome]:
    """A sandbox that must not start there, and why: its condition, its report and `box doctor`."""
    prefix = changed_host(script)
    with case_home(prefix=prefix) as home, undisturbed(home):
        home.put("oak")
        until(lambda: home.condition("oak", "Confined")[1] == "LayerFailed", 20, "refused")
        said = home.message("oak", "Confined")
        assert said.startswith(f"{layer}: ") and all(word in said for word in words), said
        assert home.condition("oak", "Ready")[0] == "False"
        home.passes(2)
        # in between it tries again, and for a moment what it made is there
        until(lambda: not (home.vmms() or home.cgroups("oak")), 20, "what it made is gone")
        nothing_left_behind(home)
        doctor = subprocess.run(
            [*prefix, *BOX, "doctor"], env=home.env, cwd=ROOT, capture_output=True, timeout=150
        )
        assert doctor.returncode == 1 or layer != "cgroup"
        if layer == "cgroup":
            shown = doctor.stdout.decode()
            line = next(each for each in shown.splitlines() if each.startswith("fail  cgroups"))
            assert all(word in line for word in words), shown
        yield home


def where(controller: str) -> str:
    return shlex.quote(host_tree().controllers[controller].folder)


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu"])
def test_s4_a_read_only_hierarchy_starts_nothing_and_is_named(controller: str) -> None:
    """As in a container: the control groups are there, and may only be read."""
    with refusing(f"mount -o remount,bind,ro {where(controller)}", "cgroup", controller):
        pass


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu", "freezer"])
def test_s4_a_controller_that_is_not_there_starts_nothing_and_is_named(controller: str) -> None:
    if host_tree().controllers["memory"].version == 2:
        pytest.skip("the v2 tree has all controllers in one place")
    with refusing(f"umount {where(controller)}", "cgroup", controller):
        pass


def test_s4_without_swap_accounting_the_memory_limit_stands_and_the_reading_says_so(
    tmp_path: Path,
) -> None:
    """Kernels that count swap can no longer be told not to: plain files stand for such a group."""
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    group = GroupV1({"memory": str(tmp_path)})
    assert not group.counts_swap
    group.set_memory(64 << 20)
    assert (tmp_path / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (group.memory_limit, group.swap_limit) == (64 << 20, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.limit_in_bytes"]


def test_s6_a_null_device_that_is_a_link_starts_nothing_and_its_target_is_untouched(
    tmp_path: Path,
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("mine")
    stage = tmp_path / "dev"
    stage.mkdir()
    script = (
        f"mount -t tmpfs boxtest {stage}; cp -a /dev/zero /dev/full /dev/random /dev/urandom "
        f"/dev/tty {stage}; ln -s {canary} {stage}/null; mount --move {stage} /dev"
    )
    with refusing(script, "descriptors", "/dev/null"):
        pass
    assert canary.read_text() == "mine"


@pytest.fixture
def full_box() -> Iterator[CaseHome]:
    with case_home() as home:
        yield home


def test_l5_a_guest_that_fills_all_its_ram_never_meets_the_hosts_limit(full_box: CaseHome) -> None:
    """The limit is guest RAM and what QEMU needs beside it, so the guest runs out first."""
    home = full_box
    with undisturbed(home):
        home.put("oak", TINY)
        home.ready("oak")
        pid = home.pid("oak")
        # Memory that nothing can take away: tmpfs without swap (half of it), then a buffer of all
        # that is left but 20 MiB: the agent lets the commands have all but 13.
        home.run("oak", "sh", "-c", "cat /dev/zero > /tmp/fill", check=False)
        left = "N=$(( $(awk '/MemAvailable/ {print $2}' /proc/meminfo) * 1024 - (20 << 20) ))"
        held = home.run("oak", "sh", "-c", f"{left}; head -c $N /dev/zero | tail -c $N | wc -c")
        assert int(held.stdout) > 8 << 20
        # And more than there is, which the guest's own kernel refuses.
        more = home.run(
            "oak", "sh", "-c", "head -c 300m /dev/zero | tail -c 300000000", check=False
        )
        assert b"out of memory" in more.stderr
        home.run("oak", "rm", "/tmp/fill")
        assert home.run("oak", "echo", "well").stdout == b"well\n"
        assert home.pid("oak") == pid
        assert oom_kills(home) == 0
        used, limit = peak(home)
        assert 170 << 20 < used < limit, "nearly all of 192 MiB was in use, and room was left"
        assert home.events("oak", "exited") == []


def oom_kills(home: CaseHome) -> int:
    texts = [
        (group / name).read_text()
        for group in home.cgroups("oak")
        for name in ("memory.oom_control", "memory.events")
        if (group / name).exists()
    ]
    assert texts
    return sum(
        int(line.split()[1])
        for text in texts
        for line in text.splitlines()
        if line.startswith("oom_kill ")
    )


def peak(home: CaseHome) -> tuple[int, int]:
    """The most memory the VMM's group ever had, and its limit, in bytes."""
    for group in home.cgroups("oak"):
        for most, limit in (
            ("memory.max_usage_in_bytes", "memory.limit_in_bytes"),
            ("memory.peak", "memory.max"),
        ):
            if (group / most).exists():
                return int((group / most).read_text()), int((group / limit).read_text())
    raise AssertionError("no memory group")
