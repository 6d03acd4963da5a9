"""A listener that must be reached from where it may be, and from nowhere else.

`python canary.py LOG WORD ADDRESS PORT...` answers WORD over TCP and UDP at these ports, and writes
a line for everything that arrives: time, protocol, its own address, port, the other's address. With
the address `::` it listens on every address of both families. It is a program of its own, to be run
in any namespace; it imports nothing of the project.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time
from typing import TextIO

_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50  # include/uapi/linux/in6.h


def plain(address: str) -> str:
    return address.removeprefix("::ffff:").partition("%")[0]


def main(path: str, word: str, address: str, ports: list[int]) -> None:
    answer = f"{word}\n".encode()
    poll = selectors.DefaultSelector()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with open(path, "a", buffering=1) as log:
        for port in ports:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                listening = socket.socket(family, kind)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                    listening.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
                listening.bind((address, port))
                listening.setblocking(False)
                if kind == socket.SOCK_STREAM:
                    listening.listen(64)
                poll.register(listening, selectors.EVENT_READ, (kind, port))
        print("ready", file=log)
        while True:
            for key, _ in poll.select():
                kind, port = key.data
                take = stream if kind == socket.SOCK_STREAM else datagram
                take(key.fileobj, port, answer, log)  # type: ignore[arg-type]


def stream(listening: socket.socket, port: int, answer: bytes, log: TextIO) -> None:
    try:
        connection, peer = listening.accept()
        own = connection.getsockname()[0]
        print(f"{time.time():.3f} tcp {plain(own)} {port} {plain(peer[0])}", file=log)
        connection.sendall(answer)
        connection.close()
    except OSError:
        pass


def datagram(listening: socket.socket, port: int, answer: bytes, log: TextIO) -> None:
    try:
        _, ancillary, _, peer = listening.recvmsg(2048, 256)
        own, back = listening.getsockname()[0], []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):
                own = socket.inet_ntop(socket.AF_INET6, data[:16])
                back = [(level, kind, data[:16] + struct.pack("=I", 0))]
        print(f"{time.time():.3f} udp {plain(own)} {port} {plain(peer[0])}", file=log)
        listening.sendmsg([answer], back, 0, peer)
    except OSError:
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], [int(each) for each in sys.argv[4:]])
