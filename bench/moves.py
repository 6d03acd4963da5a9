"""Directories into and out of /data, over tar within one file system; and what a fork costs.

A transfer boots a machine of its own, which is measured by transfers of nothing and reported apart.
CPU is told for both sides of it: what `box` and the controller use, and what QEMU does, which under
emulation is most of it and says nothing of a host with KVM.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import subject
from bench.measure import Row, Target, ratios
from reconcilers import chain, disk, layers
from tests.vm.harness import BOX, ROOT, TINY, Home, until

SLOWEST = 2.0
PAIRS = 9  # at least
EMPTY = 5  # transfers of nothing
FILES, FOLDERS = 10_000, 100
MANY = "10,000 files"
BIG = 1 << 30
DISK_MIB = 3072
NAME = "oak"
FORKED_MIB = 2048


@dataclass
class Samples:
    """Of one side: seconds by the clock, CPU of what runs on the host, CPU of the machine."""

    times: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    machine: list[float] = field(default_factory=list)


def imported(repeat: int) -> list[Row]:
    """Many small files, and one large one, into /data."""
    return _moved("import", repeat)


def exported(repeat: int) -> list[Row]:
    """The same out of /data."""
    return _moved("export", repeat)


def _moved(way: str, repeat: int) -> list[Row]:
    with subject.new_home() as home:
        home.put(NAME, TINY.replace("size_mib: 32", f"size_mib: {DISK_MIB}") + "state: stopped\n")
        until(lambda: home.condition(NAME, "Ready")[1] == "Stopped", 60, "known")
        where = home.path.parent
        (where / "nothing").mkdir()
        home.box("data", "import", NAME, str(where / "nothing"))  # builds image and disk
        machine = _nothing(home, way)
        told = f"{way} of nothing: the machine's start and end"
        rows = [Row(f"{way}ed", told, "s", tuple(machine.times))]
        for what, make in ((MANY, _many), ("1 GiB", _big)):
            source = where / "source"
            make(source)
            if way == "export":
                home.box("reset", NAME, "--discard")
                home.box("data", "import", NAME, str(source), timeout=300)
            rows += _pairs(home, way, what, source, machine, max(repeat, PAIRS))
            shutil.rmtree(source)
    return rows


def _many(folder: Path) -> None:
    """Of 2 KiB on average, a hundred in each directory."""
    content = os.urandom(4096)
    for number in range(FILES):
        path = folder / f"folder{number % FOLDERS:02}" / f"file{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[: number * 37 % 4096])


def _big(folder: Path) -> None:
    folder.mkdir()
    piece = os.urandom(1 << 20)
    with open(folder / "big", "wb") as file:
        for _ in range(BIG >> 20):
            file.write(piece)


def _nothing(home: Home, way: str) -> Samples:
    spent = Samples()
    for number in range(EMPTY):
        target = home.path.parent / f"nothing{number}"
        folder = home.path.parent / "nothing" if way == "import" else target
        _ours(home, way, folder, spent)
        if way == "export":
            shutil.rmtree(target)
    return spent


def _pairs(
    home: Home, way: str, what: str, source: Path, machine: Samples, count: int
) -> list[Row]:
    """Interleaved, in alternating order; the first of each fills the caches."""
    ours, theirs = Samples(), Samples()
    made: list[Path] = []
    for turn in range(count + 1):
        counts = turn > 0
        for side in ("ours", "tar") if turn % 2 else ("tar", "ours"):
            target = home.path.parent / f"{way}-{side}-{turn}"
            if way == "import" and side == "ours":
                home.box("reset", NAME, "--discard")  # else one merges with what is there
            subject.wait_host_idle(2.0)
            if side == "tar":
                _tar(source, target, theirs if counts else Samples(), durable=way == "import")
            else:
                folder = source if way == "import" else target
                _ours(home, way, folder, ours if counts else Samples())
            made.append(target)
        if counts:  # what there is of a run that is interrupted
            print(f"{what}: {ours.times[-1]:.2f} s, tar {theirs.times[-1]:.2f} s", file=sys.stderr)
        # ext4 looks long for inodes where many were deleted just before: a tree of many files
        # stays until all is measured.
        if what != MANY:
            _remove(made)
    _remove(made)
    return _rows(f"{way}ed", what, ours, theirs, machine)


def _remove(made: list[Path]) -> None:
    for path in made:
        if path.exists():
            shutil.rmtree(path)
    made.clear()


def _rows(name: str, label: str, ours: Samples, theirs: Samples, machine: Samples) -> list[Row]:
    boot, cpu = statistics.median(machine.times), statistics.median(machine.costs)
    alone = tuple(each - boot for each in ours.times)
    costs = tuple(each - cpu for each in ours.costs)
    guest = statistics.median(machine.machine)
    return [
        Row(name, f"{label}: box, all of it", "s", tuple(ours.times)),
        Row(name, f"{label}: tar", "s", tuple(theirs.times)),
        Row(name, f"{label}: time without the machine's own, over tar", "x",
            ratios(alone, theirs.times), Target(SLOWEST)),
        Row(name, f"{label}: CPU on the host, over tar", "x", ratios(costs, theirs.costs)),
        Row(name, f"{label}: CPU on the host", "s", costs),
        Row(name, f"{label}: CPU in the machine", "s",
            tuple(each - guest for each in ours.machine)),
    ]  # fmt: skip


def _ours(home: Home, way: str, folder: Path, into: Samples) -> None:
    controller = subject.pid_of(home)
    machine, served = subject.ended_seconds(controller), subject.cpu_seconds(controller)
    took, cpu = _timed([*BOX, "data", way, NAME, str(folder)], home.env)
    into.times.append(took)
    into.costs.append(cpu + subject.cpu_seconds(controller) - served)
    into.machine.append(subject.ended_seconds(controller) - machine)


def _tar(source: Path, target: Path, into: Samples, *, durable: bool) -> None:
    """What an import has written has reached the disk; so it has here, then."""
    target.mkdir()
    script = f"tar -C {source} -cf - . | tar -C {target} -xf -"
    if durable:
        script += f" && sync -f {target}"
    took, cpu = _timed(["sh", "-ec", script], dict(os.environ))
    into.times.append(took)
    into.costs.append(cpu)


def _timed(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU with all its children, of one command that succeeds."""
    with open(os.devnull, "wb") as nothing:
        began = time.monotonic()
        process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=nothing, stderr=nothing)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, argv
    return took, usage.ru_utime + usage.ru_stime


def forked(repeat: int) -> list[Row]:
    """From `box fork` to the disk of the fork, of a parent that has 2 GiB in use."""
    times: list[float] = []
    grown: list[float] = []
    with subject.new_home() as home:
        text = TINY.replace("size_mib: 32", f"size_mib: {FORKED_MIB}") + "state: stopped\n"
        home.put(NAME, text)
        until(lambda: home.condition(NAME, "Ready")[1] == "Stopped", 60, "known")
        parent = home.path / "disks" / NAME
        disk.create(parent, FORKED_MIB)
        with open(parent / chain.BASE, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, FORKED_MIB << 20)
        for number in range(max(repeat, PAIRS)):
            _write_to_top(parent)
            before, began = _used(home.path / "disks"), time.monotonic()
            home.box("fork", NAME, f"try{number}")
            _until_there(home.path / "disks" / f"try{number}")
            times.append(time.monotonic() - began)
            grown.append((_used(home.path / "disks") - before) / (1 << 20))
            # Its VM has begun to boot, and is not what is measured. Deleting so many would wake the
            # prune guard.
            _stop(home, f"try{number}", f"{text}fork_of: {NAME}\n")
    return [
        Row("forked", "2 GiB in use: box fork to the fork's disk", "s", tuple(times), Target(1.0)),
        Row("forked", "2 GiB in use: of the host's disk", "MiB", tuple(grown), Target(20.0)),
    ]


def _stop(home: Home, name: str, text: str) -> None:
    home.put(name, text)
    until(lambda: not home.vmms(name), 60, f"the VM of {name} is gone")


def _write_to_top(folder: Path) -> None:
    """As a guest would: else the next fork need not freeze it."""
    read = layers.read(folder)
    assert read is not None
    if read[0].top.format != "raw":
        with open(folder / read[0].top.file, "ab") as file:
            file.write(bytes(1 << 16))


def _until_there(folder: Path) -> None:
    limit = time.monotonic() + 60
    while not (folder / layers.CHAIN).exists():
        assert time.monotonic() < limit, f"{folder} is not there after 60 s"
        time.sleep(0.002)


def _used(folder: Path) -> int:
    """Bytes of the host's disk, each file once however many names it has."""
    facts = {path.stat().st_ino: path.stat() for path in folder.rglob("*") if path.is_file()}
    return sum(each.st_blocks * 512 for each in facts.values())
