"""A sandbox with two shared directories, one read-only and one writable, and what lies beside them.

The directories are made here and belong to whoever may share them; nothing else of the host is
ever shared. Where whoever serves them is a stranger to us (strict, as an ordinary user), they lie
where others may go and everybody may write to them: no file mode is to stand in for a wall.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .arena import Arena
from .home import BoxError
from .places import Say
from .report import Failed, Unproved

NAME = "m"
OWNER = 21234  # of the directories, where we are root: nobody of this host
READ_ONLY, WRITABLE = "/mnt/ro", "/mnt/rw"


class Shares:
    """The directories `ro` and `rw` beside the home. Raises Unproved where mounts are refused."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.stranger = arena.isolation == "strict" and not arena.root
        self.folder = _open_folder(arena) if self.stranger else arena.folder / "shares"
        self.folder.mkdir(mode=0o755)
        self.canary = self.folder.parent / "canary"
        """A file beside what is shared; who serves that might read it, but for the walls."""
        self.canary.write_text(arena.canary)
        self.ro, self.rw = self.folder / "ro", self.folder / "rw"
        self.outside = self.folder / "outside"
        self.outside.mkdir()
        (self.outside / "word").write_text(arena.canary)
        (self.folder / "canary").write_text(arena.canary)
        for each in (self.ro, self.rw):
            self._fill(each)
        if self.stranger:
            self._open_to_everybody()
        self.why = ""
        """Why nothing is shared for writing, where it is not."""
        try:
            self._start(("ro", self.ro, READ_ONLY), ("rw", self.rw, WRITABLE))
        except Unproved as refusal:
            if arena.root:
                raise
            self.why = str(refusal)
            self._start(("ro", self.ro, READ_ONLY))
        self.points = [READ_ONLY] if self.why else [READ_ONLY, WRITABLE]
        program = arena.compiled("share.c").read_bytes()
        arena.home.put(NAME, "/run/share", program, "0755")

    def _fill(self, top: Path) -> None:
        canary = str(self.canary)
        top.mkdir(mode=0o755)
        for name in ("inner", "hollow", "swap"):
            (top / name).mkdir()
        for name, text in (("file", "held\n"), ("gone", ""), ("inner/word", "inner\n")):
            (top / name).write_text(text)
        (top / "swap" / "word").write_text("inner\n")
        for name, target in (
            ("absolute", canary),
            ("relative", "../../canary"),
            ("up", "../" * 20 + canary[1:]),
            ("through", f"/proc/self/root{canary}"),
            ("chain", "absolute"),
            ("folder", str(self.canary.parent)),
            ("circle", "circle"),
        ):
            (top / name).symlink_to(target)
        if self.arena.root:
            for path in (top, *top.rglob("*")):
                os.lchown(path, OWNER, OWNER)

    def _open_to_everybody(self) -> None:
        for path in (self.canary, self.folder, *self.folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        for path in (self.ro, *self.ro.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o777 if path.is_dir() else 0o666)

    def _start(self, *shared: tuple[str, Path, str]) -> None:
        mounts = [{"host": str(at), "guest": point, "mode": mode} for mode, at, point in shared]
        home = self.arena.home
        try:
            home.declare({NAME: self.arena.boxfile(mounts=mounts)})
        except BoxError as error:
            raise Unproved(f"not attacked: {error}") from None
        deadline = time.monotonic() + 90 * home.scale
        while home.condition(NAME, "Ready")[0] != "True":
            status, reason = home.condition(NAME, "Ready")
            if status == "False" and "Refused" in reason:
                raise Unproved(f"not attacked: box refuses the mounts ({reason}): {self._said()}")
            if time.monotonic() > deadline:
                raise Unproved(f"not attacked: no sandbox with mounts: {reason}: {self._said()}")
            time.sleep(0.2 * home.scale)
        self.arena.greet(NAME)

    def _said(self) -> str:
        for each in self.arena.home.get(NAME).get("conditions", []):
            if each.get("type") == "Ready":
                return str(each.get("message", ""))[:300]
        return ""

    @property
    def owner_inside(self) -> str:
        """As whom the guest sees the owner of what is shared (docs/mounts.md)."""
        return "1" if self.stranger else "0"

    # -- in the guest

    def attack(self, *words: str, seconds: float = 60) -> dict[str, str]:
        """Run share.c in the guest with these words; what it said."""
        nonce = self.arena.nonces[NAME]
        command = ("exec", NAME, "--", "/run/share", nonce, *words)
        done = self.arena.home.run(*command, seconds=seconds, check=False)
        found = self.arena.answers(NAME, done.stdout)
        if not found:
            raise Failed(f"the guest did not answer: {(done.stdout + done.stderr)[-200:]!r}")
        return found

    def sh(self, script: str, *words: str) -> dict[str, str]:
        done = self.arena.home.exec(NAME, script, *words, check=False)
        found = self.arena.answers(NAME, done.stdout)
        if found.get("finished") != "yes":
            said = (done.stdout + done.stderr)[-200:]
            raise Failed(f"the guest that was given the nonce did not answer to the end: {said!r}")
        return found

    # -- on the host

    def tree(self, top: Path) -> dict[str, tuple[object, ...]]:
        """All that is below a directory, with everything a guest could change."""
        found: dict[str, tuple[object, ...]] = {}
        for path in sorted((top, *top.rglob("*"))):
            facts = path.lstat()
            content = ""
            if stat.S_ISREG(facts.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(facts.st_mode):
                content = os.readlink(path)
            owner = (facts.st_uid, facts.st_gid)
            told = (facts.st_mode, *owner, facts.st_nlink, facts.st_mtime_ns, content)
            found[str(path.relative_to(top))] = told
        return found

    def swapping(self, top: Path) -> Iterator[None]:
        """For ever: `swap` is a folder of the share, then a link to what lies outside of it."""
        swap, away = top / "swap", top / "away"
        while True:
            swap.rename(away)
            swap.symlink_to(self.outside)
            yield
            swap.unlink()
            away.rename(swap)
            yield

    def swap(self, top: Path, say: Say) -> None:
        """A task for places.start, until it is stopped: it leaves the folder in its place."""
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
        for number, _ in enumerate(self.swapping(top)):
            if ended and number % 2:
                break
            time.sleep(0.0005)
        say(number)

    def read(self, top: Path, say: Say) -> None:
        """A task for places.start: reads as the guest does, and says what it saw when it is new."""
        seen: set[str] = set()
        while True:
            with contextlib.suppress(OSError):
                text = (top / "swap" / "word").read_text().strip()
                if text not in seen:
                    seen.add(text)
                    say(text)


def _open_folder(arena: Arena) -> Path:
    """A folder to be made, which others may reach when they know its name; removed with the arena,
    after its sandboxes. Raises Unproved where there is no place for it."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        top = Path(os.path.realpath(place))
        if all(each.stat().st_mode & 0o1 for each in (top, *top.parents)):
            break
    else:
        raise Unproved("not attacked: there is no folder for temporary files that others may enter")
    held = tempfile.TemporaryDirectory(prefix="box-escape-", dir=top)

    def remove() -> list[str]:
        held.cleanup()
        return []

    arena.closing.insert(0, remove)
    Path(held.name).chmod(0o711)
    return Path(held.name, secrets.token_hex(16))
