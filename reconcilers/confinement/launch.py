"""The jail launcher: one fresh single-threaded process that confines itself and becomes the VMM.

Started by `start.py` with `python -I -S`. It applies every layer of ORDER, stops at the first that
fails and says which. The process is never reused: what it gave up cannot be taken back. It must
import nothing beyond the standard library, python-prctl and its siblings document, jsontext, jail*,
securebits and syscalls, and little of the standard library, for a launch takes as long as that;
after the root is entered nothing can be imported at all.

The report is a line of JSON per event on the status pipe, which a successful exec closes:
{"layer": NAME} before each layer, {"map": true} when its user namespace waits for its maps (from
the launcher before, from the first process after {"pid": N}, which is the launcher's), {"ready":
{...}} just before execve, {"failed": NAME, "errno": N, "error": TEXT}.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from reconcilers.confinement import jailrights, jailroot, jailshare, jailuser
from reconcilers.confinement.document import Bind, Document, Share
from reconcilers.confinement.jsontext import written


class Launch:
    """What one layer leaves for a later one. A method per layer; ORDER says in which sequence."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.status = document.status
        self.sources: dict[int, str] = {}
        self.trees: list[tuple[Bind, int]] = []
        self.shares: list[tuple[Share, int]] = []
        self.ready: dict[str, object] = {}

    def say(self, event: dict[str, object]) -> None:
        os.write(self.status, written(event) + b"\n")

    def cgroup(self) -> None:
        jailroot.join_cgroups(self.document)

    def user_namespace(self) -> None:
        """An ordinary user has the rights for all that follows only in a namespace of his own.

        The maps are written by the caller: newuidmap refuses a process that is not its user's any
        more, and this one is nobody's before it has them.
        """
        if not self.document.of_user:
            return
        self.sources = jailroot.paths_of(self.document)
        jailshare.stand_in_share(self.document)
        if self.document.user_namespace == "join":
            jailroot.join_user_namespace(self.document.users)
            return
        jailroot.leave_user_namespace()
        self.say({"map": True})
        if os.read(self.document.go, 1) != b"m":
            os._exit(1)

    def binds(self) -> None:
        self.trees = jailroot.clone_binds(self.document, self.sources)
        self.shares = jailshare.clone_shares(self.document)

    def namespaces(self) -> None:
        jailroot.leave_namespaces(self.document)

    def propagation(self) -> None:
        jailroot.stop_propagation()

    def root(self) -> None:
        jailroot.build_root(self.document, self.trees)
        jailshare.attach_shares(jailroot.STAGE, self.shares)
        if self.document.proc:
            jailshare.make_proc(jailroot.STAGE)

    def first_process(self) -> None:
        """The child is PID 1 of the new namespace; the parent reports it and ends.

        Neither goes on before the caller holds a pidfd: until then the parent is alive and does not
        wait, so the number cannot be reused; and should the caller die, both see the end of the go
        pipe and end too.
        """
        child = os.fork()
        if child:
            self.say({"pid": child})
            os.read(self.document.go, 1)
            os._exit(0)
        if os.read(self.document.go, 1) != b"g":
            os._exit(1)

    def session(self) -> None:
        jailrights.new_session()

    def proc(self) -> None:
        if self.document.proc:
            jailshare.mount_proc(jailroot.STAGE)

    def pivot(self) -> None:
        jailroot.enter_root()

    def late_user_namespace(self) -> None:
        if self.document.user_namespace == "late":
            jailuser.leave_user_namespace()
            self.say({"map": True})
            jailuser.wait_for_maps(self.document)

    def descriptors(self) -> None:
        self.status = jailrights.take_descriptors(self.document, self.status)

    def signals(self) -> None:
        jailrights.reset_signals()

    def rlimits(self) -> None:
        jailrights.limit_resources(self.document)

    def scheduler(self) -> None:
        jailrights.let_others_go_first(self.document)

    def ambient(self) -> None:
        if self.document.capabilities:
            jailuser.keep_over_exec(self.document)

    def securebits(self) -> None:
        jailrights.lock_securebits()

    def bounding_set(self) -> None:
        jailrights.empty_bounding_set()

    def identity(self) -> None:
        jailrights.change_identity(self.document)

    def capabilities(self) -> None:
        if self.document.capabilities:
            jailuser.keep_only(self.document)
        else:
            jailrights.drop_capabilities()

    def no_new_privs(self) -> None:
        jailrights.forbid_new_privileges()

    def landlock(self) -> None:
        self.ready["landlock"] = jailrights.restrict_with_landlock(self.document)

    def seccomp(self) -> None:
        self.ready.update(jailrights.readings())
        if self.document.proc:
            self.ready["mounts"] = jailshare.mounted()
        jailrights.load_seccomp(self.document)

    def exec(self) -> None:
        self.say({"ready": self.ready})
        os.execve(self.document.argv[0], self.document.argv, {})


# docs/confinement.md quotes this list and a test compares the two
ORDER: tuple[tuple[str, Callable[[Launch], None]], ...] = (
    ("cgroup", Launch.cgroup),
    ("user namespace", Launch.user_namespace),
    ("binds", Launch.binds),
    ("namespaces", Launch.namespaces),
    ("propagation", Launch.propagation),
    ("root", Launch.root),
    ("first process", Launch.first_process),
    ("session", Launch.session),
    ("proc", Launch.proc),
    ("pivot", Launch.pivot),
    ("late user namespace", Launch.late_user_namespace),
    ("descriptors", Launch.descriptors),
    ("signals", Launch.signals),
    ("rlimits", Launch.rlimits),
    ("scheduler", Launch.scheduler),
    ("ambient set", Launch.ambient),
    ("securebits", Launch.securebits),
    ("bounding set", Launch.bounding_set),
    ("identity", Launch.identity),
    ("capabilities", Launch.capabilities),
    ("no_new_privs", Launch.no_new_privs),
    ("landlock", Launch.landlock),
    ("seccomp", Launch.seccomp),
    ("exec", Launch.exec),
)


def run(document: Document) -> None:
    """Applies every layer; never returns: it becomes the VMM or ends the process."""
    launch = Launch(document)
    name = ORDER[0][0]
    try:
        for name, layer in ORDER:
            launch.say({"layer": name})
            layer(launch)
    except BaseException as error:  # the caller must hear of anything, and nothing may go on
        number = getattr(error, "errno", None) or 0
        launch.say({"failed": name, "errno": number, "error": str(error)})
    os._exit(1)


def main() -> None:
    """Reads the document from the descriptor named by the last argument."""
    descriptor = int(sys.argv[-1])
    with os.fdopen(descriptor, "rb") as file:
        document = Document.from_bytes(file.read())
    run(document)
