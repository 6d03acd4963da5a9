"""Opens the tap of one VMM: the device that a guest's frames come out of.

It lives as long as its VMM: the kernel removes it when the last descriptor is closed, so none is
ever left over. It must be opened in the VMM's namespace.
"""

from __future__ import annotations

import fcntl
import os
import struct

from reconcilers.network import links
from specs.errors import HostError
from specs.names import HostNames

DEVICE, FIX = "/dev/net/tun", "modprobe tun"
# include/uapi/linux/if_tun.h
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR, _IFF_TUN_EXCL = 0x0002, 0x1000, 0x4000, 0x8000


def devices(names: HostNames) -> tuple[str, ...]:
    """What a VMM with a network sees in its namespace beside `lo`."""
    return tuple(sorted(names.interface(kind) for kind in ("b", "i", "t")))


def unavailable() -> str:
    """Why no tap can be made on this host; empty when one can. Opening alone makes none."""
    try:
        os.close(_device())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def fix() -> str:
    """What makes DEVICE one that can be opened."""
    if os.geteuid() == 0:
        return FIX
    return f"chmod 0666 {DEVICE}, as root" if os.path.exists(DEVICE) else f"{FIX}, as root"


def _device() -> int:
    return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def open_tap(names: HostNames) -> int:
    """A new tap on the sandbox's bridge, up; the descriptor is the caller's. Raises HostError."""
    descriptor = _open(names.interface("t"), _IFF_VNET_HDR)
    try:
        links.attach_tap(names)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_uplink(name: str) -> int:
    """A new tap without a header before its frames; the descriptor is the caller's. Raises
    HostError.
    """
    return _open(name, 0)


def _open(name: str, header: int) -> int:
    try:
        descriptor = _device()
    except OSError as error:
        raise HostError(f"{DEVICE} cannot be opened: {error.strerror}", fix=fix()) from error
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_TUN_EXCL | header
        # struct ifreq: the name, then a union that is 24 bytes long
        request = struct.pack("16sH22x", name.encode(), flags)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
    except OSError as error:
        os.close(descriptor)
        raise HostError(f"the tap {name} cannot be made: {error.strerror}") from error
    return descriptor
