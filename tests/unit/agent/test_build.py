"""The agent's build and the initramfs around it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from agent import build
from agent.cpio import Entry, archive, folder, regular
from agent.initramfs import build_initramfs


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build_agent(tmp_path_factory.mktemp("agent"))


def test_agent_is_static_and_refuses_to_run_as_an_ordinary_process(agent: Path) -> None:
    # A program interpreter in the headers would be a dynamic linker, which the initramfs has not.
    headers = subprocess.run(
        ["readelf", "--program-headers", agent], capture_output=True, text=True, check=True
    )
    assert "INTERP" not in headers.stdout
    assert subprocess.run([agent], timeout=60, check=False).returncode == 1


def test_unchanged_sources_are_not_compiled_again(agent: Path) -> None:
    before = agent.stat().st_ino
    os.utime(agent, (0, 0))
    assert build.build_agent(agent.parent) == agent
    assert agent.stat().st_ino == before
    assert agent.stat().st_mtime > (build.SOURCES / "main.c").stat().st_mtime
    (agent.parent / f"{build.NAME}.sources").write_text("other")
    build.build_agent(agent.parent)
    assert agent.stat().st_ino != before


def test_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="no C compiler called absent-cc"):
        build.build_agent(tmp_path, cc="absent-cc")
    assert not (tmp_path / build.NAME).exists()


def test_compiler_errors_are_shown_and_leave_nothing(tmp_path: Path) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho 'main.c:1: no' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(build.BuildError, match=r"main\.c:1: no"):
        build.build_agent(tmp_path / "out", cc=str(fake))
    assert list((tmp_path / "out").iterdir()) == []


def test_initramfs_is_deterministic(agent: Path) -> None:
    modules = [("virtio", b"one"), ("virtio_ring", b"two!!")]
    assert build_initramfs(agent, modules) == build_initramfs(agent, modules)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "x" * 61])
def test_module_name_cannot_be_a_path(agent: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no module's name"):
        build_initramfs(agent, [(name, b"")])


@pytest.mark.needs_root
def test_archive_is_unpacked_by_an_independent_reader(agent: Path, tmp_path: Path) -> None:
    data = build_initramfs(agent, [("virtio", b"one"), ("virtio_ring", b"two!!")])
    busybox = shutil.which("busybox")
    assert busybox is not None
    subprocess.run([busybox, "cpio", "-idm"], input=data, cwd=tmp_path, check=True, timeout=30)
    assert (tmp_path / "init").read_bytes() == agent.read_bytes()
    assert os.access(tmp_path / "init", os.X_OK)
    assert sorted(p.name for p in (tmp_path / "modules").iterdir()) == [
        "00-virtio.ko",
        "01-virtio_ring.ko",
    ]
    assert (tmp_path / "modules/01-virtio_ring.ko").read_bytes() == b"two!!"
    console = (tmp_path / "dev/console").stat()
    assert stat.S_ISCHR(console.st_mode)
    assert (os.major(console.st_rdev), os.minor(console.st_rdev)) == (5, 1)


def test_archive_has_its_fields_where_the_kernel_looks() -> None:
    data = archive([folder("a"), regular("a/b", b"12345", 0o600), Entry("c", stat.S_IFREG, b"")])
    assert data[:6] == b"070701"
    assert int(data[14:22], 16) == stat.S_IFDIR | 0o755
    assert len(data) % 512 == 0
    assert b"TRAILER!!!" in data
    position = data.index(b"12345")
    assert position % 4 == 0
