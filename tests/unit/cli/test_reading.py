"""get, describe, drift and wait: from files, with and without each of them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from controller.cli.fixes import fix_for
from controller.socketfile import bind
from controller.store import Record, Store
from reconcilers import disk
from reconcilers.layout import Layout
from specs.boxfile import Boxfile, Data, OnDelete
from specs.drift import Drift, Event
from specs.report import Failure
from tests.unit.cli.settled import SINCE, condition, settle
from tests.unit.cli.support import ARGV, box, environment, text
from tests.unit.specs.helpers import accepted

ESCAPE = "\x1b[2J\x1b]0;owned\x07"


def test_get_without_a_home_says_what_to_do_next_and_creates_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = box(home, "get")
    assert done.returncode == 0
    assert "box new" in text(done)
    assert not home.exists()


def test_get_without_sandboxes_says_what_to_do_next(layout: Layout) -> None:
    assert "box apply -f" in text(box(layout.home, "get"))
    assert json.loads(box(layout.home, "get", "-o", "json").stdout) == {"sandboxes": []}


def test_get_lists_what_runs_and_says_that_the_controller_is_down(layout: Layout) -> None:
    settle(layout)
    done = box(layout.home, "get")
    head, row = done.stdout.decode().splitlines()
    assert head.split() == ["NAME", "READY", "BACKEND", "ISOLATION", "AGE", "DRIFT", "REASON"]
    assert row.split()[:4] == ["fern", "True", "qemu/tcg", "strict"]
    assert b"the controller is not running" in done.stderr
    assert b"4242" in box(layout.home, "get", "-o", "wide").stdout


def test_get_shows_a_boxfile_that_no_controller_has_seen(layout: Layout) -> None:
    (layout.boxes / "new.yaml").write_text("name: new\n")
    row = box(layout.home, "get").stdout.decode().splitlines()[1].split()
    assert (row[0], row[1], row[-1]) == ("new", "Unknown", "NotObserved")


def test_get_shows_a_deleted_sandbox_until_it_is_gone(layout: Layout) -> None:
    settle(layout)
    (layout.boxes / "fern.box.yaml").unlink()
    assert b"(missing)" in box(layout.home, "get", "-o", "wide").stdout


def test_get_prints_the_same_data_in_every_form(layout: Layout) -> None:
    settle(layout)
    as_json = json.loads(box(layout.home, "get", "fern", "-o", "json").stdout)
    assert as_json["spec"] == {"name": "fern", "cpus": 1}
    assert as_json["conditions"][2]["reason"] == "GuestReady"
    as_yaml = YAML(typ="safe", pure=True).load(box(layout.home, "get", "fern", "-o", "yaml").stdout)
    assert as_yaml == as_json
    as_toml = tomllib.loads(box(layout.home, "get", "fern", "-o", "toml").stdout.decode())
    assert as_toml["spec"] == as_json["spec"]
    assert box(layout.home, "get", "-o", "name").stdout == b"fern\n"


@pytest.mark.parametrize("verb", ["get", "describe", "events", "logs", "drift"])
def test_an_unknown_sandbox_is_an_error_and_a_bad_name_a_mistake(layout: Layout, verb: str) -> None:
    done = box(layout.home, verb, "nobody")
    assert (done.returncode, "no sandbox" in text(done)) == (1, True)
    assert box(layout.home, verb, "../x").returncode == 2
    assert text(box(layout.home, verb, "../x"))


def test_describe_shows_everything(layout: Layout) -> None:
    failure = Failure(step="start VMM", message="it broke", fix="mend it", replay="qemu -S")
    settle(layout, failure=failure)
    shown = text(box(layout.home, "describe", "fern"))
    for words in (
        "cpus: 1", "SoftwareEmulation", "the CPU is emulated", "4242", "6.1.0", "/proc/4242/status",
        "max instead of 64", "memory limit", "set again", "Started", "it broke", "mend it",
        "qemu -S",
    ):  # fmt: skip
        assert words in shown, words


def test_describe_shows_mounts_as_a_boxfile_has_them(layout: Layout) -> None:
    settle(layout)
    spec = accepted("mounts:\n- {host: ~/src, guest: /src}\n- {host: /srv, guest: /x, mode: rw}\n")
    Store(layout).save(Record(name="fern", generation=2, spec=spec, source="fern.box.yaml"))
    shown = text(box(layout.home, "describe", "fern"))
    assert "  mounts:\n    - {host: ~/src, guest: /src}\n    - {host: /srv, guest: /x" in shown


def test_describe_shows_a_recipe_with_a_line_for_each_command(layout: Layout) -> None:
    settle(layout)
    blueprint = {"write_files": [{"path": "/x", "content": "a\n"}], "runcmd": ["a", ["c", "d e"]]}
    fields = {"name": "fern", "packages": ["git", "zsh"], "run": ["x, y"], "blueprint": blueprint}
    spec = Boxfile.model_validate(fields)
    Store(layout).save(Record(name="fern", generation=2, spec=spec, source="fern.box.yaml"))
    shown = text(box(layout.home, "describe", "fern"))
    assert "  packages: git, zsh\n  run:\n    - x, y\n  blueprint:\n    write_files:\n" in shown
    assert "      - {path: /x, content: a\\x0a}\n    runcmd:\n      - a\n      - c 'd e'\n" in shown


def test_files_that_are_missing_or_garbage_hide_nothing_else(layout: Layout) -> None:
    settle(layout)
    (layout.observed / "fern" / "observed.toml").write_bytes(b"\xff\x00garbage")
    (layout.observed / "fern" / "events.jsonl").write_bytes(b"{torn")
    assert "Nothing has been observed" in text(box(layout.home, "describe", "fern"))
    (layout.state / "fern.toml").write_text("name = [")
    assert "unreadable" in text(box(layout.home, "describe", "fern"))
    assert b"fern" in box(layout.home, "get").stdout


def test_no_terminal_escape_gets_through(layout: Layout) -> None:
    settle(
        layout,
        vmm={"pid": ESCAPE},
        guest={ESCAPE: ESCAPE},
        backend=ESCAPE,
        confinement=({"layer": ESCAPE, "item": ESCAPE, "got": ESCAPE, "source": ESCAPE},),
        drift=(Drift(ESCAPE, ESCAPE, ESCAPE, SINCE, ESCAPE, ""),),
        failure=Failure(step=ESCAPE, message=ESCAPE, fix=ESCAPE, replay=ESCAPE),
        conditions=(condition("Ready", "False", "BackingOff", ESCAPE),),
    )
    Store(layout).append_event("fern", Event(SINCE, ESCAPE, ESCAPE, 1))
    layout.sandbox_runtime("fern").mkdir()
    layout.console_log("fern").write_bytes(b"boot\r\n" + ESCAPE.encode() + b"\xff\n")
    for verb in (
        ("get",), ("get", "-o", "wide"), ("describe", "fern"), ("drift",), ("events", "fern"),
        ("logs", "fern"), ("get", "-o", "json"), ("get", "-o", "yaml"), ("get", "-o", "toml"),
    ):  # fmt: skip
        done = box(layout.home, *verb)
        assert done.returncode == 0, text(done)
        assert b"\x1b" not in done.stdout + done.stderr, verb
        assert b"\x07" not in done.stdout + done.stderr, verb


def test_drift_lists_open_and_corrected(layout: Layout) -> None:
    settle(layout)
    assert b"memory limit" in box(layout.home, "drift").stdout
    rows = json.loads(box(layout.home, "drift", "fern", "-o", "json").stdout)["drift"]
    assert (rows[0]["name"], rows[0]["desired"]) == ("fern", "640 MiB")


def test_what_was_not_compared_is_not_said_to_agree(layout: Layout, tmp_path: Path) -> None:
    assert "host is as" not in text(box(tmp_path / "no-home", "drift"))
    assert "host is as" not in text(box(layout.home, "drift"))
    settle(layout, drift=(), conditions=(condition("Drifted", "False", "NoDrift"),))
    assert "host is as" in text(box(layout.home, "drift"))
    assert cells(layout)["DRIFT"] == "-"
    refused = condition("Valid", "False", "RefusedByPolicy", "max_cpus")
    settle(layout, drift=(), conditions=(condition("Drifted", "False", "NoDrift"), refused))
    assert "not compared with their Boxfiles: fern" in text(box(layout.home, "drift"))
    assert cells(layout)["DRIFT"] == "?"


def cells(layout: Layout) -> dict[str, str]:
    """The one row of `box get -o wide`, by its headings."""
    head, row = box(layout.home, "get", "-o", "wide").stdout.decode().splitlines()
    return dict(zip(head.split(), row.split(), strict=False))


def test_get_shows_a_boxfile_that_cannot_be_read_and_why(layout: Layout) -> None:
    settle(layout)
    (layout.boxes / "fern.box.yaml").write_bytes(b"#" * 300_000)
    done = box(layout.home, "get", "-o", "wide")
    assert cells(layout)["FILE"] == "fern.box.yaml"
    assert b"larger than 256 KiB" in done.stdout


def test_get_tells_of_files_that_look_like_boxfiles(layout: Layout) -> None:
    settle(layout)
    (layout.boxes / "Upper.box.yaml").write_text("cpus: 1\n")
    (layout.boxes / "moss.box.json").write_text("{}\n")
    notes = box(layout.home, "get").stderr.decode()
    assert "boxes/Upper.box.yaml: " in notes
    assert "boxes/moss.box.json: not read; a Boxfile is called moss.box.yaml" in notes
    assert "Upper" not in text(box(layout.home, "get", "fern"))


def test_get_takes_several_names(layout: Layout) -> None:
    for name in ("fern", "moss", "pine"):
        settle(layout, name)
    assert box(layout.home, "get", "pine", "fern", "-o", "name").stdout == b"pine\nfern\n"
    found = json.loads(box(layout.home, "get", "pine", "fern", "-o", "json").stdout)
    assert [one["name"] for one in found["sandboxes"]] == ["pine", "fern"]
    done = box(layout.home, "delete", "pine", "fern")
    assert done.stdout == b"pine deleted\nfern deleted\n"


def test_describe_gives_its_facts_as_data_too(layout: Layout) -> None:
    settle(layout)
    digest = hashlib.sha256((layout.boxes / "fern.box.yaml").read_bytes()).hexdigest()
    as_json = json.loads(box(layout.home, "describe", "fern", "-o", "json").stdout)
    assert as_json["digest"] == digest
    assert as_json["spec"] == {"name": "fern", "cpus": 1}
    assert as_json["confinement"][1]["got"] == "max"
    assert as_json["conditions"][0]["type"] == "Valid"
    assert [one["kind"] for one in as_json["events"]] == ["Started"]
    assert json.loads(box(layout.home, "get", "fern", "-o", "json").stdout)["digest"] == digest
    shown = box(layout.home, "describe", "fern", "-o", "toml").stdout.decode()
    assert tomllib.loads(shown)["digest"] == digest


def test_describe_shows_each_mistake_on_a_line_with_what_to_do(layout: Layout) -> None:
    mistakes = condition("Valid", "False", "InvalidBoxfile", "fern.yaml:1: one\nfern.yaml:2: two")
    refused = condition("Confined", "False", "LayerFailed", "seccomp: no")
    settle(layout, conditions=(mistakes, refused), vmm={"argv": ["qemu", "-m", "512", "-S", "a b"]})
    shown = text(box(layout.home, "describe", "fern"))
    lines = [line.strip() for line in shown.splitlines()]
    assert "fern.yaml:2: two" in lines
    assert "\\x0a" not in shown
    assert "fix: box doctor, and box describe fern for every reading" in lines
    at = lines.index("qemu \\")
    assert lines[at : at + 3] == ["qemu \\", "-m 512 \\", "-S 'a b'"]
    assert "by default: base: builtin:busybox, ram_mib: 512" in shown
    assert lines.index("Events (box events shows all)") < shown.splitlines().index(
        "Confinement, as read off the VMM"
    )


def test_a_condition_that_speaks_of_the_last_failure_shows_its_fix(layout: Layout) -> None:
    refused = condition("Confined", "False", "LayerFailed", "identity: no range")
    failure = Failure(step="claim", message="no range", fix="sudo usermod --add-subuids")
    settle(layout, conditions=(refused,), failure=failure)
    table = text(box(layout.home, "describe", "fern")).partition("Last failure")[0]
    assert "fix: sudo usermod --add-subuids" in table
    settle(layout, conditions=(refused,), failure=failure.model_copy(update={"message": "other"}))
    table = text(box(layout.home, "describe", "fern")).partition("Last failure")[0]
    assert "usermod" not in table


def wait(layout: Layout, *arguments: str, timeout: str = "500ms") -> tuple[int, str]:
    """As if a controller were running, which does nothing."""
    listener = bind(layout.socket)
    try:
        done = box(layout.home, "wait", *arguments, "--timeout", timeout)
    finally:
        listener.close()
    return done.returncode, text(done)


def test_wait_returns_when_the_condition_holds(layout: Layout) -> None:
    settle(layout)
    assert wait(layout, "fern", "--for", "Ready")[0] == 0
    assert wait(layout, "fern", "--for", "condition=ready")[0] == 0
    assert wait(layout, "fern", "--for", "HardwareIsolated=False")[0] == 0


def test_wait_gives_up_with_what_is_in_the_way(layout: Layout) -> None:
    settle(layout)
    status, shown = wait(layout, "fern", "--for", "HardwareIsolated")
    assert status == 1
    assert "SoftwareEmulation" in shown


def test_wait_does_not_believe_a_condition_of_an_older_boxfile(layout: Layout) -> None:
    settle(layout)
    (layout.boxes / "fern.box.yaml").write_text("name: fern\ncpus: 2\n")
    status, shown = wait(layout, "fern", "--for", "Ready")
    assert status == 1
    assert "not taken the Boxfile up" in shown


def test_wait_ends_at_once_when_nobody_works_on_it(layout: Layout) -> None:
    settle(layout)
    begun = time.monotonic()
    for wanted in ("HardwareIsolated", "Ready"):  # one that was not met, and one that once was
        done = box(layout.home, "wait", "fern", "--for", wanted, "--timeout", "60s")
        assert (done.returncode, "box controller" in text(done)) == (1, True)
    assert time.monotonic() - begun < 60


def test_wait_for_deletion(layout: Layout) -> None:
    settle(layout)
    assert wait(layout, "fern", "--for", "deleted")[0] == 1
    (layout.boxes / "fern.box.yaml").unlink()
    listener = bind(layout.socket)
    argv = [*ARGV, "wait", "fern", "--for", "deleted", "--timeout", "60s"]
    child = subprocess.Popen(argv, env=environment(layout.home))
    time.sleep(1)
    assert child.poll() is None
    Store(layout).remove("fern")
    assert child.wait(70) == 0
    listener.close()


def test_waiting_for_data_to_be_erased_says_so(layout: Layout) -> None:
    settle(layout)
    (layout.boxes / "fern.box.yaml").unlink()
    spec = Boxfile(name="fern", data=Data(on_delete=OnDelete.erase))
    Store(layout).save(Record(name="fern", spec=spec))
    disk.create(layout.disks("fern"), 16)
    status, shown = wait(layout, "fern", "--for", "deleted", timeout="6s")
    assert status == 1
    assert "box: fern: waiting: its /data is erased 60 s after its Boxfile went\n" in shown


def test_get_gives_a_disk_that_is_not_as_declared_as_the_reason(layout: Layout) -> None:
    refused = condition("DataReady", "False", "DiskShrinkRefused", "it has more")
    settle(layout, conditions=(condition("Ready", "True", "GuestReady"), refused))
    assert cells(layout)["REASON"] == "DiskShrinkRefused"


@pytest.mark.parametrize("condition", ["Redy", "Ready=Maybe", ""])
def test_wait_for_what_does_not_exist_is_a_mistake(layout: Layout, condition: str) -> None:
    settle(layout)
    assert wait(layout, "fern", "--for", condition)[0] == 2


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("mounts[0].host /srv: it does not exist", "share another directory"),
        ("mounts[0].host /srv: its file system is mounted read-only: use mode: ro", ""),
    ],
)
def test_a_refused_mount_has_one_fix_and_not_another_beside_it(
    layout: Layout, message: str, says: str
) -> None:
    fix = fix_for(layout, "fern", condition("Ready", "False", "MountRefused", message))
    assert fix.startswith(says) and bool(fix) == bool(says)
