"""What the jail of a virtiofsd must be: the VMM's, and a user namespace in which it is root.

Pure, as `policy`. Inside, the VMM's identity is root, as the guest takes it to be; on the host it
is the sandbox's own, and nothing virtiofsd may do there counts for anybody else's files.
"""

from __future__ import annotations

from dataclasses import replace

from reconcilers.confinement.policy import (
    UNLIMITED,
    Confinement,
    Program,
    Shared,
    UserNamespace,
    limited,
)

ROLE = "virtiofsd"
# Root in the guest overrides modes of its own files (`rm -r` of a read-only folder); it owns them.
CAPABILITIES = frozenset({"CAP_DAC_OVERRIDE"})
# chroot(2) into the directory; and libcap-ng, which drops the rest, refuses to without CAP_SETPCAP
UNTIL_READY = frozenset({"CAP_SYS_CHROOT", "CAP_SETPCAP"})
OWN_FILTERS = 1  # once it has its root
# One for each file the guest's kernel knows of, which with cache=none are those it has open
NOFILE = 16384


def share_confinement(vmm: Confinement, program: Program, shared: Shared) -> Confinement:
    """The jail of one helper beside `vmm`, with its identity and its limits: it lives in the same
    cgroup.

    Root builds it with rights of his own, and shows the owner's files as the helper's. An ordinary
    user has no such mount: `shared.owner` does not count, and files are shown as they are. Raises
    ValueError for host identity 0.
    """
    if vmm.uid == 0 or vmm.gid == 0:
        raise ValueError("a helper never runs with host identity 0")
    maps, groups = _identities(vmm)
    ordinary = vmm.user_namespace is not None
    return Confinement(
        uid=vmm.uid,
        gid=vmm.gid,
        isolation=vmm.isolation,
        limits=vmm.limits,
        # a guest's file on the host may be of any size
        rlimits=limited(fsize=(UNLIMITED, UNLIMITED), nofile=NOFILE),
        seccomp=program,
        groups=groups,
        role=ROLE,
        # With others in its namespace, it would override the modes of their files as well.
        capabilities=CAPABILITIES if len(maps.uid_map) == 1 else frozenset(),
        until_ready=UNTIL_READY,
        user_namespace=maps,
        shared=replace(shared, owner=None) if ordinary else shared,
        own_filters=OWN_FILTERS,
        umask="0000",  # the guest's kernel has applied the umask of its process already
    )


def _identities(vmm: Confinement) -> tuple[UserNamespace, tuple[int, ...]]:
    """(what its namespace knows, its groups). Of an ordinary user, whom the VMM's knows as well,
    and no more: the VMM's own identity comes first and is 0, the Rust virtiofsd demands that.
    """
    theirs = vmm.user_namespace
    if theirs is None:
        return UserNamespace(((0, vmm.uid, 1),), ((0, vmm.gid, 1),), setgroups=False), ()
    maps = UserNamespace(
        _first(theirs.uid_map, vmm.uid), _first(theirs.gid_map, vmm.gid), theirs.setgroups
    )
    return maps, () if theirs.setgroups else vmm.groups


def _first(rows: tuple[tuple[int, int, int], ...], own: int) -> tuple[tuple[int, int, int], ...]:
    """The same identities of the host, each one row, with `own` as 0 and the others after it."""
    others = [outside for _, outside, _ in rows if outside != own]
    return tuple((inside, outside, 1) for inside, outside in enumerate((own, *others)))
