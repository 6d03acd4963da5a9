"""Facts about the host that are read once: which QEMU is here, and how fast its TSC runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from reconcilers.backend import HostFacts
from reconcilers.process import run
from specs.config import Config
from specs.errors import BoxError

_SEARCH = "/usr/bin:/usr/local/bin:/bin"


def read_host(config: Config) -> HostFacts:
    """Look for QEMU (or take the one config.toml names) and read its version (blocking, once)."""
    found = config.qemu or shutil.which("qemu-system-x86_64", path=_SEARCH)
    if found is None or not Path(found).is_file():
        return HostFacts(None, None, _tsc_khz())
    binary = Path(found).resolve()
    return HostFacts(binary, _version(binary), _tsc_khz())


def _version(binary: Path) -> tuple[int, int] | None:
    try:
        match = re.search(r"version (\d+)\.(\d+)", run([str(binary), "--version"], timeout=20))
    except BoxError:
        return None
    return (int(match.group(1)), int(match.group(2))) if match else None


def _tsc_khz() -> int | None:
    """The host's TSC frequency in kHz, as the kernel's own estimate in /proc/cpuinfo tells it
    (proc(5)).
    """
    match = re.search(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return int(float(match.group(1)) * 1000) if match else None
