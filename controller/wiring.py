"""Puts the shared parts of one home together. The only place that knows which implementation stands
behind which part.
"""

from __future__ import annotations

import os

from controller import files
from reconcilers import kvmprobe
from reconcilers.accel import KvmProbe
from reconcilers.backends.qemu import Qemu
from reconcilers.boot import BootFiles
from reconcilers.confinement.identity import IdentityRegistry
from reconcilers.host import Host
from reconcilers.hostfacts import read_host
from reconcilers.images.store import Images
from reconcilers.layout import Layout
from reconcilers.network.networks import Networks
from reconcilers.network.usernetworks import UserNetworks
from specs.config import Config, parse_config

CONFIG_MAX = 64 << 10


def load_config(layout: Layout) -> Config:
    """`config.toml`, or the defaults where there is none. Raises InvalidBoxfile, HostError."""
    try:
        data = files.read_bounded(layout.config, CONFIG_MAX)
    except FileNotFoundError:
        return Config()
    return parse_config(data, str(layout.config))


def build_host(layout: Layout, config: Config) -> Host:
    """Every shared part of `layout`'s home (blocking: asks QEMU for its version)."""
    host = Host(
        layout=layout,
        config=config,
        facts=read_host(config),
        images=Images(layout.images),
        boot_files=BootFiles(layout.kernels),
        identities=IdentityRegistry(),
        backends={"qemu": Qemu()},
        networks=Networks(config) if os.geteuid() == 0 else UserNetworks(config, layout),
    )
    host.kvm = KvmProbe(
        layout.kernels / "kvm-probe.json",
        lambda: kvmprobe.boot_once(host),
        config.kvm_probe_seconds,
    )
    return host
