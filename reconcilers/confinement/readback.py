"""What a live VMM really has, read from outside and compared with what it must have.

Synchronous and cheap (under 3 ms of CPU): it runs on every pass. It only reads; `mend` changes. It
shares no judgement with the launcher, so that a layer the launcher forgot is seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from reconcilers.confinement import atlaunch, readgroup, readjail
from reconcilers.confinement.layers import LAYERS, layers
from reconcilers.confinement.mend import mend
from reconcilers.confinement.policy import Confinement
from specs.names import HostNames
from specs.reading import Reading

__all__ = ["layers", "mend", "read_helper", "read_vmm"]

_ORDER = {layer.name: number for number, layer in enumerate(LAYERS)}


def read_vmm(
    pid: int,
    want: Confinement,
    names: HostNames,
    *,
    at_launch: Sequence[Reading],
) -> tuple[Reading, ...]:
    """Every reading of the confinement of the process `pid`, in the order of `layers.LAYERS`.

    `at_launch` is what `launch` returned for this process; without it (a stray, a lost record) the
    values /proc cannot show are reported as not known, and not ok. Raises ProcessLookupError when
    the process has ended.
    """
    return _read(pid, want, at_launch, lambda: readgroup.read_group(pid, want, names))


def read_helper(
    pid: int, want: Confinement, names: HostNames, *, at_launch: Sequence[Reading]
) -> tuple[Reading, ...]:
    """As `read_vmm`, of a helper in the VMM's group; the group's limits are read with the VMM."""
    return _read(pid, want, at_launch, lambda: readgroup.read_membership(pid, names))


def _read(
    pid: int,
    want: Confinement,
    at_launch: Sequence[Reading],
    group: Callable[[], Iterator[Reading]],
) -> tuple[Reading, ...]:
    known = {(reading.layer, reading.item): reading for reading in at_launch}
    try:
        found = [*readjail.read_process(pid, want, known), *group(), *_kept(known)]
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} ended while it was read: {error}") from error
    return tuple(sorted(found, key=lambda reading: _ORDER[reading.layer]))


def _kept(known: Mapping[tuple[str, str], Reading]) -> Iterator[Reading]:
    """The readings of the launch that nothing live can repeat.

    They are judged by what is wanted now: the record may be of a version that wanted less.
    """
    for key, want in atlaunch.wanted().items():
        layer, item = key
        got = known[key].got if key in known else "not known"
        source = known[key].source if key in known else "launch record"
        yield Reading(layer, item, want, got, got == want, source, "at launch", "replace")
