"""What the documents of an OCI image say: which manifest is for this machine, which layers it has.

Pure: the bytes come from whoever fetched them, and are taken for a stranger's. Both media types of
each document are read, the OCI's and Docker's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reconcilers.images.tree import BadImage
from specs.text import visible

OS, ARCHITECTURE = "linux", "amd64"
DOCUMENT_MAX = 4 << 20  # bytes; skopeo reads no larger manifest
SIZE_MAX = 1 << 50  # bytes; what claims more is not believed
LAYERS_MAX = 127  # what overlay file systems of container engines take
LAYERS_BYTES_MAX = 64 << 30
"""Of all layers of an image together, packed or unpacked; as much as its files may have."""
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# Uncompressed, as skopeo leaves them; the others are another system's, or of an unknown kind.
_LAYERS = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Settings:
    """What an image says of the program that it is for. Every text is the image's own."""

    env: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


def digest_of(document: bytes) -> str:
    """`sha256:HEX` of the document."""
    return f"sha256:{hashlib.sha256(document).hexdigest()}"


def for_this_machine(document: bytes) -> str | None:
    """The digest of the manifest for this machine that an index names; None for a manifest.

    Raises BadImage for an index that names none, and for anything else.
    """
    data = _object(document, "manifest")
    kind = data.get("mediaType")
    if kind in _INDEXES or (kind is None and "manifests" in data):
        return _chosen(data)
    if kind in _MANIFESTS or (kind is None and "layers" in data and data.get("config")):
        return None
    if data.get("schemaVersion") == 1:
        raise BadImage("its manifest is of Docker's first kind, which is not supported")
    raise BadImage(f"its manifest is of an unknown kind: {visible(str(kind), 80)}")


def _chosen(data: dict[str, Any]) -> str:
    entries = [each for each in _list(data.get("manifests")) if isinstance(each, dict)]
    there = []
    for each in entries:
        platform = each.get("platform")
        platform = platform if isinstance(platform, dict) else {}
        names = [platform.get(key) for key in ("os", "architecture", "variant")]
        system, architecture, variant = (n if isinstance(n, str) else "" for n in names)
        # An index without platforms has one image; `v2` and later are for newer processors only.
        fits = (system, architecture) == (OS, ARCHITECTURE) and variant in ("", "v1")
        if fits or (not platform and len(entries) == 1):
            return _digest(each.get("digest"))
        if system not in ("", "unknown"):  # else it is a signature, or about how it was built
            there.append("/".join(filter(None, (system, architecture, variant))))
    shown = visible(", ".join(dict.fromkeys(there)) or "nothing", 200)
    raise BadImage(f"there is none for {OS}/{ARCHITECTURE}: it is there for {shown}")


def layers_of(document: bytes) -> tuple[str, tuple[str, ...]]:
    """The digests of the configuration and of each layer, lowest first. Raises BadImage."""
    data = _object(document, "manifest")
    config = data.get("config")
    found = []
    for each in _list(data.get("layers")):
        each = each if isinstance(each, dict) else {}
        kind = each.get("mediaType")
        if kind not in _LAYERS:
            raise BadImage(f"a layer is of an unknown kind: {visible(str(kind), 80)}")
        found.append(_digest(each.get("digest")))
    if len(found) > LAYERS_MAX:
        raise too_many(len(found))
    return _digest(config.get("digest") if isinstance(config, dict) else None), tuple(found)


def require_harmless(document: bytes) -> None:
    """Raises BadImage when a manifest would lead whoever fetches it astray: to other addresses for
    its layers, also those that only this host reaches, or by a digest that is the path of a file.
    """
    wrong = ""

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # skopeo may take the other one of two equal keys, and takes any case of their letters.
        nonlocal wrong
        for key, value in pairs:
            match key.casefold():
                case "urls" if isinstance(value, list) and value:
                    wrong = "its manifest names addresses (urls) to fetch a layer from"
                case "digest" if not isinstance(value, str) or not _DIGEST.fullmatch(value):
                    wrong = f"{visible(str(value), 80)} in its manifest is no SHA-256 digest"
        return dict(pairs)

    _object(document, "manifest", look)
    if wrong:
        raise BadImage(wrong)


def require_bounded(document: bytes) -> None:
    """Raises BadImage when a manifest names more layers, or larger ones, than are fetched."""
    count = len(_list(_object(document, "manifest").get("layers")))
    if count > LAYERS_MAX:
        raise too_many(count)
    if transferred(document) > LAYERS_BYTES_MAX:
        raise too_large()


def too_many(count: int) -> BadImage:
    """What is said of an image with so many layers."""
    return BadImage(
        f"it has {count} layers, and {LAYERS_MAX} are the most", fix="choose one with fewer layers"
    )


def too_large() -> BadImage:
    """What is said of an image whose layers are too large together."""
    return BadImage(
        f"its layers are larger than {LAYERS_BYTES_MAX >> 30} GiB together",
        fix="choose a smaller image",
    )


def transferred(document: bytes) -> int:
    """How many bytes a manifest says that its layers have, 0 when it says nothing of use."""
    try:
        found = [each.get("size") for each in _list(_object(document, "manifest").get("layers"))]
    except (BadImage, AttributeError):
        return 0
    sizes = [each for each in found if isinstance(each, int) and 0 <= each <= SIZE_MAX]
    return sum(sizes) if len(sizes) == len(found) else 0


def settings_of(document: bytes, layers: tuple[str, ...]) -> Settings:
    """What the configuration says. Raises BadImage when it is of another machine, or of other
    layers than `layers`, the digests of the uncompressed ones.
    """
    data = _object(document, "configuration")
    system, architecture = data.get("os"), data.get("architecture")
    if (system, architecture) != (OS, ARCHITECTURE):
        shown = visible(f"{system}/{architecture}", 80)
        raise BadImage(f"it is for {shown}, and this machine is {OS}/{ARCHITECTURE}")
    rootfs = data.get("rootfs")
    named = _list(rootfs.get("diff_ids")) if isinstance(rootfs, dict) else []
    if tuple(named) != layers:
        raise BadImage("its layers are not those that its configuration names")
    config = data.get("config")
    config = config if isinstance(config, dict) else {}
    return Settings(
        env=_texts(config.get("Env")),
        workdir=_text(config.get("WorkingDir")),
        user=_text(config.get("User")),
        entrypoint=_texts(config.get("Entrypoint")),
        cmd=_texts(config.get("Cmd")),
    )


Pairs = Callable[[list[tuple[str, Any]]], dict[str, Any]]


def _object(document: bytes, what: str, each: Pairs | None = None) -> dict[str, Any]:
    if len(document) > DOCUMENT_MAX:
        raise BadImage(f"its {what} is larger than {DOCUMENT_MAX} bytes")
    try:
        data = json.loads(document, object_pairs_hook=each)
    except (ValueError, RecursionError) as error:
        raise BadImage(f"its {what} is no JSON") from error
    if not isinstance(data, dict):
        raise BadImage(f"its {what} is no JSON object")
    return data


def _digest(value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise BadImage(f"{visible(str(value), 80)} in its manifest is no SHA-256 digest")
    return value


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in _list(value) if isinstance(each, str))
