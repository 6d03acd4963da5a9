"""Layers that become one: whatever was done to a disk, all that names a part sees the same."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from reconcilers import chain
from reconcilers.chain import BASE, Chain, Layer, Origin, Snapshot
from specs.errors import BoxError
from tests.unit.reconcilers.test_chain import NEW, TAKEN, changed, plans

Content = dict[str, frozenset[str]]
"""What each file holds, as marks; a mark written in a layer hides nothing of those beneath."""


def views(found: Chain) -> list[tuple[Layer, ...]]:
    begun = found.origin.held if found.origin is not None else ()
    return [found.layers, *begun, *(each.layers for each in found.snapshots)]


def seen(found: Chain, content: Content) -> list[list[str]]:
    """The marks of each view in the order in which they were written."""
    return [[m for layer in view for m in sorted(content[layer.file])] for view in views(found)]


@given(plans, st.booleans())
def test_merging_changes_nothing_that_anybody_sees(
    plan: list[tuple[str, int, int]], is_fork: bool
) -> None:
    found = NEW
    for number, (what, pick, _) in enumerate(plan, 1):
        with contextlib.suppress(BoxError):
            found = changed(found, what, number, pick)
    if is_fork and len(found.layers) > 1:
        found = chain.forked(found, "elm", TAKEN, "f" * 16 + ".qcow2", found.size_mib or 32)
    order = {file: number for number, file in enumerate(dict.fromkeys(_in_order(found)))}
    content = {file: frozenset({f"{number:04}"}) for file, number in order.items()}
    before = seen(found, content)
    marks = [mark for mark, _ in found.marks]
    lies = [found.lies_on(mark) for mark in marks]
    for _ in range(100):
        run = chain.mergeable(found)
        if not run:
            break
        assert len(run) >= 2
        assert found.top not in run, "what a guest writes stays as it is"
        content[run[0].file] = frozenset().union(*(content[layer.file] for layer in run))
        top, size = found.top, found.size_mib
        found = chain.merged(found, run)
        assert (found.top, found.size_mib) == (top, size)
        assert not {layer.file for layer in run[1:]} & found.files
        assert seen(found, content) == before
        assert [found.lies_on(mark) for mark in marks] == lies
    assert not chain.mergeable(found)
    # each frozen layer that is left is the end of something, or where two ways part
    above: dict[str, set[str]] = {}
    for view in views(found):
        files = [layer.file for layer in view]
        for file, following in zip(files, (*files[1:], "end"), strict=False):
            above.setdefault(file, set()).add(following)
    for file in found.frozen:
        ways = above[file]
        assert len(ways) > 1 or ways & {"end", found.top.file}


def _in_order(found: Chain) -> list[str]:
    return [layer.file for view in sorted(views(found), key=len) for layer in view]


def test_thirty_snapshots_that_are_deleted_leave_two_layers() -> None:
    found = NEW
    for number in range(30):
        top = f"{number:016x}.qcow2"
        found = chain.with_snapshot(found, f"s{number}", TAKEN, top, 32 + number)
    for number in range(29):
        found = chain.without_snapshot(found, f"s{number}")
    run = chain.mergeable(found)
    assert [layer.file for layer in run] == [layer.file for layer in found.layers[:-1]]
    found = chain.merged(found, run)
    assert found.layers == (Layer(BASE), Layer(f"{29:016x}.qcow2", 61))
    assert found.snapshot("s29").layers == (Layer(BASE),)


def test_what_two_snapshots_part_at_stays_a_layer() -> None:
    a, b, c, d, top = (Layer(f"{n:016x}.qcow2", 32 + n) for n in range(5))
    base = Layer(BASE)
    left = Snapshot("left", TAKEN, 32, (base, a, b))
    found = Chain("oak", (base, a, c, d, top), 36, (left,), Origin("elm", TAKEN, (base,)))
    run = chain.mergeable(found)
    assert run == (c, d)
    found = chain.merged(found, run)
    assert found.layers == (base, a, Layer(c.file, d.size_mib), top)
    assert chain.mergeable(found) == ()
