"""The escape suite as an ordinary user runs it: from an account of its own, which ends with it.

Root makes that user, and in a mount namespace what a host has and this one may lack: a line in
/etc/subuid, and a /dev/net/tun that everybody may open. All else the suite makes itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vm.harness import ROOT
from tests.vm.people import PYTHON, PersonsHome, copied, person, persons_home
from tests.vm.usernet import TAPS

BOX = f"{PYTHON} -m controller.cli.main"


@dataclass
class Somebody:
    """A user who can run the suite, and `place`, a folder of theirs for temporary files."""

    home: PersonsHome
    place: Path

    @property
    def report(self) -> Path:
        return self.place / "report.json"

    def suite(self, box: str, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """The suite against this box command; it writes its report."""
        owner = self.home.owner
        whole = self.home.command()
        as_user = whole[: len(whole) - len(BOX.split())]
        suite = str(owner.tree / "security" / "escape-test.sh")
        return subprocess.run(
            [*as_user, suite, box, *words, "--json", str(self.report)],
            env={**self.home.env, "TMPDIR": str(self.place)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def left(self) -> list[str]:
        """What the suite left in the folders for temporary files."""
        places = (self.place, Path(tempfile.gettempdir()))
        found = [path for place in places for path in place.glob("box-escape-*")]
        uid = self.home.owner.uid
        return [str(path) for path in found if path.lstat().st_uid == uid]


@contextlib.contextmanager
def somebody() -> Iterator[Somebody]:
    with person() as made, persons_home(made, before=("sh", "-c", TAPS, "sh")) as home:
        if made.tree != ROOT:
            copied(ROOT / "tests", made.tree / "tests")  # the saboteur is there
        place = made.folder / "own" / "tmp"
        place.mkdir()
        os.chown(place, made.uid, made.gid)
        yield Somebody(home, place)
