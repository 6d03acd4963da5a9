"""What the frames carry: requests as the host builds them, answers as the guest sends them.

Pure. Every string from the guest is cut to a length and loses what a terminal would act on before
anybody sees it; every number is checked against what it may be. It must not do I/O or keep state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from agent.codec import NONCE_SIZE, PAYLOAD_MAX, ToGuest, encode
from specs.errors import ProtocolError, UsageError
from specs.text import visible

PROTOCOL = 1
TOKEN_SIZE = 32
BODY_MAX = 8 << 20
STRINGS_MAX = 400_000
OUTPUT_WINDOW = 256 * 1024
STDIN_WINDOW = 64 * 1024
HELLO_MAX = 4096
TAG_MAX = 36  # bytes, struct virtio_fs_config
TEXT_MAX = 512
ARGUMENT_MAX = 128 * 1024 - 1
"""Longest argument or NAME=value execve(2) takes (MAX_ARG_STRLEN), without its ending zero."""


class Kind(IntEnum):
    """Kinds of request."""

    PING = 1
    EXEC = 2
    READ = 3
    WRITE = 4
    RESIZE = 5
    CLOCK = 6
    RESEED = 7
    ROTATE = 8
    SHUTDOWN = 9
    STATS = 10
    MOUNT = 11
    NETWORK = 12
    EXPORT = 13
    IMPORT = 14
    CHANGES = 15
    MERGE = 16
    EXPORT_ROOT = 17


@dataclass(frozen=True)
class ExecRequest:
    """A command to run. argv and env are bytes and reach execve(2) unchanged.

    An empty `cwd` is the user's home; `user` is NAME, UID, NAME:GROUP or UID:GID of the guest;
    `timeout_ms` 0 is unlimited. `tty` is refused: not supported yet.
    """

    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes]
    cwd: str = ""
    user: str = "root"
    stdin: bool = False
    timeout_ms: int = 0
    tty: bool = False


@dataclass(frozen=True)
class Exit:
    """How a command ended. `value` is the status, the signal, or the guest's errno.

    `kind` is exit, signal, timeout, not_found, not_executable, refused (the guest would not start
    it) or lost (the channel broke: nobody knows). `message` says why in words, or is empty.
    """

    kind: str
    value: int
    message: str = ""

    @property
    def shell_status(self) -> int:
        """0-255 as a shell reports it: 124 timeout, 125 box, 126, 127, 128+N for signal N."""
        fixed = {"timeout": 124, "not_executable": 126, "not_found": 127}
        if self.kind == "exit":
            return self.value
        if self.kind == "signal":
            return 128 + self.value
        return fixed.get(self.kind, 125)


@dataclass(frozen=True)
class Hello:
    """What the guest says about itself. Text for people and comparisons; proof of nothing."""

    protocol: int
    agent: str
    kernel: str
    machine: str
    boot_id: str
    capabilities: frozenset[str]
    root: str
    data: str
    uptime_us: int = 0


def scrub(raw: bytes, limit: int = TEXT_MAX) -> str:
    """Guest bytes as text that is safe to show: bounded, without control or format characters."""
    return visible(raw[: limit * 4].decode("utf-8", "replace"), limit)


# -- to the guest ---------------------------------------------------------------------------------


def hello(nonce: bytes, token: bytes, *, first: bool) -> bytes:
    """The HELLO frame. Raises ValueError for a nonce or token of the wrong size."""
    if len(nonce) != NONCE_SIZE or len(token) != TOKEN_SIZE:
        raise ValueError("the nonce is 16 bytes and the token 32")
    payload = nonce + struct.pack(">HHB", PROTOCOL, PROTOCOL, 1 if first else 0) + token
    return encode(ToGuest.HELLO, 0, payload)


def request(stream: int, kind: Kind, body: bytes = b"") -> Iterator[bytes]:
    """A request as frames, to be sent in order. Raises UsageError for a body over BODY_MAX."""
    if len(body) > BODY_MAX:
        raise UsageError(
            f"the request is too long: {len(body)} bytes, the limit is {BODY_MAX}",
            fix="pass large data through standard input or a file",
        )
    view = memoryview(body)
    head = struct.pack(">BI", kind, len(body))
    room = PAYLOAD_MAX - len(head)
    yield encode(ToGuest.REQUEST, stream, head + view[:room])
    for start in range(room, len(body), PAYLOAD_MAX):
        yield encode(ToGuest.BODY, stream, view[start : start + PAYLOAD_MAX])


def changes_body(*, with_data: bool) -> bytes:
    """The body of CHANGES."""
    return struct.pack(">IB", OUTPUT_WINDOW, int(with_data))


def merge_body(*, theirs: bool, dry_run: bool) -> bytes:
    """The body of MERGE."""
    return struct.pack(">IB", OUTPUT_WINDOW, theirs | dry_run << 1)


def exec_body(wanted: ExecRequest, window: int = OUTPUT_WINDOW) -> bytes:
    """The body of EXEC. Raises UsageError for what no kernel could start."""
    if wanted.tty:
        raise UsageError("a terminal for the command is not supported yet")
    if not wanted.argv:
        raise UsageError("a command needs at least a program name")
    if not 0 <= wanted.timeout_ms <= 0xFFFFFFFF:
        raise UsageError("timeout_ms must be between 0 and 4294967295")
    environment = [name + b"=" + value for name, value in wanted.env.items()]
    for name in wanted.env:
        if not name or b"=" in name:
            raise UsageError(f"{scrub(name, 60)!r} cannot be an environment variable's name")
    strings = [wanted.cwd.encode(), wanted.user.encode(), *wanted.argv, *environment]
    for text in strings:
        if b"\0" in text:
            raise UsageError(f"{scrub(text, 60)!r} holds a zero byte, which argv cannot carry")
        if len(text) > ARGUMENT_MAX:
            raise UsageError(
                f"argument list too long: one argument has {len(text)} bytes,"
                f" Linux takes at most {ARGUMENT_MAX}",
                fix="pass large data through standard input or a file",
            )
    if len(strings) > STRINGS_MAX:
        raise UsageError(f"argument list too long: {len(strings)} arguments and variables")
    counts = (len(wanted.argv), len(environment))
    flags = 1 if wanted.stdin else 0
    head = struct.pack(">IIIBII", wanted.timeout_ms, window, window, flags, *counts)
    return head + b"\0".join(strings) + b"\0"


def read_body(path: str, window: int = OUTPUT_WINDOW) -> bytes:
    """The body of READ. Raises UsageError."""
    return struct.pack(">I", window) + _path(path)


def write_body(path: str, size: int, mode: int, uid: int, gid: int) -> bytes:
    """The body of WRITE. Raises UsageError."""
    if not 0 <= mode <= 0o7777 or not 0 <= uid < 2**32 - 1 or not 0 <= gid < 2**32 - 1:
        raise UsageError(f"mode {mode:o}, uid {uid} or gid {gid} is out of range")
    return struct.pack(">IIIQ", mode, uid, gid, size) + _path(path)


def mount_body(tag: str, path: str, *, readonly: bool) -> bytes:
    """The body of MOUNT. Raises UsageError."""
    name = tag.encode()
    if not 0 < len(name) <= TAG_MAX or b"\0" in name:
        raise UsageError(f"{visible(tag)!r} cannot be the tag of a shared directory")
    return name + b"\0" + _path(path) + (b"ro\0" if readonly else b"rw\0")


def _path(path: str) -> bytes:
    raw = path.encode("utf-8", "surrogateescape")
    if not raw.startswith(b"/") or b"\0" in raw or len(raw) > 4095:
        raise UsageError(f"{visible(path)!r} is not an absolute path")
    return raw + b"\0"


# -- from the guest -------------------------------------------------------------------------------


def parse_hello(payload: bytes) -> Hello:
    """HELLO_ACK's payload. Raises ProtocolError if it is too long or lacks what must be there."""
    if len(payload) > HELLO_MAX:
        raise ProtocolError("the guest's hello is too long")
    values = _pairs(payload)
    missing = {"protocol", "agent", "kernel", "boot_id", "root", "data"} - values.keys()
    if missing:
        raise ProtocolError(f"the guest's hello lacks {', '.join(sorted(missing))}")
    protocol = _number(values["protocol"])
    if protocol != PROTOCOL:
        raise ProtocolError(f"the guest speaks protocol {protocol}, not {PROTOCOL}")
    return Hello(
        protocol=protocol,
        agent=values["agent"],
        kernel=values["kernel"],
        machine=values.get("machine", ""),
        boot_id=values["boot_id"],
        capabilities=frozenset(values.get("capabilities", "").split()),
        root=values["root"],
        data=values["data"],
        uptime_us=_number(values.get("uptime_us", "0")),
    )


def parse_stats(body: bytes) -> dict[str, str]:
    """The body of a STATS reply: at most 64 short pairs."""
    return _pairs(body[:HELLO_MAX])


def _pairs(payload: bytes) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in payload.split(b"\n")[:64]:
        key, separator, value = line.partition(b"=")
        if separator:
            pairs[scrub(key, 32)] = scrub(value, 200)
    return pairs


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ProtocolError(f"the guest sent {text!r} where a number belongs")
    return int(text)


_REFUSALS = {
    1: "the agent in this guest speaks another protocol version",
    2: "the guest's agent does not accept this token",
    3: "the guest's agent has no token yet: nobody made the first connection",
    4: "the guest's agent calls our hello malformed",
}


def parse_refusal(payload: bytes) -> str:
    """REFUSED's payload in words."""
    known = _REFUSALS.get(payload[0]) if payload else None
    return known or f"the guest's agent refuses: {scrub(payload[1:])}"


_EXIT_KINDS = ("exit", "signal", "timeout", "not_found", "not_executable", "refused")


def parse_exit(payload: bytes) -> Exit:
    """EXIT's payload. Raises ProtocolError for a kind or number that cannot be."""
    if len(payload) < 5:
        raise ProtocolError("the guest sent an exit that is too short")
    number, value = struct.unpack_from(">BI", payload)
    if number >= len(_EXIT_KINDS):
        raise ProtocolError("the guest sent an exit of an unknown kind")
    kind = _EXIT_KINDS[number]
    low, high = (1, 64) if kind == "signal" else (0, 255)
    if not low <= value <= high:
        raise ProtocolError(f"the guest sent {kind} {value}, which cannot be")
    return Exit(kind, value, scrub(payload[5:]))


def parse_credit(payload: bytes) -> int:
    """The guest's CREDIT for stdin, in bytes. Raises ProtocolError."""
    if len(payload) != 5:
        raise ProtocolError("the guest sent a credit of the wrong size")
    channel, amount = struct.unpack(">BI", payload)
    if channel != 0 or not 1 <= amount <= STDIN_WINDOW:
        raise ProtocolError("the guest sent a credit that cannot be")
    return int(amount)
