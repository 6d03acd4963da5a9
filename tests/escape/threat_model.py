"""security/THREAT_MODEL.md against what the escape suite read: the table of the confinement.

Used where the suite has run anyway: `differences(report)` takes its JSON report. It must not run
the suite, nor judge what the suite judged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "security" / "THREAT_MODEL.md"
NOT_SHOWN = "not shown"
WITH_KVM = "with KVM"
# The rows that a group of checks reads alone; all others are read by `outside`.
ROWS = {"mounts": "mounts", "network": "network bridge"}


def table(text: str = "") -> dict[str, dict[str, str]]:
    """Column ("qemu strict, root") -> reading -> the words of the document."""
    section = (text or PAGE.read_text()).split("## Confinement, as the escape suite reads it", 1)[1]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.split("\n## ", 1)[0].splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    head, *body = rows
    return {
        column: {row[0].strip("`"): row[number] for row in body}
        for number, column in enumerate(head)
        if number
    }


def differences(report: dict[str, Any], text: str = "") -> list[str]:
    """Where document and report disagree, one line each; empty when they agree.

    A reading that the report has and the document lacks is one, and the other way round, but for
    the readings of a group of which nothing was run.
    """
    column = f"{report['backend']} {report['isolation']}, "
    column += "root" if report["user"] == "root" else "ordinary user"
    written = table(text).get(column)
    if written is None:
        return [f"the document has no column {column!r}"]
    read = {key: _words(key, value, report) for key, value in report["confinement"].items()}
    found = []
    ran = {str(each["id"]).partition(".")[0] for each in report.get("checks", [])}
    of_group = dict.fromkeys(written, "outside") | {row: group for group, row in ROWS.items()}
    left_out = {row for row, group in of_group.items() if ran and group not in ran}
    for key in sorted((written.keys() | read.keys()) - left_out):
        said, seen = written.get(key, "no such row"), read.get(key, NOT_SHOWN)
        if said != seen:
            found.append(f"{column}: {key}: the document says {said!r}, the suite read {seen!r}")
    return found


def _words(key: str, value: Any, report: dict[str, Any]) -> str:
    """A value of the report as the document writes it."""
    if key == "hardware":
        # right is: real with KVM, not with emulation
        return WITH_KVM if value is (report["accel"] != "tcg") else f"{value} ({report['accel']})"
    if key == "seccomp_allowed":
        # how many calls remain depends on the version of QEMU's profile; none of them may harm
        return "no harmful call" if re.search(r"\bnone of \d+ harmful", str(value)) else str(value)
    if isinstance(value, dict):
        return ", ".join(sorted({str(each) for each in value.values()}))
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
