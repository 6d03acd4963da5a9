"""Run as an ordinary user: makes a sandbox's network without a VM, changes it and reads it.

`python -c TEXT SEEN`, in a network and a mount namespace of its own. It prints a JSON object; what
it should hold, `test_user_network_views` says. SEEN is where the nft of the test writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reconcilers.confinement import procfile
from reconcilers.network import inner, innerread, innerviews, state
from reconcilers.network.addresses import addresses, first_slot
from reconcilers.network.innerclient import Inside
from reconcilers.network.innerviews import Process
from reconcilers.network.wanted import Wanted
from reconcilers.process import SEARCH
from specs.egress import egress_of
from specs.errors import HostError
from specs.names import HostNames

NAMES = HostNames("0123456789ab", "elm")
WANTED = Wanted(
    names=NAMES,
    addresses=addresses(NAMES, first_slot(NAMES)),
    egress=egress_of("all"),
    mtu=1400,
    resolver=None,
    host_addresses=frozenset(),
    ipv6=True,
    host_ipv6=True,
)
KEEPER = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo in; exec sleep 600"]
# Its user namespace is the keeper's, its network namespace that of descriptor 1
VMM = """
import os, sys, time
from reconcilers.confinement import syscalls
syscalls.setns(os.open(sys.argv[1], os.O_RDONLY), syscalls.CLONE_NEWUSER)
syscalls.setns(int(sys.argv[2]), syscalls.CLONE_NEWNET)
os.close(int(sys.argv[2]))
print("in", flush=True)
time.sleep(600)
"""


def started(argv: list[str], given: int = -1) -> tuple[subprocess.Popen[bytes], Process]:
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, pass_fds=[given] if given >= 0 else [], close_fds=True
    )
    CHILDREN.append(child)
    assert child.stdout is not None and child.stdout.readline() == b"in\n"
    return child, (child.pid, procfile.start_time(child.pid))


def within(process: Process, *command: str) -> None:
    at = f"/proc/{process[0]}/ns"
    entered = ["nsenter", f"--user={at}/user", "--preserve-credentials", f"--net={at}/net"]
    subprocess.run([*entered, *command], check=True, env={"PATH": SEARCH})


CHILDREN: list[subprocess.Popen[bytes]] = []


def main(seen: Path) -> dict[str, object]:
    said: dict[str, object] = {}
    inside, right = Inside(), inner.wanted_state(WANTED)
    keeper, of_keeper = started(KEEPER)
    made = inside.build(WANTED, of_keeper)
    said["loads"] = loads(seen)
    at_user = f"/proc/{keeper.pid}/ns/user"
    vmm, of_vmm = started([sys.executable, "-c", VMM, at_user, str(made.space)], made.space)
    os.close(made.space)

    def look(known: int = 0) -> tuple[innerread.Found, list[str]]:
        found = inside.observe(WANTED, of_keeper, of_vmm, known)
        wrong = [each for each in state.ITEMS if right.lines[each] != found.lines[each]]
        if right.tap != found.tap:
            wrong.append("tap")
        return found, wrong + ["rules"] * bool(found.wrong) + ["uplink"] * (not found.uplink)

    before = descriptors()
    first, said["at first"] = look()
    said["held"] = sorted(descriptors() - before)
    settings = (
        (of_keeper, f"net.ipv4.conf.{WANTED.guest_side}.send_redirects=1"),
        (of_keeper, f"net.ipv6.conf.{WANTED.guest_side}.accept_redirects=1"),
        (of_keeper, "net.ipv4.fwmark_reflect=0"),
        (of_vmm, "net.ipv6.conf.default.disable_ipv6=0"),
    )
    for where, line in settings:
        within(where, "sysctl", "-qw", line)
        said[line.partition("=")[0].removeprefix("net.")] = look(first.generation)[1]
        inside.mend(WANTED, of_keeper, of_vmm)
    changes: dict[str, tuple[Process, list[str]]] = {
        "flushed": (of_keeper, ["nft", "flush", "ruleset"]),
        "no rule": (of_keeper, ["ip", "-4", "rule", "del", "pref", "100"]),
        "uplink down": (of_keeper, ["ip", "link", "set", WANTED.uplink, "down"]),
        "no veth": (of_vmm, ["ip", "link", "del", WANTED.inner]),
    }
    for name, (where, command) in changes.items():
        within(where, *command)
        said[name] = look(first.generation)[1]
        inside.mend(WANTED, of_keeper, of_vmm)
    said["loads again"] = loads(seen)[-1]
    last, said["mended"] = look()
    said["looks without a worker"] = without_worker(lambda: look(last.generation)[1])
    said["stopped"] = stopped(look)
    said["after it"] = look()[1]
    os.close(made.uplink)
    said["no pasta"] = look()[1]
    vmm.kill()
    vmm.wait()
    try:
        said["ended"] = look()[1]
    except innerviews.Gone:
        said["ended"] = "gone"
    inside.let_go(NAMES)
    said["left"] = [each for each in descriptors() if "/proc/sys" in each]
    return said


def worker() -> int:
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in own}
    return next(pid for pid, words in commands.items() if b"innerworker" in words)


def without_worker(look: Callable[[], object]) -> object:
    """What is seen while the only process that could enter stands still."""
    pid = worker()
    os.kill(pid, signal.SIGSTOP)
    try:
        return look()
    finally:
        os.kill(pid, signal.SIGCONT)


def stopped(look: Callable[[], object]) -> bool:
    """Whether a worker that stands still is given up within its limit, and ended."""
    pid = worker()
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        look()
    except HostError:
        return time.monotonic() - began < 30 and not os.path.exists(f"/proc/{pid}")
    return False


def descriptors() -> set[str]:
    found = set()
    for each in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{each}") or os.path.islink(f"/proc/self/fd/{each}"):
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    return found


def loads(seen: Path) -> list[dict[str, bool]]:
    """For each time that rules were loaded: the links that were there then, and whether up."""
    found = []
    for file in sorted(seen.glob("*.rules"), key=os.path.getmtime):
        links = json.loads(file.with_suffix("").read_text())
        found.append({each["ifname"]: "UP" in each["flags"] for each in links})
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(main(Path(sys.argv[1]))))
    finally:
        for each in CHILDREN:
            each.kill()
