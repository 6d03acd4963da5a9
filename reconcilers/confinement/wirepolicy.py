"""What the jails of the two helpers of an ordinary user's network must be.

Pure, as `policy`. The keeper only lives: its network namespace is the one that holds the rules.
pasta turns what comes through the rules into sockets of the host, in the host's own network
namespace, where it has no right that its user lacks. Neither has a capability anywhere.
"""

from __future__ import annotations

from dataclasses import replace

from reconcilers.confinement.policy import MIB, Confinement, Limits, Program, limited

KEEPER, PASTA = "keeper", "pasta"
PROFILES = {KEEPER: "keeper", PASTA: "passt"}
# pasta's tables and packet buffers; what the kernel keeps for its sockets is within it as well
WIRE_OVERHEAD = 96 * MIB
WIRE_PIDS = 8  # one each, pasta's short-lived one, and their launchers
# A socket for each connection of the guest, pipes and sockets that pasta makes in advance
NOFILE = 8192


def with_wire(limits: Limits) -> Limits:
    """The limits of a VM whose network is carried by these helpers: they live in its cgroup."""
    memory = limits.memory_bytes + WIRE_OVERHEAD
    return replace(limits, memory_bytes=memory, pids_max=limits.pids_max + WIRE_PIDS)


def wire_confinement(vmm: Confinement, role: str, program: Program) -> Confinement:
    """The jail of one of them beside this VMM: its identity and its group.

    Raises ValueError for an unknown role.
    """
    if role not in PROFILES:
        raise ValueError(f"{role} is no helper of a network")
    return Confinement(
        uid=vmm.uid,
        gid=vmm.gid,
        isolation=vmm.isolation,
        limits=vmm.limits,
        # neither has a file to write
        rlimits=limited(fsize=(0, 0), nofile=NOFILE if role == PASTA else 16),
        seccomp=program,
        groups=vmm.groups,
        user_namespace=vmm.user_namespace,
        role=role,
        devices=None,
        host_network=role == PASTA,
        own_filters=1 if role == PASTA else 0,
    )
