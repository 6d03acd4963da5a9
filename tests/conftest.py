"""Rules for every test: what the host must do, what a skip costs, what a failure leaves behind.

A capability is tried for real, never guessed from a version or a file's presence. A test that
needs a missing one is skipped with the reason, unless BOX_TEST_REQUIRE (comma separated:
root,kvm,cgroup2,lab) names the capability: then the missing capability is a failure, so that CI
cannot turn green by skipping. This file must not contain fixtures that start VMs; those live
beside the tests that use them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest

# A failed assert in a helper of the tests shows its values, too, as one in a test does.
pytest.register_assert_rewrite(*(f"tests.{room}" for room in ("escape", "kvm", "setup", "vm")))

from tests import lanes  # noqa: E402
from tests.failures import Failures  # noqa: E402
from tests.filetimes import FileTimes  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(os.environ.get("BOX_TEST_RESULTS", ROOT / ".cache" / "test-results"))
GUEST_KERNEL = Path("/var/cache/box/kernels/current/vmlinux")
EVIDENCE_FILE_MAX = 4 * 1024 * 1024  # bytes kept of one file; disks and images are far larger
EVIDENCE_SKIP = frozenset(
    {"disks", "images", "kernels"}
)  # folders of a $BOX_HOME that hold no words


# -- capabilities ---------------------------------------------------------------------------------


@cache
def missing_root() -> str:
    """Empty when the process can make the namespaces a jail needs, else why not."""
    if os.geteuid() != 0:
        return "not running as root (sudo ./dev test runs these, too)"
    trial = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return "" if trial.returncode == 0 else f"unshare failed: {trial.stderr.strip()}"


@cache
def missing_kvm() -> str:
    """Empty when the real guest kernel boots under KVM; a device node that opens proves nothing."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "/dev/kvm is missing or not accessible"
    if not GUEST_KERNEL.exists():
        return f"no guest kernel in {GUEST_KERNEL.parent} to try KVM with"
    # Without a root file system the kernel panics as the very last act of booting: proof enough.
    argv = [
        "qemu-system-x86_64",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]
    argv += ["-M", "microvm,isa-serial=on", "-accel", "kvm", "-cpu", "host", "-m", "256"]
    argv += ["-kernel", str(GUEST_KERNEL), "-append", "console=ttyS0 panic=-1 reboot=t"]
    try:
        trial = subprocess.run([*argv, "-serial", "stdio"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the guest kernel does not boot under KVM: {type(error).__name__}"
    if b"Unable to mount root fs" in trial.stdout:
        return ""
    return "the guest kernel does not boot under KVM on this host"


@cache
def missing_cgroup2() -> str:
    """Empty when a cgroup made in the v2 tree offers memory and pids limits, else why not."""
    if os.geteuid() != 0:
        return "not running as root"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind != "cgroup2":
            continue
        group = Path(where) / f"boxtest-probe-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            return f"cannot create a cgroup in {where}: {error.strerror}"
        try:
            lacking = [f for f in ("memory.max", "pids.max") if not (group / f).exists()]
        finally:
            group.rmdir()
        return f"{where} has no {' and no '.join(lacking)}" if lacking else ""
    return "no cgroup v2 tree is mounted"


@cache
def missing_lab() -> str:
    """Empty when the machine with real KVM can be had (docs/kvm-lab.md), else why not."""
    from tests.kvm.image import missing

    return missing()


PROBES: dict[str, Callable[[], str]] = {
    "root": missing_root,
    "kvm": missing_kvm,
    "cgroup2": missing_cgroup2,
    "lab": missing_lab,
}


def required() -> frozenset[str]:
    names = frozenset(n for n in os.environ.get("BOX_TEST_REQUIRE", "").split(",") if n)
    unknown = names - PROBES.keys()
    if unknown:
        raise pytest.UsageError(
            f"BOX_TEST_REQUIRE names unknown capabilities: {', '.join(sorted(unknown))};"
            f" known: {', '.join(PROBES)}"
        )
    return names


def pytest_configure(config: pytest.Config) -> None:
    required()
    # A shell without job control lets what it runs in the background ignore Ctrl-C, and with it
    # every program whose Ctrl-C a test tries.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not lanes.register(config):
        config.pluginmanager.register(FileTimes())
        config.pluginmanager.register(Failures(RESULTS))


def is_put_off(item: pytest.Item) -> bool:
    """Whether only ./dev test --all runs it."""
    return item.get_closest_marker("long") is not None and os.environ.get("BOX_TEST_ALL") != "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if is_put_off(item):
        pytest.skip("long: runs with ./dev test --all")
    for name, probe in PROBES.items():
        if item.get_closest_marker(f"needs_{name}") is None:
            continue
        reason = probe()
        if not reason:
            continue
        if name in required():
            pytest.fail(f"BOX_TEST_REQUIRE names {name}, but {reason}", pytrace=False)
        pytest.skip(f"needs {name}: {reason}")


# -- what was not run -----------------------------------------------------------------------------


def skip_reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(skip_reason(r) for r in terminalreporter.getreports("skipped"))
    if not reasons:
        return
    terminalreporter.section("skipped, by reason")
    for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])):
        terminalreporter.write_line(f"{count:5}  {reason}")


# -- evidence of a failure ------------------------------------------------------------------------


class Evidence:
    """Folders whose small files are copied aside when a test fails, before any clean-up runs."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._watched: dict[str, Path] = {}

    def watch(self, path: Path, label: str = "") -> None:
        """Keep `path` (a $BOX_HOME, a runtime directory, one file) should a test fail."""
        self._watched[label or path.name] = path

    def forget(self, path: Path) -> None:
        self._watched = {label: p for label, p in self._watched.items() if p != path}

    def keep(self, test: str) -> Path | None:
        """Copy everything watched; returns the folder, or None if there was nothing to keep."""
        folder = self._results / re.sub(r"[^A-Za-z0-9._-]+", "-", test)[-150:]
        shutil.rmtree(folder, ignore_errors=True)
        kept = [copy_small(path, folder / label) for label, path in self._watched.items()]
        return folder if any(kept) else None


def copy_small(source: Path, target: Path) -> int:
    """Copy regular files up to EVIDENCE_FILE_MAX bytes; the number copied.

    Never raises OSError: evidence is a courtesy and must not replace the failure it explains.
    """
    try:
        mode = source.lstat()
        if stat.S_ISREG(mode.st_mode):
            if mode.st_size > EVIDENCE_FILE_MAX:
                return 0
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)
            return 1
        if not stat.S_ISDIR(mode.st_mode):
            return 0
        children = sorted(child for child in source.iterdir() if child.name not in EVIDENCE_SKIP)
    except OSError:
        return 0
    return sum(copy_small(child, target / child.name) for child in children)


EVIDENCE = Evidence(RESULTS)


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    return EVIDENCE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when in ("setup", "call"):
        folder = EVIDENCE.keep(item.nodeid)
        if folder is not None:
            report.sections.append(
                ("evidence", f"console, plan and observed state kept in {folder}")
            )
    return report
