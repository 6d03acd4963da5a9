"""What the process of `insidereader` learns of networks: to read that of an ordinary user.

A readback asks for processes and network in a row, and what is dear is to enter a user namespace,
which takes a fork. It loads no pyroute2, which would make each fork dearer still.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from reconcilers import procfs
from reconcilers.confinement import syscalls
from reconcilers.network import inner, innerread
from specs.errors import BoxError

_CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h


def prepare(request: dict[str, Any]) -> None:
    """What the process remembers of it, its children need not work out."""
    if request["ask"] == "observe":
        inner.from_text(request["wanted"])


def _observe(request: dict[str, Any]) -> dict[str, Any]:
    wanted = inner.from_text(request["wanted"])
    try:
        spaces = {
            wanted.middle_space: open_space(request["keeper"], "net"),
            wanted.vmm_space: open_space(request["vmm"], "net"),
        }
        give_nft_its_right()

        def enter(space: str) -> None:
            syscalls.setns(spaces[space], syscalls.CLONE_NEWNET)
            os.close(spaces.pop(space))

        found = innerread.observe(wanted, inner.table, request["known"], enter)
    except BoxError as error:
        return {"failed": error.message, "fix": error.fix}
    except ProcessLookupError as error:
        return {"gone": str(error)}
    return {"found": dataclasses.asdict(found)}


HANDLERS = {"observe": _observe}


def open_space(process: list[int], kind: str) -> int:
    """A namespace of exactly this process, (PID, start time). Raises ProcessLookupError when it has
    ended.
    """
    pid, start = process
    try:
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error
    if procfs.alive(pid, start) is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return descriptor


def give_nft_its_right() -> None:
    """nft(8) is another program; without this it would have no right where we are not UID 0."""
    effective, permitted, _ = syscalls.capget()
    syscalls.capset(effective, permitted, 1 << _CAP_NET_ADMIN)
    syscalls.ambient_raise(_CAP_NET_ADMIN)
