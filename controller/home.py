"""The folders of one box home and the random id that everything of it on the host is named after.

Refuses a home that others could write, because whoever writes it commands root. It must not know
what the files inside mean, and it never replaces an instance id: a new id would orphan every living
VMM.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from controller import files
from reconcilers.layout import Layout
from specs.errors import HostError
from specs.names import is_instance

RUNTIME_ROOT = Path("/run/box")
"""Root's; of an ordinary user see `runtime_of`."""
INSTANCE_FILE_MAX = 64  # bytes; 12 digits and a newline are expected
PRIVATE_FOLDERS = ("state", "observed", "disks", "images", "kernels")
INSTANCE_FIX = (
    "everything this home has on the host is named after that id, and a running controller writes "
    "it back; else put it back (see the folder names in its runtime directory), or, when nothing "
    "of it runs any more, write a new one: openssl rand -hex 6 > instance"
)
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def ensure_home(home: Path) -> Layout:
    """Create what is missing of `home` and of its runtime directory (mode 0700); every path of it.

    Raises HostError when a folder belongs to somebody else or others may write to it, when the
    instance file is not an instance id, or when something cannot be created.
    """
    home = resolve_home(home)
    make_private_folder(home, parents=True)
    check_private_folder(home)
    for name in PRIVATE_FOLDERS:
        make_private_folder(home / name)
        check_private_folder(home / name)
    instance = ensure_instance(home)
    layout = Layout(home=home, runtime=runtime_of(home, instance), instance=instance)
    make_first_watched_folder(layout)
    make_private_folder(layout.runtime.parent)
    check_private_folder(layout.runtime.parent, link_allowed=False)
    make_private_folder(layout.runtime)
    check_private_folder(layout.runtime, link_allowed=False)
    return layout


def read_home(home: Path) -> Layout | None:
    """The paths of an existing home, or None where there is none yet. Creates and changes nothing.

    Raises HostError when the instance file is there but not an instance id.
    """
    home = resolve_home(home)
    instance = read_instance(home)
    if instance is None:
        return None
    return Layout(home=home, runtime=runtime_of(home, instance), instance=instance)


def resolve_home(home: Path) -> Path:
    try:
        return home.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of symlinks, or no such user for ~
        raise HostError(f"cannot resolve the box home: {error}", where=str(home)) from error


def runtime_of(home: Path, instance: str) -> Path:
    """The runtime directory of an instance: what lives only as long as the host's boot.

    /run/box for root; $XDG_RUNTIME_DIR/box for an ordinary user, else a folder in the home. Where
    the instance has one already it stays there: a shell without XDG_RUNTIME_DIR, as after su(1),
    must find what a login session began.
    """
    if os.geteuid() == 0:
        return RUNTIME_ROOT / instance
    at_home = home / "run" / instance
    places = [at_home]
    for session in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        if session.startswith("/") and _is_own_folder(Path(session)):
            places.append(Path(session) / "box" / instance)
    used = [place for place in places if place.is_dir()]
    return used[0] if used else [*places[1:], at_home][0]


def _is_own_folder(path: Path) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()


def make_private_folder(path: Path, *, parents: bool = False) -> None:
    try:
        path.mkdir(mode=0o700, parents=parents)
    except FileExistsError:
        return
    except OSError as error:
        raise files.write_error(path, error) from error
    files.sync_folder(path.parent)


def check_private_folder(path: Path, *, link_allowed: bool = True) -> None:
    """Raise HostError unless `path` is a folder of our own that nobody else may write to."""
    try:
        facts = path.stat() if link_allowed else path.lstat()
    except OSError as error:
        raise files.read_error(path, error) from error
    where = str(path)
    if not stat.S_ISDIR(facts.st_mode):
        raise HostError(
            "not a folder",
            where=where,
            fix="set BOX_HOME to a folder of your own, or move what stands here away",
        )
    if facts.st_uid != os.geteuid():
        raise HostError(
            f"belongs to user id {facts.st_uid}, not to us ({os.geteuid()})",
            where=where,
            fix="set BOX_HOME to a folder of your own, or change the owner with chown",
        )
    if facts.st_mode & OTHERS_MAY_WRITE:
        raise HostError(
            f"others may write to it (mode {stat.S_IMODE(facts.st_mode):04o})",
            where=where,
            fix=f"chmod go-w {path}",
        )


def make_first_watched_folder(layout: Layout) -> None:
    """Create boxes/ in a new home only.

    Once a watched folder has been recorded, a missing one is a fact to report: an empty replacement
    would look as if every Boxfile had been deleted.
    """
    known = os.path.lexists(layout.boxes) or os.path.lexists(layout.state / ".folder.toml")
    if not known:
        make_private_folder(layout.boxes)


def ensure_instance(home: Path) -> str:
    instance = read_instance(home)
    if instance is not None:
        return instance
    path = home / "instance"
    candidate = home / f"{files.TEMPORARY_PREFIX}instance-{os.urandom(8).hex()}"
    try:
        files.write_new(candidate, f"{os.urandom(6).hex()}\n".encode(), 0o600)
        try:
            # link(2) never replaces: of two first starts at once, both use the id of the winner.
            path.hardlink_to(candidate)
        except FileExistsError:
            pass
        finally:
            candidate.unlink(missing_ok=True)
        files.sync_folder(home)
    except OSError as error:
        raise files.write_error(path, error) from error
    instance = read_instance(home)
    if instance is None:
        raise HostError("vanished while it was being created", where=str(path))
    return instance


def keep_instance(layout: Layout) -> None:
    """Write the instance id of a running controller back where somebody removed or changed it."""
    path = layout.home / "instance"
    try:
        if read_instance(layout.home) == layout.instance:
            return
    except HostError:
        if os.path.lexists(path):
            files.move_aside(path)
    files.write_atomic(path, f"{layout.instance}\n".encode())


def read_instance(home: Path) -> str | None:
    """The 12 hex digits in `home`/instance; None in a home that was never used.

    Raises HostError for garbage, and where the file of a used home is missing: a new id would
    orphan whatever runs under the old one.
    """
    path = home / "instance"
    try:
        text = files.read_bounded(path, INSTANCE_FILE_MAX).decode("ascii", "replace").strip()
    except FileNotFoundError:
        if not os.path.lexists(home / "state" / ".folder.toml"):
            return None
        raise HostError(
            "is missing, although this home has been used", where=str(path), fix=INSTANCE_FIX
        ) from None
    except files.TooLarge:
        text = ""
    if not is_instance(text):
        raise HostError(
            "does not hold an instance id (12 hexadecimal digits)",
            where=str(path),
            fix=INSTANCE_FIX,
        )
    return text
