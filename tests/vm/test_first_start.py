"""A start that fails while the disk is there: what was made for it is taken back and forgotten,
what a VM has opened is neither."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tomllib

import pytest

from tests.vm.cases import CaseHome, case_home, names, nothing_left_behind
from tests.vm.harness import until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

# The kernel refuses the controller and what it starts an IPC namespace (unshare(2), CLONE_NEWIPC),
# a layer that is put in place when the disk has long been made.
WITHOUT_A_LAYER = """
import errno, os, sys
import pyseccomp
refuse = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
flag = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0x08000000, 0x08000000)
refuse.add_rule(pyseccomp.ERRNO(errno.EPERM), "unshare", flag)
refuse.load()
os.execvp(sys.argv[1], sys.argv[1:])
"""
FAILING = (sys.executable, "-c", WITHOUT_A_LAYER)


def fails_again(home: CaseHome) -> None:
    """Wait for two more failed passes; the second begins with what the first left behind."""
    before = len(home.events("oak", "failed"))

    def failed() -> bool:
        home.look_again()
        return len(home.events("oak", "failed")) >= before + 2

    until(failed, 40, f"two more starts fail; {home.log()}")
    # Each event comes before the report that tells the same.
    until(
        lambda: home.message("oak", "Confined").startswith("namespaces: "),
        20,
        lambda: f"it says why: {home.report('oak')}",
    )


def remembers_a_disk(home: CaseHome) -> bool:
    return bool(tomllib.loads((home.path / "state/oak.toml").read_text())["has_disk"])


def test_a_disk_taken_back_is_none_that_was_lost() -> None:
    with case_home(prefix=FAILING) as home:
        home.put("oak")
        fails_again(home)
        until(lambda: not (home.path / "disks/oak").exists(), 20, "its disk is taken back")
        assert home.condition("oak", "DataReady")[1] != "DiskLost"
        home.stop()
        # One more pass may have been going on, which then ended with the controller.
        assert not remembers_a_disk(home) or (home.path / "disks/oak").exists()
        home.prefix = ()
        home.start()
        home.ready("oak")
        assert remembers_a_disk(home)
        nothing_left_behind(home)
        assert names(home) == ["oak"]


def test_a_disk_that_a_vm_has_opened_is_not_made_again_when_starts_fail() -> None:
    with case_home() as home:
        home.put("oak")
        home.ready("oak")
        home.run("oak", "sh", "-c", "echo mine > /data/note; sync")
        home.stop()
        os.kill(home.pid("oak"), signal.SIGKILL)
        home.prefix = FAILING
        home.start()
        fails_again(home)
        assert (home.path / "disks/oak/base.raw").exists()
        shutil.move(home.path / "disks/oak", home.path / "away")
        home.look_again()
        until(lambda: home.condition("oak", "DataReady") == ("False", "DiskLost"), 40, "lost")
        assert not (home.path / "disks/oak").exists()
        shutil.move(home.path / "away", home.path / "disks/oak")
        home.stop()
        home.prefix = ()
        home.start()
        home.ready("oak")
        assert home.run("oak", "cat", "/data/note").stdout == b"mine\n"
