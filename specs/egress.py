"""What a bridged sandbox may reach: entries of the Boxfile's `egress` as values.

Pure parsing, with the mistake and its correction in words. What is never reachable, and what only
an entry of its own opens, is decided by whoever makes rules of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from specs.errors import NotAllowed
from specs.text import visible

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ENTRIES_MAX = 256  # each is a rule that packets are compared with one after the other

# "[2001:db8::1]:443" or "192.0.2.0/24:443"; what stands where is checked afterwards
_ENTRY = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<four>[^:\[\]]*)):(?P<port>[^:]*)")
# RFC 6890: no router ever forwards to these.
_NEVER: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "stands for no address"),
    ("127.0.0.0/8", "is the guest itself, whoever says it"),
    ("224.0.0.0/4", "is multicast, which is not forwarded"),
    ("255.255.255.255/32", "is a broadcast, which is not forwarded"),
    ("::/128", "stands for no address"),
    ("::1/128", "is the guest itself, whoever says it"),
    ("::ffff:0.0.0.0/96", "is an IPv4 address in disguise: write it as IPv4"),
    ("fe80::/10", "is link-local, which is not forwarded"),
    ("ff00::/8", "is multicast, which is not forwarded"),
)
_NEVER_NETWORKS = tuple((ipaddress.ip_network(text), why) for text, why in _NEVER)


@dataclass(frozen=True, slots=True)
class Entry:
    """One destination: every address of `network`, at one port, over TCP and UDP."""

    network: Network
    port: int

    @property
    def single(self) -> bool:
        """Whether it names one address, not a range of them."""
        return self.network.prefixlen == self.network.max_prefixlen

    def __str__(self) -> str:
        shown = str(self.network.network_address if self.single else self.network)
        return f"[{shown}]:{self.port}" if self.network.version == 6 else f"{shown}:{self.port}"


@dataclass(frozen=True, slots=True)
class Egress:
    """`mode` is `none`, `all` (what is not denied) or `list` (the entries, and there are some)."""

    mode: Literal["none", "all", "list"]
    entries: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        return self.mode if self.mode != "list" else ", ".join(map(str, self.entries))


def egress_of(written: str | Iterable[str]) -> Egress:
    """The value behind a valid `egress` field. Raises NotAllowed for one that is not."""
    if written == "none" or written == "all":
        return Egress("all" if written == "all" else "none")
    if isinstance(written, str):
        raise NotAllowed("no such word", 'write "none", "all" or a list of IP:port')
    entries = tuple(parse_entry(each) for each in written)
    return Egress("list", entries) if entries else Egress("none")


def parse_entry(text: str) -> Entry:
    """One entry. Raises NotAllowed, which says what is wrong and what to write instead."""
    shown = visible(text, 80)
    parts = _ENTRY.fullmatch(text)
    if parts is None:
        message, fix = _misspelt(text)
        raise NotAllowed(f'"{shown}" is not IP:port: {message}', fix)
    written = parts["six"] if parts["six"] is not None else parts["four"]
    network = _network(written, shown)
    if (network.version == 6) != (parts["six"] is not None):
        fix = f"[{written}]" if network.version == 6 else written
        raise NotAllowed(
            f'"{shown}": brackets belong around IPv6', f"write {visible(fix)}:{parts['port']}"
        )
    return Entry(network, _port(parts["port"], shown))


def _misspelt(text: str) -> tuple[str, str]:
    bare = _read(text.strip("[]"))
    brackets = "an IPv6 address stands in brackets"
    if bare is not None and bare.version == 4:
        return "the port is missing", f"write {str(bare).removesuffix('/32')}:443 for HTTPS"
    if bare is not None:
        # "2001:db8::1:443" is an address as well, and rarely meant as one
        address, _, last = text.rpartition(":")
        if "[" not in text and (real := _read(address)) is not None and last.isdigit():
            found = str(real).removesuffix("/128")
            return brackets, f"write [{found}]:{last} for port {last} of {found}"
        missing = "the port is missing" if "[" in text else f"the port is missing, and {brackets}"
        return missing, f"write [{str(bare).removesuffix('/128')}]:443 for HTTPS"
    if text.count(":") > 1 and "[" not in text:
        return brackets, "write it as in [2001:db8::1]:443"
    fix = "write both, as in 192.0.2.10:443, 192.0.2.0/24:443 or [2001:db8::]:443"
    return "an address and a port are expected", fix


def _read(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _network(text: str, shown: str) -> Network:
    loose = _read(text)
    if loose is None or "%" in text:
        if re.search("[a-z]", text, re.IGNORECASE) and ":" not in text:
            raise NotAllowed(
                f'"{shown}": names are not supported yet',
                f"write the address of {visible(text, 60)}",
            )
        raise NotAllowed(
            f'"{shown}": {visible(text, 60) or "nothing"} is not an address or a CIDR',
            "write one as in 192.0.2.10, 192.0.2.0/24 or [2001:db8::10]",
        )
    address = ipaddress.ip_interface(text).ip
    if address != loose.network_address:
        raise NotAllowed(
            f'"{shown}": {address} is not where {loose} begins',
            f"write {loose} for the range or {address} for the one address",
        )
    for never, why in _NEVER_NETWORKS:
        if never.version == loose.version and loose.subnet_of(never):  # type: ignore[arg-type]
            raise NotAllowed(f'"{shown}" can never be reached: {text} {why}', "leave it out")
    return loose


def _port(text: str, shown: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        word = "one port, a range is not supported" if "-" in text else "a port from 1 to 65535"
        fix = "write an entry for each port" if "-" in text else "write a number, 443 for HTTPS"
        raise NotAllowed(f'"{shown}": {visible(text, 20) or "nothing"} is not {word}', fix)
    return int(text)
