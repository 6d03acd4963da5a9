"""The controller: wakes up on hints and timers, re-reads the folder, and keeps one pass per name
going.

Every wake-up only says that something may have changed. It must hold no truth of its own: kill it
at any instant, start it again, and it finds on disk and on the host what it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from functools import partial

import prctl

from controller import backoff
from controller.api import ApiServer
from controller.desired import build_network, no_emulation
from controller.diskuse import DiskUse
from controller.inventory import Inventory
from controller.judge import not_as_declared
from controller.lockfile import AlreadyRunning, ControllerLock
from controller.operations import Operations
from controller.sources.watch import FolderWatch
from controller.store import Store
from controller.tagwatch import TagWatch
from controller.upkeep import Upkeep
from controller.wiring import build_host, load_config
from controller.worker import Worker
from controller.workqueue import WorkQueue
from reconcilers import microvm
from reconcilers.confinement import openfiles, userscope
from reconcilers.host import Host
from reconcilers.layout import Layout
from specs.errors import BoxError, ConfinementError
from specs.text import visible

log = logging.getLogger("box")

RESCAN_SECONDS = 30.0
# An editor's save is several events in a few milliseconds; one scan after them is enough.
SETTLE_SECONDS = 0.02
WORKERS = 32
# A settled controller answers --once; something due later than this is a back-off or a timer.
ONCE_HORIZON = 5.0


class Controller:
    """All sandboxes of one home."""

    def __init__(self, layout: Layout, host: Host, lock: ControllerLock) -> None:
        self._layout = layout
        self._host = host
        self._lock = lock
        self.store = Store(layout)
        self.inventory = Inventory(layout, self.store)
        host.no_emulation = partial(no_emulation, self.inventory)
        host.build_network = partial(build_network, self.inventory)
        self.queue = WorkQueue()
        self.upkeep = Upkeep(host, self.store, self.inventory, self.queue.add)
        self.use = DiskUse(host, self.inventory, self.queue.alone, self.queue.add)
        self.worker = Worker(
            host,
            self.store,
            self.inventory,
            self._watch_exit,
            self.upkeep.marked_as,
            self.queue.add,
            self.use.held,
        )
        every = host.config.tag_lookup_minutes * 60
        self.tags = TagWatch(host.images, self.inventory, every, self.queue.add)
        self._hint = asyncio.Event()
        self._displaced = False
        self._watched: dict[int, tuple[str, int]] = {}

    # -- wake-ups

    def hint(self) -> None:
        """Something may have changed in the folder."""
        self._hint.set()

    def look_again(self) -> None:
        """SIGHUP: scan now, and pass over every sandbox instead of waiting for timers."""
        self.hint()
        self.look_at_all()

    def look_at_all(self) -> None:
        """Ask for a pass over every sandbox."""
        for name in self.inventory.entries:
            self.queue.add(name)

    def _watch_exit(self, name: str, pid: int) -> None:
        """Ask for a pass the moment this process ends."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.queue.add(name)
            return
        asyncio.get_running_loop().add_reader(descriptor, self._exited, descriptor)
        self._watched[descriptor] = (name, pid)

    def _exited(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        name, pid = self._watched.pop(descriptor)
        os.close(descriptor)
        entry = self.inventory.entries.get(name)
        how = microvm.reap(pid)
        if entry is None:
            return
        if entry.live is None or entry.live.stopping or entry.live.record.pid != pid:
            # Ended by us, or known to be dead already. A pass that fails takes back the VMM it
            # made, whose end must not shorten the delay that the failure earned.
            self.queue.add(name, backoff.delay(entry.attempts) if entry.attempts else 0.0)
            return
        entry.exited = how
        if entry.attempts:
            self.queue.add(name, backoff.delay(entry.attempts))
            return
        entry.exits += 1
        # The first death is answered at once; one that dies again and again waits longer each time.
        self.queue.add(name, backoff.delay(entry.exits - 1) if entry.exits > 1 else 0.0)

    # -- the loop

    async def rescan(self) -> None:
        """Read the folder and the host's processes again; put whatever changed into the queue."""
        self._lock.keep(self._layout.lock)
        self._lock.lock_folder(self._layout.boxes)
        try:
            changed = self.inventory.refresh()
        except BaseException:
            # It broke off somewhere (a full disk): what it had accepted by then is not to be lost.
            self.look_at_all()
            raise
        for name in changed:
            self.queue.add(name)
        recheck = self.inventory.vanishing.recheck_after
        if recheck is not None:
            asyncio.get_running_loop().call_later(recheck + 0.05, self.hint)
        await self.upkeep.at_scan()
        self.tags.at_scan()

    async def work(self) -> None:
        """One worker: takes due names for ever."""
        while True:
            name = await self.queue.get()
            try:
                again = await self.worker.run(name)
            except Exception:
                # A defect of ours in one sandbox's pass must not stop the others.
                log.exception("pass over %s failed", name)
                self.queue.add(name, RESCAN_SECONDS)
            else:
                if again.after is not None:
                    self.queue.add(name, again.after)
                else:
                    self._wake_those_that_wait()
            finally:
                self.queue.done(name)

    def _wake_those_that_wait(self) -> None:
        """A sandbox is gone: what it gave up, an identity or room, is what another may lack."""
        for name, entry in self.inventory.entries.items():
            if entry.attempts:
                self.queue.add(name)

    async def watch_folder(self, server: ApiServer, stopping: asyncio.Event) -> None:
        """Scan on every hint and at least every RESCAN_SECONDS."""
        loop = asyncio.get_running_loop()

        def hint() -> None:
            loop.call_soon_threadsafe(self.hint)

        watch = FolderWatch(self._layout.boxes.resolve(), hint)
        await asyncio.to_thread(watch.start)
        # A file that came after the first scan and before the watch gave no hint.
        self._hint.set()
        try:
            while True:
                # Not wait_for: until Python 3.12 it loses a cancellation that comes together with
                # the hint, and the controller would never end.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RESCAN_SECONDS):
                        await self._hint.wait()
                await asyncio.sleep(SETTLE_SECONDS)
                self._hint.clear()
                await asyncio.to_thread(watch.refresh)  # walks a folder that was replaced
                try:
                    await self.rescan()
                    await server.keep()
                except AlreadyRunning as error:
                    # Our lock was removed and another controller took the place: two would undo
                    # each other's work for ever.
                    log.error("%s", error)
                    self._displaced = True
                    stopping.set()
                except (BoxError, OSError) as error:
                    log.error("%s", error)
                except Exception:
                    # A defect of ours in one scan must not be the end of all of them.
                    log.exception("the scan failed")
        finally:
            await asyncio.to_thread(watch.stop)

    async def run_once(self) -> int:
        """Converge what can be converged now, then stop; 1 when something is not as its Boxfile
        says.
        """
        await self.rescan()
        self.look_at_all()
        workers = [asyncio.create_task(self.work()) for _ in range(WORKERS)]
        while self.inventory.vanishing.recheck_after or not self.queue.idle(ONCE_HORIZON):
            await asyncio.sleep(0.05)
            if self._hint.is_set():
                self._hint.clear()
                await self.rescan()
        await self._end(workers)
        wrong = {
            name: reason
            for name, entry in self.inventory.entries.items()
            if (reason := not_as_declared(entry))
        }
        for name, reason in sorted(wrong.items()):
            log.warning("%s is not as declared: %s", name, visible(reason, 500))
        return int(bool(wrong))

    async def run_forever(self, stopping: asyncio.Event) -> int:
        """Serve until told to stop; sandboxes keep running."""
        try:
            await self.rescan()
        except AlreadyRunning:
            raise
        except (BoxError, OSError) as error:
            # A full disk, say: what runs already needs its controller all the more, and
            # `watch_folder` scans again as soon as it has begun.
            log.error("%s", error)
        self.look_at_all()
        service = Operations(
            self._host,
            self.inventory,
            self.store,
            rescan=self.hint,
            wake=self.queue.add,
            use=self.use,
        )
        server = ApiServer(service, self._layout.socket)
        await server.start()
        tasks = [asyncio.create_task(self.work()) for _ in range(WORKERS)]
        tasks.append(asyncio.create_task(self.watch_folder(server, stopping)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.look_again)
        log.info("watching %s", self._layout.boxes)
        await stopping.wait()
        await server.close()
        await service.images.close()
        await service.runs.close()  # their VMs are nobody's without their commands
        await self._end(tasks)
        return int(self._displaced)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        await self.tags.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self.inventory.entries.values():
            if entry.live is not None:
                await entry.live.close()


def run(layout: Layout, once: bool) -> int:
    """`box controller`: lock the home, converge, serve. Returns the exit status."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    with ControllerLock.acquire(layout.lock) as lock:
        lock.lock_folder(layout.boxes)
        # The jail's double fork leaves the VMM without a parent; it becomes ours, so that its exit
        # status is.
        prctl.set_child_subreaper(True)
        # Four descriptors a sandbox: the usual 1,024 would be used up by some 250 of them.
        openfiles.take_most()
        config = load_config(layout)
        logging.getLogger().setLevel(config.log_level.upper())
        try:
            userscope.settle()  # before the first thread and the first child: all are moved with us
        except ConfinementError as problem:
            log.warning("no sandbox can start: %s", problem)  # each of them says so, too
        host = build_host(layout, config)
        return asyncio.run(_main(layout, host, lock, once))


async def _main(layout: Layout, host: Host, lock: ControllerLock, once: bool) -> int:
    controller = Controller(layout, host, lock)
    controller.upkeep.at_start()
    if once:
        return await controller.run_once()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return await controller.run_forever(stopping)
