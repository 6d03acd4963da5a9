"""`box new`: the first file, and the examples."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from controller.cli import examples
from reconcilers.layout import Layout
from specs.parse import parse_boxfile
from tests.unit.cli.support import box, text

NAMES = ["ai-agent", "hello", "mounts-ro", "node-dev", "offline", "python-dev", "tiny-busybox"]


def test_new_writes_a_valid_boxfile_once(layout: Layout, tmp_path: Path) -> None:
    done = box(layout.home, "new", "agent")
    assert (done.returncode, "box apply -f agent.box.yaml" in text(done)) == (0, True)
    data = (tmp_path / "agent.box.yaml").read_bytes()
    parsed = parse_boxfile(data, file="agent.box.yaml", expected_name="agent")
    assert parsed.problems == ()
    data = data.replace(b"\naccel: tcg", b"\n# accel: tcg")  # as on a host with KVM
    uncommented = data.replace(b"# accel: tcg", b"accel: tcg")
    assert parse_boxfile(uncommented, file="agent.box.yaml", expected_name="agent").problems == ()
    assert box(layout.home, "new", "agent").returncode == 2
    assert box(layout.home, "new", "../x").returncode == 2


@pytest.mark.parametrize("usable", [True, False])
@pytest.mark.parametrize("example", ["", "offline"])
def test_new_writes_what_this_host_needs(
    layout: Layout, tmp_path: Path, usable: bool, example: str
) -> None:
    memory = {"key": "", "usable": usable, "why": "it was tried"}
    (layout.kernels / "kvm-probe.json").write_text(json.dumps(memory))
    if usable and not os.access("/dev/kvm", os.R_OK | os.W_OK):
        usable = False  # what was remembered is of another day
    box(layout.home, "new", "agent", *(["--from", example] if example else []))
    data = (tmp_path / "agent.box.yaml").read_bytes()
    parsed = parse_boxfile(data, file="agent.box.yaml", expected_name="agent")
    assert parsed.box is not None
    assert parsed.box.accel == ("auto" if usable else "tcg")
    assert (b"does not work on this host\n# (" in data) is not usable


def test_every_example_is_listed_and_can_be_begun_with(layout: Layout, tmp_path: Path) -> None:
    listed = box(layout.home, "new", "--list").stdout.decode().splitlines()
    assert [line.split()[0] for line in listed] == NAMES
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in listed), "each says what it is for"
    for name in NAMES:
        assert box(layout.home, "new", f"my-{name}", "--from", name).returncode == 0
        data = (tmp_path / f"my-{name}.box.yaml").read_bytes()
        parsed = parse_boxfile(data, file="given", expected_name=f"my-{name}")
        assert parsed.problems == ()
        original = (examples.FOLDER / f"{name}.box.yaml").read_text()
        lost = set(original.splitlines()) - set(data.decode().splitlines())
        assert lost == set(), "a copy keeps all that the example explains"


def test_an_example_is_given_the_new_name_where_it_says_one(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "FOLDER", tmp_path)
    (tmp_path / "one.box.yaml").write_text("name: one\n# name: of nothing\nram_mib: 256\n")
    (tmp_path / "two.box.toml").write_text('# About two.\n\nname = "two"\n[data]\nsize_mib = 64\n')
    for wanted, suffix in (("one", ".box.yaml"), ("two.box.toml", ".box.toml")):
        text, ending = examples.text_of(wanted, "mine", "# why\naccel: tcg")
        assert ending == suffix
        parsed = parse_boxfile(text.encode(), file=f"mine{ending}", expected_name="mine")
        assert parsed.problems == () and parsed.box is not None
        assert (parsed.box.name, parsed.box.accel) == ("mine", "tcg")


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("nothing", "one of: ai-agent, hello"),
        ("python", "did you mean python-dev?"),
        ("Ofline", "did you mean offline?"),
        ("../../etc/passwd", "one of: "),
    ],
)
def test_an_unknown_example_is_answered_with_those_there_are(
    layout: Layout, tmp_path: Path, wanted: str, meant: str
) -> None:
    done = box(layout.home, "new", "other", "--from", wanted)
    assert (done.returncode, meant in text(done), "box new --list" in text(done)) == (2, True, True)
    assert not list(tmp_path.glob("other.*"))


def test_new_without_a_name_says_what_is_missing(layout: Layout) -> None:
    done = box(layout.home, "new")
    assert (done.returncode, "box new NAME" in text(done)) == (2, True)
