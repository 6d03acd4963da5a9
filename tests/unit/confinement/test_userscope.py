"""What is asked of a user's systemd, and what is made of its answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from reconcilers.confinement import handed, userscope


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        ("box.scope", "box_2escope"),
        ("run-r0a.scope", "run_2dr0a_2escope"),
        ("0box.service", "_30box_2eservice"),
        ("a@é.service", "a_40_c3_a9_2eservice"),
    ],
)
def test_a_unit_is_named_in_a_path_as_sd_bus_does(unit: str, path: str) -> None:
    assert userscope.label(unit) == path


def test_a_group_is_taken_from_an_answer() -> None:
    answer = 's "/user.slice/user-1000.slice/user@1000.service/app.slice/box.scope"\n'
    assert userscope.control_group(answer).endswith("/app.slice/box.scope")


@pytest.mark.parametrize("answer", ["", 's ""', "b true", 's "/a" "/b"', 's "/a/../b"', 's "a'])
def test_any_other_answer_is_none(answer: str) -> None:
    with pytest.raises(ValueError):
        userscope.control_group(answer)


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("user.slice/user-1000.slice/session-2.scope", None),
        ("user.slice/user-1000.slice/user@1000.service", ""),
        ("user.slice/user@1000.service/app.slice", ""),
        ("x.slice/user@7.service/a.slice/a.scope", "x.slice/user@7.service/a.slice/a.scope"),
        ("user@1000.service/app.slice/a.service/leaf", "user@1000.service/app.slice/a.service"),
        ("box-users/1000/session", None),
        ("", None),
    ],
)
def test_the_unit_of_a_group(group: str, unit: str | None) -> None:
    assert handed.unit_of(group) == unit


def test_a_bus_address_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b,c"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    here = f"unix:path={tmp_path}/a%20b%2Cc/bus"
    assert userscope.bus_address() != here
    with socket.socket(socket.AF_UNIX) as bus:
        monkeypatch.chdir(folder)  # an absolute path may be longer than an address
        bus.bind("bus")
        assert userscope.bus_address() == here
