"""What a live VMM really has, read from outside and compared with what it must have.

Synchronous and cheap (under 3 ms of CPU): it runs on every pass. It only reads; `mend` changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconcilers.confinement.mend import mend
from reconcilers.confinement.policy import Confinement
from specs.names import HostNames
from specs.reading import Reading

__all__ = ["mend", "read_vmm"]


def read_vmm(
    pid: int,
    want: Confinement,
    names: HostNames,
    *,
    at_launch: Sequence[Reading],
) -> tuple[Reading, ...]:
    """Every reading of the confinement of the process `pid`, in the order of the table of layers.

    `at_launch` is what `launch` returned for this process; without it (a stray, a lost record) the
    values /proc cannot show are reported as not known, and not ok. Raises ProcessLookupError when
    the process has ended.
    """
    raise NotImplementedError
