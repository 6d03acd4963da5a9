"""Where an ordinary user's controller gets no copies of descriptors, a process of its own looks.

A container's filter of system calls may forbid pidfd_getfd(2). The controllers here run under a
filter that does; what they read is the same, and a reader that stands still holds up nobody.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator

import pytest

from tests.vm.handed import hand_over
from tests.vm.harness import until
from tests.vm.people import PYTHON, PersonsHome, person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

NAME = "elm"
REFUSED = 438  # pidfd_getfd, which has one number everywhere
# struct sock_filter: load the number of the call; EPERM for that one; everything else is allowed
FILTER = b"".join(
    struct.pack("=HBBI", *each)
    for each in [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, REFUSED),
        (0x06, 0, 0, 0x00050001),
        (0x06, 0, 0, 0x7FFF0000),
    ]
)
UNDER_IT = (
    "import os, sys; from reconcilers.confinement import syscalls; "
    f"syscalls.seccomp_load(bytes.fromhex('{FILTER.hex()}')); os.execvp(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture(scope="module")
def home() -> Iterator[PersonsHome]:
    with person() as someone, persons_home(someone, before=[PYTHON, "-c", UNDER_IT]) as made:
        made.start()
        made.put(NAME)
        made.ready(NAME)
        yield made


@pytest.mark.quiet
def test_a_reader_that_stands_still_holds_up_nobody(home: PersonsHome) -> None:
    pid = home.pid(NAME)
    [reader] = home.running("insidereader")
    os.kill(reader, signal.SIGSTOP)
    began = time.monotonic()
    home.look_again()
    assert home.slowest_answer_until_gone(reader) < 3  # it is given up and ended after 5 s
    assert time.monotonic() > began + 3  # it was waited for
    home.look_again()
    until(lambda: home.running("insidereader"), 30, f"another reads; {home.log()}")
    home.ready(NAME)
    assert home.pid(NAME) == pid


def test_it_sees_a_descriptor_that_was_not_given(home: PersonsHome) -> None:
    pid = home.pid(NAME)
    hand_over(home.runtime / NAME / "qmp.sock", "/etc/shadow")
    home.look_again()
    until(lambda: not os.path.exists(f"/proc/{pid}"), 40, f"it is replaced; {home.log()}")
    home.mended(NAME, "descriptors")
    home.ready(NAME)
