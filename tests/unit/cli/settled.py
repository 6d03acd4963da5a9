"""Files as a controller leaves them, for tests of what reads them."""

from __future__ import annotations

from controller.store import Record, Store
from reconcilers.layout import Layout
from specs.boxfile import Boxfile
from specs.conditions import Condition, ConditionType, Reason, Status
from specs.drift import Drift, Event
from specs.report import Report

SINCE = "2026-01-01T00:00:00+00:00"


def condition(
    kind: str, status: str, reason: str, message: str = "", generation: int = 2
) -> Condition:
    return Condition(
        ConditionType(kind), Status(status), Reason(reason), message, generation, SINCE
    )


def settle(layout: Layout, name: str = "fern", **more: object) -> None:
    """What a controller leaves behind for a sandbox that runs."""
    spec = Boxfile(name=name, cpus=1)
    (layout.boxes / f"{name}.box.yaml").write_text(f"name: {name}\ncpus: 1\n")
    store = Store(layout)
    store.save(Record(name=name, generation=2, spec=spec, source=f"{name}.box.yaml", created=SINCE))
    report = Report(
        name=name,
        generation=2,
        state="running",
        backend="qemu",
        accel="tcg",
        isolation="strict",
        source=f"{name}.box.yaml",
        created=SINCE,
        conditions=(
            condition("Valid", "True", "Accepted"),
            condition("HardwareIsolated", "False", "SoftwareEmulation", "the CPU is emulated"),
            condition("Ready", "True", "GuestReady", "the agent answers"),
            condition("Drifted", "False", "DriftCorrected", "memory limit: set again"),
        ),
        vmm={"pid": 4242},
        guest={"kernel": "6.1.0"},
        confinement=(
            {"layer": "seccomp", "item": "mode", "want": "2", "got": "2", "ok": True,
             "source": "/proc/4242/status", "when": "live", "mend": "replace"},
            {"layer": "cgroup", "item": "pids.max", "want": "64", "got": "max", "ok": False,
             "source": "/sys/fs/cgroup/pids", "when": "live", "mend": "in place"},
        ),
        drift=(Drift("memory limit", "640 MiB", "max", SINCE, "set again", SINCE),),
    )  # fmt: skip
    store.write_report(name, report.model_copy(update=more))
    store.append_event(name, Event(SINCE, "Started", "its VMM runs", 2))
