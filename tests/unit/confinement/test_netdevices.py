"""Devices that the kernel puts into every network namespace are no drift, unless they are up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from reconcilers.confinement import netdevices
from reconcilers.confinement.netdevices import FALLBACK, counting
from reconcilers.network.readlinks import idle
from reconcilers.network.rtmessages import IFF_UP, Link

EVERY = ["lo", *FALLBACK]


def test_fallback_devices_that_are_down_do_not_count() -> None:
    assert counting(EVERY, up=()) == ["lo"]
    assert counting([*EVERY, "bxt0", "sit1"], up=()) == ["bxt0", "lo", "sit1"]


def test_one_that_is_up_counts_and_says_so() -> None:
    assert counting(EVERY, up=("lo", "gre0")) == ["gre0 (up)", "lo"]


def test_a_device_that_only_bears_the_name_is_none_of_them() -> None:
    sit = Link(3, "sit0", 0, 1480, 0, 0, "sit")
    assert idle(sit)
    for other in ({"flags": IFF_UP}, {"kind": "bridge"}, {"name": "sit1"}):
        assert not idle(replace(sit, **other))


@contextmanager
def namespace(script: str) -> Iterator[str]:
    """/proc/PID of a process in a network namespace of its own, after `script` ran there."""
    waiting = f"{script}; echo made; exec sleep 60"
    child = subprocess.Popen(["unshare", "-n", "sh", "-ec", waiting], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"made\n"
        yield f"/proc/{child.pid}"
    finally:
        child.kill()
        child.wait()


@pytest.mark.needs_root
def test_up_and_down_are_told_apart_from_outside_the_namespace() -> None:
    # Bridges with these names: the tunnels' modules are not everywhere, and /proc shows no kind.
    made = "for each in sit0 gre0 tunl0 other0; do ip link add $each type bridge; done"
    with namespace(made) as proc:
        assert netdevices.read(proc) == ["lo", "other0"]
    with namespace(f"{made}; ip link set sit0 up; ip link set tunl0 up") as proc:
        assert netdevices.read(proc) == ["lo", "other0", "sit0 (up)", "tunl0 (up)"]
    with namespace(f"{made}; ip link set sit0 up; ip link set sit0 down") as proc:
        assert netdevices.read(proc) == ["lo", "other0"]


@pytest.mark.needs_root
def test_a_namespace_as_this_host_makes_them_has_nothing_that_counts() -> None:
    with namespace("true") as proc:
        assert netdevices.read(proc) == ["lo"]
