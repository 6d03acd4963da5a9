"""Every place that no mount may lead to, as the controller puts the list together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reconcilers import mounts
from reconcilers.layout import Layout
from reconcilers.mountplaces import forbidden_places
from reconcilers.mounts import Rules
from specs.boxfile import Boxfile
from specs.config import Config

# Each part of a home lies somewhere else, and the home holds a link to it.
PARTS = {
    "boxes": "the watched folder",
    "disks": "the data disks",
    "images": "the images",
    "state": "the records of the controller",
    "kernels": "the guest kernels",
}


class Host:
    """A home whose every part is a link, and the rules that follow from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "somewhere/home"
        self.home.mkdir(parents=True)
        for part in PARTS:
            self.part(part).mkdir(parents=True)
            (self.home / part).symlink_to(self.part(part))
        for file in ("policy", "kernel"):
            (folder / f"elsewhere/of-{file}").mkdir()
        (folder / "elsewhere/of-policy/real.toml").write_text("")
        (self.home / "policy.toml").symlink_to(folder / "elsewhere/of-policy/real.toml")
        self.runtime = folder / "runs/instance"
        self.runtime.mkdir(parents=True)
        self.claims = folder / "claims"
        self.claims.mkdir()
        layout = Layout(self.home, self.runtime, "0123456789ab")
        config = Config(kernel=str(folder / "elsewhere/of-kernel/vmlinux"))
        self.rules = Rules(forbidden_places(layout, config, self.claims))

    def part(self, name: str) -> Path:
        return self.folder / "elsewhere" / name / "itself"

    def why(self, path: Path | str, mode: str = "ro") -> str:
        shared = [{"host": str(path), "guest": "/src", "mode": mode}]
        box = Boxfile.model_validate({"name": "oak", "mounts": shared})
        found, refused = mounts.look(box, self.rules)
        assert len(found) + len(refused) == 1
        return refused[0].why if refused else ""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_is_none_of_them_may_be_shared(host: Host) -> None:
    beside = host.folder / "elsewhere/beside"
    beside.mkdir()
    assert host.why(beside) == host.why(beside, "rw") == ""


@pytest.mark.parametrize("mode", ["ro", "rw"])
@pytest.mark.parametrize(
    "path",
    ["/proc", "/sys", "/dev", "/proc/self/fd", "/proc/1", "/sys/fs", "/sys/kernel", "/dev/pts"]
    + ["/dev/../proc/./sys/"],
)
def test_the_kernels_own_files_are_never_shared(host: Host, path: str, mode: str) -> None:
    assert host.why(path, mode).startswith("it is, or lies in, /"), path


def test_the_root_is_never_shared_by_another_name(host: Host) -> None:
    """Written out it is refused with the Boxfile (tests/unit/specs/test_mountpaths.py)."""
    link = host.folder / "link"
    link.symlink_to("/")
    for path in (link, "/proc/self/root", link / "usr/.."):
        assert host.why(path) == "the whole host is never shared"


def refused(host: Host, place: Path, what: str) -> None:
    """It, what is in it, what holds it, and a link to each."""
    (place / "inner").mkdir()
    wanted: dict[Path, Callable[[str], bool]] = {
        place: f"it is, or lies in, {what}".__eq__,
        place / "inner": f"it is, or lies in, {what}".__eq__,
        place.parent: lambda why: why.startswith(("it holds ", "it is, or lies in, the runtime")),
    }
    for number, (path, right) in enumerate(wanted.items()):
        link = host.folder / f"link{number}"
        link.symlink_to(path)
        for named in (path, link, link / "../" / path.name):
            for mode in ("ro", "rw"):
                assert right(host.why(named, mode)), (named, host.why(named, mode))


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_the_home_is_shared_wherever_it_really_lies(host: Host, part: str) -> None:
    refused(host, host.part(part), PARTS[part])
    assert host.why(host.home / part) == f"it is, or lies in, {PARTS[part]}"


def test_home_runtime_directory_and_registry_are_not_shared(host: Host) -> None:
    for place, what in (
        (host.home, "the home of box"),
        (host.runtime, "the runtime directory"),
        (host.claims, "the registry of identities"),
    ):
        refused(host, place, what)
        for number in range(3):
            (host.folder / f"link{number}").unlink()


def test_what_holds_the_policy_or_a_named_kernel_is_not_shared(host: Host) -> None:
    """Also a kernel that is not there yet: whoever can make it decides what boots."""
    assert host.why(host.folder / "elsewhere/of-policy") == "it holds the policy"
    assert host.why(host.folder / "elsewhere/of-kernel") == "it holds the guest kernel"


@pytest.mark.parametrize("path", ["/var/cache/box", "/var/cache", "/run/box", "/run"])
def test_what_all_homes_of_a_host_have_in_common_is_not_shared(host: Host, path: str) -> None:
    assert host.why(path) in (
        "it is, or lies in, the guest kernels", "it holds the guest kernels",
        "it is, or lies in, the runtime directories", "it holds the runtime directories",
        "it does not exist",
        f"the user of the controller (UID {os.geteuid()}) may not go there",  # root's, of its own
    )  # fmt: skip
