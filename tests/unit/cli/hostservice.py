"""A Service whose commands are real processes of this host, for tests of the stream around them.

It stands in for no VM: what is tested with it is the API server, the exec stream and their client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from agent import merged
from agent.messages import ExecRequest, Exit
from controller.api import ApiServer
from controller.forks import Outcome
from controller.httpconn import Limits
from controller.service import Applied, Output
from reconcilers.chain import check_label
from reconcilers.images.progress import Progress, Seen
from reconcilers.images.stored import Stored
from reconcilers.snapshots import Listed
from specs.drift import Event
from specs.errors import (
    Conflict,
    InvalidBoxfile,
    NoSandbox,
    NotUp,
    RefusedByPolicy,
    StillRunning,
)
from specs.parse import parse_boxfile
from specs.reading import Reading
from specs.report import Report

PIECE = 64 * 1024
VM_DIES = b"vm-dies"
"""A program name: the command starts, says "half", and then its VM is gone."""


class HostCommand:
    """One process of the host as a Command. `taken` counts output handed on, in bytes."""

    def __init__(self, process: asyncio.subprocess.Process, timeout_ms: int) -> None:
        self._process = process
        self.pid = process.pid
        self.seconds = timeout_ms / 1000
        self.taken = 0
        self.stdin_taken = 0
        self.abandoned = False
        self._end: Exit | None = None
        self._pending: dict[asyncio.Task[bytes], Output] = {}
        assert process.stdout is not None and process.stderr is not None
        self._open: dict[Output, asyncio.StreamReader] = {
            "stdout": process.stdout,
            "stderr": process.stderr,
        }
        if timeout_ms:
            asyncio.get_running_loop().call_later(timeout_ms / 1000, self._too_long)

    def _too_long(self) -> None:
        if self._process.returncode is None:
            self._end = Exit("timeout", 0)
            self._kill(signal.SIGKILL)

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def read(self) -> tuple[Output, bytes]:
        while True:
            for name, reader in self._open.items():
                if name not in self._pending.values():
                    self._pending[asyncio.ensure_future(reader.read(PIECE))] = name
            if not self._pending:
                await self._process.wait()
                return "end", b""
            done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            task = done.pop()
            name = self._pending.pop(task)
            data = task.result()
            if data:
                self.taken += len(data)
                return name, data
            del self._open[name]

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()
        self.stdin_taken += len(data)

    async def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def kill(self, signal: int) -> None:
        self._kill(signal)

    async def abandon(self) -> None:
        self.abandoned = True
        self._kill(signal.SIGKILL)
        await self._process.wait()
        for task in self._pending:
            task.cancel()
        # asyncio closes pipes that nobody has drained only when it is told to.
        self._process._transport.close()  # type: ignore[attr-defined]

    async def wait(self) -> Exit:
        code = await self._process.wait()
        if self._end is not None:
            return self._end
        return Exit("signal", -code) if code < 0 else Exit("exit", code)

    def lose(self) -> None:
        self._end = Exit("lost", 0)
        self._kill(signal.SIGKILL)


class NeverStarted:
    """A command that its guest could not start."""

    def __init__(self, end: Exit) -> None:
        self._end = end
        self.seconds = 0.0

    async def read(self) -> tuple[Output, bytes]:
        return "end", b""

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError

    async def close_stdin(self) -> None: ...

    async def kill(self, signal: int) -> None: ...

    async def abandon(self) -> None: ...

    async def wait(self) -> Exit:
        return self._end


class HostDisks:
    """The disks of `agent`, which runs, and of `down`, which has the snapshot `first`."""

    def __init__(self, service: HostService) -> None:
        self._service = service
        self.asked: list[tuple[object, ...]] = []
        self.archive = b""  # what a guest has written of a fork
        self.transfers = Path()

    def _note(self, *asked: object) -> None:
        self._service._check(str(asked[1]))
        if asked[1] == "agent":
            raise StillRunning("the VM of agent runs", fix="write state: stopped")
        self.asked.append(asked)

    async def snapshots(self, name: str) -> Sequence[Listed]:
        self._service._check(name)
        return [Listed("first", "2026-01-01T00:00:00.000Z", 1024, 512)]

    async def snapshot(self, name: str, label: str) -> str:
        self._note("snapshot", name, label)
        return (label and check_label(label)) or "2026-01-01-000000"

    async def restore(self, name: str, label: str, *, discard: bool) -> str:
        self._note("restore", name, label, discard)
        return "" if discard else "before-restore-2026-01-01-000000"

    async def reset(self, name: str, *, discard: bool) -> str:
        self._note("reset", name, discard)
        return "" if discard else "before-reset-2026-01-01-000000"

    async def forget(self, name: str, label: str) -> int:
        self._note("forget", name, label)
        return 2

    async def transfer(self, name: str, action: str, transfer: str) -> None:
        self._note("transfer", name, action, transfer)

    async def fork_diff(self, name: str, transfer: str) -> Outcome:
        self._note("diff", name, transfer)
        (self.transfers / transfer).write_bytes(self.archive)
        return Outcome("agent", "told")

    async def fork_apply(self, name: str, transfer: str, *, theirs: bool, dry_run: bool) -> Outcome:
        self._note("apply", name, transfer, theirs, dry_run)
        (self.transfers / transfer).write_bytes(self.archive)
        listed = (merged.Conflict("M", "D", b"a/\xff"),)
        if not theirs:
            return Outcome("agent", "conflicts", merged.Merged(2, 3, listed))
        return Outcome(
            "agent", "checked" if dry_run else "applied", merged.Merged(2, 1, listed), "before"
        )


class HostImages:
    """What `agent` starts from; `progress` is what its build says of itself."""

    def __init__(self, service: HostService) -> None:
        self._service = service
        self.found: Progress | None = None
        self.asked: list[tuple[object, ...]] = []
        self.shown = 0  # lines of it that whoever watches has shown

    async def build(self, name: str, *, pull: bool) -> int:
        self._service._check(name)
        self.asked.append(("build", name, pull))
        self.found = self.found or Progress()
        return self.found.seen().run

    def progress(self, name: str, start: int) -> Seen | None:
        self._service._check(name)
        self.shown = start
        return self.found.seen(start) if self.found is not None else None

    async def images(self) -> Sequence[Stored]:
        return (Stored("a" * 64, ("debian:12",), 4096, ("agent",)), Stored("b" * 64, (), 1024, ()))

    async def prune(self, *, dry_run: bool) -> Sequence[Stored]:
        self.asked.append(("prune", dry_run))
        return [each for each in await self.images() if not each.used_by]


class HostService:
    """Sandboxes `agent` (up) and `down` (not up). Remembers what it was asked for."""

    def __init__(self) -> None:
        self.commands: list[HostCommand] = []
        self.requests: list[ExecRequest] = []
        self.applied: dict[str, bytes] = {}
        self.deleted: list[tuple[str, bool]] = []
        self.poked: list[str] = []
        self.confirmed = False
        self.disks = HostDisks(self)
        self.images = HostImages(self)
        self.readings: list[Reading] = [
            Reading("seccomp", "mode", "2", "2", True, "/proc/1/status", "live", "replace")
        ]

    def names(self) -> Sequence[str]:
        return ["agent", "down"]

    def _check(self, name: str) -> None:
        if name not in self.names():
            raise NoSandbox(f"there is no sandbox {name}", fix="box get lists them")

    def report(self, name: str) -> Report:
        self._check(name)
        return Report(name=name, generation=3, backend="qemu")

    def events(self, name: str) -> Sequence[Event]:
        self._check(name)
        return [Event("2026-01-01T00:00:00+00:00", "Started", "its VMM runs", 3)]

    def version(self) -> Mapping[str, str]:
        return {"box": "0.1", "instance": "0123456789ab", "pid": str(os.getpid())}

    async def exec(self, name: str, request: ExecRequest) -> HostCommand | NeverStarted:
        self._check(name)
        if name == "down":
            raise NotUp("down is not up", fix="box describe down")
        self.requests.append(request)
        argv: tuple[bytes, ...] = request.argv
        if argv == (VM_DIES,):
            argv = (b"sh", b"-c", b"printf half; exec sleep 1000")
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if request.stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={b"PATH": b"/usr/bin:/bin", **request.env},
                start_new_session=True,
                limit=PIECE,
            )
        except FileNotFoundError:
            return NeverStarted(Exit("not_found", 2, f"{os.fsdecode(argv[0])}: not found"))
        except PermissionError:
            return NeverStarted(Exit("not_executable", 13, "Permission denied"))
        command = HostCommand(process, request.timeout_ms)
        self.commands.append(command)
        if request.argv == (VM_DIES,):
            asyncio.get_running_loop().call_later(0.5, command.lose)
        return command

    async def run(self, name: str, request: ExecRequest) -> HostCommand | NeverStarted:
        self._check(name)
        if name == "agent":
            raise StillRunning("box run needs agent stopped", fix="write state: stopped")
        return await self.exec("agent", request)

    async def apply(self, name: str, data: bytes, if_match: str | None) -> Applied:
        parsed = parse_boxfile(data, file=f"{name}.box.yaml", expected_name=name)
        if parsed.box is None:
            raise InvalidBoxfile.of(parsed.problems)
        if if_match == "stale":
            raise Conflict("the file has changed meanwhile")
        self.applied[name] = data
        return "created"

    async def delete(self, name: str, *, erase_data: bool) -> None:
        self._check(name)
        if erase_data and name == "down":
            raise RefusedByPolicy("allow_erase is false")
        self.deleted.append((name, erase_data))

    async def verify(self, name: str) -> Sequence[Reading]:
        self._check(name)
        return self.readings

    async def prune(self, *, confirm: bool) -> Mapping[str, str]:
        self.confirmed = self.confirmed or confirm
        return dict.fromkeys(self.names(), "over half of the Boxfiles vanished")

    def poke(self, name: str) -> None:
        self.poked.append(name)


@contextlib.asynccontextmanager
async def serving(path: Path, limits: Limits | None = None) -> AsyncIterator[HostService]:
    """A HostService behind a real server at `path`; no process of it is left afterwards."""
    service = HostService()
    server = ApiServer(service, path, limits=limits)
    await server.start()
    try:
        yield service
    finally:
        await server.close()
        for command in service.commands:
            await command.abandon()
