"""nftables' own word comes with a table that it refuses. Tried in a namespace made for it."""

from __future__ import annotations

import pytest

from reconcilers.network import nftjson, spaces, tables
from specs.errors import CommandError

pytestmark = pytest.mark.needs_root


def test_a_refused_table_is_named_with_the_reason_and_nothing_of_it_is_there() -> None:
    table = nftjson.Table("refused")
    table.chain("known")
    table.rule("known", nftjson.jump("unknown"))

    def trial() -> list[str]:
        with pytest.raises(CommandError, match=r"nft refuses the table refused: .*No such file"):
            tables.load(table)
        return tables.names()

    assert spaces.elsewhere(trial) == []
