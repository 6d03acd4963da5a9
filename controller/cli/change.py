"""`box apply`, `diff`, `delete` and `prune`: what changes the watched folder.

The folder is the only entrance, so apply and delete write files and work without a controller. What
only the running controller can promise (erasing data, letting a removal go) is asked of it.
"""

from __future__ import annotations

from argparse import Namespace

from controller.cli import output
from controller.cli.given import Given, given
from controller.cli.place import (
    START,
    controller_runs,
    created,
    existing,
    needed,
    not_running,
)
from reconcilers.layout import Layout
from specs.change import Change
from specs.errors import Conflict, NoSandbox, UsageError
from specs.names import check_name

EFFECTS = {
    "create": "",
    "start": "starts the VM",
    "in-place": "in place",
    "replace": "replaces the VM; /data is kept",
    "stop": "stops the VM; /data is kept",
    "delete": "",
    "none": "takes effect with the next start",
}
EFFECT_COLOURS = {"replace": output.YELLOW, "stop": output.YELLOW, "delete": output.RED}


def apply(chosen: Namespace) -> int:
    boxes = given(chosen.file)
    if chosen.if_match and len(boxes) != 1:
        raise UsageError("--if-match goes with one Boxfile", fix="give one file")
    from controller.cli.data import refuse_shrinking

    refuse_shrinking(existing(), boxes)
    if chosen.dry_run:
        layout = existing()
        for one in boxes:
            print(f"{one.box.name} {_would(layout, one)} (dry run)")
        return 0
    from controller.apply import apply_text

    layout = created()
    for one in boxes:
        try:
            result = apply_text(
                layout.boxes, one.box.name, one.data, if_match=chosen.if_match, suffix=one.suffix
            )
        except Conflict as problem:
            raise _with_digest(layout, one.box.name, chosen.if_match, problem) from None
        print(f"{one.box.name} {result}", flush=True)
    names = [one.box.name for one in boxes]
    if chosen.wait:
        from controller.cli.waiting import AsDeclared, until

        until(layout, names, AsDeclared(), chosen.timeout)
        for name in names:
            print(f"{name} is as declared")
    elif not controller_runs(layout):
        output.note(f"written; the controller is not running. Start it: {START}")
    return 0


def _with_digest(layout: Layout, name: str, wanted: str | None, problem: Conflict) -> Conflict:
    """The same, saying what the condition was compared with."""
    from controller.cli.view import folder_scan

    found = folder_scan(layout)
    file = found.files.get(name) if found else None
    if wanted is None or file is None or file.digest == wanted:
        return problem
    message = f"the file's digest is {file.digest}, not {output.safe(wanted, 80)}"
    fix = f"look at what is there: box get {name} -o yaml; then --if-match {file.digest}"
    return Conflict(message, where=str(layout.boxes / file.path), fix=fix)


def _would(layout: Layout | None, one: Given) -> str:
    from controller.cli.view import folder_scan

    scan = folder_scan(layout) if layout is not None else None
    file = scan.files.get(one.box.name) if scan else None
    if file is None:
        return "created"
    return "unchanged" if file.data == one.data else "configured"


def diff(chosen: Namespace) -> int:
    """1 when anything would change."""
    from controller.cli.data import refuse_shrinking
    from controller.cli.view import current_spec
    from specs.change import changes

    layout = existing()
    different = False
    boxes = given(chosen.file)
    refuse_shrinking(layout, boxes)
    for one in boxes:
        found = changes(current_spec(layout, one.box.name) if layout else None, one.box)
        if found:
            different = True
            _print_changes(one.box.name, found)
        else:
            print(f"{one.box.name}: no change")
    return 1 if different else 0


def _print_changes(name: str, found: tuple[Change, ...]) -> None:
    effects = {one.effect for one in found}
    if "create" in effects:
        print(f"{name}: would be created")
    elif "replace" in effects:
        summary = "its VM would be replaced, /data kept"
        print(f"{name}: {output.paint(summary, output.YELLOW)}")
    else:
        print(f"{name}: would be changed")
    rows = []
    for one in found:
        old, new = output.safe(one.old, 60), output.safe(one.new, 60)
        values = new if one.effect == "create" else f"{old or '(unset)'} -> {new or '(unset)'}"
        rows.append((one.effect, [output.safe(one.field), values, EFFECTS.get(one.effect, "")]))
    sizes = output.widths([row for _, row in rows])
    for effect, row in rows:
        print("  " + output.line(row, sizes, ["", "", EFFECT_COLOURS.get(effect, "")]))


def delete(chosen: Namespace) -> int:
    names = _named(chosen)
    layout = needed()
    up = controller_runs(layout)
    if chosen.data and not up:
        # Only the controller may promise this: it judges the ceiling and keeps the 60 s of grace.
        raise not_running(layout)
    for name in names:
        _delete_one(layout, name, chosen.data, up)
    if chosen.wait:
        from controller.cli.waiting import gone, until

        until(layout, names, gone, chosen.timeout)
    elif not up:
        output.note(
            "what runs is stopped by the controller, which is not running. It may ask for "
            f"box prune --confirm when many files vanished at once. Start it: {START}"
        )
    return 0


def _named(chosen: Namespace) -> list[str]:
    if bool(chosen.name) == bool(chosen.file):
        raise UsageError("one of NAME and -f FILE is expected", fix="box delete NAME")
    if chosen.name:
        return [check_name(name) for name in dict.fromkeys(chosen.name)]
    return [one.box.name for one in given(chosen.file)]


def _delete_one(layout: Layout, name: str, erase: bool, up: bool) -> None:
    from controller.apply import delete_file
    from controller.cli.data import fate
    from controller.cli.view import folder_scan, view

    found = folder_scan(layout)
    declared = found is None or name in found.present
    data = fate(layout, name, erase)
    if not up or not _asked(layout, name, erase):
        declared = delete_file(layout.boxes, name)
        if not declared:
            view(layout, name)  # raises NoSandbox
    how = "deleted" if declared else "has no Boxfile any more; the controller is removing it"
    print(f"{name} {how}{data}")


def _asked(layout: Layout, name: str, erase: bool) -> bool:
    """Delete through the controller, for which naming a sandbox counts as confirming its removal.
    False when it has not seen the name yet.
    """
    from controller.cli.client import call

    try:
        call(layout, "DELETE", f"/v1/sandboxes/{name}" + ("?data=erase" if erase else ""))
    except NoSandbox:
        if erase:
            raise
        return False
    return True


def prune(chosen: Namespace) -> int:
    from controller.cli.client import call

    held = call(needed(), "POST" if chosen.confirm else "GET", "/v1/prune")["held"]
    if not held:
        print("nothing is held back")
        return 0
    for reason in sorted(set(held.values())):
        print(f"held back: {output.safe(reason, 1000)}")
        for name in sorted(one for one, why in held.items() if why == reason):
            print(f"  {output.safe(name)}")
    print("their removal begins" if chosen.confirm else "box prune --confirm removes them")
    return 0
