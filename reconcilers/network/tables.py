"""nftables tables of the calling thread's namespace: loaded whole, read back, removed.

The `nft` program does it, because a ruleset must change in one transaction. Readback starts it only
when the generation that `netfilter` reads says that some table changed. It must not know what the
rules mean.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from reconcilers.network import nftjson, spaces
from reconcilers.network.nftjson import FAMILY, Table
from reconcilers.process import SEARCH, run
from specs.errors import CommandError, HostError

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
