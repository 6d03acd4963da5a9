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

from agent import build, codec, messages

DRIVER = Path(__file__).with_name("parser_driver.c")
PURE = ("frame.c", "request.c", "accounts.c", "sha256.c")
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


@pytest.mark.timeout(SECONDS + 60)
def test_parsers_survive_random_and_mutated_input(driver: Path) -> None:
    seed = os.environ.get("BOX_FUZZ_SEED", str(int.from_bytes(os.urandom(4), "big")))
    done = subprocess.run(
        [driver, "fuzz", str(SECONDS), seed],
        capture_output=True,
        text=True,
        timeout=SECONDS + 50,
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
