"""Whose VM goes on with its image when what a name means has changed; no VM runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.entry import Entry
from controller.keptimage import asks_the_same, kept_image
from controller.onerun import OneRun
from controller.records import Record
from reconcilers import launchrecord
from reconcilers.accel import Choice
from reconcilers.host import launch_key
from reconcilers.launched import image_of
from reconcilers.live import Live
from specs.boxfile import Boxfile, Pull
from specs.conditions import Reason
from tests.unit.reconcilers.test_files import RECORD

BOX = Boxfile(name="web", base="debian:12", run=("true",), env={"A": "b"})
OLD = "0" * 64


def running(box: Boxfile = BOX, accel: str = "tcg") -> Entry:
    """A sandbox whose VM was started with `box` from the image OLD."""
    entry = Entry(Record(name=box.name, spec=box, spec_digest=box.digest()))
    key = launch_key(box, Choice(accel, Reason.Accepted, ""), OLD)
    record = replace(RECORD, key=key, accel=accel, image_digest=OLD, image_asked=image_of(box))
    entry.live = Live(record)
    return entry


@pytest.mark.parametrize("accel", ["tcg", "kvm"])
def test_a_vm_that_runs_keeps_what_it_was_started_from(accel: str) -> None:
    assert kept_image(running(accel=accel), BOX) == OLD
    always = BOX.model_copy(update={"pull": Pull.always})
    assert kept_image(running(always, accel), always) == OLD, "it looks up before a start alone"


@pytest.mark.parametrize(
    "change",
    [
        {"base": "debian:13"},
        {"run": ("false",)},
        {"packages": ("curl",)},
        {"env": {"A": "c"}},
        {"ram_mib": BOX.ram_mib + 128},
        {"readonly": not BOX.readonly},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_boxfile_that_asks_for_another_vm_asks_for_what_the_base_means(
    change: dict[str, object],
) -> None:
    assert kept_image(running(), BOX.model_copy(update=change)) == ""


def test_what_changes_in_place_is_no_such_change() -> None:
    other = BOX.model_copy(update={"labels": {"a": "b"}, "pull": Pull.always})
    assert kept_image(running(), other) == OLD
    plain = BOX.model_copy(update={"run": ()})
    assert kept_image(running(plain), plain.model_copy(update={"env": {"A": "c"}})) == OLD


def test_the_same_base_in_other_words_is_the_same() -> None:
    entry = running()
    assert kept_image(entry, BOX.model_copy(update={"base": "docker.io/library/debian:12"})) == OLD


def _asked(entry: Entry) -> None:
    entry.asked_image = "1" * 64


def _looked_up(entry: Entry) -> None:
    entry.looked_up = True


def _ended(entry: Entry) -> None:
    entry.live = None


def _older(entry: Entry) -> None:
    assert entry.live is not None
    entry.live.record = replace(entry.live.record, image_digest="", image_asked="")


@pytest.mark.parametrize("event", [_asked, _looked_up, _ended, _older])
def test_its_own_wish_ends_that(event: Callable[[Entry], None]) -> None:
    entry = running()
    event(entry)
    assert kept_image(entry, BOX) == ""


def test_a_pull_that_found_the_same_changes_nothing() -> None:
    entry = running()
    entry.asked_image = OLD
    assert kept_image(entry, BOX) == OLD


@pytest.mark.parametrize("base", ["builtin:busybox", f"debian@sha256:{OLD}"])
def test_what_does_not_move_needs_none(base: str) -> None:
    fixed = Boxfile(name="web", base=base)
    assert kept_image(running(fixed), fixed) == ""
    # Its steps may be run again on the same base, with a network now.
    built = fixed.model_copy(update={"run": ("true",)})
    assert kept_image(running(built), built) == OLD


def test_the_vm_of_a_run_keeps_its_own_whatever_its_key() -> None:
    entry = running()
    assert entry.live is not None
    entry.live.record = replace(entry.live.record, key="of this run alone")
    assert kept_image(entry, BOX) == ""
    entry.run = OneRun(BOX)
    assert kept_image(entry, BOX) == OLD


def test_a_record_on_the_disk_says_it_too(tmp_path: Path) -> None:
    entry = running()
    assert entry.live is not None
    launchrecord.write(tmp_path / "launch.json", entry.live.record)
    read = launchrecord.read(tmp_path / "launch.json")
    assert read is not None and asks_the_same(read, BOX)
    entry.live = Live(read)
    assert kept_image(entry, BOX) == OLD
