"""The securebits every VMM has, as numbers: shared by who sets them and by who judges them.

Plain numbers from include/uapi/linux/securebits.h (capabilities(7)), because python-prctl is only
loaded in the launcher.
"""

from __future__ import annotations

NOROOT = 1 << 0
NO_SETUID_FIXUP = 1 << 2
KEEP_CAPS = 1 << 4
NO_CAP_AMBIENT_RAISE = 1 << 6


def locked(bit: int) -> int:
    """The lock of a bit is the one above it."""
    return bit << 1


# What python-prctl 1.8 accepts; keep_caps stays off and is locked off.
WITHOUT_AMBIENT = (
    NOROOT | locked(NOROOT) | NO_SETUID_FIXUP | locked(NO_SETUID_FIXUP) | locked(KEEP_CAPS)
)
SECUREBITS = WITHOUT_AMBIENT | NO_CAP_AMBIENT_RAISE | locked(NO_CAP_AMBIENT_RAISE)
