"""Host directories in the guest of somebody who is not root.

What a guest did is looked at on the host, with root's eyes and with none of the product's readers.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm.harness import until
from tests.vm.people import COUNT, PersonsHome, person, persons_home
from tests.vm.shares import boxfile, helper_processes

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

STRICT, STANDARD = "elm", "ash"


class Place:
    """Directories of one user, and the sandboxes that have them: a strict and a standard one."""

    def __init__(self, home: PersonsHome) -> None:
        self.home, self.owner = home, home.owner
        self.folder = self.made(home.owner.folder / "shared", 0o755)
        self.open = self.made(self.folder / "open", 0o755)
        self.made(self.open / "text", 0o644, "read me\n")
        self.made(self.open / "private", 0o600, "of the user\n")
        self.made(self.open / "closed", 0o700)
        self.made(self.open / "closed" / "text", 0o644, "behind a closed door\n")
        self.made(self.open / "secret", 0o600, "of root\n", uid=0)
        (self.open / "absolute").symlink_to("/etc/passwd")
        (self.open / "up").symlink_to("../../../../../../../../etc/passwd")
        self.own = self.made(self.folder / "own", 0o700)
        self.made(self.own / "private", 0o600, "of the user\n")

    def made(self, path: Path, mode: int, text: str | None = None, uid: int = -1) -> Path:
        if text is None:
            path.mkdir()
        else:
            path.write_text(text)
        uid, gid = (self.owner.uid, self.owner.gid) if uid < 0 else (uid, uid)
        os.chown(path, uid, gid)
        path.chmod(mode)
        return path

    def sh(self, name: str, script: str) -> subprocess.CompletedProcess[bytes]:
        return self.home.run(name, "sh", "-c", script, check=False)

    def helpers(self, name: str) -> list[dict[str, Any]]:
        record = json.loads((self.home.runtime / name / "launch.json").read_text())
        found: list[dict[str, Any]] = record["helpers"]
        return found

    def refused(self, name: str, text: str) -> str:
        """Why a sandbox with this Boxfile is not started."""
        self.home.put(name, text)
        wanted = ("False", "MountRefused")
        until(lambda: self.home.condition(name, "Ready") == wanted, 40, self.home.log())
        assert self.home.vmms(name) == []
        said = self.home.message(name, "Ready")
        self.home.box("delete", name)
        return said


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with person() as someone, persons_home(someone) as home:
        made = Place(home)
        home.put(STRICT, boxfile((made.open, "/src", "ro")))
        mounts = ((made.open, "/src", "ro"), (made.own, "/own", "rw"))
        home.put(STANDARD, boxfile(*mounts, more="isolation: standard\n"))
        home.start()
        for name in (STRICT, STANDARD):
            home.ready(name)
        yield made


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What a change of anything below the folder would change."""
    facts = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {path: (f.st_mtime_ns, f.st_ctime_ns, f.st_mode) for path, f in facts.items()}


# -- what a guest sees and does


def test_strict_guest_reads_what_everybody_may_read_and_nothing_else(place: Place) -> None:
    assert place.sh(STRICT, "cat /src/text").stdout == b"read me\n"
    assert "text" in place.sh(STRICT, "ls /src").stdout.decode().split()
    for path in ("private", "secret", "closed/text"):
        done = place.sh(STRICT, f"cat /src/{path}")
        assert (done.returncode != 0, done.stdout) == (True, b""), path


def test_standard_guest_reads_what_the_user_may_read(place: Place) -> None:
    assert place.sh(STANDARD, "cat /src/private /own/private").stdout == b"of the user\n" * 2
    assert place.sh(STANDARD, "cat /src/closed/text").stdout == b"behind a closed door\n"
    done = place.sh(STANDARD, "cat /src/secret")
    assert (done.returncode != 0, done.stdout) == (True, b"")


def test_what_a_standard_guest_writes_is_the_users(place: Place) -> None:
    script = "cd /own && echo new > new && mkdir d && ln -s new l && chmod 600 new && cat private"
    assert place.sh(STANDARD, script).returncode == 0
    for each in ("new", "d", "l"):
        found = (place.own / each).lstat()
        assert (found.st_uid, found.st_gid) == (place.owner.uid, place.owner.gid), each
    assert (place.own / "new").read_text() == "new\n"
    assert stat.S_IMODE((place.own / "new").stat().st_mode) == 0o600
    assert place.sh(STANDARD, "cd /own && rm -r new d l").returncode == 0
    assert sorted(os.listdir(place.own)) == ["private"]


def test_nothing_is_left_that_would_count_on_the_host(place: Place) -> None:
    folder = place.made(place.own / "attack", 0o755)
    program = place.own / "program"
    source = Path(__file__).with_name("share_attack.c")
    subprocess.run(["cc", "-static", "-o", program, source], check=True, timeout=60)
    os.chown(program, place.owner.uid, place.owner.gid)
    said = place.sh(STANDARD, "/own/program /own/attack").stdout.decode()
    answers = {name: int(number) for name, number in (line.split() for line in said.splitlines())}
    assert answers.pop("plain") == 0, "the attack did not begin"
    # mkdir(2) leaves set-ID bits out by itself, so it succeeds; what came of it is looked at below
    assert [name for name, number in answers.items() if number == 0] == ["mkdir"]
    for path in folder.iterdir():
        found = path.lstat()
        assert stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode), path.name
        assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), path.name
        assert found.st_uid == place.owner.uid
        assert os.listxattr(path) == [], path.name


@pytest.mark.parametrize("name", [STRICT, STANDARD])
def test_read_only_mount_stays_so_whatever_the_guest_remounts(place: Place, name: str) -> None:
    before = tree(place.open)
    done = place.sh(
        name,
        "mount -o remount,rw /src; echo x > /src/new; echo x >> /src/text; rm -f /src/text;"
        "mv /src/text /src/moved; chmod 777 /src/text; touch /src/text; ln -s a /src/b;"
        "mkdir -p /tmp/again; mount -t virtiofs mount0 /tmp/again && touch /tmp/again/new",
    )
    assert done.returncode != 0
    assert tree(place.open) == before


@pytest.mark.parametrize("name", [STRICT, STANDARD])
def test_links_and_dots_lead_nowhere_but_into_the_guest(place: Place, name: str) -> None:
    """The user's own name is in the host's passwd(5) and in no other."""
    here = place.owner.name.encode()
    assert here in Path("/etc/passwd").read_bytes()
    dots = "../" * 12
    for path in ("absolute", "up", f"{dots}etc/passwd", f"{dots}proc/1/root/etc/passwd"):
        assert here not in place.sh(name, f"cat /src/{path}").stdout, path
    assert place.sh(name, f"ls /src/{dots}{place.owner.folder}").returncode != 0


# -- the jail of a helper


@pytest.mark.parametrize("name", [STRICT, STANDARD])
def test_each_helper_is_confined_by_what_linux_says(place: Place, name: str) -> None:
    strict = name == STRICT
    shared = [(place.open, "ro"), (place.own, "rw")]
    helpers = place.helpers(name)
    assert len(helpers) == (1 if strict else 2)
    for helper, (folder, mode) in zip(helpers, shared, strict=False):
        proc = Path(f"/proc/{helper['pid']}")
        lines = (proc / "status").read_text().splitlines()
        found = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        uids = {int(number) for number in found["Uid"].split()}
        if strict:
            assert len(uids) == 1
            assert 0 <= min(uids) - place.owner.first < COUNT
            assert found["Groups"] == ""
        else:
            assert uids == {place.owner.uid}
            assert set(found["Groups"].split()) <= {str(place.owner.gid)}
        assert uids == {Path(f"/proc/{place.home.pid(name)}").stat().st_uid}
        # CAP_DAC_OVERRIDE, where it counts for the user's own files alone
        assert int(found["CapEff"], 16) == int(found["CapPrm"], 16) == (0 if strict else 1 << 1)
        assert int(found["CapBnd"], 16) == int(found["CapAmb"], 16) == int(found["CapInh"], 16) == 0
        assert (found["Seccomp"], found["NoNewPrivs"]) == ("2", "1")
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
            assert os.readlink(proc / "ns" / kind) != os.readlink(f"/proc/self/ns/{kind}"), kind
        [mount] = (proc / "mountinfo").read_text().splitlines()
        assert {mode, "nosuid", "nodev", "noexec"} <= set(mount.split()[5].split(","))
        assert (proc / "root").stat().st_ino == folder.stat().st_ino
        for group in place.home.cgroups(name):
            assert str(helper["pid"]) in (group / "cgroup.procs").read_text().split()


@pytest.mark.parametrize("name", [STRICT, STANDARD])
def test_box_reads_every_layer_of_each_helper(place: Place, name: str) -> None:
    verified = place.home.box("verify", name).stdout.decode()
    readings = place.home.ready(name)["confinement"]
    assert [each for each in readings if not each["ok"]] == []
    layers = {each["layer"] for each in readings}
    for index in range(len(place.helpers(name))):
        of_one = {r["layer"] for r in readings if r["item"].startswith(f"virtiofsd {index}: ")}
        assert of_one == {layer for layer in layers if layer[:6] not in ("socket", "mounts")}
        assert f"virtiofsd {index}: " in verified
    shown = place.home.box("describe", name).stdout.decode()
    sees = "what others may" if name == STRICT else "what its user may"
    assert any(str(place.open) in line and sees in line for line in shown.splitlines())


def test_doctor_says_that_mounts_can_be_had(place: Place) -> None:
    done = place.home.box("doctor", "-o", "json", check=False)
    [row] = [each for each in json.loads(done.stdout)["checks"] if each["name"] == "virtiofsd"]
    assert row["state"] == "ok"


def test_doctor_names_a_procfs_of_which_parts_are_hidden(place: Place) -> None:
    """As in many containers; the mount of the trial is in the mount namespace of that command."""
    hide = ["sh", "-c", 'mount -t tmpfs none /proc/fs && exec "$@"', "sh"]
    with persons_home(place.owner, before=hide) as home:
        done = home.box("doctor", "-o", "json", check=False)
    [row] = [each for each in json.loads(done.stdout)["checks"] if each["name"] == "virtiofsd"]
    assert row["state"] == "warn" and "may mount no procfs" in row["found"]


# -- what is refused


def test_strict_sandbox_is_refused_what_others_may_not_read(place: Place) -> None:
    closed = place.made(place.folder / "closed", 0o750)
    inner = place.made(closed / "inner", 0o755)
    said = place.refused("a1", boxfile((place.open, "/src", "rw")))
    assert "isolation: strict can share it read-only alone" in said and "mode: ro" in said
    said = place.refused("a2", boxfile((closed, "/src", "ro")))
    assert f"others may not read it: chmod o+rx {closed}" in said
    said = place.refused("a3", boxfile((inner, "/src", "ro")))
    assert f"others may not search {closed}: chmod o+x {closed}" in said


def test_what_nobody_may_share_is_refused_to_a_user_as_well(place: Place) -> None:
    more = "isolation: standard\n"
    home, state = place.home.path, place.owner.folder / "own/.local/state/box"
    roots = place.made(place.folder / "roots", 0o700, uid=0)
    wanted = (
        (roots, f"(UID {place.owner.uid}) may not go there"),
        (home, "it is, or lies in, the home of box"),
        (state, "it is, or lies in, the registry of identities"),
        (state.parent, "it holds the registry of identities"),
        (Path("/proc"), "it is, or lies in, /proc of the host"),
    )
    for number, (path, why) in enumerate(wanted):
        assert why in place.refused(f"b{number}", boxfile((path, "/src", "ro"), more=more))


def test_directory_with_a_mount_below_it_is_refused(place: Place) -> None:
    """Root leaves such a mount out; the kernel lets nobody else do that."""
    folder = place.made(place.folder / "below", 0o755)
    inside = place.made(folder / "file", 0o644, "covered\n")
    with persons_home(place.owner, replaced={str(inside): "covers\n"}) as home:
        home.put("oak", boxfile((folder, "/src", "ro")))
        assert home.once().returncode != 0
        assert f"{inside} is mounted below it" in home.message("oak", "Ready")
        assert home.vmms() == []


# -- drift, and the end


def test_dead_helper_is_noticed_and_the_vm_replaced(place: Place) -> None:
    for name in (STRICT, STANDARD):
        helpers = place.helpers(name)
        former = {each["pid"] for each in helpers}
        os.kill(next(each["pid"] for each in helpers if each["item"] == 0), signal.SIGKILL)
        place.home.mended(name, "mounts[0].virtiofsd", 90)
        place.home.ready(name)
        until(lambda: not former & helper_processes(place.home), 20, "the former have ended")  # noqa: B023
        assert place.sh(name, "cat /src/text").stdout == b"read me\n"


def test_replaced_directory_is_drift(place: Place) -> None:
    place.open.rename(place.folder / "former")
    place.made(place.open, 0o755)
    place.made(place.open / "text", 0o644, "another\n")
    place.home.look_again()
    for name in (STRICT, STANDARD):
        place.home.mended(name, "mounts[0].host", 90)
        place.home.ready(name)
        assert place.sh(name, "cat /src/text").stdout == b"another\n"


def test_controller_killed_between_helper_and_vmm_leaves_nothing(place: Place) -> None:
    home = place.home
    others = helper_processes(home)
    # So many that the VMM is far away, however late the first of their helpers is seen.
    folders = [place.made(place.folder / f"many{n}", 0o755) for n in range(16)]
    home.put("oak", boxfile(*((each, f"/m/{n}", "ro") for n, each in enumerate(folders))))
    new = until(lambda: helper_processes(home) - others, 30, "the first helper runs")
    home.stop(signal.SIGKILL)
    assert not home.vmms("oak"), "the controller was killed too late"
    home.start()
    home.ready("oak")
    served = {each["pid"] for each in place.helpers("oak")}
    assert helper_processes(home) == others | served and not new & served
    assert not list((home.runtime / "oak").glob("fs*.sock"))
    home.box("delete", "oak")
    until(lambda: helper_processes(home) == others, 20, "its helpers are gone")


def test_a_deletion_leaves_nothing(place: Place) -> None:
    pids = {each["pid"] for name in (STRICT, STANDARD) for each in place.helpers(name)}
    for name in (STRICT, STANDARD):
        place.home.box("delete", name)
        place.home.nothing_left(name)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20, "no helper is left")
    until(lambda: not place.home.children(), 10, "no process is left")
    assert (place.open / "text").read_text() == "another\n"
