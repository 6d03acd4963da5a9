"""The chain of a disk as a value: whatever is done to it, and whenever that breaks off, its folder
holds the old disk or the new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers import chain, chainsteps, chaintext
from reconcilers.chain import (
    BASE,
    LAYERS_MAX,
    MARKS_MAX,
    SNAPSHOTS_MAX,
    Applied,
    Chain,
    Layer,
    Origin,
    Snapshot,
)
from reconcilers.chainsteps import Commit, FileStep, Freeze, Make, Remove
from reconcilers.layers import CHAIN_MAX
from specs.errors import BadName, BoxError, Conflict, HostError, UsageError

NEW = Chain("oak", (Layer(BASE),))
TAKEN = "2026-11-30T14:00:00.000Z"


@dataclass
class Folder:
    """A folder as the steps change it: files by whether they may be written, and chain.toml."""

    chain: Chain = NEW
    files: dict[str, bool] = field(default_factory=lambda: {BASE: True})

    def do(self, step: FileStep) -> None:
        match step:
            case Make(file, size):
                assert file not in self.files
                assert size > 0
                self.files[file] = True
            case Commit(new):
                assert new.files <= self.files.keys(), "it names what is not there"
                self.chain = new
            case Freeze(file):
                assert file != self.chain.top.file, "the layer that is written was frozen"
                self.files[file] = False
            case Remove(file):
                assert file not in self.chain.files, "a layer that is needed was removed"
                del self.files[file]

    def check(self) -> None:
        assert self.files.keys() == self.chain.files
        assert {file for file, writable in self.files.items() if writable} == {self.chain.top.file}


def changed(found: Chain, what: str, number: int, pick: int) -> Chain:
    """One verb's new chain. Raises what the verb would."""
    overlay, base = f"{number:016x}.qcow2", f"{number:016x}.raw"
    labels = [each.label for each in found.snapshots] or ["none"]
    label = labels[pick % len(labels)]
    size = found.size_mib or 64
    if what == "take":
        return chain.with_snapshot(found, f"s{number}", TAKEN, overlay, size)
    if what == "take-unwritten":
        return chain.with_snapshot(
            found, f"s{number}", TAKEN, "" if found.size_mib else overlay, 64
        )
    if what == "restore":
        return chain.restored(found, label, overlay, size)
    if what == "restore-keep":
        kept = chain.with_snapshot(found, f"s{number}", TAKEN, f"{number:015x}f.qcow2", size)
        return chain.restored(kept, label, overlay, size)
    if what == "reset":
        return chain.emptied(found, base)
    if what == "reset-keep":
        kept = chain.with_snapshot(found, f"s{number}", TAKEN, overlay, size)
        return chain.emptied(kept, base)
    if what == "apply":
        empty = found.size_mib > 0 and pick % 2 == 0
        return chain.applied(found, f"s{number}", TAKEN, overlay, size, empty=empty)
    if what == "rebase":
        top = overlay if pick % 2 or not found.size_mib else ""
        fork = replace(found, origin=found.origin or Origin("elm", TAKEN, found.layers[:1]))
        return chain.rebased(fork, NEW, BASE, TAKEN, top, size)
    if what == "forget":
        return chain.without_snapshot(found, label)
    return chain.grown(found, size + pick) if found.size_mib else found


VERBS = (
    "take",
    "take-unwritten",
    "restore",
    "restore-keep",
    "reset",
    "reset-keep",
    "forget",
    "apply",
    "rebase",
    "grow",
)
plans = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 9), st.integers(0, 12)), max_size=40
)


@given(plans)
def test_a_crash_at_any_step_leaves_the_old_disk_or_the_new_one(
    plan: list[tuple[str, int, int]],
) -> None:
    folder = Folder()
    for number, (what, pick, crash) in enumerate(plan, 1):
        old = folder.chain
        try:
            new = changed(old, what, number, pick)
        except BoxError:
            continue
        steps = chainsteps.steps_between(old, new, folder.files, 64)
        for step in steps[:crash]:
            folder.do(step)
        assert folder.chain in (old, new)
        for step in chainsteps.tidied(folder.chain, dict(folder.files)):
            folder.do(step)
        folder.check()
        for snapshot in folder.chain.snapshots:
            assert {layer.file for layer in snapshot.layers} <= folder.files.keys()


@given(plans)
def test_chain_toml_says_it_all_again(plan: list[tuple[str, int, int]]) -> None:
    found = NEW
    for number, (what, pick, _) in enumerate(plan, 1):
        try:
            found = changed(found, what, number, pick)
        except BoxError:
            continue
        assert chaintext.parse(chaintext.render(found)) == found


def test_a_chain_of_an_older_version_is_understood() -> None:
    text = 'sandbox = "oak"\nlayer = [\n    { file = "base.raw", format = "raw" },\n]\n'
    assert chaintext.parse(text) == NEW
    assert chaintext.render(NEW) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage [",
        "a = " + "[" * 50_000,
        'sandbox = "oak"\nlayer = []',
        'sandbox = "oak"\nlayer = [{file = "../x.raw", format = "raw"}]',
        'sandbox = "oak"\nlayer = [{file = "/etc/shadow", format = "raw"}]',
        'sandbox = "oak"\nlayer = [{file = "base.raw", format = "qcow2"}]',
        'sandbox = "oak"\nlayer = [{file = "0123456789abcdef.qcow2", format = "qcow2"}]',
        'sandbox = "oak"\nlayer = [{file = "base.raw", format = "raw", size_mib = 9}]',
        'sandbox = "oak"\nsize_mib = 9\nlayer = [{file = "base.raw", format = "raw"}]',
        'sandbox = "oak"\nlayer = [{file = "base.raw", format = "raw"}]\n'
        'snapshot = [{label = "a", taken = "t", size_mib = 1, layers = ["base.raw"]}]',
        'sandbox = "oak"\nlayer = [{file = "base.raw", format = "raw"}]\n'
        'snapshot = [{label = "a", taken = "t", size_mib = 1, layers = ["feedfeedfeedfeed.raw"]}]',
        "sandbox = 7\nlayer = [{file = 'base.raw', format = 'raw'}]",
    ],
)
def test_a_chain_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # whatever it is that is wrong
        chaintext.parse(text)


def filled(snapshots: int) -> Chain:
    found = NEW
    for number in range(snapshots):
        found = chain.with_snapshot(found, f"s{number:061}e", TAKEN, f"{number:016x}.qcow2", 99999)
    return found


def test_a_chain_that_grew_too_long_is_refused_with_the_fix() -> None:
    full = filled(LAYERS_MAX - 1)
    assert len(full.layers) == LAYERS_MAX
    with pytest.raises(HostError, match=r"32 layers.*\n.*box restore"):
        chain.with_snapshot(full, "more", TAKEN, "f" * 16 + ".qcow2", 64)


def test_the_longest_chain_is_small_enough_to_be_read() -> None:
    found = filled(LAYERS_MAX - 1)
    for number in range(SNAPSHOTS_MAX - len(found.snapshots)):
        early = chain.restored(found, f"s{29:061}e", f"{number:016x}.qcow2", 99999)
        found = chain.with_snapshot(
            early, f"t{number:061}e", TAKEN, f"{number + 1000:016x}.qcow2", 99999
        )
        found = chain.restored(found, f"t{number:061}e", f"{number + 2000:016x}.qcow2", 99999)
    assert len(found.snapshots) == SNAPSHOTS_MAX
    assert len(chaintext.render(found).encode()) < CHAIN_MAX
    with pytest.raises(HostError, match="64 snapshots"):
        chain.with_snapshot(
            chain.restored(found, f"s{0:061}e", "f" * 16 + ".qcow2", 1), "x", TAKEN, "0.qcow2", 1
        )


def test_the_most_that_a_chain_can_name_is_small_enough_to_be_read() -> None:
    """Layers that a fork shares are not merged, so each snapshot may have 32 of its own."""

    def branch(number: int) -> tuple[Layer, ...]:
        overlays = (f"{number:08x}{each:08x}.qcow2" for each in range(1, LAYERS_MAX))
        return (Layer(f"{number:016x}.raw"), *(Layer(file, 16 << 20) for file in overlays))

    taken = tuple(
        Snapshot(f"s{number:061}e", TAKEN, 16 << 20, branch(number))
        for number in range(SNAPSHOTS_MAX)
    )
    mark = f"{7:016x}.qcow2"
    origin = Origin("o" * 63, TAKEN, branch(100), Applied(mark, TAKEN, branch(101)))
    marks = ((mark, mark),) * MARKS_MAX
    whole = Chain("a" * 63, branch(102), 16 << 20, taken, origin, marks)
    text = chaintext.render(whole)
    assert len(text.encode()) < CHAIN_MAX // 2
    assert chaintext.parse(text) == whole


def test_labels_are_words_and_each_is_used_once() -> None:
    taken = chain.with_snapshot(NEW, "before", TAKEN, "f" * 16 + ".qcow2", 64)
    with pytest.raises(Conflict, match="has a snapshot before already"):
        chain.with_snapshot(taken, "before", TAKEN, "e" * 16 + ".qcow2", 64)
    for label in ("", "Before", "../x", "a b", "-x"):
        with pytest.raises(BadName, match="is not a label"):
            chain.with_snapshot(NEW, label, TAKEN, "f" * 16 + ".qcow2", 64)
    with pytest.raises(UsageError, match=r"no snapshot after.*\n.*known: before"):
        chain.restored(taken, "after", "e" * 16 + ".qcow2", 64)


def test_a_restored_disk_keeps_the_size_it_had_grown_to() -> None:
    taken = chain.with_snapshot(NEW, "small", TAKEN, "f" * 16 + ".qcow2", 64)
    later = chain.restored(chain.grown(taken, 128), "small", "e" * 16 + ".qcow2", 128)
    assert (later.size_mib, later.top.size_mib) == (128, 128)


def test_what_is_applied_lies_on_what_was_there_and_that_comes_back() -> None:
    old = chain.with_snapshot(NEW, "first", TAKEN, f"{1:016x}.qcow2", 64)
    new = chain.applied(old, "before", TAKEN, f"{2:016x}.qcow2", 64, empty=False)
    assert new.snapshot("before").layers == old.layers == new.layers[:-1]
    # A top that nobody wrote to is not kept beneath.
    new = chain.applied(old, "before", TAKEN, f"{2:016x}.qcow2", 64, empty=True)
    assert new.snapshot("before").layers == old.layers[:-1] == new.layers[:-1]
    assert old.top.file not in new.files
    with pytest.raises(Conflict):
        chain.applied(old, "first", TAKEN, f"{2:016x}.qcow2", 64, empty=True)


def test_a_layer_that_was_made_before_is_not_made_again() -> None:
    top = f"{1:016x}.qcow2"
    new = chain.applied(NEW, "before", TAKEN, top, 64, empty=False)
    steps = chainsteps.steps_between(NEW, new, {BASE: True, top: True})
    assert steps == (Commit(new), Freeze(BASE))
    # Killed before that, it is nobody's.
    assert chainsteps.tidied(NEW, {BASE: True, top: True}) == (Remove(top),)


def test_a_fork_that_was_applied_is_compared_with_what_it_has_now() -> None:
    fork = chain.forked(chain.with_top(NEW, f"{1:016x}.qcow2", 64), "try", TAKEN, "2" * 16, 64)
    fork = replace(fork, layers=(*fork.layers[:-1], Layer(f"{2:016x}.qcow2", 64)))
    parent = chain.applied(NEW, "before", TAKEN, f"{4:016x}.qcow2", 64, empty=False)
    found = chain.rebased(fork, NEW, parent.top.file, "later", f"{3:016x}.qcow2", 64)
    assert found.origin is not None and fork.origin is not None
    assert found.layers[:-1] == fork.layers
    # It counts with the rename that makes the parent another disk, and as long as it is that.
    assert found.origin.now(NEW) == found.origin.now(None) == fork.origin
    assert found.origin.now(parent) == Origin("oak", "later", fork.layers)
    back = chain.restored(parent, "before", f"{5:016x}.qcow2", 64)
    assert found.origin.now(back) == fork.origin
    # Applied again, the beginning is what counted then.
    more = f"{6:016x}.qcow2"
    unwritten = chain.rebased(found, parent, more, "again", "", 64)
    assert unwritten.layers == found.layers and unwritten.origin is not None
    assert unwritten.origin.layers == fork.layers
    assert unwritten.origin.now(parent) == Origin("oak", "later", fork.layers)
    having = chain.marked(parent, more, parent.top.file)
    assert unwritten.origin.now(having) == Origin("oak", "again", fork.layers)
    assert chaintext.parse(chaintext.render(having)) == having
    assert chaintext.parse(chaintext.render(unwritten)) == unwritten
    for number in range(chain.MARKS_MAX * 2):
        having = chain.marked(having, f"{number:016x}.raw", BASE)
    assert len(having.marks) == chain.MARKS_MAX
    with pytest.raises(ValueError, match="no fork"):
        chain.rebased(NEW, NEW, BASE, TAKEN, "", 64)
