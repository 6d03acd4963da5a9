"""Scans of a real folder: what declares a sandbox, what is junk, which links count."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from controller.sources.folder import (
    BOXFILE_MAX,
)
from tests.unit.controller.scanning import Opens, Scanner, record_opens, settle, text

# -- what declares a sandbox ----------------------------------------------------------------------


def test_every_documented_file_name_declares_its_sandbox(boxes: Path, look: Scanner) -> None:
    (boxes / "a.box.yaml").write_bytes(b"cpus: 1\n")
    (boxes / "b.yaml").write_bytes(b"cpus: 2\n")
    (boxes / "c.yml").write_bytes(b"cpus: 3\n")
    (boxes / "d.box.toml").write_bytes(b"cpus = 4\n")
    (boxes / "e").mkdir()
    (boxes / "e" / "Boxfile").write_bytes(b"cpus: 5\n")
    (boxes / "feeder.d").mkdir()
    (boxes / "feeder.d" / "f.yaml").write_bytes(b"cpus: 6\n")
    found = look()
    assert {name: file.path for name, file in found.files.items()} == {
        "a": "a.box.yaml",
        "b": "b.yaml",
        "c": "c.yml",
        "d": "d.box.toml",
        "e": "e/Boxfile",
        "f": "feeder.d/f.yaml",
    }
    assert found.files["e"].data == b"cpus: 5\n"
    assert found.files["e"].digest == hashlib.sha256(b"cpus: 5\n").hexdigest()
    assert not found.problems and not found.twins and not found.broken


def test_other_files_and_nested_folders_are_not_sources(boxes: Path, look: Scanner) -> None:
    for name in ("README.md", "Makefile", "pyproject.toml", "agent", "a.yaml.bak", "b.json"):
        (boxes / name).write_bytes(b"cpus: 1\n")
    (boxes / "feeder.d" / "sub").mkdir(parents=True)
    (boxes / "feeder.d" / "sub" / "Boxfile").write_bytes(b"cpus: 1\n")
    (boxes / ".hidden").mkdir()
    (boxes / ".hidden" / "Boxfile").write_bytes(b"cpus: 1\n")
    (boxes / "deep" / "er").mkdir(parents=True)
    (boxes / "deep" / "er" / "Boxfile").write_bytes(b"cpus: 1\n")
    found = look()
    assert not found.files and not found.problems


def test_a_file_whose_name_is_no_sandbox_name_is_reported(boxes: Path, look: Scanner) -> None:
    for name in ("Agent.yaml", "a_b.box.yaml", "x.y.yaml", "-.yml", "e\x1bvil.yaml"):
        (boxes / name).write_bytes(b"cpus: 1\n")
    (boxes / os.fsdecode(b"\xff.yaml")).write_bytes(b"cpus: 1\n")
    found = look()
    assert not found.files
    assert len(found.problems) == 6
    assert all(path.isprintable() and message for path, message in found.problems)


def test_a_name_inside_that_differs_is_left_to_the_parser(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(b"name: b\n")
    assert look().files["a"].data == b"name: b\n"


def test_a_file_of_a_mebibyte_is_refused_unread(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(b"#" * 1024 * 1024)
    (boxes / "b.yaml").write_bytes(b"#" * BOXFILE_MAX)
    found = look()
    assert set(found.files) == {"b"}
    assert "larger than 256 KiB" in found.broken["a"]
    assert "a" in found.present


def test_an_empty_file_is_present(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(b"")
    assert look().files["a"].data == b""


# -- W6: backups, hidden files, twins, special files -----------------------------------------------


def test_w6_junk_is_ignored_unopened_and_the_twin_is_named(
    boxes: Path, look: Scanner, opens: Opens
) -> None:
    (boxes / "pine.yaml").write_bytes(text(cpus=1))
    first = look()
    (boxes / ".pine.yaml.swp").write_bytes(b"b0VIM 9.0\0\xff")
    (boxes / "pine.yaml~").write_bytes(text(cpus=9))
    (boxes / "#pine.yaml#").write_bytes(text(cpus=9))
    (boxes / ".#pine.yaml").symlink_to("me@host.1234:5678")
    (boxes / "pine.yaml.bak").write_bytes(text(cpus=9))
    os.mkfifo(boxes / "x.yaml")
    (boxes / "y.yaml").mkdir()
    (boxes / "y.yaml" / "Boxfile").write_bytes(text(cpus=9))
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(boxes)  # a socket path is at most 107 bytes
    try:
        listener.bind("s.yaml")
    finally:
        os.chdir(here)
    opens.taken()
    found = look()
    assert set(found.files) == {"pine"} and not found.broken and not found.problems
    (boxes / "pine.yml").write_bytes(text(cpus=2))
    for _ in range(5):
        found = look()
        assert found.twins == {"pine": ("pine.yaml", "pine.yml")}
        assert found.files["pine"] == first.files["pine"]
    opened = opens.taken()
    assert "pine.yaml" in opened  # else the watch proves nothing
    assert not opened & {"x.yaml", "s.yaml", ".pine.yaml.swp", "pine.yaml~", "pine.yaml.bak"}
    listener.close()


def test_a_fifo_behind_a_link_or_put_in_place_of_a_file_is_never_opened(
    boxes: Path, look: Scanner, opens: Opens
) -> None:
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    look()
    (boxes / "a.yaml").unlink()
    os.mkfifo(boxes / "a.yaml")
    os.mkfifo(boxes / ".pipe")
    (boxes / "b.yaml").symlink_to(".pipe")
    (boxes / "c.yaml").symlink_to("/dev/zero")
    opens.taken()
    found = look()
    assert not found.files
    assert set(found.broken) == {"a", "b", "c"}
    assert not opens.taken()


def test_the_recorded_twin_wins_even_when_it_is_not_first(boxes: Path, look: Scanner) -> None:
    (boxes / "pine.yml").write_bytes(text(cpus=2))
    look()
    (boxes / "pine.box.yaml").write_bytes(text(cpus=1))
    found = look()
    assert found.files["pine"].path == "pine.yml"
    assert found.twins == {"pine": ("pine.yml", "pine.box.yaml")}
    (boxes / "pine.yml").unlink()
    found = look()
    assert found.files["pine"].path == "pine.box.yaml" and not found.twins


def test_an_unreadable_winner_does_not_hand_over_to_its_twin(boxes: Path, look: Scanner) -> None:
    (boxes / "pine.yaml").write_bytes(text(cpus=1))
    look()
    (boxes / "pine.yml").write_bytes(text(cpus=2))
    (boxes / "pine.yaml").unlink()
    (boxes / "pine.yaml").symlink_to("nowhere")
    found = look()
    assert "pine" not in found.files and "nothing" in found.broken["pine"]


# -- links ---------------------------------------------------------------------------------------


def test_links_that_leave_the_folder_are_reported_and_unread(
    boxes: Path, look: Scanner, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary.yaml").write_bytes(b"secret")
    (outside / "Boxfile").write_bytes(b"secret")
    (boxes / "a.yaml").symlink_to(outside / "canary.yaml")
    (boxes / "b.yaml").symlink_to("../outside/canary.yaml")
    (boxes / ".way").symlink_to("..")
    (boxes / "c.yaml").symlink_to(".way/outside/canary.yaml")
    (boxes / "d").symlink_to("../outside")
    (boxes / "e.d").symlink_to(outside)
    (boxes / "f.yaml").symlink_to("/proc/self/root/etc/passwd")
    with record_opens(outside) as opens:
        found = look()
        assert not opens.taken()
    assert not found.files
    assert {path for path, _ in found.problems} == {
        "a.yaml",
        "b.yaml",
        "c.yaml",
        "d",
        "e.d",
        "f.yaml",
    }
    assert all("OutsideFolder" in message for _, message in found.problems)


def test_links_beneath_the_folder_count_as_their_target(boxes: Path, look: Scanner) -> None:
    (boxes / ".store").mkdir()
    (boxes / ".store" / "real").write_bytes(text(cpus=1))
    (boxes / "team.d").mkdir()
    (boxes / "a.yaml").symlink_to(".store/real")
    (boxes / "b.yaml").symlink_to("a.yaml")
    (boxes / "team.d" / "c.yaml").symlink_to("../.store/real")
    (boxes / ".store" / "Boxfile").write_bytes(text(cpus=2))
    (boxes / "d").symlink_to(".store")
    found = look()
    assert {name: source.path for name, source in found.files.items()} == {
        "a": "a.yaml",
        "b": "b.yaml",
        "c": "team.d/c.yaml",
        "d": "d/Boxfile",
    }
    (boxes / ".store" / "real").write_bytes(text(cpus=3))
    assert {look().files[name].data for name in "abc"} == {text(cpus=3)}


def test_loops_and_dangling_links_are_broken_not_deleted(boxes: Path, look: Scanner) -> None:
    for name in "abc":
        (boxes / f"{name}.yaml").write_bytes(text(cpus=1))
    look()
    for name, target in (("a", "b.yaml"), ("b", "a.yaml"), ("c", "nowhere")):
        (boxes / f"{name}.yaml").unlink()
        (boxes / f"{name}.yaml").symlink_to(target)
    found = look()
    assert not found.files
    assert "circle" in found.broken["a"] and "nothing" in found.broken["c"]
    assert found.present == {"a", "b", "c"}
    assert len(found.problems) == 3


def test_a_folder_that_becomes_a_link_to_the_outside_is_not_followed(
    boxes: Path, look: Scanner, tmp_path: Path
) -> None:
    (boxes / "a").mkdir()
    (boxes / "a" / "Boxfile").write_bytes(text(cpus=1))
    look()
    settle(boxes, look.cache)
    (boxes / "a").rename(tmp_path / "a")
    (boxes / "a").symlink_to(tmp_path / "a")
    found = look()
    assert not found.files and "OutsideFolder" in found.broken["a"]
