"""The chain of layers that is a data disk, as a value: what chain.toml says, and what follows.

Bottom first: a raw layer, then qcow2 overlays, of which only the last is written to. A layer that
a snapshot or a fork names is frozen for good. Pure: no file is touched here, so that what a crash
may leave, and what is done about it, can be tested for every moment.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import tomli_w

from specs.errors import BadName, Conflict, HostError, UsageError
from specs.names import check_name, is_name

BASE = "base.raw"
LAYERS_MAX = 32  # each is a descriptor of the VMM, and two look-ups of a block that nobody wrote
SNAPSHOTS_MAX = 64  # chain.toml stays below smallfile.LIMIT with every one of them at LAYERS_MAX
_LAYER_FILE = re.compile(r"base\.raw|[0-9a-f]{16}\.(?:raw|qcow2)")
T = TypeVar("T")


@dataclass(frozen=True)
class Layer:
    """One file. `size_mib` is what the guest saw when it was made as an overlay, in MiB; 0 for a
    raw file, whose own size says it.
    """

    file: str
    size_mib: int = 0

    @property
    def format(self) -> str:
        """As QEMU calls it. Named by the file's own name, never guessed from its content."""
        return self.file.rpartition(".")[2]


@dataclass(frozen=True)
class Snapshot:
    """`layers` are all frozen. `taken` is an ISO 8601 UTC time, `size_mib` the disk's size then."""

    label: str
    taken: str
    size_mib: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Chain:
    """A disk. `size_mib` is what it is to have where its top is an overlay; the agent and QEMU
    follow. 0 where the top is raw: its file's size says it.
    """

    sandbox: str
    layers: tuple[Layer, ...]
    size_mib: int = 0
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def top(self) -> Layer:
        return self.layers[-1]

    @property
    def files(self) -> frozenset[str]:
        """Every file that anything in it names."""
        named = [self.layers, *(each.layers for each in self.snapshots)]
        return frozenset(layer.file for layers in named for layer in layers)

    @property
    def frozen(self) -> frozenset[str]:
        """The files that must never change again."""
        return self.files - {self.top.file}

    def snapshot(self, label: str) -> Snapshot:
        """Raises UsageError when there is none of that name."""
        for each in self.snapshots:
            if each.label == label:
                return each
        known = ", ".join(each.label for each in self.snapshots) or "there is none yet"
        raise UsageError(f"{self.sandbox} has no snapshot {label}", fix=f"known: {known}")


def is_layer_file(name: str) -> bool:
    """Whether a file of this name in a disk's folder is a layer, in use or not."""
    return _LAYER_FILE.fullmatch(name) is not None


# -- what the verbs make of a chain


def with_snapshot(chain: Chain, label: str, taken: str, top: str, size_mib: int) -> Chain:
    """The same content, frozen under `label`, with the new overlay `top` on it.

    Raises BadName, Conflict for a label that is taken, HostError where it would be too long.
    """
    check_label(label)
    if any(each.label == label for each in chain.snapshots):
        raise Conflict(
            f"{chain.sandbox} has a snapshot {label} already",
            fix=f"choose another label, or box snapshots {chain.sandbox} --delete {label}",
        )
    if len(chain.layers) >= LAYERS_MAX:
        raise HostError(
            f"the disk of {chain.sandbox} has {len(chain.layers)} layers, as many as it may have",
            fix="box restore to an early snapshot, or box reset, begins a shorter chain",
        )
    if len(chain.snapshots) >= SNAPSHOTS_MAX:
        raise HostError(
            f"{chain.sandbox} has {len(chain.snapshots)} snapshots, as many as it may have",
            fix=f"box snapshots {chain.sandbox} --delete LABEL",
        )
    taking = Snapshot(label, taken, size_mib, chain.layers)
    return replace(
        chain,
        layers=(*chain.layers, Layer(top, size_mib)),
        size_mib=size_mib,
        snapshots=(*chain.snapshots, taking),
    )


def restored(chain: Chain, label: str, top: str, size_mib: int) -> Chain:
    """The new overlay `top` on what `label` froze; the former top is named no more.

    `size_mib` is the disk's present size: a disk never shrinks. Raises UsageError.
    """
    found = chain.snapshot(label)
    size = max(size_mib, found.size_mib)
    return replace(chain, layers=(*found.layers, Layer(top, size)), size_mib=size)


def emptied(chain: Chain, base: str) -> Chain:
    """The new and empty raw layer `base` alone; snapshots stay."""
    return replace(chain, layers=(Layer(base),), size_mib=0)


def without_snapshot(chain: Chain, label: str) -> Chain:
    """Raises UsageError when there is none of that name."""
    gone = chain.snapshot(label)
    return replace(chain, snapshots=tuple(each for each in chain.snapshots if each is not gone))


def grown(chain: Chain, size_mib: int) -> Chain:
    """The size of a disk whose top is an overlay; never less than it had."""
    return replace(chain, size_mib=max(chain.size_mib, size_mib))


def check_label(label: str) -> str:
    """`label` itself; raises BadName. The grammar of names: it is a word on command lines."""
    if not is_name(label):
        try:
            check_name(label)
        except BadName as error:
            message = error.message.replace("a sandbox name", "a label")
            raise BadName(message, fix=error.fix) from None
    return label


# -- how a change reaches the disk


@dataclass(frozen=True)
class Make:
    """Write a new and empty layer of this size in MiB, complete, before anything names it."""

    file: str
    size_mib: int


@dataclass(frozen=True)
class Commit:
    """Replace chain.toml: the one moment at which the disk is another."""

    chain: Chain


@dataclass(frozen=True)
class Freeze:
    """Take away the right to write a layer that is written no more."""

    file: str


@dataclass(frozen=True)
class Remove:
    """Remove a layer that nothing names."""

    file: str


FileStep = Make | Commit | Freeze | Remove


def steps_between(
    old: Chain, new: Chain, present: Mapping[str, bool], base_mib: int = 0
) -> tuple[FileStep, ...]:
    """How the disk that `old` describes becomes the one of `new`, in order.

    `present` are the layer files in its folder, and whether each may be written; `base_mib` is the
    size of a new raw layer. A crash after any of these steps leaves what `tidied` makes clean, as
    the old disk or as the new one.
    """
    made = [layer for layer in new.layers if layer.file not in old.files]
    after = {**present, **{layer.file: True for layer in made}}
    makes = (Make(layer.file, layer.size_mib or base_mib) for layer in made)
    return (*makes, Commit(new), *tidied(new, after))


def tidied(chain: Chain, present: Mapping[str, bool]) -> tuple[FileStep, ...]:
    """What is left to do in a folder whose chain.toml says `chain`."""
    freeze = [file for file in sorted(chain.frozen) if present.get(file)]
    remove = sorted(set(present) - chain.files)
    return (*map(Freeze, freeze), *map(Remove, remove))


# -- chain.toml


def render(chain: Chain) -> str:
    """The text of chain.toml. Every layer is listed with its format; snapshots name its file."""
    known = {layer.file: layer for layer in _all_layers(chain)}
    plain: dict[str, Any] = {"sandbox": chain.sandbox}
    if chain.size_mib:
        plain["size_mib"] = chain.size_mib
    plain["layer"] = [_plain_layer(layer) for layer in chain.layers]
    beside = [each for file, each in known.items() if each not in chain.layers]
    if beside:
        plain["beside"] = [_plain_layer(layer) for layer in beside]
    if chain.snapshots:
        plain["snapshot"] = [
            {
                "label": each.label,
                "taken": each.taken,
                "size_mib": each.size_mib,
                "layers": [layer.file for layer in each.layers],
            }
            for each in chain.snapshots
        ]
    return tomli_w.dumps(plain)


def parse(text: str) -> Chain:
    """What `render` wrote, now or in an older version. Raises ValueError for anything else."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    layers = tuple(_parse_layers(found, "layer"))
    if not layers:
        raise ValueError("layer: at least one is expected")
    known = {each.file: each for each in (*layers, *_parse_layers(found, "beside"))}
    snapshots = tuple(_parse_snapshot(each, known) for each in _get(found, "snapshot", list, []))
    size = _size(found)
    chain = Chain(_get(found, "sandbox", str), layers, size, snapshots)
    for each in (layers, *(taken.layers for taken in snapshots)):
        _check_order(each)
    if (chain.top.format == "raw") != (size == 0):
        raise ValueError("size_mib: expected just where the top is an overlay")
    if len({each.label for each in snapshots}) != len(snapshots):
        raise ValueError("snapshot: two have one label")
    if any(chain.top in each.layers for each in snapshots):
        raise ValueError("layer: the top is what a snapshot froze")
    return chain


def _all_layers(chain: Chain) -> Iterator[Layer]:
    yield from chain.layers
    for each in chain.snapshots:
        yield from each.layers


def _plain_layer(layer: Layer) -> dict[str, Any]:
    size = {"size_mib": layer.size_mib} if layer.size_mib else {}
    return {"file": layer.file, "format": layer.format, **size}


def _parse_layers(found: Mapping[str, Any], key: str) -> Iterator[Layer]:
    for each in _get(found, key, list, []):
        if not isinstance(each, dict):
            raise ValueError(f"{key}: a table is expected")
        layer = Layer(_get(each, "file", str), _size(each))
        if not is_layer_file(layer.file):
            raise ValueError(f"{key}: {layer.file!r} is no name of a layer")
        if _get(each, "format", str) != layer.format:
            raise ValueError(f"{key}: {layer.file} is not {each['format']!r}")
        yield layer


def _parse_snapshot(found: object, known: Mapping[str, Layer]) -> Snapshot:
    if not isinstance(found, dict):
        raise ValueError("snapshot: a table is expected")
    label = _get(found, "label", str)
    if not is_name(label):
        raise ValueError(f"snapshot: {label!r} is no label")
    files = _get(found, "layers", list)
    if not files or not all(isinstance(file, str) and file in known for file in files):
        raise ValueError(f"snapshot {label}: it names a layer that is not listed")
    layers = tuple(known[file] for file in files)
    return Snapshot(label, _get(found, "taken", str), _size(found), layers)


def _check_order(layers: tuple[Layer, ...]) -> None:
    if layers[0].format != "raw" or any(each.format == "raw" for each in layers[1:]):
        raise ValueError("layer: a raw one is expected first, and qcow2 overlays on it")
    if len(layers) > LAYERS_MAX or len(set(layers)) != len(layers):
        raise ValueError(f"layer: at most {LAYERS_MAX} are expected, each once")
    if any((each.format == "raw") != (each.size_mib == 0) for each in layers):
        raise ValueError("layer: size_mib is expected just of an overlay")


def _size(found: Mapping[str, Any]) -> int:
    size = _get(found, "size_mib", int, 0)
    if size < 0:
        raise ValueError("size_mib: a size is expected")
    return size


def _get(found: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    value = found.get(key, default)
    if type(value) is not kind:  # a bool is no int
        raise ValueError(f"{key}: {kind.__name__} expected")
    return value
