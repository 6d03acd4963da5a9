"""kill -9 at seeded moments, rounds of create and delete: nothing leaks, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.tracebacks import no_traceback
from tests.vm.harness import READY, TINY, Home, all_beneath, folders_in, until

ALL = os.environ.get("BOX_TEST_ALL") == "1"
KILLS = 60 if ALL else 6
ROUNDS = 50 if ALL else 5

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(3600 if ALL else 900)]


def consistent(home: Home, wanted: set[str]) -> None:
    """Exactly one VMM, disk and cgroup for each wanted name, none for any other."""

    def good() -> bool:
        found = {p.name for group in home.cgroups() for p in folders_in(group)}
        disks = {p.name for p in (home.path / "disks").iterdir() if not p.name.startswith(".")}
        runtime = {p.name for p in home.runtime.iterdir()}
        one_each = all(len(home.vmms(name)) == 1 for name in wanted)
        return (
            one_each
            and len(home.vmms()) == len(wanted)
            and found == wanted
            and disks == wanted
            and runtime == wanted
        )

    until(good, READY, lambda: f"exactly {sorted(wanted)}; {home.vmms()}; {home.log()}")


def test_a_controller_killed_at_any_moment_converges_when_it_returns(home: Home) -> None:
    seed = int(os.environ.get("BOX_TEST_SEED", "20261129"))
    chance = random.Random(seed)
    home.put("oak")
    home.ready("oak")
    home.run("oak", "sh", "-c", "echo precious > /data/file; sync")
    wanted = {"oak"}
    for number in range(KILLS):
        what = chance.choice(["create", "update", "delete"])
        if what == "create" or len(wanted) < 2:
            name = f"b{number}"
            home.put(name)
            wanted.add(name)
        elif what == "update":
            name = chance.choice(sorted(wanted))
            home.put(name, TINY + f"labels: {{round: 'r{number}'}}\nreadonly: true\n")
        else:
            name = chance.choice(sorted(wanted - {"oak"}))
            home.remove(name)
            wanted.discard(name)
        time.sleep(chance.uniform(0.0, 4.0))
        home.stop(signal.SIGKILL)
        home.start()
        if len(wanted) > 2:
            for extra in sorted(wanted - {"oak"})[:-1]:
                home.remove(extra)
                wanted.discard(extra)
        consistent(home, wanted)
    # Its VM may be one that is about to be replaced, so the first answer need not be the last.
    until(
        lambda: home.run("oak", "cat", "/data/file", check=False).stdout == b"precious\n",
        READY,
        f"oak has its data, seed {seed}; {home.log()}",
    )


def counts(home: Home) -> dict[str, int]:
    assert home.controller is not None
    controller = home.controller.pid
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    return {
        "descriptors": len(os.listdir(f"/proc/{controller}/fd")),
        "children": len(children),
        "vmms": len(home.vmms()),
        "cgroups": sum(len(folders_in(group)) for group in home.cgroups()),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "namespaces": len(network_namespaces()),
        "runtime": len(list(home.runtime.iterdir())),
        "files": sum(1 for p in all_beneath(home.path) if ".deleted" not in p.parts),
    }


def network_namespaces() -> set[str]:
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                found.add(os.readlink(path / "ns/net"))
    return found


@pytest.mark.quiet  # it counts mounts and namespaces of the whole host
def test_rounds_of_create_and_delete_leave_no_trace(home: Home) -> None:
    # The prune guard holds removals of over half of all: these make every removal a small part.
    for number in range(60):
        home.put(f"still{number}", "state: stopped\n")
    until(lambda: (home.path / "observed" / "still59" / "observed.toml").exists(), 30, "known")
    home.put("warm")  # the first start builds the image and hashes the kernel
    home.ready("warm")
    home.remove("warm")
    home.nothing_left("warm")
    before = counts(home)
    for number in range(ROUNDS):
        home.put(f"b{number}")
        home.ready(f"b{number}")
        home.remove(f"b{number}")
        home.nothing_left(f"b{number}")

    def no_more() -> bool:
        # Fewer is fine: mounts and namespaces are the whole host's, and others may end theirs.
        return all(now <= before[what] for what, now in counts(home).items())

    until(no_more, 20, lambda: f"{counts(home)} is no more than {before}")


def test_a_second_controller_refuses_to_start(home: Home) -> None:
    second = home.box("controller", check=False, timeout=60)
    assert second.returncode != 0
    assert b"already runs" in second.stderr
    no_traceback(second.stderr)


def test_a_killed_controllers_vm_is_adopted(home: Home) -> None:
    home.put("oak")
    home.ready("oak")
    pid = home.pid("oak")
    home.stop(signal.SIGKILL)
    assert home.vmms("oak") == [pid]
    home.start()
    until(lambda: home.run("oak", "true", check=False).returncode == 0, 30, "adopted")
    assert home.pid("oak") == pid
    assert home.drift("oak") == []


def test_without_a_controller_the_files_still_tell(home: Home) -> None:
    home.put("oak")
    home.ready("oak")
    home.stop()
    shown = home.box("get")
    assert b"oak" in shown.stdout
    assert b"not running" in shown.stderr
    refused = home.run("oak", "true", check=False)
    assert refused.returncode == 125
    assert b"box controller" in refused.stderr
