"""The whole line on real parts: file, plan, confined VM, command, report, deletion."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.vm.harness import READY, TINY, Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def oak(shared_home: Home) -> Home:
    """A home in which the sandbox `oak` is ready."""
    shared_home.put("oak", TINY + "env: {GREETING: hello}\n")
    shared_home.ready("oak")
    return shared_home


def test_a_command_runs_on_another_kernel(oak: Home) -> None:
    guest = oak.run("oak", "uname", "-r").stdout.decode().strip()
    assert guest
    assert guest != os.uname().release
    boot_id = oak.run("oak", "cat", "/proc/sys/kernel/random/boot_id").stdout.decode().strip()
    assert boot_id != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_output_streams_status_and_environment_are_the_commands_own(oak: Home) -> None:
    done = oak.run("oak", "sh", "-c", 'echo "$GREETING"; echo oops >&2; exit 7', check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"hello\n", b"oops\n", 7)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -SEGV $$"], 139),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_statuses(oak: Home, command: list[str], status: int) -> None:
    assert oak.run("oak", *command, check=False).returncode == status


def test_standard_input_arrives_byte_for_byte(oak: Home) -> None:
    data = bytes(range(256)) * 512
    done = oak.box("exec", "oak", "-i", "--", "cat", data=data)
    assert done.stdout == data


def test_describe_shows_what_proc_and_the_cgroup_say(oak: Home) -> None:
    """Every number is read again here, by hand, from the kernel's own files."""
    described = oak.box("describe", "oak").stdout.decode()
    report = oak.report("oak")
    pid = oak.pid("oak")
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    uid = status["Uid"].split()[0]
    assert int(uid) >= 1879048192
    assert report["vmm"]["uid"] == int(uid)
    for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[key], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for kind in ("mnt", "pid", "net", "ipc", "uts", "cgroup"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    groups = oak.cgroups("oak")
    assert groups
    limits = [g / "memory.limit_in_bytes" for g in groups] + [g / "memory.max" for g in groups]
    limit = next(path.read_text().strip() for path in limits if path.exists())
    readings = report["confinement"]
    assert all(reading["ok"] for reading in readings)
    layers = {reading["layer"] for reading in readings}
    assert len(readings) > 20
    shown = " ".join(str(reading["got"]) for reading in readings)
    for value in (uid, limit):
        assert value in shown
        assert value in described
    for layer in layers:
        assert layer in described


def test_conditions_say_what_is_and_is_not_proved(oak: Home) -> None:
    expected = {
        "Valid": ("True", "Accepted"),
        "ImageReady": ("True", "Converged"),
        "DataReady": ("True", "DiskPresent"),
        "Confined": ("True", "AllLayersRead"),
        "HardwareIsolated": ("False", "SoftwareEmulation"),
        "KernelVerified": ("True", "KernelMatches"),
        "Ready": ("True", "GuestReady"),
        "Drifted": ("False", "NoDrift"),
    }
    assert {kind: oak.condition("oak", kind) for kind in expected} == expected
    assert all(c["generation"] == 1 for c in oak.report("oak")["conditions"])


def test_get_lists_it_in_every_form(oak: Home) -> None:
    assert re.search(r"^oak\s", oak.box("get").stdout.decode(), re.MULTILINE)
    found = json.loads(oak.box("get", "oak", "-o", "json").stdout)
    assert "oak" in json.dumps(found)
    assert oak.box("get", "-o", "name").stdout.decode().split() == ["oak"]


def test_the_root_is_writable_in_ram_and_data_persists_over_a_restart(oak: Home) -> None:
    oak.run("oak", "sh", "-c", "echo lost > /etc/lost; echo kept > /data/kept; sync")
    pid = oak.pid("oak")
    os.kill(pid, 9)
    until(lambda: oak.pid("oak") != pid, 60, "a new VMM is on record")
    until(
        lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "the new guest answers"
    )
    assert oak.run("oak", "cat", "/data/kept").stdout == b"kept\n"
    assert oak.run("oak", "test", "-e", "/etc/lost", check=False).returncode == 1


def test_verify_prints_each_reading(oak: Home) -> None:
    until(lambda: oak.condition("oak", "Ready")[0] == "True", READY, "ready")
    text = oak.box("verify", "oak").stdout.decode()
    for word in ("kernel release", "boot id", "executable", "seccomp", "no_new_privs"):
        assert word in text.lower(), text
    assert "the CPU is emulated" in text


def test_verify_proves_the_kernel_from_outside_and_says_what_each_reading_proves(
    oak: Home,
) -> None:
    told = json.loads(oak.box("verify", "oak", "-o", "json").stdout)
    found = {(each["layer"], each["item"]): each for each in told["readings"]}
    assert told["ok"] and all(each["proves"] for each in told["readings"])
    pid = oak.pid("oak")
    image = found[("kernel", "kernel image")]
    assert image["source"] == f"/proc/{pid}/root/kernel"
    with open("/var/cache/box/kernels/current/vmlinux", "rb") as file:
        assert image["got"] == hashlib.file_digest(file, "sha256").hexdigest()
    assert found[("kernel", "virtualization")]["got"] == "emulated: no KVM descriptor"
    assert os.readlink(f"/proc/{pid}/exe") in found[("kernel", "executable")]["got"]
    assert os.uname().release in found[("guest", "kernel release")]["want"]
    host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found[("guest", "boot id")]["got"] != host


def test_verify_says_what_it_can_of_a_vmm_whose_guest_is_silent(oak: Home) -> None:
    """A stopped VMM answers nothing; what is read from outside is read all the same."""
    pid = oak.pid("oak")
    assert oak.controller is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        done = oak.box("verify", "oak", "-o", "json", check=False)
    finally:
        os.kill(pid, signal.SIGCONT)
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"]) == (1, False)
    wrong = {each["layer"] for each in told["readings"] if not each["ok"]}
    assert "guest" in wrong and "capabilities" not in wrong
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers again")


def test_the_console_is_kept(oak: Home) -> None:
    assert oak.box("logs", "oak", "--console").returncode == 0
    assert (oak.path / "observed" / "oak" / "console.log").exists()


class LeftAlone:
    """The settled `oak` while tests of other homes run: only its Boxfile is touched."""

    def __init__(self, oak: Home) -> None:
        self.oak = oak
        self.before = until(self.settled, READY, "what the tests before did is over and reported")
        self.since = time.monotonic()
        os.utime(oak.boxes / "oak.box.yaml")

    def settled(self) -> tuple[int, dict[str, int]] | None:
        """Its state, if nothing of it changes for a second."""
        before = self.now()
        time.sleep(1)
        known = {kind: self.oak.condition("oak", kind)[0] for kind in ("Ready", "Drifted")}
        same = before == self.now() and known == {"Ready": "True", "Drifted": "False"}
        return before if same else None

    def now(self) -> tuple[int, dict[str, int]]:
        """Its process, and when each file of ours was written."""
        found = {}
        for folder in ("state", "observed", "disks"):
            for path in (self.oak.path / folder).rglob("*"):
                # The guest itself may write to its disk, and its kernel may say on the console
                # that the host lets it wait; everything else is ours.
                of_guest = path.suffix == ".raw" or path.name.startswith("console.log")
                if path.is_file() and not of_guest:
                    found[str(path)] = path.stat().st_mtime_ns
        return self.oak.pid("oak"), found


@pytest.fixture(scope="module")
def left_alone(oak: Home) -> LeftAlone:
    return LeftAlone(oak)


# -- homes of their own, while `oak` is left alone


@pytest.mark.usefixtures("left_alone")
def test_deleting_the_file_frees_everything_and_keeps_the_data(home: Home) -> None:
    home.put("elm")
    home.ready("elm")
    home.run("elm", "sh", "-c", "echo precious > /data/file")
    pid = home.pid("elm")
    netns = os.readlink(f"/proc/{pid}/ns/net")
    home.remove("elm")
    home.nothing_left("elm")
    assert netns not in _namespaces("net")
    kept = list((home.path / "disks" / ".deleted").iterdir())
    assert [path.name.rsplit("-", 1)[0] for path in kept] == ["elm"]
    assert b"precious" in (kept[0] / "base.raw").read_bytes()


def test_a_readonly_root_refuses_writes_and_data_takes_them(home: Home) -> None:
    home.put("fir", TINY + "readonly: true\n")
    home.ready("fir")
    assert home.run("fir", "sh", "-c", "echo x > /etc/x", check=False).returncode != 0
    for place in ("/data", "/tmp", "/run"):
        home.run("fir", "sh", "-c", f"echo x > {place}/x")


def test_strict_without_kvm_refuses_emulation_that_was_not_asked_for(home: Home) -> None:
    """On a host whose KVM boots the guest kernel this test has nothing to refuse."""
    if _kvm_works():
        pytest.skip("KVM boots the guest kernel here")
    home.put("ash", "ram_mib: 192\n")
    until(
        lambda: home.condition("ash", "HardwareIsolated") == ("False", "EmulationRefused"),
        60,
        "emulation refused",
    )
    assert home.vmms() == []
    assert home.condition("ash", "Ready") == ("False", "EmulationRefused")
    home.put("ash", "ram_mib: 192\nisolation: standard\ncpus: 1\n")
    home.ready("ash")
    uid = home.report("ash")["vmm"]["uid"]
    assert uid not in (0, os.getuid())
    assert home.condition("ash", "HardwareIsolated") == ("False", "SoftwareEmulation")


def test_a_converged_sandbox_is_left_alone(left_alone: LeftAlone) -> None:
    """C4: a settled controller writes nothing, and touching a file restarts nothing."""
    # one timed pass over a running sandbox
    time.sleep(max(0.0, left_alone.since + 33 - time.monotonic()))
    assert left_alone.now() == left_alone.before


def _kvm_works() -> bool:
    from tests.conftest import missing_kvm

    return not missing_kvm()


def _namespaces(kind: str) -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry / "ns" / kind))
    return found
