"""config.toml: settings of a home."""

from __future__ import annotations

import pytest

from specs.config import Config, parse_config
from specs.errors import InvalidBoxfile


def test_empty_file_is_the_defaults() -> None:
    config = parse_config(b"", "config.toml")
    assert config == Config()
    assert (config.uid_first, config.uid_count) == (1_879_048_192, 65_536)


def test_settings_are_read() -> None:
    config = parse_config(b'kernel = "/srv/kernel"\nuid_count = 3\nlog_level = "debug"\n', "c")
    assert (config.kernel, config.uid_count, config.log_level) == ("/srv/kernel", 3, "debug")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("kernel = 'relative/path'", "write the whole path, from / on"),
        ("resolver = 'dns.example'", "write one, as in 192.0.2.53"),
        ("resolver = '127.0.0.1'", "write the address of a resolver that is not this host"),
        ("standard_uid = 1879048200", "write an id outside of 1879048192 to 1879113727"),
        ("uid_first = 4294967290", "write a smaller uid_first or uid_count"),
    ],
)
def test_a_value_that_cannot_be_has_its_own_fix(text: str, fix: str) -> None:
    with pytest.raises(InvalidBoxfile) as caught:
        parse_config(text.encode(), "config.toml")
    assert [problem.fix.startswith(fix) for problem in caught.value.problems] == [True]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("kernal = '/x'", "kernal"),
        ("kernel = 'relative/path'", "kernel"),
        ("uid_first = 0", "uid_first"),
        ("standard_uid = 0", "standard_uid"),
        ("uid_first = 4294967295", "uid_first"),
        ("uid_first = 4294967290", ""),
        ("standard_uid = 1879048200", ""),
        ("uid_count = 0", "uid_count"),
        ("kvm_probe_seconds = 0", "kvm_probe_seconds"),
        ("tag_lookup_minutes = '60'", "tag_lookup_minutes"),
        ("tag_lookup_minutes = true", "tag_lookup_minutes"),
        ("log_level = 'loud'", "log_level"),
    ],
)
def test_mistakes_are_refused(text: str, field: str) -> None:
    with pytest.raises(InvalidBoxfile) as caught:
        parse_config(text.encode(), "config.toml")
    assert [problem.field for problem in caught.value.problems] == [field]
