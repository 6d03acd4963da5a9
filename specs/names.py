"""Every host-wide name of a sandbox, made from (instance, sandbox) in this one place.

Two users, two homes or two sandboxes never share a name because each name carries the instance and
the sandbox, whole or hashed. Imported by the command line's fast path: nothing heavy here. It must
not look at the host.
"""

from __future__ import annotations

import os

from specs.errors import BadName, HostError
from specs.text import visible
from specs.value import Value

NAME_PATTERN = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
NAME_MAX = 63
SOCKET_PATH_MAX = 107  # unix(7): sun_path is 108 bytes with its final NUL
INTERFACE_MAX = 15  # netdevice(7): IFNAMSIZ is 16 bytes with its final NUL

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_HEX_DIGITS = frozenset("0123456789abcdef")
_INSTANCE_LENGTH = 12
_MARKER = "box"
INTERFACE_PREFIX = "bx"
# Five bits a character; with prefix and kind they fill an interface's name.
_INSTANCE_PART, _SANDBOX_PART = 5, 7


def check_name(name: str) -> str:
    """`name` itself when it fits `NAME_PATTERN`; raises BadName saying what is wrong."""
    reason = _name_fault(name)
    if reason:
        raise BadName(
            f'"{visible(name, 80)}" is not a sandbox name: {reason}',
            fix="use 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends",
        )
    return name


def _name_fault(name: str) -> str:
    if not name:
        return "it is empty"
    if len(name) > NAME_MAX:
        return f"it has {len(name)} characters, {NAME_MAX} are allowed"
    for character in name:
        if character not in _NAME_CHARACTERS:
            return f'"{visible(character)}" is not allowed'
    if name[0] == "-" or name[-1] == "-":
        return "it begins or ends with -"
    return ""


def is_name(text: str) -> bool:
    """Whether `text` is a sandbox name."""
    return not _name_fault(text)


def is_instance(text: str) -> bool:
    """Whether `text` has the form of an instance id: 12 lower-case hexadecimal digits."""
    return len(text) == _INSTANCE_LENGTH and _HEX_DIGITS.issuperset(text)


class HostNames(Value):
    """The names one sandbox of one instance has on this host."""

    __slots__ = ("instance", "sandbox")
    instance: str
    sandbox: str

    def __init__(self, instance: str, sandbox: str) -> None:
        if not is_instance(instance):
            raise BadName(f'"{visible(instance, 80)}" is not an instance id (12 hex digits)')
        self._fill(instance, check_name(sandbox))

    @property
    def cgroup(self) -> str:
        """Path of the cgroup, relative to the mount point of each controller."""
        return f"box/{self.instance}/{self.sandbox}"

    @property
    def marker(self) -> str:
        """What QEMU's `-name` says, so that a stray is recognised by its command line."""
        return f"{_MARKER}:{self.instance}:{self.sandbox}"

    def interface(self, kind: str) -> str:
        """Name of a network interface or namespace, at most 15 characters; `kind` is one letter.

        A sandbox name can have 63 characters, so it becomes a hash: 35 bits keep thousands of
        sandboxes apart. The instance has its own part, so that what an instance has on the host is
        recognised when nobody knows any more which sandbox it was for.
        """
        if len(kind) != 1:
            raise ValueError("the kind of an interface is one letter")
        own = _hashed(f"{self.instance}\0{self.sandbox}", _SANDBOX_PART)
        return f"{INTERFACE_PREFIX}{kind}{_hashed(self.instance, _INSTANCE_PART)}{own}"


def is_interface_of(name: str, instance: str) -> bool:
    """Whether `name` is an interface or namespace of some sandbox of this instance."""
    own = name[len(INTERFACE_PREFIX) + 1 :]
    return (
        name.startswith(INTERFACE_PREFIX)
        and len(own) == _INSTANCE_PART + _SANDBOX_PART
        and own.startswith(_hashed(instance, _INSTANCE_PART))
    )


def _hashed(text: str, length: int) -> str:
    from base64 import b32encode
    from hashlib import sha256

    return b32encode(sha256(text.encode()).digest())[:length].decode().lower()


def parse_marker(cmdline_arg: str) -> HostNames | None:
    """The names behind a marker found on a command line; None when it is not one of ours."""
    parts = cmdline_arg.split(":")
    if len(parts) != 3 or parts[0] != _MARKER:
        return None
    _, instance, sandbox = parts
    if not is_instance(instance) or _name_fault(sandbox):
        return None
    return HostNames(instance, sandbox)


def check_socket_path(path: str | os.PathLike[str]) -> str:
    """`path` as text; raises HostError when it is too long for a Unix socket."""
    text = os.fspath(path)
    length = len(os.fsencode(text))
    if length > SOCKET_PATH_MAX:
        raise HostError(
            f"a socket path of {length} bytes is too long, Unix sockets allow {SOCKET_PATH_MAX}",
            where=visible(text, 300),
            fix="use a shorter BOX_HOME, runtime directory or sandbox name",
        )
    return text
