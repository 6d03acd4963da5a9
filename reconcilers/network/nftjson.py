"""Words of nftables' JSON language, and the form in which two rulesets can be compared.

Pure. The language is libnftables-json(5). It must not know what any rule is for.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specs.egress import Address, Network

Expression = dict[str, Any]
FAMILY = "inet"
# priorities of netfilter's own hooks (nft(8), "standard priority names")
MANGLE, DSTNAT, FILTER, SRCNAT = -150, -100, 0, 100


class Table:
    """Commands that make one table anew in a single transaction."""

    def __init__(self, name: str) -> None:
        self.name = name
        whole = {"table": {"family": FAMILY, "name": name}}
        # Adding first makes the deletion succeed in any case; the transaction leaves no gap.
        self._commands: list[dict[str, Any]] = [{"add": whole}, {"delete": whole}, {"add": whole}]

    def counter(self, name: str) -> None:
        self._add("counter", name=name)

    def base_chain(self, name: str, kind: str, hook: str, priority: int, policy: str) -> None:
        self._add("chain", name=name, type=kind, hook=hook, prio=priority, policy=policy)

    def chain(self, name: str) -> None:
        self._add("chain", name=name)

    def rule(self, chain: str, *expressions: Expression) -> None:
        self._add("rule", chain=chain, expr=list(expressions))

    def _add(self, what: str, **settings: Any) -> None:
        self._commands.append({"add": {what: {"family": FAMILY, "table": self.name, **settings}}})

    def commands(self) -> list[dict[str, Any]]:
        return self._commands

    def to_json(self) -> bytes:
        return json.dumps({"nftables": self._commands}).encode()


def meta(key: str) -> Expression:
    return {"meta": {"key": key}}


def field(protocol: str, name: str) -> Expression:
    return {"payload": {"protocol": protocol, "field": name}}


def match(left: Expression, right: object, op: str = "==") -> Expression:
    return {"match": {"op": op, "left": left, "right": right}}


def any_of(*values: object) -> object:
    """A set of values; one alone is written as itself, which is how it is read back."""
    return values[0] if len(values) == 1 else {"set": list(values)}


def _network(network: Network) -> object:
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}


def of_family(version: int) -> str:
    return "ip6" if version == 6 else "ip"


def to_networks(version: int, found: Iterable[Network | Address]) -> list[Expression]:
    """Matches destinations of one IP version; empty when none of `found` is of it."""
    return _addressed("daddr", version, found)


def from_address(address: Address, op: str = "==") -> Expression:
    return match(field(of_family(address.version), "saddr"), str(address), op)


def to_address(address: Address) -> Expression:
    return match(field(of_family(address.version), "daddr"), str(address))


def _addressed(which: str, version: int, found: Iterable[Network | Address]) -> list[Expression]:
    wanted = [ipaddress.ip_network(each) for each in found if each.version == version]
    if not wanted:
        return []
    if any(each.prefixlen == 0 for each in wanted):
        return [match(meta("nfproto"), "ipv6" if version == 6 else "ipv4")]
    collapsed = list(ipaddress.collapse_addresses(wanted))  # type: ignore[type-var]
    values = [_network(each) for each in collapsed]
    return [match(field(of_family(version), which), any_of(*values))]


def ports(*numbers: int) -> list[Expression]:
    """TCP and UDP to one of these ports."""
    return [
        match(meta("l4proto"), {"set": ["tcp", "udp"]}),
        match(field("th", "dport"), any_of(*sorted(set(numbers)))),
    ]


def set_mark(value: int) -> Expression:
    return {"mangle": {"key": meta("mark"), "value": value}}


def count(name: str) -> Expression:
    return {"counter": name}


ACCEPT: Expression = {"accept": None}
DROP: Expression = {"drop": None}
ESTABLISHED = match({"ct": {"key": "state"}}, ["established", "related"], "in")


NEW = match({"ct": {"key": "state"}}, "new")


def more_connections_than(limit: int) -> Expression:
    """Matches when this rule has seen more that are still tracked; nft(8), "ct count over"."""
    return {"ct count": {"val": limit, "inv": True}}


def jump(chain: str) -> Expression:
    return {"jump": {"target": chain}}


def canonical(commands: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a listing and the commands that made it have in common, in one order.

    Handles and counts are left out. Rules keep their order within a chain; nft lists the chains
    in another order than they were added.
    """
    chains: dict[str, list[str]] = {}
    others: list[str] = []
    for command in commands:
        found = command.get("add", command)
        if "rule" in found:
            rule = found["rule"]
            chains.setdefault(rule["chain"], []).append(_plain(rule["expr"]))
        elif "chain" in found or "counter" in found or "table" in found or "set" in found:
            [(what, settings)] = found.items()
            kept = {
                key: value
                for key, value in settings.items()
                if key not in ("handle", "packets", "bytes")
            }
            others.append(f"{what} {_plain(kept)}")
    rules = [f"{chain} {n} {text}" for chain in sorted(chains)
             for n, text in enumerate(chains[chain])]  # fmt: skip
    return sorted(set(others)) + rules


def _plain(value: object) -> str:
    return json.dumps(_ordered(value), sort_keys=True)


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        if list(value) == ["set"]:
            return {"set": _elements(value["set"])}
        return {key: _ordered(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_ordered(one) for one in value]
    return value


def _elements(values: list[Any]) -> list[object]:
    """nft joins addresses that lie side by side, so ranges are compared as numbers."""
    spans: list[list[int]] = []
    others: list[object] = []
    for value in values:
        span = _span(value)
        if span is None:
            others.append(value)
        else:
            spans.append(list(span))
    joined: list[list[int]] = []
    for version, first, last in sorted(map(tuple, spans)):
        if joined and joined[-1][0] == version and joined[-1][2] + 1 >= first:
            joined[-1][2] = max(joined[-1][2], last)
        else:
            joined.append([version, first, last])
    return [*joined, *sorted(others, key=str)]


def _span(value: Any) -> tuple[int, int, int] | None:
    try:
        if isinstance(value, dict) and "prefix" in value:
            network = ipaddress.ip_network(f"{value['prefix']['addr']}/{value['prefix']['len']}")
            return network.version, int(network[0]), int(network[-1])
        if isinstance(value, dict) and "range" in value:
            first, last = (ipaddress.ip_address(each) for each in value["range"])
            return first.version, int(first), int(last)
        if isinstance(value, str):
            address = ipaddress.ip_address(value)
            return address.version, int(address), int(address)
    except ValueError:
        pass
    return None
