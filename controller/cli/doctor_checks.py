"""The checks of `box doctor`, in the order they are shown."""

from __future__ import annotations

from controller.cli import doctor_home, doctor_host
from controller.cli.doctor_result import Check

CHECKS: tuple[Check, ...] = (
    doctor_home.operating_system,
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
    doctor_host.cgroups,
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
    doctor_host.hardware_virtualization,
    doctor_home.controller,
)
