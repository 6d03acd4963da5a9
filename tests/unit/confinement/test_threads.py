"""A process's first thread is known by its number, which need not be the lowest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In a PID namespace of its own: numbers begin again at the bottom there, when we say so.
WRAPPED = """
import json, os, threading, time
from reconcilers.confinement.readjail import threads_of

def last(number):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number))

last(300)
child = os.fork()
if child == 0:
    last(100)
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    time.sleep(60)
    os._exit(0)
folder = f"/proc/{child}/task"
while len(os.listdir(folder)) < 2:
    time.sleep(0.01)
print(json.dumps([[each["Pid"], each["NSpid"]] for each in threads_of(folder, child)]))
"""


@pytest.mark.needs_root
def test_main_thread_comes_first_also_when_a_later_one_has_a_lower_number() -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*inside, sys.executable, "-c", WRAPPED], capture_output=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == [["301", "301"], ["101", "101"]]
