"""pasta as a command line: frames on a tap that it is given become sockets of the host. Pure, but
for looking for the binary.

It is told everything it could find out by itself, forwards no port in either direction, and maps no
address to the host's loopback.
"""

from __future__ import annotations

from pathlib import Path

from reconcilers.confinement.rootview import RootFile
from reconcilers.network.addresses import LINK4
from reconcilers.network.wanted import Wanted

BINARY = Path("/usr/bin/passt")
# The name it is called by decides what it does; in its root it is a file, not a link.
INSIDE = "/usr/bin/pasta"
TAP_FD = 3
FIX = "apt-get install passt"


def installed() -> bool:
    return BINARY.is_file() and Path(INSIDE).is_file()


def named(files: tuple[RootFile, ...]) -> tuple[RootFile, ...]:
    """The files of passt's root with the binary under the name that makes it pasta."""
    return tuple(
        RootFile(each.host, INSIDE, each.executable) if each.inside == str(BINARY) else each
        for each in files
    )


def command(wanted: Wanted, device: str, mac: str) -> tuple[str, ...]:
    """`device` is where it reads the host's link-local address; one without has IPv4 alone.

    --netns is a file it opens and never enters (security/profiles/passt.json, setns): it insists on
    one, though it makes no tap. It answers ARP and neighbour discovery for the gateway of the
    middle namespace; everything there is configured already.
    """
    own = wanted.addresses
    return (
        INSIDE, "--foreground", "--stderr", "--quiet", "--fd", str(TAP_FD),
        "--netns", INSIDE, "--no-netns-quit", "--interface", device,
        "--address", str(own.middle4), "--netmask", str(LINK4), "--gateway", str(own.host4),
        "--address", str(own.middle6), "--gateway", str(own.host6),
        *(() if wanted.host_ipv6 else ("--ipv4-only",)),
        "--mac-addr", mac, "--mtu", str(wanted.mtu), "--no-map-gw",
        "--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none",
        "--no-dhcp", "--no-dhcpv6", "--no-ra", "--dns", "none", "--search", "none",
    )  # fmt: skip
