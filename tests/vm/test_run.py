"""`box run`: one command in a VM of its own; what it wrote stays, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.cases import CaseHome, leftovers
from tests.vm.harness import BOX, PATIENCE, READY, ROOT, SLOWNESS, folders_in, until
from tests.vm.netlab import BOXFILE, NetHome, net_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(600)]

STOPPED = "state: stopped\n"
LOST = b"its VM ended while the command ran"


@pytest.fixture(scope="module")
def home() -> Iterator[NetHome]:
    with net_home() as made:
        yield made


@pytest.fixture(scope="module")
def shared(home: NetHome) -> Path:
    folder = home.path.parent / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def oak(home: NetHome, shared: Path) -> Iterator[str]:
    """A stopped sandbox with all that a VM can have beside it: a network and a mount."""
    stopped(home, "oak", boxfile(shared))
    yield "oak"
    nothing_is_left(home)


def boxfile(shared: Path) -> str:
    return f'{BOXFILE}mounts: [{{host: "{shared}", guest: /mnt/shared, mode: rw}}]\n'


def stopped(home: CaseHome, name: str, text: str) -> None:
    home.put(name, text + STOPPED)
    until(lambda: home.condition(name, "Ready")[1] == "Stopped", 60, f"{name} is known")
    until(lambda: home.box("get", name).returncode == 0 and not home.vmms(), 60, "it is stopped")


def nothing_is_left(home: CaseHome) -> None:
    def told() -> str:
        return f"nothing is left: {everything(home)}; {home.log()}"

    until(lambda: not everything(home), 90, told)


def everything(home: CaseHome) -> list[object]:
    """Whatever a VM has on the host, of which a stopped sandbox has nothing."""
    runtime = home.runtime.iterdir() if home.runtime.exists() else ()
    shown = home.host_shows() if isinstance(home, NetHome) else []
    groups = [each for top in home.cgroups() for each in folders_in(top)]
    return [*home.vmms(), *groups, *runtime, *home.spaces(), *shown, *leftovers(home)]


def begun(home: CaseHome, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        home.command("run", *arguments),
        env=home.env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextlib.contextmanager
def going(home: CaseHome, name: str, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `box run` whose command has said "begun"."""
    with begun(home, name, "--", "sh", "-c", f"echo begun; {script}") as client:
        try:
            assert client.stdout is not None
            said = client.stdout.read(6)
            assert said == b"begun\n", f"{client.communicate()} {home.log()}"
            yield client
        finally:
            client.kill()


def events(home: CaseHome, name: str, kind: str) -> list[str]:
    path = home.path / "observed" / name / "events.jsonl"
    found = map(json.loads, path.read_text().splitlines())
    return [each["message"] for each in found if each["kind"] == kind]


def story(home: CaseHome, name: str) -> None:
    """Bytes, statuses, and that what is not synced is there in the next run."""
    script = "cat; printf '\\377\\0\\r\\n'; echo err >&2; echo kept > /data/file; exit 7"
    done = home.box("run", name, "-i", "--", "sh", "-c", script, data=b"in\n", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in\n\xff\x00\r\n", b"err\n")
    nothing_is_left(home)
    done = home.box("run", name, "--", "sh", "-c", "cat /data/file; kill -9 $$", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (137, b"kept\n", b"")
    nothing_is_left(home)
    assert home.drifted(name) == []


def test_what_it_wrote_is_there_in_the_next_run(home: NetHome, oak: str, shared: Path) -> None:
    story(home, oak)
    # The one that has its VM keeps it until the others, however late they came, were refused.
    script = "echo seen >> /mnt/shared/file; ip -4 addr show dev eth0 | grep -c inet"
    script += "; until [ -e /mnt/shared/go ]; do sleep 0.1; done"
    rivals = [begun(home, oak, "--", "sh", "-c", script) for _ in range(4)]
    until(lambda: [each.poll() for each in rivals].count(None) <= 1, READY, "three have ended")
    (shared / "go").touch()
    ends = [(*client.communicate(timeout=READY * PATIENCE), client.returncode) for client in rivals]
    (won,) = (each for each in ends if each[2] == 0)
    assert won[0] == b"1\n"
    assert (shared / "file").read_text() == "seen\n"
    lost = [each for each in ends if each[2] == 125]
    assert len(lost) == 3 and all(b"box run" in each[1] for each in lost), ends


@pytest.mark.long
def test_it_waits_for_a_transfer_and_a_transfer_is_told_of_it(
    home: NetHome, oak: str, tmp_path: Path
) -> None:
    home.box("run", oak, "--", "sh", "-c", "echo kept > /data/file")
    with subprocess.Popen(
        [*BOX, "data", "export", oak, str(tmp_path / "out")], env=home.env, cwd=ROOT
    ) as export:
        until(lambda: list(home.runtime.glob(".t/*")), 30, "the helper machine is being started")
        done = home.box("run", oak, "--", "cat", "/data/file", check=False)
        assert export.wait(READY * PATIENCE) == 0
    # On a busy host the transfer takes longer than anybody waits for it.
    assert done.stdout == b"kept\n" or b"its /data is being exported" in done.stderr, done
    assert (tmp_path / "out" / "file").read_text() == "kept\n"


def test_while_it_runs_it_is_a_vm_like_any_other_and_has_data_alone(
    home: NetHome, oak: str
) -> None:
    with going(home, oak, "sleep 600") as client:
        assert home.box("verify", oak).returncode == 0
        (vmm,) = home.vmms(oak)
        for arguments, said in {
            ("run", oak, "--", "true"): b"a command of box run has the disk of oak open",
            ("snapshot", oak): b"a command of box run has the disk of oak open",
            ("restore", oak, "x"): b"a command of box run has the disk of oak open",
            (
                "data",
                "export",
                oak,
                str(home.path.parent / "out"),
            ): b"box run has the disk of oak open",
            ("exec", oak, "--", "true"): b"is for one command of box run",
        }.items():
            refused = home.box(*arguments, check=False)
            assert refused.returncode == (125 if arguments[0] in ("run", "exec") else 1)
            assert said in refused.stderr and b"fix: " in refused.stderr, refused
        assert home.condition(oak, "Ready") == ("False", "Stopped")
        # What is changed from outside is put back as it is on any VM.
        home.without_pids_limit(oak)
        home.look_again()
        home.mended(oak, "cgroup.pids")
        # A Boxfile that changes is taken up when it has ended, with another VM.
        home.put(oak, BOXFILE)
        until(lambda: home.box("diff", "-f", str(home.boxes)).returncode == 0, 20, "it is seen")
        home.passes()
        assert home.vmms(oak) == [vmm]
        client.send_signal(signal.SIGINT)
        assert client.wait(READY * PATIENCE) == 130
    home.ready(oak)
    assert vmm not in home.vmms(oak)
    refused = home.box("run", oak, "--", "true", check=False)
    assert refused.returncode == 125
    assert b"box run needs oak stopped" in refused.stderr
    assert b"box exec oak -- CMD" in refused.stderr
    stopped(home, oak, BOXFILE)


@pytest.mark.parametrize("early", [True, False], ids=["before its VM is up", "while it runs"])
def test_a_killed_client_takes_the_vm_along(home: NetHome, oak: str, early: bool) -> None:
    if early:
        client = begun(home, oak, "--", "sleep", "600")
        until(lambda: home.vmms(oak), READY, "its VM is being started")
        client.kill()
        client.communicate()
    else:
        with going(home, oak, "echo synced > /data/mark; sync; sleep 600") as client:
            client.kill()
    nothing_is_left(home)


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("echo o > /proc/sysrq-trigger; sleep 600", 125, LOST),
        pytest.param("echo c > /proc/sysrq-trigger; sleep 600", 125, LOST, marks=pytest.mark.long),
        pytest.param("exec /no/such/program", 127, b"", marks=pytest.mark.long),
        ("trap '' TERM; sleep 600 & sleep 601", 124, b"timed out after"),
    ],
    ids=["powers off", "panics", "not found", "takes too long"],
)
def test_how_a_guest_can_end_it(
    home: NetHome, oak: str, script: str, status: int, said: bytes
) -> None:
    limit = "2" if status == 124 else "60"
    command = ["--timeout", limit, "--", "sh", "-c", script]
    done = home.box("run", oak, *command, check=False)
    assert done.returncode == status, done
    assert said in done.stderr, done


def test_a_deletion_ends_it(home: NetHome) -> None:
    stopped(home, "ash", BOXFILE)
    with going(home, "ash", "sleep 600") as client:
        home.box("delete", "ash", "--wait")
        assert client.wait(READY * PATIENCE) == 125
        assert client.stderr is not None
        assert b"the sandbox was deleted" in client.stderr.read()
    home.nothing_left("ash")
    nothing_is_left(home)


def test_what_may_not_run_is_refused_with_the_reason(home: NetHome) -> None:
    stopped(home, "elm", boxfile(home.path))  # of which no sandbox gets anything
    done = home.box("run", "elm", "--", "true", check=False)
    assert done.returncode == 125
    assert b"no VM of elm came up for it: mounts[0].host" in done.stderr, done
    assert b"fix: " in done.stderr, done
    (home.path / "policy.toml").write_text("max_total_ram_mib = 100\n")
    try:
        done = home.box("run", "elm", "--", "true", check=False)
        assert done.returncode == 125
        assert b"max_total_ram_mib" in done.stderr, done
    finally:
        (home.path / "policy.toml").unlink()
    done = home.box("run", "nobody", "--", "true", check=False)
    assert (done.returncode, b"no sandbox nobody" in done.stderr) == (125, True)
    home.box("delete", "elm")


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(1000)])]
)
def test_whoever_ends_at_any_moment_leaves_nothing_and_loses_nothing(
    home: NetHome, oak: str, rounds: int
) -> None:
    """The controller, killed or told to end, or the client: what was synced is there, the VM is
    not.
    """
    seed = int(os.environ.get("BOX_TEST_SEED", "20261130"))
    chance = random.Random(seed)
    home.box("run", oak, "--", "sh", "-c", "rm -f /data/log; touch /data/log")
    synced: list[str] = []
    maybe: set[str] = set()
    for number in range(rounds):
        how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, None])
        after = chance.uniform(0.0, 6.0) * SLOWNESS
        told = f"seed {seed}, round {number}: {how or 'the client'} after {after:.2f} s"
        script = f"cat /data/log; echo {number} >> /data/log; sync; echo synced; sleep 600"
        client = begun(home, oak, "--", "sh", "-c", script)
        time.sleep(after)
        if how is None:
            client.kill()
        else:
            home.stop(how)
            if how == signal.SIGTERM:
                assert not home.vmms(), f"{told}: {home.log()}"
            home.start()
        out, err = client.communicate(timeout=READY * PATIENCE)
        assert client.returncode == (-signal.SIGKILL if how is None else 125), f"{told}: {err!r}"
        nothing_is_left(home)
        said = out.decode().split()
        if said:
            assert [each for each in said if each in synced] == synced, told
            assert set(said) <= {*synced, *maybe, "synced"}, told
        if "synced" in said:
            synced.append(str(number))
        else:
            maybe.add(str(number))
        print(f"{told}: {'synced' if 'synced' in said else 'read' if said else 'nothing said'}")
    log = home.box("run", oak, "--", "cat", "/data/log").stdout.decode().split()
    assert [each for each in log if each in synced] == synced, f"seed {seed}"
    assert set(log) <= {*synced, *maybe}, f"seed {seed}"
