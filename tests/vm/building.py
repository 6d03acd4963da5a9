"""What tests of builds look at: the image a sandbox has, and that nothing of a build is left."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from reconcilers.confinement.identity import IdentityRegistry
from specs.names import is_interface_of
from tests.vm.harness import Home, folders_in, until

# Of a build under emulation on two busy cores, seconds.
BUILT = 300.0


def nothing_at_work(home: Home) -> None:
    """No machine of a build, and nothing that one leaves behind when it is gone."""

    def left() -> list[str]:
        found = [str(path) for path in (home.path / "builds").glob(".*")]
        found += map(str, (home.path / "images").glob(".build-*"))
        found += map(str, home.runtime.glob(".b*"))
        spaces = os.listdir("/run/netns") if Path("/run/netns").is_dir() else []
        for instance in home.helpers:
            found += [name for name in spaces if is_interface_of(name, instance)]
            found += [str(p) for top in home.cgroups_of(instance) for p in folders_in(top)]
            found += IdentityRegistry().claimed(instance)
        return found + [f"VMM {pid}" for pid in home.helper_vmms()]

    until(lambda: not left(), 60, lambda: f"nothing of a build is left: {left()}; {home.log()}")


def message_of(home: Home, name: str, kind: str) -> str:
    for condition in home.report(name).get("conditions", []):
        if condition["type"] == kind:
            return str(condition["message"])
    return ""


def image_of(home: Home, name: str) -> str:
    """The image that a sandbox runs, once it is ready."""
    home.ready(name, BUILT)
    return message_of(home, name, "ImageReady")


def another_image(home: Home, name: str, former: str) -> str:
    """The image in the place of the `former`, once its VM runs."""

    def found() -> str:
        here = home.condition(name, "ImageReady")[0] == "True"
        message = message_of(home, name, "ImageReady") if here else former
        return message if message != former else ""

    message = str(until(found, BUILT, f"{name} has another image; {home.log()}"))
    home.ready(name, BUILT)
    return message


def failed(home: Home, name: str) -> str:
    """Why the build of a sandbox failed."""

    def why() -> str:
        for each in home.report(name).get("conditions", []):  # of one report: another may follow
            if (each["type"], each["reason"]) == ("ImageReady", "BuildFailed"):
                return str(each["message"])
        return ""

    return str(until(why, BUILT, f"the build of {name} fails; {home.log()}"))


def steps(*lines: str) -> str:
    """The part of a Boxfile with these steps."""
    return "run:\n" + "".join(f"  - |\n    {line}\n" for line in lines)


def whole_images(home: Home) -> dict[str, bool]:
    """The images that have a name, each whole, and whether it was built by steps."""
    found = {}
    for folder in (home.path / "images").glob("*"):
        if not re.fullmatch("[0-9a-f]{64}", folder.name):
            continue
        digest = hashlib.sha256((folder / "root.squashfs").read_bytes()).hexdigest()
        assert digest == (folder / "sha256").read_text().strip()
        about = folder / "about.json"
        found[folder.name] = about.exists() and "built_on" in json.loads(about.read_text())
    return found
