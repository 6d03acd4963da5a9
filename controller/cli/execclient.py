"""The client side of `box exec` and `box run`: bytes between this terminal and a command in a
sandbox.

Everything imported here is paid for by every `box exec`, so it stays with C modules and our own
light ones. Output of the command is written byte for byte; nothing else from a guest is.
"""

from __future__ import annotations

import errno
import os

# The C half of `socket`: the Python half brings in enum and selectors, half an interpreter start.
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket
from binascii import b2a_base64

from controller import execframes as wire
from controller.cli.execrelay import Relay, refusal_from
from specs.errors import NotUp
from specs.names import check_name

READ_PIECE = 256 * 1024
HEAD_MAX = 64 * 1024
REPLY_MAX = 1024 * 1024
ANSWER_SECONDS = 60.0


class Wanted:
    """A command to `exec` or to `run` (`verb`): `argv` as bytes, `stdin` if ours is forwarded,
    `more` other fields.
    """

    __slots__ = ("argv", "more", "name", "stdin", "verb")

    def __init__(
        self,
        verb: str,
        name: str,
        argv: list[bytes],
        *,
        stdin: bool,
        more: dict[str, object] | None = None,
    ) -> None:
        self.verb = verb
        self.name = check_name(name)
        self.argv = argv
        self.stdin = stdin
        self.more = more or {}


def simple_form(arguments: list[str]) -> Wanted | None:
    """`exec NAME [-i] -- CMD...` or `exec -i NAME -- CMD...`, or run; None for what argparse must
    see.
    """
    try:
        split = arguments.index("--")
    except ValueError:
        return None
    words = arguments[1:split]
    command = arguments[split + 1 :]
    names = [word for word in words if word not in ("-i", "--stdin")]
    if len(names) != 1 or names[0].startswith("-") or not command or len(words) > 2:
        return None
    return Wanted(
        arguments[0], names[0], [os.fsencode(word) for word in command], stdin=len(words) == 2
    )


def run(wanted: Wanted) -> int:
    """The exit status for the shell. Raises BoxError when the command could not be started."""
    connection = _connect()
    received = _start(connection, wanted)
    return Relay(connection, received, wanted.stdin).carry()


def _connect() -> Socket:
    home = os.environ.get("BOX_HOME") or os.path.expanduser("~/.box")
    path = f"{home}/box.sock"
    client = Socket(AF_UNIX, SOCK_STREAM)
    client.settimeout(ANSWER_SECONDS)
    folder = -1
    try:
        if len(os.fsencode(path)) > 107:  # unix(7): a longer path goes through its directory
            folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            client.connect(f"/proc/self/fd/{folder}/box.sock")
        else:
            client.connect(path)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED):
            raise NotUp(
                "the controller is not running", where=path, fix="start it: box controller"
            ) from None
        raise NotUp(f"cannot reach the controller: {problem.strerror}", where=path) from None
    finally:
        if folder >= 0:
            os.close(folder)
    return client


def _start(connection: Socket, wanted: Wanted) -> bytes:
    """Send the request; bytes of the stream that came with the answer."""
    body = _body(wanted)
    head = (
        f"POST /v1/sandboxes/{wanted.name}/{wanted.verb} HTTP/1.1\r\nHost: box\r\n"
        f"Connection: Upgrade\r\nUpgrade: {wire.PROTOCOL}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        _send_all(connection, head.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += _receive_more(connection, answer, HEAD_MAX)
        answer_head, _, rest = answer.partition(b"\r\n\r\n")
        if answer_head[:13] == b"HTTP/1.1 101 ":
            return rest
        length = _content_length(answer_head)
        while len(rest) < length:
            rest += _receive_more(connection, rest, REPLY_MAX)
    except TimeoutError:
        raise NotUp(
            f"no answer within {ANSWER_SECONDS:.0f} s", fix=f"box describe {wanted.name}"
        ) from None
    except OSError as problem:
        raise NotUp(f"the controller hung up: {problem.strerror}") from None
    raise refusal_from(rest)


def _send_all(connection: Socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return  # refused before it was read to the end: the reason waits to be read


def _body(wanted: Wanted) -> bytes:
    # Base64 needs no escapes, so the usual request is JSON without importing json.
    argv = b'","'.join([b2a_base64(word, newline=False) for word in wanted.argv])
    more = b""
    if wanted.more:
        from json import dumps

        more = b"," + dumps(wanted.more).encode()[1:-1]
    stdin = b"true" if wanted.stdin else b"false"
    return b'{"argv_b64":["' + argv + b'"],"stdin":' + stdin + more + b"}"


def _receive_more(connection: Socket, already: bytes, limit: int) -> bytes:
    piece = connection.recv(READ_PIECE)
    if not piece or len(already) > limit:
        raise NotUp("the controller hung up before it answered", fix="see the controller's log")
    return piece


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:") and line[15:].strip().isdigit():
            return int(line[15:])
    return 0
