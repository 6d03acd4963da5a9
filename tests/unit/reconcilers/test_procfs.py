"""Whether a process has ended."""

from __future__ import annotations

import subprocess
import sys
import threading

from reconcilers import procfs

# Its first thread ends at once; the process goes on until nobody writes to it any more.
LONELY = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print("begun", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""


def test_the_end_of_a_process_is_waited_for() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        stat = procfs.read_stat(process.pid)
        assert stat is not None
        assert not procfs.ended(process.pid, stat.start_time, 0.05)
        assert procfs.ended(process.pid, stat.start_time + 1, 0), "another has its number"
        threading.Timer(0.2, process.kill).start()
        assert procfs.ended(process.pid, stat.start_time, 60)


def test_a_process_goes_on_while_any_of_its_threads_does() -> None:
    argv = [sys.executable, "-c", LONELY]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        stat = procfs.read_stat(process.pid)
        assert stat is not None
        assert not procfs.ended(process.pid, stat.start_time, 0.2)
        process.stdin.close()
        assert procfs.ended(process.pid, stat.start_time, 60)
        assert procfs.alive(process.pid, stat.start_time) is None
