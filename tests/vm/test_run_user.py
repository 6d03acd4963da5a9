"""`box run` of an ordinary user, with a network, and of clients that hinder it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.vm.cases import CaseHome
from tests.vm.harness import PATIENCE, READY, until
from tests.vm.netlab import BOXFILE, PUBLIC4, NetHome, net_home
from tests.vm.people import person
from tests.vm.test_run import begun, going, nothing_is_left, stopped, story
from tests.vm.usernet import user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(600)]

HANG = """#include <sched.h>
int main(void) {
    struct sched_param most = {.sched_priority = 99};
    if (sched_setscheduler(0, SCHED_FIFO, &most)) return 3;
    for (;;) {}
}
"""
RT = "/proc/sys/kernel/sched_rt_runtime_us"


@pytest.fixture(scope="module")
def root() -> Iterator[NetHome]:
    with net_home() as made:
        yield made


@pytest.fixture(scope="module")
def users(root: NetHome) -> Iterator[CaseHome]:
    with person() as someone, user_home(someone, root.lab) as made:
        made.start()
        yield made


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.long), "users"])
def home(request: pytest.FixtureRequest) -> Iterator[CaseHome]:
    """With `oak`, which is stopped and has a network."""
    found: CaseHome = request.getfixturevalue(request.param)
    stopped(found, "oak", BOXFILE)
    yield found
    nothing_is_left(found)


def test_an_ordinary_user_has_it_with_a_network_too(users: CaseHome, root: NetHome) -> None:
    home = users
    stopped(home, "oak", BOXFILE)
    story(home, "oak")
    # With an open input: pasta may lose the other end's end of a connection that is half closed.
    dial = f"mkfifo /tmp/open; sleep 600 >/tmp/open & timeout 30 nc {PUBLIC4} 443 </tmp/open"
    script = f"{dial}; echo begun; sleep 600"
    with begun(home, "oak", "--", "sh", "-c", script) as client:
        assert client.stdout is not None
        assert client.stdout.readline().decode().strip() == root.lab.word
        assert client.stdout.readline() == b"begun\n"
        assert home.box("verify", "oak").returncode == 0
        home.stop(signal.SIGKILL)
    home.start()
    nothing_is_left(home)


def test_output_that_nobody_reads_keeps_neither_the_limit_nor_the_vm(home: CaseHome) -> None:
    script = "echo kept > /data/file; yes; sleep 600"
    client = begun(home, "oak", "--timeout", "3", "--", "sh", "-c", script)
    try:
        until(lambda: home.vmms("oak"), READY, "its VM is there")
        nothing_is_left(home)
        out, err = client.communicate(timeout=60 * PATIENCE)
    finally:
        client.kill()
    assert client.returncode == 124, err
    assert out.startswith(b"y\ny\n")
    assert err == (
        b"box: timed out after 3 s; what it printed was not read, and the rest of it is lost\n"
    )
    assert home.box("run", "oak", "--", "cat", "/data/file").stdout == b"kept\n"


def test_a_client_that_stands_still_hears_later_how_it_ended(home: CaseHome) -> None:
    with going(home, "oak", "read -t 5 line; echo ended; exit 3") as client:
        client.send_signal(signal.SIGSTOP)
        nothing_is_left(home)
        client.send_signal(signal.SIGCONT)
        out, err = client.communicate(timeout=60 * PATIENCE)
        assert (client.returncode, out, err) == (3, b"ended\n", b"")


def test_a_second_ctrl_c_leaves_a_command_that_ignores_the_first(home: CaseHome) -> None:
    with going(home, "oak", "trap 'echo again' INT; echo set; while :; do sleep 1; done") as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"set\n"
        client.send_signal(signal.SIGINT)
        assert client.stdout.readline() == b"again\n"
        client.send_signal(signal.SIGINT)
        assert client.wait(60 * PATIENCE) == 130


@pytest.mark.long
def test_a_guest_that_hangs_is_not_waited_for_for_ever(home: CaseHome) -> None:
    """Its only processor belongs to a real-time loop, with root's rights in the guest."""
    program = home.path.parent / "hang"
    source = program.with_suffix(".c")
    source.write_text(HANG)
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    script = f"cat > /tmp/hang; chmod +x /tmp/hang; echo -1 > {RT}; exec /tmp/hang"
    options = ["-i", "--timeout", "5", "--", "sh", "-c", script]
    done = home.box("run", "oak", *options, data=program.read_bytes(), check=False)
    assert done.returncode == 124, done
    assert done.stderr.startswith(b"box: timed out after 5 s; the guest did not unmount /data")


@pytest.mark.long
def test_a_vm_that_stands_still_is_not_waited_for_for_ever(home: CaseHome) -> None:
    with begun(home, "oak", "--timeout", "2", "--", "sh", "-c", "echo begun; sleep 600") as client:
        assert client.stdout is not None
        assert client.stdout.read(6) == b"begun\n"
        os.kill(home.pid("oak"), signal.SIGSTOP)
        assert client.wait(READY * PATIENCE) == 124
