"""The chain of layers that is a data disk, as a value, and what the verbs make of it.

Bottom first: a raw layer, then qcow2 overlays, of which only the last is written to. A layer that
a snapshot or a fork names is frozen for good. Pure: no file is touched here.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import pairwise

from specs.errors import BadName, Conflict, HostError, UsageError
from specs.names import check_name, is_name

BASE = "base.raw"
LAYERS_MAX = 32  # each is a descriptor of the VMM, and two look-ups of a block that nobody wrote
MARKS_MAX = 16
SNAPSHOTS_MAX = 64  # chain.toml stays below layers.CHAIN_MAX with every one of them at LAYERS_MAX
_LAYER_FILE = re.compile(r"base\.raw|[0-9a-f]{16}\.(?:raw|qcow2)")


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
class Applied:
    """The frozen `layers` that a fork had when it was applied, at the time `taken`. It counts as
    long as the disk of its parent lies on what its chain says that `mark` is.
    """

    mark: str
    taken: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Origin:
    """What a fork began with: the frozen `layers` of the sandbox `of` at the time `taken`. They are
    kept as long as it is a fork, so that what it changed can be told; since it was `applied`, if
    it was.
    """

    of: str
    taken: str
    layers: tuple[Layer, ...]
    applied: Applied | None = None

    @property
    def held(self) -> tuple[tuple[Layer, ...], ...]:
        """All that it holds."""
        return (self.layers, *([self.applied.layers] if self.applied is not None else []))

    def now(self, parent: Chain | None) -> Origin:
        """What counts, for what the parent's disk is now, if there is one."""
        applied = self.applied
        if applied is None:
            return self
        if parent is not None and parent.lies_on(applied.mark):
            return Origin(self.of, applied.taken, applied.layers)
        return replace(self, applied=None)


@dataclass(frozen=True)
class Chain:
    """A disk. `size_mib` is what it is to have where its top is an overlay; the agent and QEMU
    follow. 0 where the top is raw: its file's size says it.
    """

    sandbox: str
    layers: tuple[Layer, ...]
    size_mib: int = 0
    snapshots: tuple[Snapshot, ...] = ()
    origin: Origin | None = None
    # Of forks that were applied: a mark, and the file of the layer that has what they changed.
    marks: tuple[tuple[str, str], ...] = ()

    def lies_on(self, mark: str) -> bool:
        """Whether what was applied under this mark is in what the disk is now."""
        files = {layer.file for layer in self.layers}
        return any(each == mark and file in files for each, file in self.marks)

    @property
    def top(self) -> Layer:
        return self.layers[-1]

    @property
    def files(self) -> frozenset[str]:
        """Every file that anything in it names."""
        begun = self.origin.held if self.origin is not None else ()
        named = [self.layers, *begun, *(each.layers for each in self.snapshots)]
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


def with_top(chain: Chain, top: str, size_mib: int) -> Chain:
    """The same content, all of it frozen, with the new overlay `top` on it. Raises HostError."""
    if len(chain.layers) >= LAYERS_MAX:
        raise HostError(
            f"the disk of {chain.sandbox} has {len(chain.layers)} layers, as many as it may have",
            fix=f"box snapshots {chain.sandbox} --delete LABEL merges what no snapshot needs; box "
            "restore to an early snapshot, or box reset, begins a shorter chain",
        )
    return replace(chain, layers=(*chain.layers, Layer(top, size_mib)), size_mib=size_mib)


def with_snapshot(chain: Chain, label: str, taken: str, top: str, size_mib: int) -> Chain:
    """The same content, frozen under `label`, with the new overlay `top` on it. An empty `top` says
    that nobody has written to the present one, which then stays.

    Raises BadName, Conflict for a label that is taken, HostError where it would be too long.
    """
    holds = chain.layers if top else chain.layers[:-1]
    labelled = _labelled(chain, Snapshot(label, taken, size_mib, holds))
    return with_top(labelled, top, size_mib) if top else labelled


def _labelled(chain: Chain, taking: Snapshot) -> Chain:
    check_label(taking.label)
    if any(each.label == taking.label for each in chain.snapshots):
        raise Conflict(
            f"{chain.sandbox} has a snapshot {taking.label} already",
            fix=f"choose another label, or box snapshots {chain.sandbox} --delete {taking.label}",
        )
    if len(chain.snapshots) >= SNAPSHOTS_MAX:
        raise HostError(
            f"{chain.sandbox} has {len(chain.snapshots)} snapshots, as many as it may have",
            fix=f"box snapshots {chain.sandbox} --delete LABEL",
        )
    return replace(chain, snapshots=(*chain.snapshots, taking))


def applied(chain: Chain, label: str, taken: str, top: str, size_mib: int, *, empty: bool) -> Chain:
    """What is there, frozen under `label`, and on it the layer `top`, which holds what is changed.
    `empty`: nobody has written to the present top, which is named no more. Raises as
    `with_snapshot`.
    """
    holds = chain.layers[:-1] if empty else chain.layers
    labelled = _labelled(chain, Snapshot(label, taken, size_mib, holds))
    return marked(with_top(replace(labelled, layers=holds), top, size_mib), top, top)


def marked(chain: Chain, mark: str, file: str) -> Chain:
    """With `mark` for the layer in `file`. Of many the last are kept, where that is still there."""
    kept = [each for each in chain.marks if each[1] in chain.files]
    return replace(chain, marks=(*kept, (mark, file))[-MARKS_MAX:])


def rebased(chain: Chain, parent: Chain, mark: str, taken: str, top: str, size_mib: int) -> Chain:
    """The fork `chain`, from now on compared with what it holds now, frozen, as long as the disk of
    its `parent` lies on `mark`: with the new overlay `top`, or with an empty `top` as it
    is, for nobody has written to the present one.

    Raises HostError where it would be too long, ValueError for what is no fork.
    """
    if chain.origin is None:
        raise ValueError(f"{chain.sandbox} is no fork")
    kept = with_top(chain, top, size_mib) if top else chain
    applied = Applied(mark, taken, kept.layers[:-1])
    return replace(kept, origin=replace(chain.origin.now(parent), applied=applied))


def forked(chain: Chain, name: str, taken: str, top: str, size_mib: int) -> Chain:
    """The disk of a fork `name` of `chain`, whose top holds nothing: the new overlay `top` on the
    same layers beneath.
    """
    shared = chain.layers[:-1]
    origin = Origin(chain.sandbox, taken, shared)
    return Chain(name, (*shared, Layer(top, size_mib)), size_mib, origin=origin)


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


def mergeable(chain: Chain, shared: Container[str] = ()) -> tuple[Layer, ...]:
    """Frozen layers, lowest first, that nothing needs apart from each other: all that names one of
    them has all of them, in this order. Two or more that can become one, or none.

    `shared` are files that another sandbox's chain has too; they stay as they are.
    """
    views = [chain.layers, *(each.layers for each in chain.snapshots)]
    if chain.origin is not None:
        views += chain.origin.held
    above: dict[str, set[str]] = {}
    for view in views:
        for layer, file in zip(view, (*(each.file for each in view[1:]), ""), strict=True):
            above.setdefault(layer.file, set()).add(file)
    for view in views:
        run: list[Layer] = []
        for layer, following in pairwise(view):
            together = above[layer.file] == {following.file} and layer.file not in shared
            if together and following.file != chain.top.file:
                run = [*(run or [layer]), following]
            elif run:
                break
        if run:
            return tuple(run)
    return ()


def merged(chain: Chain, run: tuple[Layer, ...]) -> Chain:
    """The same content, with the layers of `run` in the file of the lowest, which has them all."""
    lowest, highest = run[0], run[-1]
    one = Layer(lowest.file, highest.size_mib if lowest.size_mib else 0)
    gone = {layer.file for layer in run[1:]}

    def without(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        kept = (layer for layer in layers if layer.file not in gone)
        return tuple(one if layer.file == one.file else layer for layer in kept)

    def within(origin: Origin) -> Origin:
        applied = origin.applied
        if applied is not None:
            applied = replace(applied, layers=without(applied.layers))
        return replace(origin, layers=without(origin.layers), applied=applied)

    origin, snapshots = chain.origin, chain.snapshots
    return replace(
        chain,
        layers=without(chain.layers),
        snapshots=tuple(replace(each, layers=without(each.layers)) for each in snapshots),
        origin=within(origin) if origin is not None else None,
        marks=tuple((mark, one.file if file in gone else file) for mark, file in chain.marks),
    )


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
