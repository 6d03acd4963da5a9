"""What it costs to read a running VMM back: as root, and as an ordinary user."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import readback as program
from bench import subject
from bench.line import SMALL
from bench.measure import Row, Target
from tests.vm.cases import CaseHome, case_home
from tests.vm.harness import ROOT, Home
from tests.vm.netlab import Lab
from tests.vm.people import PYTHON, person
from tests.vm.usernet import NAME, UserNetHome, user_home

READINGS = 50  # of milliseconds: many cost nothing
# Of an ordinary user's, whose helpers' CPU is told by hundredths of a second. The seconds between
# two are long enough for what was forked for one to end, as it does between two passes.
SAMPLES, TIMES, APART = 7, 25, 0.15
# An uplink that leads nowhere: nothing leaves the host, and the sandbox's own rules are all there.
UPLINK = (
    "ip link set lo up; ip link add up0 type veth peer name up1; ip link set up1 up; "
    "ip addr add 203.0.113.1/24 dev up0; ip link set up0 up; "
    "ip route add default via 203.0.113.254; echo 1 > /proc/sys/net/ipv4/ip_forward"
)


def readback(repeat: int) -> list[Row]:
    """CPU of one readback of a running VMM, without a network and with one and its rules."""
    count = max(repeat, READINGS)
    with subject.new_home() as home:
        plain = _of_root(home, SMALL, count)
    inside = ["unshare", "--net", "sh", "-ec", f'{UPLINK}; exec "$@"', "sh"]
    with case_home(prefix=inside) as lone:
        bridged = _of_root(lone, f"{SMALL}network: bridge\n", count)
    with _user() as someones:
        users = _of_user(someones, f"{SMALL}network: bridge\n", max(repeat, SAMPLES))
        alone = _of_user(someones, SMALL, max(repeat, SAMPLES))
    return [
        Row("readback", "one VMM, CPU", "ms", tuple(plain["jail"]), Target(3)),
        Row("readback", "the first time", "ms", tuple(plain["first"]), Target(3)),
        Row("readback", "with network and rules", "ms", tuple(bridged["whole"]), Target(18)),
        Row("readback", "an ordinary user's VMM", "ms", tuple(alone["jail"]), Target(3)),
        Row("readback", "with network and rules", "ms", tuple(users["whole"]), Target(18)),
    ]


def _of_root(home: Home | CaseHome, boxfile: str, count: int) -> dict[str, list[float]]:
    home.put("read", boxfile)
    home.ready("read")
    argv = [sys.executable, "-m", "bench.readback", str(home.path), "read", str(count), "1", "0"]
    return _measured(home, ["--net"], argv)


@contextmanager
def _user() -> Iterator[UserNetHome]:
    """A home of a user, in a network namespace without an uplink."""
    with tempfile.TemporaryDirectory(prefix="boxbench-") as scratch, person() as someone:
        folder = Path(scratch)
        folder.chmod(0o755)
        lab = Lab(folder)
        try:
            lab.build()
            with user_home(someone, lab) as home:
                home.start()
                yield home
        finally:
            lab.close()


def _of_user(home: UserNetHome, boxfile: str, count: int) -> dict[str, list[float]]:
    """The program is handed over as text: the user may read neither this folder nor its Python."""
    home.put(NAME, boxfile)
    home.ready(NAME)
    words = [str(home.path), NAME, str(count), str(TIMES), str(APART)]
    argv = [*home.owner.become(), PYTHON, "-c", Path(program.__file__).read_text(), *words]
    return _measured(home, ["--net", "--mount"], argv)


def _measured(
    home: Home | CaseHome, spaces: Sequence[str], argv: Sequence[str]
) -> dict[str, list[float]]:
    """Run the program in these namespaces of the controller."""
    subject.wait_quiet(subject.pid_of(home))
    entered = ["nsenter", f"--target={subject.pid_of(home)}", *spaces, *argv]
    done = subprocess.run(
        entered, env=home.env, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=120
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found
