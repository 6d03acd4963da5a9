"""What a build does on top of a base: the steps of a Boxfile, in order, and the key of each.

Pure. A step is a program with its arguments and standard input, to be run as root in the guest that
is built, with `env` of the Boxfile as its environment. What is text in a Boxfile is data for the
scripts of `specs.guestscripts`; only `run` and `runcmd` are code, and they are the user's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specs.blueprint import User, WrittenFile, script
from specs.boxfile import Boxfile
from specs.guestscripts import BLUEPRINT, PACKAGES
from specs.text import visible

Kind = Literal["packages", "blueprint", "run"]

SHELL = "/bin/sh"
TITLE_MAX = 100  # characters; a step is a line of progress
_FORMAT = "box build step 1"  # part of every key: raised when the same step would do another thing
# Where numbers of users begin, as on Debian, Alpine and Fedora.
_FIRST_UID, _FIRST_SYSTEM_UID = 1000, 100


@dataclass(frozen=True, slots=True)
class Step:
    """One command in the guest. `title` is a line for people, safe to show; `stdin` is all of its
    standard input, which ends after it.
    """

    kind: Kind
    title: str
    argv: tuple[str, ...]
    stdin: bytes = b""


def steps(box: Boxfile) -> tuple[Step, ...]:
    """In the order in which they run; empty for a Boxfile that takes its base as it is."""
    found = list[Step]()
    if box.packages:
        found.append(_packages(box))
    if box.blueprint and (box.blueprint.users or box.blueprint.write_files):
        found.append(_blueprint(box.blueprint.users, box.blueprint.write_files))
    found += [_shell("run", text) for text in box.run]
    if box.blueprint and box.blueprint.runcmd:
        found.append(_shell("runcmd", script(box.blueprint.runcmd)))
    return tuple(found)


def key(previous: str, step: Step, env: Mapping[str, str]) -> str:
    """64 hex digits that name what is there after `step`: two steps with one key do the same.

    `previous` is the key of the step before, of the first the digest of the base's image. Neither
    the title nor the order of `env` matters.
    """
    said = [_FORMAT, previous, step.argv, step.stdin.hex(), sorted(env.items())]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


def _packages(box: Boxfile) -> Step:
    # All in one transaction, so their order does not matter and must not change the key.
    names = sorted({*box.packages})
    manager = box.pkgmgr.value if box.pkgmgr else ""
    argv = (SHELL, "-c", PACKAGES, "packages", manager, *names)
    return Step("packages", _title("packages", ", ".join(names)), argv)


def _shell(word: str, text: str) -> Step:
    return Step("run", _title(word, text.strip()), (SHELL, "-e", "-c", text))


def _blueprint(users: tuple[User, ...], files: tuple[WrittenFile, ...]) -> Step:
    """Records of one value a line (no value can hold a line break), then the files' bytes."""
    lines = list[str]()
    for user in users:
        lines += ["user", *_user(user)]
    contents = [file.decoded() for file in files]
    rest = sum(map(len, contents))
    for file, content in zip(files, contents, strict=True):
        append = "yes" if file.append else "no"
        lines += ["file", file.path, file.owner or "", file.permissions or "", append]
        lines += [str(len(content)), str(rest)]
        rest -= len(content)
    head = "".join(f"{line}\n" for line in [*lines, "end"]).encode()
    named = [f"user {user.name}" for user in users] + [file.path for file in files]
    argv = (SHELL, "-c", BLUEPRINT, "blueprint")
    return Step("blueprint", _title("blueprint", ", ".join(named)), argv, head + b"".join(contents))


def _user(user: User) -> tuple[str, ...]:
    home = "no" if user.no_create_home or user.system else "yes"
    first = _FIRST_SYSTEM_UID if user.system else _FIRST_UID
    return (
        user.name,
        "" if user.uid is None else str(user.uid),
        user.gecos or "",
        user.primary_group or "",
        " ".join(user.groups),
        user.homedir or "",
        user.shell or "",
        home,
        str(first),
    )


def _title(word: str, text: str) -> str:
    return visible(f"{word}: {text}", TITLE_MAX)
