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
from typing import TYPE_CHECKING

from controller.cli import place
from controller.cli.doctor_result import Result, State, Subject
from controller.home import OTHERS_MAY_WRITE
from reconcilers.layout import Layout
from specs.errors import BoxError, InvalidBoxfile

if TYPE_CHECKING:
    from controller.sources.folder import FolderScan

GIB = 1 << 30
USUAL_NAME = 24  # characters that should do for most sandboxes


def operating_system(name: str, about: Subject) -> Result:
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return Result(name, "ok", found)
    return Result(name, "fail", found, "only Linux on x86_64 is supported so far")


def user(name: str, about: Subject) -> Result:
    uid = os.geteuid()
    return Result(name, "ok", "root" if uid == 0 else f"uid {uid}, not root")


def new_privileges(name: str, about: Subject) -> Result:
    """no_new_privs of this very process and of the running controller: a service manager may have
    set it (proc(5)). Root needs no set-user-ID helper, and nothing is weakened because of it."""
    bound = [who for who, path in _processes(about) if _no_new_privs(path)]
    if not bound:
        return Result(name, "ok", "NoNewPrivs is not set")
    found = f"NoNewPrivs is set for {' and '.join(bound)}: set-user-ID programs gain nothing"
    if os.geteuid() == 0:
        return Result(name, "ok", f"{found}; root needs none")
    fix = "start it without NoNewPrivileges=yes: newuidmap cannot work under it"
    return Result(name, "fail", found, fix)


def _processes(about: Subject) -> list[tuple[str, str]]:
    from controller.cli.client import call

    found = [("this process", "/proc/self/status")]
    if about.layout is not None and place.controller_runs(about.layout):
        try:
            pid = int(call(about.layout, "GET", "/v1/version")["pid"])
        except (BoxError, KeyError, ValueError):
            return found
        found.append(("the controller", f"/proc/{pid}/status"))
    return found


def _no_new_privs(path: str) -> bool:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return False  # it ended meanwhile
    return any(line.startswith("NoNewPrivs:") and line.split()[1] != "0" for line in lines)


def python(name: str, about: Subject) -> Result:
    return Result(name, "ok", f"{platform.python_version()} at {sys.executable}")


def home_folder(name: str, about: Subject) -> Result:
    if about.home_problem is not None:
        denied = isinstance(about.home_problem.__cause__, PermissionError) and os.geteuid() != 0
        fix = place.NOT_OURS if denied else about.home_problem.fix
        return Result(name, "fail", about.home_problem.message, fix)
    if not os.path.lexists(about.home):
        return Result(name, "ok", f"{about.home} does not exist yet; box controller makes it")
    from controller.home import check_private_folder

    try:
        check_private_folder(about.home)
    except BoxError as problem:
        return Result(name, "fail", f"{about.home}: {problem.message}", problem.fix)
    if about.layout is None:
        return Result(name, "ok", f"{about.home} was not used yet; box controller makes it a home")
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
    if open_to := _writable_by_others(about.layout.boxes, found):
        fix = f"whoever writes a Boxfile commands its VM: chown root, chmod go-w {open_to}"
        return Result(name, "warn", f"others may write to {open_to}", fix)
    return Result(name, "ok", f"{about.layout.boxes}: {len(found.files)} Boxfiles")


def _writable_by_others(folder: Path, found: FolderScan) -> str:
    """The folder or the Boxfiles in it that an ordinary user could change; empty when none."""
    loose = []
    for path in (folder, *(folder / file.path for file in found.files.values())):
        try:
            facts = path.stat()
        except OSError:
            continue  # gone meanwhile
        if facts.st_mode & OTHERS_MAY_WRITE or facts.st_uid not in (0, os.geteuid()):
            loose.append(str(path))
    return " ".join(loose[:5]) + (f" and {len(loose) - 5} more" if len(loose) > 5 else "")


def config_file(name: str, about: Subject) -> Result:
    """Where it has mistakes, the other checks are made with the defaults."""
    file = about.home / "config.toml"
    if about.config_problem is not None:
        return _mistakes(name, file, about.config_problem)
    set_here = ", ".join(sorted(about.config.model_fields_set))
    return Result(name, "ok", f"{file}: {set_here or 'nothing is set'}")


def policy_file(name: str, about: Subject) -> Result:
    from controller.ceilingfile import read_ceiling

    file = about.home / "policy.toml"
    try:
        ceiling = read_ceiling(file)
    except NotADirectoryError:
        return Result(name, "ok", "none yet")
    if isinstance(ceiling, BoxError):
        return _mistakes(name, file, ceiling)
    rules = ", ".join(
        f"{rule} = {getattr(ceiling, rule)}" for rule in sorted(ceiling.model_fields_set)
    )
    return Result(name, "ok", f"{file}: {rules}" if rules else "nothing is forbidden")


def _mistakes(name: str, file: Path, problem: BoxError) -> Result:
    if isinstance(problem, InvalidBoxfile) and problem.problems:
        first = problem.problems[0]
        place = f"{file}:{first.line}:{first.column}"
        field = f"{first.field}: " if first.field else ""
        count = len(problem.problems)
        rest = f" (and {count - 1} more)" if count > 1 else ""
        return Result(name, "fail", f"{place}: {field}{first.message}{rest}", first.fix)
    return Result(name, "fail", f"{file}: {problem.message}", problem.fix or f"look at {file}")


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
    runtime = _layout(about).runtime
    nearest = next(each for each in (runtime, *runtime.parents) if each.exists())
    if os.access(nearest, os.W_OK):
        return Result(name, "ok", f"{runtime}, and {nearest} is writable")
    fix = f"mount a tmpfs on {nearest}" if os.geteuid() == 0 else place.NOT_OURS
    return Result(name, "fail", f"{nearest} is not writable", fix)


def _layout(about: Subject) -> Layout:
    """Of the home, or as it would be made."""
    from controller.home import runtime_of

    instance = "0" * 12
    return about.layout or Layout(about.home, runtime_of(about.home, instance), instance)


def socket_paths(name: str, about: Subject) -> Result:
    """The longest socket path any sandbox could get here."""
    from specs.names import NAME_MAX, SOCKET_PATH_MAX

    longest = os.fsencode(_layout(about).agent_socket("n" * NAME_MAX))
    fits = NAME_MAX - max(0, len(longest) - SOCKET_PATH_MAX)
    if fits == NAME_MAX:
        return Result(name, "ok", f"at most {len(longest)} of {SOCKET_PATH_MAX} bytes")
    found = f"only names of up to {max(0, fits)} characters fit into a socket path here"
    fix = "use a shorter BOX_HOME or runtime directory"
    return Result(name, "warn" if fits >= USUAL_NAME else "fail", found, fix)


def controller(name: str, about: Subject) -> Result:
    if about.layout is not None and place.controller_runs(about.layout):
        return Result(name, "ok", f"answers at {about.layout.socket}")
    return Result(name, "warn", "not running", f"start it: {place.START}")
