"""What a VMM was started for, read back from its record."""

from __future__ import annotations

import pytest

from reconcilers.launched import as_launched, settings_of
from specs.boxfile import Boxfile, Data, Isolation, Mount, Network

OLD = Boxfile(name="oak", ram_mib=256, mounts=(Mount(host="/srv", guest="/srv"),))
NEW = Boxfile(
    name="oak",
    ram_mib=512,
    network=Network.bridge,
    isolation=Isolation.standard,
    env={"A": "b"},
    data=Data(size_mib=2048),
)


def test_walls_are_those_of_the_start_and_the_rest_is_new() -> None:
    found = as_launched(NEW, settings_of(OLD))
    assert found == OLD.model_copy(update={"env": NEW.env, "data": NEW.data})


def test_the_same_settings_are_the_same_boxfile() -> None:
    assert as_launched(NEW, settings_of(NEW.model_copy(update={"env": {}}))) is NEW


@pytest.mark.parametrize("garbage", ["", "{}", "[]", "null", "{", '{"ram_mib": 512}'])
def test_a_record_that_says_nothing_sensible_changes_nothing(garbage: str) -> None:
    assert as_launched(NEW, garbage) is NEW


def test_settings_that_no_boxfile_can_have_are_not_believed() -> None:
    wrong = settings_of(OLD).replace("256", '"much"')
    assert wrong != settings_of(OLD) and as_launched(NEW, wrong) is NEW
