"""When the agent takes its host for gone, on the host and under sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agent import build

DRIVER = Path(__file__).with_name("port_driver.c")
SOURCES = ("port.c", "frame.c", "base.c")
SANITIZERS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_a_host_has_left_only_when_nobody_takes_its_place(tmp_path: Path) -> None:
    target, fifo = tmp_path / "port_driver", tmp_path / "fifo"
    sources = [str(build.SOURCES / name) for name in SOURCES]
    command = ["cc", *build.LANGUAGE, *build.WARNINGS, *SANITIZERS, f"-I{build.SOURCES}"]
    subprocess.run([*command, *sources, str(DRIVER), "-o", str(target)], check=True, timeout=120)
    os.mkfifo(fifo)
    done = subprocess.run([target, fifo], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
