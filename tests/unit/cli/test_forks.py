"""`box fork diff` and `apply` on the command line: what a guest says, shown and not believed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import archive
from agent.archive import Change, Kind, Reason, Record
from controller.cli import forkchanges
from reconcilers.guestfiles import changes
from reconcilers.guestfiles.changes import Entry, LeftOut, listed
from reconcilers.layout import Layout
from specs.errors import ProtocolError
from tests.unit.cli.hostservice import HostDisks, serving
from tests.unit.cli.support import box, text

RECORDS = (
    Record(Kind.TOP, mode=0o700, change=Change.MODE),
    Record(Kind.GONE_FOLDER, b"was", number=1),
    Record(Kind.GONE, b"in", 0o644),
    Record(Kind.LEAVE),
    Record(Kind.SYMLINK, b"was", body=b"/etc/shadow", change=Change.TYPE),
    Record(Kind.PASS, b"d"),
    Record(Kind.FILE, b"a\n\x1b[31m", 0o4755, change=Change.MODE | Change.CONTENT),
    Record(Kind.FILE, b"\xff", 0o644, 7, change=Change.ADDED),
    Record(Kind.NOTE, b"null", number=Reason.CHARACTER_DEVICE),
    Record(Kind.NOTE, b"odd", number=99),
    Record(Kind.LEAVE),
    Record(Kind.GONE_FOLDER, b"b"),
    Record(Kind.LEAVE),
)


def written(*records: Record) -> bytes:
    data = bytearray(archive.CHANGES_HEADER)
    counted = [each for each in records if each.kind not in (Kind.LEAVE, Kind.PASS, Kind.NOTE)]
    notes = sum(each.kind == Kind.NOTE for each in records)
    for record in (*records, Record(Kind.END, size=len(counted), number=notes)):
        data += archive.encode(record, len(data))
    return bytes(data)


@pytest.fixture
async def disks(layout: Layout) -> AsyncIterator[HostDisks]:
    async with serving(layout.socket) as service:
        service.disks.archive = written(*RECORDS)
        service.disks.transfers = layout.transfers
        yield service.disks


async def fork(layout: Layout, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    done = await asyncio.to_thread(box, layout.home, "fork", *arguments)
    assert list(layout.transfers.iterdir()) == []
    return done


async def test_changes_are_shown_safely(layout: Layout, disks: HostDisks) -> None:
    done = await fork(layout, "diff", "down")
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [
        "M  .  (mode 0700)",
        "D  b/",
        "M  d/a\\x0a\\x1b[31m  (content, mode 4755)",
        "A  d/\\udcff",
        "T  was  (now a symlink)",
        "D  was/in",
    ]
    assert done.stderr.decode().splitlines() == [
        "box: d/null: a character device, left out",
        "box: d/odd: of an unknown kind, left out",
    ]
    stat = (await fork(layout, "diff", "down", "--stat")).stdout.decode().splitlines()
    assert [line.split() for line in stat[1:]] == [
        [".", "0", "1", "0", "0"], ["b/", "0", "0", "1", "0"], ["d/", "1", "1", "0", "0"],
        ["was", "0", "0", "0", "1"], ["was/", "0", "0", "1", "0"], ["all", "1", "2", "2", "1"],
    ]  # fmt: skip


async def test_json_has_every_byte(layout: Layout, disks: HostDisks) -> None:
    found = json.loads((await fork(layout, "diff", "down", "-o", "json")).stdout)
    assert found["name"] == "down" and found["of"] == "agent"
    assert {"change": "A", "path_b64": "ZC//", "mode": "0644", "type": "file"} in found["changes"]
    named = {each.get("path"): each for each in found["changes"]}
    assert named["d/a\n\x1b[31m"]["what"] == ["content", "mode"]
    assert named["was"] == {"change": "T", "path": "was", "mode": "0000", "type": "symlink",
                            "what": ["type"]}  # fmt: skip
    assert [each["path"] for each in found["left_out"]] == ["d/null", "d/odd"]
    assert found["counts"] == {"added": 1, "modified": 2, "deleted": 2, "retyped": 1}
    only = json.loads((await fork(layout, "diff", "down", "--stat", "-o", "json")).stdout)
    assert only["counts"] == found["counts"] and "changes" not in only
    disks.archive = written()
    assert text(await fork(layout, "diff", "down")) == "box: no changes\n"


async def test_conflicts_refuse_and_theirs_overrides(layout: Layout, disks: HostDisks) -> None:
    done = await fork(layout, "apply", "down")
    assert done.returncode == 1
    assert done.stdout.decode() == (
        "C  a/\\udcff  (modified in down, deleted in agent)\nand 2 more conflicts\n"
    )
    assert b"box fork apply down --theirs" in done.stderr
    done = await fork(layout, "apply", "down", "--theirs", "--dry-run")
    assert done.returncode == 0
    assert b"2 changes of down would be applied to agent (1 conflict for down)" in done.stdout
    done = await fork(layout, "apply", "down", "--theirs")
    assert b"applied to agent; what was there is the snapshot before" in done.stdout
    told = json.loads((await fork(layout, "apply", "down", "-o", "json")).stdout)
    assert told["result"] == "conflicts" and told["conflict_count"] == 3
    assert told["conflicts"] == [{"fork": "M", "parent": "D", "path_b64": "YS//"}]
    assert [each[3:] for each in disks.asked] == [
        (False, False), (True, True), (True, False), (False, False),
    ]  # fmt: skip
    running = await fork(layout, "apply", "agent")
    assert running.returncode == 1 and b"state: stopped" in running.stderr


def of(tmp_path: Path, data: bytes) -> list[Entry | LeftOut]:
    path = tmp_path / "archive"
    path.write_bytes(data)
    with path.open("rb") as file:
        return list(listed(file.fileno()))


def test_a_listing_that_is_none_is_refused(tmp_path: Path) -> None:
    whole = written(*RECORDS)
    assert len(of(tmp_path, whole + bytes(4096))) == 8
    for cut in range(0, len(whole), 8):
        with pytest.raises(ProtocolError):
            of(tmp_path, whole[:cut])
    for at in range(16, len(whole)):
        for value in (0, 1, 0xFF):
            changed = bytearray(whole)
            changed[at] = value
            try:
                found = of(tmp_path, bytes(changed))
            except ProtocolError:
                continue
            for each in found:
                assert b"\0" not in each.path and b".." not in each.path.split(b"/")


def test_what_is_left_out_is_counted_beyond_what_is_held(tmp_path: Path) -> None:
    path, deep = tmp_path / "archive", 4000
    names = [Record(Kind.PASS, b"d" * 255)] * deep
    notes = [Record(Kind.NOTE, b"%d" % number, number=1) for number in range(60)]
    path.write_bytes(written(*names, *notes, *[Record(Kind.LEAVE)] * deep))
    descriptor = os.open(path, os.O_RDONLY)
    found, count = forkchanges._some_left_out(descriptor)
    os.close(descriptor)
    assert count == 60 and len(found) == forkchanges.SORTED_MAX // (deep * 256 + 20)


def test_more_than_is_held_is_shown_in_the_order_in_which_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkchanges, "SORTED_MAX", 500)
    names = [b"d", b"c", b"b", b"a"]
    path = tmp_path / "archive"
    path.write_bytes(written(*(Record(Kind.GONE, name) for name in names)))
    descriptor = os.open(path, os.O_RDONLY)
    found = [each.path for each in forkchanges._ordered(descriptor)]
    os.close(descriptor)
    assert found == [b"b", b"c", b"d", b"a"]


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("RECORDS_MAX", 3000, "more than 3000 records"),
        ("PATHS_MAX", 1 << 20, "paths of more than 1 MiB"),
        ("SECONDS_MAX", -1.0, "s do not suffice"),
    ],
)
def test_a_list_without_end_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, said: str
) -> None:
    """Nobody has to wait until all of a disk that a hostile guest filled with it is read."""
    names = [Record(Kind.GONE, b"%0200d" % number) for number in range(6000)]
    data = written(*names)
    assert len(of(tmp_path, data)) == 6000
    monkeypatch.setattr(changes, limit, value)
    with pytest.raises(changes.TooMuch, match=said) as caught:
        of(tmp_path, data)
    assert caught.value.fix


def test_whoever_takes_their_time_with_a_list_is_shown_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pager, which takes no more than it shows."""
    (tmp_path / "archive").write_bytes(
        written(*[Record(Kind.GONE, b"%04d" % number) for number in range(3000)])
    )
    monkeypatch.setattr(changes, "SECONDS_MAX", 1000.0)
    descriptor = os.open(tmp_path / "archive", os.O_RDONLY)
    entries = listed(descriptor)
    next(entries)
    monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
    assert sum(1 for _ in entries) == 2999
    os.close(descriptor)


def test_what_was_applied_is_told_though_its_list_has_no_end(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(layout: Layout, name: str, asked: dict[str, object]) -> dict[str, object]:
        folder = layout.transfers / str(asked["transfer"])
        folder.write_bytes(written(*[Record(Kind.NOTE, b"n", number=1)] * 3000))
        return {"name": name, "of": "agent", "result": "applied", "changes": 7, "kept": "before",
                "conflicts": [], "conflict_count": 0}  # fmt: skip

    monkeypatch.setattr(forkchanges, "_ask", answer)
    monkeypatch.setattr(changes, "RECORDS_MAX", 2000)
    chosen = Namespace(theirs=False, dry_run=False, form="table")
    assert forkchanges.apply(layout, "down", chosen) == 0
    told = capsys.readouterr()
    assert "7 changes of down applied to agent" in told.out
    assert "what is left out is not listed: the list of changes has more than 2000" in told.err


@pytest.mark.parametrize(
    ("name", "fix"),
    [("diff", b"box fork diff oak"), ("apply", b"box fork apply oak"), ("oak", b"choose a name")],
)
def test_a_fork_has_a_name_that_can_be_one(layout: Layout, name: str, fix: bytes) -> None:
    done = box(layout.home, "fork", "oak", name)
    assert done.returncode == 2 and fix in done.stderr, done.stderr
    assert not list(layout.boxes.glob("*"))
