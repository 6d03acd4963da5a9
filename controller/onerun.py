"""The VM of one `box run`, as the loop sees it: wanted until it is over, and then to be gone.

While a sandbox has one, its passes go by the spec that the command was asked for with; a Boxfile
that changes meanwhile is taken up afterwards. All of it is in memory: after a crash only the
Boxfile counts, which says `stopped`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets

from reconcilers.facts import Observed, Vmm
from reconcilers.live import Live
from specs.boxfile import Boxfile, State
from specs.errors import BoxError, HostError


class OneRun:
    """One VM for one command. `over` is set by whoever sees first that it is not to go on."""

    def __init__(self, spec: Boxfile) -> None:
        self.spec = spec.model_copy(update={"state": State.running})
        self.over = False
        self.gone = asyncio.Event()
        # Why it is over, when that is neither the command's end nor its client's wish.
        self.failure: BoxError | None = None
        self._live: Live | None = None
        self._decided = asyncio.Event()
        self._nonce = secrets.token_hex(8)

    @property
    def box(self) -> Boxfile:
        """What its passes converge to."""
        stopped = {"state": State.stopped}
        return self.spec.model_copy(update=stopped) if self.over else self.spec

    @property
    def is_up(self) -> bool:
        """Whether its VM was once as it has to be."""
        return self._live is not None

    def key(self, settings: str) -> str:
        """The launch key: no other start has it, so that this VM is never taken for another's.

        One that is up keeps its own, whatever its base has come to mean since.
        """
        if self._live is not None:
            return self._live.record.key
        return hashlib.sha256(f"{settings} {self._nonce}".encode()).hexdigest()

    async def up(self) -> Live:
        """Wait until its VM is up, confined and proved. Raises the BoxError that stands against it,
        also when it is over before.
        """
        await self._decided.wait()
        if self.failure is not None:
            raise self.failure
        if self._live is None or self.over:
            raise HostError("it was ended before its VM was up")
        return self._live

    def end(self, failure: BoxError | None = None) -> None:
        """Its VM is to go; the first reason counts, also one that is found only then."""
        self.failure = self.failure or failure
        self.over = True
        self._decided.set()

    def seen(self, live: Live | None, observed: Observed, why: str) -> None:
        """A pass has converged on it; `why` is what keeps a VM down that is not there."""
        if self.over:
            if observed.nothing_runs:
                self.gone.set()
        elif self._live is not None:  # like any VM it may differ for a while, or not be readable
            if observed.vmm is None:
                self.end(HostError(why or "its VM is not up any more"))
        elif live is None or not _in_order(observed):
            self.end(HostError(why or "its VM is not up"))
        else:
            self._live = live
            self._decided.set()


def _in_order(observed: Observed) -> bool:
    vmm = observed.vmm
    if not isinstance(vmm, Vmm) or vmm.frozen or vmm.outdated:
        return False
    return observed.guest is not None and not observed.faults
