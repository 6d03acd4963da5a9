"""An ordinary user's sandboxes: confined as root's are, and refused where something is missing.

What the tests assert they read as root, from outside, with none of the readers of the product.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reconcilers.confinement import syscalls
from tests.vm.handed import hand_over
from tests.vm.harness import READY, TINY, until
from tests.vm.people import COUNT, Person, PersonsHome, is_reader, person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

STRICT = ("elm", "fir")
STANDARD = "ash"


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with person() as made:
        yield made


@pytest.fixture(scope="module")
def home(someone: Person) -> Iterator[PersonsHome]:
    """Two strict sandboxes and a standard one, running."""
    with persons_home(someone) as made:
        made.start()
        for name in STRICT:
            made.put(name)
        made.put(STANDARD, TINY + "isolation: standard\n")
        for name in (*STRICT, STANDARD):
            made.ready(name)
        yield made


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def refused(someone: Person, text: str = TINY, **settings: Any) -> str:
    """What `Confined` and the fix say of a sandbox that was not started."""
    with persons_home(someone, **settings) as home:
        home.put("oak", text)
        home.start()
        until(
            lambda: home.condition("oak", "Confined") == ("False", "LayerFailed"),
            20,
            f"it is refused; {home.log()}",
        )
        assert home.vmms() == []
        return f"{home.message('oak', 'Confined')}; fix: {home.report('oak')['failure']['fix']}"


# -- what runs


def test_each_strict_vmm_is_a_stranger_to_its_user_and_to_the_others(
    home: PersonsHome, someone: Person
) -> None:
    uids = {name: status(home.pid(name))["Uid"].split() for name in STRICT}
    gids = {name: status(home.pid(name))["Gid"].split() for name in STRICT}
    assert uids == gids
    for name in STRICT:
        assert len(set(uids[name])) == 1
        assert someone.first <= int(uids[name][0]) < someone.first + COUNT
        assert status(home.pid(name))["Groups"] == ""
    # from the top of the range down
    taken = {int(numbers[0]) for numbers in uids.values()}
    assert taken == {someone.first + COUNT - 1, someone.first + COUNT - 2}


def test_a_standard_vmm_is_its_user_and_in_no_other_group(
    home: PersonsHome, someone: Person
) -> None:
    found = status(home.pid(STANDARD))
    assert found["Uid"].split() == [str(someone.uid)] * 4
    assert found["Gid"].split() == [str(someone.gid)] * 4
    assert set(found["Groups"].split()) <= {str(someone.gid)}


@pytest.mark.parametrize("name", [*STRICT, STANDARD])
def test_every_layer_is_there(home: PersonsHome, name: str) -> None:
    pid = home.pid(name)
    found = status(pid)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[kind], 16) == 0, kind
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    assert found["NSpid"].split()[-1] == "1"
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        theirs = os.readlink(f"/proc/{pid}/ns/{kind}")
        assert theirs != os.readlink(f"/proc/self/ns/{kind}"), kind
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(",")), line
    for group in home.cgroups(name):
        assert str(pid) in (group / "cgroup.procs").read_text().split()
    assert home.cgroups(name)
    assert home.condition(name, "Confined") == ("True", "AllLayersRead")
    assert home.run(name, "echo", "hello").stdout == b"hello\n"


def test_no_process_of_its_own_is_needed_to_look(home: PersonsHome) -> None:
    assert not [each for each in home.every_child() if is_reader(each)]


def test_what_only_root_may_read_is_labelled_as_of_the_launch(home: PersonsHome) -> None:
    readings = home.report(STRICT[0])["confinement"]
    [program] = [each for each in readings if each["item"] == "program sha256"]
    assert program["when"] == "at launch"
    [filters] = [each for each in readings if each["item"] == "filters"]
    live = status(home.pid(STRICT[0]))["Seccomp_filters"]
    assert (filters["when"], filters["got"]) == ("live", live)


# -- drift


def limit_of(home: PersonsHome, name: str) -> Path:
    for group in home.cgroups(name):
        for file in ("memory.limit_in_bytes", "memory.max"):
            if (group / file).exists():
                return group / file
    raise AssertionError(home.cgroups(name))


def test_a_raised_limit_is_put_back(home: PersonsHome) -> None:
    limit = limit_of(home, STRICT[0])
    before = limit.read_text()
    swap = limit.parent / "memory.memsw.limit_in_bytes"
    for path in (swap, limit) if swap.exists() else (limit,):
        path.write_text(str(int(before) * 2))
    home.look_again()
    until(lambda: limit.read_text() == before, 40, f"the limit is back; {home.log()}")


@pytest.mark.parametrize("name", [STRICT[0], STANDARD])
def test_a_vmm_moved_out_of_its_group_is_moved_back(home: PersonsHome, name: str) -> None:
    pid = home.pid(name)
    procs = limit_of(home, name).parent / "cgroup.procs"
    with home.standing_still():  # else a timed look may put it back at once
        (procs.parents[4] / "cgroup.procs").write_text(str(pid))
        assert str(pid) not in procs.read_text().split()
    home.look_again()
    until(lambda: str(pid) in procs.read_text().split(), 40, f"it is back; {home.log()}")
    assert home.pid(name) == pid


@pytest.mark.skipif(not syscalls.time_slice(0), reason="time slices begin with Linux 6.12")
@pytest.mark.parametrize(("name", "same"), [(STANDARD, True), (STRICT[0], False)])
def test_a_changed_time_slice_is_put_back_where_the_vmm_is_the_users_own(
    home: PersonsHome, name: str, same: bool
) -> None:
    """A strict VMM is a stranger's: only root may set its slice, so it is replaced."""

    def slice_now() -> int:
        try:
            return syscalls.time_slice(home.pid(name) or -1)
        except OSError:  # it has just ended, or there is none
            return 0

    pid, before = home.pid(name), slice_now()
    assert before
    syscalls.set_time_slice(pid, before // 4)
    home.look_again()
    until(lambda: slice_now() == before, READY, f"the slice is back; {home.log()}")
    assert (home.pid(name) == pid) is same
    home.ready(name)


def test_a_descriptor_that_a_strict_vmm_was_not_given_costs_it_its_life(home: PersonsHome) -> None:
    """The user may not list its /proc/PID/fd; it is seen by copies."""
    name = STRICT[1]
    pid = home.pid(name)
    hand_over(home.runtime / name / "qmp.sock", "/etc/shadow")
    home.look_again()
    until(lambda: not os.path.exists(f"/proc/{pid}"), 40, f"it is replaced; {home.log()}")
    home.mended(name, "descriptors")
    home.ready(name)


def test_a_killed_vmm_comes_back_under_the_same_identity(home: PersonsHome) -> None:
    name = STRICT[0]
    pid, uid = home.pid(name), status(home.pid(name))["Uid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: home.pid(name) not in (0, pid), 60, f"another VMM; {home.log()}")
    home.ready(name)
    assert status(home.pid(name))["Uid"] == uid


def test_a_controller_that_was_killed_adopts_what_runs(home: PersonsHome) -> None:
    before = {name: home.pid(name) for name in (*STRICT, STANDARD)}
    home.stop(signal.SIGKILL)
    home.start()
    for name, pid in before.items():
        answers = partial(home.run, name, "true", check=False)
        until(lambda: answers().returncode == 0, 40, f"{name} answers; {home.log()}")  # noqa: B023
        assert home.pid(name) == pid


def test_a_deletion_leaves_nothing(home: PersonsHome) -> None:
    for name in (*STRICT, STANDARD):
        home.box("delete", name)
    for name in (*STRICT, STANDARD):
        home.nothing_left(name)
    assert "sandbox" not in home.claims()
    until(lambda: not home.children(), 10, "no process is left")


# -- identities (case S3)


def failure_of(home: PersonsHome, name: str) -> str:
    return str(home.report(name).get("failure", {}).get("message", ""))


def test_short_ranges_are_used_one_after_the_other_and_then_a_sandbox_waits(
    someone: Person,
) -> None:
    """And whoever comes next neither gets nor reads what a deleted one left behind."""
    lines = someone.lines((someone.first + 100, 1), (someone.first + 200, 1))
    files = {"/etc/subuid": lines, "/etc/subgid": lines}
    with persons_home(someone, replaced=files) as home:
        home.start()
        for name in ("one", "two"):
            home.put(name)
            home.ready(name)
        uids = {name: int(status(home.pid(name))["Uid"].split()[0]) for name in ("one", "two")}
        assert uids == {"one": someone.first + 100, "two": someone.first + 200}
        home.put("three")
        until(lambda: failure_of(home, "three").startswith("waits:"), 20, "three waits")
        assert "2 identities" in failure_of(home, "three")
        assert len(home.vmms()) == 2
        left = home.path / "left"
        left.write_text("secret")
        left.chmod(0o600)
        os.chown(left, uids["one"], uids["one"])
        home.remove("one")
        home.nothing_left("one")
        until(lambda: "left behind" in failure_of(home, "three"), 40, failure_of(home, "three"))
        assert home.vmms("three") == []
        left.unlink()
        home.look_again()
        home.ready("three")
        assert int(status(home.pid("three"))["Uid"].split()[0]) == uids["one"]


def test_a_range_that_another_users_line_overlaps_is_refused(someone: Person) -> None:
    lines = someone.lines((someone.first, COUNT)) + f"nobody:{someone.first + 8}:4\n"
    said = refused(someone, replaced={"/etc/subuid": lines})
    assert said.startswith("identity: ")
    assert f"{someone.first + 8}-{someone.first + 11} of nobody (/etc/subuid:2)" in said


@pytest.mark.parametrize("empty", ["/etc/subuid", "/etc/subgid"])
def test_without_a_line_a_strict_sandbox_is_refused_and_not_run_as_the_user(
    someone: Person, empty: str
) -> None:
    said = refused(someone, replaced={empty: "# nothing\n"})
    assert said.startswith("identity: ")
    assert "fix: sudo usermod --add-subuids " in said and someone.name in said


# -- what is missing is named


def test_without_groups_of_his_own_a_user_is_told_to_get_them() -> None:
    with person(groups=False) as other:
        said = refused(other)
    assert said.startswith("cgroup: no control groups were prepared for this user: /sys/fs/cgroup")
    assert "fix: ./dev setup, or sudo " in said


def test_a_missing_newuidmap_is_named(someone: Person) -> None:
    said = refused(someone, replaced={"/usr/bin/newuidmap": "#!/bin/sh\nexit 127\n"})
    assert said.startswith("user namespace: newuidmap refuses")


def test_no_new_privs_on_the_controller_is_named(someone: Person) -> None:
    """Case S6: newuidmap has no power then, and the mapping is not made smaller."""
    with persons_home(someone, before=["setpriv", "--no-new-privs"]) as home:
        home.put("oak")
        home.start()
        until(lambda: len(home.events("oak", "failed")) > 1, 30, f"tried twice; {home.log()}")
        assert home.vmms() == []
        assert home.condition("oak", "Confined") == ("False", "LayerFailed"), home.report("oak")
        assert home.message("oak", "Confined").startswith("user namespace: newuidmap refuses")
        assert "no_new_privs is set on this process" in home.report("oak")["failure"]["fix"]


FORBID = """
import errno, os, sys
import pyseccomp
refuse = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
refuse.set_attr(pyseccomp.Attr.CTL_NNP, 0)
flag = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0x10000000, 0x10000000)
refuse.add_rule(pyseccomp.ERRNO(errno.EPERM), "unshare", flag)
refuse.load()
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_forbidden_user_namespaces_are_named(someone: Person, isolation: str) -> None:
    text = f"{TINY}isolation: {isolation}\n"
    said = refused(someone, text, before=[sys.executable, "-c", FORBID])
    assert said.startswith("user namespace: the layer 'user namespace' could not be applied")


def test_a_users_other_groups_are_dropped_from_a_standard_vmm(someone: Person) -> None:
    with persons_home(someone, groups=(4, 27)) as home:
        home.put("oak", TINY + "isolation: standard\n")
        assert home.once().returncode == 0, home.report("oak")
        found = status(home.pid("oak"))
        assert found["Uid"].split() == [str(someone.uid)] * 4
        assert found["Groups"] == ""


def test_where_they_cannot_be_dropped_it_is_not_started(someone: Person) -> None:
    said = refused(
        someone,
        TINY + "isolation: standard\n",
        groups=(4, 27),
        replaced={"/etc/subgid": "# nothing\n"},
    )
    assert said.startswith("identity: ") and "would stay with the VMM" in said
    assert "--add-subgids" in said


# -- box doctor

NEVER = "#!/bin/sh\nexit 1\n"
ASKED = ("cgroups", "user namespaces", "subordinate ids", "launching side", "new privileges")


def doctor(someone: Person, **settings: Any) -> dict[str, dict[str, str]]:
    with persons_home(someone, **settings) as home:
        done = home.box("doctor", "-o", "json", check=False)
        return {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def test_doctor_tries_what_a_user_needs(someone: Person) -> None:
    found = doctor(someone)
    assert {name: found[name]["state"] for name in ASKED} == dict.fromkeys(ASKED, "ok")
    assert found["subordinate ids"]["found"].startswith(
        f"{someone.first}-{someone.first + COUNT - 1} "
    )


@pytest.mark.parametrize(
    ("settings", "name", "fix"),
    [
        ({"replaced": {"/etc/subuid": "# nothing\n"}}, "subordinate ids", "usermod --add-subuids"),
        (
            {"replaced": {"/usr/bin/newgidmap": "#!/bin/sh\nexit 1\n"}},
            "subordinate ids",
            "--reinstall",
        ),
        ({"before": ["setpriv", "--no-new-privs"]}, "new privileges", "NoNewPrivileges"),
        ({"before": [sys.executable, "-c", FORBID]}, "user namespaces", "user namespaces"),
    ],
    ids=["no line", "newgidmap", "no_new_privs", "user namespaces"],
)
def test_doctor_names_what_is_missing(
    someone: Person, settings: dict[str, Any], name: str, fix: str
) -> None:
    found = doctor(someone, **settings)[name]
    assert found["state"] == "fail"
    assert fix in found["fix"]
