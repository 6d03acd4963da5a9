"""nftables tables of the calling thread's namespace: loaded whole, read back, counted, removed.

The `nft` program does it, because a ruleset must change in one transaction. Readback starts it only
when the kernel's generation number says that some table changed. It must not know what the rules
mean.
"""

from __future__ import annotations

import json
import shutil
import socket
import struct
from collections.abc import Mapping
from typing import Any

from reconcilers.network import nftjson, spaces
from reconcilers.network.nftjson import FAMILY, Table
from reconcilers.process import SEARCH, run
from specs.errors import CommandError, HostError

# include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h
_NFNL_SUBSYS_CTNETLINK, _NFNL_SUBSYS_NFTABLES = 1, 10
_NFT_MSG_GETGEN, _NFTA_GEN_ID = 16, 1
_IPCTNL_MSG_CT_DELETE = 2
_NFT_MSG_NEWOBJ, _NFT_MSG_GETOBJ, _NFT_OBJECT_COUNTER = 18, 19, 1
_NFTA_OBJ_TABLE, _NFTA_OBJ_NAME, _NFTA_OBJ_TYPE, _NFTA_OBJ_DATA = 1, 2, 3, 4
_NFTA_COUNTER_PACKETS = 2
_AF_INET_TABLES = 1  # NFPROTO_INET
_NETLINK_NETFILTER = 12
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TIMEOUT = 5.0
_SAID_MAX = 200  # characters of nft's first line that an event shows


def installed() -> bool:
    return shutil.which("nft", path=SEARCH) is not None


def load(table: Table) -> None:
    """Make the table what it should be, in one transaction. Raises HostError, CommandError."""
    try:
        run(["nft", "-j", "-f", "-"], data=table.to_json())
    except CommandError as error:
        # What failed went in by a pipe, so nobody can run it again: nft's own word has to be there.
        said = error.last_lines.partition("\n")[0][:_SAID_MAX]
        raise CommandError(
            f"nft refuses the table {table.name}: {said or f'status {error.status}'}",
            argv=error.argv,
            status=error.status,
            last_lines=error.last_lines,
        ) from error


def listing(name: str) -> list[dict[str, Any]] | None:
    """The table as nft shows it; None when there is none. Raises CommandError, HostError."""
    try:
        text = run(["nft", "-j", "list", "table", FAMILY, name])
    except CommandError as error:
        if "No such file or directory" in error.last_lines:
            return None
        raise
    try:
        found: list[dict[str, Any]] = json.loads(text)["nftables"]
    except (ValueError, KeyError) as error:
        raise HostError(f"nft shows the table {name} in a way that makes no sense") from error
    return found


def delete(name: str) -> None:
    """Remove the table; it may be gone already. Raises HostError, CommandError."""
    whole = {"table": {"family": FAMILY, "name": name}}
    run(
        ["nft", "-j", "-f", "-"],
        data=json.dumps({"nftables": [{"add": whole}, {"delete": whole}]}).encode(),
    )


def names() -> list[str]:
    """Every table of our family in this namespace."""
    found = json.loads(run(["nft", "-j", "list", "tables", FAMILY]))["nftables"]
    return [each["table"]["name"] for each in found if "table" in each]


def counts(name: str) -> dict[str, int]:
    """Packets of each named counter of a table; empty when there is no such table."""
    wanted = _attribute(_NFTA_OBJ_TABLE, name.encode() + b"\0")
    wanted += _attribute(_NFTA_OBJ_TYPE, struct.pack(">I", _NFT_OBJECT_COUNTER))
    found = {}
    for kind, payload in _ask(_NFNL_SUBSYS_NFTABLES << 8 | _NFT_MSG_GETOBJ, _NLM_F_DUMP, wanted):
        if kind != _NFNL_SUBSYS_NFTABLES << 8 | _NFT_MSG_NEWOBJ:
            continue
        facts = _attributes(payload[4:])
        if facts.get(_NFTA_OBJ_TABLE) == name.encode() + b"\0":
            packets = _attributes(facts[_NFTA_OBJ_DATA])[_NFTA_COUNTER_PACKETS]
            found[facts[_NFTA_OBJ_NAME].rstrip(b"\0").decode()] = int.from_bytes(packets)
    return found


class Comparison:
    """Tells whether a listing is what a table should be. Remembers how nft writes each table.

    What nft prints may differ in spelling from what it was given, and from version to version. So
    when the two differ, the wanted table is loaded in a namespace made for it and read back: the
    same nft, the same spelling.
    """

    def __init__(self) -> None:
        self._spelling: dict[bytes, list[str]] = {}

    def same(self, table: Table, found: list[dict[str, Any]] | None) -> bool:
        if found is None:
            return False
        seen = nftjson.canonical(found)
        if seen == nftjson.canonical(table.commands()):
            return True
        wanted = table.to_json()
        if wanted not in self._spelling:
            if len(self._spelling) > 1024:
                self._spelling.clear()
            self._spelling[wanted] = spaces.elsewhere(lambda: self._spelled(table))
        return seen == self._spelling[wanted]

    @staticmethod
    def _spelled(table: Table) -> list[str]:
        load(table)
        return nftjson.canonical(listing(table.name) or [])


def generation() -> int:
    """A number of this namespace that changes with every transaction on any table."""
    for kind, payload in _ask(_NFNL_SUBSYS_NFTABLES << 8 | _NFT_MSG_GETGEN, 0):
        if kind == _NFNL_SUBSYS_NFTABLES << 8 | 15:  # NFT_MSG_NEWGEN
            return int.from_bytes(_attributes(payload[4:])[_NFTA_GEN_ID])
    raise HostError("the kernel does not tell nftables' generation")


def forget_connections() -> None:
    """Forget every connection tracked in this namespace, so that each packet is judged anew."""
    for _ in _ask(_NFNL_SUBSYS_CTNETLINK << 8 | _IPCTNL_MSG_CT_DELETE, _NLM_F_ACK):
        pass


def _ask(kind: int, flags: int, attributes: bytes = b"") -> list[tuple[int, bytes]]:
    """One nfnetlink request; the messages of its answer. Raises HostError."""
    found: list[tuple[int, bytes]] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as link:
            link.settimeout(_TIMEOUT)
            body = struct.pack("=BBH", _AF_INET_TABLES, 0, 0) + attributes  # struct nfgenmsg
            head = struct.pack("=IHHII", 16 + len(body), kind, _NLM_F_REQUEST | flags, 1, 0)
            link.send(head + body)
            while True:
                found += _messages(link.recv(1 << 18))
                whole = any(answer == _NLMSG_DONE for answer, _ in found)
                if whole or flags & _NLM_F_DUMP != _NLM_F_DUMP:
                    return found
    except OSError as error:
        raise HostError(f"netfilter does not answer: {error.strerror or error}") from error


def _messages(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if not 16 <= length <= len(data):
            break
        payload = data[16:length]
        if kind == _NLMSG_ERROR and (number := struct.unpack_from("=i", payload)[0]):
            raise OSError(-number, f"errno {-number}")
        if kind != _NLMSG_ERROR:
            found.append((kind, payload))
        data = data[(length + 3) & ~3 :]
    return found


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> Mapping[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if not 4 <= length <= len(data):
            break
        found[kind & 0x3FFF] = data[4:length]  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
        data = data[(length + 3) & ~3 :]
    return found
