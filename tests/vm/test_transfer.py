"""`box data import` and `box data export` of a real sandbox, as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement.identity import IdentityRegistry
from tests import hostile
from tests.vm.harness import BOX, ROOT, TINY, Home, folders_in, until
from tests.vm.people import person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(400)]
STOPPED = TINY + "state: stopped\n"
MAKE = r"""
set -e; cd /data
mkdir -p d/e; echo words > d/plain; chmod 600 d/plain; ln d/plain twin
ln -s /etc/shadow shadow; ln -s ../../../.. d/up; mkfifo fifo; mknod null c 1 5
echo x > su; chmod 4755 su; mkdir closed; echo in > closed/in; chmod 0 closed
seq 1 40000 > long; sync
"""


def stop(home: Home, name: str) -> None:
    home.put(name, STOPPED)
    until(lambda: not home.vmms(name), 60, f"{name} stops")
    until(lambda: not (home.runtime / name).exists(), 60, f"nothing of the VM of {name} is left")
    until(lambda: home.condition(name, "Ready")[1] == "Stopped", 60, "its report says so")


def is_clean(home: Home) -> None:
    """No machine, group, claim or file of a transfer is left."""

    def left() -> list[str]:
        found = [str(path) for path in home.runtime.iterdir() if path.name.startswith(".t")]
        found += map(str, (home.path / "transfers").glob("*"))
        for instance in home.helpers:
            found += [str(path) for top in home.cgroups_of(instance) for path in folders_in(top)]
        return found + [f"VMM {pid}" for pid in home.helper_vmms()] + claims_of_helpers(home)

    until(lambda: not left(), 60, lambda: f"nothing of a transfer is left: {left()}; {home.log()}")


def claims_of_helpers(home: Home) -> list[str]:
    """Identities that helper machines hold, as root's registry knows them."""
    registry = IdentityRegistry()
    return [f"claim {name}" for instance in home.helpers for name in registry.claimed(instance)]


@contextlib.contextmanager
def home_of(kind: str, root_home: Home) -> Iterator[tuple[Home, Path, tuple[str, ...]]]:
    """A home, a folder that its user may write, and what makes a command run as that user."""
    if kind == "root":
        folder = root_home.path.parent / "own"
        folder.mkdir()
        yield root_home, folder, ()
        return
    with person() as someone, persons_home(someone) as home:
        home.start()
        yield home, someone.folder / "own", tuple(someone.become())


@pytest.mark.parametrize("kind", ["root", "user"])
def test_data_goes_out_and_comes_in(kind: str, home: Home) -> None:
    """Cases A3 and A6, with a hostile tree that a guest and a host really made."""
    with home_of(kind, home) as (used, folder, become), hostile.guarded(folder / "canary") as path:
        there_and_back(used, folder, path, become)


def there_and_back(home: Home, folder: Path, canary: Path, become: tuple[str, ...]) -> None:
    owner = folder.stat().st_uid
    home.put("oak")
    home.ready("oak")
    home.run("oak", "sh", "-c", MAKE)
    home.box(
        "exec", "oak", "-i", "--", "sh", "-ec",
        f"cat > /tmp/make; chmod +x /tmp/make; mkdir /data/left; cd /data/left; /tmp/make {canary}",
        data=hostile.program(folder / "make").read_bytes(),
    )  # fmt: skip
    target = folder / "out"
    running = home.box("data", "export", "oak", str(target), check=False)
    assert running.returncode == 1 and b"has its disk open" in running.stderr
    assert b"state: stopped" in running.stderr
    assert not target.exists()
    stop(home, "oak")

    done = home.box("data", "export", "oak", str(target))
    told = remarks(done)
    assert told["fifo"].startswith("a FIFO, left out")
    assert told["null"].startswith("a character device")
    assert "its set-user-ID" in told["su"]
    assert (target / "d/plain").read_text() == "words\n"
    assert (target / "twin").stat().st_ino == (target / "d/plain").stat().st_ino
    assert stat.S_IMODE((target / "d/plain").stat().st_mode) == 0o600
    assert os.readlink(target / "shadow") == "/etc/shadow"
    assert stat.S_IMODE((target / "closed").stat().st_mode) == 0
    assert (target / "closed/in").read_text() == "in\n"
    names = {os.fsencode(name) for name in os.listdir(target)}
    assert names == {b"d", b"twin", b"shadow", b"su", b"closed", b"long", b"left"}
    assert {path.lstat().st_uid for path in (target, *target.iterdir())} == {owner}
    hostile.check(target / "left", canary, owner)
    hostile.check_told(below(told, "left/"), devices=True)
    again = home.box("data", "export", "oak", str(target), check=False)
    assert again.returncode == 2 and b"is not empty" in again.stderr
    is_clean(home)

    for path in (target / "closed", target / "left/closed"):
        path.chmod(0o755)
    for name in ("new", "made"):
        (target / name).mkdir()
    (target / "new/file").write_text("from the host")
    (target / "long").write_text("changed")
    for path in (target / "new", target / "new/file", target / "made"):
        os.chown(path, owner, owner)
    hostile.make(target / "made", canary, become=become)
    told = remarks(home.box("data", "import", "oak", str(target)))
    hostile.check_told(below(told, "made/"), devices=not become)
    is_clean(home)
    home.put("oak")
    home.ready("oak")
    said = home.run("oak", "sh", "-c", "cd /data; cat new/file long; ls -A; readlink d/up")
    assert said.stdout.decode().startswith("from the hostchanged")
    assert b".box-import" not in said.stdout
    assert said.stdout.endswith(b"../../../..\n")
    said = home.run("oak", "sh", "-c", "cd /data/made; stat -c %a:%u:%n setuid plain; ls")
    first, second, *listed = said.stdout.splitlines()
    assert (first, second) == (b"755:0:setuid", b"640:0:plain")
    assert not {b"fifo", b"socket", b"character", b"block"} & set(listed)
    for path in (target, target.with_name("make")):
        hostile.remove(path)


def remarks(done: subprocess.CompletedProcess[bytes]) -> dict[str, str]:
    """What `box data` told of each path."""
    told: dict[str, str] = {}
    for line in done.stderr.decode().splitlines():
        path, _, what = line.removeprefix("box: ").partition(": ")
        told[path] = f"{told[path]}; {what}" if path in told else what
    return told


def below(told: dict[str, str], folder: str) -> dict[str, str]:
    return {path.removeprefix(folder): told[path] for path in told if path.startswith(folder)}


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


def test_a_host_whose_disk_is_full_loses_nothing(small_home: Home) -> None:
    """Case L5 (disk), of transfers: at each place where the room may end."""
    home = small_home
    folder = home.path.parent / "own"
    for name, size in (("first", 2 << 20), ("second", 1 << 20), ("large", 30 << 20)):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(os.urandom(size))
    home.put("oak", STOPPED)
    until(lambda: home.condition("oak", "Ready")[1] == "Stopped", 60, "known")
    home.box("data", "import", "oak", str(folder / "first"))

    def fails(*arguments: str, leaving: int) -> bytes:
        """With so many bytes of the home's file system left."""
        facts = os.statvfs(home.path)
        with open(home.path / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize - leaving)
        done = home.box("data", *arguments, check=False)
        assert done.returncode == 1, done
        is_clean(home)
        (home.path / "ballast").unlink()
        return done.stderr

    # the archive has no room; the guest's disk has none; what the guest writes has none
    assert b"No space left" in fails("import", "oak", str(folder / "large"), leaving=4 << 20)
    said = fails("import", "oak", str(folder / "second"), leaving=(1 << 20) + (96 << 10))
    assert b"the host's disk is full" in said and b"fix: df -h" in said
    said = fails("export", "oak", str(folder / "out"), leaving=256 << 10)
    assert b"the host's disk is full" in said
    assert sorted(os.listdir(folder)) == ["first", "large", "second"]
    home.box("data", "export", "oak", str(folder / "out"))
    assert os.listdir(folder / "out") == ["file"]
    assert (folder / "out/file").read_bytes() == (folder / "first/file").read_bytes()
    is_clean(home)


def test_a_home_that_is_closed_in_the_middle_leaves_no_machine(home: Home) -> None:
    """As an interrupted test does: the helper machine is of another instance than the sandboxes."""
    home.put("oak", STOPPED)
    until(lambda: home.condition("oak", "Ready")[1] == "Stopped", 60, "known")
    (home.path.parent / "own").mkdir()
    argv = [*BOX, "data", "import", "oak", str(home.path.parent / "own")]
    with subprocess.Popen(argv, env=home.env, cwd=ROOT, stderr=subprocess.DEVNULL) as asking:
        until(home.helper_vmms, 60, "a helper machine runs")
        home.close()
        asking.wait(60)
    assert not home.helper_vmms() and not claims_of_helpers(home)
    assert not [group for instance in home.helpers for group in home.cgroups_of(instance)]
