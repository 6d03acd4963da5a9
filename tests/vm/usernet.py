"""An ordinary user's home with one bridged sandbox, in a network namespace without an uplink."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tests.vm.harness import until
from tests.vm.netlab import PUBLIC4, PUBLIC6, RESOLVER, Lab, answered, dialer, doors
from tests.vm.people import Person, PersonsHome, in_groups_of, persons_home_of

NAME = "elm"
# What udev does on a host: everybody may open it. Here in the mount namespace of the test alone.
TAPS = 'mount -t tmpfs box /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$@"'


class UserNetHome(PersonsHome):
    """A user's home whose controller runs in the lab's host."""

    lab: Lab

    def give_dialer(self) -> None:
        put = ["exec", NAME, "-i", "--", "sh", "-c", "cat > /tmp/dial && chmod +x /tmp/dial"]
        self.box(*put, data=dialer())

    def knock(self, found: Iterable[str], wait: int = 1500) -> set[str]:
        """Which of these doors answer with the canaries' word, seen from inside the guest."""
        text = "".join(f"{door}\n" for door in found).encode()
        done = self.box("exec", NAME, "-i", "--", "/tmp/dial", str(wait), data=text)
        return self.lab.answered(done.stdout.decode())

    def helper(self, role: str) -> int:
        """The PID of a helper of the network, found by what it executes in the group."""
        binary = {"keeper": "/usr/bin/sleep", "pasta": "/usr/bin/passt"}[role]
        wanted = os.stat(binary).st_ino
        for group in self.cgroups(NAME):
            with contextlib.suppress(OSError):  # a group that has gone since
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):  # a process that has
                        if os.stat(f"/proc/{pid}/exe").st_ino == wanted:
                            return int(pid)
        return 0

    def close(self) -> None:
        super().close()
        for pid in in_groups_of(self.owner):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def middle(self, *command: str) -> str:
        """Run in the namespace that holds the rules, as root."""
        return _among(self.helper("keeper"), *command)

    def inner(self, *command: str) -> str:
        """Run in the VMM's."""
        return _among(self.pid(NAME), *command)

    def apply(self, text: str) -> None:
        """Put a changed Boxfile and wait until it is what runs."""
        before = self.generation(NAME)
        self.put(NAME, text)
        until(lambda: self.generation(NAME) > before, 20, "the change is seen")
        self.ready(NAME)


UserNetHomeT = TypeVar("UserNetHomeT", bound=UserNetHome)


def _among(pid: int, *command: str) -> str:
    entered = ["nsenter", f"--net=/proc/{pid}/ns/net", *command]
    done = subprocess.run(entered, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def device(text: str, kind: str) -> str:
    """The link of this kind (a letter) among the lines of `ip -o link`."""
    names = (line.split()[1].rstrip(":").partition("@")[0] for line in text.splitlines())
    return next(name for name in names if name.startswith(f"bx{kind}"))


def user_home(
    made: Person, lab: Lab, before: Sequence[str] = ()
) -> contextlib.AbstractContextManager[UserNetHome]:
    """A home whose controller runs in the lab's host, without a controller yet."""
    return user_home_of(UserNetHome, made, lab, before)


@contextlib.contextmanager
def user_home_of(
    kind: type[UserNetHomeT], made: Person, lab: Lab, before: Sequence[str] = ()
) -> Iterator[UserNetHomeT]:
    """The same of a class of its own."""
    entered = [*lab.enter(lab.host), *(before or ("sh", "-c", TAPS, "sh"))]
    with persons_home_of(kind, made, before=entered) as home:
        home.lab = lab
        config = home.path / "config.toml"
        config.write_text(f'resolver = "{RESOLVER}"\n')
        os.chown(config, made.uid, made.gid)
        yield home


SOME = doors([PUBLIC4, PUBLIC6], (443,))


def knocks(home: UserNetHome, asked: Iterable[str], open_ones: set[str]) -> None:
    """Of the doors asked for, exactly these are open. As `netlab.NetHome.knocks`."""
    asked = list(asked)
    answered(lambda: home.knock(asked), open_ones)


def reaches(home: UserNetHome) -> None:
    until(lambda: home.knock(SOME) == set(SOME), 30, f"it reaches the world; {home.log()}")
