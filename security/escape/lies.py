"""Guests that lie about their kernel: the proof from outside must not depend on what they say."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from . import proc
from .arena import Arena
from .report import Failed, check


@check("lies.uname", "a guest that fakes uname deceives itself, not the proof from outside")
def fake_uname(arena: Arena) -> str:
    """The lie is told in sandbox b: everything a command there says of the kernel is the host's."""
    arena.sandbox("a", "b")
    host = platform.release()
    banner = Path("/proc/version").read_text().strip()
    truth = arena.home.exec("b", "cat /proc/version").stdout.decode().strip()
    script = r"""
        printf '#!/bin/sh\necho %s\n' "$1" >/run/uname; chmod 755 /run/uname
        rm -f /bin/uname; cp /run/uname /bin/uname
        printf '%s\n' "$2" >/run/version; mount --bind /run/version /proc/version
        printf '%s\n' "$3" >/run/boot; mount --bind /run/boot /proc/sys/kernel/random/boot_id
        echo "$(cat /run/nonce) finished yes"
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    arena.home.exec("b", script, host, banner, boot)
    lie = arena.home.exec(
        "b", 'echo "$(cat /run/nonce) release $(/bin/uname -r)"; cat /proc/version'
    )
    if arena.answers("b", lie.stdout).get("release") != host or banner not in lie.stdout.decode():
        raise Failed(f"the lie could not be told, nothing was proved: {lie.stdout[-200:]!r}")
    pid = arena.vmm("b")
    real = truth.split(" (")[0]
    if "truth" not in proc.find_in_memory(pid, {"truth": real.encode()}):
        raise Failed(f"the kernel {real!r} is not in the memory of process {pid}")
    done = arena.home.run("verify", "b", "-o", "json", check=False)
    if done.returncode != 0:
        raise Failed(f"box verify answers {done.returncode} for a guest whose uname lies")
    found = {str(one["got"]) for one in json.loads(done.stdout)["readings"]}
    if real.split()[2] not in found:
        raise Failed(f"box verify does not show the kernel {real.split()[2]}")
    if repeated := found & {host, banner, boot}:
        raise Failed(f"box verify repeats the guest's lie: {repeated}")
    return (
        f"uname, /proc/version and boot_id of b claimed the host's {host}; its VMM's memory and box"
        f" verify still show {real.split()[2]}. Not proved: what a guest with a changed kernel says"
    )
