"""Jail launchers that lack a layer: programs that change the product's own before it begins.

They run in the launcher's fresh process, in the place of its bootstrap (`following._BOOTSTRAP`), so
that what they take away is missing in the live process and nothing else is.
"""

from __future__ import annotations

import struct

# What every sabotage may use; it runs in the launcher before it begins. The first two lines are
# the launcher's own.
PRELUDE = """
import os, sys; sys.path += sys.argv[1:3]
from reconcilers.confinement import jailrights, jailroot, launch, syscalls
def nothing(*_): return None
def without(*names):
    launch.ORDER = tuple(each for each in launch.ORDER if each[0] not in names)
def instead(name, act):
    launch.ORDER = tuple((n, act if n == name else f) for n, f in launch.ORDER)
def before(name, act):
    at = [n for n, _ in launch.ORDER].index(name)
    launch.ORDER = (*launch.ORDER[:at], ("sabotage", act), *launch.ORDER[at:])
def changed(document, **fields):
    for name, value in fields.items(): setattr(document, name, value)
    return document
{}
launch.main()
"""

AMBIENT = """
import ctypes, prctl
def keep(_):
    prctl.cap_inheritable.chown = True
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(47, 2, 0, 0, 0) == 0  # PR_CAP_AMBIENT_RAISE of CAP_CHOWN
before("securebits", keep); without("capabilities")
"""
# Whoever loads the filters with CAP_SYS_ADMIN needs no no_new_privs, and the exec of a user that is
# not root gives up what it has not inherited.
PRIVILEGED_FILTER = """
import prctl
def shed(_): prctl.cap_inheritable.limit(); syscalls.ambient_clear()
before("landlock", shed); without("no_new_privs", "capabilities")
"""
ALLOW_EVERYTHING = "jailrights.load_seccomp = lambda _: syscalls.seccomp_load({})".format(
    'bytes.fromhex("060000000000ff7f")'  # linux/filter.h: BPF_RET | BPF_K, SECCOMP_RET_ALLOW
)


def answered(*calls: tuple[int, int | None]) -> str:
    """A filter, as hexadecimal bytes, that does nothing of these calls and says that all went well;
    each by its number and, if any, its first argument. It allows everything else.
    """
    load, equal, end = 0x20, 0x15, 0x06  # linux/filter.h: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    rows = []
    for number, first in calls:  # offsets in struct seccomp_data: 0 nr, 16 args[0]
        rows += [(load, 0, 0, 0), (equal, 0, 1 if first is None else 3, number)]
        if first is not None:
            rows += [(load, 0, 0, 16), (equal, 0, 1, first)]
        rows += [(end, 0, 0, 0x00050000)]  # SECCOMP_RET_ERRNO with 0
    rows += [(end, 0, 0, 0x7FFF0000)]  # SECCOMP_RET_ALLOW
    return b"".join(struct.pack("<HBBI", *row) for row in rows).hex()


# A program's own filter sets no_new_privs, and is a filter: neither comes, and it does not notice.
ITS_OWN = ((157, 38), (157, 22), (317, 1))  # prctl: no_new_privs, seccomp; seccomp: a filter
DECEIVED = """
load = jailrights.load_seccomp
def loaded(document):
    load(document); syscalls.seccomp_load(bytes.fromhex({!r}))
jailrights.load_seccomp = loaded
"""
# What the profile answers a pasta that wants to build what it has: chdir, pivot_root, mount,
# umount2, unshare, setns, readlink; and PR_SET_DUMPABLE.
BUILDS_NOTHING = tuple((each, None) for each in (80, 155, 165, 166, 272, 308, 89))
PASTA_UNFILTERED = "jailrights.load_seccomp = lambda _: syscalls.seccomp_load({})".format(
    f"bytes.fromhex({answered(*ITS_OWN, *BUILDS_NOTHING, (157, 4))!r})"
)
PASTA_PRIVILEGED = PRIVILEGED_FILTER + DECEIVED.format(answered(*ITS_OWN))
# As above, of a helper that keeps some capabilities over its exec: this one is not among them.
SHARE_PRIVILEGED = (
    DECEIVED.format(answered(*ITS_OWN))
    + """
from reconcilers.confinement import jailuser
def keep_more(document):
    kept = jailuser.mask_of(document.capabilities)
    syscalls.capset(kept | 1 << 21, kept | 1 << 21, kept)  # CAP_SYS_ADMIN
jailuser.keep_only = keep_more; without("no_new_privs")
"""
)
NO_CHROOT = DECEIVED.format(answered((161, None)))
KEEP_A_FILE = """
kept, take = os.open({!r}, os.O_RDONLY), jailrights.take_descriptors
jailrights.take_descriptors = lambda document, keep: take(
    changed(document, descriptors=(*document.descriptors, (20, kept))), keep)
"""
# A device in a network namespace of its own. Before the pid namespace is left: the next child
# would be PID 1 of the new one.
ANOTHER_DEVICE = """
leave = jailroot.leave_namespaces
def spy(document):
    syscalls.unshare(syscalls.CLONE_NEWNET)
    argv = ["ip", "link", "add", "spy0", "type", "veth", "peer", "name", "spy1"]
    os.waitpid(os.posix_spawnp("ip", argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}), 0)
    syscalls.CLONE_NEWNET = 0
    leave(document)
jailroot.leave_namespaces = spy
"""
# Without a mount namespace of its own nothing may be mounted: the host would see it.
NO_MOUNT_NAMESPACE = """
jailroot.NAMESPACES &= ~syscalls.CLONE_NEWNS; without("propagation", "root", "pivot")
"""
# virtiofsd then serves the directory where it lies.
SHARE_IN_PLACE = (
    NO_MOUNT_NAMESPACE
    + """
from reconcilers.confinement.atlaunch import wanted, LANDLOCK_KEY
jailrights.restrict_with_landlock = lambda _: wanted()[LANDLOCK_KEY]
begin = launch.Launch.__init__
def there(self, document):
    path = os.readlink(f"/proc/self/fd/{document.shares[0].descriptor}")
    argv = tuple(each.replace("/share", path) for each in document.argv)
    begin(self, changed(document, argv=argv, proc=False))
launch.Launch.__init__ = there
"""
)
# The host's own name must not be changed either.
NO_UTS_NAMESPACE = "jailroot.NAMESPACES &= ~syscalls.CLONE_NEWUTS; syscalls.sethostname = nothing"
ENVIRONMENT = """
def execute(launch):
    launch.say({"ready": launch.ready})
    os.execve(launch.document.argv[0], launch.document.argv, {"SECRET": "hunter2"})
instead("exec", execute)
"""
OTHER_IDENTITY = """
change = jailrights.change_identity
jailrights.change_identity = lambda d: change(changed(d, uid=d.uid + 7, gid=d.gid + 7))
"""
A_GROUP = """
change = jailrights.change_identity
def grouped(document): change(document); os.setgroups([4])
jailrights.change_identity = grouped
"""
NO_SECUREBITS = """
from reconcilers.confinement.securebits import SECUREBITS
jailrights.lock_securebits = nothing
jailrights.readings = lambda: {"securebits": SECUREBITS, "pdeathsig": 0}
"""
NO_LANDLOCK = "from reconcilers.confinement.atlaunch import wanted, LANDLOCK_KEY\n"
NO_LANDLOCK += "jailrights.restrict_with_landlock = lambda _: wanted()[LANDLOCK_KEY]"
DEATH_SIGNAL = 'jailrights.readings = (lambda real: lambda: {**real(), "pdeathsig": 0})('
DEATH_SIGNAL += "jailrights.readings)"
