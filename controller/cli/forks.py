"""`box fork`: a sandbox whose /data begins with what another one's holds, copied on write.

A fork is declared by a Boxfile like every other sandbox; the controller branches the disk. This
module only writes that file, or asks for a deletion.
"""

from __future__ import annotations

from argparse import Namespace

from controller.cli import output
from controller.cli.diskwords import OF_FORKS
from controller.cli.place import START, controller_runs, needed
from reconcilers.layout import Layout
from specs.boxfile import Boxfile, State
from specs.errors import HostError, NoSandbox, StillRunning, UsageError
from specs.names import check_name

# Options, and the words that they belong to; what is none of these makes a fork.
OPTIONS = {
    "wait": (),
    "stat": ("diff",),
    "form": ("diff", "apply"),
    "theirs": ("apply",),
    "dry_run": ("apply",),
}


def fork(chosen: Namespace) -> int:
    """`box fork NAME FORK`, or `box fork diff`, `apply` or `discard FORK`."""
    first, second = chosen.words
    special = first in OF_FORKS
    for option, belongs in OPTIONS.items():
        given = getattr(chosen, option) not in (False, "table")
        if given and (first not in belongs if special else belongs):
            flag = {"form": "-o", "dry_run": "--dry-run"}.get(option, f"--{option}")
            raise UsageError(f"{flag} does not belong to this", fix="box help fork")
    if first == "discard":
        return _discard(needed(), check_name(second))
    if special:
        from controller.cli import forkchanges

        act = {"diff": forkchanges.diff, "apply": forkchanges.apply}[first]
        return act(needed(), check_name(second), chosen)
    parent, name = check_name(first), check_name(second)
    if name in OF_FORKS:
        raise UsageError(
            f'a fork named "{name}" would be taken for box fork {name}',
            fix=f"box fork {name} {parent}, or choose another name",
        )
    if name == parent:
        raise UsageError(f"{name} cannot be a fork of itself", fix="choose a name for the fork")
    return _make(needed(), parent, name, chosen)


def _make(layout: Layout, parent: str, name: str, chosen: Namespace) -> int:
    from controller.apply import ABSENT, apply_text
    from specs.render import render_yaml

    _refuse_running(layout, parent)
    box = forked(layout, parent, name)
    apply_text(layout.boxes, name, render_yaml(box).encode(), if_match=ABSENT)
    print(f"{name} created, a fork of {parent}", flush=True)
    if chosen.wait:
        from controller.cli.waiting import AsDeclared, until

        until(layout, [name], AsDeclared(), chosen.timeout)
        print(f"{name} is as declared")
    elif not controller_runs(layout):
        output.note(f"written; the controller is not running. Start it: {START}")
    return 0


def forked(layout: Layout, parent: str, name: str) -> Boxfile:
    """The Boxfile of a fork: the parent's, with a disk at least as large as the parent's is."""
    from controller.cli.data import disk_mib
    from controller.cli.view import current_spec, view

    spec = current_spec(layout, parent)
    if spec is None:
        view(layout, parent)  # raises NoSandbox where there is nothing of that name at all
        raise NoSandbox(f"{parent} has no Boxfile that is in force", fix=f"box describe {parent}")
    size = disk_mib(layout, parent)
    if size is None:
        raise HostError(
            f"{parent} has no data disk yet", fix="it is made with the first start; fork it then"
        )
    data = spec.data.model_copy(update={"size_mib": max(size, spec.data.size_mib)})
    change = {"name": name, "fork_of": parent, "data": data, "state": State.running}
    return spec.model_copy(update=change)


def _refuse_running(layout: Layout, parent: str) -> None:
    from reconcilers import launchrecord, procfs

    record = launchrecord.read(layout.launch_record(parent))
    if record is not None and procfs.alive(record.pid, record.start_time) is not None:
        raise StillRunning(
            f"the VM of {parent} runs and has its disk open",
            fix=f"write state: stopped into the Boxfile of {parent}, box apply -f it --wait, then "
            "this again",
        )


def _discard(layout: Layout, name: str) -> int:
    from controller.cli.client import call
    from controller.cli.data import ERASED
    from reconcilers import layers

    read = layers.read(layout.disks(name))
    origin = read[0].origin if read is not None else None
    if origin is None:
        raise UsageError(
            f"{name} is no fork, so nothing of it would be left",
            fix=f"box delete {name}, or with --data to erase what it holds",
        )
    call(layout, "DELETE", f"/v1/sandboxes/{name}?data=erase")
    print(f"{name} deleted; {ERASED}. What {origin.of} has stays")
    return 0
