"""The two paths of a mount as text: what is refused, and where the mistake is."""

from __future__ import annotations

import pytest

from specs.boxfile import MountMode
from specs.mountpaths import MOUNTS_MAX
from tests.unit.specs.helpers import accepted, only_problem, place


def mounts(*guests: str) -> str:
    lines = "".join(f'  - host: /srv/{n}\n    guest: "{path}"\n' for n, path in enumerate(guests))
    return f"mounts:\n{lines}"


@pytest.mark.parametrize("guest", ["/src", "/mnt/a b", "/tmp/x", "/run/x", "/home", "/database"])
def test_guest_path_outside_what_the_guest_needs_is_taken(guest: str) -> None:
    assert accepted(mounts(guest)).mounts[0].guest == guest


@pytest.mark.parametrize(
    ("guest", "words"),
    [
        ("work", "absolute"),
        ("/", "the guest's root"),
        ("//", "the guest's root"),
        ("/src/", "shortest form, /src"),
        ("//src", "shortest form, /src"),
        ("/src/./x", "shortest form, /src/x"),
        ("/src/../etc", "must not contain .."),
        ("/..", "must not contain .."),
        ("/data", "/data is the guest's own"),
        ("/data/x", "/data is the guest's own"),
        ("/proc", "/proc is the guest's own"),
        ("/proc/1", "/proc is the guest's own"),
        ("/sys/kernel", "/sys is the guest's own"),
        ("/dev", "/dev is the guest's own"),
    ],
)
def test_guest_path_that_cannot_be_is_refused_at_its_place(guest: str, words: str) -> None:
    problem = only_problem(mounts(guest))
    assert words in problem.message
    assert (problem.field, place(problem)) == ("mounts[0].guest", (3, 12))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("/src", "/src", "is the guest path of another mount"),
        ("/src", "/src/inner", "cannot lie in another"),
        ("/src/inner", "/src", "cannot lie in another"),
    ],
)
def test_mount_that_hides_another_is_refused_where_it_is_written(
    first: str, second: str, words: str
) -> None:
    problem = only_problem(mounts(first, second))
    assert words in problem.message
    assert (problem.field, place(problem)) == ("mounts[1].guest", (5, 12))


def test_guest_paths_that_only_begin_alike_are_two_places() -> None:
    assert len(accepted(mounts("/src", "/srcs")).mounts) == 2


@pytest.mark.parametrize("host", ["~", "~/src", "/srv/a", "/srv/../a", "/srv/a/"])
def test_host_path_is_left_as_it_is_written(host: str) -> None:
    found = accepted(f"mounts: [{{host: '{host}', guest: /src}}]\n").mounts[0]
    assert (found.host, found.mode) == (host, MountMode.ro)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("srv", "absolute path, or begin with ~/"),
        ("~root", "only ~ and ~/ are expanded"),
        ("/", "the whole host"),
        ("/srv/..", "the whole host"),
    ],
)
def test_host_path_that_cannot_be_is_refused_at_its_place(host: str, words: str) -> None:
    problem = only_problem(f"mounts:\n- host: '{host}'\n  guest: /src\n")
    assert words in problem.message
    assert (problem.field, place(problem)) == ("mounts[0].host", (2, 9))


def test_more_mounts_than_the_machine_has_room_for_are_refused() -> None:
    accepted(mounts(*(f"/m{n}" for n in range(MOUNTS_MAX))))
    problem = only_problem(mounts(*(f"/m{n}" for n in range(MOUNTS_MAX + 1))))
    assert "too many entries" in problem.message


def test_mode_is_ro_or_rw() -> None:
    problem = only_problem("mounts: [{host: /a, guest: /b, mode: w}]\n")
    assert problem.field == "mounts[0].mode"
