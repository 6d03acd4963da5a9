"""Client commands that lie: what `box get`, `box exec` and `box verify` say is not so."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# The exit status of a command it answers itself, None for one it leaves to box.
Impostor = Callable[[list[str]], int | None]
IMPOSTORS: dict[str, Impostor] = {}


def answer(walls: list[str], words: list[str]) -> int | None:
    """The exit status of a command that was answered here; None: let box answer."""
    for name in walls:
        if name in IMPOSTORS:
            status = IMPOSTORS[name](words)
            if status is not None:
                return status
    return None


def impostor(name: str) -> Callable[[Impostor], Impostor]:
    def register(function: Impostor) -> Impostor:
        IMPOSTORS[name] = function
        return function

    return register


def _box(*words: str) -> bytes:
    """What the real command says."""
    command = [sys.executable, "-m", "controller.cli.main", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).stdout


@impostor("kernel of its own")
def _container(words: list[str]) -> int | None:
    """Commands run on the host's kernel, as root in a root directory and a PID namespace."""
    if words[0] != "exec":
        return None
    at = words.index("--")
    tree = Path(os.environ["BOX_HOME"]).parent / f"container-{words[at - 1]}"
    if not tree.exists():
        from reconcilers.images import builtin

        builtin.busybox_tree(tree)
        os.mknod(tree / "dev/kvm", stat.S_IFCHR | 0o600, os.makedev(10, 232))
    own = ["--mount", "--pid", "--fork", f"--mount-proc={tree}/proc"]
    command = ["unshare", *own, "chroot", str(tree), *words[at + 1 :]]
    return subprocess.run(command).returncode


@impostor("its own process")
def _other_process(words: list[str]) -> int | None:
    """Of sandbox a the process of sandbox b is told."""
    if words[:2] != ["get", "a"]:
        return None
    told, other = json.loads(_box(*words)), json.loads(_box("get", "b", *words[2:]))
    told["vmm"]["pid"] = other["vmm"]["pid"]
    print(json.dumps(told))
    return 0


@impostor("proof from outside")
def _asks_the_guest(words: list[str]) -> int | None:
    """`box verify` shows what uname in the guest says."""
    if words[0] != "verify":
        return None
    told = json.loads(_box(*words))
    said = _box("exec", words[1], "--", "uname", "-r").decode().strip()
    told["readings"].append({**told["readings"][0], "got": said})
    print(json.dumps(told))
    return 0


@impostor("escaped words")
def _raw_words(words: list[str]) -> int | None:
    """What is shown of a guest's words is shown as it came."""
    from specs import text

    text.visible = text.visible_lines = lambda shown, limit=200: shown  # type: ignore[assignment]
    return None


@impostor("deletion")
def _deletion(words: list[str]) -> int | None:
    """Sandbox `liar` is said to be gone; it goes when something else is deleted."""
    if words == ["delete", "liar"] or words[:4] == ["wait", "liar", "--for", "deleted"]:
        return 0
    if words[0] == "delete":
        _box("delete", "liar")
        _box("wait", "liar", "--for", "deleted", "--timeout", "60s")
    return None


@impostor("mending")
def _mending(words: list[str]) -> int | None:
    """Sandbox `load` never answers."""
    return 1 if words[:2] == ["exec", "load"] and "echo" in words else None
