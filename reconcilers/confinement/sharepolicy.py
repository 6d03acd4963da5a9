"""What the jail of a virtiofsd must be: the VMM's, and a user namespace that knows one identity.

Pure, as `policy`. Inside, that identity is root, as the guest takes it to be; on the host it is the
sandbox's own, and nothing virtiofsd may do there counts for anybody else's files.
"""

from __future__ import annotations

from reconcilers.confinement.policy import (
    UNLIMITED,
    Confinement,
    Limits,
    Program,
    Shared,
    UserNamespace,
)

ROLE = "virtiofsd"
# Root in the guest overrides modes of its own files (`rm -r` of a read-only folder); it owns them.
CAPABILITIES = frozenset({"CAP_DAC_OVERRIDE"})
# chroot(2) into the directory; and libcap-ng, which drops the rest, refuses to without CAP_SETPCAP
UNTIL_READY = frozenset({"CAP_SYS_CHROOT", "CAP_SETPCAP"})
# One for each file the guest's kernel knows of, which with cache=none are those it has open
NOFILE = 16384


def share_confinement(
    *, uid: int, gid: int, isolation: str, limits: Limits, program: Program, shared: Shared
) -> Confinement:
    """The jail of one helper. `limits` are the VM's: it lives in the same cgroup.

    Raises ValueError for host identity 0.
    """
    if uid == 0 or gid == 0:
        raise ValueError("a helper never runs with host identity 0")
    return Confinement(
        uid=uid,
        gid=gid,
        isolation=isolation,
        limits=limits,
        rlimits=(
            ("core", 0, 0),
            ("fsize", UNLIMITED, UNLIMITED),  # a guest's file on the host may be of any size
            ("memlock", 0, 0),
            ("msgqueue", 0, 0),
            ("nice", 0, 0),
            ("nofile", NOFILE, NOFILE),
            ("rtprio", 0, 0),
        ),
        seccomp=program,
        role=ROLE,
        capabilities=CAPABILITIES,
        until_ready=UNTIL_READY,
        user_namespace=UserNamespace(((0, uid, 1),), ((0, gid, 1),), setgroups=False),
        shared=shared,
        umask="0000",  # the guest's kernel has applied the umask of its process already
    )
