"""Who runs box in this job of the lab, and a home of theirs. The tests themselves are root's.

The ordinary user is a real one of this machine: what a user needs was given by run.sh, through the
product's own way for hosts without systemd.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import EVIDENCE
from tests.vm.harness import BOX, CONFIG, Home, home_with_controller
from tests.vm.people import Person, PersonsHome

ISOLATION = os.environ["LAB_ISOLATION"]
ROOT = os.environ["LAB_USER"] == "root"
NAME = "lab"  # image.py made it


def as_whom() -> list[str]:
    """The start of a command line that root runs as whoever runs box."""
    return [] if ROOT else ["setpriv", f"--reuid={NAME}", f"--regid={NAME}", "--init-groups"]


def environment_of(home: Path) -> dict[str, str]:
    """A clean one, as of a login."""
    known = pwd.getpwnam("root" if ROOT else NAME)
    found = {
        "PATH": "/usr/local/bin:/usr/bin:/bin" + (":/usr/sbin:/sbin" if ROOT else ""),
        "HOME": known.pw_dir,
        "LANG": "C.UTF-8",
        "BOX_HOME": str(home),
    }
    return found if ROOT else {**found, "XDG_RUNTIME_DIR": f"/run/user/{known.pw_uid}"}


class UsersHome(PersonsHome):
    """A home of the lab's user, who has what a user needs: no file is replaced."""

    def __init__(self, owner: Person, path: Path) -> None:
        super().__init__(owner, path)
        self.env = environment_of(path)

    def command(self, *arguments: str) -> list[str]:
        return [*as_whom(), *BOX, *arguments]

    @property
    def runtime(self) -> Path:
        return Path(self.env["XDG_RUNTIME_DIR"], "box", self.instance)


@contextlib.contextmanager
def a_home() -> Iterator[Home]:
    """A home with a controller of whoever runs box."""
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp, contextlib.ExitStack() as held:
        folder = Path(tmp)
        if ROOT:
            home: Home = held.enter_context(home_with_controller(folder))
        else:
            folder.chmod(0o755)
            owner = Person(NAME, folder, folder, "")
            home = UsersHome(owner, folder / "home")
            for made in (home.path, home.boxes):
                made.mkdir(mode=0o700)
                os.chown(made, owner.uid, owner.gid)
            (home.path / "config.toml").write_text(CONFIG)
            held.callback(home.close)
            home.start()
        EVIDENCE.watch(home.path, "home")
        held.callback(EVIDENCE.forget, home.path)
        yield home
