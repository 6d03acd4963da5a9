"""The jail of a helper follows from its VMM's: the same identity, root inside, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconcilers.confinement.policy import (
    Confinement,
    Limits,
    Program,
    Shared,
    UserNamespace,
)
from reconcilers.confinement.sharepolicy import CAPABILITIES, share_confinement

PROGRAM = Program("virtiofsd", "0" * 64, b"", ())
SHARED = Shared(1, 2, writable=True, owner=(1000, 1000))
ROOTS = Confinement(
    uid=7000, gid=7001, isolation="strict", limits=Limits(1, 1, 1), rlimits=(), seccomp=PROGRAM
)
STRICT = replace(
    ROOTS,
    user_namespace=UserNamespace(
        ((0, 1000, 1), (1, 7000, 1)), ((0, 1000, 1), (1, 7001, 1), (2, 108, 1)), setgroups=True
    ),
    groups=(108,),
)


def test_roots_helper_knows_one_identity_and_overrides_modes_of_its_files() -> None:
    found = share_confinement(ROOTS, PROGRAM, SHARED)
    assert found.user_namespace == UserNamespace(((0, 7000, 1),), ((0, 7001, 1),), setgroups=False)
    assert (found.capabilities, found.shared) == (CAPABILITIES, SHARED)


def test_strict_users_helper_overrides_nothing_for_the_user_is_in_its_namespace() -> None:
    found = share_confinement(STRICT, PROGRAM, SHARED)
    assert found.user_namespace == UserNamespace(
        ((0, 7000, 1), (1, 1000, 1)), ((0, 7001, 1), (1, 1000, 1), (2, 108, 1)), setgroups=True
    )
    assert (found.uid, found.gid, found.groups) == (7000, 7001, ())
    assert found.capabilities == frozenset()
    assert found.shared == replace(SHARED, owner=None)


@pytest.mark.parametrize("groups", [(), (1000,)])
def test_standard_users_helper_is_the_user_and_nobody_else(groups: tuple[int, ...]) -> None:
    own = UserNamespace(((1, 1000, 1),), ((1, 1000, 1),), setgroups=False)
    vmm = replace(ROOTS, uid=1000, gid=1000, user_namespace=own, groups=groups)
    found = share_confinement(vmm, PROGRAM, SHARED)
    assert found.user_namespace == UserNamespace(((0, 1000, 1),), ((0, 1000, 1),), setgroups=False)
    assert (found.groups, found.capabilities) == (groups, CAPABILITIES)


@pytest.mark.parametrize(("uid", "gid"), [(0, 5), (5, 0)])
def test_no_helper_has_host_identity_zero(uid: int, gid: int) -> None:
    with pytest.raises(ValueError, match="host identity 0"):
        share_confinement(replace(ROOTS, uid=uid, gid=gid), PROGRAM, SHARED)
