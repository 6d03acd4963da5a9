"""`box data import` and `box data export` of a real sandbox, as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement.identity import IdentityRegistry
from tests.vm.harness import TINY, Home, until
from tests.vm.people import person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(400)]
STOPPED = TINY + "state: stopped\n"
MAKE = r"""
set -e; cd /data
mkdir -p d/e; echo words > d/plain; chmod 600 d/plain; ln d/plain twin
ln -s /etc/shadow shadow; ln -s ../../../.. d/up; mkfifo fifo; mknod null c 1 5
echo x > su; chmod 4755 su; mkdir closed; echo in > closed/in; chmod 0 closed
dd if=/dev/zero of=sparse bs=4096 count=1 seek=1000000 2>/dev/null; truncate -s 42949672960 sparse
printf n > "$(printf 'a\nb')"; printf n > "$(printf '\377')"; seq 1 40000 > long; sync
"""


def stop(home: Home, name: str) -> None:
    home.put(name, STOPPED)
    until(lambda: not home.vmms(name), 60, f"{name} stops")
    until(lambda: home.condition(name, "Ready")[1] == "Stopped", 60, "its report says so")


def is_clean(home: Home) -> None:
    """No machine, group, claim or file of a transfer is left."""

    def left() -> list[str]:
        found = [str(path) for path in home.runtime.iterdir() if path.name.startswith(".t")]
        found += map(str, (home.path / "transfers").iterdir())
        for instance in home.helpers:
            found += [str(path) for top in home.cgroups_of(instance) for path in folders_in(top)]
        return found + [f"VMM {pid}" for pid in home.helper_vmms()] + claims_of_helpers(home)

    until(lambda: not left(), 60, f"nothing of a transfer is left: {left()}; {home.log()}")


def folders_in(top: Path) -> list[Path]:
    return [path for path in top.iterdir() if path.is_dir()]


def claims_of_helpers(home: Home) -> list[str]:
    """Identities that helper machines hold, as root's registry knows them."""
    registry = IdentityRegistry()
    return [f"claim {name}" for instance in home.helpers for name in registry.claimed(instance)]


@contextlib.contextmanager
def home_of(kind: str, root_home: Home) -> Iterator[tuple[Home, Path]]:
    """A home, and a folder that its user may write."""
    if kind == "root":
        folder = root_home.path.parent / "own"
        folder.mkdir()
        yield root_home, folder
        return
    with person() as someone, persons_home(someone) as home:
        home.start()
        yield home, someone.folder / "own"


@pytest.mark.parametrize("kind", ["root", "user"])
def test_data_goes_out_and_comes_in(kind: str, home: Home) -> None:
    with home_of(kind, home) as (used, folder):
        there_and_back(used, folder)


def there_and_back(home: Home, folder: Path) -> None:
    owner = folder.stat().st_uid
    canary = folder / "canary"
    canary.write_text("untouched")
    os.chown(canary, owner, owner)
    home.put("oak")
    home.ready("oak")
    home.run("oak", "sh", "-c", MAKE)
    target = folder / "out"
    running = home.box("data", "export", "oak", str(target), check=False)
    assert running.returncode == 1 and b"has its disk open" in running.stderr
    assert b"state: stopped" in running.stderr
    assert not target.exists()
    stop(home, "oak")

    done = home.box("data", "export", "oak", str(target))
    told = done.stderr.decode()
    assert "fifo: a FIFO, left out" in told and "null: a character device" in told
    assert "su: its set-user-ID" in told
    assert (target / "d/plain").read_text() == "words\n"
    assert (target / "twin").stat().st_ino == (target / "d/plain").stat().st_ino
    assert stat.S_IMODE((target / "d/plain").stat().st_mode) == 0o600
    assert os.readlink(target / "shadow") == "/etc/shadow"
    assert os.readlink(target / "d/up") == "../../../.."
    assert stat.S_IMODE((target / "closed").stat().st_mode) == 0
    assert (target / "closed/in").read_text() == "in\n"
    assert stat.S_IMODE((target / "su").stat().st_mode) == 0o755
    assert (target / "sparse").stat().st_size == 40 << 30
    assert (target / "sparse").stat().st_blocks * 512 <= 1 << 20
    names = {os.fsencode(name) for name in os.listdir(target)}
    assert names == {
        b"d", b"twin", b"shadow", b"su", b"closed", b"sparse", b"a\nb", b"\xff", b"long",
    }  # fmt: skip
    everything = [target, *target.rglob("*")]
    assert {path.lstat().st_uid for path in everything} == {owner}
    again = home.box("data", "export", "oak", str(target), check=False)
    assert again.returncode == 2 and b"is not empty" in again.stderr
    is_clean(home)

    (target / "closed").chmod(0o755)
    (target / "new").mkdir()
    (target / "new/file").write_text("from the host")
    (target / "long").write_text("changed")
    os.mkfifo(target / "pipe")
    for path in (target / "new", target / "new/file"):
        os.chown(path, owner, owner)
    done = home.box("data", "import", "oak", str(target))
    assert "pipe: a FIFO, left out" in done.stderr.decode()
    is_clean(home)
    home.put("oak")
    home.ready("oak")
    said = home.run("oak", "sh", "-c", "cd /data; cat new/file long; ls -A; readlink d/up")
    assert said.stdout.decode().startswith("from the hostchanged")
    assert b"pipe" not in said.stdout and b".box-import" not in said.stdout
    assert said.stdout.endswith(b"../../../..\n")
    assert canary.read_text() == "untouched"


def test_what_cannot_be_done_is_refused_with_the_reason(home: Home) -> None:
    folder = home.path.parent / "own"
    folder.mkdir()
    (folder / "file").write_text("x")
    unknown = home.box("data", "export", "ash", str(folder / "new"), check=False)
    assert b"there is no sandbox ash" in unknown.stderr
    home.put("ash", STOPPED)
    until(lambda: home.condition("ash", "Ready")[1] == "Stopped", 60, "known")
    empty = home.box("data", "export", "ash", str(folder / "new"), check=False)
    assert empty.returncode == 1 and b"no /data yet" in empty.stderr
    assert not (folder / "new").exists()
    for wrong in (folder, folder / "file", folder / "missing/deep"):
        refused = home.box("data", "export", "ash", str(wrong), check=False)
        assert refused.returncode == 2, refused
    assert home.box("data", "import", "ash", str(folder / "file"), check=False).returncode == 2
    (folder / "small").mkdir()
    (folder / "small/large").write_bytes(os.urandom(40 << 20))
    full = home.box("data", "import", "ash", str(folder / "small"), check=False)
    assert full.returncode == 1 and b"No space left" in full.stderr
    is_clean(home)
    # A sandbox that was never started gets its disk from what is imported.
    (folder / "small/large").unlink()
    home.box("data", "import", "ash", str(folder))
    home.box("data", "export", "ash", str(folder / "back"))
    assert (folder / "back/file").read_text() == "x"
    assert sorted(os.listdir(folder / "back")) == ["file", "small"]
    is_clean(home)
