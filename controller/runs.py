"""`box run`: one command in a VM of its own, of a sandbox that is stopped.

The VM is the sandbox's like any other: passes start it, prove it, mend it and take it away, under
its name and with its identity. So whatever kills the client or the controller leaves what the next
pass over a stopped sandbox removes anyway. This module must not start or stop a VM itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from agent.messages import ExecRequest, Exit
from agent.process import Process
from controller import commands
from controller.diskuse import DiskUse
from controller.entry import Entry
from controller.inventory import Inventory
from controller.judge import why_down
from controller.onerun import OneRun
from controller.service import Output
from reconcilers.facts import Observed
from reconcilers.live import Live
from specs.boxfile import State
from specs.errors import BoxError, HostError, NotUp, StillRunning

log = logging.getLogger("box")

UNMOUNT_SECONDS = 60.0
"""How long its guest may take to write what it holds and unmount /data."""
HANGING_SECONDS = 10.0
"""The same of a guest that did not even end a command at its time limit."""
GONE_SECONDS = 2 * UNMOUNT_SECONDS
"""How long a VM may take to go: that, some 25 s to power off and to die of SIGKILL, and a pass that
was on its way.
"""
LOST = "its VM ended while the command ran, and how the command ended is unknown"


class Runs:
    """The commands of `box run` of one home, each with its VM."""

    def __init__(self, inventory: Inventory, use: DiskUse, wake: Callable[[str], None]) -> None:
        self._inventory = inventory
        self._use = use
        self._wake = wake
        self._going: set[asyncio.Task[None]] = set()

    async def start(self, name: str, request: ExecRequest) -> RunCommand:
        """Claim the sandbox for one command; its VM is started while the command is being read.

        Raises NoSandbox, StillRunning for one that is not stopped or whose disk something else has,
        RefusedByPolicy, or NotUp for one that is busy for too long.
        """
        _refuse(self._use.entry(name))
        async with self._use.held(name, "a command of box run begins") as entry:
            _refuse(entry)
            assert entry.record.spec is not None
            run = OneRun(entry.record.spec)
            self._inventory.begin_run(entry, run)
            command = RunCommand(self._inventory, entry, run, request, self._wake)
            task = asyncio.create_task(command.live(), name=f"box run {name}")
            self._going.add(task)
            task.add_done_callback(self._going.discard)
        return command

    async def close(self) -> None:
        """End every command, and return when nothing is left of their VMs; workers still work."""
        for entry in self._inventory.entries.values():
            if entry.run is not None:
                entry.run.end(NotUp("the controller was told to end"))
                self._wake(entry.record.name)
        if self._going:
            await asyncio.wait(self._going, timeout=GONE_SECONDS)


def _words(how: Exit | None) -> str:
    return f"{how.kind} {how.value}" if how is not None else "nothing is known"


def _refuse(entry: Entry) -> None:
    name, spec = entry.record.name, entry.record.spec
    if spec is not None and spec.state is State.running:
        raise StillRunning(
            f"box run needs {name} stopped: its own VM has, or will have, /data",
            fix=f"write state: stopped into its Boxfile and box apply -f it --wait, "
            f"or use box exec {name} -- CMD",
        )


class RunCommand:
    """One such command (`controller.service.Command`), from before its VM is there until nothing is
    left of it.
    """

    def __init__(
        self,
        inventory: Inventory,
        entry: Entry,
        run: OneRun,
        request: ExecRequest,
        wake: Callable[[str], None],
    ) -> None:
        self._inventory = inventory
        self._entry = entry
        self._run = run
        self._request = request
        self._wake = wake
        self._live: Live | None = None
        self._process: Process | None = None
        self._begun = asyncio.Event()  # or known not to begin
        self._ended = asyncio.Event()
        self._exit: Exit | None = None
        self._lost = False
        self._error: BoxError | None = None

    # -- its whole life, in a task of its own

    async def live(self) -> None:
        """Wait for its VM, run it, have the VM taken away. Raises nothing but a cancellation."""
        name = self._entry.record.name
        self._inventory.event(self._entry, "run", "a VM for one command begins")
        try:
            await self._kept(self._command())
            self._begun.set()
            self._leave()
            await self._kept(self._until_gone())
        finally:  # also when the loop ends
            self._begun.set()
            self._ended.set()
        if name in self._inventory.entries:
            how = self._error.message if self._error else _words(self._exit)
            self._inventory.event(self._entry, "run", f"its VM is gone; the command: {how}")

    async def _kept(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, and keep the first error for the client."""
        found: BoxError | None = None
        try:
            await work
        except (BoxError, OSError) as error:
            found = error if isinstance(error, BoxError) else HostError(str(error))
        except Exception as error:
            log.exception("a command of box run failed")
            text = f"the controller failed: {type(error).__name__}"
            found = HostError(text, fix="see the controller's log")
        self._error = self._error or found

    async def _command(self) -> None:
        name, run = self._entry.record.name, self._run
        try:
            live = self._live = await run.up()
            live.unmount_seconds = UNMOUNT_SECONDS
        except BoxError as error:
            if self._exit is not None:  # a signal came first
                return
            fix = error.fix or f"box events {name} shows what happened"
            raise NotUp(f"no VM of {name} came up for it: {error.message}", fix=fix) from error
        self._process = await commands.start(live, run.spec, self._request)
        self._begun.set()
        how = await self._process.wait()
        if self._process.silent:  # it is busy, or hangs
            live.unmount_seconds = HANGING_SECONDS
        if how.kind == "lost" or live.stopping:  # else it ended first
            self._lost = True
        else:
            self._exit = self._exit or how

    def _why(self) -> str:
        if self._entry.removing:
            return ": the sandbox was deleted"
        failure = self._run.failure
        why = failure.message if failure is not None else why_down(self._entry, Observed(), None)
        return f": {why}" if why else ""

    def _leave(self) -> None:
        self._run.end()
        self._wake(self._entry.record.name)

    async def _until_gone(self) -> None:
        name = self._entry.record.name
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await self._run.gone.wait()
        except TimeoutError:
            failure = self._entry.failure
            why = f": {failure.message}" if failure is not None else ""
            raise HostError(
                f"the VM of {name} is not gone after {GONE_SECONDS:g} s{why}",
                fix=f"box describe {name}",
            ) from None
        if self._error is None:
            self._check()

    def _check(self) -> None:
        """A status of 0 would say that what the command wrote is there."""
        name = self._entry.record.name
        if self._lost:
            raise NotUp(f"{LOST}{self._why()}", fix=f"box events {name} shows what happened")
        if self._process is None or self._live is None or self._live.unmounted:
            return
        what = "the guest did not unmount /data: what was not synced may be missing"
        if self._exit is not None and self._exit.kind == "timeout":
            self._exit = replace(self._exit, message=what)
            return
        raise NotUp(
            f"the command ended ({_words(self._exit)}), but {what}",
            fix=f"look at it: box run {name} -- ls -l /data",
        )

    # -- what its client does

    async def read(self) -> tuple[Output, bytes]:
        await self._begun.wait()
        if self._process is None:
            return "end", b""
        return await self._process.read()

    async def write(self, data: bytes) -> None:
        await (await self._begun_process()).write(data)

    async def close_stdin(self) -> None:
        await (await self._begun_process()).close_stdin()

    async def _begun_process(self) -> Process:
        await self._begun.wait()
        if self._process is None:
            raise BrokenPipeError("the command did not begin")
        return self._process

    @property
    def seconds(self) -> float:
        return self._process.seconds if self._process is not None else 0.0

    async def kill(self, signal: int) -> None:
        """Before it has begun the signal ends it, as it would a program that is being loaded."""
        if self._process is not None:
            await self._process.kill(signal)
        elif not self._begun.is_set():
            self._exit = Exit("signal", signal)
            self._leave()

    async def abandon(self) -> None:
        self._leave()
        if self._process is not None:
            await self._process.abandon()

    async def wait(self) -> Exit:
        """How it ended, once nothing is left of its VM. Raises BoxError when there was no VM, when
        that ended first, or when /data may lack what the command wrote.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._exit is not None
        return self._exit
