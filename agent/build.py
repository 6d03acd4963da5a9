"""Compiles the guest agent with the system's C compiler.

Used by the wheel's build (so it needs nothing but the standard library) and by
`python -m agent.build`. It must not fetch anything: the sources beside it and a static C library
are all there is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from specs.errors import HostError

SOURCES = Path(__file__).resolve().parent / "src"
DEFAULT_OUT = Path(__file__).resolve().parent / "_bin"
NAME = "box-agent"
_WARNINGS = """
    -Wall -Wextra -Werror -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes
    -Wmissing-prototypes -Wold-style-definition -Wvla -Wformat=2 -Wcast-qual -Wcast-align -Wundef
    -Wpointer-arith -Wwrite-strings -Wredundant-decls -Wimplicit-fallthrough -Wswitch-enum
"""
WARNINGS = tuple(_WARNINGS.split())
LANGUAGE = ("-std=gnu11", "-D_GNU_SOURCE")
_OUTPUT = """
    -O2 -static-pie -fPIE -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffunction-sections
    -fdata-sections -Wl,--gc-sections -Wl,-z,relro,-z,now -s
"""
OUTPUT = tuple(_OUTPUT.split())
COMPILE_SECONDS = 300


class BuildError(HostError):
    """The agent could not be compiled; the message is the compiler's."""


def agent_binary() -> Path:
    """The built agent. Raises HostError, whose fix says how to build it."""
    path = DEFAULT_OUT / NAME
    if not path.is_file():
        raise HostError(f"the guest agent {path} is missing", fix="python -m agent.build")
    return path


def build_agent(out_dir: Path = DEFAULT_OUT, cc: str = "") -> Path:
    """Compile into `out_dir`, unless what is there came from the same sources, flags and compiler.

    `cc`: the compiler; else $CC, else "cc". A cross compiler makes an agent for another machine.
    Raises BuildError.
    """
    compiler = cc or os.environ.get("CC") or "cc"
    sources = sorted(SOURCES.glob("*.c"))
    command = [compiler, *LANGUAGE, *WARNINGS, *OUTPUT, *map(str, sources)]
    digest = _digest(command)
    target, stamp = out_dir / NAME, out_dir / f"{NAME}.sources"
    if target.is_file() and stamp.is_file() and stamp.read_text() == digest:
        os.utime(target)  # newer than every source again, which is what ./dev looks at
        return target
    out_dir.mkdir(parents=True, exist_ok=True)
    temporary = out_dir / f".{NAME}.{os.getpid()}"
    try:
        _run([*command, "-o", str(temporary)])
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
    stamp.write_text(digest)
    return target


def _digest(command: list[str]) -> str:
    content = hashlib.sha256("\0".join(command).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except FileNotFoundError:
        raise BuildError(
            f"no C compiler called {command[0]}: apt-get install gcc libc6-dev"
        ) from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"compiling the agent took over {COMPILE_SECONDS} s") from None
    if done.returncode != 0:
        raise BuildError(f"compiling the guest agent failed:\n{done.stderr}")


def main() -> int:
    """Build into the source tree; what `./dev setup` calls."""
    try:
        print(build_agent())
    except BuildError as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
