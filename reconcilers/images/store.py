"""Root images: read-only squashfs files, content-addressed, built once and shared by every sandbox.

A VMM gets a read-only descriptor of the file; nothing here ever hands out a path a guest could
write. The digest names what went in, and the file's own hash is compared before each boot.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from reconcilers.facts import Image
from reconcilers.images import about, builtin, sources
from reconcilers.images.progress import Board, Progress
from reconcilers.images.refs import Refs
from reconcilers.images.rootwrite import write_root
from reconcilers.images.tree import BadImage
from reconcilers.images.turns import Turns
from reconcilers.images.verify import hashes
from reconcilers.mounts import Rules
from reconcilers.process import GivenUp, run
from reconcilers.smallfile import read_small, stat_signature
from specs.errors import HostError
from specs.imagename import BUSYBOX, BadImageName, Builtin, ImageName, parse_image

# Part of every digest but the builtin one's: raise it whenever the same source makes another tree.
_RECIPE = "box image 1"
_STAGING, _GONE = ".build-", ".gone-"
# How many images are fetched or made at once; whoever waits for the same one takes a place, too.
_AT_ONCE = 8
# Of these from one registry, so that one which hangs leaves places for the others.
_OF_ONE = 4
_LOCK_SECONDS = 0.2
_DIGEST = re.compile("[0-9a-f]{64}")
OWN = str(Builtin(BUSYBOX))
"""What the machines of box itself start from."""


class Images:
    """The images folder of one home."""

    def __init__(self, folder: Path) -> None:
        self.folder = self._folder = folder
        self.board = Board()
        self._refs = Refs(folder)
        self._builtin: tuple[tuple[int, ...], str] = ((), "")
        self._locks: dict[str, threading.Lock] = {}
        self._makers: dict[str, Progress] = {}  # who makes the image of a name just now
        self._taking: Counter[str] = Counter()  # how many builds need each digest
        self._given = 0  # how often a build needed one no longer
        self._counting = threading.Lock()  # held for moments
        self._placing = threading.Lock()
        # Of its own: a download of an hour takes no thread that a pass waits for.
        self.pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="image")
        self.turns = Turns(_OF_ONE)

    def digest_for(self, base: str) -> str:
        """The digest of its image; empty while nobody knows what it stands for. Raises HostError,
        OSError.
        """
        name = parse_image(base)
        if not isinstance(name, Builtin):
            identity = self._refs.get(str(name))
            return _digest(name, identity) if identity else ""
        signature = stat_signature(builtin.BUSYBOX)
        if self._builtin[0] != signature or not signature:
            self._builtin = (signature, builtin.wanted_digest())
        return self._builtin[1]

    def observe(self, base: str) -> Image | None:
        """The image of `base` if it is here whole; None when it must be built. Raises HostError."""
        digest = self.digest_for(base)
        return self._whole(digest) if digest else None

    def at(self, digest: str) -> Image | None:
        """The image with this digest if it is here whole."""
        return self._whole(digest)

    def _whole(self, digest: str) -> Image | None:
        folder = self._folder / digest
        try:
            sha256 = read_small(folder / "sha256").decode().strip()
        except (OSError, HostError, UnicodeDecodeError):
            return None
        try:
            blake3 = read_small(folder / "blake3").decode().strip()
        except (OSError, HostError, UnicodeDecodeError):
            blake3 = ""  # an older version built it
        path = folder / "root.squashfs"
        if not path.is_file():
            return None
        return Image(digest, sha256, path, blake3)

    def present(self) -> dict[str, Image | None]:
        """Every image here by its digest, None for one that is not whole. Raises OSError."""
        try:
            names = [each for each in os.listdir(self._folder) if _DIGEST.fullmatch(each)]
        except FileNotFoundError:
            return {}
        return {name: self._whole(name) for name in sorted(names)}

    def named(self) -> dict[str, list[str]]:
        """The names that mean each digest now. Raises HostError, OSError."""
        found: dict[str, list[str]] = {self.digest_for(OWN): [OWN]}
        for name, identity in self._refs.all().items():
            with suppress(BadImageName):  # somebody wrote it into the file
                found.setdefault(_digest(parse_image(name), identity), []).append(name)
        return found

    def meaning(self, base: str) -> str:
        """What a base that is not built in was found to mean; empty when it was never looked up.
        Raises HostError, OSError.
        """
        return self._refs.get(str(parse_image(base)))

    def forget(self, names: Iterable[str]) -> None:
        """What these names mean is looked up anew when it is needed again, but where a build has
        meanwhile given what one means. Raises as above.
        """
        self._refs.drop([name for name in names if self.observe(name) is None])

    def build(
        self,
        base: str,
        stop: threading.Event | None = None,
        rules: Rules | None = None,
        *,
        progress: Progress | None = None,
        again: bool = False,
    ) -> Image:
        """Fetch and build the image of `base` (blocking). A failed build leaves nothing. One that
        was built while this call waited for another is returned as it is.

        `rules` say what of this host may not be read. `again`: what the base stands for is looked
        up also when that is known, and is from then on what was found. Raises BoxError, OSError;
        GivenUp when `stop` is set.
        """
        name, stop = parse_image(base), stop or threading.Event()
        progress = progress or Progress()
        with self._alone(str(name), stop, progress):
            found = None if again and not isinstance(name, Builtin) else self.observe(base)
            return found or self._build(name, stop, rules, progress, again)

    def sweep(self) -> None:
        """Remove what a killed controller had begun. Only while nothing is being built."""
        for leftover in self._folder.glob(f"{_STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.clear()

    @property
    def given(self) -> int:
        """Another number after each build that gave an image, or was made on one."""
        with self._counting:
            return self._given

    def discard(self, digest: str, given: int) -> bool:
        """Take an image out of use at once; `clear` frees its space. False while it is `taken`, or
        an image is being placed, or when a build has ended since `given` was read: whoever found
        that nobody uses the image has to look again. Raises OSError.

        What a VMM has open stays readable to it.
        """
        if not self._placing.acquire(blocking=False):
            return False
        try:
            with self._counting:
                if self._taking[digest] or self._given != given:
                    return False
                (self._folder / digest).rename(self._folder / f"{_GONE}{secrets.token_hex(8)}")
            return True
        finally:
            self._placing.release()

    def clear(self) -> None:
        """Free the space of discarded images (blocking)."""
        for leftover in self._folder.glob(f"{_GONE}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def _alone(self, name: str, stop: threading.Event, progress: Progress) -> Iterator[None]:
        lock = self._locks.setdefault(name, threading.Lock())
        while not lock.acquire(timeout=_LOCK_SECONDS):
            progress.follow(self._makers.get(name))
            if stop.is_set():
                raise GivenUp("the image is not wanted any more")
        progress.follow(None)
        self._makers[name] = progress
        try:
            yield
        finally:
            self._makers.pop(name, None)
            lock.release()

    @contextmanager
    def taken(self, digest: str) -> Iterator[None]:
        """Nobody discards this image meanwhile: a build gives it, or is made on it."""
        with self._counting:
            self._taking[digest] += 1
        try:
            yield
        finally:
            with self._counting:
                self._taking[digest] -= 1
                self._given += 1

    def _build(
        self,
        name: ImageName,
        stop: threading.Event,
        rules: Rules | None,
        progress: Progress,
        again: bool,
    ) -> Image:
        with self.scratch() as scratch:
            ready = scratch / "ready"
            if isinstance(name, Builtin):
                progress.stage("writing the image")
                _squash_builtin(scratch / "tree", ready / "root.squashfs")
                return self.place(ready, self.digest_for(str(name)))
            try:
                known = "" if again else self._refs.get(str(name))
                with ExitStack() as kept:
                    source = sources.opened(name, known, scratch, rules, stop, kept, progress)
                    digest = _digest(name, source.identity)
                    with self.taken(digest):
                        image = self._whole(digest)  # another name's, or it has not moved
                        if image is None:
                            image = self._made(name, source, scratch, stop, progress)
                        # Last: a name is known only together with its image.
                        self._refs.put(str(name), source.identity)
                        return image
            except BadImage as error:
                text = f"{name}: {error.message.removeprefix(f'{name}: ')}"
                raise BadImage(text, fix=error.fix) from error

    def _made(
        self,
        name: ImageName,
        source: sources.Source,
        scratch: Path,
        stop: threading.Event,
        progress: Progress,
    ) -> Image:
        found = source.load()
        replaced = write_root(found, scratch / "ready/root.squashfs", stop, progress)
        found.unchanged()
        notes = [*replaced]
        if found.devices:
            notes.append(f"{found.devices} devices are left out: a guest has its own")
        text = about.written(str(name), source.identity, found.settings, notes)
        (scratch / "ready" / about.NAME).write_text(text)
        progress.stage("bringing the image to the disk")
        return self.place(scratch / "ready", _digest(name, source.identity))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder with an empty `ready` in it for a new image, gone afterwards."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=_STAGING) as scratch:
            (Path(scratch) / "ready").mkdir()
            yield Path(scratch)

    def place(self, ready: Path, digest: str) -> Image:
        """Give what was made its name, durably: `ready` with root.squashfs in it (blocking)."""
        target = ready / "root.squashfs"
        sha256, blake3 = hashes(target)
        (ready / "sha256").write_text(sha256 + "\n")
        (ready / "blake3").write_text(blake3 + "\n")
        _sync(*ready.iterdir(), ready)
        final = self._folder / digest
        with self._placing:
            there = self._whole(digest)
            if there is not None:
                return there  # made meanwhile, under another name
            if final.exists():
                shutil.rmtree(final)  # what is there was found incomplete or changed
            ready.rename(final)
            _sync(self._folder)
        return Image(digest, sha256, final / "root.squashfs", blake3)


def _squash_builtin(tree: Path, target: Path) -> None:
    builtin.busybox_tree(tree)
    run(
        ["mksquashfs", str(tree), str(target), "-quiet", "-no-progress", "-noappend"]
        + ["-comp", "lz4", "-all-root", "-mkfs-time", "0", "-all-time", "0", "-no-xattrs"]
    )
    os.chmod(target, 0o444)


def _digest(name: ImageName, identity: str) -> str:
    parts = (_RECIPE, type(name).__name__, identity)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
