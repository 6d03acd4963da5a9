"""Throwaway users of this host, and homes whose controller runs as one of them.

The tests are root and look at the host with root's eyes; everything of box runs as the user, from
a copy of the tree that others may read. /etc/subuid, /etc/subgid and programs can be replaced for
one controller, in a mount namespace of its own: no system file is edited but by useradd.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from reconcilers.confinement.handover import hand_over_groups
from tests.conftest import EVIDENCE
from tests.vm.cases import CaseHome
from tests.vm.harness import PATIENCE, READY, ROOT, until
from tests.vm.idblocks import block

PACKAGES = ("specs", "agent", "reconcilers", "controller", "security", "examples")
PYTHON = os.path.realpath(sys.executable)  # the system's own: others may run it
USER_BUSY = 8  # what userdel(8) ends with
COUNT = 64  # subordinate identities of a user; nobody else has the rest of its block either


@dataclass
class Person:
    """A user, the folder everything of it is in, the box it can run, its block of identities."""

    name: str
    folder: Path
    tree: Path
    site: str
    first: int = 0
    uid: int = field(init=False)
    gid: int = field(init=False)

    def __post_init__(self) -> None:
        known = pwd.getpwnam(self.name)
        self.uid, self.gid = known.pw_uid, known.pw_gid

    def become(self, groups: Sequence[int] = ()) -> list[str]:
        """The start of a command line that root runs as this user."""
        chosen = f"--groups={','.join(map(str, groups))}" if groups else "--init-groups"
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", chosen]

    def environment(self, home: Path) -> dict[str, str]:
        """A clean one, as of a shell of su(1)."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder / "own"),
            "BOX_HOME": str(home),
            "PYTHONPATH": f"{self.tree}:{self.site}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def lines(self, *ranges: tuple[int, int]) -> str:
        """Lines of subuid(5) for this user."""
        return "".join(f"{self.name}:{first}:{count}\n" for first, count in ranges)


def open_to_others(path: Path) -> bool:
    """Whether everybody may go there and read."""
    return all(each.stat().st_mode & 0o5 == 0o5 for each in (path, *path.parents))


def copied(source: Path, target: Path) -> Path:
    """A copy that others may read; hard links where the file system allows them."""

    def link(origin: str, name: str) -> None:
        try:
            os.link(origin, name)
        except OSError:
            shutil.copyfile(origin, name)

    shutil.copytree(source, target, copy_function=link, symlinks=True)
    return target


@contextlib.contextmanager
def person(*, groups: bool = True) -> Iterator[Person]:
    """A new user with control groups of its own; nothing of it remains."""
    name = f"boxtest-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp, block() as first:
        folder = Path(tmp)
        folder.chmod(0o755)
        tree, site = ROOT, Path(sysconfig.get_path("purelib"))
        if not open_to_others(tree):
            for package in PACKAGES:
                copied(ROOT / package, folder / "tree" / package)
            tree = folder / "tree"
        if not open_to_others(site):
            site = copied(site, folder / "site")
        own = folder / "own"
        subprocess.run(
            ["useradd", "--no-create-home", "--home-dir", str(own), "--shell", "/bin/sh"]
            + ["--key", "SUB_UID_COUNT=0", "--key", "SUB_GID_COUNT=0", name],
            check=True,
            timeout=60,  # it waits for whoever else changes the users just now
        )
        try:
            made = Person(name, folder, tree, str(site), first)
            own.mkdir(mode=0o700)
            os.chown(own, made.uid, made.gid)
            if groups:
                hand_over_groups(made.uid)
            yield made
            try:
                until(lambda: not processes_of(made), 20, f"nothing of {name} runs")
            except AssertionError as error:
                lasting = [command_of(pid) for pid in processes_of(made)]
                raise AssertionError(f"{error}: {lasting}") from None
        finally:
            for pid in [*processes_of(made), *in_groups_of(made)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: not in_groups_of(made), 10, f"no group of {name} holds a process")
            for place in groups_of(made):
                remove_groups(place)
                with contextlib.suppress(OSError):  # another user's are there
                    place.parent.rmdir()
            until(lambda: deleted(name), 20, f"the user {name} is deleted")


def deleted(name: str) -> bool:
    """Not as long as a process of the user is there, also one that has ended and that whoever
    adopted it has not yet asked about.
    """
    done = subprocess.run(["userdel", name], capture_output=True, timeout=60)
    assert done.returncode in (0, USER_BUSY), done
    return done.returncode == 0


def remove_groups(top: Path) -> None:
    """A control group with all below it. A process that is just ending is listed in none any more,
    and keeps its own a moment longer.
    """
    for each, _, _ in os.walk(top, topdown=False):
        until(partial(removed, Path(each)), 20, f"{each} is empty")


def removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:  # systemd removes its own
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def groups_of(someone: Person) -> list[Path]:
    """What root prepared for the user, in each hierarchy."""
    # groups come and go meanwhile, which os.walk takes as it is
    tops = (Path(top) for top, _, _ in os.walk("/sys/fs/cgroup") if top.endswith("/box-users"))
    return [group for top in tops if (group := top / str(someone.uid)).is_dir()]


def in_groups_of(someone: Person) -> list[int]:
    """Processes in those, whatever identity they have."""
    return [pid for place in groups_of(someone) for pid in held(place)]


def held(group: Path) -> list[int]:
    """Processes in a control group and all below it."""
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):  # groups come and go meanwhile
            found += map(int, Path(folder, "cgroup.procs").read_text().split())
    return found


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()[:9]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return f"{command.decode(errors='replace')[:300]} {status}"
    return "ended"


def processes_of(someone: Person) -> list[int]:
    """Processes with the user's own UID. A strict VMM has another: see PersonsHome.vmms.

    One that has ended counts for nothing, even while whoever adopted it has not asked for its
    status: that may be this very process, which another test made a child subreaper.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if entry.stat().st_uid == someone.uid and state != "Z":
                    found.append(int(entry.name))
    return found


class PersonsHome(CaseHome):
    """A home of a user, used as root sees it. `replaced` maps a system file to what stands in its
    place for the controller; `before` is run between root and the user, by root; `groups` are his
    supplementary ones instead of those he has."""

    def __init__(
        self,
        owner: Person,
        path: Path,
        *,
        replaced: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        groups: Sequence[int] = (),
    ) -> None:
        super().__init__(path)
        self.owner = owner
        self.env = owner.environment(path)
        self.before = before
        self.groups = groups
        self.replaced = {
            "/etc/subuid": owner.lines((owner.first, COUNT)),
            "/etc/subgid": owner.lines((owner.first, COUNT)),
            **(replaced or {}),
        }

    def _stand_in(self, number: int) -> Path:
        return self.owner.folder / f"replaced-{self.path.name}-{number}"

    def replace_files(self, texts: Mapping[str, str]) -> None:
        """Other contents of files that are replaced, which a running controller sees at once."""
        for number, path in enumerate(self.replaced):
            if path in texts:
                self.replaced[path] = texts[path]
                self._stand_in(number).write_text(texts[path])

    def command(self, *arguments: str) -> list[str]:
        """The same as the user, among the replaced files."""
        script = 'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"'
        pairs = []
        for number, (path, text) in enumerate(self.replaced.items()):
            source = self._stand_in(number)
            # A controller that runs already has this very file, and must never see a part of it.
            if not source.exists() or source.read_text() != text:
                source.write_text(text)
                source.chmod(0o755)
            if not Path(path).exists():
                Path(path).touch()
            pairs += [str(source), path]
        entered = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        box = [PYTHON, "-m", "controller.cli.main", *arguments]
        return [*entered, *pairs, "--", *self.before, *self.owner.become(self.groups), *box]

    def start(self) -> None:
        log = open(self.path / "controller.log", "ab")  # noqa: SIM115  # the child keeps it
        argv = self.command("controller")
        self.controller = subprocess.Popen(
            argv, env=self.env, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
        log.close()
        until(self.answers, READY, f"controller answers; {self.log()}")

    def once(self) -> subprocess.CompletedProcess[bytes]:
        """`box controller --once`."""
        argv = self.command("controller", "--once")
        return subprocess.run(argv, env=self.env, capture_output=True, timeout=100, cwd="/")

    def box(
        self, *arguments: str, check: bool = True, data: bytes | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.command(*arguments),
            env=self.env,
            input=data,
            capture_output=True,
            timeout=timeout * PATIENCE,
            cwd="/",
        )
        if check and done.returncode != 0:
            raise AssertionError(f"box {arguments}: {done!r}\n{self.log()}")
        return done

    def put(self, name: str, text: str = "") -> None:
        super().put(name, text) if text else super().put(name)
        os.chown(self.boxes / f"{name}.box.yaml", self.owner.uid, self.owner.gid)

    @property
    def runtime(self) -> Path:
        return self.path / "run" / self.instance

    def cgroups_of(self, instance: str, name: str = "") -> list[Path]:
        tops = groups_of(self.owner)
        return [path for top in tops if (path := top / "box" / instance / name).is_dir()]

    def children(self) -> set[int]:
        """Without the two processes that live as long as their controller."""
        return {pid for pid in self.every_child() if not is_reader(pid)}

    def every_child(self) -> set[int]:
        return super().children()

    def running(self, module: str) -> list[int]:
        """Those of its own processes that execute this module."""
        return [pid for pid in self.every_child() if module in command_of(pid)]

    def slowest_answer_until_gone(self, pid: int) -> float:
        """Seconds that the controller took at most to answer while this process was there."""
        slowest, began = 0.0, time.monotonic()
        while os.path.exists(f"/proc/{pid}"):
            assert time.monotonic() < began + 60, f"{command_of(pid)} stays; {self.log()}"
            asked = time.monotonic()
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(self.path / "box.sock"))
                client.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nHost: box\r\n\r\n")
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            slowest = max(slowest, time.monotonic() - asked)
            time.sleep(0.05)
        return slowest

    def claims(self) -> str:
        file = self.owner.folder / "own/.local/state/box/identities.toml"
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.stop(signal.SIGKILL)
        if not (self.path / "instance").exists():
            return
        self.end_vmms()


HomeT = TypeVar("HomeT", bound=PersonsHome)


def is_reader(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"insidereader" in command or b"innerworker" in command
    return False


@contextlib.contextmanager
def persons_home_of(kind: type[HomeT], owner: Person, **settings: Any) -> Iterator[HomeT]:
    """A home of this user, without a controller yet."""
    path = owner.folder / f"home-{secrets.token_hex(2)}"
    home = kind(owner, path, **settings)
    for folder in (path, home.boxes):
        folder.mkdir(mode=0o700)
        os.chown(folder, owner.uid, owner.gid)
    EVIDENCE.watch(path, "home")
    try:
        yield home
    finally:
        EVIDENCE.forget(path)
        home.close()


def persons_home(owner: Person, **settings: Any) -> contextlib.AbstractContextManager[PersonsHome]:
    """A plain one."""
    return persons_home_of(PersonsHome, owner, **settings)
