"""Which files the root of a jail holds for a given VMM binary: a plain list, worked out once.

The binary, the libraries its loader maps, the module it opens for software emulation, and the
firmware of the machine types we start. Nothing is mounted here and nothing opened for writing. The
loader is asked, not the binary: nothing of the binary is executed.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from reconcilers.process import run
from specs.errors import CommandError, ConfinementError, HostError

# searched under PREFIX/share, where the binary is PREFIX/bin/NAME; a link is followed to its file
FIRMWARE = (
    "qemu/bios-microvm.bin",
    "qemu/pvh.bin",
    "qemu/linuxboot_dma.bin",
    "seabios/bios-microvm.bin",
)
_LOADER_CACHE = "/etc/ld.so.cache"
_PT_INTERP = 3  # elf(5)


@dataclass(frozen=True, slots=True)
class RootFile:
    """One read-only bind. `host` has no symbolic link in it; `inside` is where the VMM looks."""

    host: str
    inside: str
    executable: bool


def root_files(binary: str, *, kvm: bool = False) -> tuple[RootFile, ...]:
    """The files for QEMU at the absolute path `binary`, cached by its device, inode and mtime.

    Raises ConfinementError(layer="root") when the binary is not one, or its loader cannot resolve a
    library.
    """
    try:
        found = os.stat(binary)
        return _root_files(binary, kvm, (found.st_dev, found.st_ino, found.st_mtime_ns))
    except (OSError, HostError, CommandError, ValueError, struct.error) as error:
        raise ConfinementError(
            f"the files it needs cannot be listed: {error}", layer="root", where=binary
        ) from error


@lru_cache(maxsize=16)
def _root_files(binary: str, kvm: bool, _: tuple[int, int, int]) -> tuple[RootFile, ...]:
    modules = [] if kvm else _emulation_modules(Path(binary))
    libraries: set[str] = set()
    loader = _interpreter(binary)
    if loader is not None:  # else it is static and needs nothing
        libraries = {loader}.union(*(_libraries(loader, each) for each in (binary, *modules)))
    executables = {binary, *modules, *libraries}
    plain = {str(path) for path in _firmware(Path(binary))}
    if any(map(_needs_cache, libraries)):
        plain.add(_LOADER_CACHE)
    return tuple(
        RootFile(os.path.realpath(inside), inside, inside in executables)
        for inside in sorted(executables | plain)
    )


def _emulation_modules(binary: Path) -> list[str]:
    """Debian builds software emulation as a module; elsewhere it may be in the binary."""
    target = binary.name.removeprefix("qemu-system-")
    library = binary.parent.parent / "lib"
    found = [*library.glob(f"*/qemu/accel-tcg-{target}.so")]
    found += library.glob(f"qemu/accel-tcg-{target}.so")
    return [str(path) for path in found]


def _firmware(binary: Path) -> list[Path]:
    share = binary.parent.parent / "share"
    return [share / name for name in FIRMWARE if (share / name).is_file()]


def _libraries(loader: str, executable: str) -> set[str]:
    """Paths of the shared libraries as the loader would open them (ld.so(8), --list)."""
    paths = set()
    for line in run([loader, "--list", executable]).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and rest.startswith("not found"):
            raise HostError(f"the library {name} is not installed")
        path = (rest if arrow else name).rpartition(" (")[0]
        if path.startswith("/"):
            paths.add(path)
    return paths


def _interpreter(executable: str) -> str | None:
    """The program interpreter an ELF file asks for; ValueError when it is no 64-bit ELF file."""
    with open(executable, "rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        # elf(5), Elf64_Ehdr: e_phoff at 32; e_phentsize and e_phnum at 54
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        for index in range(count):
            file.seek(offset + index * size)
            kind, _, start, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == _PT_INTERP:
                file.seek(start)
                return file.read(length).rstrip(b"\0").decode()
    return None


def _needs_cache(library: str) -> bool:
    """Whether it lies outside the folders the loader searches without its cache (ld.so(8))."""
    folder = os.path.dirname(library)
    return not (folder.startswith(("/lib", "/usr/lib")) and folder.count("/") <= 3)
