"""The lab's disk: a small Debian with everything box needs, and the kernel that runs it under QEMU.

It is made once and kept outside the source tree, under a name that is the hash of all that went in,
and never written to again: a run works on a copy that is thrown away. What changes with every
commit (the wheel, the tests, the guest's kernel) comes on a second disk (`lab.py`). Only root can
make it; who may read it can use it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.cpio import archive, folder, regular
from reconcilers.kernel import uncompressed
from tests.lint.tree import ROOT
from tests.setup.freshroot import FreshRoot, fresh_root, sources

CACHE = Path("/var/cache/box/lab")
SUITE = "bookworm"
KERNEL_PACKAGE = "linux-image-amd64"  # the generic one: Debian's cloud kernel has no kvm
VENV = "/opt/box"
LOCKS = ("requirements-build.lock", "requirements-dev.lock")
BUILD_SECONDS = 900
ROOM = 3 << 30  # bytes the file system has beyond its content; the file is sparse

# Beside what `./dev` installs for box itself.
LAB_PACKAGES = ("iproute2", "kmod", "nftables", "passt", "procps", "uidmap")

# Needed to reach the two disks; everything else is loaded from the root by init.sh.
DISK_MODULES = ("virtio_pci", "virtio_blk", "ext4", "squashfs")
# Kinds of hardware that the lab's machine does not have; they are 250 MB.
UNUSED_MODULES = (
    "sound",
    "drivers/gpu",
    "drivers/media",
    "drivers/staging",
    "drivers/infiniband",
    "drivers/net/ethernet",
    "drivers/net/wireless",
    "drivers/scsi",
    "drivers/iio",
    "drivers/hwmon",
)

INSTALL = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends $PACKAGES
kernel=$(apt-cache depends --important {KERNEL_PACKAGE} | sed -n 's/^ *Depends: //p' | head -n 1)
cd /tmp
apt-get -q download "$kernel"
dpkg -x "$kernel"_*.deb unpacked # not into /: its lib/ would replace the link of that name
mv unpacked/lib/modules /usr/lib/modules
mv unpacked/boot/* /boot/
rm -r -- "$kernel"_*.deb unpacked
/usr/bin/python3 -m venv {VENV}
pip="{VENV}/bin/python -m pip --disable-pip-version-check --no-cache-dir install --progress-bar off"
$pip --require-hashes --no-deps -r /tmp/requirements-build.lock
$pip --require-hashes --no-deps --no-build-isolation --use-pep517 -r /tmp/requirements-dev.lock
release=${{kernel#linux-image-}}
for part in $UNUSED_MODULES; do rm -rf "/lib/modules/$release/kernel/$part"; done
depmod "$release"
for module in $DISK_MODULES; do modprobe -S "$release" --show-depends "$module"; done |
    sed -n 's/^insmod //p' | awk '!seen[$1]++ {{ print $1 }}' >/boot/disk-modules
# An ordinary user, with the subordinate ids that Debian's useradd gives, and kvm's group, which
# elsewhere udev brings along.
getent group kvm >/dev/null || groupadd --system kvm
useradd --create-home --shell /bin/bash --groups kvm lab
apt-get clean
rm -rf /var/lib/apt/lists/* /usr/share/doc /usr/share/man /usr/share/locale /tmp/requirements*
"""

# PID 1 of the first moment: find the disks, go on with what the second one says.
FIRST = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module" || echo "lab: $module cannot be loaded"; done
while ! [ -b /dev/vdb ]; do usleep 10000; done
mount -t ext4 -o noatime /dev/vda /root && mount -t squashfs -o ro /dev/vdb /root/job ||
    poweroff -f
umount /proc /sys
mount -o move /dev /root/dev
exec switch_root /root /bin/sh /job/init.sh
"""


@dataclass(frozen=True)
class LabImage:
    """What QEMU starts the lab from; none of it is ever written to."""

    root: Path
    kernel: Path
    initramfs: Path


def dev_packages() -> list[str]:
    """The Debian packages that `./dev` installs to run box."""
    text = (ROOT / "dev").read_text()
    table = text.partition("\nPACKAGES='")[2].partition("'")[0]
    return [line.partition("|")[0] for line in table.splitlines()]


def packages() -> list[str]:
    return sorted({*dev_packages(), *LAB_PACKAGES} - {"zstd"})


def key() -> str:
    """Changes with everything that goes into the image except the versions Debian has today."""
    parts = [sources(SUITE).encode(), " ".join(packages()).encode(), Path(__file__).read_bytes()]
    parts += [(ROOT / lock).read_bytes() for lock in LOCKS]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def missing() -> str:
    """Why no image can be had here; empty when there is one, or one can be made."""
    lacking = [t for t in ("qemu-system-x86_64", "mksquashfs") if shutil.which(t) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    if shutil.which("apt-get") is None:
        return "the lab is made of Debian packages, and this host has no apt"
    if (CACHE / key()).is_dir():
        return ""
    if os.geteuid() != 0:
        return f"there is no image in {CACHE} yet, and only root can make it (sudo ./dev kvm-lab)"
    if shutil.which("mmdebstrap") is None:
        return "not installed: mmdebstrap"
    return ""


def lab_image(say: Callable[[str], None]) -> LabImage:
    """From the cache, or made now (two minutes). Raises CalledProcessError or RuntimeError."""
    place = CACHE / key()
    if not place.is_dir():
        say(f"making the lab's image in {place} (once; it is kept)")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".making-") as scratch:
            ready = Path(scratch) / "ready"
            ready.mkdir()
            with fresh_root(SUITE, Path(scratch)) as root:
                _fill(root)
                say("installed; writing the file system")
                _take_kernel(root, ready)
                _write_root(root, ready / "root.ext4")
            ready.rename(place)
    return LabImage(place / "root.ext4", place / "vmlinux", place / "initramfs.cpio")


def _fill(root: FreshRoot) -> None:
    for lock in LOCKS:
        shutil.copyfile(ROOT / lock, root.path / "tmp" / lock)
    settings = {
        "PACKAGES": " ".join(packages()),
        "UNUSED_MODULES": " ".join(UNUSED_MODULES),
        "DISK_MODULES": " ".join(DISK_MODULES),
    }
    given = "".join(f'{name}="{value}"\n' for name, value in settings.items())
    done = root.run(given + INSTALL, timeout=BUILD_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"the lab's image could not be filled:\n{done.stdout[-4000:]}")


def _take_kernel(root: FreshRoot, ready: Path) -> None:
    """Kernel and first file system beside the image, where QEMU finds them."""
    (packed,) = (root.path / "boot").glob("vmlinuz-*")
    (ready / "vmlinux").write_bytes(uncompressed(packed.read_bytes()))
    names = (root.path / "boot/disk-modules").read_text().split()
    modules = [(root.path / name.lstrip("/")).read_bytes() for name in names]
    entries = [folder(name) for name in ("bin", "dev", "modules", "proc", "root", "sys")]
    entries += [
        regular("init", FIRST.encode(), 0o755),
        regular("bin/busybox", (root.path / "bin/busybox").read_bytes(), 0o755),
    ]
    for number, (name, content) in enumerate(zip(names, modules, strict=True)):
        entries.append(regular(f"modules/{number:02}-{Path(name).name}", content))
    (ready / "initramfs.cpio").write_bytes(archive(entries))
    shutil.rmtree(root.path / "boot")
    (root.path / "boot").mkdir()


def _write_root(root: FreshRoot, target: Path) -> None:
    # What the copy was given to reach this host's mirrors is of no use without a network.
    for name in ("etc/resolv.conf", "etc/host-ca.crt", "etc/pip.conf"):
        (root.path / name).unlink(missing_ok=True)
    (root.path / "etc/hosts").write_text("127.0.0.1 localhost lab\n::1 localhost\n")
    (root.path / "etc/hostname").write_text("lab\n")
    (root.path / "job").mkdir()
    used = subprocess.run(
        ["du", "-sxB1", str(root.path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    match = re.match(r"\d+", used)
    assert match, used
    with open(target, "wb") as file:
        file.truncate(int(match[0]) * 5 // 4 + ROOM)
    subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", str(root.path), str(target)],
        check=True,
        timeout=300,
    )
