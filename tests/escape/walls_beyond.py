"""Walls that are not the jail's: the agent's channel and the network, as the saboteur takes them.

Importing this module adds them to `walls.WALLS`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from reconcilers.network import innerclient, links, nftjson
from reconcilers.network.wanted import MARK
from specs.errors import ProtocolError
from tests.escape.saboteur import Product
from tests.escape.walls import wall

# -- the channel


@wall("bounded frames")
def _bounded_frames(product: Product) -> None:
    """A frame may have any length, and bytes that are no frame are skipped."""
    product.replace("agent.codec.PAYLOAD_MAX", 1 << 32)

    def feed(real: Any, decoder: Any, data: bytes) -> Iterator[Any]:
        try:
            yield from real(decoder, data)
        except ProtocolError:
            decoder._broken = False

    product.around("agent.codec.Decoder.feed", feed)


@wall("strict protocol")
def _strict_protocol(product: Product) -> None:
    """What nobody asked for, and more than was asked for, is no mistake of a guest."""

    def handle(real: Any, client: Any, frame: Any) -> None:
        with contextlib.suppress(ProtocolError):
            real(client, frame)

    product.around("agent.client.AgentClient._handle", handle)


@wall("limited patience")
def _patience(product: Product) -> None:
    """A guest may take as long as it likes to say hello."""
    product.replace("reconcilers.guest.ANSWER_TIMEOUT", 3600.0)


@wall("lost is lost")
def _lost_is_lost(product: Product) -> None:
    """A command whose channel broke has ended well."""
    product.around("agent.client.Exit", lambda exit, *_: exit("exit", 0, ""))


@wall("escaped words")
def _escaped_words(product: Product) -> None:
    """A guest's words are handed on as they came; the client shows them so (impostors.py)."""
    product.replace("agent.messages.visible", lambda text, limit=200: text)


# -- the network


@wall("network rules")
def _network_rules(product: Product) -> None:
    """The rules of a sandbox accept what they would drop, and lead every port to the resolver."""
    accept_everything(product)
    # an ordinary user's are made by a process of their own
    begin, imports, end = innerclient._BOOTSTRAP.rpartition("from reconcilers")
    taken = "from tests.escape.walls_beyond import in_the_worker; in_the_worker(); "
    product.replace("reconcilers.network.innerclient._BOOTSTRAP", begin + taken + imports + end)


def in_the_worker() -> None:
    """Until this process ends."""
    accept_everything(Product(contextlib.ExitStack(), []))


def accept_everything(product: Product) -> None:
    """To be done wherever rules are made."""
    mark = nftjson.set_mark(MARK)
    product.replace("reconcilers.network.rules.DROP", nftjson.ACCEPT)
    product.replace("reconcilers.network.rules.count", lambda name: mark)
    product.replace("reconcilers.network.nftjson.ports", lambda *numbers: [])
    product.around(
        "reconcilers.network.nftjson.Table.base_chain",
        lambda real, table, *place: real(table, *place[:-1], "accept"),
    )


@wall("no IP port")
def _no_ip_port(product: Product) -> None:
    """The controller listens at all addresses."""
    listening = socket.create_server(("0.0.0.0", 0))
    product.stack.enter_context(listening)


@wall("nothing left of a network")
def _clean_networks(product: Product) -> None:
    """Beside the links of a deleted sandbox another one stays.

    A bridge, as not every kernel has dummies. Its name is of no sandbox, so no later pass finds it.
    """

    def removed(real: Any, networks: Any, names: Any) -> None:
        real(networks, names)
        with links.netlink() as ip:
            ip.link("add", ifname=f"left-{names.sandbox}", kind="bridge")

    product.around("reconcilers.network.networks.Networks.remove", removed)
