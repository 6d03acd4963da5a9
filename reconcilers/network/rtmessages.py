"""The kernel's routing messages as values: links, addresses, routes and rules out of bytes.

Pure. rtnetlink(7), netlink(7) and include/uapi/linux/{netlink,rtnetlink,if_link,if_addr,
fib_rules}.h say what the bytes mean. Only what a sandbox's network is judged by is taken out; it
must not know what it should be.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP, NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETRULE = 18, 22, 26, 34
ANSWERS = {RTM_GETLINK: 16, RTM_GETADDR: 20, RTM_GETROUTE: 24, RTM_GETRULE: 32}  # RTM_NEW*

IFF_UP = 1
_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg, struct fib_rule_hdr
_HOP = struct.Struct("=HBBi")  # struct rtnexthop
_U32 = struct.Struct("=I")
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_AF_SPEC, _IFLA_EXT_MASK = 18, 26, 29
# A link's settings as /proc/sys/net calls them, and where they lie in its attributes: their place
# in an array of numbers (include/uapi/linux/ip.h counts from 1, ipv6.h from 0)
_SETTINGS: Mapping[str, tuple[int, int, Mapping[str, int]]] = {
    "ipv4": (socket.AF_INET, 1, {
        "accept_redirects": 3, "send_redirects": 5, "rp_filter": 7, "accept_source_route": 8,
        "arp_ignore": 18,
    }),
    "ipv6": (socket.AF_INET6, 2, {"accept_ra": 3, "accept_redirects": 4}),
}  # fmt: skip
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _IFLA_BR_AGEING_TIME = 1, 2, 4
_RTEXT_FILTER_SKIP_STATS = 1 << 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_METRICS, _RTA_MULTIPATH, _RTA_TABLE = (
    1, 4, 5, 6, 8, 9, 15,
)  # fmt: skip
_RTAX_MTU = 2
_RT_TABLE_COMPAT = 252  # the number of the table is larger than a byte, and in an attribute
_FRA_IIFNAME, _FRA_GOTO, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE, _FRA_FWMASK = 3, 4, 6, 10, 15, 16
_NESTED = 0x3FFF  # an attribute's type without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_NOWHERE: Mapping[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


@dataclass(frozen=True, slots=True)
class Link:
    """`master` and `peer` are numbers of links, 0 for none; a veth's peer may be in another
    namespace. `mtu` in bytes. `kind` as ip-link(8) calls it, empty for a physical one.
    `learns`: it is a bridge, and keeps an entry for each MAC that it saw as a source. `families` is
    what each of them has set for it: see `setting`."""

    index: int
    name: str
    flags: int
    mtu: int
    master: int
    peer: int
    kind: str
    learns: bool = False
    families: bytes = b""

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)

    def setting(self, family: str, name: str) -> str | None:
        """As /proc/sys/net/FAMILY/conf/LINK/NAME shows it; None for one that is not known, or that
        the link has not. Raises KeyError for one that this module does not know.
        """
        number, array, places = _SETTINGS[family]
        place = places[name] * 4
        numbers = attributes(attributes(self.families).get(number, b"")).get(array, b"")
        if place + 4 > len(numbers):
            return None
        return str(int.from_bytes(numbers[place : place + 4], sys.byteorder, signed=True))


@dataclass(frozen=True, slots=True)
class Address:
    """`device` is the number of its link; `text` has no prefix length."""

    device: int
    family: int
    text: str
    prefix: int
    scope: int


@dataclass(frozen=True, slots=True)
class Route:
    """`kind` is RTN_*, `scope` RT_SCOPE_*, `to` ADDRESS/LENGTH.

    `device` is 0 and `gateway` empty where there is none. `hops` are the devices of a route with
    several ways; `mtu` in bytes, 0 when the route says none.
    """

    family: int
    kind: int
    scope: int
    table: int
    to: str
    length: int
    device: int
    gateway: str
    priority: int | None
    hops: tuple[int, ...]
    mtu: int


@dataclass(frozen=True, slots=True)
class Rule:
    """An `ip rule`; `device` is the name that packets must come in by, empty for any."""

    family: int
    action: int
    priority: int
    device: str
    mark: int
    mask: int
    table: int
    goto: int


def request(kind: int, sequence: int) -> bytes:
    """A dump of every object of a kind (RTM_GET*), of all families."""
    if kind == RTM_GETLINK:
        mask = _ATTRIBUTE.pack(8, _IFLA_EXT_MASK) + _U32.pack(_RTEXT_FILTER_SKIP_STATS)
        body = _LINK.pack(0, 0, 0, 0, 0) + mask
    elif kind == RTM_GETADDR:
        body = _ADDRESS.pack(0, 0, 0, 0, 0)
    else:
        body = _ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)
    return head(len(body), kind, NLM_F_REQUEST | NLM_F_DUMP, sequence) + body


def head(length: int, kind: int, flags: int, sequence: int) -> bytes:
    """The head of a request whose body has so many bytes."""
    return _HEAD.pack(_HEAD.size + length, kind, flags, sequence, 0)


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, sequence, payload) of each whole message; what is cut off is left out."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, kind, flags, sequence, _ = _HEAD.unpack_from(data, at)
        if not _HEAD.size <= length <= len(data) - at:
            return
        yield kind, flags, sequence, data[at + _HEAD.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes, at: int = 0) -> dict[int, bytes]:
    """Attributes from `at` on, by type; what is cut off is left out."""
    found = {}
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not 4 <= length <= len(data) - at:
            break
        found[kind & _NESTED] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def link(payload: bytes) -> Link:
    """Raises OSError (EBADMSG) for a message that is none, as the three below do."""
    _, _, index, flags, _ = _unpacked(_LINK, payload)
    found = attributes(payload, _LINK.size)
    about = attributes(found.get(_IFLA_LINKINFO, b""))
    kind = _text(about.get(_IFLA_INFO_KIND))
    bridge = attributes(about.get(_IFLA_INFO_DATA, b"")) if kind == "bridge" else {}
    return Link(
        index,
        _text(found.get(_IFLA_IFNAME)),
        flags,
        _number(found.get(_IFLA_MTU)),
        _number(found.get(_IFLA_MASTER)),
        _number(found.get(_IFLA_LINK)),
        kind,
        kind == "bridge" and bridge.get(_IFLA_BR_AGEING_TIME) != bytes(4),
        found.get(_IFLA_AF_SPEC, b""),
    )


def address(payload: bytes) -> Address:
    family, prefix, _, scope, device = _unpacked(_ADDRESS, payload)
    found = attributes(payload, _ADDRESS.size)
    packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS, b"")
    return Address(device, family, _address(family, packed), prefix, scope)


def route(payload: bytes) -> Route:
    family, length, _, _, table, _, scope, kind, _ = _unpacked(_ROUTE, payload)
    found = attributes(payload, _ROUTE.size)
    priority = found.get(_RTA_PRIORITY)
    metrics = attributes(found.get(_RTA_METRICS, b""))
    return Route(
        family,
        kind,
        scope,
        _number(found.get(_RTA_TABLE)) or table,
        f"{_address(family, found.get(_RTA_DST, b''))}/{length}",
        length,
        _number(found.get(_RTA_OIF)),
        _address(family, found[_RTA_GATEWAY]) if _RTA_GATEWAY in found else "",
        None if priority is None else _number(priority),
        tuple(_hops(found.get(_RTA_MULTIPATH, b""))),
        _number(metrics.get(_RTAX_MTU)),
    )


def may_lie_in(payload: bytes, tables: Collection[int]) -> bool:
    """False for a route that is plainly in none of these tables; taking it apart costs more."""
    return not tables or payload[4:5] == b"" or payload[4] in (*tables, _RT_TABLE_COMPAT)


def rule(payload: bytes) -> Rule:
    family, _, _, _, table, _, _, action, _ = _unpacked(_ROUTE, payload)
    found = attributes(payload, _ROUTE.size)
    return Rule(
        family,
        action,
        _number(found.get(_FRA_PRIORITY)),
        _text(found.get(_FRA_IIFNAME)),
        _number(found.get(_FRA_FWMARK)),
        _number(found.get(_FRA_FWMASK)),
        _number(found.get(_FRA_TABLE)) or table,
        _number(found.get(_FRA_GOTO)),
    )


def error_of(payload: bytes) -> int:
    """The errno in an NLMSG_ERROR or NLMSG_DONE, 0 for none."""
    return -int.from_bytes(payload[:4], sys.byteorder, signed=True)


def _hops(data: bytes) -> Iterator[int]:
    at = 0
    while at + _HOP.size <= len(data):
        length, _, _, device = _HOP.unpack_from(data, at)
        if not _HOP.size <= length <= len(data) - at:
            return
        yield device
        at += (length + 3) & ~3


def _unpacked(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    try:
        return layout.unpack_from(payload)
    except struct.error as error:
        raise OSError(errno.EBADMSG, "the kernel sent a message that is cut off") from error


def _number(value: bytes | None) -> int:
    return _U32.unpack_from(value)[0] if value is not None and len(value) >= 4 else 0


def _text(value: bytes | None) -> str:
    return value.partition(b"\0")[0].decode("utf-8", "replace") if value is not None else ""


def _address(family: int, packed: bytes) -> str:
    """Empty `packed` stands for the address of zeros; what is no IP address for itself, in hex."""
    if not packed and family in _NOWHERE:
        return _NOWHERE[family]
    try:
        return socket.inet_ntop(family, packed)
    except (OSError, ValueError):
        return packed.hex()
