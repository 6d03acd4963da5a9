"""Frames and messages against a guest that may send anything."""

from __future__ import annotations

import contextlib
import os
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import codec, messages
from agent.messages import ExecRequest, Exit, Kind
from specs.errors import ProtocolError, UsageError

SECONDS = float(os.environ.get("BOX_FUZZ_SECONDS", "5"))
FRAMES = st.lists(
    st.tuples(st.integers(1, 255), st.integers(0, codec.STREAM_MAX), st.binary(max_size=300)),
    max_size=10,
)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    out = []
    for size in sizes:
        out.append(data[:size])
        data = data[size:]
    return [*out, data]


@given(FRAMES, st.lists(st.integers(0, 100), max_size=40))
def test_frames_survive_any_split(frames: list[tuple[int, int, bytes]], sizes: list[int]) -> None:
    data = b"".join(codec.encode(*frame) for frame in frames)
    decoder = codec.Decoder()
    found = [frame for piece in pieces(data, sizes) for frame in decoder.feed(piece)]
    assert [(f.type, f.stream, f.payload) for f in found] == frames
    assert decoder.held == 0


@given(st.binary(max_size=2000))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes) -> None:
    decoder = codec.Decoder()
    try:
        for frame in decoder.feed(data):
            assert len(frame.payload) <= codec.PAYLOAD_MAX
    except ProtocolError:
        with pytest.raises(ProtocolError):
            list(decoder.feed(codec.encode(1, 0)))
    assert decoder.held < codec.FRAME_MAX


def test_decoder_fuzz_keeps_its_bounds() -> None:
    until = time.monotonic() + SECONDS
    seed = int(os.environ.get("BOX_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
    dice = random.Random(seed)
    rounds = 0
    while time.monotonic() < until:
        decoder = codec.Decoder()
        data = bytearray()
        for _ in range(dice.randrange(1, 6)):
            payload = dice.randbytes(dice.choice((0, 5, 300, codec.PAYLOAD_MAX)))
            data += codec.encode(dice.randrange(1, 256), dice.randrange(2**32), payload)
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        rounds += 1
        try:
            while data:
                size = dice.randrange(1, 5000)
                for frame in decoder.feed(bytes(data[:size])):
                    read_as_everything(frame.payload)
                assert decoder.held < codec.FRAME_MAX, f"seed {seed}"
                del data[:size]
        except ProtocolError:
            pass
    assert rounds > 10


def read_as_everything(payload: bytes) -> None:
    for reader in (messages.parse_hello, messages.parse_exit, messages.parse_credit):
        with contextlib.suppress(ProtocolError):
            reader(payload)
    messages.parse_refusal(payload)
    messages.parse_stats(payload)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 12,
        codec.HEADER.pack(0x84, 0, codec.MAGIC, 1, codec.PAYLOAD_MAX + 1),
        codec.HEADER.pack(0x84, 0, codec.MAGIC, 1, 0xFFFFFFFF),
        codec.HEADER.pack(0x84, 1, codec.MAGIC, 1, 0),
        codec.HEADER.pack(0x84, 0, codec.MAGIC + 1, 1, 0),
        codec.HEADER.pack(0x84, 0, codec.MAGIC, 1, 0) + b"\0",
    ],
)
def test_wrong_frame_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(codec.Decoder().feed(data))


@pytest.mark.parametrize(
    ("kind", "stream", "size"), [(0, 1, 0), (256, 1, 0), (1, -1, 0), (1, 1, 32756)]
)
def test_frame_that_must_not_exist_is_not_encoded(kind: int, stream: int, size: int) -> None:
    with pytest.raises(ValueError, match="no such frame"):
        codec.encode(kind, stream, bytes(size))


# -- finding the answer to hello ------------------------------------------------------------------


@given(st.binary(max_size=500), st.binary(max_size=100), st.lists(st.integers(0, 60), max_size=20))
def test_sync_is_found_behind_anything(before: bytes, after: bytes, sizes: list[int]) -> None:
    nonce = bytes(range(200, 216))
    finder = codec.SyncFinder(nonce)
    mark = codec.SYNC_MARK + nonce
    rest: bytes | None = None
    for piece in pieces(before + mark + after, sizes):
        rest = finder.feed(piece) if rest is None else rest + piece
    expected = (before + mark + after).partition(mark)[2]
    assert rest == expected


def test_guest_that_never_answers_is_given_up_after_a_bounded_amount() -> None:
    finder = codec.SyncFinder(bytes(16))
    with pytest.raises(ProtocolError, match="does not answer"):
        for _ in range(100):
            assert finder.feed(b"x" * 65536) is None


# -- messages -------------------------------------------------------------------------------------


@given(st.binary(max_size=70_000), st.integers(1, 10))
def test_request_carries_its_body_in_order(body: bytes, kind: int) -> None:
    decoder = codec.Decoder()
    data = b"".join(messages.request(5, Kind(kind), body))
    first, *more = decoder.feed(data)
    assert first.type == codec.ToGuest.REQUEST
    assert first.payload[0] == kind
    assert int.from_bytes(first.payload[1:5], "big") == len(body)
    assert {f.type for f in more} <= {codec.ToGuest.BODY}
    assert first.payload[5:] + b"".join(f.payload for f in more) == body


def wanted(**changes: object) -> ExecRequest:
    return ExecRequest(**{"argv": (b"true",), "env": {}} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"argv": ()}, "needs at least a program"),
        ({"argv": (b"a\0b",)}, "zero byte"),
        ({"argv": (b"x" * 131_072,)}, "too long"),
        ({"argv": (b"",) * 400_001}, "too long"),
        ({"env": {b"": b"x"}}, "cannot be an environment variable"),
        ({"env": {b"A=B": b"x"}}, "cannot be an environment variable"),
        ({"env": {b"A": b"x\0"}}, "zero byte"),
        ({"cwd": "/a\0b"}, "zero byte"),
        ({"user": "\0"}, "zero byte"),
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"tty": True}, "not supported yet"),
    ],
)
def test_command_that_cannot_be_is_refused_on_the_host(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        messages.exec_body(wanted(**changes))


def test_body_over_the_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        list(messages.request(1, Kind.EXEC, bytes(messages.BODY_MAX + 1)))


@pytest.mark.parametrize("path", ["", "relative", "/a\0", "/" + "x" * 4096])
def test_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        messages.read_body(path)


def test_hello_is_scrubbed_and_bounded() -> None:
    lines = (
        "protocol=1\nagent=\x1b[31mred\nkernel=" + "k" * 900 + "\nmachine=x\u202ey\nboot_id=b\n"
        "root=overlay\ndata=none\ncapabilities=exec ping\nunknown=1\nno separator\n"
    )
    hello = messages.parse_hello(lines.encode() + b"\xff\xfe=\xff\n")
    assert hello.agent == "\\x1b[31mred"
    assert len(hello.kernel) <= 203
    assert hello.machine == "x\\u202ey"
    assert hello.capabilities == {"exec", "ping"}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"protocol=1\n",
        b"protocol=2\nagent=a\nkernel=k\nboot_id=b\nroot=r\ndata=d\n",
        b"protocol=x\nagent=a\nkernel=k\nboot_id=b\nroot=r\ndata=d\n",
        b"protocol=1\nagent=a\nkernel=k\nboot_id=b\nroot=r\ndata=d\nuptime_us=-1\n",
        b"x" * 4097,
    ],
)
def test_hello_that_cannot_be_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        messages.parse_hello(payload)


@pytest.mark.parametrize(
    "payload", [b"", b"\0\0\0\0", b"\x06\0\0\0\0", b"\0\0\0\1\0", b"\1" + bytes(4)]
)
def test_exit_that_cannot_be_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        messages.parse_exit(payload)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (Exit("exit", 0), 0),
        (Exit("exit", 255), 255),
        (Exit("signal", 11), 139),
        (Exit("timeout", 0), 124),
        (Exit("not_found", 2), 127),
        (Exit("not_executable", 13), 126),
        (Exit("refused", 1), 125),
        (Exit("lost", 0), 125),
    ],
)
def test_shell_status(how: Exit, status: int) -> None:
    assert how.shell_status == status
