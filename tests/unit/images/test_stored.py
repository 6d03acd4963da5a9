"""Who uses what is kept; no image is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers import launchrecord
from reconcilers.images.store import Images
from reconcilers.images.stored import stored
from reconcilers.layout import Layout
from tests.unit.reconcilers.test_files import RECORD

DIGESTS = ("1" * 64, "2" * 64)
SHA256 = "0" * 64


@pytest.mark.parametrize("used", DIGESTS, ids=["first", "second"])
def test_of_two_images_that_hold_the_same_that_of_a_vm_is_used(tmp_path: Path, used: str) -> None:
    """As a tag leaves them that moved to a manifest of the same layers."""
    layout = Layout(tmp_path, tmp_path / "run", "0" * 12)
    for digest in DIGESTS:
        folder = layout.images / digest
        folder.mkdir(parents=True)
        (folder / "sha256").write_text(SHA256)
        (folder / "root.squashfs").write_text("")
    path = layout.launch_record("ash")
    path.parent.mkdir(parents=True)
    launchrecord.write(path, replace(RECORD, image_sha256=SHA256, image_digest=used))
    found = {
        each.digest: each.used_by for each in stored(Images(layout.images), layout, {"ash": None})
    }
    assert found == {digest: ("ash",) if digest == used else () for digest in DIGESTS}
    # A record of an older version says only what is in its image: one that holds that is kept.
    launchrecord.write(path, replace(RECORD, image_sha256=SHA256, image_digest=""))
    users = [each.used_by for each in stored(Images(layout.images), layout, {"ash": None})]
    assert sorted(users) == [(), ("ash",)]
