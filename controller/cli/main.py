"""The `box` command: finds the verb, and is the last place an error can reach.

`box exec` in its usual form is decided here, before argparse or anything else heavy is imported,
because its start-up is part of every command a user runs in a sandbox. This module must not
implement a verb.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""
READER_LEFT = 141
"""128 + SIGPIPE: whoever read our output has gone."""
BOX_FAILED = 125
"""Only for `box exec` and `box run`: box itself failed, so no status of the command is known."""
EXPLAINED_MAX = 30_000
"""Characters of a message, which begins with what matters: fifty mistakes of a file fit."""


def main() -> int:
    """Run the command line in sys.argv; the exit status. Installed as `box`."""
    _fill_standard_descriptors()
    arguments = sys.argv[1:]
    is_exec = arguments[:1] in (["exec"], ["run"])
    try:
        status = _run(arguments, is_exec)
        if sys.stdout is not None:  # None when it was closed from the start
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout again while it exits; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return READER_LEFT
    except Exception as problem:
        return _explain(problem, is_exec)
    return status


def _fill_standard_descriptors() -> None:
    """Open what we were started without, else the next socket becomes our stdin or stdout."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _run(arguments: list[str], is_exec: bool) -> int:
    if is_exec and "_ARGCOMPLETE" not in os.environ:
        from controller.cli import execclient

        wanted = execclient.simple_form(arguments)
        if wanted is not None:
            return execclient.run(wanted)
    from controller.cli.parser import run

    return run(arguments)


def _explain(problem: Exception, is_exec: bool) -> int:
    from specs.errors import BoxError, UsageError
    from specs.text import visible_lines

    if isinstance(problem, BoxError):
        text = str(problem)
        status = problem.exit_status
    elif isinstance(problem, OSError):
        where = f"{problem.filename}: " if problem.filename else ""
        text = f"{where}{problem.strerror or problem}"
        status = 1
    else:
        if os.environ.get("BOX_TRACEBACK"):
            raise problem
        text = (
            f"this is a mistake in box: {type(problem).__name__}: {problem}\n"
            "  fix: run it again with BOX_TRACEBACK=1 and report what that prints"
        )
        status = 1
    denied = isinstance(problem, PermissionError) or isinstance(problem.__cause__, PermissionError)
    if denied and os.geteuid() != 0:
        from controller.cli.place import NOT_OURS

        text = text.partition("\n  fix: ")[0]
        text += f"\n  fix: {NOT_OURS}"
    if is_exec and not isinstance(problem, UsageError):
        status = BOX_FAILED
    shown = text if len(text) <= EXPLAINED_MAX else text[:EXPLAINED_MAX] + "..."
    print(f"box: {visible_lines(shown, len(shown))}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
