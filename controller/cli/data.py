"""What a command would do to the data of a sandbox: refuse what a disk cannot do, and say before
a deletion what becomes of it.

It reads the disk's own size, never a record of it. It must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.cli.given import Given
from controller.cli.view import current_spec
from reconcilers.layout import Layout
from specs.errors import BoxError, InvalidBoxfile, Problem

MIB = 1 << 20
ERASED = "its /data is erased in 60 s"


def refuse_shrinking(layout: Layout | None, boxes: Iterable[Given]) -> None:
    """Raise InvalidBoxfile when a Boxfile asks for less than its disk already has."""
    if layout is None:
        return
    problems = [found for one in boxes if (found := _shrinks(layout, one)) is not None]
    if problems:
        raise InvalidBoxfile("nothing was done", problems=tuple(problems))


def _shrinks(layout: Layout, one: Given) -> Problem | None:
    from specs.parse import place_of

    have = disk_mib(layout, one.box.name)
    wanted = one.box.data.size_mib
    if have is None or wanted >= have:
        return None
    return Problem(
        one.where,
        *place_of(one.data, one.where, ("data", "size_mib")),
        "data.size_mib",
        f"{wanted} is less than the {have} MiB its disk has, and a disk is never shrunk",
        f"write {have} or more; for a smaller disk delete the sandbox and begin a new one",
    )


def disk_mib(layout: Layout, name: str) -> int | None:
    """The size of the disk of `name`; None without one, or when it cannot be read."""
    from reconcilers.disk import observe

    try:
        disk = observe(layout.disks(name))
    except (BoxError, OSError):
        return None  # the controller says what is wrong with it
    return None if disk is None else disk.size // MIB


def _with_snapshots(layout: Layout, name: str) -> str:
    from reconcilers.snapshots import listed

    try:
        count = len(listed(layout.disks(name)))
    except (BoxError, OSError):
        return ""
    return f", with its {count} snapshot{'s' if count > 1 else ''}" if count else ""


def fate(layout: Layout, name: str, erase: bool) -> str:
    """What a deletion does to the data of `name`, as the end of a sentence; empty without any."""
    from controller.ceilingfile import read_ceiling
    from specs.boxfile import OnDelete
    from specs.ceiling import Ceiling

    if disk_mib(layout, name) is None:
        return ""
    spec = current_spec(layout, name)
    ceiling = read_ceiling(layout.policy)
    asked = erase or (spec is not None and spec.data.on_delete is OnDelete.erase)
    if asked and isinstance(ceiling, Ceiling) and ceiling.allow_erase:
        return f"; {ERASED}{_with_snapshots(layout, name)}"
    kept = f"; its /data will be in {layout.set_aside}/{name}-TIME"
    return f"{kept}, since policy.toml does not let it be erased" if asked else kept
