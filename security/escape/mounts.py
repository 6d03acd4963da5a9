"""What a guest reaches through a shared directory: that directory, in the way it is shared.

What counts is what the host's files are afterwards, and the canary's content: nothing that a guest
says of a refusal is believed alone.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from functools import partial
from pathlib import Path

from . import outside, places, proc
from .arena import HERE, Arena
from .report import Failed, Unproved, check
from .shares import NAME, OWNER, READ_ONLY, WRITABLE, Shares

# What a helper may do in its own user namespace: as the owner of its directory, all with the files
# in it. A thread that its libraries start early keeps what it takes to change its root, for which
# there is nothing else in its mount namespace.
DAC_OVERRIDE, SETPCAP, SYS_CHROOT = 1 << 1, 1 << 8, 1 << 18
IN_FORCE, EARLY = DAC_OVERRIDE, DAC_OVERRIDE | SETPCAP | SYS_CHROOT
SWAPPED = 3000  # milliseconds of a guest's reading while the host swaps


def shares(arena: Arena) -> Shares:
    """The shared directories, or again the reason why there are none."""
    return arena.once("shares", lambda: Shares(arena))


def _writable(made: Shares) -> None:
    if made.why:
        raise Unproved(f"nothing is shared for writing here: {made.why}")


def _looked(arena: Arena) -> dict[str, str]:
    """What share.sh said, once per run."""
    made = shares(arena)

    def look() -> dict[str, str]:
        words = (str(made.canary), f"decoy-{arena.nonces[NAME]}", *made.points)
        found = made.sh((HERE / "share.sh").read_text(), *words)
        for number, point in enumerate(made.points, 1):
            if found.get(f"inside.{number}") != "read inner":
                raise Failed(f"{point} cannot be read: {found.get(f'inside.{number}')!r}")
        return found

    return arena.once("share.sh", look)


def _no_canary(arena: Arena, found: dict[str, str]) -> None:
    for key, value in found.items():
        if arena.canary in value:
            raise Failed(f"{key} shows the canary, a file of the host that is not shared")


@check(
    "mounts.paths", "no name leads out of a shared directory: no ../, descriptor, handle or link"
)
def paths(arena: Arena) -> str:
    made, found = shares(arena), _looked(arena)
    _no_canary(arena, found)
    tried = {key: value for key, value in found.items() if key.startswith("name.")}
    for key, value in tried.items():
        if value.startswith("read"):
            raise Failed(f"{key} leads to {value[:80]!r}, where nothing is in the guest")
    opened = []
    for point in made.points:
        handles = made.attack("handles", point, str(made.canary))
        _no_canary(arena, handles)
        if through := [key for key in handles if key.startswith("node.")]:
            raise Failed(f"{through[0]} of {point} leads to {handles[through[0]]!r}")
        opened.append(handles.get("opened", "0"))
    # without the wall, from the host: the same names lead to the canary
    for top in (made.ro, made.rw):
        if (top / "inner/../../canary").read_text() != arena.canary:
            raise Failed("not even on the host does ../ lead to the canary: it proves nothing")
    return (
        f"{len(tried)} names lead to nothing, on the host they lead to the canary; of 512 numbers"
        f" of nodes {' and '.join(opened)} opened, none of them led out"
    )


@check("mounts.links", "a link in a shared directory leads to the guest's files, never the host's")
def links(arena: Arena) -> str:
    made, found = shares(arena), _looked(arena)
    _no_canary(arena, found)
    tried = {key: value for key, value in found.items() if key.startswith("link.")}
    for key, value in tried.items():
        if value != f"read decoy-{arena.nonces[NAME]}":
            raise Failed(f"{key} does not lead to the guest's own file: {value[:100]!r}")
    for number in range(1, len(made.points) + 1):
        if not found[f"circle.{number}"].startswith("refused"):
            raise Failed("a link to itself was opened")
    for name in ("absolute", "up", "through", "chain", "folder/canary"):
        if (made.ro / name).read_text() != arena.canary:
            raise Failed(f"not even on the host does {name} lead to the canary: it proves nothing")
    return f"{len(tried)} links lead to files of the guest, on the host they lead to the canary"


@check("mounts.swapped", "a folder that becomes a link while it is read does not lead out either")
def swapped(arena: Arena) -> str:
    made = shares(arena)
    limit = str(int(SWAPPED * arena.home.scale))
    with (
        places.at_work(places.start("host", 0, partial(made.swap, made.ro))) as mover,
        places.at_work(places.start("host", 0, partial(made.read, made.ro))) as reader,
    ):
        found = made.attack("swap", f"{READ_ONLY}/swap/word", limit)
        moves = mover.stop()[-1]
        seen = reader.stop()
    _no_canary(arena, found)
    counts = {value: int(key.split(".")[1]) for key, value in found.items() if key[:5] == "seen."}
    if strangers := counts.keys() - {"inner"}:
        raise Failed(f"the guest read {sorted(strangers)[0]!r}")
    if arena.canary not in seen:
        raise Failed("not even a reader on the host met the link: it proves nothing")
    missing = int(found.get("missing", "0"))
    if not counts or not missing:
        raise Failed(f"the guest read {counts} and missed {missing}: it did not meet the change")
    return (
        f"while the host moved it {moves} times, the guest read its own {counts['inner']} times and"
        f" nothing {missing} times; a reader on the host met the canary"
    )


@check("mounts.readonly", "what is shared read-only cannot be changed, however it is mounted again")
def readonly(arena: Arena) -> str:
    made = shares(arena)
    before = made.tree(made.ro)
    script = f"""
        say() {{ printf '%s %s\\n' "$(cat /run/nonce)" "$*"; }}
        mount -o remount,rw {READ_ONLY} && say remount done
        mkdir -p /tmp/again
        tag=$(sed -n 's|^\\([^ ]*\\) {READ_ONLY} virtiofs .*|\\1|p' /proc/mounts | head -n 1)
        mount -t virtiofs -o rw "$tag" /tmp/again && say again done
        say finished yes
    """
    done = made.attack("write", READ_ONLY)
    steps = made.sh(script)
    ways = [("as it is", done), ("remounted", made.attack("write", READ_ONLY))]
    if steps.get("again") == "done":
        ways.append(("mounted again", made.attack("write", "/tmp/again")))
    after = made.tree(made.ro)
    if changed := sorted(k for k in {*before, *after} if before.get(k) != after.get(k)):
        raise Failed(f"{changed[0]!r} of the host's directory was changed by the guest")
    count = 0
    for way, answers in ways:
        for key, value in answers.items():
            if "." in key:
                continue
            count += 1
            if value == "0":
                raise Failed(f"{key} succeeded in {READ_ONLY}, {way}")
    if not made.why:
        # without the wall: the same calls on a directory that is shared for writing
        control = made.attack("write", WRITABLE)
        worked = sum(value == "0" for key, value in control.items() if "." not in key)
        if worked < 12 or not (made.rw / "made").is_dir():
            raise Failed(f"only {worked} of the calls work where writing is allowed: {control}")
        beside = f"{worked} of {len(control) - 1} work in the writable one"
    else:
        worked = _written_here(made)
        beside = f"{worked} of the calls work on the host, and no file mode forbids any of them"
    return (
        f"{count} writes refused, {', '.join(way for way, _ in ways)}; the {len(before)} entries on"
        f" the host are the same; {beside}"
    )


def _written_here(made: Shares) -> int:
    """How many of the calls work for the same program on the host; Failed when too few do."""
    program = str(made.arena.compiled("share.c"))
    command = [program, made.arena.nonces[NAME], "write", str(made.rw)]
    done = subprocess.run(command, capture_output=True, timeout=20 * made.arena.home.scale)
    control = made.arena.answers(NAME, done.stdout)
    worked = sum(value == "0" for key, value in control.items() if "." not in key)
    closed = [p for p in (made.ro, *made.ro.rglob("*")) if not p.lstat().st_mode & 0o002]
    if worked < 12:
        raise Failed(f"only {worked} of the calls work on the host: {control}")
    if made.stranger and closed:
        raise Failed(f"{closed[0]} is closed to who serves it: its refusals prove nothing")
    return worked


@check(
    "mounts.outward", "a guest leaves nothing with a right on the host: set-ID, device, capability"
)
def outward(arena: Arena) -> str:
    made = shares(arena)
    _writable(made)
    top = made.rw / "special"
    top.mkdir(exist_ok=True)
    if arena.root:
        os.chown(top, OWNER, OWNER)
    said = made.attack("special", f"{WRITABLE}/special")
    if said.get("plain") != "0" or not (top / "file").is_file():
        raise Failed(f"not even a plain file could be made: it proves nothing ({said})")
    for path in top.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise Failed(f"the guest made the device {path.name} on the host")
        if mode & (stat.S_ISUID | stat.S_ISGID):
            raise Failed(f"the guest made {path.name} on the host, which is set-ID: {mode:o}")
        if marks := [m for m in os.listxattr(path, follow_symlinks=False) if m[:5] != "user."]:
            raise Failed(f"the guest gave {path.name} on the host {marks[0]}")
        if arena.root and path.lstat().st_uid != OWNER:
            raise Failed(f"{path.name} belongs to host user {path.lstat().st_uid}")
    refused = sum(value != "0" for key, value in said.items() if "." not in key)
    return f"{refused} of {len(said) - 1} attempts refused; all that came of them is plain files"


@check(
    "mounts.inward", "a set-ID program or device in a shared directory has no right in the guest"
)
def inward(arena: Arena) -> str:
    made = shares(arena)
    nonce = arena.nonces[NAME]
    program = made.ro / "setid"
    shutil.copyfile(arena.compiled("share.c"), program)
    if arena.root:
        os.chown(program, OWNER, OWNER)
    program.chmod(0o6755)
    device = made.ro / "null"
    if arena.root:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.chmod(0o666)
    script = f"""
        say() {{ printf '%s %s\\n' "$(cat /run/nonce)" "$*"; }}
        cp /run/share /own && chown 0:0 /own && chmod 6755 /own
        say own "$(/run/share {nonce} nobody /own {nonce} rights)"
        say shared "$(/run/share {nonce} nobody {READ_ONLY}/setid {nonce} rights)"
        mknod /owndevice c 1 3; (: </owndevice) 2>/dev/null && say device.own opened
        (: <{READ_ONLY}/null) 2>/dev/null && say device.shared opened
        rm -f /own /owndevice
        say owner "$(stat -c %u {READ_ONLY}/setid)"
        say finished yes
    """
    found = made.sh(script)
    if found.get("own") != f"{nonce} rights 0 0":
        raise Failed(f"not even the guest's own set-ID program counts: {found.get('own')!r}")
    if not found.get("shared", "").startswith(f"{nonce} rights "):
        raise Failed(f"the shared program did not run: {found.get('shared')!r}")
    if found["shared"] != f"{nonce} rights 65534 65534":
        raise Failed(f"a set-ID program of the share gave a user rights: {found['shared']!r}")
    if found.get("owner") != made.owner_inside:
        raise Failed(f"in the guest the program belongs to user {found.get('owner')}")
    if arena.root and found.get("device.own") != "opened":
        raise Failed("not even a device of the guest's own opens: it proves nothing")
    if found.get("device.shared") == "opened":
        raise Failed("a device node in the shared directory opened in the guest")
    devices = "a device node there does not open" if arena.root else "no device node could be made"
    return f"to a user the guest's own set-ID program gives root, the shared one nothing; {devices}"


@check("mounts.helper", "the process that serves a directory sees that directory and nothing else")
def helper(arena: Arena) -> str:
    made = shares(arena)
    vmm = arena.vmm(NAME)
    wanted = {(os.stat(top).st_dev, os.stat(top).st_ino): top for top in _served(made)}
    readings = []
    for pid in arena.helpers(NAME):
        name = Path(proc.arguments(pid)[0]).name
        try:
            facts = os.stat(f"/proc/{pid}/root")
        except PermissionError:
            raise Unproved(f"the kernel does not show us the root of {name} ({pid})") from None
        top = wanted.pop((facts.st_dev, facts.st_ino), None)
        if top is None:
            raise Failed(f"the root of {name} ({pid}) is none of the shared directories")
        table = proc.mounts(pid)
        for point, options, kind in table:
            if not {"nosuid", "nodev"} <= options:
                raise Failed(f"{point} ({kind}) of {name} is {','.join(sorted(options))}")
            if top == made.ro and "ro" not in options:
                raise Failed(f"{name} may write to {top}, which is shared read-only")
        if len(table) != 1:
            raise Failed(f"{name} sees {len(table)} mounts: {', '.join(p for p, *_ in table)}")
        if proc.status(pid)["NSpid"].split()[1:] != ["1"]:
            raise Failed(f"{name} is not the first process of its namespace")
        _rights(name, pid, vmm, 0 if made.stranger else IN_FORCE)
        count = _descriptors(arena, name, pid, top)
        readings.append(f"{top.name}: {count} descriptors")
    if wanted:
        raise Failed(f"nobody serves {next(iter(wanted.values()))}: nothing was read")
    arena.confinement["mounts"] = "the directory alone"
    rights = "no capability" if made.stranger else "CAP_DAC_OVERRIDE alone"
    return (
        f"{'; '.join(readings)}; each has the directory as its root and only mount, nosuid and"
        f" nodev, and serves with {rights}, in a user namespace of its own"
    )


def _served(made: Shares) -> list[Path]:
    return [made.ro] if made.why else [made.ro, made.rw]


def _rights(name: str, pid: int, vmm: int, in_force: int) -> None:
    if proc.namespace(pid, "user") == proc.namespace("self", "user"):
        raise Failed(f"{name} is in our own user namespace")
    for each in ("pid", "mnt", "ipc", "net"):
        if proc.namespace(pid, each) in (proc.namespace("self", each), proc.namespace(vmm, each)):
            raise Failed(f"{name} shares its {each} namespace with us or with its VMM")
    most = 1 if os.geteuid() == 0 else 3  # an ordinary user and a group may be known in there
    for kind in ("uid_map", "gid_map"):
        lines = [line.split() for line in Path(f"/proc/{pid}/{kind}").read_text().splitlines()]
        if len(lines) > most or any(count != "1" or outer == "0" for _, outer, count in lines):
            raise Failed(f"{kind} of {name} is {lines}: more than its own user")
    for tid, status in proc.thread_statuses(pid).items():
        held = {each: int(status[each], 16) for each in proc.CAPABILITY_SETS}
        most = in_force if tid == pid else EARLY
        if excess := [each for each in held if held[each] & ~most] or held["CapBnd"]:
            raise Failed(f"thread {tid} of {name} has {excess} of {held}")
        if status.get("NoNewPrivs") != "1" or status.get("Seccomp") != "2":
            raise Failed(f"thread {tid} of {name} has no filter, or may get new rights")
        if "0" in (status["Uid"].split()[0], status["Gid"].split()[0]):
            raise Failed(f"thread {tid} of {name} is root of the host")


def _descriptors(arena: Arena, name: str, pid: int, top: Path) -> int:
    """How many; Failed for one that is neither in the directory nor made by the process itself."""
    inside = {(path.lstat().st_dev, path.lstat().st_ino) for path in (top, *top.rglob("*"))}
    found = proc.descriptors(pid)
    for each in found:
        if (each.device, each.inode) in inside or _its_own_proc(each):
            continue
        if reason := outside.unexpected(arena, NAME, pid, each):
            raise Failed(f"descriptor {each.number} of {name} is {each.detail}: {reason}")
    return len(found)


def _its_own_proc(found: proc.Descriptor) -> bool:
    """Its own descriptors and threads, in a procfs that knows no other process: it is PID 1."""
    names = found.detail.rsplit("/", 2)[1:]
    here = os.stat("/proc").st_dev
    return (
        found.kind == "folder"
        and names in (["1", "fd"], ["1", "task"])
        and (found.device != here and os.major(found.device) == 0)
    )
