"""The error tree: the type says whether to try again, the text says what, where, why and the fix.

Imported by every room and by the fast path of the command line, so it imports nothing heavy. It
must not format tracebacks, print, or decide how often to retry.
"""

from __future__ import annotations

from specs.text import visible_lines
from specs.value import Value


class Problem(Value):
    """One mistake in a file. Lines and columns count from 1; `field` is a dotted path or empty."""

    __slots__ = ("file", "line", "column", "field", "message", "fix")
    file: str
    line: int
    column: int
    field: str
    message: str
    fix: str

    def __init__(
        self, file: str, line: int, column: int, field: str, message: str, fix: str = ""
    ) -> None:
        self._fill(file, line, column, field, message, fix)

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        fix = f"; fix: {self.fix}" if self.fix else ""
        return f"{self.file}:{self.line}:{self.column}: {field}{self.message}{fix}"


class NotAllowed(ValueError):
    """A value that its field cannot have, raised by a field's own check; not part of the tree.

    `fix` says what to write instead.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class BoxError(Exception):
    """Root of the tree.

    `code` is the stable word the API answers with, `exit_status` the command line's status, `retry`
    whether the same attempt may succeed later without anybody changing the Boxfile.
    """

    code: str = "internal"
    exit_status: int = 1
    retry: bool = True

    def __init__(self, message: str, *, fix: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.where = where

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{where}{self.message}{fix}"


class UsageError(BoxError):
    """The caller asked for something that cannot be asked for."""

    code = "bad_request"
    exit_status = 2
    retry = False


class BadName(UsageError):
    """A sandbox name that is not one; raised before the name touches a path."""

    code = "bad_name"


class InvalidBoxfile(BoxError):
    """A Boxfile, policy.toml or config.toml with mistakes; `problems` holds every one of them."""

    code = "invalid"
    exit_status = 2
    retry = False

    def __init__(
        self,
        message: str,
        *,
        problems: tuple[Problem, ...] = (),
        fix: str = "",
        where: str = "",
    ) -> None:
        super().__init__(message, fix=fix, where=where)
        self.problems = problems

    @classmethod
    def of(cls, problems: tuple[Problem, ...]) -> InvalidBoxfile:
        """The error for a non-empty list of problems of one file."""
        count = len(problems)
        noun = "mistake" if count == 1 else "mistakes"
        return cls(f"{problems[0].file}: {count} {noun}", problems=problems)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {problem}" for problem in self.problems)])


class NoSandbox(BoxError):
    """There is no sandbox of that name."""

    code = "no_sandbox"
    retry = False


class NotUp(BoxError):
    """The sandbox exists but its VM does not answer now."""

    code = "not_up"


class StillRunning(BoxError):
    """What was asked for would change a disk under a VM that has it open."""

    code = "running"
    retry = False


class Conflict(BoxError):
    """Somebody else changed the same thing, or two files declare one name."""

    code = "conflict"
    retry = False


class HostError(BoxError):
    """The host lacks something, or a call to it failed."""


class Terminal(BoxError):
    """Trying again cannot help until the Boxfile or the host's configuration changes."""

    retry = False


class RefusedByPolicy(Terminal):
    """policy.toml forbids what the Boxfile asks for."""

    code = "refused_by_policy"


class ConfinementError(HostError):
    """A layer of the jail could not be applied, so the VM was not started; `layer` names it."""

    def __init__(self, message: str, *, layer: str, fix: str = "", where: str = "") -> None:
        super().__init__(message, fix=fix, where=where)
        self.layer = layer


class ChannelError(BoxError):
    """The channel into the guest is broken, closed or too slow."""


class KernelMismatch(ChannelError):
    """The process or the kernel behind a channel is not the one that was started."""


class ProtocolError(ChannelError):
    """The other side of a channel said something that the protocol does not allow."""


class CommandError(BoxError):
    """A child process of ours failed.

    `argv` is what was run, `status` its exit status (negative: the signal), `last_lines` the end
    of its output with unprintable characters escaped.
    """

    def __init__(
        self,
        message: str,
        *,
        argv: tuple[str, ...],
        status: int,
        last_lines: str = "",
        fix: str = "",
        where: str = "",
    ) -> None:
        super().__init__(message, fix=fix, where=where)
        self.argv = argv
        self.status = status
        self.last_lines = visible_lines(last_lines)

    @property
    def replay(self) -> str:
        """The shell line that runs the failed command again."""
        from shlex import join  # imports re; only an error message needs it

        return join(self.argv)

    def __str__(self) -> str:
        tail = "".join(f"\n  | {line}" for line in self.last_lines.splitlines())
        return f"{super().__str__()}{tail}\n  run it again: {self.replay}"
