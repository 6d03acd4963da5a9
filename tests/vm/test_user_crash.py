"""kill -9 at seeded moments, as an ordinary user: of the controller, of a VMM and of every helper.

The sandboxes have a mount and the bridged network, so every kind of process that box starts for a
user is there to be killed: while a sandbox starts, changes or is deleted. What must hold after each
round is read by root, from outside, with none of the product's readers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.vm.harness import READY, folders_in, until
from tests.vm.netlab import BOXFILE, built_lab, ip
from tests.vm.people import Person, groups_of, person
from tests.vm.usernet import UserNetHome, user_home_of

ALL = os.environ.get("BOX_TEST_ALL") == "1"
ROUNDS, PARTS = (10, 3) if ALL else (4, 1)

WAIT = 10.0  # seconds for a process of that kind to begin; some moments have none

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(900 if ALL else 400)]

NAMES = ("oak", "elm")
MOMENTS = ("start", "delete", "change")
# Each kind of process, by a part of its program's path or of its command line.
VICTIMS = {
    "virtiofsd": "/virtiofsd",
    "pasta": "/passt",
    "keeper": "/sleep",
    "vmm": "/qemu-system",
    "launcher": "confinement.launch import",
    "reader": "confinement.insidereader import",
    "worker": "network.innerworker import",
    "controller": "controller.cli.main controller",
}


HELD = (
    "net:[",
    "user:[",
    "mnt:[",
    "pid:[",
    "/dev/net/tun",
    "/proc/sys/net",
)  # lives on in a descriptor


class CrashHome(UserNetHome):
    """A home with a directory to share, and what all of its processes are."""

    shared: Path
    deletion: subprocess.Popen[bytes] | None = None

    def text(self, isolation: str, number: int) -> str:
        mount = f'{{host: "{self.shared}", guest: /src, mode: ro}}'
        sized = BOXFILE.replace("192", str(192 + 8 * (number % 2)))
        return f"{sized}isolation: {isolation}\nmounts: [{mount}]\n"

    def wanted(self) -> set[str]:
        return {path.name.partition(".")[0] for path in self.boxes.glob("*.box.yaml")}

    def everybody(self) -> dict[int, str]:
        """PID and program of whoever has the user's identity or one of his range."""
        lines = self.replaced["/etc/subuid"].splitlines()
        ranges = [tuple(map(int, line.split(":")[1:])) for line in lines]
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                text = (entry / "status").read_text() if entry.name.isdigit() else ""
                uid = int(text.partition("Uid:")[2].split()[0]) if text else -1
                mine = uid == self.owner.uid or any(a <= uid < a + n for a, n in ranges)
                if mine and "\nState:\tZ" not in text:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = f"{os.readlink(entry / 'exe')} {words}"
        return found

    def victims(self, kind: str) -> list[int]:
        found = self.everybody()
        if kind == "controller":
            return [self.controller.pid] if self.controller else []
        of_it = VICTIMS[kind]
        program = of_it.startswith("/")
        return [p for p, w in found.items() if of_it in (w.split()[0] if program else w)]

    def expected(self) -> set[int]:
        """Who may run once all is settled: the controller and its two, VMMs and their helpers."""
        assert self.controller is not None
        found = {self.controller.pid, *self.victims("reader"), *self.victims("worker")}
        for name in self.wanted():
            record = json.loads((self.runtime / name / "launch.json").read_text())
            found |= {record["pid"], *(each["pid"] for each in record["helpers"])}
        return found

    def begin_deletion(self, name: str) -> None:
        """Its controller may be killed before it has heard of it: then the Boxfile stays."""
        quiet = subprocess.DEVNULL
        argv = self.command("delete", name)
        self.deletion = subprocess.Popen(argv, env=self.env, cwd="/", stdout=quiet, stderr=quiet)

    def end_deletion(self) -> None:
        if self.deletion is not None:
            self.deletion.wait(60)
            self.deletion = None

    def claimed(self) -> set[str]:
        text = self.claims()
        return {each["sandbox"] for each in tomllib.loads(text)["claim"]} if text else set()


@pytest.fixture
def home() -> Iterator[CrashHome]:
    with (
        built_lab() as lab,
        person() as someone,
        user_home_of(CrashHome, someone, lab) as made,
    ):
        made.shared = shared_by(someone)
        yield made


def shared_by(someone: Person) -> Path:
    folder = someone.folder / "shared"
    folder.mkdir(mode=0o755)
    (folder / "text").write_text("read me\n")
    for path in (folder, folder / "text"):
        os.chown(path, someone.uid, someone.gid)
    return folder


def converged(home: CrashHome, said: str) -> None:
    """Every Boxfile has its VMM and helpers, in use, and nobody else runs or is remembered."""
    home.end_deletion()
    names = home.wanted()
    for name in names:
        home.ready(name)

    def settled() -> bool:
        groups = {p.name for group in home.cgroups() for p in folders_in(group)}
        disks = {p.name for p in (home.path / "disks").iterdir() if not p.name.startswith(".")}
        with contextlib.suppress(OSError, ValueError):  # a launch.json that is not there yet
            return (
                set(home.everybody()) == home.expected()
                and groups == disks == set(os.listdir(home.runtime)) == names
                and home.claimed() <= names
                and all(len(home.vmms(name)) == 1 for name in names)
            )
        return False

    try:
        until(settled, READY, f"only {sorted(names)}")
    except AssertionError as error:
        runs = {pid: words[:150] for pid, words in home.everybody().items()}
        left = {str(p): os.listdir(p) for p in (home.runtime, home.path / "disks")}
        raise AssertionError(f"{error}; {said}; {runs}; {left}; {home.log()}") from None
    for name in names:
        # the report may still be the former controller's
        text = partial(home.run, name, "cat", "/src/text", check=False)
        until(lambda: text().stdout == b"read me\n", READY, f"{name} answers; {said}; {home.log()}")  # noqa: B023


def begin(home: CrashHome, moment: str, chance: random.Random, number: int) -> None:
    """Bring a sandbox into that moment of its life; what is missing for it is made first."""
    there = home.wanted()
    if moment == "start" and there == set(NAMES):
        name = chance.choice(sorted(there))
        home.box("delete", name)
        home.nothing_left(name)
    if moment != "start" and not there:
        home.put(NAMES[0], home.text("strict", number))
        home.ready(NAMES[0])
    there = home.wanted()
    if moment == "start":
        name = chance.choice(sorted(set(NAMES) - there))
        home.put(name, home.text(chance.choice(["strict", "standard"]), number))
    elif moment == "change":
        name = chance.choice(sorted(there))
        home.put(name, home.text(chance.choice(["strict", "standard"]), number))
    else:
        home.begin_deletion(chance.choice(sorted(there)))


def kill_one(home: CrashHome, kind: str, chance: random.Random) -> str:
    """Kill a process of this kind, at some moment after it is there; who it was, if anybody."""
    limit = time.monotonic() + WAIT
    while time.monotonic() < limit:
        if not home.victims(kind):
            time.sleep(0.01)
            continue
        if kind != "launcher":  # which is there for a moment only
            time.sleep(chance.uniform(0.0, 1.0))
        if found := home.victims(kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
                return kind
    return ""


def mounts_of(home: CrashHome) -> list[str]:
    """Mount points in the user's folder, on the host and where the controller is."""
    assert home.controller is not None
    own = str(home.owner.folder)
    texts = [Path(f"/proc/{pid}/mountinfo").read_text() for pid in ("self", home.controller.pid)]
    points = [line.split()[4] for text in texts for line in text.splitlines()]
    return [each for each in points if each.startswith(own)]


def nothing_at_all(home: CrashHome, said: str) -> None:
    """After the last deletion: not even in the hands of the controller, or remembered by it."""
    assert home.controller is not None
    assert home.wanted() == set()
    mine = Path(f"/proc/{home.controller.pid}/fd")

    def held() -> list[str]:
        links = []
        for each in mine.iterdir():
            with contextlib.suppress(OSError):
                links.append(os.readlink(each))
        return [link for link in links if link.startswith(HELD)]

    until(lambda: not held(), 10, f"no namespace or tap is held: {held()}; {said}")
    assert mounts_of(home) == [], said
    home.stop()
    until(lambda: not home.everybody(), 20, f"nobody runs: {home.everybody()}; {said}")
    left = [path for top in groups_of(home.owner) for path in top.rglob("*") if path.is_dir()]
    assert left == [], said
    assert os.listdir(home.runtime) == [], said
    assert set(os.listdir(home.path / "disks")) <= {".deleted"}, said
    assert home.claimed() == set(), said
    host = home.lab.host
    assert "bx" not in ip("-o", "link", namespace=host), said
    assert home.lab.run(host, "nft", "list", "tables") == "", said
    assert str(home.path) not in home.lab.run(host, "cat", "/proc/net/unix"), said


@pytest.mark.parametrize("part", range(PARTS))
def test_whoever_is_killed_at_any_moment_a_restart_converges_and_nothing_is_left(
    home: CrashHome, part: int
) -> None:
    seed = int(os.environ.get("BOX_TEST_SEED", "20261130"))
    chance = random.Random(seed)
    deck = [*itertools.product(MOMENTS, VICTIMS)]
    deck.remove(("delete", "launcher"))  # a deletion launches nothing
    chance.shuffle(deck)
    hit: Counter[str] = Counter()
    home.start()
    mine = itertools.islice(itertools.cycle(deck), part * ROUNDS, (part + 1) * ROUNDS)
    for number, (moment, kind) in enumerate(mine):
        said = f"seed {seed}, part {part}, round {number}: {kind} killed in {moment}; {dict(hit)}"
        print(said, flush=True)
        begin(home, moment, chance, number)
        hit[kill_one(home, kind, chance)] += 1
        if not chance.randrange(4) and kind != "controller":  # the others mend themselves
            converged(home, said)
        time.sleep(chance.uniform(0.0, 1.0))
        home.stop(signal.SIGKILL)
        home.start()
        converged(home, said)
    for name in home.wanted():
        home.box("delete", name)
        home.nothing_left(name)
    nothing_at_all(home, f"seed {seed}")
    assert hit[""] <= ROUNDS // 2, f"hardly anybody was there to be killed: {hit}"
