"""What a bridged sandbox needs of this host, and what of it is lacking, with its fix."""

from __future__ import annotations

from reconcilers import pasta
from reconcilers.network import tables, taps
from reconcilers.network.surroundings import Surroundings
from specs.egress import Egress


def problem(around: Surroundings, egress: Egress, *, ordinary: bool) -> tuple[str, str]:
    """The first thing that is lacking, and its fix; two empty texts when nothing is. `ordinary`: it
    is a user's who is not root.
    """
    if not tables.installed():
        return "nft is not installed", "apt-get install nftables"
    if ordinary and not pasta.installed():
        return "passt is not installed, which carries its network", pasta.FIX
    if why := taps.unavailable():
        return f"{taps.DEVICE} cannot be opened: {why}", taps.fix()
    return around.problem(egress)
