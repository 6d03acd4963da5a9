"""A VMM that lacks a layer no live process can get is never adopted: it is replaced, and named.

The controller is stopped, the sandbox's VMM killed, and another one put in its place by hand: in
its cgroup, with its name, identity, sockets and a launch record that claims all is well. It lacks
one layer. The controller that starts then must end it, start a whole one and say which layer it
missed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconcilers.confinement.layers import LAYERS
from reconcilers.confinement.readjail import NAMESPACES
from specs.reading import Reading
from tests.vm.handmade import Handmade, Sabotage
from tests.vm.harness import READY, TINY, Home, until
from tests.vm.jailed import QEMU
from tests.vm.launchers import (
    A_GROUP,
    ALLOW_EVERYTHING,
    AMBIENT,
    ANOTHER_DEVICE,
    DEATH_SIGNAL,
    ENVIRONMENT,
    KEEP_A_FILE,
    NO_LANDLOCK,
    NO_MOUNT_NAMESPACE,
    NO_SECUREBITS,
    NO_UTS_NAMESPACE,
    OTHER_IDENTITY,
    PRIVILEGED_FILTER,
)

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(120)]


def forged(layer: str, item: str, got: str) -> Any:
    """The launch record says `got`, and that this was wanted."""

    def forge(readings: Iterable[Reading]) -> tuple[Reading, ...]:
        return tuple(
            replace(each, got=got, want=got) if (each.layer, each.item) == (layer, item) else each
            for each in readings
        )

    return forge


def silent(layer: str, item: str) -> Any:
    """The launch record does not say."""

    def forge(readings: Iterable[Reading]) -> tuple[Reading, ...]:
        return tuple(each for each in readings if (each.layer, each.item) != (layer, item))

    return forge


# what is taken away -> (the field of the drift, every layer that reads differently, how)
CASES: dict[str, tuple[str, frozenset[str], Sabotage]] = {
    "user": ("identity.Uid", frozenset({"identity"}), Sabotage('without("identity")')),
    "its own user": ("identity.Uid", frozenset({"identity"}), Sabotage(OTHER_IDENTITY)),
    "no groups": ("identity.Groups", frozenset({"identity"}), Sabotage(A_GROUP)),
    "bounding set": (
        "capabilities.CapBnd", frozenset({"capabilities"}), Sabotage('without("bounding set")')
    ),
    "capabilities": ("capabilities.CapInh", frozenset({"capabilities"}), Sabotage(AMBIENT)),
    "securebits, said": (
        "securebits.securebits", frozenset({"securebits"}),
        Sabotage(NO_SECUREBITS, forge=forged("securebits", "securebits", "0x0")),
    ),
    "securebits, not said": (
        "securebits.securebits", frozenset({"securebits"}),
        Sabotage(NO_SECUREBITS, forge=silent("securebits", "securebits")),
    ),
    "no_new_privs": (
        "no_new_privs.NoNewPrivs", frozenset({"no_new_privs"}),
        Sabotage(PRIVILEGED_FILTER, filtered=False),
    ),
    "seccomp filter": (
        "seccomp.Seccomp", frozenset({"seccomp"}),
        Sabotage("jailrights.load_seccomp = nothing", filtered=False),
    ),
    "our seccomp program": (
        "seccomp.program sha256", frozenset({"seccomp"}),
        Sabotage("jailrights.load_seccomp = nothing"),
    ),
    "a seccomp program that refuses": (
        "seccomp.program sha256", frozenset({"seccomp"}), Sabotage(ALLOW_EVERYTHING)
    ),
    "landlock": (
        "landlock.rules", frozenset({"landlock"}),
        Sabotage(NO_LANDLOCK, forge=forged("landlock", "rules", "absent")),
    ),
    "mnt namespace": (
        "namespaces.mnt", frozenset({"namespaces", "root"}), Sabotage(NO_MOUNT_NAMESPACE)
    ),
    "pid namespace": (
        "namespaces.pid", frozenset({"namespaces"}),
        Sabotage("jailroot.NAMESPACES &= ~syscalls.CLONE_NEWPID"),
    ),
    "net namespace": (
        "namespaces.net", frozenset({"namespaces", "network"}),
        Sabotage("syscalls.CLONE_NEWNET = 0"),
    ),
    "ipc namespace": (
        "namespaces.ipc", frozenset({"namespaces"}),
        Sabotage("jailroot.NAMESPACES &= ~syscalls.CLONE_NEWIPC"),
    ),
    "uts namespace": ("namespaces.uts", frozenset({"namespaces"}), Sabotage(NO_UTS_NAMESPACE)),
    "cgroup namespace": (
        "namespaces.cgroup", frozenset({"namespaces"}),
        Sabotage("jailroot.NAMESPACES &= ~syscalls.CLONE_NEWCGROUP"),
    ),
    "an empty network": ("network.devices", frozenset({"network"}), Sabotage(ANOTHER_DEVICE)),
    "root": ("root.writable mounts", frozenset({"root"}), Sabotage('without("pivot")')),
    "read-only root": (
        "root.writable mounts", frozenset({"root"}),
        Sabotage("jailroot.READ_ONLY &= ~syscalls.MOUNT_ATTR_RDONLY"),
    ),
    "no file of the host": (
        "descriptors.files", frozenset({"descriptors"}), Sabotage(KEEP_A_FILE.format("/etc/passwd"))
    ),
    "no folder of the host": (
        "descriptors.of other kinds", frozenset({"descriptors"}),
        Sabotage(KEEP_A_FILE.format("/etc")),
    ),
    "empty environment": (
        "environment.variables", frozenset({"environment"}), Sabotage(ENVIRONMENT)
    ),
    "session": ("session.Umask", frozenset({"session"}), Sabotage('without("session")')),
    "no death signal": (
        "session.death signal", frozenset({"session"}),
        Sabotage(DEATH_SIGNAL, forge=forged("session", "death signal", "9")),
    ),
    "our binary": ("exec.binary", frozenset({"exec"}), Sabotage(binary=Path("another QEMU"))),
}  # fmt: skip


@pytest.fixture(scope="module")
def oak(shared_home: Home) -> Iterator[Home]:
    shared_home.put("oak", TINY)
    shared_home.ready("oak")
    yield shared_home


@pytest.fixture(scope="module")
def another_qemu() -> Iterator[Path]:
    """The same program in another file, which everybody may run."""
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copy2(QEMU, folder))


def events(home: Home, kind: str) -> list[str]:
    path = home.path / "observed" / "oak" / "events.jsonl"
    found = (json.loads(line) for line in path.read_text().splitlines())
    return [event["message"] for event in found if event["kind"] == kind]


def test_every_layer_that_only_a_new_process_can_have_is_taken_away_here() -> None:
    fields = {field for field, _, _ in CASES.values()}
    layers = {field.partition(".")[0] for field in fields}
    assert layers == {each.name for each in LAYERS if each.mend == "replace"}
    assert {f"namespaces.{name}" for name in NAMESPACES} <= fields


def test_vmm_started_by_hand_with_every_layer_is_adopted(oak: Home) -> None:
    """The others are replaced for what they lack, not for how they were started."""
    oak.stop()
    made = Handmade(oak, "oak")
    made.start(None)
    assert made.faults() == ()
    oak.start()
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
    assert oak.pid("oak") == made.pid and not made.gone()
    assert oak.drifted("oak") == []


@pytest.mark.parametrize("missing", CASES)
def test_vmm_without_it_is_replaced_and_the_event_names_the_layer(
    missing: str, oak: Home, another_qemu: Path
) -> None:
    field, layers, sabotage = CASES[missing]
    if sabotage.binary is not None:
        sabotage = replace(sabotage, binary=another_qemu)
    oak.stop()
    made = Handmade(oak, "oak")
    try:
        made.start(sabotage)
        assert {each.layer for each in made.faults()} == layers
        assert not made.gone()
        before = len(events(oak, "drift"))
        oak.start()
        until(made.gone, 20, f"the VMM without {missing} is ended; {oak.log()}")
        until(lambda: oak.pid("oak") not in (0, made.pid), READY, f"another VMM; {oak.log()}")
        told = events(oak, "drift")[before:]
        assert [text for text in told if text.startswith(f"{field}: ")], told
    finally:
        made.close()


def test_the_last_replacement_is_whole(oak: Home) -> None:
    until(lambda: oak.run("oak", "true", check=False).returncode == 0, READY, "it answers")
    oak.ready("oak")
    assert oak.box("verify", "oak").returncode == 0
    assert oak.vmms("oak") == [oak.pid("oak")]
