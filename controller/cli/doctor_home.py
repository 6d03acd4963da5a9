"""Checks of `box doctor` about this process and its home.

A function's name is what the user reads. What another room knows how to find is asked of that room,
so that doctor and controller never disagree. No check may change the host.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from controller.cli import place
from controller.cli.doctor_result import Result, State, Subject
from reconcilers.layout import Layout
from specs.errors import BoxError

GIB = 1 << 30


def operating_system(name: str, about: Subject) -> Result:
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return Result(name, "ok", found)
    return Result(name, "fail", found, "only Linux on x86_64 is supported so far")


def user(name: str, about: Subject) -> Result:
    uid = os.geteuid()
    if uid == 0:
        return Result(name, "ok", "root")
    return Result(name, "fail", f"uid {uid}", "run box with sudo; only root is supported so far")


def new_privileges(name: str, about: Subject) -> Result:
    """no_new_privs of this very process: a service manager may have set it (proc(5))."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("NoNewPrivs:") and line.split()[1] != "0":
            found = "NoNewPrivs is set: programs with setuid or file capabilities gain nothing"
            return Result(
                name,
                "ok" if os.geteuid() == 0 else "fail",
                found,
                "start it without NoNewPrivileges=yes",
            )
    return Result(name, "ok", "NoNewPrivs is not set")


def python(name: str, about: Subject) -> Result:
    return Result(name, "ok", f"{platform.python_version()} at {sys.executable}")


def home_folder(name: str, about: Subject) -> Result:
    if about.layout is None:
        return Result(name, "ok", f"{about.home} does not exist yet; box controller makes it")
    from controller.home import check_private_folder

    try:
        check_private_folder(about.home)
    except BoxError as problem:
        return Result(name, "fail", f"{about.home}: {problem.message}", problem.fix)
    return Result(name, "ok", f"{about.home}, instance {about.layout.instance}")


def watched_folder(name: str, about: Subject) -> Result:
    from controller.sources.folder import FolderMissing, ScanCache, scan

    if about.layout is None:
        return Result(name, "ok", "none yet")
    found = scan(about.layout.boxes, ScanCache())
    if isinstance(found, FolderMissing):
        fix = f"put it back: mkdir {about.layout.boxes}; nothing is removed meanwhile"
        return Result(name, "fail", found.reason, fix)
    if found.problems:
        path, why = found.problems[0]
        return Result(name, "warn", f"{path}: {why}", f"look at {about.layout.boxes}")
    return Result(name, "ok", f"{about.layout.boxes}: {len(found.files)} Boxfiles")


def disk_space(name: str, about: Subject) -> Result:
    folder = about.home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free for {about.home}"
    if free < GIB // 4:
        return Result(name, "fail", found, "free some space, or set BOX_HOME to another disk")
    return Result(
        name, "ok" if free >= 2 * GIB else "warn", found, "images and disks need some GiB"
    )


def memory(name: str, about: Subject) -> Result:
    kib = 0
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            kib = int(line.split()[1])
    found = f"{kib / 1024 / 1024:.1f} GiB available"
    state: State = "ok" if kib >= 1024 * 1024 else "warn"
    return Result(name, state, found, "a default sandbox needs about 0.7 GiB")


def runtime_folder(name: str, about: Subject) -> Result:
    from controller.home import RUNTIME_ROOT

    nearest = RUNTIME_ROOT if RUNTIME_ROOT.exists() else RUNTIME_ROOT.parent
    if os.access(nearest, os.W_OK):
        return Result(name, "ok", f"{nearest} is writable")
    return Result(name, "fail", f"{nearest} is not writable", f"mount a tmpfs on {nearest}")


def socket_paths(name: str, about: Subject) -> Result:
    """The longest socket path any sandbox could get here."""
    from controller.home import RUNTIME_ROOT
    from specs.names import NAME_MAX, SOCKET_PATH_MAX, check_socket_path

    layout = about.layout or Layout(about.home, RUNTIME_ROOT / ("0" * 12), "0" * 12)
    longest = layout.agent_socket("n" * NAME_MAX)
    check_socket_path(longest)
    return Result(name, "ok", f"at most {len(os.fsencode(longest))} of {SOCKET_PATH_MAX} bytes")


def controller(name: str, about: Subject) -> Result:
    if about.layout is not None and place.controller_runs(about.layout):
        return Result(name, "ok", f"answers at {about.layout.socket}")
    return Result(name, "warn", "not running", f"start it: {place.START}")
