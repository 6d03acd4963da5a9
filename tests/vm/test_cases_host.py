"""What the host refuses, lacks or runs out of: permanent and passing errors, identities, rights."""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import GUEST_KERNEL
from tests.registry import needs_registry
from tests.vm.cases import CaseHome, case_home, names, nothing_left_behind, undisturbed
from tests.vm.harness import BOX, ROOT, TINY, until
from tests.vm.idblocks import block

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

QEMU = "/usr/bin/qemu-system-x86_64"


@pytest.fixture
def home_c3() -> Iterator[CaseHome]:
    with case_home() as home:
        yield home


def failures(home: CaseHome, name: str) -> list[float]:
    """When each attempt failed, in seconds."""
    return [
        datetime.datetime.fromisoformat(event["time"]).timestamp()
        for event in home.events(name, "failed")
    ]


def test_c3_a_base_that_cannot_work_is_invalid_at_once_and_never_tried(home_c3: CaseHome) -> None:
    home = home_c3
    with undisturbed(home):
        home.put("elm", TINY + "base: registry.invalid/Nope:0\n")
        home.valid("elm", "InvalidBoxfile", seconds=10)  # and not with the next timed scan
        message = home.message("elm", "Valid")
        assert message.startswith('elm.box.yaml:5:7: base: "Nope" has capitals')
        home.passes(3)
        assert failures(home, "elm") == []
        home.remove("elm")
        home.nothing_left("elm")


@needs_registry
def test_c3_a_registry_that_does_not_answer_is_asked_ever_less_often(home_c3: CaseHome) -> None:
    home = home_c3
    user = home.path / "user/.config/containers"
    user.mkdir(parents=True)
    # The name leads to a closed port: no question about it leaves this host.
    text = '[[registry]]\nprefix = "registry.invalid"\nlocation = "127.0.0.1:1"\n'
    (user / "registries.conf").write_text(text)
    home.stop()
    home.env["HOME"] = str(home.path / "user")
    home.start()
    base = "registry.invalid/nope:0"
    with undisturbed(home):
        home.put("elm", TINY + f"base: {base}\n")
        until(lambda: len(failures(home, "elm")) >= 4, 90, f"4 attempts; {home.log()}")
        times = failures(home, "elm")
        waits = [after - before for before, after in pairwise(times)][:3]
        for number, wait in enumerate(waits):
            # An attempt takes its own time; an event that a busy host wrote late is nearer to the
            # next one.
            assert wait > 2**number - 0.5, waits
        assert home.condition("elm", "ImageReady") == ("False", "BuildFailed")
        assert home.message("elm", "ImageReady").startswith(f"{base}: ")
        assert "connection refused" in home.message("elm", "ImageReady")
        assert home.condition("elm", "Ready") == ("False", "BackingOff")
        assert [path.name for path in (home.path / "images").glob(".build-*")] == []
        home.put("elm", TINY)  # and mending it is tried at once
        home.ready("elm")
        home.remove("elm")
        home.nothing_left("elm")


@pytest.mark.quiet  # how long it waits between two attempts is the point
@pytest.mark.parametrize("lacking", ["kernel", "qemu"])
def test_c3_a_host_that_lacks_something_is_asked_ever_less_often(
    home_c3: CaseHome, lacking: str
) -> None:
    home = home_c3
    missing = home.path / f"missing-{lacking}"
    real = {"kernel": GUEST_KERNEL.parent.resolve(), "qemu": Path(QEMU)}[lacking]
    home.stop()
    (home.path / "config.toml").write_text(f'{lacking} = "{missing}"\n')
    home.start()
    name = f"oak-{lacking}"
    with undisturbed(home):
        home.put(name)
        attempts = {"kernel": 4, "qemu": 3}[lacking]
        until(lambda: len(failures(home, name)) >= attempts, 30, f"{attempts} attempts")
        times = failures(home, name)
        waits = [after - before for before, after in pairwise(times)][:3]
        for number, wait in enumerate(waits):
            # the n-th delay is 2**n s and up to 1 s of jitter, and an attempt takes no time
            assert 2**number - 0.1 < wait < 2**number + 1 + 1.5, waits
        assert home.condition(name, "Ready") == ("False", "BackingOff")
        shown = home.box("describe", name).stdout.decode()
        assert str(missing) in shown
        assert "config.toml" in shown
        assert not (home.path / "disks" / name).exists()
        nothing_left_behind(home)
        assert not [p for p in home.path.rglob("*") if p.name.startswith(".initramfs")]
        # The next attempt is seconds away; asked again, what was fixed on the host works at once.
        missing.symlink_to(real)
        home.put(name, TINY + "labels: {tried: again}\n")
        until(lambda: home.events(name, "done"), 3, "tried at once")
        home.ready(name)
        assert home.report(name).get("failure") is None
        home.remove(name)
        home.nothing_left(name)


def test_s3_the_fourth_of_three_identities_waits_and_starts_when_one_is_freed() -> None:
    with contextlib.ExitStack() as held:
        first = held.enter_context(block())
        home = held.enter_context(case_home(config=f"uid_first = {first}\nuid_count = 3\n"))
        held.enter_context(undisturbed(home))
        three = ["ash", "elm", "fir"]
        for name in three:
            home.put(name)
        for name in three:
            home.ready(name)
        uids = {name: home.report(name)["vmm"]["uid"] for name in three}
        assert sorted(uids.values()) == [first, first + 1, first + 2]
        pids = {name: home.pid(name) for name in three}
        home.put("oak")
        until(lambda: home.condition("oak", "Ready")[1] == "BackingOff", 20, "it waits")
        assert "waits: all 3 identities" in home.message("oak", "Ready")
        assert "waits: all 3 identities" in home.box("describe", "oak").stdout.decode()
        assert home.vmms("oak") == []
        nothing_left_behind(home)
        # long waits are for a host that changes rarely; here it is we who free an identity
        until(lambda: len(failures(home, "oak")) >= 6, 60, "the next attempt is 32 s away")
        home.run("elm", "sh", "-c", "echo private > /data/file; sync")
        home.remove("elm")
        until(lambda: home.vmms("elm") == [], 20, "one is stopped")
        until(lambda: (home.runtime / "oak").exists(), 5, "it starts as soon as one is free")
        home.ready("oak")
        assert home.report("oak")["vmm"]["uid"] == uids["elm"]
        assert home.run("oak", "cat", "/data/file", check=False).returncode == 1
        for name in ("ash", "fir"):
            assert home.pid(name) == pids[name]
        kept = next((home.path / "disks" / ".deleted").iterdir()) / "base.raw"
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o600)


def test_s3_a_range_that_overlaps_a_user_is_refused_and_nothing_takes_its_place() -> None:
    user = pwd.getpwnam("nobody")
    config = f"uid_first = {user.pw_uid}\nuid_count = 2\nstandard_uid = 60000\n"
    with case_home(config=config) as home, undisturbed(home):
        home.put("oak")
        until(lambda: home.condition("oak", "Ready") == ("False", "LayerFailed"), 20, "refused")
        said = home.message("oak", "Ready")
        assert "overlaps" in said
        assert "nobody" in said
        assert "/etc/passwd" in said
        home.passes(2)
        assert home.vmms() == []
        assert home.cgroups("oak") == []


def test_s6_under_no_new_privs_each_vmm_is_confined_as_ever() -> None:
    with case_home(prefix=["setpriv", "--no-new-privs"]) as home, undisturbed(home):
        assert home.controller is not None
        own = Path(f"/proc/{home.controller.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in own
        home.put("oak")
        home.ready("oak")
        assert home.condition("oak", "Confined") == ("True", "AllLayersRead")
        lines = Path(f"/proc/{home.pid('oak')}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[kind], 16) == 0
        uids = set(map(int, status["Uid"].split()))
        assert len(uids) == 1
        assert min(uids) >= 1_879_048_192
        assert status["Groups"].strip() == ""
        for kind in ("mnt", "pid", "net", "ipc", "uts", "cgroup"):
            ours = os.readlink(f"/proc/self/ns/{kind}")
            assert os.readlink(f"/proc/{home.pid('oak')}/ns/{kind}") != ours
        assert home.run("oak", "echo", "well").stdout == b"well\n"
        assert names(home) == ["oak"]
    doctor = subprocess.run(
        ["setpriv", "--no-new-privs", *BOX, "doctor"], env=home.env, cwd=ROOT, capture_output=True
    )
    assert b"NoNewPrivs is set" in doctor.stdout
