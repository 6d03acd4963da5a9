"""The checks of `box doctor`, in the order they are shown."""

from __future__ import annotations

from controller.cli import doctor_extras, doctor_home, doctor_host, doctor_trials
from controller.cli.doctor_result import Check

CHECKS: tuple[Check, ...] = (
    doctor_home.operating_system,
    doctor_extras.host_kernel,
    doctor_home.user,
    doctor_home.new_privileges,
    doctor_home.python,
    doctor_home.home_folder,
    doctor_home.watched_folder,
    doctor_home.config_file,
    doctor_home.policy_file,
    doctor_home.disk_space,
    doctor_home.memory,
    doctor_home.runtime_folder,
    doctor_home.socket_paths,
    doctor_host.launching_side,
    doctor_trials.cgroups,
    doctor_host.namespaces,
    doctor_host.identities,
    doctor_host.seccomp,
    doctor_host.landlock,
    doctor_host.qemu,
    doctor_host.qemu_files,
    doctor_host.guest_kernel,
    doctor_host.guest_agent,
    doctor_host.busybox,
    doctor_host.image_tools,
    doctor_trials.hardware_virtualization,
    doctor_extras.virtiofsd,
    doctor_extras.nftables,
    doctor_extras.tap_devices,
    doctor_extras.forwarding,
    doctor_extras.passt,
    doctor_home.controller,
)

# What does not work without it. A sandbox that asks for none of that runs all the same, so a check
# of something that only some need warns.
_EVERY = "every sandbox"
NEEDED_FOR: dict[str, str] = {
    "operating_system": _EVERY,
    "host_kernel": _EVERY,
    "user": _EVERY,
    "new_privileges": "ordinary users: newuidmap",
    "python": _EVERY,
    "home_folder": _EVERY,
    "watched_folder": _EVERY,
    "config_file": _EVERY,
    "policy_file": _EVERY,
    "disk_space": "images and data disks",
    "memory": "the guests' RAM",
    "runtime_folder": "sockets of every sandbox",
    "socket_paths": "sockets of every sandbox",
    "launching_side": "the jail of every sandbox",
    "cgroups": "the limits of every sandbox",
    "namespaces": "the jail of every sandbox",
    "identities": "isolation: strict",
    "seccomp": "the jail of every sandbox",
    "landlock": "one more layer of the jail",
    "qemu": "backend: qemu",
    "qemu_files": "backend: qemu",
    "guest_kernel": _EVERY,
    "guest_agent": _EVERY,
    "busybox": "base: builtin:busybox",
    "image_tools": "images and data disks",
    "hardware_virtualization": "accel: kvm, and isolation: strict without accel: tcg",
    "virtiofsd": "mounts",
    "nftables": "network: bridge",
    "tap_devices": "network: bridge",
    "forwarding": "network: bridge, as root",
    "passt": "network: bridge, as an ordinary user",
    "controller": "everything but reading",
}
