"""Ethernet frames made by hand: what a process in a VMM's network namespace could put on its link,
or any guest on its card. Each carries one UDP datagram with a word in it (RFC 768, 791, 8200).
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from . import places

UDP = 17
SOURCE_PORT = 40000
IPV4, IPV6 = 0x0800, 0x86DD  # EtherTypes


@dataclass(frozen=True)
class Datagram:
    """Who says it is from whom, to whom it goes, and the word it carries."""

    source: str
    target: str
    port: int
    word: str
    source_mac: str
    target_mac: str


def frame(sent: Datagram) -> bytes:
    """The bytes on the wire, checksums included."""
    source, target = ipaddress.ip_address(sent.source), ipaddress.ip_address(sent.target)
    payload = f"{sent.word}\n".encode()
    length = 8 + len(payload)
    head = struct.pack("!HHHH", SOURCE_PORT, sent.port, length, 0)
    pseudo = source.packed + target.packed + struct.pack("!II", length, UDP)
    total = _checksum(pseudo + head + payload) or 0xFFFF
    datagram = head[:6] + struct.pack("!H", total) + payload
    kind = IPV6 if source.version == 6 else IPV4
    macs = bytes.fromhex((sent.target_mac + sent.source_mac).replace(":", ""))
    return macs + struct.pack("!H", kind) + _ip(source.packed, target.packed, datagram)


def _ip(source: bytes, target: bytes, content: bytes) -> bytes:
    if len(source) == 16:
        return struct.pack("!IHBB", 6 << 28, len(content), UDP, 64) + source + target + content
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(content), 1, 0, 64, UDP, 0) + source + target
    return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + content


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def send(sent: Iterable[Datagram], say: places.Say) -> None:
    """A task for places.start: sends each on every device but lo, and says (device, count)."""
    frames = [frame(each) for each in sent]
    for _, device in socket.if_nameindex():
        if device == "lo":
            continue
        done = 0
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link, contextlib.suppress(OSError):
            link.bind((device, 0))
            for each in frames:
                done += link.send(each) == len(each)
        say((device, done))


def plain(wanted: Iterable[tuple[str, str, int, str]], say: places.Say) -> None:
    """A task for places.start: says (kind, address, port, word) outcomes of ordinary sockets."""
    for kind, address, port, word in wanted:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        stream = kind == "tcp"
        outcome = "sent"
        try:
            with socket.socket(family, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as made:
                made.settimeout(1)
                made.connect((address, port))
                made.send(f"{word}\n".encode())
        except OSError as error:
            outcome = type(error).__name__ if error.errno is None else str(error.strerror)
        say(outcome)
