"""The file system the guest kernel starts from: our agent as /init and the modules it loads.

It must not choose modules (the kernel's reconciler does) and adds no secret: every sandbox with the
same kernel boots from the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from agent.cpio import archive, character, folder, regular

_MODULE_NAME = re.compile(r"[A-Za-z0-9_]{1,60}")


def build_initramfs(agent: Path, modules: Sequence[tuple[str, bytes]]) -> bytes:
    """The initramfs, uncompressed. `modules`: (name without .ko, content) in the order to load.

    Raises ValueError for a module name that is not one, OSError when the agent cannot be read.
    """
    entries = [
        folder("dev"),
        # The kernel opens it for PID 1 before anything is mounted.
        character("dev/console", 5, 1),
        regular("init", agent.read_bytes(), 0o755),
        *(folder(name) for name in ("proc", "sys", "modules", "sysroot", "image", "ram")),
    ]
    for number, (name, content) in enumerate(modules):
        if not _MODULE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no module's name")
        entries.append(regular(f"modules/{number:02}-{name}.ko", content))
    return archive(entries)
