"""Which addresses a sandbox has: arithmetic on a slot number, nothing else.

IPv4 comes from 198.18.0.0/15, which RFC 2544 sets aside for test beds, so no network that a guest
wants to reach uses it. IPv6 comes from a unique local prefix (RFC 4193) hashed from the sandbox's
names. A slot is eight IPv4 addresses: four for the link to the guest, four for the one to the host.
It must not look at the host: which slots are free is `slots.py`'s business.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from specs.names import HostNames

POOL = IPv4Network("198.18.0.0/15")
SLOT_BITS = 3
SLOTS = POOL.num_addresses >> SLOT_BITS
LINK4, LINK6 = 30, 112  # prefix lengths of both links


@dataclass(frozen=True, slots=True)
class Addresses:
    """Both ends of both links, in both families."""

    slot: int
    gateway4: IPv4Address
    guest4: IPv4Address
    host4: IPv4Address
    middle4: IPv4Address
    gateway6: IPv6Address
    guest6: IPv6Address
    host6: IPv6Address
    middle6: IPv6Address

    @property
    def block(self) -> IPv4Network:
        """All eight addresses of the slot."""
        return IPv4Network((POOL[self.slot << SLOT_BITS], 32 - SLOT_BITS))

    @property
    def guest_link4(self) -> IPv4Network:
        return IPv4Network((self.guest4, LINK4), strict=False)

    @property
    def guest_link6(self) -> IPv6Network:
        return IPv6Network((self.guest6, LINK6), strict=False)

    @property
    def uplink4(self) -> IPv4Network:
        return IPv4Network((self.host4, LINK4), strict=False)

    @property
    def uplink6(self) -> IPv6Network:
        return IPv6Network((self.host6, LINK6), strict=False)


def first_slot(names: HostNames) -> int:
    """Where the search for a free slot begins."""
    return int.from_bytes(_digest(names, "slot")[:8]) % SLOTS


def slot_of(address: IPv4Address) -> int | None:
    """The slot an address of the pool lies in."""
    if address not in POOL:
        return None
    return (int(address) - int(POOL.network_address)) >> SLOT_BITS


def addresses(names: HostNames, slot: int) -> Addresses:
    """Everything that follows from a slot. Raises IndexError for one that does not exist."""
    if not 0 <= slot < SLOTS:
        raise IndexError(slot)
    base4 = POOL[slot << SLOT_BITS]
    # RFC 4193: fd, 40 bits of global id, 16 bits of subnet
    base6 = IPv6Address(b"\xfd" + _digest(names, "prefix")[:7] + bytes(8))
    return Addresses(
        slot=slot,
        gateway4=base4 + 1,
        guest4=base4 + 2,
        host4=base4 + 5,
        middle4=base4 + 6,
        gateway6=base6 + 0x1_0001,
        guest6=base6 + 0x1_0002,
        host6=base6 + 0x2_0001,
        middle6=base6 + 0x2_0002,
    )


def mac(names: HostNames, kind: str) -> str:
    """A locally administered unicast MAC, the same for every start of this sandbox."""
    return ":".join(f"{byte:02x}" for byte in b"\x02" + _digest(names, f"mac {kind}")[:5])


def link_local(mac_address: str) -> IPv6Address:
    """What a Linux guest makes of its MAC by itself (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac_address.replace(":", ""))
    eui64 = bytes([octets[0] ^ 0x02]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return IPv6Address(b"\xfe\x80" + bytes(6) + eui64)


def _digest(names: HostNames, what: str) -> bytes:
    return hashlib.sha256(f"{names.instance}\0{names.sandbox}\0{what}".encode()).digest()
