"""Moves this process to where an ordinary user may make control groups of version 2.

A process may only be moved within a subtree that was given to its user, and a login session is in
none. The user's own systemd gives one, a scope with Delegate=yes, over the user's D-Bus; one scope
for all controllers of a user. It outlives its controller as long as a VMM is in it, and the next
controller joins it. Nothing systemd answers is believed: where the process is says /proc.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from pathlib import Path
from urllib.parse import quote

from reconcilers.confinement import cpuweight, handed
from reconcilers.confinement.cgrouptree import CgroupTree, top_tree
from reconcilers.process import run
from specs.errors import BoxError, CommandError, ConfinementError

UNIT = cpuweight.SCOPE
LEAF = "box-controller"
"""Where the controllers themselves are: a group that passes controllers on may hold no process
(cgroups(7), "no internal processes")."""
_SECONDS = 5.0  # for each answer, and for the move that follows it; both take milliseconds
_RUN = _SECONDS + 3.0  # busctl itself, which waits longer than that for a bus to greet it
_TRUE = ["b", "true"]
_SERVICE = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
_MANAGER = "org.freedesktop.systemd1.Manager"
_UNITS = "/org/freedesktop/systemd1/unit"


def settle(tree: CgroupTree | None = None) -> None:
    """Makes sure that groups can be made beside this process; does nothing for root and on v1.

    Raises ConfinementError(layer="cgroup") saying what is in the way, what systemd said, and the
    fix. Takes 30 s where a systemd answers everything but moves nothing, at the very last moment.
    """
    if os.geteuid() == 0:
        return
    if tree is None:
        tree = top_tree()
        if all(at.version == 1 for at in tree.controllers.values()):
            return
    base, obstacle = handed.delegated(tree.unified)
    if obstacle is not None:
        said = _delegation(tree.unified)
        base, obstacle = handed.delegated(tree.unified)
        if obstacle is not None:
            what, fix = obstacle
            raise ConfinementError(f"{what}; {said}", layer="cgroup", fix=fix)
    if handed.own_group() == base:
        _leave(Path(tree.unified, base))


def _leave(top: Path) -> None:
    """Into a leaf below `top`, which then holds no process."""
    leaf = top / LEAF
    try:
        leaf.mkdir(mode=0o755, exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        others = (top / "cgroup.procs").read_text().split()
    except OSError as error:
        raise ConfinementError(
            f"this process cannot be moved to {leaf}: {error.strerror}",
            layer="cgroup",
            fix=handed.subtree_fix(),
        ) from error
    if others:
        raise ConfinementError(
            f"the group {top} holds other processes ({', '.join(others[:5])}), and one that does "
            "cannot limit groups below it",
            layer="cgroup",
            fix="start box controller in a group of its own, or move them to a group below it",
        )


# -- the user's systemd


def _delegation(unified: str) -> str:
    """Has the unit that this process is in accepted, or the scope. What went wrong, in words."""
    address = bus_address()
    if not address:
        return "there is no D-Bus of a systemd of this user to ask for one ($XDG_RUNTIME_DIR/bus)"
    if _accepted(address):
        return ""
    said = _enter(address, unified)
    if said or _accepted(address):
        return said
    return f"the user's systemd says that {UNIT}, which this process is in, is not delegated"


def _accepted(address: str) -> bool:
    """Whether systemd leaves the unit that this process is in to us."""
    unit = handed.unit_of(handed.own_group())
    if not unit:
        return False
    try:
        if run(delegate_call(address, os.path.basename(unit)), timeout=_RUN).split() != _TRUE:
            return False
    except BoxError:
        return False
    handed.accept(unit)
    return True


def _enter(address: str, unified: str) -> str:
    """Asks for the scope, or to be taken into the one there is. What went wrong, in words."""
    try:
        run(start_call(address, os.getpid()), timeout=_RUN)
    except CommandError as refused:
        said = _last(refused)
        if refused.status == -signal.SIGKILL:
            return f"the user's systemd gives none: {refused.message}"
        try:
            _join(address, unified)
        except CommandError as problem:
            return f"the user's systemd gives none: {said}; nor lets it in: {_last(problem)}"
        except (BoxError, OSError, ValueError):
            return f"the user's systemd gives none: {said}"
    except BoxError as problem:
        return problem.message
    if _moved():
        return ""
    return f"the user's systemd took the call for {UNIT} and did not move this process into it"


def _join(address: str, unified: str) -> None:
    """Raises CommandError, ValueError for an answer that names no group of ours, OSError."""
    group = control_group(run(group_call(address), timeout=_RUN))
    if not group.endswith(f"/{UNIT}"):
        raise ValueError(group)
    with contextlib.suppress(FileExistsError):
        Path(unified, group.lstrip("/"), LEAF).mkdir(mode=0o755)
    run(attach_call(address, os.getpid()), timeout=_RUN)


def _moved() -> bool:
    deadline = time.monotonic() + _SECONDS
    while f"/{UNIT}" not in f"/{handed.own_group()}":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def bus_address() -> str:
    """Where the bus of the user's systemd is; empty where there is none.

    Not DBUS_SESSION_BUS_ADDRESS: that may be a bus that no systemd is on.
    """
    for folder in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        path = Path(folder, "bus")
        with contextlib.suppress(OSError):
            if folder.startswith("/") and path.lstat().st_uid == os.geteuid() and path.is_socket():
                return f"unix:path={quote(str(path), safe='/')}"
    return ""


def _busctl(address: str, *words: str) -> list[str]:
    return ["busctl", f"--address={address}", f"--timeout={_SECONDS:g}", *words]


def start_call(address: str, pid: int) -> list[str]:
    """StartTransientUnit with this process in it (org.freedesktop.systemd1(5)). Once everything in
    it has ended nothing of the scope remains, not even as failed."""
    settings = ["Description", "s", "sandboxes of box"]
    settings += ["Delegate", "b", "true", "CollectMode", "s", "inactive-or-failed"]
    settings += ["CPUWeight", "t", str(cpuweight.V2), "PIDs", "au", "1", str(pid)]
    method = ["call", *_SERVICE, _MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    return _busctl(address, *method, UNIT, "fail", "5", *settings, "0")


def group_call(address: str) -> list[str]:
    """Asks for the control group of the scope."""
    return _property_call(address, UNIT, "ControlGroup")


def delegate_call(address: str, unit: str) -> list[str]:
    """Asks whether a unit has Delegate=yes."""
    return _property_call(address, unit, "Delegate")


def _property_call(address: str, unit: str, name: str) -> list[str]:
    kind = "Scope" if unit.endswith(".scope") else "Service"
    interface = f"{_SERVICE[0]}.{kind}"
    place = f"{_UNITS}/{label(unit)}"
    return _busctl(address, "get-property", _SERVICE[0], place, interface, name)


def label(unit: str) -> str:
    """A unit's name in an object path: all but letters and digits as _ and two hex digits
    (sd_bus_path_encode(3)), a digit that comes first as well."""
    plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "".join(
        chr(byte) if chr(byte) in plain or (at and chr(byte) in "0123456789") else f"_{byte:02x}"
        for at, byte in enumerate(unit.encode())
    )


def attach_call(address: str, pid: int) -> list[str]:
    """AttachProcessesToUnit, into the leaf: others are limited below the scope by now."""
    method = ["call", *_SERVICE, _MANAGER, "AttachProcessesToUnit", "ssau"]
    return _busctl(address, *method, UNIT, f"/{LEAF}", "1", str(pid))


def control_group(answer: str) -> str:
    """The path in `s "/user.slice/..."`. Raises ValueError for any other answer."""
    words = shlex.split(answer)
    if len(words) != 2 or words[0] != "s" or not words[1].startswith("/") or ".." in words[1]:
        raise ValueError(f"no control group: {answer[:100]!r}")
    return words[1]


def _last(problem: CommandError) -> str:
    lines = problem.last_lines.strip().splitlines()
    return lines[-1] if lines else problem.message
