"""No Boxfile, however hostile, hangs or exhausts the parser."""

from __future__ import annotations

import time

import pytest

from specs.document import DEPTH_MAX, NODES_MAX, SIZE_MAX
from specs.parse import parse_boxfile
from tests.unit.specs.helpers import accepted, only_problem

N = SIZE_MAX
CPU_SECONDS_MAX = 5.0  # the worst of these takes under 1 s; without the bounds some take minutes

YAML_ATTACKS = {
    "flow lists": "[" * N,
    "flow maps": "{a: " * (N // 4),
    "block lists": "- " * (N // 2),
    "explicit keys": "? " * (N // 2),
    "many keys": "".join(f"k{n}: 1\n" for n in range(N // 10)),
    "many items": "env: [" + "a," * (N // 3) + "]",
    "anchors": "env: [" + "&a x," * (N // 6) + "]",
    "documents": "---\n" * (N // 4),
    "long word": "x" * N,
    "long tag": "env: !" + "x" * (N - 6),
    "spaces": " " * N,
    "no-break spaces": "\u00a0" * (N // 2),
    "folded": "env: >\n" + " x\n" * (N // 3 - 5),
    "escapes": 'base: "' + "\\x41" * (N // 4 - 3) + '"',
    "many digits": "cpus: " + "9" * (N - 6),
    "directive digits": "%YAML " + "1" * (N - 20) + ".1\n---\n",
}
TOML_ATTACKS = {
    "arrays": "a=" + "[" * (N - 2),
    "inline tables": "a=" + "{a=" * (N // 3 - 1),
    "dotted key": "a." * (N // 2 - 2) + "a=1",
    "dotted key with spaces": "a . " * (N // 4 - 2) + "a=1",
    "quotes": '"' * N,
    "long word": "x" * N,
    "spaces": "a" + " " * (N - 1),
    "many tables": "".join(f"[a{n}]\n" for n in range(N // 9)),
    "arrays of tables": "[[a]]\n" * (N // 6),
    "many digits": "cpus=" + "9" * (N - 5),
    "many fraction digits": "cpus=0." + "9" * (N - 7),
}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(pytest.param("a.yaml", t, id=f"yaml {k}") for k, t in YAML_ATTACKS.items()),
        *(pytest.param("a.box.toml", t, id=f"toml {k}") for k, t in TOML_ATTACKS.items()),
    ],
)
def test_hostile_text_is_refused_in_bounded_time(file: str, text: str) -> None:
    data = text.encode()
    assert len(data) <= SIZE_MAX
    begin = time.process_time()
    parsed = parse_boxfile(data, file=file, expected_name="a")
    assert time.process_time() - begin < CPU_SECONDS_MAX
    assert parsed.box is None
    assert all(len(str(problem)) < 2000 for problem in parsed.problems)


def test_aliases_that_multiply_are_refused() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 10)]
    assert f"more than {NODES_MAX} values" in only_problem("\n".join(rows)).message


def test_aliases_that_nest_are_refused() -> None:
    rows = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]
    assert f"nested deeper than {DEPTH_MAX}" in only_problem("\n".join(rows)).message


def test_file_above_the_size_limit_is_refused_unread() -> None:
    comment = b"cpus: 2\n#" + b"x" * (SIZE_MAX - 9)
    accepted(comment)
    assert str(SIZE_MAX) in only_problem(comment + b"x").message


def test_large_but_honest_boxfile_is_accepted() -> None:
    rows = "".join(f"  KEY_{n}: value {n}\n" for n in range(1000))
    assert len(accepted("env:\n" + rows).env) == 1000
