"""A directory that is mounted on demand is asked for, and its empty place is not shared.

The kernel's own autofs, in a mount namespace that ends with the test; nobody mounts anything in the
end, it is enough that the kernel asks.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

# The daemon's side: its own process group reaches the place without asking (autofs(5)).
DAEMON = """
import ctypes, os, select, struct, subprocess, sys
place, code = sys.argv[1:]
asked, end = os.pipe()
os.setpgid(0, 0)
settings = f"fd={end},pgrp={os.getpid()},minproto=5,maxproto=5,direct"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"none", place.encode(), b"autofs", 0, settings.encode()) != 0:
    sys.exit(ctypes.get_errno())
goer = subprocess.Popen([sys.executable, "-c", code, place], start_new_session=True)
ready, _, _ = select.select([asked, os.pidfd_open(goer.pid)], [], [], 30)
if asked in ready:
    print("the kernel asks for", struct.unpack_from("=ii", os.read(asked, 512))[1])
goer.kill()
"""
GO = """
import sys
from reconcilers.hostpath import opened_directory
with opened_directory(sys.argv[1]) as found:
    print("it was given", found.path)
"""
MISSING_DIRECT = 5  # include/uapi/linux/auto_fs.h, autofs_ptype_missing_direct


@pytest.mark.needs_root
def test_a_place_of_autofs_is_mounted_before_it_is_judged(tmp_path: Path) -> None:
    alone = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", DAEMON]
    done = subprocess.run([*alone, str(tmp_path), GO], capture_output=True, text=True, timeout=60)
    if done.returncode == errno.ENODEV:
        pytest.skip("this kernel has no autofs")
    assert (done.stdout, done.stderr) == (f"the kernel asks for {MISSING_DIRECT}\n", "")
