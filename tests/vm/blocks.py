"""Writes and reads blocks of a disk's chain as a guest would, by a QEMU without any guest."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from reconcilers import layers
from reconcilers.chain import Layer


class Blocks:
    """The layers in `folder`, lowest first, the last one writable; a context manager."""

    def __init__(self, folder: Path, view: Sequence[Layer]) -> None:
        # Connected from the beginning: a QEMU that listens for its monitor may stand still for ever
        # when somebody connects while it starts, as two of its threads accept the same connection.
        self._socket, theirs = socket.socketpair()
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-S"]
        argv += ["-M", "none", "-chardev", f"socket,id=q,fd={theirs.fileno()}"]
        argv += ["-mon", "chardev=q,mode=control"]
        for number, layer in enumerate(view):
            node: dict[str, object] = {
                "driver": layer.format,
                "node-name": f"n{number}",
                "read-only": number < len(view) - 1,
                "file": {
                    "driver": "file",
                    "filename": str(folder / layer.file),
                    "locking": "off",
                },
            }
            if number:
                node["backing"] = f"n{number - 1}"
            argv += ["-blockdev", json.dumps(node)]
        self._top = f"n{len(view) - 1}"
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with it
        with theirs:
            self._process = subprocess.Popen(
                argv, stdout=self._output, stderr=self._output, pass_fds=[theirs.fileno()]
            )
        self._file = self._socket.makefile("rw")
        self._file.readline()
        self._command("qmp_capabilities")

    def write(self, mark: int, at_mib: int) -> None:
        """64 KiB of the byte `mark` there."""
        self._io(f"write -P {mark} {at_mib}M 64k")

    def holds(self, mark: int, at_mib: int) -> bool:
        """Whether what `write` wrote is there; 0 for what nobody wrote."""
        return "verification failed" not in self._io(f"read -P {mark} {at_mib}M 64k")

    def _io(self, what: str) -> str:
        before = os.fstat(self._output.fileno()).st_size
        line = f'qemu-io {self._top} "{what}"'
        answer = self._command("human-monitor-command", **{"command-line": line})
        said = os.pread(self._output.fileno(), 1 << 16, before).decode() + str(answer)
        assert "ops/sec" in said, said
        return said

    def _command(self, name: str, **arguments: object) -> Any:
        self._file.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        self._file.flush()
        while True:
            answer = json.loads(self._file.readline())
            if "event" not in answer:
                assert "return" in answer, answer
                return answer["return"]

    def __enter__(self) -> Blocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._socket.close()
        self._output.close()


def write(folder: Path, mark: int, at_mib: int) -> None:
    """To the disk in `folder`, whose VM is stopped."""
    read = layers.read(folder)
    assert read is not None
    with Blocks(folder, read[0].layers) as blocks:
        blocks.write(mark, at_mib)


def marks(folder: Path, view: Sequence[Layer], wanted: dict[int, int]) -> dict[int, bool]:
    """At each MiB of `wanted`, whether its mark is there."""
    with Blocks(folder, view) as blocks:
        return {at: blocks.holds(mark, at) for at, mark in wanted.items()}
