"""Homes for the shared cases, and what must hold in every one of them.

In every case the controller stays alive, sandboxes that have nothing to do with it are not
disturbed, and nothing is left behind: no process, mount, cgroup, runtime folder or temporary file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from controller.files import TEMPORARY_PREFIX
from tests.conftest import EVIDENCE
from tests.tracebacks import no_traceback
from tests.vm.harness import BOX, READY, ROOT, TINY, Home, all_beneath, folders_in, until

BYSTANDER = "sage"
IN_OPEN = 0x20  # inotify(7)


H = TypeVar("H", bound="CaseHome")


class CaseHome(Home):
    """A home whose controller can be started through another program, such as setpriv."""

    prefix: Sequence[str] = ()
    checked = 0  # bytes of the controller's log, whatever wrote them

    def unchecked_log(self) -> str:
        """What the log has got since this was last asked for: each fault is one test's finding."""
        with open(self.path / "controller.log", "rb") as log:
            log.seek(self.checked)
            new = log.read()
        self.checked += len(new)
        return new.decode(errors="replace")

    def start(self) -> None:
        log = open(self.path / "controller.log", "ab")  # noqa: SIM115  # the child keeps it
        self.controller = subprocess.Popen(
            [*self.prefix, *BOX, "controller"], env=self.env, stdout=log, stderr=log, cwd=ROOT
        )
        log.close()
        until(self.answers, READY, lambda: f"controller answers; {self.log()}")

    def generation(self, name: str) -> int:
        return int(self.report(name).get("generation", 0))

    def message(self, name: str, kind: str) -> str:
        for condition in self.report(name).get("conditions", []):
            if condition["type"] == kind:
                return str(condition["message"])
        return ""

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        path = self.path / "observed" / name / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def valid(self, name: str, wanted: str = "Accepted", seconds: float = 20) -> None:
        status = "True" if wanted == "Accepted" else "False"
        try:
            until(
                lambda: self.condition(name, "Valid") == (status, wanted),
                seconds,
                f"{name} Valid {wanted}",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report(name)}\n{self.log()}") from None

    def passes(self, count: int = 1) -> None:
        """Have the folder scanned and every sandbox passed over, `count` times."""
        for _ in range(count):
            self.look_again()
            time.sleep(0.4)

    def resident_kib(self) -> int:
        assert self.controller is not None
        status = Path(f"/proc/{self.controller.pid}/status").read_text()
        line = next(one for one in status.splitlines() if one.startswith("VmRSS"))
        return int(line.split()[1])

    def children(self) -> set[int]:
        assert self.controller is not None
        found: set[int] = set()
        for task in Path(f"/proc/{self.controller.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found |= set(map(int, (task / "children").read_text().split()))
        return found


@contextlib.contextmanager
def case_home(
    *, config: str = "", prefix: Sequence[str] = (), below: str = "home"
) -> Iterator[CaseHome]:
    """A home with a running controller; `below` is its path inside a temporary folder."""
    with home_of(CaseHome, config=config, prefix=prefix, below=below) as home:
        yield home


@contextlib.contextmanager
def home_of(
    kind: type[H], *, config: str = "", prefix: Sequence[str] = (), below: str = "home"
) -> Iterator[H]:
    """The same of a class of its own."""
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp:
        home = kind(Path(tmp) / below)
        home.prefix = prefix
        home.path.mkdir(mode=0o700, parents=True)
        if config:
            (home.path / "config.toml").write_text(config)
        EVIDENCE.watch(home.path, "home")
        try:
            home.start()
            yield home
        finally:
            EVIDENCE.forget(home.path)
            home.close()


@contextlib.contextmanager
def bystander(home: CaseHome) -> Iterator[None]:
    """Put a running sandbox beside the case."""
    home.put(BYSTANDER, TINY)
    home.ready(BYSTANDER)
    yield


@contextlib.contextmanager
def undisturbed(home: CaseHome, *others: str) -> Iterator[None]:
    """Assert around a case what must hold in every case; `others` keep their VMM."""
    assert home.controller is not None
    controller = home.controller
    before = {name: (home.pid(name), home.generation(name)) for name in others}
    descriptors, vmms = len(os.listdir(f"/proc/{controller.pid}/fd")), len(home.vmms())
    mounts = Path("/proc/self/mounts").read_text().count(str(home.path))
    yield
    assert home.controller is controller
    assert controller.poll() is None, home.log()
    no_traceback(home.unchecked_log(), "in the controller's log")
    for name, was in before.items():
        assert (home.pid(name), home.generation(name)) == was, f"{name} was disturbed"
        assert os.path.exists(f"/proc/{home.pid(name)}")
        assert home.run(name, "echo", "well").stdout == b"well\n"
    assert Path("/proc/self/mounts").read_text().count(str(home.path)) == mounts
    nothing_left_behind(home)
    # A VMM of the case may still run: a pidfd, its channel, its console and its standard error.
    allowed = descriptors + 6 + 6 * max(0, len(home.vmms()) - vmms)

    def few() -> bool:  # a pass that is going on has some more
        return len(os.listdir(f"/proc/{controller.pid}/fd")) <= allowed

    until(few, 20, f"the controller has {allowed} descriptors or less")


def nothing_left_behind(home: CaseHome) -> None:
    """Waits for it: a report that is just being written is a temporary file, too."""
    until(lambda: not leftovers(home), 20, lambda: f"nothing is left behind: {leftovers(home)}")


def leftovers(home: CaseHome) -> list[str]:
    """What this home has on the host that belongs to no sandbox with a VMM on record."""
    found = []
    running = {name for name in names(home) if home.condition(name, "Ready")[0] == "True"}
    known = {}
    for name in running:
        with contextlib.suppress(OSError):  # its VMM is just being replaced
            known[name] = home.pid(name)
    vmms = set(home.vmms())
    found += [f"process {pid}" for pid in sorted((vmms | home.children()) - set(known.values()))]
    for group in home.cgroups():
        found += [f"cgroup {p}" for p in folders_in(group) if p.name not in known]
    if home.runtime.exists():
        found += [f"runtime {p}" for p in home.runtime.iterdir() if p.name not in known]
    for path in all_beneath(home.path):
        if path.name.startswith((TEMPORARY_PREFIX, ".tmp")) or path.name.endswith(".tmp"):
            found.append(f"temporary {path}")
    return found


def names(home: CaseHome) -> list[str]:
    return home.box("get", "-o", "name").stdout.decode().split()


@contextlib.contextmanager
def opened_at_all(path: Path) -> Iterator[list[int]]:
    """Collect an entry for every open(2) of `path` by anybody, inotify's own word for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    seen: list[int] = []
    try:
        if libc.inotify_add_watch(descriptor, os.fsencode(path), IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {path}")
        yield seen
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, 65536)
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                seen.append(mask)
                data = data[16 + length :]
    finally:
        os.close(descriptor)


def kill_vmm(home: CaseHome, name: str) -> int:
    """SIGKILL the VMM of `name`; returns the PID it had."""
    pid = home.pid(name)
    os.kill(pid, signal.SIGKILL)
    return pid


def replaced(home: CaseHome, name: str, former: int, seconds: float = 90) -> int:
    """Wait until `name` answers on another VMM than `former`; returns its PID."""

    def good() -> bool:
        with contextlib.suppress(OSError, ValueError):
            return (
                home.pid(name) not in (0, former)
                and home.run(name, "true", check=False).returncode == 0
            )
        return False

    try:
        until(good, seconds, f"{name} answers on another VMM than {former}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{home.report(name)}\n{home.log()}") from None
    return home.pid(name)
