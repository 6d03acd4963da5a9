"""`box describe`: the spec, the conditions, what was observed, drift, and how to try again by
hand.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from controller.cli import output
from controller.cli.fixes import fix_for
from controller.cli.place import needed, say_when_down
from controller.cli.view import View, view
from reconcilers.layout import Layout
from specs.text import one_line

STATUS_COLOURS = {"True": output.GREEN, "False": output.RED, "Unknown": output.YELLOW}
EVENTS_SHOWN = 10
_COMMANDS = ("run", "runcmd")  # lines of a shell, in which a comma means nothing


def describe(chosen: Namespace) -> int:
    layout = needed()
    found = view(layout, chosen.name)
    say_when_down(layout)
    if chosen.form != "table":
        output.print_data(_data(layout, found), chosen.form)
        return 0
    _head(found)
    _spec(found)
    if found.report is None:
        print("\nNothing has been observed yet.")
    else:
        _conditions(layout, found)
        _failure(found)
        _facts("Image", found.report.image)
        _facts("Vmm", found.report.vmm)
        _facts("Guest", found.report.guest)
        _facts("Network", found.report.network)
        _mounts(found.report.mounts)
        _drift(found)
    _events(layout, found.name)
    if found.report is not None:
        _confinement(found.report.confinement)  # by far the longest part
    return 0


def _data(layout: Layout, found: View) -> dict[str, Any]:
    """What the tables show, and every event."""
    from controller.store import Store

    record = found.record
    return {
        **found.data(),
        "twins": list(found.twins),
        "uid": record.uid if record else None,
        "suspended": bool(record and record.suspended),
        "held": bool(record and record.held),
        "record_error": found.garbled,
        "file_error": found.trouble,
        "events": [asdict(event) for event in Store(layout).read_events(found.name)],
    }


def _title(text: str) -> None:
    print(f"\n{output.paint(text, output.BOLD)}")


def _head(found: View) -> None:
    record, report = found.record, found.report
    output.print_pairs(
        [
            ("Name", found.name),
            ("File", found.file or "(not in the folder)"),
            ("Unreadable", found.trouble),
            ("Digest", found.digest),
            ("Also declared by", ", ".join(found.twins)),
            ("Generation", report.generation if report else (record.generation if record else "")),
            ("State", report.state if report else ""),
            ("Backend", found.backend),
            ("Isolation", found.isolation),
            ("Identity", f"uid {record.uid}" if record and record.uid is not None else ""),
            ("Created", _when(record.created if record else "")),
            ("Last change", _when(report.last_change if report else "")),
            ("Suspended", "yes" if record and record.suspended else ""),
            ("Held back", "yes: box prune shows why" if record and record.held else ""),
            ("Record", f"unreadable: {found.garbled}" if found.garbled else ""),
        ]
    )


def _when(text: str) -> str:
    return f"{text} ({output.age(text)} ago)" if text else ""


def _spec(found: View) -> None:
    if found.record is None or found.record.spec is None:
        return
    spec = found.record.spec
    _title("Spec in force (defaults left out)")
    _nested(spec.to_plain(), "  ")
    left_out = {"base": spec.base, "cpus": spec.cpus, "ram_mib": spec.ram_mib}
    left_out |= {"data.size_mib": spec.data.size_mib, "data.on_delete": spec.data.on_delete.value}
    written = spec.to_plain() | {f"data.{key}": 1 for key in spec.to_plain().get("data", {})}
    defaults = (f"{key}: {one}" for key, one in left_out.items() if key not in written)
    print(f"  # by default: {', '.join(defaults)}")


def _nested(value: dict[str, Any], indent: str) -> None:
    for key, one in value.items():
        if isinstance(one, dict):
            print(f"{indent}{output.safe(key)}:")
            _nested(one, indent + "  ")
        elif isinstance(one, list) and (key in _COMMANDS or any(isinstance(n, dict) for n in one)):
            print(f"{indent}{output.safe(key)}:")
            for each in one:
                print(f"{indent}  - {output.safe(_entry(each), 1000)}")
        elif isinstance(one, list):
            print(f"{indent}{output.safe(key)}: {output.safe(', '.join(map(str, one)))}")
        else:
            print(f"{indent}{output.safe(key)}: {output.safe(one)}")


def _entry(one: Any) -> str:
    if isinstance(one, dict):
        return "{" + ", ".join(f"{name}: {text}" for name, text in one.items()) + "}"
    return shlex.join(one) if isinstance(one, list) else str(one)


def _conditions(layout: Layout, found: View) -> None:
    assert found.report is not None
    _title("Conditions")
    rows = [
        [
            str(one.type),
            str(one.status),
            str(one.reason),
            output.age(one.since),
            str(one.generation),
            *(output.safe(text, 1000) for text in one.message.split("\n")[:1]),
        ]
        for one in found.report.conditions
    ]
    head = ["TYPE", "STATUS", "REASON", "SINCE", "GENERATION", "MESSAGE"]
    sizes = output.widths([head, *rows])
    print("  " + output.line(head, sizes))
    for row, one in zip(rows, found.report.conditions, strict=True):
        # Drifted is the one condition that is good when it is False.
        good = (
            {"True": "False", "False": "True"}.get(row[1], row[1])
            if row[0] == "Drifted"
            else row[1]
        )
        print("  " + output.line(row, sizes, ["", STATUS_COLOURS.get(good, "")]))
        indent = " " * (sum(sizes[:-1]) + 2 * len(sizes))
        for more in one.message.split("\n")[1:]:  # several mistakes, each a line
            print(indent + output.safe(more.strip(), 1000))
        if fix := fix_for(layout, found.name, one, found.failure):
            print(f"{indent}fix: {output.safe(fix, 400)}")


def _failure(found: View) -> None:
    failure = found.failure
    if failure is None:
        return
    _title("Last failure")
    print(f"  {output.safe(failure.step)}: {output.safe_lines(failure.message)}")
    if failure.fix:
        print(f"  fix: {output.safe(failure.fix, 1000)}")
    if failure.replay:
        print(f"  run the failed command again: {output.safe(failure.replay, 100_000)}")


def _facts(title: str, facts: dict[str, Any]) -> None:
    if facts:
        _title(title)
        shown = {key: value for key, value in facts.items() if key != "argv"}
        output.print_pairs(((key, _flat(value)) for key, value in shown.items()), "  ")
        if isinstance(facts.get("argv"), list):
            print("  argv")
            for text in _wrapped(facts["argv"]):
                print(f"    {output.safe(text, 10_000)}")


def _mounts(mounts: tuple[dict[str, Any], ...]) -> None:
    """Where each host path leads: links in it are resolved once, at the start."""
    if not mounts:
        return
    _title("Mounts")
    head = ["HOST", "LEADS TO", "GUEST", "MODE", "OWNER", "SEES"]
    keys = ("host", "path", "guest", "mode", "owner", "sees")
    rows = [head, *([output.safe(one.get(key, "")) for key in keys] for one in mounts)]
    sizes = output.widths(rows)
    for row in rows:
        print("  " + output.line(row, sizes))


def _wrapped(argv: list[Any]) -> list[str]:
    """A command line that can be pasted, an option with its value on each line."""
    lines: list[str] = []
    for word in map(str, argv):
        quoted = shlex.quote(word)
        if (
            lines
            and not word.startswith("-")
            and lines[-1].startswith("-")
            and " " not in lines[-1]
        ):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return [f"{text} \\" for text in lines[:-1]] + lines[-1:]


def _flat(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _confinement(readings: tuple[dict[str, Any], ...]) -> None:
    if not readings:
        return
    _title("Confinement, as read off the VMM")
    print_readings(readings, "  ")


def print_readings(
    readings: tuple[dict[str, Any], ...] | list[dict[str, Any]], indent: str
) -> None:
    """One line per reading."""
    rows = reading_rows(readings)
    head = ["", "LAYER", "ITEM", "FOUND", "READ FROM"]
    sizes = output.widths([head, *rows])
    print(indent + output.line(head, sizes))
    for row in rows:
        print(indent + output.line(row, sizes, [output.GREEN if row[0] == "ok" else output.RED]))


def reading_rows(readings: tuple[dict[str, Any], ...] | list[dict[str, Any]]) -> list[list[str]]:
    """Safe cells of each reading; what is not as wanted says what was wanted."""
    rows = []
    for one in readings:
        ok = bool(one.get("ok"))
        got, want = str(one.get("got", "")), str(one.get("want", ""))
        when = "" if one.get("when") == "live" else f" ({one.get('when')})"
        rows.append(
            [
                "ok" if ok else "FAIL",
                output.safe(one.get("layer", "")),
                output.safe(one.get("item", "")),
                output.safe(got if ok else f"{got} instead of {want}", 120),
                output.safe(f"{one.get('source', '')}{when}"),
            ]
        )
    return rows


def _drift(found: View) -> None:
    if found.report is None or not found.report.drift:
        return
    _title("Drift")
    for one in found.report.drift:
        state = f"corrected {_when(one.corrected)}" if one.corrected else "open"
        print(
            f"  {output.safe(one.field)}: {output.safe(one.observed)} instead of "
            f"{output.safe(one.desired)}, first seen {_when(one.first_seen)}; "
            f"{output.safe(one.action)}; {state}"
        )


def _events(layout: Layout, name: str) -> None:
    from controller.store import Store

    events = Store(layout).read_events(name)[-EVENTS_SHOWN:]
    if not events:
        return
    _title("Events (box events shows all)")
    rows = [
        [output.age(e.time), output.safe(e.kind), output.safe(one_line(e.message), 400)]
        for e in events
    ]
    sizes = output.widths(rows)
    for row in rows:
        print("  " + output.line(row, sizes))
