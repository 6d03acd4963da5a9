"""The folders of a box home and the instance id, on the real host."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import files
from controller.store import FolderIdentity, Store, ensure_home, read_home
from specs.errors import HostError

NOBODY = 65534


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    with contextlib.suppress(HostError):
        layout = read_home(home)
        if layout is not None:
            shutil.rmtree(layout.runtime, ignore_errors=True)


def contents(folder: Path) -> dict[str, tuple[files.StatKey, bytes]]:
    return {
        str(path.relative_to(folder)): (files.stat_key(path.lstat()), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.needs_root
def test_a_new_home_is_private_and_has_an_instance(home: Path) -> None:
    assert read_home(home) is None
    assert not home.exists()
    layout = ensure_home(home)
    assert len(layout.instance) == 12
    assert layout.runtime == Path("/run/box") / layout.instance
    for folder in (home, layout.state, layout.observed, layout.boxes, layout.runtime):
        assert mode_of(folder) == 0o700, folder
    assert mode_of(home / "instance") == 0o600
    before = contents(home)
    assert ensure_home(home) == layout == read_home(home)
    assert contents(home) == before


def test_two_first_starts_at_once_agree_on_the_instance(tmp_path: Path) -> None:
    homes = [tmp_path / f"home-{i}" for i in range(10)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(ensure_home, [home for home in homes for _ in range(2)], chunksize=1)
    try:
        for i, home in enumerate(homes):
            assert found[2 * i] == found[2 * i + 1] == read_home(home)
            assert not list(home.glob(f"{files.TEMPORARY_PREFIX}*"))
    finally:
        for layout in found:
            shutil.rmtree(layout.runtime, ignore_errors=True)


@pytest.mark.parametrize(
    "garbage", [b"", b"0123456789a", b"0123456789AB", b"../../../etc", b"\xff" * 200]
)
def test_a_garbled_instance_is_an_error_and_stays_as_it_is(home: Path, garbage: bytes) -> None:
    home.mkdir(mode=0o700)
    (home / "instance").write_bytes(garbage)
    for call in (ensure_home, read_home):
        with pytest.raises(HostError) as caught:
            call(home)
        assert str(home / "instance") in str(caught.value)
        assert caught.value.fix
    assert (home / "instance").read_bytes() == garbage


@pytest.mark.needs_root
def test_a_home_that_others_can_write_or_own_is_refused(home: Path) -> None:
    layout = ensure_home(home)
    for folder in (home, layout.state, layout.runtime):
        for mode in (0o770, 0o702):
            folder.chmod(mode)
            with pytest.raises(HostError, match="others may write"):
                ensure_home(home)
        folder.chmod(0o700)
        os.chown(folder, NOBODY, NOBODY)
        with pytest.raises(HostError, match="belongs to user id 65534"):
            ensure_home(home)
        os.chown(folder, 0, 0)
    assert ensure_home(home) == layout


def test_a_symlink_in_place_of_the_runtime_directory_is_refused(home: Path, tmp_path: Path) -> None:
    layout = ensure_home(home)
    canary = tmp_path / "canary"
    canary.mkdir(mode=0o700)
    layout.runtime.rmdir()
    layout.runtime.symlink_to(canary)
    try:
        with pytest.raises(HostError, match="not a folder"):
            ensure_home(home)
        assert os.listdir(canary) == []
    finally:
        layout.runtime.unlink()


def test_a_vanished_watched_folder_is_not_made_anew(home: Path) -> None:
    layout = ensure_home(home)
    Store(layout).save_folder(FolderIdentity(str(layout.boxes), 1, 2))
    layout.boxes.rmdir()
    ensure_home(home)
    assert not layout.boxes.exists()


def test_the_watched_folder_may_be_a_symlink(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (home / "boxes").symlink_to(tmp_path / "elsewhere")
    ensure_home(home)
    assert (home / "boxes").is_symlink()


AS_NOBODY = """
import os, sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path; from controller.home import ensure_home
os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
for session in sys.argv[3:]:
    os.environ.pop("XDG_RUNTIME_DIR", None)
    if session != "-":
        os.environ["XDG_RUNTIME_DIR"] = session
    print(ensure_home(Path(sys.argv[2])).runtime)
"""


def runtimes_of_nobody(home: Path, *sessions: str) -> list[str]:
    """The runtime directories an ordinary user gets, one after the other; "-" is no session."""
    root = Path(__file__).resolve().parents[3]
    python = shutil.which("python3") or "python3"
    argv = [python, "-c", AS_NOBODY, str(root), str(home), *sessions]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A folder of an ordinary user."""
    with tempfile.TemporaryDirectory(prefix="boxtest-") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


@pytest.mark.needs_root
def test_an_ordinary_users_sockets_lie_in_his_session(of_nobody: Path) -> None:
    session = of_nobody / "session"
    session.mkdir(mode=0o700)
    os.chown(session, NOBODY, NOBODY)
    home = of_nobody / "home"
    first, without = runtimes_of_nobody(home, str(session), "-")
    assert first == str(session / "box" / (home / "instance").read_text().strip())
    # another shell, such as one of su(1), has no session and must not lose what runs; only where
    # the session is not in /run/user there is nothing that tells where it was
    assert without == str(home / "run" / Path(first).name)
    assert mode_of(Path(first)) == 0o700


@pytest.mark.needs_root
def test_without_a_session_they_lie_in_the_home_and_stay_there(of_nobody: Path) -> None:
    session = of_nobody / "session"
    session.mkdir(mode=0o700)
    os.chown(session, NOBODY, NOBODY)
    home = of_nobody / "home"
    instance = runtimes_of_nobody(home, "-")[0].rpartition("/")[2]
    assert runtimes_of_nobody(home, str(session), "-") == [str(home / "run" / instance)] * 2


@pytest.mark.needs_root
def test_a_session_folder_of_somebody_else_is_not_used(of_nobody: Path) -> None:
    home = of_nobody / "home"
    [found] = runtimes_of_nobody(home, "/run")
    assert found.startswith(str(home / "run"))
