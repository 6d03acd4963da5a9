"""What was opened in a network namespace shows that one, and no other in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from reconcilers.confinement import procfile, syscalls
from reconcilers.network import innerviews, spaces, state
from reconcilers.network.innerviews import Gone, Process, View, Views
from reconcilers.network.wanted import Wanted
from reconcilers.process import run
from specs.errors import HostError
from tests.unit.network.test_inner import NAMES, wanted

pytestmark = pytest.mark.needs_root

# In a network namespace of its own, and for each line that it is sent in another one.
MOVING = """
import sys
from reconcilers.confinement import syscalls
while True:
    syscalls.unshare(syscalls.CLONE_NEWNET)
    print("moved", flush=True)
    sys.stdin.readline()
"""


class Mover:
    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", MOVING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._moved()
        self.process: Process = (self._child.pid, procfile.start_time(self._child.pid))

    def _moved(self) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == b"moved\n"

    def move(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        self._moved()

    def run(self, *command: str) -> None:
        run(["nsenter", f"--net=/proc/{self.process[0]}/ns/net", *command])

    def end(self) -> None:
        self._child.kill()
        self._child.wait()


@pytest.fixture
def movers() -> Iterator[tuple[Mover, Mover]]:
    made = (Mover(), Mover())
    yield made
    for each in made:
        each.end()


class Opener:
    """What `innerworker` does for an ordinary user."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, wanted: Wanted, keeper: Process, vmm: Process) -> View:
        self.times += 1
        settings = (state.VMM_SETTINGS, state.middle_settings(wanted))
        found = [_opened(*each) for each in zip((vmm, keeper), settings, strict=True)]
        os.close(found[0].pop("rules"))
        return View((innerviews.space_of(vmm), innerviews.space_of(keeper)), found)


def _opened(process: Process, settings: Mapping[str, str]) -> dict[str, int]:
    def look() -> dict[str, int]:
        with open(f"/proc/{process[0]}/ns/net") as space:
            syscalls.setns(space.fileno(), syscalls.CLONE_NEWNET)
        return innerviews.open_here(settings)

    return spaces.in_thread(look)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def names(view: View) -> tuple[set[str], set[str]]:
    vmm, middle = (place.kernel.links() for place in (view.vmm, view.middle))
    return {each.name for each in vmm}, {each.name for each in middle}


def test_it_shows_the_namespaces_it_was_opened_in(movers: tuple[Mover, Mover]) -> None:
    vmm, keeper = movers
    views = Views(opener := Opener())
    of = partial(views.of, wanted(), keeper.process, vmm.process)
    before = descriptors()
    with of() as view:
        assert names(view) == ({"lo"}, {"lo"})
        generation = view.netfilter.generation()
    vmm.run("ip", "link", "add", "one", "type", "bridge")
    keeper.run("ip", "link", "add", "two", "type", "bridge")
    keeper.run("nft", "add table inet box; add counter inet box lost")
    keeper.run("sysctl", "-qw", "net.ipv4.fwmark_reflect=1")
    with of() as view:
        assert names(view) == ({"lo", "one"}, {"lo", "two"})
        assert view.netfilter.generation() > generation
        assert view.netfilter.counts("box") == {"lost": 0}
        assert view.middle.setting("ipv4/fwmark_reflect") == "1"
        assert view.middle.setting("ipv4/nothing") is None
    assert opener.times == 1
    views.let_go(NAMES)
    assert descriptors() == before


@pytest.mark.parametrize("which", [0, 1])
def test_another_namespace_in_its_place_is_seen(movers: tuple[Mover, Mover], which: int) -> None:
    vmm, keeper = movers
    views = Views(opener := Opener())
    of = partial(views.of, wanted(), keeper.process, vmm.process)
    movers[which].run("ip", "link", "add", "one", "type", "bridge")
    with of() as view:
        assert "one" in names(view)[which]
    movers[which].move()
    with of() as view:
        assert names(view) == ({"lo"}, {"lo"})
    assert opener.times == 2


def test_one_that_was_opened_elsewhere_is_refused(movers: tuple[Mover, Mover]) -> None:
    vmm, keeper = movers
    opened, before = Opener(), descriptors()
    views = Views(lambda asked, keeper, vmm: opened(asked, vmm, keeper))
    with pytest.raises(HostError), views.of(wanted(), keeper.process, vmm.process):
        pass
    assert descriptors() == before


def test_who_has_ended_is_not_looked_at(movers: tuple[Mover, Mover]) -> None:
    vmm, keeper = movers
    views, before = Views(Opener()), descriptors()
    with views.of(wanted(), keeper.process, vmm.process):
        pass
    keeper.end()
    with pytest.raises(Gone), views.of(wanted(), keeper.process, vmm.process):
        pass
    views.let_go(NAMES)
    assert descriptors() == before


def test_it_is_closed_after_whoever_uses_it_and_opened_anew_after_a_failure(
    movers: tuple[Mover, Mover],
) -> None:
    vmm, keeper = movers
    views, before = Views(opener := Opener()), descriptors()
    with views.of(wanted(), keeper.process, vmm.process) as view:
        views.let_go(NAMES)
        assert names(view) == ({"lo"}, {"lo"})
    assert descriptors() == before
    with pytest.raises(ValueError), views.of(wanted(), keeper.process, vmm.process):
        raise ValueError
    assert descriptors() == before
    with views.of(wanted(), keeper.process, vmm.process):
        pass
    assert opener.times == 3
