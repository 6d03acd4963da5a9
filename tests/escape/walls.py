"""The walls that the saboteur can take away, by name. Each says what is missing afterwards.

A wall of the jail is a program for the launcher; the others are changes of the controller.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reconcilers import backend
from reconcilers.accel import Choice
from reconcilers.backend import VmmCommand
from reconcilers.confinement.policy import UNLIMITED
from reconcilers.confinement.rootview import RootFile
from specs.conditions import Reason
from specs.names import HostNames
from tests.escape.saboteur import Product
from tests.vm import launchers

WALLS: dict[str, Callable[[Product], None]] = {}
COMMAND = "reconcilers.backends.qemu.Qemu.command"
MUCH = 64 << 30


def wall(name: str) -> Callable[[Callable[[Product], None]], Callable[[Product], None]]:
    def register(function: Callable[[Product], None]) -> Callable[[Product], None]:
        WALLS[name] = function
        return function

    return register


# -- the jail, in the launcher

IN_THE_LAUNCHER = {
    "capabilities": launchers.AMBIENT,
    "bounding set": 'without("bounding set")',
    "no_new_privs": launchers.PRIVILEGED_FILTER,
    "seccomp": "jailrights.load_seccomp = nothing",
    "seccomp program": launchers.ALLOW_EVERYTHING,
    "user": 'without("identity")',
    "no groups": launchers.A_GROUP,
    "pid namespace": "jailroot.NAMESPACES &= ~syscalls.CLONE_NEWPID",
    "net namespace": "syscalls.CLONE_NEWNET = 0",
    "ipc namespace": "jailroot.NAMESPACES &= ~syscalls.CLONE_NEWIPC",
    "uts namespace": launchers.NO_UTS_NAMESPACE,
    "cgroup namespace": "jailroot.NAMESPACES &= ~syscalls.CLONE_NEWCGROUP",
    "empty network": launchers.ANOTHER_DEVICE,
    "read-only root": "jailroot.READ_ONLY &= ~syscalls.MOUNT_ATTR_RDONLY",
    "nosuid root": "jailroot.READ_ONLY &= ~syscalls.MOUNT_ATTR_NOSUID",
    "empty environment": launchers.ENVIRONMENT,
    "no file of the host": launchers.KEEP_A_FILE.format("/etc/passwd"),
    "no folder of the host": launchers.KEEP_A_FILE.format("/"),
    "no device": launchers.KEEP_A_FILE.format("/dev/zero"),
    "landlock": launchers.NO_LANDLOCK,
    "time slice": 'without("scheduler")',
    "core limit": 'limit("core", 1 << 20)',
    "file size limit": 'limit("fsize", -1)',
}
LIMIT = """
def limit(name, value):
    real = jailrights.limit_resources
    jailrights.limit_resources = lambda d: real(changed(d, rlimits=tuple(
        (n, value, value) if n == name else (n, soft, hard) for n, soft, hard in d.rlimits)))
"""
WITHOUT_QEMUS_OWN = ("no_new_privs", "seccomp")
"""QEMU's own filter would set no_new_privs, and is a filter."""


def in_the_launcher(name: str) -> Callable[[Product], None]:
    """The wall that this program of IN_THE_LAUNCHER takes away."""

    def remove(product: Product) -> None:
        product.launcher.append(IN_THE_LAUNCHER[name])
        if name in WITHOUT_QEMUS_OWN:
            product.around(COMMAND, _unfiltered)

    return remove


WALLS.update({name: in_the_launcher(name) for name in IN_THE_LAUNCHER})


def into_launchers(product: Product) -> None:
    """After all walls: what was collected for the launcher goes into its bootstrap."""
    if product.launcher:
        program = launchers.PRELUDE.format(LIMIT + "\n".join(product.launcher))
        product.replace("reconcilers.confinement.following._BOOTSTRAP", program)


def _unfiltered(command: Any, *given: Any) -> VmmCommand:
    argv = list(command(*given).argv)
    at = argv.index("-sandbox")
    return VmmCommand((*argv[:at], *argv[at + 2 :]))


@wall("mnt namespace")
def _mnt_namespace(product: Product) -> None:
    """The VMM sees the host's root, and finds its kernel there by descriptor."""
    product.launcher.append(launchers.NO_MOUNT_NAMESPACE)

    def launched(launch: Any, request: Any, **named: Any) -> Any:
        there = {backend.KERNEL_PATH: 30, backend.INITRD_PATH: 31}
        files = {number: request.binds[path] for path, number in there.items()}
        argv = (f"/proc/self/fd/{there[w]}" if w in there else w for w in request.argv)
        changed = replace(request, argv=tuple(argv), descriptors={**request.descriptors, **files})
        return launch(changed, **named)

    product.around("reconcilers.microvm.launch", launched)


@wall("no canary in the root")
def _canary(product: Product) -> None:
    path = str(_canary_file())
    extra = RootFile(path, path, False)
    product.around(
        "reconcilers.microvm.root_files", lambda files, *given, **named: (
            *files(*given, **named), extra)
    )  # fmt: skip


def _canary_file() -> Path:
    """The suite's own: beside its home."""
    return Path(os.environ["BOX_HOME"]).parent / "canary"


# -- limits of the control group


def _limited(**more: int) -> Callable[[Product], None]:
    def remove(product: Product) -> None:
        product.around(
            "reconcilers.confinement.policy.limits_for",
            lambda limits, **named: replace(limits(**named), **more),
        )

    return remove


WALLS["memory limit"] = _limited(memory_bytes=MUCH)
WALLS["pids limit"] = _limited(pids_max=30_000)
WALLS["cpu limit"] = _limited(cpu_quota_us=6_400_000)


@wall("cpu weight")
def _cpu_weight(product: Product) -> None:
    """All sandboxes together weigh as much as 64 other groups: what a busy guest does to its host
    is no matter of luck then, and the host still answers. In a group of their own, not in `box`,
    which other sandboxes of this host lie in.
    """

    def apart(names: HostNames) -> str:
        return f"boxtest-heavy/{names.instance}/{names.sandbox}"

    product.replace("specs.names.HostNames.cgroup", property(apart))
    product.replace(
        "reconcilers.confinement.cgroup.Cgroup.weight",
        lambda group, limits: 64 * group._top.default_weight,
    )


# -- between sandboxes


@wall("own user")
def _own_user(product: Product) -> None:
    """All strict sandboxes get the identity of the first."""
    shared: list[int] = []

    def claim(real: Any, host: Any, sandbox: str) -> int:
        if not shared:
            shared.append(real(host, sandbox))
        host._claims[sandbox] = shared[0]
        return shared[0]

    product.around("reconcilers.host.Host.claim", claim)
    product.replace("reconcilers.host.Host.claims", lambda host: host._claims)
    product.replace("reconcilers.host.Host.restore_claims", lambda host: [])


@wall("private disk")
def _private_disk(product: Product) -> None:
    def opened(real: Any, disk: Any, *given: Any) -> Any:
        disk.path.parent.chmod(0o777)
        disk.path.chmod(0o666)
        return real(disk, *given)

    product.around("reconcilers.disk.open_for_vmm", opened)


@wall("private sockets")
def _private_sockets(product: Product) -> None:
    product.replace("reconcilers.sockets.SOCKET_MODE", 0o666)


@wall("disk size")
def _disk_size(product: Product) -> None:
    """Disks are made larger than declared."""
    product.around("reconcilers.disk.create", lambda create, at, size: create(at, 2 * size))


@wall("clean deletion")
def _clean_deletion(product: Product) -> None:
    """Beside the group of a deleted sandbox another one stays."""

    def removed(real: Any, group: Any) -> None:
        for folder in group.folders:
            if Path(folder).is_dir():
                Path(f"{folder}-left").mkdir(exist_ok=True)
        real(group)

    product.around("reconcilers.confinement.cgroup.Cgroup.remove", removed)


# -- what the guest is given


def _more(*words: str) -> Callable[[Product], None]:
    def remove(product: Product) -> None:
        product.around(COMMAND, lambda command, *given: VmmCommand((*command(*given).argv, *words)))

    return remove


WALLS["one port"] = _more(
    "-chardev", "null,id=more", "-device", "virtserialport,chardev=more,name=box.agent.1"
)
WALLS["no network card"] = _more("-device", "virtio-net-device")


@wall("secret token")
def _secret_token(product: Product) -> None:
    """The token is on the guest's kernel command line."""
    token = secrets.token_hex(32)
    product.replace("reconcilers.microvm.secrets", SimpleNamespace(token_hex=lambda _: token))
    product.around(
        "reconcilers.backends.qemu.kernel_command_line",
        lambda line, *given, **named: f"{line(*given, **named)} box.token={token}",
    )


@wall("empty image")
def _empty_image(product: Product) -> None:
    """In the root image are the canary's content and an API socket, in a folder of the host's name.

    Not under the canary's own name: in a guest /tmp is a file system of its own.
    """

    def tree(real: Any, target: Path) -> None:
        real(target)
        folder = target / "var/lib/box"
        folder.mkdir(parents=True)
        (folder / "canary").write_bytes(_canary_file().read_bytes())
        os.mknod(folder / "box.sock", stat.S_IFSOCK | 0o666)

    product.around("reconcilers.images.builtin.busybox_tree", tree)


@wall("hidden agent")
def _hidden_agent(product: Product) -> None:
    """The agent's program is in the guest's root, where a workload finds it."""
    from agent.build import agent_binary

    def tree(real: Any, target: Path) -> None:
        real(target)
        (target / "init").write_bytes(agent_binary().read_bytes())

    product.around("reconcilers.images.builtin.busybox_tree", tree)


@wall("read-only guest")
def _read_only_guest(product: Product) -> None:
    """`readonly: true` is not told to the guest."""
    product.around(
        "reconcilers.backends.qemu.kernel_command_line",
        lambda line, *given, **named: line(*given, **named).replace(" box.readonly=1", ""),
    )


@wall("read-only image")
def _read_only_image(product: Product) -> None:
    """The VMM can write to the root image, and so can the guest's kernel."""

    def opened(real: Any, image: Any) -> int:
        os.close(real(image))
        return os.open(image.path, os.O_RDWR | os.O_CLOEXEC)

    product.around("reconcilers.microvm.open_verified", opened)
    product.around(
        "reconcilers.backends.qemu._layer",
        lambda layer, *given, **named: layer(*given, **{**named, "written": True}),
    )


@wall("hardware")
def _hardware(product: Product) -> None:
    """Emulation where `accel: kvm` was asked for."""
    choice = Choice("tcg", Reason.HardwareVirtualization, "it is said to be KVM")
    product.replace("reconcilers.host.needs_probe", lambda box: False)
    product.replace("reconcilers.host.choose", lambda box, verdict: choice)


assert UNLIMITED == -1  # what "file size limit" says
