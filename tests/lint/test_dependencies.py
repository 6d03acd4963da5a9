"""Every dependency has a reason written down, is used, and is pinned by hash."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.lint.test_tree import imports, text_of
from tests.lint.tree import ROOMS, ROOT, python_files

DOC = ROOT / "docs" / "dependencies.md"
LOCKS = ("requirements-build.lock", "requirements.lock", "requirements-dev.lock")


def normal(name: str) -> str:
    """PEP 503: one spelling per distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str = "") -> set[str]:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {normal(re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0]) for line in wanted}


def documented() -> dict[str, str]:
    """First column (a name in backticks) -> last column (the reason) of every table row."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|\s*$", text_of(DOC), flags=re.MULTILINE)
    return {name: rest.split("|")[-1].strip() for name, rest in rows}


def debian_packages() -> set[str]:
    return set(
        re.findall(r"^(?:\w*PACKAGES=')?([a-z0-9.+-]+)\|", text_of(ROOT / "dev"), re.MULTILINE)
    )


def pinned(lock: str) -> set[str]:
    return {normal(n) for n in re.findall(r"^([\w.-]+)==", text_of(ROOT / lock), re.MULTILINE)}


def test_every_dependency_has_a_documented_reason() -> None:
    known = {normal(name): reason for name, reason in documented().items()}
    wanted = declared() | declared("dev") | {normal(n) for n in debian_packages()}
    assert "qemu-system-x86" in wanted
    assert {name for name in wanted if not known.get(name)} == set()


def test_no_reason_is_documented_for_something_unused() -> None:
    wanted = declared() | declared("dev") | debian_packages() | {"setuptools"}
    assert {name for name in documented() if normal(name) not in wanted} == set()


def test_every_runtime_dependency_is_imported_by_the_product() -> None:
    distributions = packages_distributions()
    used: set[str] = set()
    for path in python_files(*ROOMS):
        for _, module in imports(path):
            used |= {normal(d) for d in distributions.get(module.split(".")[0], ())}
    assert declared() - used == set()


def test_nothing_undeclared_is_imported_by_the_product() -> None:
    distributions = packages_distributions()
    used = {
        normal(distribution): path
        for path in python_files(*ROOMS)
        for _, module in imports(path)
        for distribution in distributions.get(module.split(".")[0], ())
    }
    undeclared = {name: path for name, path in used.items() if name not in declared()}
    undeclared.pop("box-controller", None)
    assert undeclared == {}


def test_the_locks_pin_everything_declared() -> None:
    assert declared() <= pinned("requirements.lock")
    assert pinned("requirements.lock") | declared("dev") <= pinned("requirements-dev.lock")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_hashes_and_no_address(lock: str) -> None:
    text = text_of(ROOT / lock)
    assert "://" not in text
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [e.splitlines()[0] for e in entries if "--hash=sha256:" not in e] == []


def test_both_locks_agree_on_versions() -> None:
    def versions(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", text_of(path), flags=re.MULTILINE))

    run, develop = versions(ROOT / "requirements.lock"), versions(ROOT / "requirements-dev.lock")
    assert {n: (v, develop.get(n)) for n, v in run.items() if develop.get(n) != v} == {}
