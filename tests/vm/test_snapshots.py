"""Snapshots of /data, taken and restored the way a person does, and what stands in their way."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconcilers import disk as disks
from reconcilers import layers
from reconcilers.chain import Chain
from tests.moments import Moments
from tests.vm.harness import PATIENCE, READY, TINY, Home, until
from tests.vm.people import person, persons_home
from tests.vm.strays import no_strays

DISK_MIB = 32

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]


def put(home: Home, state: str, size: int = DISK_MIB) -> None:
    text = TINY.replace(f"size_mib: {DISK_MIB}", f"size_mib: {size}")
    home.put("oak", f"{text}state: {state}\n")


def start(home: Home, size: int = DISK_MIB) -> None:
    put(home, "running", size)
    home.ready("oak")


def stop(home: Home, size: int = DISK_MIB) -> None:
    put(home, "stopped", size)
    until(lambda: not home.vmms("oak") and not (home.runtime / "oak").exists(), 60, "oak stopped")


def wrote(home: Home, text: str) -> None:
    home.run("oak", "sh", "-c", f"echo {text} > /data/file && sync")


def text_of(home: Home) -> str:
    return home.run("oak", "cat", "/data/file").stdout.decode().strip()


def listed(home: Home) -> list[str]:
    found: dict[str, Any] = json.loads(home.box("snapshots", "oak", "-o", "json").stdout)
    return [each["label"] for each in found["snapshots"]]


def chain_of(home: Home) -> Chain:
    """The chain, whose folder holds all of it, nothing else, and only the top may be written."""
    folder = home.path / "disks" / "oak"
    found = layers.read(folder)
    assert found is not None and found[1]
    chain, _ = found
    modes = {file: 0o600 if file == chain.top.file else 0o400 for file in chain.files}
    seen = {path.name: path.stat().st_mode & 0o7777 for path in folder.iterdir()}
    assert seen == {**modes, layers.CHAIN: 0o600}
    return chain


def story(home: Home) -> None:
    """Write, snapshot, write, restore, and back again."""
    start(home)
    wrote(home, "one")
    refused = home.box("snapshot", "oak", "first", check=False)
    assert refused.returncode == 1
    assert b"has its disk open" in refused.stderr and b"state: stopped" in refused.stderr
    stop(home)
    assert home.box("snapshot", "oak", "first").stdout == b"oak: snapshot first taken\n"
    start(home)
    wrote(home, "two")
    assert home.box("verify", "oak").returncode == 0, "a layer beneath is read as a foreign file"
    stop(home)
    said = home.box("restore", "oak", "first").stdout.decode()
    kept = said.rpartition(" ")[2].strip()
    assert said.startswith("oak: /data is that of first again; what was there is the snapshot ")
    assert listed(home) == ["first", kept]
    start(home)
    assert text_of(home) == "one"
    stop(home)
    home.box("restore", "oak", kept, "--discard")
    chain_of(home)
    start(home)
    assert text_of(home) == "two"


def test_what_a_snapshot_froze_comes_back(home: Home) -> None:
    story(home)
    # It grows under the running VM, and what was frozen when it was smaller still comes back.
    wrote(home, "three")
    put(home, "running", 64)
    until(lambda: _data_mib(home) > 48, 60, "the guest sees the larger disk")
    big = "dd if=/dev/urandom of=/data/big bs=1M count=40 && sync && sha256sum /data/big"
    digest = home.run("oak", "sh", "-c", big).stdout
    stop(home, 64)
    home.box("snapshot", "oak", "big")
    home.box("restore", "oak", "first", "--discard")
    start(home, 64)
    assert text_of(home) == "one"
    assert _data_mib(home) > 48
    assert home.drifted("oak") == []
    stop(home, 64)
    home.box("restore", "oak", "big", "--discard")
    start(home, 64)
    assert home.run("oak", "sha256sum", "/data/big").stdout == digest
    assert text_of(home) == "three"
    stop(home, 64)
    assert b"what was there is the snapshot before-reset-" in home.box("reset", "oak").stdout
    start(home, 64)
    assert home.run("oak", "ls", "/data").stdout.split() == [b"lost+found"]
    said = home.box("delete", "oak", "--data").stdout
    assert b"erased in 60 s, with its 4 snapshots" in said


def _data_mib(home: Home) -> int:
    found = home.run("oak", "sh", "-c", "df -k /data | tail -n 1").stdout.split()
    return int(found[1]) // 1024


def test_an_ordinary_user_has_snapshots_too() -> None:
    with person() as someone, persons_home(someone) as home:
        home.start()
        story(home)
        owners = {path.stat().st_uid for path in (home.path / "disks" / "oak").iterdir()}
        assert owners == {someone.uid}
        stop(home)
        assert b"what was there is the snapshot before-reset-" in home.box("reset", "oak").stdout
        start(home)
        assert home.run("oak", "ls", "/data").stdout == b"lost+found\n"


def with_disk_alone(home: Home) -> None:
    """A stopped sandbox that never had a VM, with a disk."""
    put(home, "stopped")
    until(lambda: home.report("oak"), 60, "oak is known")
    disks.create(home.path / "disks" / "oak", DISK_MIB)


VERBS = {
    "snapshot": ["snapshot", "oak"],
    "restore": ["restore", "oak", "first"],
    "restore --discard": ["restore", "oak", "first", "--discard"],
    "reset": ["reset", "oak"],
}


@pytest.mark.parametrize(
    ("verbs", "rounds"),
    [
        (list(VERBS), 8),
        *(pytest.param([verb], 30, marks=pytest.mark.long, id=verb) for verb in VERBS),
    ],
)
@pytest.mark.timeout(600)
def test_a_controller_killed_in_the_middle_leaves_the_old_disk_or_the_new_one(
    home: Home, verbs: list[str], rounds: int
) -> None:
    """Without a VM: what a guest would write is written here, so that many rounds take no time."""
    seed = int(os.environ.get("BOX_TEST_SEED", "20261130"))
    chance = random.Random(seed)
    with_disk_alone(home)
    folder = home.path / "disks" / "oak"
    home.box("snapshot", "oak", "first")
    frozen: dict[str, bytes] = {}
    # All is over some milliseconds after the first change, whenever that comes.
    moments = {verb: Moments(chance, rounds, folder, clock=0.1) for verb in verbs}
    for verb in verbs:
        written_on(folder, chain_of(home))
        with moments[verb].learned():
            home.box(*VERBS[verb])
    seen: Counter[str] = Counter()
    for number in range(rounds):
        before = chain_of(home)
        frozen |= {file: (folder / file).read_bytes() for file in before.frozen - frozen.keys()}
        written_on(folder, before)
        verb = chance.choice(verbs)
        with moments[verb].one() as moment:
            asking = home.asking(*VERBS[verb])
            when = moment()
            home.stop(signal.SIGKILL)
        asking.wait(60 * PATIENCE)
        home.start()
        no_strays(home)
        after = chain_of(home)
        where = f"seed {seed}, round {number}, {verb}, {when}"
        outcome = f"{verb}: {'old' if after == before else 'new'}"
        print(f"{where}: {outcome}")
        seen[outcome] += 1
        labels = [each.label for each in after.snapshots]
        assert labels[: len(before.snapshots)] == [e.label for e in before.snapshots], where
        if after != before:
            added = 0 if verb == "restore --discard" else 1
            assert len(labels) == len(before.snapshots) + added, where
            assert after.top != before.top, where
        for file, content in frozen.items():
            assert (folder / file).read_bytes() == content, f"{where}: {file} was frozen"
        if len(after.layers) > 8:
            home.box("restore", "oak", "first", "--discard")
    print(dict(seen))
    assert len(seen) > 1, "killed before it was done, and afterwards"


def written_on(folder: Path, found: Chain) -> None:
    """As much as a guest's writes to the top are to whoever reads no further than its length."""
    with open(folder / found.top.file, "ab") as top:
        top.write(b"what a guest wrote")


# -- a hostile top


def hostile(top: Path, kind: str, canary: Path) -> None:
    """What a VMM that a guest has taken over may write into the header of its disk."""
    name = os.fsencode(canary)
    with open(top, "r+b") as file:
        header = bytearray(file.read(4096))
        if kind == "backing":
            # backing_file_offset, backing_file_size; the name after the end of the extensions
            struct.pack_into(">QI", header, 8, 512, len(name))
            header[512 : 512 + len(name)] = name
        else:
            # incompatible feature 2: the clusters are in another file, named by an extension
            struct.pack_into(">Q", header, 72, 1 << 2)
            struct.pack_into(">II", header, 104, 0x44415441, len(name))
            header[112 : 112 + len(name)] = name
        file.seek(0)
        file.write(header)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[list[int]]:
    """Fills with the number of times that anybody opened or read `path` (inotify(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(descriptor, os.fsencode(path), 0x21) >= 0  # IN_OPEN, IN_ACCESS
    found: list[int] = []
    try:
        yield found
        with contextlib.suppress(BlockingIOError):
            found.append(len(os.read(descriptor, 65536)))
    finally:
        os.close(descriptor)


def test_the_watch_on_a_canary_sees_it_read(tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("secret")
    with opened(tmp_path / "canary") as seen:
        (tmp_path / "canary").read_text()
    assert seen


@pytest.mark.parametrize("kind", ["backing", "data"])
def test_what_a_hostile_header_names_is_never_opened(home: Home, tmp_path: Path, kind: str) -> None:
    canary = tmp_path / "canary"
    canary.write_bytes(b"secret" * 100_000)
    canary.chmod(0o644)
    start(home)
    wrote(home, "one")
    stop(home)
    home.box("snapshot", "oak", "first")
    hostile(home.path / "disks" / "oak" / chain_of(home).top.file, kind, canary)
    with opened(canary) as seen:
        home.box("snapshots", "oak")
        home.box("describe", "oak")
        put(home, "running")
        if kind == "backing":  # what lies beneath was said on the command line
            home.ready("oak")
            assert text_of(home) == "one"
        else:  # nothing of that name is in the jail
            until(lambda: "failed" in _kinds(home), READY, "the VM does not start")
            assert not home.vmms("oak")
        stop(home)
        home.box("snapshot", "oak", "with-it")  # a hostile layer in the middle
        put(home, "running")
        if kind == "backing":
            home.ready("oak")
        stop(home)
        home.box("restore", "oak", "first", "--discard")
        start(home)
        assert text_of(home) == "one"
    assert not seen, "somebody opened what a guest named"


def _kinds(home: Home) -> set[str]:
    lines = (home.path / "observed" / "oak" / "events.jsonl").read_text().splitlines()
    return {json.loads(line)["kind"] for line in lines}


# -- a full disk


def test_a_full_disk_leaves_no_partial_snapshot(small_home: Home) -> None:
    """Case L5 (disk)."""
    home = small_home
    with_disk_alone(home)
    home.box("snapshot", "oak", "first")
    before = chain_of(home)
    with open(home.path / "disks" / "oak" / before.top.file, "ab") as top:
        top.write(b"what a guest wrote")
    ballast = home.path / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    for verb in (["snapshot", "oak", "second"], ["restore", "oak", "first"], ["reset", "oak"]):
        failed = home.box(*verb, check=False)
        assert failed.returncode == 1
        assert b"nothing was done: " in failed.stderr, failed
        assert b"No space left on device" in failed.stderr, failed
        assert b"fix: df -h" in failed.stderr
        assert listed(home) == ["first"]
        assert chain_of(home) == before
    home.box("delete", "oak", "--wait")
    home.nothing_left("oak")
    ballast.unlink()
