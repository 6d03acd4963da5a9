"""Layers of the launcher that give a helper process a user namespace and, in it, capabilities.

Part of the launcher process: standard library and our system calls only. A capability kept here
counts for what belongs to the namespace's own identities and for nothing else on the host.
"""

from __future__ import annotations

import errno
import os

from reconcilers.confinement import syscalls
from reconcilers.confinement.document import Document


def leave_user_namespace() -> None:
    """Into a new one that maps nothing yet; the groups go first, inside nobody may drop them.

    While it is root on the host: the namespace then belongs to root, and no process that has the
    sandbox's identity has any power over it.
    """
    os.setgroups([])
    syscalls.unshare(syscalls.CLONE_NEWUSER)


def wait_for_maps(document: Document) -> None:
    """Until the caller has written them. Should it die instead, so does this process."""
    if os.read(document.mapped, 1) != b"m":
        os._exit(1)


def keep_over_exec(document: Document) -> None:
    """Makes the wanted capabilities ambient: execve(2) gives them on, NOROOT gives no others.

    Before the securebits, which forbid to raise any more.
    """
    effective, permitted, _ = syscalls.capget()
    syscalls.capset(effective, permitted, mask_of(document.capabilities))
    for capability in document.capabilities:
        syscalls.ambient_raise(capability)


def keep_only(document: Document) -> None:
    """Exactly the wanted ones in the effective, permitted and inheritable set."""
    wanted = mask_of(document.capabilities)
    syscalls.capset(wanted, wanted, wanted)
    if syscalls.capget() != (wanted, wanted, wanted):
        raise OSError(errno.EPERM, "other capabilities than the wanted ones are left")


def mask_of(capabilities: tuple[int, ...]) -> int:
    return sum(1 << each for each in set(capabilities))
