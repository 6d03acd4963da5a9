"""State files, reports and event logs, also after somebody has damaged them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller import files
from controller.records import record_from_dict, record_to_dict
from controller.store import FolderIdentity, Garbled, Record, Store
from reconcilers.layout import Layout
from specs.boxfile import Boxfile
from specs.conditions import Condition, ConditionType, Reason, Status
from specs.drift import Event
from specs.errors import BadName
from specs.report import Report


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(home=tmp_path, runtime=tmp_path / "run", instance="0123456789ab")
    for folder in (layout.state, layout.observed):
        folder.mkdir(mode=0o700)
    return layout


@pytest.fixture
def store(layout: Layout) -> Store:
    return Store(layout)


def a_record(name: str = "agent", **changes: object) -> Record:
    record = Record(
        name=name,
        generation=3,
        spec=Boxfile.model_validate(
            {"name": name, "cpus": 1, "env": {"A": "ä\n\x7f"}, "data": {"size_mib": 64}}
        ),
        spec_digest="ab" * 32,
        source=f"{name}.box.yaml",
        uid=1879048192,
        gid=1879048192,
        created="2026-01-02T03:04:05Z",
        has_disk=True,
    )
    return dataclasses.replace(record, **changes)  # type: ignore[arg-type]


def a_report(name: str = "agent", message: str = "converged") -> Report:
    condition = Condition(
        type=ConditionType.Ready,
        status=Status.true,
        reason=Reason.GuestReady,
        message=message,
        generation=3,
        since="2026-01-02T03:04:05Z",
    )
    readings = tuple(
        {"layer": "capabilities", "item": f"set {i}", "want": "0", "got": "0", "ok": True}
        for i in range(40)
    )
    return Report(name=name, generation=3, conditions=(condition,) * 8, confinement=readings)


def an_event(message: str = "started", generation: int = 1) -> Event:
    return Event(
        time="2026-01-02T03:04:05Z", kind="started", message=message, generation=generation
    )


def snapshot(folder: Path) -> dict[str, tuple[files.StatKey, bytes]]:
    return {
        str(path.relative_to(folder)): (files.stat_key(path.lstat()), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# -- state ----------------------------------------------------------------------------------------


def test_a_record_comes_back_whole(store: Store, layout: Layout) -> None:
    record = a_record(vanished_at=12.5, held=True, suspended=True)
    assert store.save(record)
    assert Store(layout).load("agent") == record
    assert stat.S_IMODE((layout.state / "agent.toml").stat().st_mode) == 0o600


def test_a_minimal_record_comes_back_whole(store: Store, layout: Layout) -> None:
    store.save(Record("agent"))
    assert Store(layout).load("agent") == Record("agent")


@given(
    st.builds(
        Record,
        name=st.just("agent"),
        generation=st.integers(0, 2**62),
        spec=st.none() | st.builds(Boxfile, name=st.just("agent"), cpus=st.integers(1, 16)),
        spec_digest=st.text(max_size=5),
        source=st.text(st.characters(codec="utf-8")),
        uid=st.none() | st.integers(0, 2**32),
        gid=st.none() | st.integers(0, 2**32),
        vanished_at=st.none() | st.floats(0, 1e12),
        held=st.booleans(),
        has_disk=st.booleans(),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_record_survives_its_file(store: Store, record: Record) -> None:
    store.save(record)
    assert store.load("agent") == record


def test_saving_the_same_record_writes_nothing(store: Store, layout: Layout) -> None:
    store.save(a_record())
    before = snapshot(layout.state)
    assert not store.save(a_record())
    # A new process knows nothing, reads the file, and still does not write.
    assert not Store(layout).save(a_record())
    assert snapshot(layout.state) == before


def test_a_deleted_or_edited_state_file_is_written_again(store: Store, layout: Layout) -> None:
    path = layout.state / "agent.toml"
    store.save(a_record())
    good = path.read_bytes()
    path.unlink()
    assert store.save(a_record())
    path.write_bytes(good.replace(b"generation = 3", b"generation = 4"))
    assert store.save(a_record())
    assert path.read_bytes() == good
    assert not list(layout.state.glob("*.garbled-*"))


def test_an_absent_record_is_none(store: Store) -> None:
    assert store.load("agent") is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe\x00",
        b"format = 1\n",
        b'format = 99\nname = "agent"\n',
        b"a = [" * 100_000,
        b"x" * 2_000_000,
    ],
)
def test_a_garbled_state_file_is_reported_and_set_aside_never_deleted(
    store: Store, layout: Layout, garbage: bytes
) -> None:
    path = layout.state / "agent.toml"
    path.write_bytes(garbage)
    found = store.load("agent")
    assert isinstance(found, Garbled)
    assert found.path == path and found.why
    aside = store.set_aside(found)
    assert aside.read_bytes() == garbage
    assert aside.name.startswith("agent.toml.garbled-")
    assert store.load("agent") is None
    assert store.names() == []


def test_state_of_another_name_or_with_wrong_types_is_garbled(store: Store, layout: Layout) -> None:
    store.save(a_record("other"))
    (layout.state / "agent.toml").write_bytes((layout.state / "other.toml").read_bytes())
    assert isinstance(store.load("agent"), Garbled)
    good = record_to_dict(a_record())
    for key in ("generation", "uid", "spec", "has_disk", "held", "vanished_at"):
        with pytest.raises(ValueError, match=key):
            record_from_dict({**good, key: ["x"]}, "agent")
    with pytest.raises(ValueError):
        record_from_dict({**good, "spec": {"name": "agent", "cpus": 99}}, "agent")


def test_saving_over_garbage_keeps_the_garbage_aside(store: Store, layout: Layout) -> None:
    path = layout.state / "agent.toml"
    path.write_bytes(b"\xff garbage")
    store.save(a_record())
    assert store.load("agent") == a_record()
    assert [p.read_bytes() for p in layout.state.glob("agent.toml.garbled-*")] == [b"\xff garbage"]


def test_a_folder_or_fifo_in_place_of_a_state_file_is_garbled(store: Store, layout: Layout) -> None:
    (layout.state / "agent.toml").mkdir()
    os.mkfifo(layout.state / "other.toml")
    assert isinstance(store.load("agent"), Garbled)
    assert isinstance(store.load("other"), Garbled)
    store.save(a_record())
    assert store.load("agent") == a_record()


def test_one_garbled_file_hides_no_other(store: Store, layout: Layout) -> None:
    for name in ("a", "b", "c"):
        store.save(a_record(name))
    (layout.state / "b.toml").write_bytes(b"\x00")
    (layout.state / "notes.txt").write_bytes(b"mine")
    (layout.state / "Not-A-Name.toml").write_bytes(b"mine")
    found = store.load_all()
    assert sorted(found) == ["a", "b", "c"]
    assert isinstance(found["b"], Garbled)
    assert found["c"] == a_record("c")


def test_removing_a_record_leaves_nothing_of_it(store: Store, layout: Layout) -> None:
    store.save(a_record())
    store.write_report("agent", a_report())
    store.append_event("agent", an_event())
    store.remove("agent")
    assert os.listdir(layout.state) == []
    assert os.listdir(layout.observed) == []
    store.remove("agent")
    assert store.save(a_record())


def test_a_name_that_is_a_path_touches_nothing(store: Store) -> None:
    for name in ("../x", "a/b", "", ".", "A"):
        with pytest.raises(BadName):
            store.load(name)
        with pytest.raises(BadName):
            store.write_report(name, a_report())


def test_the_watched_folder_is_remembered(store: Store, layout: Layout) -> None:
    assert store.load_folder() is None
    folder = FolderIdentity("/srv/boxes", 65024, 12)
    assert store.save_folder(folder)
    assert not store.save_folder(folder)
    assert Store(layout).load_folder() == folder
    assert store.names() == []
    (layout.state / ".folder.toml").write_bytes(b"?")
    assert isinstance(store.load_folder(), Garbled)
    assert store.save_folder(folder)
    assert store.load_folder() == folder


# -- reports --------------------------------------------------------------------------------------


def test_a_report_comes_back_whole(store: Store, layout: Layout) -> None:
    assert store.write_report("agent", a_report())
    assert Store(layout).read_report("agent") == a_report()
    tomllib.loads((layout.observed / "agent" / "observed.toml").read_text())


def test_an_unchanged_report_is_not_written_by_this_or_the_next_process(
    store: Store, layout: Layout
) -> None:
    store.write_report("agent", a_report())
    before = snapshot(layout.observed)
    assert not store.write_report("agent", a_report())
    assert not Store(layout).write_report("agent", a_report())
    assert snapshot(layout.observed) == before
    assert store.write_report("agent", a_report(message="changed"))


def test_whatever_happens_to_observed_is_mended_by_the_next_write(
    store: Store, layout: Layout, tmp_path: Path
) -> None:
    path = layout.observed / "agent" / "observed.toml"
    canary = tmp_path / "canary"
    canary.mkdir()

    def replace_by_folder() -> None:
        path.unlink()
        (path / "deep").mkdir(parents=True)

    def replace_by_link() -> None:
        shutil.rmtree(path.parent)
        path.parent.symlink_to(canary)

    def replace_by_file() -> None:
        shutil.rmtree(layout.observed)
        layout.observed.write_bytes(b"a file")

    def replace_by_fifo() -> None:
        path.unlink()
        os.mkfifo(path)

    for harm in (
        path.unlink,
        lambda: shutil.rmtree(path.parent),
        lambda: shutil.rmtree(layout.observed),
        lambda: path.write_bytes(b"\xff\x00 garbage"),
        lambda: path.write_bytes(b""),
        replace_by_folder,
        replace_by_fifo,
        replace_by_link,
        replace_by_file,
    ):
        store.write_report("agent", a_report())
        store.append_event("agent", an_event("before"))
        harm()
        store.read_report("agent")  # never raises
        store.append_event("agent", an_event("after"))
        assert store.write_report("agent", a_report())
        assert store.read_report("agent") == a_report()
        assert store.read_events("agent")[-1] == an_event("after")
    assert os.listdir(canary) == []


def test_an_unreadable_report_is_no_report(store: Store, layout: Layout) -> None:
    assert store.read_report("agent") is None
    store.write_report("agent", a_report())
    (layout.observed / "agent" / "observed.toml").write_bytes(b"name = 1")
    assert store.read_report("agent") is None


def test_500_unchanged_reports_cost_little_and_write_nothing(store: Store, layout: Layout) -> None:
    reports = {f"box-{i}": a_report(f"box-{i}") for i in range(500)}
    for name, report in reports.items():
        store.write_report(name, report)
    before = snapshot(layout.observed)
    times = []
    for _ in range(5):
        started = time.process_time()
        assert sum(store.write_report(name, report) for name, report in reports.items()) == 0
        times.append(time.process_time() - started)
    assert snapshot(layout.observed) == before
    print(f"{min(times) / 500 * 1e6:.0f} us each")
    # 2 ms a sandbox is the whole budget of a pass; the report may take a tenth of it.
    assert min(times) / 500 < 0.0002, times


# -- events ---------------------------------------------------------------------------------------


def test_events_come_back_in_order(store: Store, layout: Layout) -> None:
    for i in range(5):
        store.append_event("agent", an_event(f"event {i}\x1b[31m\n", i))
    assert [e.message for e in Store(layout).read_events("agent")] == [
        f"event {i}\x1b[31m\n" for i in range(5)
    ]
    raw = (layout.observed / "agent" / "events.jsonl").read_bytes()
    assert b"\x1b" not in raw and raw.count(b"\n") == 5


def test_the_event_file_is_bounded_in_lines_and_keeps_the_newest(
    store: Store, layout: Layout
) -> None:
    path = layout.observed / "agent" / "events.jsonl"
    for i in range(2600):
        store.append_event("agent", an_event(str(i), i))
        if i % 100 == 0:
            assert path.read_bytes().count(b"\n") <= 1000
    events = store.read_events("agent")
    assert 500 <= len(events) <= 1000
    assert [e.generation for e in events] == list(range(2600 - len(events), 2600))
    assert os.listdir(path.parent) == ["events.jsonl"]


def test_the_event_file_is_bounded_in_bytes(store: Store, layout: Layout) -> None:
    path = layout.observed / "agent" / "events.jsonl"
    for i in range(200):
        store.append_event("agent", an_event("\x00" * 100_000, i))
        assert path.stat().st_size <= 256 * 1024
    assert store.read_events("agent")[-1].generation == 199
    assert max(map(len, path.read_bytes().splitlines())) <= 4096


def test_torn_and_foreign_lines_hide_no_event(store: Store, layout: Layout) -> None:
    path = layout.observed / "agent" / "events.jsonl"
    store.append_event("agent", an_event("one"))
    with path.open("ab") as stream:
        stream.write(b'\xff\xfe\n[1]\n{"time":1}\n' + b"[" * 50_000 + b"\n" + b'{"time":"2026')
    for writer in (store, Store(layout)):
        writer.append_event("agent", an_event("two"))
    assert [e.message for e in store.read_events("agent")] == ["one", "two", "two"]


def test_a_huge_foreign_event_file_is_cut_down(store: Store, layout: Layout) -> None:
    path = layout.observed / "agent" / "events.jsonl"
    path.parent.mkdir()
    with path.open("wb") as stream:
        stream.truncate(4 * 1024 * 1024 * 1024)  # sparse
    assert store.read_events("agent") == []
    store.append_event("agent", an_event("one"))
    assert path.stat().st_size <= 256 * 1024
    assert [e.message for e in store.read_events("agent")] == ["one"]


def test_leftovers_of_a_killed_controller_are_removed(store: Store, layout: Layout) -> None:
    store.write_report("agent", a_report())
    places = [layout.home, layout.state, layout.observed, layout.observed / "agent"]
    for place in places:
        (place / f"{files.TEMPORARY_PREFIX}abc").write_bytes(b"half")
    assert store.remove_leftovers() == 4
    assert store.read_report("agent") == a_report()
