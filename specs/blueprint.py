"""`blueprint`: users, files and commands of an image, in the words that cloud-init has for them.

What cloud-init knows and this does not is an unknown field, never one that is ignored. Every value
is judged so that it is one line without surprises: the scripts in the guest read it as data
(`specs.guestscripts`). What the image already holds is only seen there.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from enum import StrEnum
from posixpath import normpath
from typing import Annotated

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    Tag,
)

from specs.errors import NotAllowed
from specs.fields import LINES_MAX, AbsolutePath, Part, ShortLine, Text, check_no_nul
from specs.text import visible

USERS_MAX = 100
ID_MAX = 4_294_967_293  # chown(2) and setuid(2) keep the two numbers above it for themselves
SCRIPT_MAX = 100_000
"""Bytes; execve(2) takes no argument over 131,071 (MAX_ARG_STRLEN less the zero at its end)."""

# As useradd(8) of Debian takes it, which neither a shell nor a regular expression trips over.
_ACCOUNT = r"[a-z_][a-z0-9_-]{0,31}"
_OWNER = re.compile(rf"(?:{_ACCOUNT}|[0-9]{{1,10}})(?::(?:{_ACCOUNT}|[0-9]{{1,10}}))?")
_MODE = re.compile(r"[0-7]{3,5}")
# Mounted over the image by the guest's agent: what a build writes there is gone.
_NOT_IN_THE_IMAGE = ("/proc", "/sys", "/dev", "/run", "/tmp", "/data")
_RESOLVER = "/etc/resolv.conf"


class Encoding(StrEnum):
    """How `content` stands for bytes: as its UTF-8, or base64."""

    text = "text/plain"
    b64 = "b64"
    base64 = "base64"


def check_script(text: str) -> str:
    """`text` itself when a shell can be given it as an argument. Raises NotAllowed."""
    if (size := len(text.encode())) > SCRIPT_MAX:
        message = f"a command of {size} bytes is too long, {SCRIPT_MAX} are allowed"
        raise NotAllowed(message, "write it to a file with blueprint.write_files, and run that")
    return text


def _account(name: str) -> str:
    if not re.fullmatch(_ACCOUNT, name):
        message = f'"{visible(name, 60)}" cannot be the name of a user or group'
        raise NotAllowed(message, "use a-z, 0-9, _ and -, at most 32, with a letter or _ first")
    return name


def _no_colon(text: str) -> str:
    if ":" in text:
        raise NotAllowed("/etc/passwd has no room for a colon", "leave it out")
    return text


def _plain_path(path: str) -> str:
    if path != "/" + normpath(path).lstrip("/") or path == "/":
        raise NotAllowed("is not the shortest form of a path", f"write {visible(_plain(path), 80)}")
    if any(len(part.encode()) > 255 for part in path.split("/")):
        raise NotAllowed("a name in this path is longer than 255 bytes", "shorten it")
    return path


def _plain(path: str) -> str:
    found = "/" + normpath(path).lstrip("/")
    return found if found != "/" else "the path of a file"


def _in_the_image(path: str) -> str:
    for taken in _NOT_IN_THE_IMAGE:
        if path == taken or path.startswith(taken + "/"):
            message = f"{taken} is not part of an image: the guest has its own"
            raise NotAllowed(message, "choose another folder")
    if path == _RESOLVER:
        raise NotAllowed("a guest with a network writes this file itself", "remove the entry")
    return path


def _owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        message = f'"{visible(text, 60)}" is not an owner'
        raise NotAllowed(message, "write user or user:group, by name or number")
    return text


def _mode(text: str) -> str:
    if not _MODE.fullmatch(text) or int(text, 8) > 0o7777:
        message = f'"{visible(text, 60)}" is not a mode'
        raise NotAllowed(message, 'write it in octal, such as "0644"')
    return text


Account = Annotated[StrictStr, AfterValidator(_account)]
PasswdPath = Annotated[AbsolutePath, AfterValidator(_plain_path), AfterValidator(_no_colon)]
ImagePath = Annotated[AbsolutePath, AfterValidator(_plain_path), AfterValidator(_in_the_image)]
Words = Annotated[tuple[Text, ...], Field(min_length=1, max_length=LINES_MAX)]
# Told apart beforehand, so that a mistake in a list is not also "this must be text".
Command = Annotated[
    Annotated[Text, Tag("line")] | Annotated[Words, Tag("words")],
    Discriminator(lambda value: "words" if isinstance(value, list | tuple) else "line"),
]


class User(Part):
    """Somebody in /etc/passwd, without a password. One that the image has keeps what it is, and a
    build fails when that differs from what is written.
    """

    name: Account
    uid: Annotated[StrictInt, Field(ge=1, le=ID_MAX)] | None = None
    gecos: Annotated[ShortLine, AfterValidator(_no_colon)] | None = None
    primary_group: Account | None = None
    groups: Annotated[tuple[Account, ...], Field(max_length=USERS_MAX)] = ()
    homedir: PasswdPath | None = None
    shell: PasswdPath | None = None
    no_create_home: StrictBool = False
    system: StrictBool = False


class WrittenFile(Part):
    """A file of the image. Folders above it are made, a file in its place is written over."""

    path: ImagePath
    content: Text = ""
    encoding: Encoding = Encoding.text
    owner: Annotated[StrictStr, AfterValidator(_owner)] | None = None
    permissions: Annotated[StrictStr, AfterValidator(_mode)] | None = None
    append: StrictBool = False

    def decoded(self) -> bytes:
        """What the file is to hold, or to have at its end. Raises NotAllowed for bad base64."""
        if self.encoding is Encoding.text:
            return self.content.encode()
        try:
            return base64.b64decode("".join(self.content.split()), validate=True)
        except (binascii.Error, ValueError):
            message = "this is not base64"
            raise NotAllowed(message, "write what `base64 FILE` prints") from None


def _decodable(file: WrittenFile) -> WrittenFile:
    file.decoded()
    return file


def _different(users: tuple[User, ...]) -> tuple[User, ...]:
    names = [user.name for user in users]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise NotAllowed(f"{twice[0]} is there twice", "write each user once")
    numbers = [user.uid for user in users if user.uid is not None]
    if again := sorted({uid for uid in numbers if numbers.count(uid) > 1}):
        raise NotAllowed(f"two users have uid {again[0]}", "give each a number of its own")
    return users


def script(commands: tuple[str | tuple[str, ...], ...]) -> str:
    """The commands as one script: a list of words is one command, quoted."""
    return "\n".join(each if isinstance(each, str) else shlex.join(each) for each in commands)


def _together(commands: tuple[str | tuple[str, ...], ...]) -> tuple[str | tuple[str, ...], ...]:
    check_script(script(commands))
    return commands


class Blueprint(Part):
    """Applied once when the image is built."""

    users: Annotated[tuple[User, ...], Field(max_length=USERS_MAX), AfterValidator(_different)] = ()
    write_files: Annotated[
        tuple[Annotated[WrittenFile, AfterValidator(_decodable)], ...], Field(max_length=LINES_MAX)
    ] = ()
    runcmd: Annotated[
        tuple[Command, ...], Field(max_length=LINES_MAX), AfterValidator(_together)
    ] = ()


RunLine = Annotated[
    StrictStr,
    StringConstraints(min_length=1),
    AfterValidator(check_no_nul),
    AfterValidator(check_script),
]
RunLines = Annotated[tuple[RunLine, ...], Field(max_length=LINES_MAX)]
