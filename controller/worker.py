"""One pass over one sandbox: observe, plan, act, observe again, report.

A pass trusts nothing an earlier one said. It ends converged, or with a failure that says whether
and when to try again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from controller import backoff, driftbook, mountrules
from controller.clock import timestamp
from controller.desired import as_started, desired, erase_in, wanted
from controller.diskuse import forks_waiting_for
from controller.driftnotes import note_drift, settle
from controller.entry import Entry
from controller.inventory import Inventory
from controller.judge import judge, why_down
from controller.keptimage import kept_image
from controller.onerun import OneRun
from controller.records import after
from controller.reporting import build_report
from controller.store import Store
from reconcilers import procfs, steps
from reconcilers.act import Actor
from reconcilers.diskacts import Held
from reconcilers.facts import Disk, Observed, Vmm
from reconcilers.host import Host
from reconcilers.letgo import let_go
from reconcilers.observe import observe
from reconcilers.plan import Plan, plan
from reconcilers.steps import Step
from specs.boxfile import Boxfile
from specs.conditions import Reason, merge
from specs.errors import BoxError, CommandError, ConfinementError, HostError, KernelMismatch
from specs.report import Failure
from specs.text import visible

log = logging.getLogger("box")

ROUNDS = 4
# How soon a change is seen while a guest is being waited for.
CHANGE_SECONDS = 0.5
RUNNING_EVERY, STOPPED_EVERY = 30.0, 600.0


@dataclass(frozen=True)
class Again:
    """When the name wants its next pass, in seconds; None when it is gone."""

    after: float | None


class Worker:
    """Passes over single sandboxes, all with the same host, store and inventory."""

    def __init__(
        self,
        host: Host,
        store: Store,
        inventory: Inventory,
        watch: Callable[[str, int], None],
        marked: Callable[[str], Set[int]],
        wake: Callable[[str], None],
        held: Held,
    ) -> None:
        self._held = held
        self._host = host
        self._store = store
        self._inventory = inventory
        self._watch = watch
        self._marked = marked
        self._wake = wake

    async def run(self, name: str) -> Again:
        """One pass. Never raises for anything the host, the guest or the Boxfile did."""
        entry = self._inventory.entries.get(name)
        if entry is None:
            return Again(None)
        generation, known = entry.record.generation, entry.failure
        try:
            observed, done = await self._converge(name, entry)
            if isinstance(observed.disk, Disk) and not entry.record.has_disk:
                # A record that was lost and rebuilt learns from the disk that there is one to lose.
                self._inventory.save(name, replace(entry.record, has_disk=True))
        except (BoxError, OSError) as error:
            # None: its Boxfile was changed while this pass ran, which forgets an older failure.
            if entry.failure is known or entry.failure is None:
                entry.failure, entry.failure_layer = _failure(None, error), ""
            return await self._failed(name, entry, error, generation)
        if entry.removing and self._is_gone(observed):
            if entry.run is not None:
                entry.run.end()
                entry.run.gone.set()
            self._inventory.forget(name)
            return Again(None)
        entry.attempts = entry.silent = 0
        entry.failure, entry.failure_layer = None, ""
        if done.blocked is None and entry.run is None:
            entry.converged_generation = entry.record.generation
        if done.blocked is None or done.blocked.reason is Reason.MountRefused:
            # Also the VM that was started for an older text is as it should be.
            settle(self._inventory, entry)
        self._report(entry, observed, done)
        for fork in forks_waiting_for(name, self._inventory) if observed.vmm is None else ():
            self._wake(fork)
        if entry.run is not None:
            return self._after_run(entry, entry.run, observed, done)
        return Again(self._next(entry))

    def _after_run(self, entry: Entry, run: OneRun, observed: Observed, done: Plan) -> Again:
        was_over = run.over
        run.seen(entry.live, observed, why_down(entry, observed, done.blocked))
        if run.gone.is_set():
            self._inventory.end_run(entry)
            return Again(0.0)  # the Boxfile may say something else by now
        if run.over:
            return Again(1.0 if was_over else 0.0)
        return Again(RUNNING_EVERY)

    # -- the pass

    async def _converge(self, name: str, entry: Entry) -> tuple[Observed, Plan]:
        created: list[Step] = []
        silent, entry.looked_up = entry.silent, False
        for _ in range(ROUNDS):
            leaving, box = entry.leaving, wanted(entry)
            actor = self._actor(name, entry, box)
            actor.adopt()
            entry.live = actor.live
            unjudged: BoxError | OSError | None = None
            try:
                await mountrules.refresh(self._host, self._inventory, entry, box)
            except (BoxError, OSError) as error:
                unjudged = error
            observed = await self._observe(name, entry, box)
            await self._note_exit(entry, observed)
            if entry.leaving != leaving:
                continue
            if self._fell_silent(entry, observed):
                entry.silent = silent + 1  # once a pass, however often it was tried
            try:
                if unjudged is not None:
                    raise unjudged
                todo = plan(await desired(entry, box, self._host, self._inventory), observed)
            except (BoxError, OSError) as error:
                await self._keep_in_order(entry, self._actor(name, entry, box), observed, error)
                raise
            if not todo.steps:
                if not created:
                    entry.exits = 0  # a whole period went by with nothing to do
                return observed, todo
            if entry.run is not None and entry.run.is_up and todo.launches:
                # Another VM is another run: whatever this one lacks, its command is not begun anew.
                entry.run.end(HostError(f"its VM was given up: {todo.steps[0].because()}"))
                continue
            note_drift(self._inventory, entry, todo.steps)
            self._report(entry, observed, todo)  # a boot takes seconds: say what is going on
            actor = self._actor(name, entry, box)
            try:
                await self._act(entry, actor, todo.steps, created, leaving)
            except (BoxError, OSError) as error:
                await self._keep_in_order(entry, actor, observed, error)
                raise
            finally:
                entry.live = actor.live
        raise HostError("it does not settle: what was mended differs again at once")

    async def _act(
        self,
        entry: Entry,
        actor: Actor,
        todo: tuple[Step, ...],
        created: list[Step],
        leaving: tuple[bool, bool],
    ) -> None:
        for step in todo:
            if entry.leaving != leaving or actor.other_image:
                return  # its Boxfile came back, or went, while a guest was shut down: plan anew
            try:
                if not await self._unless_changed(entry, actor, step):
                    return
            except (BoxError, OSError) as error:
                entry.failure = _failure(step, error)
                entry.failure_layer = error.layer if isinstance(error, ConfinementError) else ""
                if isinstance(step, steps.ConnectGuest):
                    entry.silent += 1
                    entry.kernel_differs = str(error) if isinstance(error, KernelMismatch) else ""
                await self._undo(entry, actor, created)
                raise
            if isinstance(step, steps.ConnectGuest):
                entry.kernel_differs = ""
            entry.looked_up |= isinstance(step, steps.BuildImage) and step.again
            created.append(step)
            self._recorded(entry, step, actor)

    async def _keep_in_order(
        self, entry: Entry, actor: Actor, observed: Observed, error: BoxError | OSError
    ) -> None:
        """What cannot be had is no reason to let the VM go that still runs: its limits are put
        back and its channel is opened, as far as that is not what has just failed.
        """
        kept, vmm = as_started(entry, str(error)), observed.vmm
        if kept is None or not isinstance(vmm, Vmm) or entry.removing:
            return
        if procfs.alive(vmm.pid, vmm.start_time) is None:
            return
        todo, failed = plan(kept, observed).steps, entry.failure.step if entry.failure else ""
        note_drift(self._inventory, entry, todo)
        if not todo and all(each.action != failed for each in driftbook.is_open(entry.drift)):
            settle(self._inventory, entry)
        for step in todo:
            if step.describe() == failed:
                return
            try:
                if not await self._unless_changed(entry, actor, step):
                    return
            except (BoxError, OSError) as other:
                log.warning("%s, which runs on: %s: %s", entry.record.name, step.describe(), other)
                return
            self._recorded(entry, step, actor)

    async def _unless_changed(self, entry: Entry, actor: Actor, step: Step) -> bool:
        """Do the step; False when what is wanted changed while a guest was being waited for.

        A guest may take its time, up to BOOT_TIMEOUT, and a registry longer. Its deletion must not.
        """
        if not isinstance(step, steps.ConnectGuest | steps.ResizeData | steps.BuildImage):
            await actor.act(step)
            return True
        before = _aim(entry)
        task = asyncio.ensure_future(actor.act(step))
        try:
            looked = time.monotonic()
            while not task.done():
                await asyncio.wait({task}, timeout=CHANGE_SECONDS)
                if not task.done() and _aim(entry) != before:
                    return False
                if time.monotonic() > looked + RUNNING_EVERY and not task.done():
                    await self._meanwhile(entry, actor, step)
                    looked = time.monotonic()
        finally:
            await let_go(task)
        task.result()
        return True

    async def _meanwhile(self, entry: Entry, actor: Actor, step: Step) -> None:
        """A VM that runs while its successor's image is fetched is looked after as ever."""
        if isinstance(step, steps.BuildImage) and entry.live is not None:
            observed = await self._observe(entry.record.name, entry, wanted(entry))
            await self._keep_in_order(entry, actor, observed, HostError("its image is being made"))

    async def _undo(self, entry: Entry, actor: Actor, created: list[Step]) -> None:
        """Take back what this pass made, last first; never a disk that a VM has opened."""
        opened = any(isinstance(step, steps.LaunchVmm) for step in created)
        for step in reversed(created):
            inverse = step.undo()
            if inverse is None or (opened and isinstance(inverse, steps.EraseDisk)):
                continue
            # Before the act: what is remembered and not there is lost, the reverse is found again.
            self._remember(entry, inverse)
            try:
                await actor.act(inverse)
            except (BoxError, OSError):
                continue  # the next pass finds whatever is left

    def _recorded(self, entry: Entry, step: Step, actor: Actor) -> None:
        """Make durable what only we know of a step that was done, and tell of it."""
        self._remember(entry, step)
        if not step.consequence or isinstance(step, steps.LaunchVmm):
            self._inventory.event(entry, "done", step.describe())
        for note in actor.notes:
            self._inventory.event(entry, "kept", note)
        actor.notes.clear()

    def _remember(self, entry: Entry, step: Step) -> None:
        """A disk that was made and taken back again, say, is none that was lost."""
        name = entry.record.name
        uid = self._host.claims().get(name) if isinstance(step, steps.ClaimIdentity) else None
        record = after(entry.record, step, uid)
        if record != entry.record:
            self._inventory.save(name, record)

    def _actor(self, name: str, entry: Entry, box: Boxfile | None) -> Actor:
        return Actor(
            self._host,
            name,
            box,
            entry.choice,
            entry.live,
            self._watch,
            self._wake,
            lambda: mountrules.rules_for(self._host, self._inventory, name),
            self._held,
        )

    def _fell_silent(self, entry: Entry, observed: Observed) -> bool:
        """Whether a guest that was connected did not answer, and nothing outside explains it."""
        live, vmm = entry.live, observed.vmm
        if live is None or not live.broken or not isinstance(vmm, Vmm):
            return False
        self._inventory.event(entry, "channel", f"closed: {visible(live.broken, 300)}")
        live.broken = ""
        return not vmm.frozen and not observed.paused

    async def _observe(self, name: str, entry: Entry, box: Boxfile | None) -> Observed:
        return await observe(
            self._host,
            name,
            box,
            entry.live,
            marked=self._marked(name),
            had_disk=entry.record.has_disk,
            directories=entry.served,
            lost=entry.lost,
            kept_image=kept_image(entry, box),
        )

    # -- notes about it

    async def _note_exit(self, entry: Entry, observed: Observed) -> None:
        box = entry.record.spec
        if entry.live is None or isinstance(observed.vmm, Vmm) or box is None:
            return
        await entry.live.close(ended=True)
        entry.live = None
        killed = self._oom_kills(entry.record.name)
        entry.out_of_memory = killed > 0
        how = "killed by the host at its memory limit" if killed else entry.exited or "unknown"
        self._inventory.event(entry, "exited", f"the VMM ended: {how}")
        if entry.run is not None:
            entry.run.end(HostError(f"its VM ended: {how}"))
        elif box.restart == "never" and box.state == "running" and not entry.removing:
            self._inventory.save(entry.record.name, replace(entry.record, suspended=True))

    def _oom_kills(self, name: str) -> int:
        try:
            return self._host.cgroup(self._host.names(name)).read().oom_kills
        except (OSError, BoxError):
            return 0

    async def _failed(
        self, name: str, entry: Entry, error: BoxError | OSError, generation: int
    ) -> Again:
        entry.attempts += 1
        assert entry.failure is not None
        retry = not isinstance(error, BoxError) or error.retry
        self._inventory.event(entry, "failed", f"{entry.failure.step}: {entry.failure.message}")
        try:
            observed = await self._observe(name, entry, wanted(entry))
        except (BoxError, OSError):
            observed = Observed()
        self._report(entry, observed, Plan())
        if entry.run is not None and not entry.run.over and not entry.run.is_up:
            entry.run.end(error if isinstance(error, BoxError) else HostError(str(error)))
            return Again(0.0)
        if entry.record.generation != generation:
            return Again(0.0)  # a changed Boxfile is tried at once
        return Again(backoff.delay(entry.attempts) if retry else STOPPED_EVERY)

    def _report(self, entry: Entry, observed: Observed, done: Plan) -> None:
        found = judge(entry, observed, done.blocked, timestamp())
        entry.conditions = merge(entry.conditions, found)
        entry.report = build_report(entry, observed)
        try:
            self._store.write_report(entry.record.name, entry.report)
        except (HostError, OSError) as error:
            # Nobody reads a report back. A full disk must not keep a dead VM down, nor a deleted
            # sandbox from giving its space back.
            log.warning("a report is not written: %s", error)

    def _is_gone(self, observed: Observed) -> bool:
        left = isinstance(observed.disk, Disk) or observed.uid is not None
        return observed.nothing_runs and not left

    def _next(self, entry: Entry) -> float:
        if entry.removing:
            return max(1.0, erase_in(entry) + 0.1)
        box = entry.box
        return RUNNING_EVERY if box is not None and box.state == "running" else STOPPED_EVERY


def _aim(entry: Entry) -> tuple[object, ...]:
    """What a pass is for. A run goes on with the spec that it was begun with."""
    return entry.leaving, None if entry.run is not None else entry.record.generation


def _failure(step: Step | None, error: BoxError | OSError) -> Failure:
    return Failure(
        step=step.describe() if step is not None else "observe",
        message=error.message if isinstance(error, BoxError) else str(error),
        fix=error.fix if isinstance(error, BoxError) else "",
        replay=error.replay if isinstance(error, CommandError) else "",
    )
