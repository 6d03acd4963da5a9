"""The place of one run: the home, the throwaway sandboxes in it, their secrets, what was read once.

Checks get everything they may know from here. Sandboxes are made when a check first asks for them,
so that a single check costs a single machine.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from . import groups, proc, programs
from .home import BoxError, Home

T = TypeVar("T")
HERE = programs.HERE
RAM_MIB = 192
DATA_MIB = 32


class Arena:
    """One home under attack. `folder` is private and removed by whoever made it."""

    def __init__(
        self,
        box: Sequence[str],
        folder: Path,
        *,
        isolation: str = "strict",
        backend: str = "qemu",
        accel: str = "tcg",
        scale: float = 1.0,
        ready_made: Path | None = None,
    ) -> None:
        self.folder = folder
        self.isolation = isolation
        self.backend = backend
        self.accel = accel
        self.programs = ready_made
        """Where the programs lie that were compiled elsewhere; None: they are compiled here."""
        self.home = Home(box, folder, scale)
        self.root = os.geteuid() == 0
        self.canary = secrets.token_hex(24)
        """What only the host knows: content of a file that no guest may read."""
        self.canary_file = folder / "canary"
        self.canary_file.write_text(self.canary)
        self.nonces: dict[str, str] = {}
        self.measured: dict[str, Any] = {}
        self.confinement: dict[str, Any] = {}
        self._made: dict[str, Any] = {}
        self._vmms: dict[str, tuple[int, int]] = {}
        self._failed: dict[str, Exception] = {}
        self.closing: list[Callable[[], list[str]]] = [self.home.close]
        """What is to be removed in the end, the last first; each says what the product left."""

    # -- sandboxes

    def boxfile(self, **fields: object) -> str:
        """A Boxfile's text: small, of this run's isolation, with `fields` on top."""
        values: dict[str, object] = {
            "backend": self.backend,
            "isolation": self.isolation,
            "accel": self.accel,
            "cpus": 1,
            "ram_mib": RAM_MIB,
            "data": {"size_mib": DATA_MIB},
            **fields,
        }
        # JSON is YAML
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())

    def sandbox(self, *names: str, **fields: object) -> None:
        """Make sure that these sandboxes exist, are Ready, and hold a nonce of their own."""
        missing = [name for name in names if name not in self.nonces]
        if not missing:
            return
        self.home.declare({name: self.boxfile(**fields) for name in missing})
        for name in missing:
            self.home.wait(name)
            self.greet(name)

    def greet(self, name: str) -> None:
        """Give this guest a nonce of its own."""
        nonce = secrets.token_hex(16)
        self.home.put(name, "/run/nonce", nonce.encode())
        self.nonces[name] = nonce

    def vmms(self) -> Mapping[str, int]:
        """The two sandboxes that every reading from outside is made of, with their VMMs."""
        self.sandbox("a", "b")
        return {name: self.vmm(name) for name in ("a", "b")}

    def vmm(self, name: str) -> int:
        """As `box get` tells it, which is asked again once that process has ended."""
        pid, since = self._vmms.get(name, (0, 0))
        if since and proc.runs_since(pid) == since:
            return pid
        pid = self.home.pid(name)
        if pid <= 1:
            raise BoxError(f"box get names no process for {name}")
        self._vmms[name] = (pid, proc.runs_since(pid))
        return pid

    def helpers(self, name: str, vmm: int = 0) -> list[int]:
        """Processes in the sandbox's control group besides its VMM (virtiofsd, passt), which is
        asked for when it is not given.

        KVM puts a thread of the kernel's own there for each machine: no program runs in it.
        """
        pid = vmm or self.vmm(name)
        at = groups.folders(f"/proc/{pid}")
        folder = at.get("pids", at.get("v2"))
        found = [] if folder is None else groups.members(folder)
        return [each for each in found if each != pid and not proc.is_of_the_kernel(each)]

    def confined(self) -> dict[str, int]:
        """Every process that faces a guest: "a", "b", "a virtiofsd 4711"."""
        found = dict(self.vmms())
        for name, vmm in list(found.items()):
            for pid in self.helpers(name, vmm):
                program = Path(proc.arguments(pid)[0]).name
                found[f"{name} {program} {pid}"] = pid
        return found

    # -- what is made once

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The result of `make`, made at the first call.

        What could not be made is not tried again: the same exception is raised at every call.
        """
        if key in self._failed:
            raise self._failed[key]
        if key not in self._made:
            try:
                self._made[key] = make()
            except Exception as error:  # an interruption is none
                self._failed[key] = error
                raise
        found: T = self._made[key]
        return found

    def forget(self, key: str) -> None:
        """The next call of `once` makes it anew."""
        self._made.pop(key, None)
        self._failed.pop(key, None)

    def compiled(self, source: str) -> Path:
        """A static program made from the C file `source` beside this module."""

        def build() -> Path:
            if self.programs is not None:
                return programs.ready_made(source, self.programs)
            seconds = programs.COMPILE_SECONDS * self.home.scale
            return programs.compile_program(source, self.folder / "programs", seconds)

        return self.once(f"program {source}", build)

    def answers(self, name: str, output: bytes) -> dict[str, str]:
        """The lines "NONCE KEY VALUE" that only the guest which was given that nonce can write.

        Lines without it count for nothing.
        """
        found: dict[str, str] = {}
        for line in output.decode(errors="replace").splitlines():
            nonce, _, rest = line.partition(" ")
            if nonce == self.nonces[name]:
                key, _, value = rest.partition(" ")
                found[key] = value.strip()
        return found

    def close(self) -> list[str]:
        """Remove everything; what the product left behind, in words."""
        left: list[str] = []
        for close in reversed(self.closing):
            try:
                left += close()
            except (BoxError, OSError) as error:
                left.append(f"the clean-up itself failed: {error}")
        return left
