"""House rules about the source tree that no off-the-shelf linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.lint.tree import ROOMS, ROOT, project_files, python_files

LINES_MAX = 400

# Paths that exist only where somebody happened to work. /root is left out: guests have one.
WORKING_PATH = re.compile(r"(?<![\w.])/(?:work|farm|Users|home/[a-z][\w-]*)/")


def text_of(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) for every import statement, nested ones too."""
    for node in ast.walk(ast.parse(text_of(path), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def test_no_source_file_is_longer_than_the_limit() -> None:
    source = [p for p in project_files() if p.suffix in (".py", ".c", ".h", ".sh")]
    assert source
    long = {str(p.relative_to(ROOT)): n for p in source if (n := line_count(p)) > LINES_MAX}
    assert long == {}


def line_count(path: Path) -> int:
    return len(text_of(path).splitlines())


def test_no_module_is_named_utils() -> None:
    vague = {"utils", "util", "misc"}
    named = [str(p.relative_to(ROOT)) for p in project_files() if p.stem in vague]
    assert named == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if WORKING_PATH.search(line)
    ]
    assert found == []


def test_the_adversary_imports_nothing_of_ours() -> None:
    ours = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in python_files("security")
        for line, module in imports(path)
        if module.split(".")[0] in ROOMS
    ]
    assert ours == []


def test_every_module_of_the_product_says_why_it_exists() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files(*ROOMS)
        if (source := text_of(path)).strip() and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


def test_no_reconciler_may_be_imported_by_a_lower_room() -> None:
    """The same rule as import-linter's, for imports inside functions and under TYPE_CHECKING."""
    upward = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for height, room in enumerate(ROOMS)
        for path in python_files(room)
        for line, module in imports(path)
        if module.split(".")[0] in ROOMS[height + 1 :]
    ]
    assert upward == []
