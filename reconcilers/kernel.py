"""Find the guest kernel, fetch Debian's when asked, and pick the modules the guest agent needs.

A kernel is a directory: `vmlinux` (uncompressed, so that QEMU boots it by PVH without a
decompressor running under emulation) and `modules/`. Nothing here is run on the host: Debian's
package is downloaded and unpacked, never installed.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import lz4.block

from reconcilers.process import run
from specs.config import Config
from specs.errors import BoxError, HostError

SYSTEM_CACHE = Path("/var/cache/box/kernels")
DEBIAN_PACKAGE = "linux-image-cloud-amd64"
FETCH_FIX = (
    "./dev setup fetches Debian's cloud kernel, or name one with `kernel = ...` in config.toml"
)

# What the agent needs before it can mount anything: transport, disks, the channel, the two file
# systems. ext4 is built into Debian's kernel; one that is not built in comes from here as well.
WANTED_MODULES = (
    "virtio_mmio",
    "virtio_console",
    "virtio_blk",
    "squashfs",
    "overlay",
    "ext4",
)
# Each costs a guest that does not need it a few hundredths of a second, so it is not given any.
FEATURE_MODULES: Mapping[str, tuple[str, ...]] = {
    "mounts": ("fuse", "virtiofs"),
    "network": ("virtio_net",),
}

_ELF_MAGIC = b"\x7fELF"
# Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length.
_SETUP_SECTS, _PAYLOAD = 0x1F1, 0x248
_LZ4_LEGACY_MAGIC = b"\x02\x21\x4c\x18"
_LZ4_LEGACY_CHUNK = 8 << 20
_KEPT = "modules.kept"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Kernel:
    """A bootable guest kernel. `modules` is None when everything is built in."""

    image: Path
    modules: Path | None
    release: str


def find_kernel(config: Config, kernels: Path) -> Kernel:
    """The kernel the configuration names, else the one fetched. Raises HostError with the fix."""
    if config.kernel is not None:
        chosen = Path(config.kernel).expanduser()
        if chosen.is_dir():
            return _from_directory(chosen)
        if not chosen.is_file():
            raise HostError(
                f"the kernel {chosen} named in config.toml does not exist", fix=FETCH_FIX
            )
        modules = Path(config.modules).expanduser() if config.modules else None
        if modules is not None and not modules.is_dir():
            raise HostError(f"the modules folder {modules} named in config.toml does not exist")
        return Kernel(chosen, modules, release=_known_release(chosen))
    for root in (kernels, SYSTEM_CACHE):
        current = root / "current"
        if current.is_dir():
            return _from_directory(current.resolve())
    raise HostError("no guest kernel is here", fix=FETCH_FIX)


def _from_directory(folder: Path) -> Kernel:
    image = folder / "vmlinux"
    if not image.is_file():
        raise HostError(f"{folder} holds no vmlinux", fix=FETCH_FIX)
    modules = folder / "modules"
    # A folder may have any name: what its kernel calls itself is in the kernel.
    return Kernel(image, modules if modules.is_dir() else None, release=_known_release(image))


def _known_release(image: Path) -> str:
    facts = image.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return _release_once(image, key)


@lru_cache(maxsize=8)
def _release_once(image: Path, key: tuple[int, ...]) -> str:
    """Every pass asks, and an image is 50 MB: it is read once as long as `key` stays the same."""
    return release_of(image)


def release_of(image: Path) -> str:
    """The release a kernel image says it is: uname(2)'s, from its banner or its boot header. Raises
    HostError.
    """
    data = image.read_bytes()
    if data[:4] != _ELF_MAGIC and data[0x202:0x206] == b"HdrS":
        # Documentation/arch/x86/boot.rst: kernel_version is an offset, less 0x200, to a string.
        (offset,) = struct.unpack_from("<H", data, 0x20E)
        words = data[offset + 0x200 : offset + 0x200 + 128].split(b"\0")[0].split()
        release = words[0] if words else b""
    else:
        match = re.search(rb"Linux version (\S+) \(", data)
        release = match.group(1) if match else b""
    if not release:
        raise HostError(
            f"{image} does not say which kernel it is", fix="name a vmlinux or a bzImage"
        )
    return release.decode("ascii", "replace")


def boot_modules(
    kernel: Kernel, features: Collection[str] = frozenset()
) -> list[tuple[str, bytes]]:
    """The wanted modules, those of `features` (keys of FEATURE_MODULES) and what they depend on,
    each as (name, content), in the order to load them.

    Debian's unpacked package has no modules.dep (depmod writes it at install time), so the
    dependencies are read from each module's own .modinfo section.
    """
    if kernel.modules is None:
        return []
    files = {
        re.sub(r"\.ko(\.\w+)?$", "", path.name).replace("-", "_"): path
        for path in kernel.modules.rglob("*.ko*")
    }
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded:
            return
        path = files.get(name)
        if path is None:
            # Built into this kernel, then; if it is not, the agent's own error names what it could
            # not mount.
            return
        content = _decompressed_module(path)
        for dependency in _dependencies(content):
            load(dependency)
        loaded[name] = content

    more = (name for feature in sorted(features) for name in FEATURE_MODULES[feature])
    for name in (*WANTED_MODULES, *more):
        load(name)
    return list(loaded.items())


def _decompressed_module(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".ko":
        return data
    raise HostError(f"{path} is compressed in a way box cannot read")


def _dependencies(module: bytes) -> list[str]:
    match = re.search(rb"\0depends=([^\0]*)\0", module)
    names = match.group(1).decode("ascii") if match else ""
    return [name.replace("-", "_") for name in names.split(",") if name]


def uncompressed(image: bytes) -> bytes:
    """The ELF inside a bzImage (or the ELF itself). Raises HostError for a compression it cannot
    read.
    """
    if image[:4] == _ELF_MAGIC:
        return image
    if image[0x202:0x206] != b"HdrS":
        raise HostError("the kernel is neither an ELF file nor a bzImage")
    setup = (image[_SETUP_SECTS] or 4) + 1
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    payload = image[setup * 512 + offset : setup * 512 + offset + length]
    if payload[:4] == _LZ4_LEGACY_MAGIC:
        elf = _unlz4_legacy(payload)
    elif payload[:4] == _ZSTD_MAGIC:
        elf = _unzstd(payload[:-4])
    elif payload[:2] == b"\x1f\x8b":
        elf = gzip.decompress(payload[:-4])
    elif payload[:6] == b"\xfd7zXZ\x00":
        elf = lzma.LZMADecompressor().decompress(payload)
    elif payload[:3] == b"BZh":
        elf = bz2.BZ2Decompressor().decompress(payload)
    else:
        raise HostError(
            f"the kernel is compressed in a way box cannot read (magic {payload[:4].hex()})",
            fix="name an uncompressed vmlinux with `kernel = ...` in config.toml",
        )
    if elf[:4] != _ELF_MAGIC:
        raise HostError("the kernel image holds no ELF file")
    return elf


def _unzstd(payload: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        packed, unpacked = Path(scratch, "kernel.zst"), Path(scratch, "kernel")
        packed.write_bytes(payload)
        run(["zstd", "-q", "-d", str(packed), "-o", str(unpacked)])
        return unpacked.read_bytes()


def _unlz4_legacy(payload: bytes) -> bytes:
    # The kernel's build appends the unpacked size (4 bytes) after the last chunk; it reads as an
    # impossible chunk.
    out, position = bytearray(), 4
    while position + 4 <= len(payload):
        (size,) = struct.unpack_from("<I", payload, position)
        position += 4
        if position + size > len(payload):
            break
        out += lz4.block.decompress(
            payload[position : position + size], uncompressed_size=_LZ4_LEGACY_CHUNK
        )
        position += size
    return bytes(out)


def fetch(cache: Path = SYSTEM_CACHE) -> Kernel:
    """Download Debian's cloud kernel package and unpack it under `cache`; `cache/current` then
    names it.

    Idempotent; a release already there is not fetched again. Raises CommandError or HostError.
    """
    cache.mkdir(parents=True, exist_ok=True)
    listing = run(["apt-cache", "depends", "--important", DEBIAN_PACKAGE])
    match = re.search(r"Depends: (linux-image-(\S+cloud-amd64))", listing)
    if match is None:
        raise HostError(f"apt knows no {DEBIAN_PACKAGE}", fix="run apt-get update and try again")
    package, release = match.groups()
    target = cache / release
    if not _is_complete(target):
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
            _unpack(package, release, Path(scratch), target)
    link = cache / f".current-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(release)
    link.rename(cache / "current")
    return _from_directory(target)


def _unpack(package: str, release: str, scratch: Path, target: Path) -> None:
    os.chmod(scratch, 0o755)  # apt's sandbox user warns when it cannot look in
    run(["apt-get", "download", "-q", package], cwd=scratch, timeout=600)
    (archive,) = scratch.glob("*.deb")
    run(["dpkg-deb", "-x", str(archive), str(scratch / "root")])
    root = scratch / "root"
    modules = next(
        path for path in (root / "lib/modules", root / "usr/lib/modules") if path.is_dir()
    )
    ready = scratch / "ready"
    ready.mkdir()
    image = (root / f"boot/vmlinuz-{release}").read_bytes()
    (ready / "vmlinux").write_bytes(uncompressed(image))
    shutil.move(modules / release, ready / "modules")
    # Only what may be loaded is kept: the package is 100 MB unpacked, these are 2.
    unpacked = Kernel(ready / "vmlinux", ready / "modules", release)
    _keep_only(ready / "modules", boot_modules(unpacked, FEATURE_MODULES))
    (ready / _KEPT).write_text(_kept())
    with open(ready / "vmlinux", "rb") as file:
        os.fsync(file.fileno())
    if target.exists():  # fetched by a version that kept fewer modules
        target.rename(scratch / "former")
    ready.rename(target)


def _kept() -> str:
    """What a fetched kernel holds, so that one that an older version fetched is told apart."""
    return " ".join((*WANTED_MODULES, *(n for names in FEATURE_MODULES.values() for n in names)))


def _is_complete(target: Path) -> bool:
    kept = target / _KEPT
    return (target / "vmlinux").is_file() and kept.is_file() and kept.read_text() == _kept()


def _keep_only(modules: Path, wanted: list[tuple[str, bytes]]) -> None:
    shutil.rmtree(modules)
    modules.mkdir()
    for name, content in wanted:
        (modules / f"{name}.ko").write_bytes(content)


def main(arguments: list[str]) -> int:
    """`python -m reconcilers.kernel fetch`: what `./dev setup` calls."""
    if arguments != ["fetch"]:
        print("usage: python -m reconcilers.kernel fetch", file=sys.stderr)
        return 2
    try:
        kernel = fetch()
    except BoxError as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    print(f"guest kernel {kernel.release} is in {kernel.image.parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
