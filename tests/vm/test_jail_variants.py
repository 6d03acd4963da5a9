"""The jail with a KVM node, and the one of standard sandboxes."""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement.identity import standard_uid
from reconcilers.confinement.readback import read_vmm
from reconcilers.confinement.rootview import root_files
from reconcilers.confinement.seccomp import load_profile
from specs.config import Config
from specs.errors import ConfinementError
from tests.vm.jailed import UID, confinement, jail, probe

pytestmark = pytest.mark.needs_root


def test_kvm_node_is_in_the_jail_only_when_asked_for() -> None:
    with jail() as without:
        without.start_bare()
        assert not Path(f"/proc/{without.pid}/root/dev").exists()
    with jail(confinement(load_profile("qemu", True)), kvm=True) as made:
        made.start_bare()
        device = Path(f"/proc/{made.pid}/root/dev/kvm").stat()
        assert stat.S_ISCHR(device.st_mode) and device.st_rdev == os.makedev(10, 232)
        assert (device.st_uid, device.st_gid, device.st_mode & 0o777) == (UID, UID, 0o600)
        assert os.listdir(f"/proc/{made.pid}/root/dev") == ["kvm"]
        assert made.launched is not None
        readings = read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
        assert [each for each in readings if not each.ok] == []


def test_kvm_node_opens_for_the_vmm() -> None:
    """Whether it is a usable KVM is another question; the jail must not be what stops it."""
    if not Path("/dev/kvm").exists():
        pytest.skip("this host has no /dev/kvm")
    with jail(confinement(load_profile("qemu", True)), kvm=True) as made:
        made.start(probe(), "read", "/dev/kvm", files=root_files(probe()))
        assert made.ended() == (os.CLD_EXITED, 0)
    with jail() as without:
        without.start(probe(), "read", "/dev/kvm", files=root_files(probe()))
        assert without.ended() == (os.CLD_EXITED, 2)


def test_vmm_started_without_kvm_is_a_difference_when_kvm_is_wanted() -> None:
    with jail() as made:
        made.start_bare()
        assert made.launched is not None
        want = confinement(load_profile("qemu", True))
        readings = read_vmm(made.pid, want, made.names, at_launch=made.launched.at_launch)
        assert [each.layer for each in readings if not each.ok] == ["seccomp"]


def test_standard_sandbox_has_the_shared_unprivileged_identity_and_all_layers() -> None:
    uid = standard_uid(Config())
    with jail(uid=uid, gid=uid, isolation="standard") as made:
        made.start_bare()
        status = made.status()
        assert status["Uid"].split() == [str(uid)] * 4 and uid != 0
        assert made.launched is not None
        readings = read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
        assert [each for each in readings if not each.ok] == []


def test_two_standard_sandboxes_do_not_see_each_other() -> None:
    uid = standard_uid(Config())
    with jail(uid=uid, gid=uid) as one, jail(uid=uid, gid=uid) as two:
        one.start(probe())
        # signal 0 to PID 2 and up: it is alone in its pid namespace
        two.start(probe())
        for made in (one, two):
            assert made.status()["NSpid"].split()[-1] == "1"
        assert os.readlink(f"/proc/{one.pid}/ns/pid") != os.readlink(f"/proc/{two.pid}/ns/pid")


@pytest.fixture
def prepared() -> Iterator[tuple[str, int]]:
    """A network namespace with one device `d0`: its name and a descriptor."""
    name = f"boxtest-{secrets.token_hex(4)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        inside = ["ip", "-n", name, "link", "add", "d0", "type", "bridge"]
        subprocess.run(inside, check=True)
        descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        yield name, descriptor
        os.close(descriptor)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def test_vmm_lives_in_the_network_namespace_that_was_prepared(prepared: tuple[str, int]) -> None:
    name, descriptor = prepared
    with jail(devices=("d0",)) as made:
        launched = made.start_bare(netns=descriptor)
        inode = os.stat(f"/run/netns/{name}").st_ino
        assert os.stat(f"/proc/{made.pid}/ns/net").st_ino == inode
        readings = read_vmm(made.pid, made.want, made.names, at_launch=launched.at_launch)
        assert [each for each in readings if not each.ok] == []
        [shown] = [each.got for each in readings if each.layer == "network"]
        assert shown == "d0 lo"


def test_device_nobody_asked_for_is_a_difference(prepared: tuple[str, int]) -> None:
    with jail() as made:
        launched = made.start_bare(netns=prepared[1])
        readings = read_vmm(made.pid, made.want, made.names, at_launch=launched.at_launch)
        assert [(each.layer, each.item) for each in readings if not each.ok] == [
            ("network", "devices")
        ]


def test_namespace_of_another_kind_is_refused() -> None:
    descriptor = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with jail() as made, pytest.raises(ConfinementError) as caught:
            made.start_bare(netns=descriptor)
        assert caught.value.layer == "namespaces"
    finally:
        os.close(descriptor)
