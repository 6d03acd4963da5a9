"""A host with nothing in it, for tests that need an actor and no VM."""

from __future__ import annotations

from pathlib import Path

from reconcilers.backend import HostFacts
from reconcilers.boot import BootFiles
from reconcilers.confinement.identity import IdentityRegistry
from reconcilers.host import Host
from reconcilers.images.store import Images
from reconcilers.layout import Layout
from specs.config import Config
from specs.names import HostNames

WEB = HostNames("0123456789ab", "web")


def host_in(folder: Path) -> Host:
    return Host(
        layout=Layout(folder, folder / "run", WEB.instance),
        config=Config(),
        facts=HostFacts(None, None, None),
        images=Images(folder / "images"),
        boot_files=BootFiles(folder / "kernels"),
        identities=IdentityRegistry(lock=folder / "lock", registry=folder / "ids.toml"),
        backends={},
    )
