"""The wheel that `./dev install` builds holds all that box needs at run time, with the agent."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.lint.tree import ROOT, project_files
from tests.setup.wheel import BUILD_SECONDS, build_wheel

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 100)
ELF_MAGIC = b"\x7fELF"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_carries_the_compiled_agent(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        member = archive.getinfo("agent/_bin/box-agent")
        assert archive.read(member)[:4] == ELF_MAGIC
        assert (member.external_attr >> 16) & 0o111, "the agent is not executable"


def test_the_wheel_fits_every_python_but_only_this_kind_of_machine(wheel: Path) -> None:
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none")
    assert platform.startswith("linux_")


def test_the_wheel_holds_every_module_and_data_file_of_the_product(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in project_files()
        if path.relative_to(ROOT).parts[0] in ("specs", "agent", "reconcilers", "controller")
        and path.suffix == ".py"
    }
    wanted |= {str(p.relative_to(ROOT)) for p in (ROOT / "security/profiles").glob("*.json")}
    wanted |= {str(p.relative_to(ROOT)) for p in (ROOT / "examples").glob("*.box.*")}
    assert wanted - packed == set()
