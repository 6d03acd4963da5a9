"""The table of seconds per file leaves no second out."""

from __future__ import annotations

from tests.filetimes import SHOWN, table


def test_the_longest_come_first_and_the_rest_is_one_sum() -> None:
    took = {f"test_{number:02}.py": float(number) for number in range(SHOWN + 3)}
    lines = table(took)
    assert [line.split()[-1] for line in lines[:2]] == ["test_14.py", "test_13.py"]
    assert lines[-1].split(maxsplit=2) == ["3.0", "s", "3 more files"]
    assert sum(float(line.split()[0]) for line in lines) == sum(took.values())


def test_few_files_have_no_rest() -> None:
    assert table({"test_a.py": 0.25}) == ["    0.2 s  test_a.py"]
