"""What a fork changed, told and brought into its parent, as root and as an ordinary user."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from reconcilers import layers
from reconcilers.chain import Chain
from tests.vm.harness import READY, Home, until
from tests.vm.test_transfer import home_of, is_clean

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(600)]

BEGIN = r"""
set -e; cd /data; chmod 711 .
mkdir -p src old/deep away; echo one > src/main; echo keep > src/same; echo x > old/deep/file
echo both > both; ln -s main src/link; mkfifo pipe; echo alone > alone; echo w > was-file
printf n > "$(printf 'a\nb')"; dd if=/dev/urandom of=large bs=1M count=4 2>/dev/null; sync
"""
CHANGE = r"""
set -e; cd /data
echo two >> src/main; touch src/same; rm -r old; mkdir new; echo fresh > new/file
chmod 700 away; chown 7:8 both; ln -sf other src/link; rm was-file; mkdir was-file
echo in > was-file/in; ln alone new/twin; mknod null c 1 5; echo changed > "$(printf '\377\033')"
printf m > "$(printf 'a\nb')"; truncate -s 1073741824 sparse; sync
"""
PARENT = "cd /data; chmod 700 away; echo mine > src/main; echo own > own; sync"
LOOK = """
cd /data; cat src/main own new/file was-file/in; readlink src/link
stat -c %a:%u:%g away both; ls -A; stat -c %s sparse; stat -c %h alone
"""
CHANGED = {
    b"src/main": "M", b"old": "D", b"old/deep": "D", b"old/deep/file": "D", b"new": "A",
    b"new/file": "A", b"new/twin": "A", b"alone": "M", b"away": "M", b"both": "M", b"src/link": "M",
    b"was-file": "T", b"was-file/in": "A", b"\xff\x1b": "A", b"a\nb": "M", b"sparse": "A",
}  # fmt: skip


def chain_of(home: Home, name: str) -> Chain:
    """The chain, whose folder holds all of it and nothing else."""
    folder = home.path / "disks" / name
    found = layers.read(folder)
    assert found is not None and found[1]
    assert {path.name for path in folder.iterdir()} == {*found[0].files, layers.CHAIN}
    return found[0]


def contents(home: Home, name: str) -> dict[str, bytes]:
    """A hash of every file of its disk."""
    folder = home.path / "disks" / name
    return {path.name: sha256(path.read_bytes()).digest() for path in folder.iterdir()}


def diff(home: Home, fork: str = "try") -> dict[bytes, str]:
    from specs.pathtext import path_of

    found: dict[str, Any] = json.loads(home.box("fork", "diff", fork, "-o", "json").stdout)
    return {path_of(each): each["change"] for each in found["changes"]}


def begin(home: Home, script: str = BEGIN) -> None:
    """`oak`, stopped, and its fork `try`, which runs."""
    home.put("oak")
    home.ready("oak")
    home.run("oak", "sh", "-c", script)
    stop(home, "oak")
    home.box("fork", "oak", "try", "--wait", timeout=3 * READY)


def stop(home: Home, name: str) -> None:
    text = (home.boxes / f"{name}.box.yaml").read_text()
    home.put(name, f"{text}state: stopped\n")
    until(lambda: not (home.runtime / name).exists(), 60, f"{name} stops")


def test_an_ordinary_users_fork_is_compared_and_applied(home: Home) -> None:
    with home_of("user", home) as (used, _folder, _become):
        begin(used)
        used.run("try", "sh", "-c", CHANGE)
        stop(used, "try")
        assert diff(used) == CHANGED
        dry = used.box("fork", "apply", "try", "--dry-run")
        assert b"16 changes of try would be applied to oak" in dry.stdout
        done = used.box("fork", "apply", "try")
        assert b"16 changes of try applied to oak" in done.stdout
        is_clean(used)
        assert diff(used) == {}
        assert b"What oak has stays" in used.box("fork", "discard", "try").stdout
        assert not (used.boxes / "try.box.yaml").exists()
        used.put("oak")
        used.ready("oak")
        assert used.run("oak", "cat", "/data/src/main").stdout == b"one\ntwo\n"


def test_a_fork_is_compared_and_applied(home: Home) -> None:
    begin(home)
    home.run("try", "sh", "-c", CHANGE)
    running = home.box("fork", "diff", "try", check=False)
    assert running.returncode == 1 and b"state: stopped" in running.stderr
    stop(home, "try")
    before, held, forks = chain_of(home, "oak"), contents(home, "oak"), contents(home, "try")
    assert diff(home) == CHANGED
    assert contents(home, "oak") == held and contents(home, "try") == forks
    assert chain_of(home, "oak") == before
    is_clean(home)

    # The parent goes on: the same change, a conflict, and something of its own.
    home.put("oak")
    home.ready("oak")
    busy = home.box("fork", "apply", "try", check=False)
    assert busy.returncode == 1 and b"the VM of oak runs" in busy.stderr
    home.run("oak", "sh", "-c", PARENT)
    stop(home, "oak")
    before, held = chain_of(home, "oak"), contents(home, "oak")
    refused = home.box("fork", "apply", "try", check=False)
    assert refused.returncode == 1 and b"--theirs takes what try has" in refused.stderr
    assert refused.stdout == b"C  src/main  (modified in try, modified in oak)\n"
    assert b"null: a character device, left out" in refused.stderr
    assert chain_of(home, "oak") == before and contents(home, "oak") == held
    done = home.box("fork", "apply", "try", "--theirs")
    assert b"15 changes of try applied to oak; what was there is the snapshot" in done.stdout
    is_clean(home)
    assert len(chain_of(home, "oak").layers) == len(before.layers) + 1
    home.put("oak")
    home.ready("oak")
    said = home.run("oak", "sh", "-c", LOOK)
    text = said.stdout.decode(errors="replace")
    assert text.startswith("one\ntwo\nown\nfresh\nin\nother\n700:0:0\n644:7:8\n"), text
    assert "old" not in text.split() and "pipe" in text.split() and "null" not in text.split()
    assert "\n1073741824\n2\n" in text and ".box-import" not in text
    assert home.run("oak", "stat", "-c", "%a", "/data").stdout == b"711\n"


@pytest.mark.long
def test_a_dry_run_changes_nothing_and_what_was_restored_can_be_applied_again(home: Home) -> None:
    begin(home)
    home.run("try", "sh", "-c", CHANGE)
    stop(home, "try")
    home.put("oak")
    home.ready("oak")
    home.run("oak", "sh", "-c", PARENT)
    stop(home, "oak")
    before, held, forks = chain_of(home, "oak"), contents(home, "oak"), contents(home, "try")
    dry = home.box("fork", "apply", "try", "--dry-run", "--theirs")
    assert b"15 changes of try would be applied to oak (1 conflict for try)" in dry.stdout
    assert chain_of(home, "oak") == before and contents(home, "oak") == held
    assert contents(home, "try") == forks
    home.box("fork", "apply", "try", "--theirs")
    assert b"nothing to apply" in home.box("fork", "apply", "try").stdout
    assert diff(home) == {}
    kept = json.loads(home.box("snapshots", "oak", "-o", "json").stdout)["snapshots"][-1]["label"]
    assert kept.startswith("before-apply-")
    home.box("restore", "oak", kept, "--discard")
    assert diff(home) == CHANGED, "what the parent has no more was not applied"
    home.box("fork", "discard", "try")
    home.put("oak")
    home.ready("oak")
    assert home.run("oak", "cat", "/data/src/main").stdout == b"mine\n"
