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
    return host_of(Layout(folder, folder / "run", WEB.instance))


def host_of(layout: Layout) -> Host:
    """With its registry of identities in the home as well."""
    return Host(
        layout=layout,
        config=Config(),
        facts=HostFacts(None, None, None),
        images=Images(layout.images),
        boot_files=BootFiles(layout.kernels),
        identities=IdentityRegistry(lock=layout.home / "lock", registry=layout.home / "ids.toml"),
        backends={},
    )
