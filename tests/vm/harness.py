"""A home with a real controller, used the way a person uses it: files, the `box` command and
signals.

Nothing here reaches into the controller; what a test asserts it reads from the host, from `box`, or
from the reports.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from reconcilers.confinement.identity import IdentityRegistry
from specs.names import is_interface_of

BOX = [sys.executable, "-m", "controller.cli.main"]
ROOT = Path(__file__).resolve().parents[2]
# Emulated guests boot in 3 s on an idle host; tests share two cores with other work.
READY = 90.0
# The lab of tests/kvm runs some of these tests on KVM, on an emulated and therefore slow machine.
ACCEL = os.environ.get("BOX_TEST_ACCEL", "tcg")
CONFIG = os.environ.get("BOX_TEST_CONFIG", "")
# A factor on the limits below, for a host that does other things meanwhile.
PATIENCE = int(os.environ.get("BOX_TEST_PATIENCE", "1"))
SIDE_BY_SIDE = 2  # files of tests that run at a time (tests/lanes.py)
SLOWNESS = float(os.environ.get("BOX_TEST_SLOWNESS", "1"))  # against a real processor
# Between two looks. On one slow processor a look costs what is looked for its time.
PAUSE = 0.02 * SLOWNESS
# What box makes the instances of its helper machines of, beside that of the sandboxes.
HELPERS = ("transfers", "builds", "kvm-probe")
TINY = f"accel: {ACCEL}\ncpus: 1\nram_mib: 192\ndata: {{size_mib: 32}}\n"


def until(condition: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
    """Poll until `condition` gives something true, and return it. Where `what` is called, it says
    how things are in the end.
    """
    seconds *= SIDE_BY_SIDE * PATIENCE
    limit = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > limit:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"after {seconds:g} s still not: {told}")
        time.sleep(PAUSE)


class Home:
    """One $BOX_HOME and, while it runs, its controller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boxes = path / "boxes"
        self.controller: subprocess.Popen[bytes] | None = None
        self.env = {**os.environ, "BOX_HOME": str(path), "PYTHONPATH": str(ROOT)}

    # -- the controller

    def start(self) -> None:
        log = open(self.path / "controller.log", "ab")  # noqa: SIM115  # the child keeps it
        self.controller = subprocess.Popen(
            [*BOX, "controller"], env=self.env, stdout=log, stderr=log, cwd=ROOT
        )
        log.close()
        until(self.answers, READY, f"controller answers; {self.log()}")

    def answers(self) -> bool:
        assert self.controller is not None
        if self.controller.poll() is not None:
            raise AssertionError(f"the controller ended: {self.log()}")
        if not (self.path / "box.sock").exists():
            return False
        # Its word, not the socket's file: a controller that was killed leaves one behind.
        return f"pid {self.controller.pid}, up".encode() in self.box("version", check=False).stdout

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.controller is not None:
            self.controller.send_signal(how)
            self.controller.wait(60 * PATIENCE)
            self.controller = None

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Its controller looks at nothing meanwhile."""
        assert self.controller is not None
        self.controller.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.controller.send_signal(signal.SIGCONT)

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.path / "controller.log").read_text(errors="replace")[-3000:]
        return ""

    # -- box and files

    def command(self, *arguments: str) -> list[str]:
        """The argv that runs box as whom the controller runs as, with `env`."""
        return [*BOX, *arguments]

    def asking(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command of box that goes on meanwhile; nobody wants to know what it says."""
        quiet = subprocess.DEVNULL
        argv = self.command(*arguments)
        return subprocess.Popen(argv, env=self.env, cwd=ROOT, stdout=quiet, stderr=quiet)

    def box(
        self, *arguments: str, check: bool = True, data: bytes | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.command(*arguments),
            env=self.env,
            input=data,
            capture_output=True,
            timeout=timeout * PATIENCE,
            cwd=ROOT,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"box {' '.join(arguments)}: {done.returncode}\n"
                f"{done.stdout!r}\n{done.stderr!r}\n{self.log()}"
            )
        return done

    def put(self, name: str, text: str = TINY) -> None:
        """Drop a Boxfile, the way an editor that saves atomically does."""
        temporary = self.boxes / f".{name}.tmp"
        temporary.write_text(text)
        temporary.rename(self.boxes / f"{name}.box.yaml")

    def remove(self, name: str) -> None:
        (self.boxes / f"{name}.box.yaml").unlink()

    def run(
        self, name: str, *command: str, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        return self.box("exec", name, "--", *command, check=check)

    def ready(self, name: str, seconds: float = READY) -> dict[str, Any]:
        def good() -> dict[str, Any] | None:
            found = self.report(name)
            # `vmm.pid` of a report that is still of the former VMM does not count.
            return found if self.condition(name, "Ready") == ("True", "GuestReady") else None

        try:
            found: dict[str, Any] = until(good, seconds, f"{name} Ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report(name)}\n{self.log()}") from None
        return found

    def report(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, tomllib.TOMLDecodeError):
            return tomllib.loads((self.path / "observed" / name / "observed.toml").read_text())
        return {}

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        for condition in self.report(name).get("conditions", []):
            if condition["type"] == kind:
                return condition["status"], condition["reason"]
        return ("", "")

    def drift(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.report(name).get("drift", [])
        return found

    def drifts(self, name: str) -> list[dict[str, Any]]:
        """What has drifted, but for a guest whom a busy host kept from answering in time: its
        channel is opened anew, and that is told as well.
        """
        return [each for each in self.drift(name) if each["field"] != "guest"]

    def drifted(self, name: str) -> list[str]:
        """The fields of that."""
        return [each["field"] for each in self.drifts(name)]

    def mended(self, name: str, field: str, seconds: float = 60) -> dict[str, Any]:
        """Wait until drift of `field` has been found and corrected."""

        def found() -> dict[str, Any] | None:
            for drift in self.drift(name):
                if drift["field"].startswith(field) and drift.get("corrected"):
                    return drift
            return None

        try:
            result: dict[str, Any] = until(found, seconds, f"drift of {field} corrected")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.drift(name)}\n{self.log()}") from None
        return result

    def look_again(self) -> None:
        """Ask for full passes now instead of at the next timer."""
        assert self.controller is not None
        self.controller.send_signal(signal.SIGHUP)

    def forget_reports(self) -> None:
        """Remove all of observed/ at once, also while the controller writes into it."""
        away = self.path / "forgotten"
        (self.path / "observed").rename(away)
        while away.exists():
            shutil.rmtree(away, ignore_errors=True)

    # -- the host

    @property
    def instance(self) -> str:
        return (self.path / "instance").read_text().strip()

    @property
    def runtime(self) -> Path:
        return Path("/run/box") / self.instance

    def pid(self, name: str) -> int:
        return int(json.loads((self.runtime / name / "launch.json").read_text())["pid"])

    @property
    def helpers(self) -> list[str]:
        """The instances of helper machines, whose names are no sandbox's."""
        words = (f"{self.instance} {what}".encode() for what in HELPERS)
        return [hashlib.sha256(word).hexdigest()[:12] for word in words]

    def another_vmm(self, name: str, former: int) -> int:
        """Wait for the PID of another VMM than `former`; in between there may be no record."""

        def found() -> int:
            with contextlib.suppress(OSError, ValueError):
                return 0 if (pid := self.pid(name)) == former else pid
            return 0

        return int(until(found, READY, lambda: f"{name} has another VMM; {self.log()}"))

    def vmms(self, name: str = "") -> list[int]:
        """PIDs of live VMMs of this home, found by their command line."""
        return marked(self.instance, name)

    def helper_vmms(self) -> list[int]:
        """As `vmms`, of the machines that are there for one transfer or one look at the host."""
        return [pid for instance in self.helpers for pid in marked(instance)]

    def cgroups(self, name: str = "") -> list[Path]:
        return self.cgroups_of(self.instance, name)

    def cgroups_of(self, instance: str, name: str = "") -> list[Path]:
        top = Path("/sys/fs/cgroup")
        places = [*(each / "box" for each in top.iterdir()), top / "box"]
        return [path for place in places if (path := place / instance / name).is_dir()]

    def without_pids_limit(self, name: str) -> None:
        """Change a limit by hand, which the controller puts back on the running VMM."""
        (found,) = (each for each in self.cgroups(name) if (each / "pids.max").exists())
        (found / "pids.max").write_text("max")

    def spaces(self) -> list[str]:
        """Network namespaces of this home, by name."""
        folder = Path("/run/netns")
        found = os.listdir(folder) if folder.is_dir() else []
        return [name for name in found if is_interface_of(name, self.instance)]

    def nothing_left(self, name: str) -> None:
        """Assert that the host shows nothing of a deleted sandbox but its kept data."""

        def clean() -> bool:
            return not (
                self.vmms(name)
                or self.cgroups(name)
                or (self.runtime / name).exists()
                or (self.path / "state" / f"{name}.toml").exists()
                or (self.path / "disks" / name).exists()
            )

        until(clean, 60, f"nothing of {name} is left; {self.log()}")

    def close(self) -> None:
        """Stop the controller and remove everything of this home from the host."""
        with contextlib.suppress(Exception):
            self.stop(signal.SIGKILL)
        if not (self.path / "instance").exists():
            return
        self.end_vmms()
        for instance in (self.instance, *self.helpers):
            for group in self.cgroups_of(instance):
                for child in [*folders_in(group), group]:
                    until(partial(_rmdir, child), 30, f"{child} is empty")
        shutil.rmtree(self.runtime, ignore_errors=True)
        for space in self.spaces():
            subprocess.run(["ip", "netns", "delete", space], check=True)
        registry = IdentityRegistry()
        for instance in (self.instance, *self.helpers):
            for name in registry.claimed(instance):
                registry.release(instance, name)

    def end_vmms(self) -> None:
        """Kill what a controller that was stopped or killed left, also of an interrupted helper."""
        for pid in [*self.vmms(), *self.helper_vmms()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not [*self.vmms(), *self.helper_vmms()], 20, "VMMs of the test are gone")


def marked(instance: str, name: str = "") -> list[int]:
    """PIDs of live VMMs with this mark on their command line; without a name, of the instance."""
    needle = f"box:{instance}:{name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            is_marked = any(a == needle or (not name and a.startswith(needle)) for a in arguments)
            if is_marked and b"qemu" in arguments[0]:
                found.append(int(entry.name))
    return found


def all_beneath(folder: Path) -> Iterator[Path]:
    """As Path.rglob, which fails at a folder that goes while it looks."""
    for top, folders, files in os.walk(folder):
        yield from (Path(top) / name for name in (*folders, *files))


def folders_in(group: Path) -> list[Path]:
    """Of a control group; none of one that has gone since it was found."""
    try:
        return [each for each in group.iterdir() if each.is_dir()]
    except FileNotFoundError:
        return []


def _rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def home_with_controller(path: Path) -> Iterator[Home]:
    """A running controller in a fresh home under `path`; everything is gone afterwards."""
    home = Home(path / "home")
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if CONFIG:
        (home.path / "config.toml").write_text(CONFIG)
    try:
        home.start()
        yield home
    finally:
        home.close()
