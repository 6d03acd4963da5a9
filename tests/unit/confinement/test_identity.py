"""Identities: one per sandbox over the whole host, never one that anybody else may be using."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reconcilers.confinement.identity import IdentityRegistry, IdRange, ranges_of, standard_uid
from reconcilers.confinement.idranges import overlaps
from specs.config import Config
from specs.errors import Conflict, HostError

A, B = "a" * 12, "b" * 12
FIRST = 1_879_400_000  # outside the default range: nothing of a controller on this host
RANGE = (IdRange(FIRST, 3),)


@pytest.fixture
def registry(tmp_path: Path) -> IdentityRegistry:
    return IdentityRegistry(
        lock=tmp_path / "run" / "identities.lock", registry=tmp_path / "lib" / "identities.toml"
    )


def test_sandbox_keeps_its_identity(registry: IdentityRegistry) -> None:
    first = registry.claim(A, "one", RANGE)
    assert first == (FIRST, FIRST)
    assert registry.claim(A, "one", RANGE) == first
    assert registry.owner_of(FIRST) == (A, "one")
    assert registry.claimed(A) == {"one": FIRST}


def test_two_instances_never_share_one(registry: IdentityRegistry) -> None:
    assert registry.claim(A, "one", RANGE) != registry.claim(B, "one", RANGE)


def test_fourth_sandbox_of_three_identities_waits_with_a_reason(registry: IdentityRegistry) -> None:
    for name in ("one", "two", "three"):
        registry.claim(A, name, RANGE)
    with pytest.raises(HostError, match="waits: all 3 identities") as caught:
        registry.claim(A, "four", RANGE)
    assert caught.value.retry
    assert registry.claimed(A).keys() == {"one", "two", "three"}
    registry.release(A, "two")
    assert registry.claim(A, "four", RANGE) == (FIRST + 1, FIRST + 1)


def test_second_range_is_used_when_the_first_is_full(registry: IdentityRegistry) -> None:
    two = (IdRange(FIRST, 1), IdRange(FIRST + 100, 2))
    got = [registry.claim(A, name, two)[0] for name in ("one", "two", "three")]
    assert got == [FIRST, FIRST + 100, FIRST + 101]
    with pytest.raises(HostError, match="waits"):
        registry.claim(A, "four", two)


def test_range_over_a_user_of_the_host_is_refused(registry: IdentityRegistry) -> None:
    nobody = 65534
    with pytest.raises(HostError, match="nobody") as caught:
        registry.claim(A, "one", (IdRange(nobody - 5, 10),))
    assert "/etc/passwd" in str(caught.value)
    assert registry.claimed(A) == {}


def test_range_over_subordinate_identities_is_named_with_its_line() -> None:
    files = {"/etc/subuid": "root:1:1\nalice:100000:65536\nbob:165536:65536\n"}
    [found] = overlaps((IdRange(165_000, 100),), files)
    assert "alice" in found and "/etc/subuid:2" in found
    assert overlaps((IdRange(300_000, 100),), files) == ()


@pytest.mark.parametrize("other", [IdRange(100, 50), IdRange(149, 1), IdRange(1, 1000)])
def test_ranges_that_overlap_each_other_are_refused(other: IdRange) -> None:
    assert overlaps((IdRange(100, 50), other), {})


@pytest.mark.parametrize("bad", [IdRange(0, 5), IdRange(5, 0), IdRange(2**32 - 3, 5)])
def test_range_that_leaves_the_numbers_is_refused(bad: IdRange) -> None:
    assert overlaps((bad,), {})


def test_malformed_lines_of_host_files_are_passed_over() -> None:
    assert (
        overlaps((IdRange(5, 5),), {"/etc/passwd": "\n#\nx:y:z\n::\n", "/etc/subgid": "a:b"}) == ()
    )


@pytest.mark.needs_root
def test_identity_with_files_left_is_not_given_to_the_next(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "disks").mkdir(parents=True)
    registry.claim(A, "one", RANGE, roots=(home,))
    left = home / "disks" / "left"
    left.write_text("secret")
    os.chown(left, FIRST, FIRST)
    registry.release(A, "one")
    got = [registry.claim(A, f"new{n}", RANGE, roots=(home,))[0] for n in range(2)]
    assert FIRST not in got
    with pytest.raises(HostError, match="left behind"):
        registry.claim(A, "third", RANGE, roots=(home,))
    left.unlink()
    assert registry.claim(A, "third", RANGE, roots=(home,))[0] == FIRST


@pytest.mark.needs_root
def test_leftovers_of_another_instance_block_an_identity_too(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    registry.claim(B, "one", (IdRange(FIRST, 1),), roots=(tmp_path / "theirs",))
    os.chown(tmp_path / "theirs", FIRST, FIRST)
    registry.release(B, "one")
    with pytest.raises(HostError, match="left behind"):
        registry.claim(A, "one", (IdRange(FIRST, 1),), roots=(tmp_path,))


@pytest.mark.needs_root
def test_leftovers_are_found_after_the_registry_was_lost(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    left.touch()
    os.chown(left, 0, FIRST + 1)  # the group alone
    got = [registry.claim(A, f"new{n}", RANGE, roots=(tmp_path,))[0] for n in range(2)]
    assert FIRST + 1 not in got


@pytest.mark.needs_root
def test_home_that_is_new_to_the_registry_is_looked_through_once(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    for name in ("known", "new"):
        (tmp_path / name).mkdir()
    registry.claim(A, "one", RANGE, roots=(tmp_path / "known",))
    os.chown(tmp_path / "new", FIRST + 1, 0)  # by a registry that was lost
    assert registry.claim(B, "one", RANGE, roots=(tmp_path,))[0] == FIRST + 2


@pytest.mark.needs_root
def test_identity_of_a_live_process_is_passed_over(registry: IdentityRegistry) -> None:
    held = subprocess.Popen(["sleep", "60"], user=FIRST, group=FIRST + 1, extra_groups=[])
    try:
        assert registry.claim(A, "one", RANGE)[0] == FIRST + 2
    finally:
        held.kill()
        held.wait()


def test_registry_of_garbage_is_set_aside_and_rebuilt(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    registry.claim(A, "one", RANGE)
    path = tmp_path / "lib" / "identities.toml"
    path.write_bytes(b"\x00\xff garbage [[")
    registry.adopt(A, "one", FIRST)
    assert registry.claim(A, "two", RANGE)[0] != FIRST
    assert registry.claimed(A)["one"] == FIRST
    [aside] = path.parent.glob("*.garbled-*")
    assert aside.read_bytes() == b"\x00\xff garbage [["


def test_deleted_registry_is_rebuilt_by_adopting(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    registry.claim(A, "one", RANGE)
    (tmp_path / "lib" / "identities.toml").unlink()
    registry.adopt(A, "one", FIRST)
    assert registry.owner_of(FIRST) == (A, "one")


def test_identity_of_another_sandbox_cannot_be_adopted(registry: IdentityRegistry) -> None:
    registry.claim(A, "one", RANGE)
    with pytest.raises(Conflict, match="belongs to the sandbox one"):
        registry.adopt(B, "two", FIRST)
    registry.adopt(A, "one", FIRST)


@pytest.mark.parametrize("uid", [0, -1, 65534, 2**32 - 1])
def test_identity_of_a_host_user_cannot_be_adopted(registry: IdentityRegistry, uid: int) -> None:
    with pytest.raises(HostError):
        registry.adopt(A, "one", uid)


def test_reuse_comes_as_late_as_possible(registry: IdentityRegistry) -> None:
    registry.claim(A, "one", RANGE)
    registry.release(A, "one")
    assert registry.claim(A, "two", RANGE)[0] == FIRST + 1


def test_parallel_claims_of_threads_and_processes_are_all_different(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from reconcilers.confinement.identity import *\n"
        "folder = Path(sys.argv[1])\n"
        "registry = IdentityRegistry(lock=folder / 'run' / 'identities.lock',"
        " registry=folder / 'lib' / 'identities.toml')\n"
        f"for n in range(10): registry.claim('{B}', f'p{{n}}', (IdRange({FIRST}, 100),))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    argv = [sys.executable, "-c", code, str(tmp_path)]
    other = subprocess.Popen(argv, env=environment)
    wide = (IdRange(FIRST, 100),)
    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(lambda n: registry.claim(A, f"t{n}", wide)[0], range(10)))
    assert other.wait(100) == 0
    theirs = list(registry.claimed(B).values())
    assert len(theirs) == 10
    assert len({*ours, *theirs}) == 20


def test_registry_that_did_not_change_is_not_written(
    registry: IdentityRegistry, tmp_path: Path
) -> None:
    registry.claim(A, "one", RANGE)
    path = tmp_path / "lib" / "identities.toml"
    before = path.stat()
    registry.claim(A, "one", RANGE)
    registry.release(A, "never there")
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("first", [1, 1_879_048_192])
def test_standard_identity_is_unprivileged_and_outside_the_strict_range(first: int) -> None:
    config = Config(uid_first=first, uid_count=1_000_000)
    uid = standard_uid(config)
    assert uid > 0 and not any(uid in each for each in ranges_of(config))


def test_standard_identity_of_a_host_user_is_refused_unless_it_was_chosen() -> None:
    with pytest.raises(HostError, match="65534"):
        standard_uid(Config(uid_first=65535))
    assert standard_uid(Config(uid_first=65535, standard_uid=65534)) == 65534
