"""Which network devices a namespace shows, and which of them count.

Where a host has loaded a tunnel module, the kernel puts that module's fallback device into every
new network namespace, down, and lets nobody delete it (Documentation/admin-guide/sysctl/net.rst,
fb_tunnels_only_for_init_net). One that is down leads nowhere, so it is no device to speak of. It
must not enter the namespace: /proc/PID is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from reconcilers.confinement import procfile

# name -> kind as ip-link(8) calls it: net/ipv4/{ipip,ip_gre,ip_vti}.c, net/ipv6/{sit,ip6_tunnel,
# ip6_gre,ip6_vti}.c
FALLBACK: Mapping[str, str] = {
    "tunl0": "ipip",
    "gre0": "gre",
    "gretap0": "gretap",
    "erspan0": "erspan",
    "ip_vti0": "vti",
    "sit0": "sit",
    "ip6tnl0": "ip6tnl",
    "ip6gre0": "ip6gre",
    "ip6_vti0": "vti6",
}


def read(proc: str) -> list[str]:
    """Names of the devices that count in the namespace of `proc` (/proc/PID), sorted; a fallback
    device that is up says so. Raises OSError.
    """
    lines = procfile.read(f"{proc}/net/dev").decode("ascii", "replace").splitlines()[2:]
    names = [line.partition(":")[0].strip() for line in lines]
    if FALLBACK.keys().isdisjoint(names):
        return sorted(names)
    return counting(names, _up(proc))


def counting(names: Collection[str], up: Collection[str]) -> list[str]:
    """Pure: all but the fallback devices that are down."""
    found = (
        f"{name} (up)" if name in FALLBACK else name
        for name in names
        if name not in FALLBACK or name in up
    )
    return sorted(found)


def _up(proc: str) -> Collection[str]:
    """The fallback devices that are up; all of them where the kernel does not tell.

    igmp lists the devices that are up, each with the group of all hosts (net/ipv4/igmp.c,
    ip_mc_up); /proc has no flags of another namespace's devices.
    """
    try:
        text = procfile.read(f"{proc}/net/igmp").decode("ascii", "replace")
    except FileNotFoundError:
        return FALLBACK.keys()
    return {line.split()[1] for line in text.splitlines()[1:] if not line.startswith("\t")}
