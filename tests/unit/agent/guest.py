"""The agent's C code that has /data before it, compiled for a directory of the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agent import archive, build
from agent.archive import Record
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.pack import pack
from reconcilers.guestfiles.unpack import unpack

DRIVER = Path(__file__).with_name("transfer_driver.c")
NAMES = [
    *(
        "archive",
        "attributes",
        "base",
        "changes",
        "content",
        "digest",
        "listing",
        "merge",
        "merge_apply",
    ),
    *("merge_check", "numbers", "pack", "packer", "reading", "staged", "trees", "unpack", "volume"),
]
SANITIZERS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PLACES = {"DATA": "data", "SYSROOT": "data", "BASE": "base", "CONSOLE": "console"}
WHERE = [*(f'-D{name}="{path}"' for name, path in PLACES.items()), "-Wl,--wrap=renameat"]
TRANSFER = 64 << 20


def compiled(target: Path) -> Path:
    """The driver, under sanitizers."""
    sources = [str(build.SOURCES / f"{name}.c") for name in NAMES]
    command = ["cc", *build.LANGUAGE, *build.WARNINGS, *SANITIZERS, *WHERE, f"-I{build.SOURCES}"]
    command += ["-Wno-missing-prototypes", *sources, str(DRIVER), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    return target


class Guest:
    """A folder with `data` and `transfer`, and what the driver says about them."""

    def __init__(self, driver: Path, folder: Path) -> None:
        self.driver, self.folder, self.data = driver, folder, folder / "data"
        self.transfer = folder / "transfer"
        self.data.mkdir()
        with self.transfer.open("wb") as file:
            file.truncate(TRANSFER)

    def run(self, *arguments: str, status: int = 0) -> str:
        """What it says on standard error."""
        return self._run(arguments, status).stderr.decode(errors="replace")

    def told(self, *arguments: str) -> bytes:
        """What it says on standard output."""
        return self._run(arguments, 0).stdout

    def _run(self, arguments: tuple[str, ...], status: int) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [self.driver, *arguments], cwd=self.folder, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == status, done
        return done

    def exported(self) -> tuple[Path, Notes]:
        self.run("export")
        target, notes = self.folder / "out", Notes()
        target.mkdir()
        root, source = os.open(target, os.O_RDONLY), os.open(self.transfer, os.O_RDONLY)
        unpack(root, source, notes)
        os.close(root)
        os.close(source)
        return target, notes

    def put(self, tree: Path) -> None:
        root, target = os.open(tree, os.O_RDONLY), os.open(self.transfer, os.O_RDWR | os.O_TRUNC)
        pack(root, target, Notes())
        os.close(root)
        os.close(target)

    def put_records(self, *parts: tuple[Record, bytes], changes: bool = False) -> None:
        data = bytearray(archive.CHANGES_HEADER if changes else archive.HEADER)
        for record, content in parts:
            data += archive.encode(record, len(data)) + content
            data += bytes(-len(data) % archive.UNIT)
        self.transfer.write_bytes(bytes(data) + bytes(-len(data) % archive.BLOCK))
