"""Trees of a guest that lies, written on a real file system with a canary beside them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.archive import Kind, Reason, Record, encode_attributes
from reconcilers.guestfiles import beneath
from reconcilers.guestfiles import notes as notes_module
from reconcilers.guestfiles.cursor import WINDOW, Cursor, Place
from specs.errors import ProtocolError
from tests.unit.guestfiles.archives import (
    MOMENT,
    archive,
    file,
    folder,
    hard,
    leave,
    note,
    run,
    sparse,
    symlink,
    unpacked,
)

SECRET = "a canary outside of the tree"


@pytest.fixture(autouse=True)
def canary(tmp_path: Path) -> Iterator[Path]:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = outside / "canary"
    path.write_text(SECRET)
    path.chmod(0o640)
    yield path
    assert path.read_text() == SECRET
    assert (path.stat().st_nlink, stat.S_IMODE(path.stat().st_mode)) == (1, 0o640)
    assert [each.name for each in outside.iterdir()] == ["canary"]


def told(paths: list[tuple[str, str]], path: str) -> str:
    return "; ".join(what for where, what in paths if where == path)


def test_a_plain_tree_is_there_with_modes_times_and_content(tmp_path: Path) -> None:
    content = archive(
        file(b"a", b"words", mode=0o640),
        folder(b"d", 0o750),
        file(b"empty", mode=0o400),
        folder(b"e", 0o1777),
        leave(),
        leave(),
        symlink(b"l", b"d/empty"),
        file(b"long", b"x" * 300_000),
    )
    target, notes = unpacked(content, tmp_path)
    assert (target / "a").read_text() == "words"
    assert (target / "long").read_bytes() == b"x" * 300_000
    assert (target / "d/empty").read_bytes() == b""
    assert os.readlink(target / "l") == "d/empty"
    modes = {"a": 0o640, "d": 0o750, "d/empty": 0o400, "d/e": 0o1777, "long": 0o644}
    for name, mode in modes.items():
        assert stat.S_IMODE((target / name).stat().st_mode) == mode, name
    for name in (*modes, "l"):
        assert (target / name).lstat().st_mtime_ns == MOMENT, name
    assert (notes.files, notes.folders, notes.links, notes.data) == (3, 2, 1, 300_005)
    assert notes.total == 0


@pytest.mark.parametrize(
    "name", [b"..", b".", b"/etc/passwd", b"../outside/canary", b"a/b", b"a\0b", b""]
)
@pytest.mark.parametrize("kind", [Kind.FILE, Kind.FOLDER, Kind.SYMLINK, Kind.HARD, Kind.NOTE])
def test_a_name_that_leads_away_refuses_the_archive(
    tmp_path: Path, name: bytes, kind: Kind
) -> None:
    body = b"x" if kind == Kind.SYMLINK else b""
    parts = file(b"first", number=1) + [(Record(kind, name, number=1, body=body), b"")]
    with pytest.raises(ProtocolError, match="name"):
        unpacked(archive(parts), tmp_path)


@pytest.mark.parametrize("target", [b"../outside", b"/", b"absolute", b"x" * 4095, b".", b"link"])
def test_a_link_and_then_a_file_or_directory_through_it(tmp_path: Path, target: bytes) -> None:
    """The second entry has the link's name: it is left out, and so is all that it holds."""
    if target == b"absolute":
        target = os.fsencode(tmp_path / "outside")
    for later in (
        folder(b"link") + file(b"canary", b"changed") + file(b"new") + leave(),
        file(b"link", b"changed"),
        symlink(b"link", b"elsewhere"),
    ):
        content = archive(symlink(b"link", target), later, file(b"after", b"ok"))
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        made, notes = unpacked(content, place)
        assert os.fsencode(os.readlink(made / "link")) == target
        assert sorted(os.listdir(made)) == ["after", "link"]
        assert "taken" in told(notes.paths, "link")


def test_links_in_two_steps_lead_nowhere(tmp_path: Path) -> None:
    content = archive(
        folder(b"a"), symlink(b"up", b".."), leave(),
        symlink(b"b", b"a/up/../outside"),
        folder(b"b"), file(b"canary", b"changed"), leave(),
        folder(b"a"), file(b"canary", b"changed"), leave(),
    )  # fmt: skip
    target, notes = unpacked(content, tmp_path)
    assert os.listdir(target / "a") == ["up"]
    assert [path for path, _ in notes.paths] == ["b", "a"]


def test_hard_links_stay_and_never_lead_out(tmp_path: Path) -> None:
    content = archive(
        folder(b"d", 0o000), file(b"first", b"shared", number=1), leave(),
        hard(b"second", 1),
        symlink(b"out", b"../outside/canary"),
        folder(b"e"), hard(b"third", 1), hard(b"third", 1), leave(),
        hard(b"out", 1),
    )  # fmt: skip
    target, notes = unpacked(content, tmp_path)
    facts = (target / "second").stat()
    assert facts.st_nlink == 3
    assert (target / "e/third").stat().st_ino == facts.st_ino
    assert os.readlink(target / "out") == "../outside/canary"
    assert [path for path, _ in notes.paths] == ["e/third", "out"]
    assert stat.S_IMODE((target / "d").lstat().st_mode) == 0


def test_hard_links_to_what_is_no_file_refuse_the_archive(tmp_path: Path) -> None:
    for before in (symlink(b"l", b"../outside/canary"), folder(b"l") + leave(), []):
        with pytest.raises(ProtocolError, match="not before it"):
            place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            place.mkdir()
            unpacked(archive(before, hard(b"h", 1)), place)


def test_a_hard_link_to_a_file_that_was_left_out_is_left_out(tmp_path: Path) -> None:
    content = archive(symlink(b"d", b"../outside"), folder(b"d"), file(b"canary", b"x", number=1),
                      leave(), hard(b"h", 1))  # fmt: skip
    target, notes = unpacked(content, tmp_path)
    assert os.listdir(target) == ["d"]
    assert "left out" in told(notes.paths, "h")


def test_privileges_are_dropped_and_told(tmp_path: Path) -> None:
    capability = b"\1\0\0\2\0\4\0\0" + bytes(12)
    with pytest.raises(ProtocolError, match="attribute"):
        body = encode_attributes([(b"security.capability", capability)])
        unpacked(archive(file(b"ping", b"x", body=body)), tmp_path)
    place = tmp_path / "again"
    place.mkdir()
    harmless = encode_attributes(
        [(b"user.note", b"kept"), (b"user.rsync.%stat", b"104755 0,0 0:0")]
    )
    content = archive(
        file(b"su", b"x", mode=0o6755), folder(b"d", 0o7777), leave(), file(b"f", body=harmless)
    )
    target, notes = unpacked(content, place)
    assert stat.S_IMODE((target / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o1777
    assert (target / "su").stat().st_uid == os.geteuid()
    assert "set-user-ID" in told(notes.paths, "su") and "set-user-ID" in told(notes.paths, "d")
    assert "user.rsync.%stat is dropped" in told(notes.paths, "f")
    assert os.listxattr(target / "f") == ["user.note"]


def test_a_tree_deeper_than_any_path_arrives(tmp_path: Path) -> None:
    levels, name = 3 * WINDOW, b"d" * 200
    content = archive(
        *(folder(name, 0o000 if level % 2 else 0o755) for level in range(levels)),
        file(b"bottom", b"words", number=1),
        *(leave() + file(b"%d" % level) for level in range(levels)),
        hard(b"twin", 1),
    )
    target, _ = unpacked(content, tmp_path)
    assert (target / "twin").read_text() == "words"
    root = os.open(target, os.O_RDONLY)
    at = Cursor(root)
    modes = set()
    for _ in range(levels):
        held, facts = beneath.look(at.here, name)
        modes.add(stat.S_IMODE(facts.st_mode))
        os.chmod(f"/proc/self/fd/{held}", 0o700)
        os.close(held)
        at.enter(name, beneath.open_folder(at.here, name))
    assert beneath.names_in(at.here) == [b"bottom"]
    assert modes == {0o000, 0o755}
    at.close()
    os.close(root)
    parent = os.open(tmp_path, os.O_RDONLY)
    beneath.remove_tree(parent, b"target")
    os.close(parent)


def test_40_gib_with_4_kib_of_data_take_little_room(tmp_path: Path) -> None:
    size = 40 << 30
    content = archive(sparse(b"big", size, (size // 2, b"y" * 4096)), sparse(b"holes", size))
    assert len(content) < 20_000
    target, notes = unpacked(content, tmp_path)
    for name in ("big", "holes"):
        facts = (target / name).stat()
        assert facts.st_size == size
        assert facts.st_blocks * 512 < 1 << 20
    descriptor = os.open(target / "big", os.O_RDONLY)
    assert os.pread(descriptor, 5000, size // 2 - 100) == bytes(100) + b"y" * 4096 + bytes(804)
    os.close(descriptor)
    assert notes.data == 4096


def test_same_names_are_not_overwritten_and_others_are_told(tmp_path: Path) -> None:
    composed, decomposed = "é".encode(), "e\u0301".encode()
    content = archive(
        file(b"Readme", b"1"), file(b"README", b"2"), file(b"README", b"3"),
        file(composed, b"4"), file(decomposed, b"5"), file(b"\xff", b"6"), file(b"\xfe", b"7"),
    )  # fmt: skip
    target, notes = unpacked(content, tmp_path)
    found = {name: (target / os.fsdecode(name)).read_bytes() for name in (b"Readme", b"README")}
    assert found == {b"Readme": b"1", b"README": b"2"}
    assert (target / os.fsdecode(composed)).read_bytes() == b"4"
    assert (target / os.fsdecode(decomposed)).read_bytes() == b"5"
    assert {os.fsencode(each) for each in os.listdir(target)} >= {b"\xff", b"\xfe"}
    assert "same name as Readme" in told(notes.paths, "README")
    assert "taken" in told(notes.paths, "README")
    assert len(notes.paths) == 3


def test_odd_names_arrive_byte_for_byte(tmp_path: Path) -> None:
    names = [b"n" * 255, b"a\nb", b"\xff\xfe\x80", b"-rf *", b" ", b"\x1b]0;x\x07", b"...", b"\\"]
    target, notes = unpacked(archive(*(file(name, name) for name in names)), tmp_path)
    assert sorted(map(os.fsencode, os.listdir(target))) == sorted(names)
    assert notes.total == 0


def test_paths_are_put_together_only_for_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of directories deep each is some 4 MB, and a guest chooses how many there are."""
    asked, path = [0], Place.path

    def counted(self: Place, name: bytes = b"") -> bytes:
        asked[0] += 1
        return path(self, name)

    monkeypatch.setattr(Place, "path", counted)
    monkeypatch.setattr(notes_module, "KEPT", 3)
    noted = (note(b"%d" % number, Reason.FIFO) for number in range(50))
    body = encode_attributes([(b"user.overlay.x", b"")])
    files = (file(b"f%d" % number, mode=0o4755, body=body) for number in range(50))
    _, notes = unpacked(archive(folder(b"d"), *noted, *files, leave()), tmp_path)
    assert notes.total == 150 and len(notes.paths) == asked[0] == 3


def test_what_the_guest_left_out_is_listed(tmp_path: Path) -> None:
    content = archive(
        folder(b"d"), note(b"fifo", Reason.FIFO), note(b"\x1b[2J", 4_000_000_000), leave(),
        note(b"disk", Reason.BLOCK_DEVICE),
    )  # fmt: skip
    target, notes = unpacked(content, tmp_path)
    assert os.listdir(target) == ["d"]
    assert notes.paths[0] == ("d/fifo", "a FIFO, left out")
    assert notes.paths[1] == ("d/\\x1b[2J", "of an unknown kind, left out")
    assert notes.paths[2] == ("disk", "a block device, left out")


def test_only_so_many_notes_are_kept(tmp_path: Path) -> None:
    _, notes = unpacked(archive(*(note(b"%d" % n, 1) for n in range(3000))), tmp_path)
    assert (notes.total, len(notes.paths)) == (3000, 1000)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (run(0, b"x"), "belongs to no file"),
        (symlink(b"l", b"t") + run(0, b"x"), "belongs to no file"),
        (sparse(b"f", 10, (8, b"xyz")), "beyond the end"),
        (sparse(b"f", 10, (4, b"x"), (2, b"x")), "out of order"),
        (sparse(b"f", 10, (4, b"xx"), (5, b"x")), "out of order"),
        (sparse(b"f", 10, (1 << 40, b"x")), "beyond the end"),
        (leave(), "leaves more directories"),
        (folder(b"d"), "inside a directory"),
        (file(b"f", number=2), "numbered out of order"),
        ([(Record(14, b""), b"")], "unknown kind"),
        ([(Record(Kind.GONE, b"g"), b"")], "change where none belongs"),
        ([(Record(Kind.FILE, b"f", change=1), b"")], "change where none belongs"),
        ([(Record(0, b""), b"")], "unknown kind"),
        ([(Record(Kind.FILE, b"f", size=1 << 45), b"")], "out of range"),
        ([(Record(Kind.FILE, b"f", mode=0o10644), b"")], "out of range"),
        ([(Record(Kind.SYMLINK, b"l"), b"")], "leads nowhere"),
        ([(Record(Kind.SYMLINK, b"l", body=b"a\0b"), b"")], "leads nowhere"),
        ([(Record(Kind.SYMLINK, b"l", body=b"a" * 4096), b"")], "too long"),
        ([(Record(Kind.END, size=7), b"")], "counts do not agree"),
        ([(Record(Kind.LEAVE, b"name"), b"")], "where none belongs"),
        ([(Record(Kind.FILE, b"f", body=b"\1"), b"")], "attribute"),
        ([(Record(Kind.FILE, b"f", body=b"\6\0\2\0user.xa"), b"")], "attribute"),
    ],
)
def test_what_no_archive_may_be_is_refused(
    tmp_path: Path, parts: list[tuple[Record, bytes]], why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        unpacked(archive(parts), tmp_path)


def test_every_cut_of_an_archive_is_refused(tmp_path: Path) -> None:
    whole = archive(folder(b"d"), file(b"f", b"x" * 70_000), leave(), symlink(b"l", b"t"))
    cuts = [*range(0, 4096, 16), *range(4096, len(whole), 5000), len(whole) - 1]
    for number, cut in enumerate(cuts):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(ProtocolError):
            unpacked(whole[:cut], place)


SCRAPS = (
    folder(b"d"), leave(), file(b"f", b"words"), file(b"g", b"x", number=1), hard(b"h", 1),
    symlink(b"l", b"../outside"), symlink(b"d", b"../outside"), folder(b"l"), file(b"canary", b"y"),
    note(b"n", 1), run(0, b"z"), sparse(b"s", 99, (5, b"q")), folder(b"..", 0), file(b"../canary"),
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(SCRAPS), max_size=12),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
)
def test_whatever_the_order_and_the_bytes_nothing_outside_is_touched(
    tmp_path: Path, groups: list[list[tuple[Record, bytes]]], changes: list[tuple[int, int]]
) -> None:
    """The canary is looked at after each of them, by the fixture after the last."""
    content = bytearray(archive(*groups))
    for at, value in changes:
        content[at % len(content)] = value
    with TemporaryDirectory(dir=tmp_path) as place:
        with contextlib.suppress(ProtocolError, OSError):
            unpacked(bytes(content), Path(place))
        assert (tmp_path / "outside/canary").read_text() == SECRET
        for each in (Path(place) / "target").rglob("*"):
            if not each.is_symlink():
                each.chmod(0o700)
