"""The initramfs on disk: what a crash or a stranger left there is never booted."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from reconcilers import boot
from reconcilers.boot import BootFiles
from reconcilers.images.builtin import BUSYBOX
from reconcilers.images.store import Images
from reconcilers.kernel import Kernel
from specs.errors import HostError

CONTENT = b"an initramfs"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    agent = tmp_path / "agent"
    agent.touch()
    monkeypatch.setattr(boot, "agent_binary", lambda: agent)
    monkeypatch.setattr(boot, "boot_modules", lambda kernel, features: ())
    monkeypatch.setattr(boot, "build_initramfs", lambda agent, modules: CONTENT)
    image = tmp_path / "vmlinuz"
    image.write_bytes(b"a kernel")
    return Kernel(image=image, release="6.1.0", modules=tmp_path)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_changed_initramfs_is_made_again(tmp_path: Path, kernel: Kernel, restarted: bool) -> None:
    files = BootFiles(tmp_path / "kernels")
    made = files.current(kernel).initramfs
    made.path.write_bytes(b"garbage")
    found = (BootFiles(tmp_path / "kernels") if restarted else files).current(kernel).initramfs
    assert (found.path, found.sha256) == (made.path, made.sha256)
    assert found.path.read_bytes() == CONTENT


def test_a_half_written_initramfs_is_removed(tmp_path: Path, kernel: Kernel) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / ".initramfs-abc.cpio.1").write_bytes(b"half")
    made = BootFiles(kernels).current(kernel).initramfs
    assert list(kernels.iterdir()) == [made.path]


def test_what_does_not_fit_is_named_and_leaves_no_half(tmp_path: Path, kernel: Kernel) -> None:
    kernels = tmp_path / "kernels"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT) // 2, hard))
    try:
        with pytest.raises(HostError, match="initramfs cannot be written") as caught:
            BootFiles(kernels).current(kernel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(kernels) in caught.value.fix
    assert list(kernels.iterdir()) == []


@pytest.mark.skipif(not BUSYBOX.exists(), reason="busybox-static is missing")
def test_a_half_built_image_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".build-abc/tree/bin").mkdir(parents=True)
    images = Images(tmp_path)
    images.sweep()
    made = images.build("builtin:busybox")
    assert list(tmp_path.iterdir()) == [made.path.parent]
