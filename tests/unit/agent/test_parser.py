"""The agent's C parsers, on the host under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import archive, build, codec, messages
from agent.archive import Change, Kind, Record

DRIVER = Path(__file__).with_name("parser_driver.c")
PURE = ("frame.c", "request.c", "accounts.c", "sha256.c", "archive.c")
SECONDS = float(os.environ.get("BOX_FUZZ_SECONDS", "5"))
SANITIZERS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("parser") / "parser_driver"
    sources = [str(build.SOURCES / name) for name in PURE]
    command = ["cc", *build.LANGUAGE, *build.WARNINGS, *SANITIZERS, f"-I{build.SOURCES}"]
    subprocess.run([*command, *sources, str(DRIVER), "-o", str(target)], check=True, timeout=120)
    return target


def parse(driver: Path, data: bytes) -> list[str]:
    done = subprocess.run(
        [driver, "parse"], input=data, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def line(kind: int, stream: int, payload: bytes) -> str:
    return f"{kind} {stream} {len(payload)} {hashlib.sha256(payload).hexdigest()}"


@pytest.mark.timeout(SECONDS + 300)  # with compiling what it runs
def test_parsers_survive_random_and_mutated_input(driver: Path) -> None:
    seed = os.environ.get("BOX_FUZZ_SEED", str(int.from_bytes(os.urandom(4), "big")))
    done = subprocess.run(
        [driver, "fuzz", str(SECONDS), seed],
        capture_output=True,
        text=True,
        timeout=SECONDS + 150,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    rounds = int(done.stdout.split()[0])
    assert rounds > 20 * SECONDS


FRAMES = st.lists(
    st.tuples(st.integers(1, 255), st.integers(0, codec.STREAM_MAX), st.binary(max_size=600)),
    max_size=8,
)


@settings(max_examples=40)
@given(FRAMES)
def test_agent_reads_what_the_host_writes(
    driver: Path, frames: list[tuple[int, int, bytes]]
) -> None:
    data = b"\0\0\0".join(codec.encode(*frame) for frame in frames)
    assert parse(driver, data) == [line(*frame) for frame in frames]


def test_largest_frame_passes_and_a_larger_one_is_garbled(driver: Path) -> None:
    payload = os.urandom(codec.PAYLOAD_MAX)
    assert parse(driver, codec.encode(4, 1, payload)) == [line(4, 1, payload)]
    header = codec.HEADER.pack(4, 0, codec.MAGIC, 1, codec.PAYLOAD_MAX + 1)
    assert parse(driver, header) == ["garbled"]


@pytest.mark.parametrize("keep", [0, 1, 2, 4, 8, 11, 12, 13, 500, 1011, 1012])
def test_frame_cut_short_is_void_and_hello_after_zeros_is_read(driver: Path, keep: int) -> None:
    cut = codec.encode(4, 1, b"x" * 1000)[:keep]
    hello = messages.hello(bytes(range(1, 17)), b"t" * 32, first=True)
    found = parse(driver, cut + codec.RESYNC + hello)
    payload = hello[codec.HEADER.size : -1]
    assert [text for text in found if text != "garbled"] == [line(1, 0, payload)]


def test_both_sides_have_the_same_numbers() -> None:
    header = (build.SOURCES / "frame.h").read_text() + (build.SOURCES / "request.h").read_text()
    in_c = {
        name: int(value, 0) for name, value in re.findall(r"(\w+) = (0x[0-9A-Fa-f]+|\d+),", header)
    }
    for enum, prefix in (
        (codec.ToGuest, "TO_GUEST_"),
        (codec.ToHost, "TO_HOST_"),
        (messages.Kind, "REQUEST_"),
    ):
        assert {prefix + e.name: e.value for e in enum} == {
            name: value for name, value in in_c.items() if name.startswith(prefix)
        }
    defines = dict(re.findall(r"#define (\w+) (0x[0-9A-Fa-f]+|\d+)u\b", header))
    assert int(defines["FRAME_MAX"], 0) == codec.FRAME_MAX
    assert int(defines["FRAME_HEADER"], 0) == codec.HEADER.size
    assert int(defines["FRAME_MAGIC"], 0) == codec.MAGIC
    assert int(defines["FRAME_END"], 0) == codec.END_MARK
    assert int(defines["FRAME_ZERO_RUN"], 0) == codec.ZERO_RUN
    assert int(defines["STDIN_WINDOW"], 0) == messages.STDIN_WINDOW
    assert int(defines["STRINGS_MAX"], 0) == messages.STRINGS_MAX


@pytest.mark.parametrize("size", [0, 1, 32, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_sha256_is_sha256(driver: Path, size: int) -> None:
    payload = os.urandom(size)
    assert parse(driver, codec.encode(4, 1, payload)) == [line(4, 1, payload)]


LOW, HIGH = archive.SECONDS_MIN * archive.NANO, archive.SECONDS_MAX * archive.NANO + 5
BODY = archive.encode_attributes([(b"user.a", b"value")])
PLAIN = [
    Record(Kind.FOLDER, b"d" * 255, 0o7777, 0, LOW, 2**32 - 1, 2**32 - 1, body=BODY),
    Record(Kind.FILE, b"f", 0o640, 1 << 44, HIGH, number=1),
    Record(Kind.DATA, size=3, length=7),
    Record(Kind.DATA, size=10, length=archive.LONG),
    Record(Kind.SYMLINK, b"l", 0o777, body=b"x" * archive.TARGET_MAX),
    Record(Kind.HARD, b"h", number=1),
    Record(Kind.NOTE, b"n", number=archive.Reason.CHANGED),
    Record(Kind.LEAVE),
    Record(Kind.END, size=4, length=7 + archive.LONG, number=1),
]
CHANGES = [
    Record(Kind.TOP, mode=0o700, body=BODY, change=Change.MODE | Change.ATTRIBUTES),
    Record(Kind.WAS, b"g", 0o644, 5, LOW, 1, 2, 8, body=bytes(range(16))),
    Record(Kind.GONE, b"g", 0o644),
    Record(Kind.GONE_FOLDER, b"G"),
    Record(Kind.WAS, body=bytes(16)),
    Record(Kind.GONE, b"g"),
    Record(Kind.LEAVE),
    Record(Kind.PASS, b"p" * 255, 0o755, uid=7, body=BODY),
    Record(Kind.FILE, b"f", 0o640, 7, number=1, change=Change.ADDED),
    Record(Kind.DATA, length=7),
    Record(Kind.HARD, b"h", number=1, change=sum(Change)),
    Record(Kind.LEAVE),
    Record(Kind.END, size=6, length=7),
]


@pytest.mark.parametrize("wanted", [PLAIN, CHANGES], ids=["plain", "changes"])
def test_both_sides_have_the_same_archive(driver: Path, wanted: list[Record]) -> None:
    """Every kind, with the largest and smallest numbers, as the host writes it and the agent reads
    and writes it.
    """
    changes = wanted is CHANGES
    data = bytearray(archive.CHANGES_HEADER if changes else archive.HEADER)
    for record in wanted:
        data += archive.encode(record, len(data)) + b"z" * (
            record.length if record.kind == Kind.DATA else 0
        )
        data += bytes(-len(data) % archive.UNIT)
    done = subprocess.run([driver, "records"], input=data, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [
        f"{int(r.change)} {int(r.kind)} {r.mode:o} {r.size}"
        f" {r.mtime_ns // archive.NANO} {r.mtime_ns % archive.NANO}"
        f" {r.uid} {r.gid} {r.number} {r.length} {(r.name + r.body).hex()} same"
        for r in wanted
    ]
    window = archive.Window(lambda at, size: bytes(data[at : at + size]), len(data))
    found = [each._replace(position=0) for each in archive.records(window, changes=changes)]
    assert found == wanted


def test_both_sides_have_the_same_numbers_for_archives() -> None:
    header = (build.SOURCES / "archive.h").read_text()
    in_c = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+),", header)}
    assert in_c == {
        **{f"ARCHIVE_{each.name}": each.value for each in Kind},
        **{f"REASON_{each.name}": each.value for each in archive.Reason},
        **{f"CHANGE_{each.name}": each.value for each in Change},
    }
    defines = {
        name: int(value) for name, value in re.findall(r"#define ARCHIVE_(\w+) (\d+)u", header)
    }
    assert defines == {
        "HEADER": len(archive.HEADER),
        "RECORD": archive.RECORD.size,
        "UNIT": archive.UNIT,
        "BLOCK": archive.BLOCK,
        "LONG": archive.LONG,
        "NAME_MAX": archive.NAME_MAX,
        "DIGEST": archive.DIGEST,
        "TARGET_MAX": archive.TARGET_MAX,
        "BODY_MAX": archive.BODY_MAX,
        "DEPTH_MAX": archive.DEPTH_MAX,
        "NUMBERS_MAX": archive.NUMBERS_MAX,
    }
