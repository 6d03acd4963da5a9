"""How many files a process may have open: what the controller's own children must be able to get.

A helper that serves a directory is limited in a user namespace, where nobody may raise a hard limit
any more (setrlimit(2)). So the controller has to come with one that is high enough, or get it
before its first child. systemd gives 524,288; a login without it often has the kernel's own 4,096.
"""

from __future__ import annotations

import resource

from reconcilers.confinement import policy, sharepolicy, wirepolicy

NEEDED = max(policy.NOFILE, sharepolicy.NOFILE, wirepolicy.NOFILE)
FIX = f"start box with a hard limit of at least {NEEDED}: ulimit -Hn, LimitNOFILE= of a service"


def take_most() -> int:
    """Raises both limits of this process as far as it may; the hard one it then has.

    A lower one than NEEDED is no failure: only sandboxes with mounts or an ordinary user's network
    need that, and the launch of their helpers says so.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = max(hard, NEEDED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):  # not without CAP_SYS_RESOURCE, nor above fs.nr_open
        most = hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
