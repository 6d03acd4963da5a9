"""Export and import as the agent does them, on a guest's real file system, without a jail."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.client import AgentClient
from agent.process import GuestError
from reconcilers.guestfiles import beneath
from reconcilers.guestfiles.cursor import Cursor
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.pack import pack
from reconcilers.guestfiles.unpack import unpack
from tests.conftest import EVIDENCE
from tests.vm import bare
from tests.vm.agent_vm import shell

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]
TRANSFER_MIB = 64
SECONDS = 120.0
NAME = b"d" * 200


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bare.BareVm]:
    folder = tmp_path_factory.mktemp("transfer")
    transfer = folder / "transfer"
    with transfer.open("wb") as file:
        file.truncate(TRANSFER_MIB << 20)
    made = bare.BareVm(
        folder / "vm",
        initrd=bare.initramfs(folder / "initrd"),
        root=bare.busybox_image(folder),
        data=bare.data_disk(folder / "data.img", 128),
        transfer=transfer,
    )
    EVIDENCE.watch(made.folder, "transfer")
    try:
        made.start(ram_mib=256, cpus=1)
        yield made
    finally:
        made.stop()
        EVIDENCE.forget(made.folder)


@pytest_asyncio.fixture
async def guest(machine: bare.BareVm) -> AsyncIterator[AgentClient]:
    client = await machine.connect(first=True)
    await shell(client, "rm -rf /data/* /data/.b*; mkdir /data/lost+found")
    yield client
    await client.close()


async def exported(machine: bare.BareVm, guest: AgentClient, target: Path) -> Notes:
    assert machine.transfer is not None
    await guest.export_data(SECONDS)
    os.mkdir(target)
    notes = Notes()
    root, archive = os.open(target, os.O_RDONLY), os.open(machine.transfer, os.O_RDONLY)
    try:
        unpack(root, archive, notes)
    finally:
        os.close(root)
        os.close(archive)
    return notes


async def imported(machine: bare.BareVm, guest: AgentClient, tree: Path) -> Notes:
    assert machine.transfer is not None
    notes = Notes()
    root, archive = os.open(tree, os.O_RDONLY), os.open(machine.transfer, os.O_RDWR)
    try:
        os.truncate(archive, 0)
        pack(root, archive, notes)
        os.truncate(archive, TRANSFER_MIB << 20)
    finally:
        os.close(root)
        os.close(archive)
    await guest.import_data(SECONDS)
    return notes


MAKE = r"""
set -e
cd /data
echo words > plain; chmod 640 plain; touch -d '2020-01-02 03:04:05' plain
mkdir -p d/e; echo x > d/first; ln d/first d/e/second; ln d/first third
ln -s /etc/passwd d/absolute; ln -s ../../.. d/up; ln -s nowhere dangling; ln -s loop loop
mkfifo d/fifo; mknod null c 1 5; mknod disk b 1 0
printf 'set\n' > su; chmod 6755 su; mkdir sticky; chmod 7777 sticky
mkdir closed; echo in > closed/in; chmod 0 closed
dd if=/dev/zero of=sparse bs=4096 count=1 seek=2621440 2>/dev/null; truncate -s 42949672960 sparse
seq 1 200000 > long; head -c 65536 long > exactly; head -c 65537 long > more; : > empty
printf n > "$(printf 'a\nb')"; printf n > "$(printf '\377\376')"
printf n > "$(printf '%255s' '' | tr ' ' n)"
echo r > Readme; echo R > README
"""


async def test_what_a_guest_made_arrives_and_nothing_else(
    machine: bare.BareVm, guest: AgentClient, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    how, said = await shell(guest, MAKE)
    assert how.value == 0, said
    target = tmp_path / "target"
    notes = await exported(machine, guest, target)
    _, sums = await shell(guest, "cd /data && sha256sum plain long exactly more")
    for line in sums.splitlines():
        digest, name = line.split()
        assert digest_of(target / name) == digest, name
    assert stat.S_IMODE((target / "plain").stat().st_mode) == 0o640
    assert int((target / "plain").stat().st_mtime) == 1577934245
    assert (target / "d/first").stat().st_ino == (target / "third").stat().st_ino
    assert (target / "d/first").stat().st_nlink == 3
    assert os.readlink(target / "d/absolute") == "/etc/passwd"
    assert os.readlink(target / "d/up") == "../../.."
    assert {os.readlink(target / name) for name in ("dangling", "loop")} == {"nowhere", "loop"}
    assert stat.S_IMODE((target / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "sticky").stat().st_mode) == 0o1777
    assert stat.S_IMODE((target / "closed").stat().st_mode) == 0
    assert (target / "sparse").stat().st_size == 40 << 30
    assert (target / "sparse").stat().st_blocks * 512 <= 1 << 20
    names = {os.fsencode(name) for name in os.listdir(target)}
    assert {b"a\nb", b"\xff\xfe", b"n" * 255, b"Readme", b"README", b"empty"} <= names
    assert names.isdisjoint({b"null", b"disk", b"lost+found"})
    assert not (target / "d/fifo").exists()
    told = dict(notes.paths)
    assert told["d/fifo"].startswith("a FIFO")
    assert told["null"].startswith("a character device")
    assert told["disk"].startswith("a block device")
    assert "set-user-ID" in told["su"]
    assert canary.read_text() == "untouched"


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_what_the_host_has_arrives(
    machine: bare.BareVm, guest: AgentClient, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "d/e").mkdir(parents=True)
    long = os.urandom(3_000_001)
    (tree / "long").write_bytes(long)
    (tree / "d/plain").write_text("words\n")
    os.utime(tree / "d/plain", (1_500_000_000, 1_500_000_000))
    os.link(tree / "d/plain", tree / "twin")
    (tree / "d/link").symlink_to("../plain")
    (tree / "d/e").chmod(0o750)
    with (tree / "big").open("wb") as file:
        file.truncate(40 << 30)
        file.seek(1 << 30)
        file.write(b"y" * 5000)
    (tree / "su").write_text("x")
    (tree / "su").chmod(0o4755)
    await shell(guest, "mkdir -p /data/d/e/kept; echo old > /data/long; echo mine > /data/own")
    told = await imported(machine, guest, tree)
    assert told.total == 1
    _, said = await shell(
        guest,
        "cd /data; cat d/plain own; readlink d/link; stat -c '%a %h %s' twin d/e big su;"
        " stat -c %Y d/plain; ls -a; ls d/e; du -k big | cut -f1; stat -c %u:%g d d/plain",
    )
    assert said.splitlines() == [
        "words", "mine", "../plain", "644 2 6", "750 3 1024", f"644 1 {40 << 30}", "755 1 1",
        "1500000000", ".", "..", "big", "d", "long", "lost+found", "own", "su", "twin", "kept", "8",
        "0:0", "0:0",
    ]  # fmt: skip
    target = tmp_path / "back"
    await exported(machine, guest, target)
    assert (target / "long").read_bytes() == long
    assert digest_of(target / "long") in (await shell(guest, "sha256sum /data/long"))[1]


@pytest.mark.parametrize("mine", ["mkdir /data/a", "mkdir /data/d; echo x > /data/d/b"])
async def test_what_is_in_the_way_refuses_all_of_it(
    machine: bare.BareVm, guest: AgentClient, tmp_path: Path, mine: str
) -> None:
    (tmp_path / "tree/d/b").mkdir(parents=True)
    (tmp_path / "tree/a").write_text("file")
    (tmp_path / "tree/other").write_text("file")
    await shell(guest, mine)
    with pytest.raises(GuestError, match="directory in /data"):
        await imported(machine, guest, tmp_path / "tree")
    _, said = await shell(guest, "ls -A /data; find /data -name other")
    assert said.split() in (["a", "lost+found"], ["d", "lost+found"])


async def test_a_full_disk_takes_nothing(
    machine: bare.BareVm, guest: AgentClient, tmp_path: Path
) -> None:
    await shell(guest, "dd if=/dev/zero of=/data/filler bs=1M count=100 2>/dev/null")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/first").write_text("x")
    (tmp_path / "tree/large").write_bytes(os.urandom(40 << 20))
    with pytest.raises(GuestError, match="No space left"):
        await imported(machine, guest, tmp_path / "tree")
    assert (await shell(guest, "ls -A /data"))[1].split() == ["filler", "lost+found"]


async def test_an_archive_that_is_none_changes_nothing(
    machine: bare.BareVm, guest: AgentClient
) -> None:
    assert machine.transfer is not None
    await shell(guest, "echo mine > /data/own")
    with machine.transfer.open("r+b") as file:
        file.write(os.urandom(8192))
    with pytest.raises(GuestError, match="malformed"):
        await guest.import_data(SECONDS)
    assert (await shell(guest, "ls -A /data"))[1].split() == ["lost+found", "own"]


async def test_more_than_the_disk_takes_is_refused(
    machine: bare.BareVm, guest: AgentClient
) -> None:
    await shell(guest, "head -c 80000000 /dev/urandom > /data/too-much")
    with pytest.raises(GuestError, match="No space left"):
        await guest.export_data(SECONDS)


async def test_a_tree_deeper_than_any_path_goes_in_and_comes_out(
    machine: bare.BareVm, guest: AgentClient, tmp_path: Path
) -> None:
    """Nothing in the guest can remove it, so this is the last test of its machine."""
    os.mkdir(tmp_path / "tree")
    root = os.open(tmp_path / "tree", os.O_RDONLY)
    at = Cursor(root)
    for _ in range(100):
        at.enter(NAME, beneath.make_folder(at.here, NAME))
    os.close(beneath.make_file(at.here, b"bottom"))
    at.close()
    await imported(machine, guest, tmp_path / "tree")
    notes = await exported(machine, guest, tmp_path / "back")
    assert (notes.folders, notes.files) == (100, 1)
    back = os.open(tmp_path / "back", os.O_RDONLY)
    bottom = beneath.walk(back, [NAME] * 100)
    assert beneath.names_in(bottom) == [b"bottom"]
    os.close(bottom)
    for each in (root, back):
        beneath.remove_tree(each, NAME)
        os.close(each)
