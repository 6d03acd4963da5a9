"""What drift is recorded, and when it counts as corrected."""

from __future__ import annotations

from controller import driftbook
from controller.entry import DRIFT_KEPT
from reconcilers import steps
from specs.drift import Drift


def test_a_difference_is_entered_once_while_it_is_open() -> None:
    step = steps.MendDisk("data.owner", "0:0", "1000:0")
    book, new = driftbook.found([], [step], "t1")
    assert [d.field for d in new] == ["data.owner"]
    book, new = driftbook.found(book, [step], "t2")
    assert (len(book), new) == (1, [])
    assert book[0].first_seen == "t1"


def test_consequences_are_no_drift_of_their_own() -> None:
    follows = steps.ConnectGuest("guest", "answering", "not", consequence=True)
    assert driftbook.found([], [follows], "t") == ([], [])


def test_agreement_closes_what_was_open_and_the_next_difference_is_new() -> None:
    step = steps.MendDisk("data.owner", "0:0", "1000:0")
    book, _ = driftbook.found([], [step], "t1")
    book, closed = driftbook.corrected(book, "t2")
    assert [d.corrected for d in closed] == ["t2"]
    assert driftbook.is_open(book) == []
    book, new = driftbook.found(book, [step], "t3")
    assert len(new) == 1
    assert len(book) == 2


def test_the_book_is_bounded() -> None:
    book: list[Drift] = []
    for number in range(100):
        book, _ = driftbook.found(book, [steps.MendDisk(f"f{number}", "a", "b")], "t")
    assert len(book) == DRIFT_KEPT
