"""From the folder's files to one entry per sandbox: parse, judge against the ceiling, accept,
notice what is gone.

A new text that is not good never replaces a good one: the last good spec stays in force and the
Valid condition says why. Decides, remembers and records; it touches no VM and no disk.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from controller import prune
from controller.ceilingfile import read_ceiling
from controller.clock import timestamp
from controller.entry import ACCEPTED, Entry, Verdict
from controller.onerun import OneRun
from controller.records import Garbled, Record
from controller.sources.folder import FolderMissing, ScanCache, SourceFile, scan
from controller.store import Store
from controller.vanishing import Vanishing
from reconcilers.layout import Layout
from specs.boxfile import Boxfile, OnDelete
from specs.ceiling import Ceiling, Totals
from specs.conditions import Reason
from specs.drift import Event
from specs.errors import BoxError, HostError, RefusedByPolicy
from specs.parse import Parsed, parse_boxfile
from specs.text import one_line, visible

log = logging.getLogger("box")

RUN_FIX = "stop another sandbox, or change the Boxfile or policy.toml"


class Inventory:
    """Every sandbox this home knows. `entries` is the truth between two scans."""

    def __init__(self, layout: Layout, store: Store) -> None:
        self._layout = layout
        self._store = store
        self._cache = ScanCache()
        self.vanishing = Vanishing(store)
        self._parsed: dict[str, Parsed] = {}
        self._totals: Totals | None = None  # of all that counts now; None when that may differ
        self.entries: dict[str, Entry] = {}
        self.problems: tuple[tuple[str, str], ...] = ()
        self.ceiling: Ceiling | BoxError = Ceiling()

    def load(self) -> list[Garbled]:
        """Take up every durable record; returns those that could not be read, set aside."""
        garbled = []
        for name, record in self._store.load_all().items():
            if isinstance(record, Garbled):
                self._store.set_aside(record)
                garbled.append(record)
            else:
                # One that was being removed is not started again; its file may still come back.
                leaving = record.vanished_at is not None and not record.held
                since = time.monotonic() if leaving else None
                self.entries[name] = Entry(record, removing=leaving, gone_since=since)
        return garbled

    def held(self) -> dict[str, str]:
        """Held sandboxes that a confirmation would let go, and why."""
        held = self.vanishing.held() & self.entries.keys()
        return dict.fromkeys(sorted(held), self.vanishing.reason)

    def refresh(self) -> set[str]:
        """Scan the folder once; returns the names that want a pass because something about them
        changed.
        """
        recorded = {n: e.record.source for n, e in self.entries.items() if e.record.source}
        found = scan(self._layout.boxes, self._cache, recorded)
        if isinstance(found, FolderMissing):
            return self._hold_all(found.reason)
        ceiling = self.ceiling = read_ceiling(self._layout.policy)
        self._totals = None
        changed = set()
        for name, source in found.files.items():
            twins = found.twins.get(name, ())
            if self._take(name, source, twins, ceiling):
                changed.add(name)
        for name, why in found.broken.items():
            if self._doubt(name, Verdict(False, Reason.InvalidBoxfile, why)):
                changed.add(name)
        changed |= self._judge_runs(ceiling)
        self.problems = found.problems
        decision = self.vanishing.decide(found, str(self._cache.resolved), self.entries)
        return changed | self._apply(decision)

    # -- what a file says

    def _take(
        self,
        name: str,
        source: SourceFile,
        twins: tuple[str, ...],
        ceiling: Ceiling | BoxError,
    ) -> bool:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry(Record(name=name, created=timestamp()))
        returned = entry.removing or entry.record.vanished_at is not None or entry.record.held
        parsed = self._parse(name, source)
        verdict = self._verdict(name, parsed, ceiling)
        if verdict.ok and twins:
            also = ", ".join(path for path in twins if path != source.path)
            message = f"{source.path} is in force; {also} declares the same name: remove one"
            verdict = Verdict(False, Reason.Conflict, message)
        if verdict.ok or verdict.reason is Reason.Conflict:
            accepted = self._accept(entry, source, parsed.box)
            entry.over_ceiling = False
        else:
            accepted = False
            self._still_allowed(name, entry, ceiling)
        entry.removing = False
        if returned:
            self._save(entry, replace(entry.record, vanished_at=None, held=False))
        entry.text_digest = source.digest
        return self._judged(entry, verdict) or accepted or returned

    def _parse(self, name: str, source: SourceFile) -> Parsed:
        known = self._parsed.get(name)
        entry = self.entries[name]
        if known is None or entry.text_digest != source.digest:
            known = parse_boxfile(source.data, file=source.path, expected_name=name)
            self._parsed[name] = known
        return known

    def _verdict(self, name: str, parsed: Parsed, ceiling: Ceiling | BoxError) -> Verdict:
        if parsed.box is None:
            return Verdict(False, Reason.InvalidBoxfile, "\n".join(map(str, parsed.problems)))
        if isinstance(ceiling, BoxError):
            return Verdict(False, Reason.RefusedByPolicy, str(ceiling))
        broken = ceiling.judge(parsed.box, self._others(name))
        if broken:
            return Verdict(False, Reason.RefusedByPolicy, "; ".join(broken))
        return ACCEPTED

    def _others(self, name: str) -> Totals:
        # Summed once for many sandboxes, else a scan's cost grows with the square of their number.
        if self._totals is None:
            counted = (each.counted for each in self.entries.values())
            self._totals = Totals.of(box for box in counted if box is not None)
        own = self.entries[name].counted
        return self._totals if own is None else _less(self._totals, Totals.of((own,)))

    def _accept(self, entry: Entry, source: SourceFile, box: Boxfile | None) -> bool:
        if box is None:
            return False
        record = entry.record
        same = record.spec is box  # spares a scan the digest of each Boxfile that stayed the same
        if same or (record.spec is not None and record.spec_digest == box.digest()):
            if record.source != source.path:
                self._save(entry, replace(record, source=source.path))
            return False
        kind = "created" if record.spec is None else "configured"
        self._save(
            entry,
            replace(
                record,
                generation=record.generation + 1,
                spec=box,
                spec_digest=box.digest(),
                source=source.path,
                created=record.created or timestamp(),
                suspended=False,
            ),
        )
        entry.attempts = entry.silent = 0
        entry.failure, entry.failure_layer = None, ""
        self.event(entry, kind, f"from {source.path}")
        return True

    def _still_allowed(self, name: str, entry: Entry, ceiling: Ceiling | BoxError) -> None:
        """The last good spec of a text that is refused stays in force only while the ceiling allows
        it.
        """
        spec = entry.record.spec
        if spec is None or isinstance(ceiling, BoxError):
            return
        entry.over_ceiling = bool(ceiling.judge(spec, self._others(name)))

    def _doubt(self, name: str, verdict: Verdict) -> bool:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry(Record(name=name))
        entry.removing = False
        return self._judged(entry, verdict)

    def _judged(self, entry: Entry, verdict: Verdict) -> bool:
        """Enter what is now thought of the newest text; True when that is another answer."""
        former, entry.verdict = entry.verdict, verdict
        if former == verdict:
            return False
        if verdict.ok:
            self.event(entry, "accepted", "the newest text is in force")
        elif verdict.reason is Reason.SourceMissing:
            # One sentence names all that are held, and changes with each: one event is enough.
            if former.reason is not Reason.SourceMissing:
                self.event(entry, "held", verdict.message)
        else:
            self.event(entry, "refused", f"{verdict.reason}: {verdict.message}")
        return True

    # -- what is gone

    def _hold_all(self, reason: str) -> set[str]:
        self.vanishing.folder_missing(reason)
        verdict = Verdict(False, Reason.SourceMissing, reason)
        changed = {n for n, e in self.entries.items() if e.verdict != verdict and not e.removing}
        for name in changed:
            self._judged(self.entries[name], verdict)
        self.problems = ((str(self._layout.boxes), reason),)
        return changed

    def _apply(self, decision: prune.Decision) -> set[str]:
        changed = set()
        for name in decision.held:
            entry = self.entries[name]
            verdict = Verdict(False, Reason.SourceMissing, decision.reason)
            # Only what vanished in a burst stays held over a restart; a folder is judged anew each
            # time.
            marked = name in decision.marked
            if entry.record.held != marked:
                self._save(entry, replace(entry.record, held=marked))
            if self._judged(entry, verdict):
                changed.add(name)
        for name in decision.remove:
            entry = self.entries[name]
            since = entry.record.vanished_at
            vanished = time.time() if since is None else since
            self._save(entry, replace(entry.record, vanished_at=vanished, held=False))
            entry.removing = True
            entry.gone_since = time.monotonic()
            self._parsed.pop(name, None)
            changed.add(name)
        return changed

    # -- a VM for one command

    def begin_run(self, entry: Entry, run: OneRun) -> None:
        """From now on its passes go by `run`. Raises RefusedByPolicy when the ceiling forbids a VM
        of it beside all that run.
        """
        ceiling = read_ceiling(self._layout.policy)
        if isinstance(ceiling, BoxError):
            raise ceiling
        if broken := ceiling.judge(run.spec, self._others(entry.record.name)):
            raise RefusedByPolicy("; ".join(broken), fix=RUN_FIX)
        entry.run, self._totals = run, None

    def _judge_runs(self, ceiling: Ceiling | BoxError) -> set[str]:
        """End those that the ceiling forbids by now: each goes by a spec of its own, whatever its
        Boxfile says. Returns whose they are.
        """
        ended = set[str]()
        for name, entry in self.entries.items():
            run = entry.run
            if run is None or run.over or isinstance(ceiling, BoxError):
                continue  # what was accepted goes on while policy.toml cannot be read
            if broken := ceiling.judge(run.spec, self._others(name)):
                why = f"policy.toml forbids its VM by now: {'; '.join(broken)}"
                run.end(RefusedByPolicy(why, fix=RUN_FIX))
                self.event(entry, "refused", f"{Reason.RefusedByPolicy}: {why}")
                ended.add(name)
        return ended

    def end_run(self, entry: Entry) -> None:
        """Nothing is left of it: the Boxfile counts again."""
        entry.run, self._totals = None, None
        entry.exits = entry.silent = 0

    # -- small things

    def forget(self, name: str) -> None:
        """A removed sandbox has nothing left on the host: drop its record and its reports."""
        self.entries.pop(name, None)
        self._parsed.pop(name, None)
        self._store.remove(name)

    def may_erase(
        self, name: str, fix: str = "delete it without --data; its disk is moved aside and kept"
    ) -> None:
        """Raise RefusedByPolicy when the ceiling forbids erasing data."""
        ceiling = read_ceiling(self._layout.policy)
        if isinstance(ceiling, BoxError):
            raise ceiling
        if not ceiling.allow_erase:
            raise RefusedByPolicy(
                f"policy.toml forbids erasing the data of {name} (allow_erase)",
                fix=fix,
            )

    def mark_erase(self, name: str) -> None:
        """Give the last good spec `data.on_delete: erase`, once its Boxfile is gone."""
        entry = self.entries.get(name)
        if entry is None or entry.record.spec is None:
            return
        record, spec = entry.record, entry.record.spec
        data = spec.data.model_copy(update={"on_delete": OnDelete.erase})
        spec = spec.model_copy(update={"data": data})
        self.save(name, replace(record, spec=spec, spec_digest=spec.digest()))

    def take_orphan(self, name: str) -> None:
        """Something of ours runs under a name without record or Boxfile: have it removed like a
        deleted one.
        """
        entry = self.entries.setdefault(name, Entry(Record(name=name)))
        entry.removing = entry.record.spec is None
        entry.gone_since = time.monotonic()

    def save(self, name: str, record: Record) -> None:
        """Make a changed record durable."""
        self._save(self.entries[name], record)

    def event(self, entry: Entry, kind: str, message: str) -> None:
        """Add one line to the sandbox's history."""
        now = timestamp()
        entry.last_change = now
        log.info("%s: %s: %s", entry.record.name, kind, visible(one_line(message), 500))
        found = Event(now, kind, message, entry.record.generation)
        try:
            self._store.append_event(entry.record.name, found)
        except (HostError, OSError) as error:
            log.warning("an event is not recorded (%s: %s): %s", kind, message, error)

    def _save(self, entry: Entry, record: Record) -> None:
        self._store.save(record)  # first: what could not be written is tried again by the next scan
        entry.record = record
        self._totals = None


def _less(all_of_them: Totals, some: Totals) -> Totals:
    return Totals(
        all_of_them.sandboxes - some.sandboxes,
        all_of_them.ram_mib - some.ram_mib,
        all_of_them.cpus - some.cpus,
    )
