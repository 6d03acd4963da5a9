"""Capabilities by name, as numbers: linux/capability.h, capabilities(7).

Only those this project speaks of. It must not ask the kernel anything.
"""

from __future__ import annotations

from collections.abc import Iterable

NUMBERS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_MKNOD": 27,
    "CAP_SETFCAP": 31,
}


def mask(names: Iterable[str]) -> int:
    """The set as the bits of /proc/PID/status. Raises KeyError for an unknown name."""
    return sum(1 << NUMBERS[name] for name in set(names))
