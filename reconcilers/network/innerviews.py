"""An ordinary user's view of the two network namespaces of a sandbox, without entering them.

Nobody outside a user namespace may enter a network namespace of it, and whoever entered cannot come
back. But a netlink socket answers for the namespace it was opened in, and so does an open file of
/proc/sys/net, whoever holds them. `innerworker` opens them once, for each VMM and each controller;
they are used on every pass, by the owner of the user namespace, who has every right in it.

What is held keeps a namespace alive, so it is let go of with its VMM.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from reconcilers import procfs
from reconcilers.network import netfilter as nf
from reconcilers.network import readlinks, routing, state
from reconcilers.network.netfilter import Netfilter
from reconcilers.network.readlinks import Place
from reconcilers.network.routing import Routing
from reconcilers.network.wanted import Wanted
from specs.errors import HostError
from specs.names import HostNames

Process = tuple[int, int]  # PID and start time
_FILE_MAX = 4096  # bytes; every one that is asked for is a number


class Gone(Exception):
    """A process whose namespaces were to be read or entered has ended."""


class View:
    """Of two namespaces, by their inodes; one thread at a time may use it."""

    def __init__(self, spaces: tuple[int, int], opened: Sequence[Mapping[str, int]]) -> None:
        """`opened` are descriptors by what they are, for the VMM's namespace and for the one that
        holds the rules, as `open_here` gives them. They are this object's from now on.
        """
        self.spaces = spaces
        self._files = [dict(each) for each in opened]
        sockets = [
            {kind: socket.socket(fileno=files.pop(kind)) for kind in _SOCKETS if kind in files}
            for files in self._files
        ]
        self._routes = [Routing(each[_ROUTES]) for each in sockets]
        self.netfilter = Netfilter(sockets[1][_RULES])
        self._retired = False
        self._lock = threading.Lock()

    @property
    def vmm(self) -> Place:
        return self._place(0)

    @property
    def middle(self) -> Place:
        return self._place(1)

    def _place(self, number: int) -> Place:
        files = self._files[number]

        def setting(name: str) -> str | None:
            if name not in files:
                return None
            return os.pread(files[name], _FILE_MAX, 0).decode("ascii", "replace").strip()

        return Place(self._routes[number], setting)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Raises HostError when it was retired meanwhile."""
        with self._lock:
            if self._retired:
                raise HostError("its network was let go of while it was about to be read")
            yield
        if self._retired:
            self.retire()

    def retire(self) -> None:
        """Close everything, now or when who uses it is done: this waits for nobody."""
        self._retired = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            self.netfilter.close()
            for each in self._routes:
                each.close()
            for files in self._files:
                while files:
                    os.close(files.popitem()[1])
        finally:
            self._lock.release()


_ROUTES, _RULES = "routes", "rules"
_SOCKETS = (_ROUTES, _RULES)


def open_here(settings: Mapping[str, str]) -> dict[str, int]:
    """Descriptors of the calling thread's namespace: of both kinds of sockets, and of each file of
    /proc/sys/net that one of `settings` lies in and that is there.
    """
    found = {_ROUTES: routing.open_socket().detach(), _RULES: nf.open_socket().detach()}
    for name in readlinks.in_files(settings):
        try:
            found[name] = os.open(f"/proc/sys/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
    return found


def open_both(wanted: Wanted, enter: Callable[[str], None]) -> list[dict[str, int]]:
    """What a view is made of; `enter` moves the process into a namespace by its name."""
    enter(wanted.vmm_space)
    vmm = open_here(state.VMM_SETTINGS)
    os.close(vmm.pop(_RULES))  # there are none
    enter(wanted.middle_space)
    return [vmm, open_here(state.middle_settings(wanted))]


class Views:
    """One for each sandbox, of the VMM that it has."""

    def __init__(self, opened: Callable[[Wanted, Process, Process], View]) -> None:
        self._open = opened
        self._held: dict[HostNames, tuple[Process, Process, View]] = {}

    @contextmanager
    def of(self, wanted: Wanted, keeper: Process, vmm: Process) -> Iterator[View]:
        """Whoever fails to read by it has it opened anew next time. Raises Gone, HostError."""
        now = (space_of(vmm), space_of(keeper))
        held = self._held.get(wanted.names)
        if held is None or held[:2] != (keeper, vmm) or held[2].spaces != now:
            self.let_go(wanted.names)
            view = self._open(wanted, keeper, vmm)
            if view.spaces != now:
                view.retire()
                raise HostError("its namespaces changed while they were looked at")
            self.let_go(wanted.names)  # another thread may have been here
            held = self._held[wanted.names] = (keeper, vmm, view)
        try:
            with held[2].used():
                yield held[2]
        except BaseException:
            self.let_go(wanted.names)
            raise

    def let_go(self, names: HostNames) -> None:
        """Close what is held of a sandbox, if anything."""
        held = self._held.pop(names, None)
        if held is not None:
            held[2].retire()


def space_of(process: Process) -> int:
    """The inode of the network namespace of exactly this process. Raises Gone."""
    pid, start = process
    try:
        inode = os.stat(f"/proc/{pid}/ns/net").st_ino
    except FileNotFoundError:
        inode = 0
    if not inode or procfs.alive(pid, start) is None:
        raise Gone(f"process {pid} has ended")
    return inode
