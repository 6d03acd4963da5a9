"""Builds the report of one sandbox from what a pass saw. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from controller.entry import Entry
from reconcilers.facts import Image, Network, Observed, Vmm
from specs.reading import Reading
from specs.report import Report

# asdict() copies each value deeply, which costs a pass over a settled VM more than reading its
# cgroup does; a reading holds only text and truth values.
_READING = tuple(field.name for field in fields(Reading))


def build_report(entry: Entry, observed: Observed) -> Report:
    """What `observed.toml` is to hold after a pass."""
    record, box = entry.record, entry.record.spec
    return Report(
        name=record.name,
        generation=record.generation,
        state=str(box.state) if box else "",
        backend=str(box.backend or "qemu") if box else "",
        accel=entry.choice.accel if entry.choice else "",
        isolation=str(box.isolation) if box else "",
        source=record.source,
        created=record.created,
        last_change=entry.last_change,
        conditions=tuple(entry.conditions.values()),
        vmm=_vmm(entry, observed),
        guest=_guest(entry, observed),
        network=dict(observed.network.shown) if isinstance(observed.network, Network) else {},
        mounts=_mounts(entry),
        image=_image(entry, observed),
        confinement=_readings(observed),
        drift=tuple(entry.drift),
        failure=entry.failure,
    )


def _vmm(entry: Entry, observed: Observed) -> dict[str, Any]:
    if not isinstance(observed.vmm, Vmm) or entry.live is None:
        return {}
    record = entry.live.record
    return {
        "pid": record.pid,
        "start_time": record.start_time,
        "uid": record.uid,
        "gid": record.gid,
        "accel": record.accel,
        "started": record.started,
        "kernel_release": record.kernel_release,
        "kernel_sha256": record.kernel_sha256,
        "initramfs_sha256": record.initramfs_sha256,
        "image_sha256": record.image_sha256,
        "argv": list(record.argv),
    }


def _guest(entry: Entry, observed: Observed) -> dict[str, Any]:
    if observed.guest is None or entry.live is None or entry.live.client is None:
        return {}
    hello = entry.live.client.hello
    return {
        "kernel": hello.kernel,
        "machine": hello.machine,
        "boot_id": hello.boot_id,
        "agent": hello.agent,
        "root": hello.root,
        "data": hello.data,
    }


def _image(entry: Entry, observed: Observed) -> dict[str, Any]:
    """What the VM of its Boxfile starts from, and what is known of the name of that."""
    found = observed.image
    here = {"digest": found.digest, "sha256": found.sha256} if isinstance(found, Image) else {}
    return here | ({"tag_not_looked_up": entry.tag_error} if entry.tag_error else {})


def _mounts(entry: Entry) -> tuple[dict[str, Any], ...]:
    """Each mount with the directory its host path leads to now, and the owner of that."""
    return tuple(
        {
            "host": each.mount.host,
            "path": each.path,
            "guest": each.mount.guest,
            "mode": str(each.mount.mode),
            "owner": f"{each.owner[0]}:{each.owner[1]}",
            "sees": each.sees,
        }
        for each in entry.directories
    )


def _readings(observed: Observed) -> tuple[dict[str, Any], ...]:
    if not isinstance(observed.vmm, Vmm):
        return ()
    return tuple({name: getattr(r, name) for name in _READING} for r in observed.vmm.readings)
