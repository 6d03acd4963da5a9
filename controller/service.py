"""What the API server asks of the controller, as types only.

The server in `controller/api.py` and the controller's loop are written and tested apart; this file
is the line between them. It must not hold behaviour, and importing it must stay free of effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from agent.messages import ExecRequest
    from controller.forks import Outcome
    from reconcilers.images.progress import Seen
    from reconcilers.images.stored import Stored
    from reconcilers.snapshots import Listed
    from specs.drift import Event
    from specs.reading import Reading
    from specs.report import Report

Applied = Literal["created", "configured", "unchanged"]
Output = Literal["stdout", "stderr", "end"]


class CommandExit(Protocol):
    """How a command ended, as `agent.messages.Exit` says it."""

    @property
    def kind(self) -> str:
        """One of exit, signal, timeout, not_found, not_executable, refused, lost."""

    @property
    def value(self) -> int:
        """The exit status or the signal number; 0 where the kind has none."""

    @property
    def shell_status(self) -> int:
        """0-255 as a shell would report it: 124 timeout, 126, 127, 128+N for signal N."""

    @property
    def message(self) -> str:
        """Why, in words that are safe to show, or empty."""


class Command(Protocol):
    """One running command in a guest; `agent.process.Process` is one."""

    @property
    def seconds(self) -> float:
        """Its time limit, 0 for none."""

    async def read(self) -> tuple[Output, bytes]:
        """Next piece of output, in order per stream; ("end", b"") once both streams have ended.

        The piece is at most a few frames long, and the guest is asked for more only after it was
        taken here: a caller that stops reading stops the command, not the channel.
        """

    async def write(self, data: bytes) -> None:
        """Hand bytes to the command's standard input; returns when they were accepted, not
        buffered.
        """

    async def close_stdin(self) -> None:
        """Let the command read end-of-file."""

    async def kill(self, signal: int) -> None:
        """Send a signal; SIGKILL ends everything the command started. A finished command is left
        alone.
        """

    async def abandon(self) -> None:
        """Kill everything the command started and forget its output. Never raises BoxError."""

    async def wait(self) -> CommandExit:
        """The way the command ended. Never raises for a lost VM: that is kind "lost"."""


class Disks(Protocol):
    """What can be done to the disk of a sandbox without a VM. Raises NoSandbox for an unknown name,
    StillRunning while a VM has the disk, and HostError with the former disk in force.
    """

    async def snapshots(self, name: str) -> Sequence[Listed]:
        """Every snapshot, oldest first; also while a VM runs."""

    async def snapshot(self, name: str, label: str) -> str:
        """Freeze what is in it now; the label it got, which an empty one leaves to us.

        Raises BadName, Conflict.
        """

    async def restore(self, name: str, label: str, *, discard: bool) -> str:
        """Put a snapshot's content back; the label of one of what was there, empty with `discard`.

        Raises UsageError when there is none of that label, RefusedByPolicy for `discard`.
        """

    async def reset(self, name: str, *, discard: bool) -> str:
        """Begin an empty disk. Returns and raises as `restore`."""

    async def forget(self, name: str, label: str) -> int:
        """Delete a snapshot, and merge the layers that nothing needs apart any more; how many went
        so. Raises UsageError, RefusedByPolicy.
        """

    async def transfer(self, name: str, action: str, transfer: str) -> None:
        """Move /data (`export`, `import`) to or from the file of a transfer. Takes minutes where
        there is much of it. Raises UsageError when there is no such transfer.
        """

    async def fork_diff(self, name: str, transfer: str) -> Outcome:
        """Write what a fork changed since it began, or was last applied, to the file of a transfer.

        Raises UsageError for what is no fork, or no such transfer.
        """

    async def fork_apply(self, name: str, transfer: str, *, theirs: bool, dry_run: bool) -> Outcome:
        """The same, with what is in files, and bring it into the parent. Raises as `fork_diff`."""


class Pictures(Protocol):
    """Root images."""

    async def build(self, name: str, *, pull: bool) -> int:
        """Begin to make the image of a sandbox, or join who makes it; which run of it that is.
        `pull` looks its tag up again. Raises NoSandbox, RefusedByPolicy.
        """

    def progress(self, name: str, start: int) -> Seen | None:
        """How that stands, with its lines from number `start` on; None when nothing was built since
        the controller began. Raises NoSandbox.
        """

    async def images(self) -> Sequence[Stored]:
        """Every image that is here. Raises HostError."""

    async def prune(self, *, dry_run: bool) -> Sequence[Stored]:
        """Remove what no sandbox uses, or with `dry_run` only say what that is."""


class Service(Protocol):
    """The controller as its socket sees it. Names given here have already been validated."""

    @property
    def disks(self) -> Disks:
        """What can be done to data disks."""

    @property
    def images(self) -> Pictures:
        """What can be done with root images."""

    def names(self) -> Sequence[str]:
        """Every sandbox the controller knows, sorted."""

    def report(self, name: str) -> Report:
        """What was last observed. Raises NoSandbox."""

    def events(self, name: str) -> Sequence[Event]:
        """The recorded events, oldest first. Raises NoSandbox."""

    def version(self) -> Mapping[str, str]:
        """Facts about the running controller: at least `box`, `instance` and `pid`."""

    async def exec(self, name: str, request: ExecRequest) -> Command:
        """Start a command. The Boxfile's env and timeout fill in what the request leaves out.

        Raises NoSandbox, NotUp, or ChannelError when the guest does not answer.
        """

    async def run(self, name: str, request: ExecRequest) -> Command:
        """Start a command in a VM of its own, of a sandbox that is stopped. What keeps that VM from
        coming up is told by the Command's `wait`.

        Raises NoSandbox, StillRunning, RefusedByPolicy, or NotUp for one that is busy.
        """

    async def apply(self, name: str, data: bytes, if_match: str | None) -> Applied:
        """Write a Boxfile into the folder. Raises InvalidBoxfile, Conflict."""

    async def delete(self, name: str, *, erase_data: bool) -> None:
        """Remove the Boxfile; with `erase_data` its last spec is first given `on_delete: erase`.

        Raises NoSandbox, and RefusedByPolicy when the ceiling forbids erasing.
        """

    async def verify(self, name: str) -> Sequence[Reading]:
        """Read kernel and confinement off the live VMM now. Raises NoSandbox, NotUp."""

    async def prune(self, *, confirm: bool) -> Mapping[str, str]:
        """Sandboxes whose removal is held back, name to reason; with `confirm` their removal
        begins.
        """

    def poke(self, name: str) -> None:
        """Ask for a pass over one sandbox soon."""
