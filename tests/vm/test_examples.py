"""Each example that needs no network does what its comments say."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.cases import case_home
from tests.vm.newcomer import Newcomer
from tests.vm.people import person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]


def at_home_in(folder: Path) -> list[str]:
    """The start of a command line for which root's home is `folder`, so that ~ is of the test."""
    accounts = Path("/etc/passwd").read_text().splitlines()
    lines = [f"root:x:0:0:root:{folder}:/bin/sh"]
    lines += [line for line in accounts if not line.startswith("root:")]
    (folder / "passwd").write_text("\n".join(lines) + "\n")
    mount = f"mount --bind {folder}/passwd /etc/passwd"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with (
        tempfile.TemporaryDirectory(prefix="boxtest-") as tmp,
        case_home(prefix=at_home_in(Path(tmp))) as home,
    ):
        yield Newcomer(Path(tmp), home)


def test_tiny_busybox(newcomer: Newcomer) -> None:
    newcomer.begin("tiny-busybox", "tiny")
    kernel, memory, disk = newcomer.shell(
        "tiny", "uname -r; free -m | grep Mem; df -m /data | tail -n 1"
    ).splitlines()
    assert kernel.endswith("cloud-amd64")
    assert 60 < int(memory.split()[1]) <= 128
    assert 8 < int(disk.split()[1]) <= 16
    newcomer.end("tiny")


def test_offline(newcomer: Newcomer) -> None:
    newcomer.begin("offline", "offline")
    assert newcomer.says("offline", "ls", "/sys/class/net") == "lo\n"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("suspect"), io.BytesIO())
    into = ("exec", "offline", "-i", "--", "sh", "-c", "cat >/tmp/it.tar")
    newcomer.home.box(*into, data=packed.getvalue())
    assert newcomer.says("offline", "tar", "tf", "/tmp/it.tar") == "suspect\n"
    refused = newcomer.home.run("offline", "touch", "/etc/canary", check=False)
    assert (refused.returncode, b"Read-only file system" in refused.stderr) == (1, True)
    full = newcomer.home.run("offline", "dd", "if=/dev/zero", "of=/data/much", check=False)
    assert (full.returncode, b"No space left" in full.stderr) == (1, True)
    newcomer.end("offline")


def test_mounts_ro(newcomer: Newcomer) -> None:
    notes = newcomer.folder / "project/notes"
    notes.parent.mkdir()
    notes.write_text("of the host\n")
    newcomer.begin("mounts-ro", "mounts")
    assert newcomer.says("mounts", "cat", "/src/notes") == "of the host\n"
    notes.write_text("changed\n")
    assert newcomer.says("mounts", "cat", "/src/notes") == "changed\n", "it is seen live"
    newcomer.home.run("mounts", "mount", "-o", "remount,rw", "/src", check=False)
    for line in ("echo x >/src/notes", "rm /src/notes", "mkdir /src/new", "chmod 777 /src/notes"):
        refused = newcomer.home.run("mounts", "sh", "-c", line, check=False)
        assert refused.returncode != 0 and b"Read-only file system" in refused.stderr, line
    newcomer.shell("mounts", "cp -r /src /data/copy && echo guest >/data/copy/notes")
    kept = newcomer.home.run("mounts", "tar", "c", "-C", "/data", "copy").stdout
    with tarfile.open(fileobj=io.BytesIO(kept)) as archive:
        changed = archive.extractfile("copy/notes")
        assert changed is not None and changed.read() == b"guest\n"
    assert notes.read_text() == "changed\n"
    newcomer.end("mounts")


def test_mounts_ro_of_an_ordinary_user() -> None:
    """Who shows a strict sandbox what others may read, as the example says."""
    with person() as someone, persons_home(someone) as home:
        own = someone.folder / "own"
        project = own / "project"
        project.mkdir()
        (project / "notes").write_text("of the user\n")
        for path, mode in ((own, 0o711), (project, 0o755), (project / "notes", 0o644)):
            path.chmod(mode)
            os.chown(path, someone.uid, someone.gid)
        home.start()
        newcomer = Newcomer(own, home)
        newcomer.begin("mounts-ro", "mounts")
        assert newcomer.says("mounts", "cat", "/src/notes") == "of the user\n"
        assert "Read-only" in newcomer.refused("mounts", "rm", "/src/notes")
        newcomer.end("mounts")
