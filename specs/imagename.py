"""What `base` may name: where a root image comes from, as a value.

Pure parsing, with the mistake and its correction in words. Whether the thing is there, and what it
holds, is found out by whoever fetches it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import normpath

from specs.text import visible

DOCKER_HUB = "docker.io"
BUSYBOX = "busybox"
# github.com/distribution/reference: the longest name, and the longest tag
_NAME_MAX, _TAG_MAX = 255, 128
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?P<host>{_HOST}(?:\.{_HOST})*)(?::(?P<port>[0-9]{{1,5}}))?")
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{_TAG_MAX - 1}}}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Written the way other tools name a transport; what to write here instead.
_OTHER_TOOLS = ("docker://", "https://", "http://", "oci://", "docker-archive:", "oci:", "dir:")


class BadImageName(ValueError):
    """Not the name of an image; `fix` says what to write."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Builtin:
    """An image that box makes from the host's own programs."""

    name: str

    def __str__(self) -> str:
        return f"builtin:{self.name}"


@dataclass(frozen=True, slots=True)
class Registry:
    """An image in a registry. `digest` (`sha256:HEX`) decides where it is written, else `tag`."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def repository_name(self) -> str:
        """Registry and repository, without what is chosen in it."""
        return f"{self.host}/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return self.repository_name + tag + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, slots=True)
class Archive:
    """A file in the OCI archive format; `tag` chooses an image in it, empty: there is only one."""

    path: str
    tag: str = ""

    def __str__(self) -> str:
        return f"oci-archive:{self.path}" + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class Rootfs:
    """A root file system, as a folder or as a tar file."""

    path: str

    def __str__(self) -> str:
        return f"rootfs:{self.path}"


ImageName = Builtin | Registry | Archive | Rootfs


def moves(text: str) -> bool:
    """Whether what `text` names may mean another image tomorrow. Raises BadImageName."""
    match parse_image(text):
        case Registry(digest=digest):
            return not digest
        case Builtin():
            return False
    return True


def parse_image(text: str) -> ImageName:
    """The image that `text` names; `str()` of it is the same name in full. Raises BadImageName."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "builtin":
        if rest != BUSYBOX:
            raise BadImageName(f'there is no "{visible(text, 60)}"', f"write builtin:{BUSYBOX}")
        return Builtin(rest)
    if colon and scheme == "rootfs":
        return Rootfs(_path(rest, text))
    if colon and scheme == "oci-archive":
        path, _, tag = rest.partition(":")
        if rest != path and not _TAG.fullmatch(tag):
            message = f'"{visible(tag, 60)}" is not a tag, and the path cannot hold a colon'
            raise BadImageName(message, f"write oci-archive:{visible(path, 200)}:TAG")
        return Archive(_path(path, text), tag)
    return _registry(text)


def canonical(text: str) -> str:
    """The name in full, `docker.io/library/alpine:latest` for `alpine`. Raises BadImageName."""
    return str(parse_image(text))


def _path(path: str, text: str) -> str:
    """A path of the host: absolute, or below the home of the user that the controller runs as."""
    scheme = text.partition(":")[0]
    home = path == "~" or path.startswith("~/")
    if not (home or path.startswith("/")):
        fix = f"write {scheme}:/the/whole/path, or {scheme}:~/path"
        raise BadImageName(f'"{visible(path, 80)}" is not an absolute path', fix)
    if ".." in path.split("/"):
        raise BadImageName("the path must not contain ..", "write where it leads")
    plain = normpath(path).replace("//", "/", 1)
    if plain == "/":
        raise BadImageName("the whole host is never made an image", "name the folder or file")
    if path.rstrip("/") != plain:
        shown = visible(plain, 200)
        raise BadImageName("the path is not in its shortest form", f"write {scheme}:{shown}")
    return plain


def _registry(text: str) -> Registry:
    _look_for_other_tools(text)
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        message = f'"{visible(digest, 80)}" is not a digest'
        raise BadImageName(message, "write sha256: and its 64 digits 0-9 and a-f after the @")
    name, tag = _without_tag(name)
    if tag is not None and not _TAG.fullmatch(tag):
        what = f'"{visible(tag, 40)}" is not a tag' if tag else "the tag is missing"
        fix = "write up to 128 letters, digits, _ . and - after the colon, or leave out the colon"
        raise BadImageName(what, fix)
    host, repository = _split(name, text)
    if len(f"{host}/{repository}") > _NAME_MAX:
        raise BadImageName("the name is too long", f"use at most {_NAME_MAX} characters")
    return Registry(host, repository, tag or ("" if digest else "latest"), digest)


def _look_for_other_tools(text: str) -> None:
    if not text:
        raise BadImageName("the name is empty", "write an image, or remove the line")
    for prefix in _OTHER_TOOLS:
        if not text.startswith(prefix):
            continue
        rest = visible(text.removeprefix(prefix), 200)
        if prefix.endswith("//"):
            raise BadImageName(f"{prefix} is not part of a name here", f"write {rest}")
        fix = "write oci-archive:PATH; skopeo copy makes one from any other form"
        raise BadImageName(f"{prefix} is not supported", fix)
    if text.startswith(("/", "./", "../", "~")):
        fix = f"write rootfs:{visible(text, 200)} for a folder or a tar file"
        raise BadImageName(
            "a path is not the name of an image", f"{fix}, oci-archive:PATH for an OCI archive"
        )


def _without_tag(name: str) -> tuple[str, str | None]:
    """A colon behind the last slash begins the tag; before it, a port."""
    before, colon, tag = name.rpartition(":")
    return (before, tag) if colon and "/" not in tag else (name, None)


def _split(name: str, text: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        host, repository = first, rest
        found = _REGISTRY.fullmatch(host)
        if found is None or int(found["port"] or 1) not in range(1, 65536):
            message = f'"{visible(host, 80)}" is not a registry'
            raise BadImageName(message, "write HOST/NAME or HOST:PORT/NAME")
    else:
        host, repository = DOCKER_HUB, name
    if host == "index.docker.io":
        host = DOCKER_HUB  # its other name, from before Docker had registries of others
    if not _REPOSITORY.fullmatch(repository):
        raise BadImageName(*_bad_repository(repository, text))
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    return host, repository


def _bad_repository(repository: str, text: str) -> tuple[str, str]:
    shown = visible(repository, 80)
    if _REPOSITORY.fullmatch(repository.lower()):
        lower = text.replace(repository, repository.lower(), 1)
        return f'"{shown}" has capitals', f"write {visible(lower, 200)}"
    if not repository:
        return f'"{visible(text, 80)}" names no image', "write NAME, NAME:TAG or HOST/NAME:TAG"
    fix = "use a-z, 0-9 and single . _ - / between them, as in debian:12 or ghcr.io/team/tool:1.4"
    return f'"{shown}" is not the name of an image', fix
