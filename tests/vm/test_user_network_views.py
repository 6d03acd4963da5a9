"""An ordinary user's network without a VM: when its rules are loaded, and how it is read back.

A user makes it, changes it and reads it, as a controller does (`wired.py`). The nft is the real one
behind a script that first writes down which links its network namespace has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm import wired
from tests.vm.people import PYTHON, person
from tests.vm.usernet import TAPS

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(200)]

NFT = "/usr/sbin/nft"
# $$ is the PID that the real one gets
SCRIPT = """#!/bin/sh
exec 9>>"{seen}/$$"
ip -j link >&9
case "$*" in *-f*) cat > "{seen}/$$.rules"; exec "{real}" "$@" < "{seen}/$$.rules";; esac
exec "{real}" "$@"
"""


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, Any]]:
    with person(groups=False) as someone:
        seen, real, script = (someone.folder / each for each in ("seen", "nft", "script"))
        seen.mkdir()
        os.chown(seen, someone.uid, someone.gid)
        shutil.copy(NFT, real)
        script.write_text(SCRIPT.format(seen=seen, real=real))
        script.chmod(0o755)
        done = subprocess.run(
            ["unshare", "--net", "--mount", "--propagation", "private"]
            + ["sh", "-c", TAPS.replace("exec", f"mount --bind {script} {NFT} && exec"), "sh"]
            + [*someone.become(), PYTHON, "-c", Path(wired.__file__).read_text(), str(seen)],
            env=someone.environment(someone.folder / "home"),
            cwd="/",
            capture_output=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr.decode()
        yield json.loads(done.stdout)


def test_rules_are_loaded_before_there_is_a_link(said: dict[str, Any]) -> None:
    assert said["loads"] and all(links.keys() == {"lo"} for links in said["loads"])
    # the same eyes see links once there are some
    up = {name[:3] for name, is_up in said["loads again"].items() if is_up}
    assert {"bxg", "bxu"} <= up


def test_every_change_is_seen_from_outside_and_only_that(said: dict[str, Any]) -> None:
    assert said["at first"] == said["mended"] == said["looks without a worker"] == []
    side = wired.WANTED.guest_side
    for name in (
        f"ipv4.conf.{side}.send_redirects",
        f"ipv6.conf.{side}.accept_redirects",
        "ipv4.fwmark_reflect",
        "ipv6.conf.default.disable_ipv6",
    ):
        assert said[name] == ["settings"], name
    assert said["flushed"] == ["rules"]
    assert said["no rule"] == ["policy routing"]
    assert "links" in said["uplink down"] and "links" in said["no veth"]
    assert {"links", "uplink"} <= set(said["no pasta"])


def test_a_worker_that_stands_still_is_given_up_and_another_looks(said: dict[str, Any]) -> None:
    assert said["stopped"] is True
    assert said["after it"] == []


def test_what_is_held_ends_with_the_vm(said: dict[str, Any]) -> None:
    files = [each for each in said["held"] if each.startswith("/proc/sys/net/")]
    assert len(files) == 7 and len(said["held"]) == 10
    assert said["ended"] == "gone" and said["left"] == []
