"""Root images: pulled and built by box, over skopeo, tar and mksquashfs by hand; and what a second
sandbox on the same image costs.

By hand means what a careful person would type: the same layers from the same registry, laid over
each other by tar as root, the same compression, on the same file system, brought to the disk.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from bench import subject
from bench.measure import Row, Target, ratios
from reconcilers.images.store import Images
from reconcilers.images.verify import open_verified
from tests.registry import Registry, registry
from tests.vm.harness import TINY, Home, until

SLOWEST = 1.3
PAIRS = 9  # at least
LAYER_MIB = (90, 30)
FILE_MAX = 256 << 10  # bytes: many files cost more than few large ones
HASHED_MIB, HASHED_MS = 100, 50.0
NAME = "oak"
# Programs and data that every Debian has, so that files have the sizes files have.
FROM = (Path("/usr/lib"), Path("/usr/share"), Path("/usr/bin"))


def images(repeat: int) -> list[Row]:
    """A registry's image, the same as an archive, and the second sandbox on it."""
    count = max(repeat, PAIRS)
    with tempfile.TemporaryDirectory(prefix="boxbench-") as folder:
        where = Path(folder)
        with registry(where) as served, subject.new_home() as home:
            files = 0
            contents = []
            for layer, number in _layers():
                contents.append(layer)
                files += number
            served.layout.image("image", *contents)
            name = served.push("image", "bench/image:1")
            archive = where / "image.tar"
            subprocess.run(
                ["skopeo", "copy", "-q", f"oci:{served.layout.folder}:image",
                 f"oci-archive:{archive}"], check=True,
            )  # fmt: skip
            what = f"{sum(LAYER_MIB)} MiB, {files} files"
            home.stop()
            home.env["HOME"] = str(served.home)
            home.start()
            rows = _pairs(home, f"from a registry, {what}", name, f"docker://{name}", served, count)
            source = f"oci-archive:{archive}"
            rows += _pairs(home, f"from an archive, {what}", source, source, served, count)
        return rows + _second(where, count)


def _layers() -> Iterator[tuple[bytes, int]]:
    """Uncompressed layers of real files, each of so many MiB, and how many files are in it."""
    paths = (path for top in FROM for path in sorted(top.rglob("*")))
    usable = (path for path in paths if path.is_file() and not path.is_symlink())
    for mib in LAYER_MIB:
        out, number = io.BytesIO(), 0
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            while out.tell() < mib << 20:
                for path in islice(usable, 50):
                    if path.stat().st_size < FILE_MAX:
                        archive.add(path, path.relative_to("/"), recursive=False)
                        number += 1
        yield out.getvalue(), number


def _pairs(
    home: Home, what: str, base: str, source: str, served: Registry, count: int
) -> list[Row]:
    """Interleaved, in alternating order; the first of each fills the caches."""
    home.put(NAME, f"{TINY}state: stopped\nbase: {base}\n")
    until(lambda: _spec_is(home, base), 60, "the Boxfile is in force")
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(count + 1):
        for side in ("ours", "hand") if turn % 2 else ("hand", "ours"):
            subject.wait_host_idle(2.0)
            if side == "ours":
                _forget(home)
                took = _timed(lambda: home.box("build", NAME))
                ours += [took] if turn else []
            else:
                with tempfile.TemporaryDirectory(dir=home.path.parent) as folder:
                    took = _timed(lambda at=Path(folder): _by_hand(source, at, served))  # type: ignore[misc]
                theirs += [took] if turn else []
    return [
        Row("images", f"{what}: box build", "s", tuple(ours)),
        Row("images", f"{what}: by hand", "s", tuple(theirs)),
        Row("images", f"{what}: over by hand", "x", ratios(ours, theirs), Target(SLOWEST)),
    ]  # fmt: skip


def _spec_is(home: Home, base: str) -> bool:
    return f"base: {base}".encode() in home.box("describe", NAME, check=False).stdout


def _forget(home: Home) -> None:
    """As if it had never been pulled."""
    found = Images(home.path / "images")
    for digest in found.present():
        found.discard(digest, found.given)
    found.clear()
    (home.path / "images/refs.toml").unlink(missing_ok=True)


def _by_hand(source: str, folder: Path, served: Registry) -> None:
    script = f"""
        skopeo copy -q --dest-decompress {source} dir:{folder}/layers
        mkdir {folder}/root
        for layer in $(python3 -c 'import json
for each in json.load(open("{folder}/layers/manifest.json"))["layers"]:
    print(each["digest"].removeprefix("sha256:"))'); do
            tar --numeric-owner --xattrs -xpf {folder}/layers/$layer -C {folder}/root
        done
        mksquashfs {folder}/root {folder}/root.squashfs -comp lz4 -quiet -no-progress
        sync {folder}/root.squashfs
    """
    env = {**os.environ, "HOME": str(served.home)}
    subprocess.run(["sh", "-ec", script], env=env, check=True, stdout=subprocess.DEVNULL)


def _timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _second(where: Path, count: int) -> list[Row]:
    """What a boot has to do with an image that is here: find it, and compare it with its hash."""
    root = where / "hashed"
    root.mkdir()
    (root / "file").write_bytes(os.urandom(HASHED_MIB << 20))
    base = f"rootfs:{root}"
    found = Images(where / "images")
    image = found.build(base)
    shutil.rmtree(root)
    times: list[float] = []
    costs: list[float] = []
    for _ in range(count + 1):
        subject.wait_host_idle(2.0)
        began, before = time.monotonic(), time.thread_time()
        seen = found.observe(base)
        assert seen == image
        os.close(open_verified(seen))
        costs.append((time.thread_time() - before) * 1000)
        times.append((time.monotonic() - began) * 1000)
    size = image.path.stat().st_size >> 20
    what = f"a second sandbox, {size} MiB: work on the image"
    return [
        Row("images", f"{what}, CPU", "ms", tuple(costs[1:]), Target(HASHED_MS)),
        Row("images", f"{what}, by the clock", "ms", tuple(times[1:])),
    ]
