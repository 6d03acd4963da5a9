"""The environment that an image brings: variables, and never anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconcilers.facts import Image
from reconcilers.images import about
from reconcilers.images.manifest import Settings


def environment(folder: Path, text: str) -> tuple[str, ...]:
    (folder / about.NAME).write_text(text)
    return about.environment_of(Image("d", "s", folder / "root.squashfs"))


def test_what_an_image_says_comes_back(tmp_path: Path) -> None:
    said = ("PATH=/opt/bin:/bin", "EMPTY=", "A=b=c", "é=no", "UMLAUT=ü")
    text = about.written("docker.io/library/x:1", "sha256:0", Settings(env=said), ["a note"])
    assert environment(tmp_path, text) == ("PATH=/opt/bin:/bin", "EMPTY=", "A=b=c", "UMLAUT=ü")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"image": 5}', '{"image": {"env": {}}}', "[" * 9999]
)
def test_what_makes_no_sense_is_no_environment(tmp_path: Path, text: str) -> None:
    assert environment(tmp_path, text) == ()


def test_an_image_without_the_file_has_none(tmp_path: Path) -> None:
    assert about.environment_of(Image("d", "s", tmp_path / "root.squashfs")) == ()


def test_what_is_no_variable_is_left_out_and_too_many_are_cut(tmp_path: Path) -> None:
    odd = ["NAMELESS", "=x", "A B=x", "A=\0", "A=\ud800", 5, "GOOD=1"]
    assert environment(tmp_path, json.dumps({"image": {"env": odd}})) == ("GOOD=1",)
    many = json.dumps({"image": {"env": [f"V{number}=x" for number in range(2000)]}})
    assert len(environment(tmp_path, many)) == about.VARIABLES_MAX
    large = json.dumps({"image": {"env": ["A=x", "B=" + "x" * about.BYTES_MAX]}})
    assert environment(tmp_path, large) == ("A=x",)


def test_what_is_too_long_takes_nothing_else_along(tmp_path: Path) -> None:
    """A configuration may have 4 MiB, in characters that JSON writes six bytes for."""
    env = ("A=x", "B=" + "\u0001" * (about.BYTES_MAX - 20), "C=" + "x" * (3 << 20))
    said = Settings(env=env, cmd=("\u0001" * (1 << 20),), entrypoint=("e",) * 500_000, user="u")
    text = about.written("docker.io/library/x:1", "sha256:0", said, ["a note"])
    assert len(text) < about.FILE_MAX
    assert environment(tmp_path, text) == env[:2]
    assert about.identity_of(tmp_path) == "sha256:0"
    image = Image("d", "s", tmp_path / "root.squashfs")
    again = about.on_top(image, 1, 0)
    assert environment(tmp_path, again) == env[:2]
    told = json.loads(text)
    assert told["image"]["user"] == "u" and "cmd" not in told["image"]
    assert told["notes"] == [
        "a note", "its entrypoint is too long to be kept", "its cmd is too long to be kept",
    ]  # fmt: skip
