"""An image is compared with what was built, all of it and before each boot."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers.facts import Image
from reconcilers.images import verify
from reconcilers.images.verify import hashes, open_verified
from specs.errors import HostError

SIZE = (3 << 20) + 17  # not a multiple of what is read at once


@pytest.fixture
def image(tmp_path: Path) -> Image:
    path = tmp_path / "root.squashfs"
    path.write_bytes(os.urandom(SIZE))
    sha256, blake3 = hashes(path)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    return Image("digest", sha256, path, blake3)


def test_the_fast_hash_is_the_one_it_is_said_to_be(tmp_path: Path) -> None:
    pytest.importorskip("blake3")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "abc").write_bytes(b"abc")
    # of the BLAKE3 team's own test vectors and documentation
    assert hashes(tmp_path / "empty")[1] == (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    )
    assert hashes(tmp_path / "abc")[1] == (
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    )


@pytest.mark.parametrize("at", [0, 1 << 20, SIZE - 1])
@pytest.mark.parametrize("older", [False, True], ids=["", "built by an older version"])
def test_one_changed_byte_is_seen_wherever_it_is(image: Image, at: int, older: bool) -> None:
    image = replace(image, blake3="") if older else image
    os.close(open_verified(image))
    data = bytearray(image.path.read_bytes())
    data[at] ^= 1
    image.path.write_bytes(data)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(HostError, match="is not the one that was built") as caught:
        open_verified(image)
    assert str(image.path.parent) in caught.value.fix
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_became_longer_or_shorter_is_seen(image: Image) -> None:
    for change in (SIZE + 1, SIZE - 1):
        os.truncate(image.path, change)
        with pytest.raises(HostError):
            open_verified(image)


def test_without_the_fast_hash_the_other_one_is_compared(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_blake3", lambda: None)
    os.close(open_verified(image))
    assert hashes(image.path) == (image.sha256, "")
    with pytest.raises(HostError, match="sha256"):
        open_verified(replace(image, sha256="0" * 64))
