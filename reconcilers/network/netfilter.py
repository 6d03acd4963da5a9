"""Asks netfilter of the calling thread's namespace, or of a socket's: what changed, what was
counted.

nfnetlink itself, because starting nft(8) costs as much as a whole readback. It must not know what
any table is for, and changes nothing but to forget connections.
"""

from __future__ import annotations

import os
import socket
import struct

from reconcilers.network import rtmessages as rt
from specs.errors import HostError

# include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h
_NFNL_SUBSYS_CTNETLINK, _NFNL_SUBSYS_NFTABLES = 1 << 8, 10 << 8
_NFT_MSG_NEWGEN, _NFT_MSG_GETGEN, _NFTA_GEN_ID = 15, 16, 1
_IPCTNL_MSG_CT_DELETE = 2
_NFT_MSG_NEWOBJ, _NFT_MSG_GETOBJ, _NFT_OBJECT_COUNTER = 18, 19, 1
_NFTA_OBJ_TABLE, _NFTA_OBJ_NAME, _NFTA_OBJ_TYPE, _NFTA_OBJ_DATA = 1, 2, 3, 4
_NFTA_COUNTER_PACKETS = 2
_AF_INET_TABLES = 1  # NFPROTO_INET
_NETLINK_NETFILTER = 12
_NLM_F_ACK = 4
_TIMEOUT = 5.0  # seconds; the kernel answers at once or not at all


def open_socket() -> socket.socket:
    return socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER
    )


class Netfilter:
    """One socket; a context that closes it. Each method raises HostError, after which the socket
    may still hold a part of an answer: it is of no use any more.
    """

    def __init__(self, opened: socket.socket | None = None) -> None:
        self._socket = opened or open_socket()
        self._socket.settimeout(_TIMEOUT)
        self._sequence = 0

    def __enter__(self) -> Netfilter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def generation(self) -> int:
        """A number of the namespace that changes with every transaction on any table."""
        for kind, payload in self._ask(_NFNL_SUBSYS_NFTABLES | _NFT_MSG_GETGEN, 0):
            if kind == _NFNL_SUBSYS_NFTABLES | _NFT_MSG_NEWGEN:
                return int.from_bytes(rt.attributes(payload, 4)[_NFTA_GEN_ID])
        raise HostError("the kernel does not tell nftables' generation")

    def counts(self, table: str) -> dict[str, int]:
        """Packets of each named counter of a table; empty when there is no such table."""
        name = table.encode() + b"\0"
        wanted = _attribute(_NFTA_OBJ_TABLE, name)
        wanted += _attribute(_NFTA_OBJ_TYPE, struct.pack(">I", _NFT_OBJECT_COUNTER))
        found = {}
        asked = _NFNL_SUBSYS_NFTABLES | _NFT_MSG_GETOBJ
        for kind, payload in self._ask(asked, rt.NLM_F_DUMP, wanted):
            if kind != _NFNL_SUBSYS_NFTABLES | _NFT_MSG_NEWOBJ:
                continue
            facts = rt.attributes(payload, 4)
            if facts.get(_NFTA_OBJ_TABLE) == name:
                packets = rt.attributes(facts[_NFTA_OBJ_DATA])[_NFTA_COUNTER_PACKETS]
                found[facts[_NFTA_OBJ_NAME].rstrip(b"\0").decode()] = int.from_bytes(packets)
        return found

    def forget_connections(self) -> None:
        """Forget every connection that is tracked, so that each packet is judged anew."""
        self._ask(_NFNL_SUBSYS_CTNETLINK | _IPCTNL_MSG_CT_DELETE, _NLM_F_ACK)

    def _ask(self, kind: int, flags: int, attributes: bytes = b"") -> list[tuple[int, bytes]]:
        """(type, payload) of each message of the answer."""
        found: list[tuple[int, bytes]] = []
        self._sequence += 1
        body = struct.pack("=BBH", _AF_INET_TABLES, 0, 0) + attributes  # struct nfgenmsg
        head = rt.head(len(body), kind, rt.NLM_F_REQUEST | flags, self._sequence)
        try:
            self._socket.send(head + body)
            while True:
                for answer, _, sequence, payload in rt.messages(self._socket.recv(1 << 18)):
                    if sequence != self._sequence:
                        continue
                    if answer in (rt.NLMSG_ERROR, rt.NLMSG_DONE):
                        if number := rt.error_of(payload):
                            raise OSError(number, os.strerror(number))
                        return found
                    found.append((answer, payload))
                if found and flags & rt.NLM_F_DUMP != rt.NLM_F_DUMP:
                    return found
        except OSError as error:
            raise HostError(f"netfilter does not answer: {error.strerror or error}") from error


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def generation() -> int:
    """That of the calling thread's namespace. Raises HostError, as the two below do."""
    with Netfilter() as kernel:
        return kernel.generation()


def counts(table: str) -> dict[str, int]:
    with Netfilter() as kernel:
        return kernel.counts(table)


def forget_connections() -> None:
    with Netfilter() as kernel:
        kernel.forget_connections()
