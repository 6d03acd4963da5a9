"""What one sandbox's network must be: a pure value that every act and every reading goes by.

Made from the Boxfile and from what the host around it is like; nothing here looks at either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from reconcilers.network.addresses import Addresses, mac
from specs.egress import Address, Egress, Network
from specs.names import HostNames

# firewall mark of packets that the rules let through, in both namespaces; no bit that kube-proxy,
# Tailscale, Calico or Docker use
MARK = 0x2B0


# Hashed once and not thirty times in every pass
_interface = lru_cache(maxsize=4096)(HostNames.interface)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`mtu` in bytes; `resolver` answers the guest's DNS, None where there is no DNS.

    `host_addresses` are the host's own; `ipv6` says that the guest gets an IPv6 default route,
    `host_ipv6` that the host speaks IPv6 at all.
    """

    names: HostNames
    addresses: Addresses
    egress: Egress
    mtu: int
    resolver: Address | None
    host_addresses: frozenset[Address | Network]
    ipv6: bool
    host_ipv6: bool

    @property
    def vmm_space(self) -> str:
        """Name of the VMM's network namespace."""
        return _interface(self.names, "v")

    @property
    def middle_space(self) -> str:
        """Name of the namespace between VMM and host, which holds the rules."""
        return _interface(self.names, "m")

    @property
    def tap(self) -> str:
        return _interface(self.names, "t")

    @property
    def bridge(self) -> str:
        return _interface(self.names, "b")

    @property
    def inner(self) -> str:
        """The veth end on the bridge; its peer is `guest_side`."""
        return _interface(self.names, "i")

    @property
    def guest_side(self) -> str:
        return _interface(self.names, "g")

    @property
    def uplink(self) -> str:
        """The veth end of the middle namespace towards the host; its peer is `host_side`."""
        return _interface(self.names, "u")

    @property
    def host_side(self) -> str:
        return _interface(self.names, "h")

    @property
    def guest_mac(self) -> str:
        return mac(self.names, "guest")

    @property
    def host_table(self) -> str:
        return host_table(self.names)

    @property
    def dns(self) -> Address | None:
        """Where the guest asks: the gateway, in the family of the resolver behind it."""
        if self.resolver is None or self.egress.mode != "all":
            return None
        return self.addresses.gateway4 if self.resolver.version == 4 else self.addresses.gateway6

    def for_guest(self) -> bytes:
        """The body of the agent's NETWORK request."""
        own = self.addresses
        lines = [f"mac={self.guest_mac}", f"mtu={self.mtu}"]
        lines += [f"address4={own.guest4}/{own.guest_link4.prefixlen}", f"gateway4={own.gateway4}"]
        lines += [f"address6={own.guest6}/{own.guest_link6.prefixlen}"]
        if self.ipv6:
            lines += [f"gateway6={own.gateway6}"]
        if self.dns is not None:
            lines += [f"dns={self.dns}"]
        return "".join(f"{line}\n" for line in lines).encode()


def host_table(names: HostNames) -> str:
    """The nftables table of a sandbox in the host's own namespace."""
    return f"box-{names.instance}-{names.sandbox}"


MIDDLE_TABLE = "box"
