"""What may not be shared, however it is named: judged on real directories, as this process."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reconcilers import mounts
from reconcilers.mountplaces import program_places
from reconcilers.mounts import Rules
from reconcilers.usermounts import mounted_below
from specs.boxfile import Boxfile
from specs.errors import HostError
from tests.unit.elsewhere import own_mounts, unknown_user

NOTHING = Rules(forbidden=())


def box(*hosts: Path | str, mode: str = "ro", isolation: str = "strict") -> Boxfile:
    shared = [{"host": str(h), "guest": f"/m{n}", "mode": mode} for n, h in enumerate(hosts)]
    return Boxfile.model_validate({"name": "oak", "mounts": shared, "isolation": isolation})


def why(host: Path | str, rules: Rules = NOTHING, **settings: str) -> str:
    found, refused = mounts.look(box(host, **settings), rules)
    assert len(found) + len(refused) == 1
    return refused[0].why if refused else ""


def test_what_is_no_directory_is_refused_at_once_and_never_opened(tmp_path: Path) -> None:
    fifo, plain, listening = (tmp_path / name for name in ("fifo", "plain", "socket"))
    os.mkfifo(fifo)
    plain.write_text("")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(listening))
        for path in (fifo, plain, listening, Path("/dev/null")):
            assert why(path) == os.strerror(errno.ENOTDIR) or "not a directory" in why(path)
    assert why(plain / "below") == os.strerror(errno.ENOTDIR)


def test_links_in_a_circle_and_endless_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert why(tmp_path / "a") == os.strerror(errno.ELOOP)
    (tmp_path / "self").symlink_to("self/self/self/self")
    assert why(tmp_path / "self") == os.strerror(errno.ELOOP)
    assert why(tmp_path / ("n" * 300)) == os.strerror(errno.ENAMETOOLONG)
    assert why(tmp_path / "gone") == "it does not exist"


def test_read_only_file_system_cannot_be_shared_writable(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that the host sees nothing of it."""
    script = (
        "import sys; from pathlib import Path;"
        "from tests.unit.reconcilers.test_shared_places import why;"
        f"place = Path({str(tmp_path)!r});"
        "print(repr(why(place)), repr(why(place, mode='rw')), sep=chr(10))"
    )
    done = subprocess.run(
        [*own_mounts(), "sh", "-c"]
        + ['mount -t tmpfs -o ro none "$1" && shift && exec "$@"', "sh", str(tmp_path)]
        + [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    allowed, refused = done.stdout.splitlines()
    assert allowed == "''"
    assert "mounted read-only: use mode: ro" in refused


def test_home_that_is_meant_is_shown() -> None:
    """It is that of the controller's user, who may be another one than whoever wrote the file."""
    _, [refused] = mounts.look(box("~/no/such/directory"), NOTHING)
    assert (
        refused.host
        == f"~/no/such/directory ({pwd.getpwuid(os.geteuid()).pw_dir}/no/such/directory)"
    )


def test_user_whom_nobody_knows_has_no_home_to_share() -> None:
    script = "from tests.unit.reconcilers.test_shared_places import why; print(why('~/project'))"
    done = subprocess.run(
        [*unknown_user(54321), sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ("the user database knows no home of the controller's user (UID 54321)\n")


def test_directory_mounted_on_its_own_entry_hides_nothing_above_it(tmp_path: Path) -> None:
    """In a mount namespace of its own."""
    (tmp_path / "secret/a/b/inner").mkdir(parents=True)
    (tmp_path / "secret/a/inner").mkdir()
    script = (
        "from tests.unit.reconcilers.test_shared_places import why;"
        "from reconcilers.mounts import Rules;"
        f"top = {str(tmp_path)!r};"
        "rules = Rules(forbidden=(('the secret', f'{top}/secret'),));"
        "print(why(f'{top}/secret/a/b/inner', rules))"
    )
    done = subprocess.run(
        [*own_mounts(), "sh", "-c"]
        + ['mount --bind "$1" "$1/b" && shift && exec "$@"', "sh", str(tmp_path / "secret/a")]
        + [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "it is, or lies in, the secret\n"


def test_places_count_under_every_name_and_before_they_exist(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    rules = Rules(forbidden=(("the home", str(home)), ("a place to come", f"{tmp_path}/new/one")))
    for path in (home, home / "inner", tmp_path / "link", tmp_path / "link" / "inner"):
        assert why(path, rules) == "it is, or lies in, the home"
    assert why(tmp_path, rules) == "it holds the home"
    (tmp_path / "new").mkdir()
    assert why(tmp_path / "new", rules) == "it holds a place to come"


def test_program_of_box_may_be_read_and_not_written(tmp_path: Path) -> None:
    code = Path(mounts.__file__).resolve().parents[1]
    rules = Rules(forbidden=(), unwritable=program_places())
    assert why(code / "specs", rules) == ""
    for path in (code / "specs", code, code.parent):
        assert "the program of box, which a guest must not write" in why(path, rules, mode="rw")
    assert why(tmp_path, rules, mode="rw") == ""


def test_names_that_are_no_text_are_shown_as_escapes(tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/\xff\x1b[31m"
    os.mkdir(strange)
    (tmp_path / "link").symlink_to(os.fsdecode(strange))
    found, _ = mounts.look(box(tmp_path / "link"), NOTHING)
    assert found[0].path.endswith("/\\udcff\\x1b[31m")
    _, refused = mounts.look(box(tmp_path / "link"), Rules(forbidden=(("it", str(tmp_path)),)))
    assert str(refused[0]).encode().isascii() and "\x1b" not in str(refused[0])
    os.chmod(strange, 0o700)
    _, refused = mounts.look(box(tmp_path / "link"), ORDINARY)
    assert str(refused[0]).isprintable()


@pytest.mark.parametrize(
    ("modes", "refused"),
    [("ro ro", []), ("rw rw", [1]), ("ro rw", [0]), ("rw ro", [1])],
)
def test_one_directory_twice_has_one_guest_that_writes_it(
    tmp_path: Path, modes: str, refused: list[int]
) -> None:
    for other, expected in ((tmp_path, refused), (tmp_path / "inner", None)):
        other.mkdir(exist_ok=True)
        first, second = modes.split()
        mounted = [
            {"host": str(tmp_path), "guest": "/a", "mode": first},
            {"host": str(other), "guest": "/b", "mode": second},
        ]
        wanted = Boxfile.model_validate({"name": "oak", "mounts": mounted})
        _, found = mounts.look(wanted, NOTHING)
        if expected is None:  # one lies in the other
            assert bool(found) == ("rw" in modes)
        else:
            assert [each.index for each in found] == expected


def test_host_that_lacks_descriptors_says_nothing_about_a_directory(tmp_path: Path) -> None:
    """Neither does it stop a sandbox, nor is a place not protected for that."""
    rules = Rules(forbidden=(("the home", str(tmp_path)),))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(HostError, match="the home cannot be looked at"):
            why("/usr/share", rules)
        with pytest.raises(OSError, match="Too many open files"):
            why("/usr/share")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# -- an ordinary user


ORDINARY = Rules(forbidden=(), ordinary=True)


def test_strict_sandbox_of_a_user_gets_what_others_may_read(tmp_path: Path) -> None:
    place = Path("/usr/share")
    assert why(place, ORDINARY) == ""
    assert "read-only alone" in why(place, ORDINARY, mode="rw") or os.statvfs(place).f_flag & 1
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "inner").mkdir()
    assert "others may not search" in why(closed / "inner", ORDINARY)
    assert why(closed, ORDINARY, isolation="standard") == ""


def test_way_through_a_link_counts_as_well(tmp_path: Path) -> None:
    """pytest's own folder is 0700, what the link leads to is everybody's."""
    link = tmp_path / "link"
    link.symlink_to("/usr/share")
    assert f"others may not search {tmp_path.parents[1]}" in why(link, ORDINARY)


def test_mounts_below_are_found_under_their_real_names() -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert mounted_below("/") in {point for point in points if point != "/"}
    assert mounted_below("/proc/self") == ""
