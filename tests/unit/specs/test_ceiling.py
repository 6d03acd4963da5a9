"""policy.toml caps every Boxfile, and never falls open."""

from __future__ import annotations

from typing import Any

import pytest

from specs.boxfile import Boxfile, Mount
from specs.ceiling import Ceiling, Totals, parse_ceiling
from specs.errors import InvalidBoxfile

NOBODY = Totals()


def box(**fields: Any) -> Boxfile:
    return Boxfile(name="fern", **fields)


def rules(policy: str, asked: Boxfile, others: Totals = NOBODY) -> list[str]:
    refusals = parse_ceiling(policy.encode(), "policy.toml").judge(asked, others)
    return [refusal.partition(":")[0] for refusal in refusals]


def test_empty_policy_allows_everything() -> None:
    assert rules("", box(isolation="standard", accel="tcg", ram_mib=10**6)) == []


@pytest.mark.parametrize(
    ("policy", "refused", "allowed"),
    [
        ('isolation = "strict"', {"isolation": "standard"}, {"isolation": "strict"}),
        ("allow_emulation = false", {"accel": "tcg"}, {"accel": "kvm"}),
        ("allow_erase = false", {"data": {"on_delete": "erase"}}, {}),
        ("max_ram_mib = 1024", {"ram_mib": 1025}, {"ram_mib": 1024}),
        ("max_cpus = 4", {"cpus": 5}, {"cpus": 4}),
        ("max_data_mib = 2048", {"data": {"size_mib": 2049}}, {"data": {"size_mib": 2048}}),
    ],
)
def test_each_rule_refuses_above_and_allows_at_its_limit(
    policy: str, refused: dict[str, Any], allowed: dict[str, Any]
) -> None:
    assert rules(policy, box(**refused)) == [policy.partition(" ")[0]]
    assert rules(policy, box(**allowed)) == []


def test_every_broken_rule_is_named_at_once() -> None:
    policy = "max_cpus = 1\nmax_ram_mib = 128\nallow_emulation = false\n"
    assert rules(policy, box(accel="tcg")) == ["max_ram_mib", "max_cpus", "allow_emulation"]


def test_totals_count_the_others_and_this_one() -> None:
    others = Totals.of([box(cpus=4, ram_mib=1024), box(cpus=8, ram_mib=4096, state="stopped")])
    assert others == Totals(sandboxes=2, ram_mib=1024, cpus=4)
    assert rules("max_total_cpus = 6", box(cpus=2), others) == []
    assert rules("max_total_cpus = 6", box(cpus=3), others) == ["max_total_cpus"]
    assert rules("max_total_ram_mib = 1535", box(), others) == ["max_total_ram_mib"]
    assert rules("max_sandboxes = 2", box(), others) == ["max_sandboxes"]
    assert rules("max_sandboxes = 3", box(), others) == []


def test_stopped_sandbox_takes_no_share_of_the_totals_but_counts_as_one() -> None:
    others = Totals(sandboxes=1, ram_mib=1024, cpus=4)
    asked = box(state="stopped")
    assert rules("max_total_cpus = 4\nmax_total_ram_mib = 1024", asked, others) == []
    assert rules("max_sandboxes = 1", asked, others) == ["max_sandboxes"]


@pytest.mark.parametrize(
    ("base", "allowed"),
    [
        ("docker.io/library/alpine:3", True),
        ("docker.io/library", True),
        ("docker.io/library-evil/alpine", False),
        ("alpine:3", True),
        ("library/alpine", True),
        ("team/alpine", False),
        ("docker.io.evil/library/alpine", False),
        ("builtin:busybox", True),
        ("rootfs:/builtin", False),
    ],
)
def test_base_prefix_matches_whole_components(base: str, allowed: bool) -> None:
    policy = 'base_prefixes = ["docker.io/library", "builtin:"]'
    assert rules(policy, box(base=base)) == ([] if allowed else ["base_prefixes"])


def test_mount_prefixes_are_left_to_whoever_sees_where_a_path_leads() -> None:
    asked = box(mounts=(Mount(host="/srv/link", guest="/x"),))
    assert rules('mount_prefixes = ["/srv/shared"]', asked) == []


def test_empty_list_of_prefixes_allows_nothing() -> None:
    assert rules("base_prefixes = []", box()) == ["base_prefixes"]


def test_emulation_found_on_the_host_can_be_refused_separately() -> None:
    assert Ceiling().refuse_emulation() == ""
    assert parse_ceiling(b"allow_emulation = false", "p").refuse_emulation()


@pytest.mark.parametrize(
    ("policy", "line", "field"),
    [
        ("max_cpu = 1\n", 1, "max_cpu"),
        ("max_cpus = 2\nmax_ram_mib = -1\n", 2, "max_ram_mib"),
        ('max_cpus = "2"\n', 1, "max_cpus"),
        ('isolation = "loose"\n', 1, "isolation"),
        ('mount_prefixes = ["srv"]\n', 1, "mount_prefixes[0]"),
        ("allow_erase = no\n", 1, ""),
    ],
)
def test_policy_with_a_mistake_is_an_error_with_its_place(
    policy: str, line: int, field: str
) -> None:
    with pytest.raises(InvalidBoxfile) as caught:
        parse_ceiling(policy.encode(), "policy.toml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == ("policy.toml", line, field)


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x00", b"max_cpus = ", b"[[["])
def test_garbage_policy_is_an_error_and_never_an_empty_ceiling(data: bytes) -> None:
    with pytest.raises(InvalidBoxfile):
        parse_ceiling(data, "policy.toml")
