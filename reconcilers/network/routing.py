"""Asks the kernel for links, addresses, routes and rules of the calling thread's namespace.

A pass over a running sandbox asks in three namespaces, so this speaks netlink itself: pyroute2,
which makes all changes, takes many times as long to take an answer apart. It changes nothing.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from reconcilers.network import rtmessages as rt
from reconcilers.network.rtmessages import Address, Link, Route, Rule

T = TypeVar("T")
_NETLINK_ROUTE = 0
_TIMEOUT = 5.0  # seconds; the kernel answers at once or not at all
_TRIES = 5
_BUFFER = 1 << 18  # bytes; the kernel fills at most 32 KiB of it at a time (netlink_dump)


def open_socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)


class Routing:
    """One routing socket, of the namespace it was opened in; a context that closes it. Each method
    raises OSError.
    """

    def __init__(self, opened: socket.socket | None = None) -> None:
        self._socket = opened or open_socket()
        self._socket.settimeout(_TIMEOUT)
        self._sequence = 0

    def __enter__(self) -> Routing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def links(self) -> list[Link]:
        return self._dump(rt.RTM_GETLINK, rt.link)

    def link(self, name: str) -> Link | None:
        """The link with this name; None when there is none."""
        return next((each for each in self.links() if each.name == name), None)

    def addresses(self) -> list[Address]:
        return self._dump(rt.RTM_GETADDR, rt.address)

    def routes(self, *tables: int) -> list[Route]:
        """Those of these tables, or of every table, in both families."""
        found = self._dump(rt.RTM_GETROUTE, rt.route, lambda each: rt.may_lie_in(each, tables))
        known = (socket.AF_INET, socket.AF_INET6)
        return [
            each for each in found if each.family in known and (not tables or each.table in tables)
        ]

    def rules(self) -> list[Rule]:
        """Of both families; a multicast router's own ones (ipmr) are none of these."""
        known = (socket.AF_INET, socket.AF_INET6)
        return [each for each in self._dump(rt.RTM_GETRULE, rt.rule) if each.family in known]

    def _dump(
        self,
        kind: int,
        parse: Callable[[bytes], T],
        keep: Callable[[bytes], bool] = lambda each: True,
    ) -> list[T]:
        for _ in range(_TRIES):
            found, whole = self._once(kind)
            if whole:
                return [parse(payload) for payload in found if keep(payload)]
        raise OSError(errno.EAGAIN, "it changes faster than it can be read")

    def _once(self, kind: int) -> tuple[list[bytes], bool]:
        """Every object, and whether nothing changed meanwhile (netlink(7), NLM_F_DUMP_INTR)."""
        self._sequence += 1
        self._socket.send(rt.request(kind, self._sequence))
        found: list[bytes] = []
        whole = True
        while True:
            for answer, flags, sequence, payload in rt.messages(self._socket.recv(_BUFFER)):
                if sequence != self._sequence:
                    continue
                whole = whole and not flags & rt.NLM_F_DUMP_INTR
                if answer in (rt.NLMSG_ERROR, rt.NLMSG_DONE):
                    if number := rt.error_of(payload):
                        raise OSError(number, os.strerror(number))
                    return found, whole
                if answer == rt.ANSWERS[kind]:
                    found.append(payload)
