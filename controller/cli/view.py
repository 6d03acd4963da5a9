"""One sandbox as the command line shows it: its Boxfile, its record and its last report.

Read from files alone, so it works while the controller is down, and with any of the three missing.
This module must not print, and must not write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controller.cli.output import age
from specs.errors import NoSandbox
from specs.names import check_name

if TYPE_CHECKING:
    from controller.records import Record
    from controller.sources.folder import FolderScan
    from reconcilers.layout import Layout
    from specs.boxfile import Boxfile
    from specs.conditions import Condition
    from specs.report import Failure, Report


@dataclass(frozen=True)
class View:
    """What is known about one name.

    `file` is the Boxfile in the folder, relative, or empty; `digest` the SHA-256 of its bytes,
    empty when it cannot be read, and `trouble` why not; `twins` other files that declare the name.
    """

    name: str
    record: Record | None
    garbled: str
    report: Report | None
    file: str
    digest: str = ""
    trouble: str = ""
    twins: tuple[str, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        conditions = self.report.conditions if self.report else ()
        return next((one for one in conditions if one.type == kind), None)

    def status(self, kind: str) -> str:
        found = self.condition(kind)
        return str(found.status) if found else "Unknown"

    @property
    def failure(self) -> Failure | None:
        """The step that failed last."""
        return self.report.failure if self.report else None

    def deciding(self) -> Condition | None:
        """The condition that says best how it is: one that is wrong, else Ready."""
        for kind in ("Valid", "Confined", "DataReady"):
            found = self.condition(kind)
            if found is not None and str(found.status) == "False":
                return found
        return self.condition("Ready")

    def reason(self) -> str:
        """Why it is not Ready, or why it is, in one word."""
        found = self.deciding()
        return str(found.reason) if found else "NotObserved"

    @property
    def isolation(self) -> str:
        return self._told("isolation")

    @property
    def backend(self) -> str:
        """The backend with how its CPU is made: `qemu/tcg` is an emulated one."""
        name = self._told("backend")
        accel = self.report.accel if self.report else ""
        return f"{name}/{accel}" if accel else name

    def _told(self, field: str) -> str:
        seen = getattr(self.report, field, "") if self.report else ""
        if seen:
            return str(seen)
        spec = self.record.spec if self.record else None
        return str(getattr(spec, field) or "-") if spec else "-"

    def age(self) -> str:
        created = (self.record.created if self.record else "") or (
            self.report.created if self.report else ""
        )
        return age(created)

    def open_drift(self) -> int:
        return sum(1 for one in self.report.drift if not one.corrected) if self.report else 0

    def drift(self) -> str:
        """`-` none, `2 open`, `mended` when the last pass found some and corrected it, or `?` when
        nothing is compared with the Boxfile in the folder.
        """
        if self.open_drift():
            return f"{self.open_drift()} open"
        if not self.compared:
            return "?"
        return "mended" if self.report and self.report.drift else "-"

    @property
    def compared(self) -> bool:
        """Whether the host was compared with what the Boxfile in the folder says."""
        return self.status("Drifted") != "Unknown" and self.status("Valid") != "False"

    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON; the spec is the one in force, without defaults."""
        spec = self.record.spec if self.record else None
        found: dict[str, Any] = {"name": self.name, "file": self.file, "digest": self.digest}
        if self.report is not None:
            found |= self.report.model_dump(mode="json")
        found["spec"] = spec.to_plain() if spec else None
        return found


def view(layout: Layout, name: str) -> View:
    """Raises BadName, and NoSandbox when neither file, record nor report knows the name."""
    check_name(name)
    found = _view(layout, name, folder_scan(layout))
    if found.record is None and not found.garbled and found.report is None and not found.file:
        raise NoSandbox(f"there is no sandbox {name}", fix="box get lists them")
    return found


def views(layout: Layout) -> list[View]:
    """Every sandbox that a Boxfile, a record or both speak of, sorted by name."""
    from controller.store import Store

    seen = folder_scan(layout)
    names = sorted(set(Store(layout).names()) | (seen.present if seen else frozenset()))
    return [_view(layout, name, seen) for name in names]


def _view(layout: Layout, name: str, seen: FolderScan | None) -> View:
    from controller.store import Garbled, Store

    store = Store(layout)
    record = store.load(name)
    garbled = record.why if isinstance(record, Garbled) else ""
    kept = None if isinstance(record, Garbled) else record
    report = store.read_report(name)
    file = seen.files.get(name) if seen else None
    if seen is None or file is None:
        path, _, trouble = (seen.broken.get(name, "") if seen else "").partition(": ")
        return View(name, kept, garbled, report, path, trouble=trouble)
    twins = tuple(path for path in seen.twins.get(name, ()) if path != file.path)
    return View(name, kept, garbled, report, file.path, file.digest, twins=twins)


def misnamed(layout: Layout) -> list[tuple[str, str]]:
    """Files in the folder that look like Boxfiles and declare nothing: path and why."""
    import os

    from specs.parse import is_ignored

    seen = folder_scan(layout)
    if seen is None:
        return []
    names = {path.partition(": ")[0] for path in seen.broken.values()}
    found = [(path, why) for path, why in seen.problems if path not in names]
    for entry in sorted(os.listdir(layout.boxes)):
        if entry.endswith((".box.json", ".box", ".box.txt")) and not is_ignored(entry):
            found.append((entry, f"not read; a Boxfile is called {entry.split('.')[0]}.box.yaml"))
    return found


def current_spec(layout: Layout, name: str) -> Boxfile | None:
    """What is being converged to now; without a record, the valid Boxfile in the folder."""
    from specs.parse import parse_boxfile

    try:
        record = view(layout, name).record
    except NoSandbox:
        return None
    if record is not None and record.spec is not None:
        return record.spec
    found = folder_scan(layout)
    file = found.files.get(name) if found else None
    if file is None:
        return None
    return parse_boxfile(file.data, file=file.path, expected_name=name).box


def folder_scan(layout: Layout) -> FolderScan | None:
    """The watched folder as it is now; None when it is missing or unreadable."""
    from controller.sources.folder import FolderScan, ScanCache, scan

    found = scan(layout.boxes, ScanCache())
    return found if isinstance(found, FolderScan) else None
