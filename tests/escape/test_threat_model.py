"""The comparison of the threat model with the suite's report: it must notice every lie.

The comparison with a real report is made where the suite runs; here a report of one is kept.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.escape.threat_model import PAGE, differences, table

COLUMNS = [
    f"qemu {isolation}, {user}"
    for user in ("root", "ordinary user")
    for isolation in ("strict", "standard")
]
# What the suite wrote for `strict` as root on a host without KVM.
REPORT: dict[str, Any] = {
    "isolation": "strict",
    "backend": "qemu",
    "accel": "tcg",
    "user": "root",
    "confinement": {
        "capabilities": {"a": "none", "b": "none"},
        "no_new_privs": "1",
        "seccomp": "filter",
        "seccomp_allowed": "106 of 467 calls, none of 122 harmful ones",
        "uid": "own",
        "namespaces": ["net", "pid", "mnt", "ipc", "uts", "cgroup"],
        "limits": ["memory", "pids", "cpu"],
        "descriptors": "own disk, image, sockets",
        "root": "read-only, own",
        "network none": "lo only",
        "mounts": "the directory alone",
        "network bridge": "its egress alone",
        "hardware": False,
    },
}


def changed(**more: Any) -> dict[str, Any]:
    return {**REPORT, "confinement": {**REPORT["confinement"], **more}}


def test_document_and_report_agree() -> None:
    assert list(table()) == COLUMNS
    assert differences(REPORT) == []


@pytest.mark.parametrize("key", REPORT["confinement"])
def test_a_reading_that_differs_or_is_missing_is_found(key: str) -> None:
    other = True if key == "hardware" else "something else"
    assert len(differences(changed(**{key: other}))) == 1
    missing = changed()
    del missing["confinement"][key]
    assert len(differences(missing)) == 1


def test_a_reading_the_document_lacks_is_found() -> None:
    (found,) = differences(changed(firmware="signed"))
    assert "firmware" in found and "no such row" in found


def test_a_helper_with_a_right_of_its_own_is_found() -> None:
    assert differences(changed(capabilities={"a": "none", "b": "CAP_CHOWN"}))


def test_a_configuration_the_document_lacks_is_found() -> None:
    assert differences({**REPORT, "backend": "firecracker"}) != []


def test_every_cell_of_the_document_says_something() -> None:
    assert all(cell for column in table().values() for cell in column.values())
    lied = PAGE.read_text().replace("| `uid` | own |", "| `uid` | shared |")
    assert len(differences(REPORT, lied)) == 1
