"""Somebody who wants a mount to lead elsewhere, or the controller to stumble over one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement import syscalls
from tests.vm.harness import Home, home_with_controller, until
from tests.vm.shares import boxfile, helper_processes, owned

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

RACING = 12.0  # seconds; a start takes less than one until its helper has its root


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home_with_controller(tmp_path_factory.mktemp("attacks")) as made:
        yield made


@contextlib.contextmanager
def swapping(first: Path, second: Path) -> Iterator[None]:
    """Exchanges the two names as fast as it can; afterwards each is back in its place."""
    ended = threading.Event()
    count = 0

    def swap() -> None:
        nonlocal count
        while not ended.is_set() or count % 2:
            syscalls.renameat2_exchange(-100, str(first), -100, str(second))  # AT_FDCWD
            count += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert count > 100, "there was no race"


def test_a_path_that_changes_all_the_time_never_leads_a_helper_elsewhere(home: Home) -> None:
    """What was judged is what is served: here a directory and a link to the home of box take turns
    under the name in the Boxfile."""
    folder = home.path.parent / "racing"
    folder.mkdir()
    good = owned(folder / "good", 0o755)
    owned(good / "text", 0o644, "good\n")
    other = folder / "other"
    other.symlink_to(home.path)
    forbidden = {path.stat().st_ino for path in (home.path, folder, Path("/etc"))}
    served: set[int] = set()
    with swapping(good, other):
        limit = time.monotonic() + RACING
        home.put("elm", boxfile((good, "/src", "ro")))
        while time.monotonic() < limit:
            for pid in helper_processes(home):
                with contextlib.suppress(OSError):
                    served.add(os.stat(f"/proc/{pid}/root").st_ino)
            if int(time.monotonic() * 4) % 4 == 0:
                home.look_again()
            time.sleep(0.01)
    assert not served & forbidden
    home.look_again()
    home.ready("elm")
    assert good.stat().st_ino in served | {
        os.stat(f"/proc/{pid}/root").st_ino for pid in helper_processes(home)
    }
    assert home.run("elm", "cat", "/src/text").stdout == b"good\n"
    home.box("delete", "elm")
    home.nothing_left("elm")


def test_what_is_no_directory_is_refused_and_the_controller_goes_on(home: Home) -> None:
    folder = home.path.parent / "strange"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "file").write_text("")
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    os.mkdir(os.fsencode(folder) + b"/\xff\x1b]0;x")
    (folder / "link").symlink_to(b"\xff\x1b]0;x/gone".decode(errors="surrogateescape"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        names = ["fifo", "file", "socket", "a", "link", "gone", "n" * 300, "x/" * 1500]
        home.put("fir", boxfile(*((folder / n, f"/m{i}", "ro") for i, n in enumerate(names))))
        wanted = ("False", "MountRefused")
        until(lambda: home.condition("fir", "Ready") == wanted, 40, f"refused; {home.log()}")
    assert home.vmms("fir") == []
    shown = home.box("describe", "fir").stdout
    for index in range(len(names)):
        assert f"mounts[{index}].host".encode() in shown
    assert b"\x1b]0;" not in shown + home.log().encode()
    home.put("fir", boxfile((owned(folder / "good", 0o755), "/src", "ro")))
    home.ready("fir")
    home.box("delete", "fir")
    home.nothing_left("fir")
