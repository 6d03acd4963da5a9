"""The list of files a jail root holds: what the loader needs, resolved, and nothing more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from reconcilers.confinement.rootview import root_files
from specs.errors import ConfinementError

BUSYBOX = "/usr/bin/busybox"


@pytest.fixture
def qemu() -> str:
    found = shutil.which("qemu-system-x86_64")
    if found is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    return os.path.realpath(found)


def test_sources_have_no_link_in_them_and_are_regular_files(qemu: str) -> None:
    for each in root_files(qemu):
        assert os.path.realpath(each.host) == each.host
        assert Path(each.host).is_file()
        assert each.inside.startswith("/")


def test_binary_loader_libc_and_firmware_are_there(qemu: str) -> None:
    inside = {Path(each.inside).name: each for each in root_files(qemu)}
    assert inside[Path(qemu).name].executable
    assert inside["libc.so.6"].executable
    assert any(name.startswith("ld-linux") for name in inside)
    firmware = [each for each in root_files(qemu) if each.inside.endswith("/pvh.bin")]
    assert len(firmware) == 1 and not firmware[0].executable


def test_emulation_module_is_left_out_with_kvm(qemu: str) -> None:
    def names(kvm: bool) -> set[str]:
        return {Path(each.inside).name for each in root_files(qemu, kvm=kvm)}

    assert names(False) - names(True) <= {"accel-tcg-x86_64.so"}


def test_nothing_of_the_host_beyond_libraries_and_firmware(qemu: str) -> None:
    for each in root_files(qemu):
        assert each.inside.startswith(("/usr/", "/lib")) or each.inside == "/etc/ld.so.cache"


def test_static_binary_needs_itself_alone(tmp_path: Path) -> None:
    if not Path(BUSYBOX).exists():
        pytest.skip("busybox-static is not installed")
    binary = tmp_path / "program"
    shutil.copy(BUSYBOX, binary)
    assert [each.inside for each in root_files(str(binary))] == [str(binary)]


def test_list_is_made_anew_when_the_binary_changed(tmp_path: Path) -> None:
    binary = tmp_path / "program"
    shutil.copy("/bin/true", binary)
    first = root_files(str(binary))
    assert root_files(str(binary)) is first
    shutil.copy("/bin/ls", binary)
    assert root_files(str(binary)) != first


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01" + bytes(60)])
def test_file_that_is_no_64_bit_program_is_a_confinement_error(
    content: bytes, tmp_path: Path
) -> None:
    binary = tmp_path / "program"
    binary.write_bytes(content)
    with pytest.raises(ConfinementError) as caught:
        root_files(str(binary))
    assert caught.value.layer == "root"


def test_missing_binary_is_a_confinement_error(tmp_path: Path) -> None:
    with pytest.raises(ConfinementError):
        root_files(str(tmp_path / "absent"))
