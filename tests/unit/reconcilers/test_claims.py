"""The claims a host remembers, against a registry that others change too."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconcilers.backend import HostFacts
from reconcilers.boot import BootFiles
from reconcilers.confinement.identity import IdentityRegistry
from reconcilers.host import Host
from reconcilers.images.store import Images
from reconcilers.layout import Layout
from specs.config import Config

OURS, THEIRS = "0123456789ab", "ba9876543210"


class Slow(IdentityRegistry):
    """A registry that somebody looks into between the release and whatever follows it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lock=folder / "lock", registry=folder / "ids.toml")
        self.host: Host | None = None

    def release(self, instance: str, sandbox: str) -> None:
        super().release(instance, sandbox)
        if self.host is not None:
            self.host.restore_claims()


@pytest.fixture
def registry(tmp_path: Path) -> Slow:
    return Slow(tmp_path)


@pytest.fixture
def host(tmp_path: Path, registry: Slow) -> Host:
    return Host(
        layout=Layout(tmp_path, tmp_path / "run", OURS),
        config=Config(),
        facts=HostFacts(None, None, None),
        images=Images(tmp_path / "images"),
        boot_files=BootFiles(tmp_path / "kernels"),
        identities=registry,
        backends={},
    )


def test_a_claim_the_registry_lost_is_entered_again(host: Host, tmp_path: Path) -> None:
    uid = host.claim("web")
    (tmp_path / "ids.toml").unlink()
    assert host.restore_claims() == ["web"]
    assert host.identities.claimed(OURS) == {"web": uid}


def test_a_scan_during_a_release_does_not_enter_the_claim_again(host: Host, registry: Slow) -> None:
    host.claim("web")
    registry.host = host
    host.release("web")
    assert registry.claimed(OURS) == {}


def test_a_strict_sandbox_never_takes_over_what_standard_ones_share(host: Host) -> None:
    shared = host.standard_uid()
    host.adopt_claim("web", shared)  # its VMM still runs as before `isolation` was changed
    assert host.claimed_uid("web", "strict") is None
    assert host.claim("web") != shared


def test_an_identity_that_another_home_was_given_meanwhile_is_not_shared(
    host: Host, registry: Slow, tmp_path: Path
) -> None:
    uid = host.claim("web")
    host.claim("db")
    (tmp_path / "ids.toml").unlink()
    registry.adopt(THEIRS, "web", uid)
    assert host.restore_claims() == ["db"]
    assert host.claimed_uid("web", "strict") is None
    assert host.claim("web") != uid
