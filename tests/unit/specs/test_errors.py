"""Errors carry what, where, why and the fix."""

from __future__ import annotations

import pytest

from specs import errors
from specs.errors import BoxError, CommandError, ConfinementError, InvalidBoxfile, Problem


def test_error_text_has_place_message_and_fix() -> None:
    error = BoxError("no kernel", fix="run ./dev setup", where="config.toml")
    assert str(error) == "config.toml: no kernel\n  fix: run ./dev setup"
    assert str(BoxError("no kernel")) == "no kernel"


@pytest.mark.parametrize(
    ("name", "code", "status", "retry"),
    [
        ("BoxError", "internal", 1, True),
        ("UsageError", "bad_request", 2, False),
        ("BadName", "bad_name", 2, False),
        ("InvalidBoxfile", "invalid", 2, False),
        ("NoSandbox", "no_sandbox", 1, False),
        ("NotUp", "not_up", 1, True),
        ("Conflict", "conflict", 1, False),
        ("HostError", "internal", 1, True),
        ("Terminal", "internal", 1, False),
        ("RefusedByPolicy", "refused_by_policy", 1, False),
        ("ConfinementError", "internal", 1, True),
        ("ProtocolError", "internal", 1, True),
    ],
)
def test_type_says_code_status_and_whether_to_retry(
    name: str, code: str, status: int, retry: bool
) -> None:
    kind = getattr(errors, name)
    assert (kind.code, kind.exit_status, kind.retry) == (code, status, retry)


def test_command_error_is_replayable_and_shows_no_raw_escapes() -> None:
    error = CommandError(
        "mke2fs failed", argv=("mke2fs", "-d", "a b"), status=1, last_lines="one\n\x1b[31mtwo"
    )
    assert error.replay == "mke2fs -d 'a b'"
    assert "run it again: mke2fs -d 'a b'" in str(error)
    assert "\x1b" not in str(error)


def test_confinement_error_names_the_layer() -> None:
    assert ConfinementError("not mounted", layer="cgroup").layer == "cgroup"


def test_invalid_boxfile_lists_every_problem() -> None:
    one = Problem("a.yaml", 7, 3, "cpus", "99 is too large", "use 16 or less")
    error = InvalidBoxfile.of((one, Problem("a.yaml", 9, 1, "", "odd")))
    assert "a.yaml: 2 mistakes" in str(error)
    assert "a.yaml:7:3: cpus: 99 is too large; fix: use 16 or less" in str(error)
    assert "a.yaml:9:1: odd" in str(error)
