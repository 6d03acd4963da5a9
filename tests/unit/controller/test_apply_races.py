"""Writing Boxfiles while editors and other box processes write too: no change is lost."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from controller import apply, files, swap
from controller.apply import apply_text, delete_file, digest_of
from reconcilers.confinement import syscalls
from specs.errors import Conflict, HostError
from tests.vm.harness import until

REPOSITORY = Path(__file__).resolve().parents[3]
ONE = b"cpus: 1\n"
TWO = b"cpus: 2\n"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def is_waited_for(path: Path) -> bool:
    """Whether somebody's open() of the file waits for a lease to be given up (proc_locks(5))."""
    inode = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return any("LEASE" in line and "BREAKING" in line and inode in line for line in lines)


# -- editors --------------------------------------------------------------------------------------


def test_a_file_that_is_open_for_writing_is_a_conflict(boxes: Path) -> None:
    path = boxes / "teal.yaml"
    path.write_bytes(ONE)
    with path.open("r+b", buffering=0) as stream:
        with pytest.raises(Conflict, match="open for writing"):
            apply_text(boxes, "teal", TWO, if_match=digest_of(ONE))
        stream.write(b"cpus: 7\n")
    assert path.read_bytes() == b"cpus: 7\n"
    assert names(boxes) == ["teal.yaml"]


def test_an_editor_that_waits_to_write_gets_its_save_and_we_get_a_conflict(
    boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The editor opens the file between our comparison and our exchange."""
    path = boxes / "teal.yaml"
    path.write_bytes(ONE)
    exchange = swap.exchange
    editor: list[subprocess.Popen[bytes]] = []

    def late(*arguments: object) -> bool:
        editor.append(
            subprocess.Popen(["sh", "-c", f"printf 'cpus: 7\\n' > '{path}'"])  # waits in open()
        )
        until(lambda: is_waited_for(path), 30, "the editor waits")
        return exchange(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(swap, "exchange", late)
    with pytest.raises(Conflict, match="meanwhile"):
        apply_text(boxes, "teal", TWO, if_match=digest_of(ONE))
    assert editor[0].wait(60) == 0
    assert path.read_bytes() == b"cpus: 7\n"
    assert names(boxes) == ["teal.yaml"]


def saved_by_rename(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


@pytest.mark.parametrize("saves", [1, 2])
def test_saves_by_rename_around_the_exchange_survive(
    boxes: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """One save just before the exchange; with two, another one before it is put back."""
    path = boxes / "teal.yaml"
    path.write_bytes(ONE)
    exchange = syscalls.renameat2_exchange
    calls = 0

    def late(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls <= saves:
            saved_by_rename(path, b"cpus: %d\n" % (10 + calls))
        exchange(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(syscalls, "renameat2_exchange", late)
    with pytest.raises(Conflict, match="meanwhile"):
        apply_text(boxes, "teal", TWO, if_match=digest_of(ONE))
    assert path.read_bytes() == b"cpus: %d\n" % (10 + saves)
    assert names(boxes) == ["teal.yaml"]


def test_a_delete_spares_a_file_saved_at_the_same_moment(
    boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = boxes / "teal.yaml"
    path.write_bytes(ONE)
    rename = os.rename

    def late(*arguments: object, **keywords: object) -> None:
        monkeypatch.setattr(os, "rename", rename)
        saved_by_rename(path, b"cpus: 7\n")
        rename(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(Conflict):
        delete_file(boxes, "teal", if_match=digest_of(ONE))
    assert path.read_bytes() == b"cpus: 7\n"
    assert names(boxes) == ["teal.yaml"]


def test_a_waiting_editor_sends_no_signal_that_ends_us(boxes: Path) -> None:
    """The kernel tells the holder of a lease by SIGIO, which ends a process by default."""
    path = boxes / "teal.yaml"
    path.write_bytes(ONE)
    code = (
        "import os, sys; from pathlib import Path; from controller import swap\n"
        "from tests.unit.controller.test_apply_races import is_waited_for\n"
        "from tests.vm.harness import until\n"
        "folder = os.open(sys.argv[1], os.O_RDONLY)\n"
        "with swap.held(swap.Place(folder, 'teal.yaml', Path('x')), 99) as old:\n"
        "    print(old.leased, flush=True)\n"
        "    until(lambda: is_waited_for(Path(sys.argv[1], 'teal.yaml')), 30, 'a writer waits')\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(boxes)], cwd=REPOSITORY, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"True\n"
    path.write_bytes(TWO)  # waits until the lease is given up, which the child has seen
    assert child.wait(60) == 0
    child.stdout.close()
    assert signal.getsignal(signal.SIGIO) == signal.SIG_DFL


# -- box's own writers ---------------------------------------------------------------------------


def test_writers_queue_up_and_give_up_after_a_while(
    boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "LOCK_SECONDS", 0.2)
    apply.lock_path().parent.mkdir(mode=0o700, exist_ok=True)
    with apply.lock_path().open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="another box process"):
            apply_text(boxes, "teal", ONE, if_match=None)
        monkeypatch.setattr(apply, "LOCK_SECONDS", 30.0)
        timer = threading.Timer(0.1, fcntl.flock, (other, fcntl.LOCK_UN))
        timer.start()
        assert apply_text(boxes, "teal", ONE, if_match=None) == "created"
        timer.join()


def test_the_leftover_of_a_killed_apply_is_swept_once_it_is_old(
    boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (boxes / f"{files.TEMPORARY_PREFIX}abc").write_bytes(b"half")
    apply_text(boxes, "teal", ONE, if_match=None)
    assert len(names(boxes)) == 2
    monkeypatch.setattr(apply, "STALE_SECONDS", -1.0)
    apply_text(boxes, "teal", TWO, if_match=None)
    assert names(boxes) == ["teal.box.yaml"]


# -- C6: lost update -----------------------------------------------------------------------------

CHANGER = """
import re, sys
from pathlib import Path
from controller.apply import apply_text, digest_of, find_source
from specs.errors import Conflict
folder, field = Path(sys.argv[1]), sys.argv[2]
for line in sys.stdin:
    value = int(line)
    data = find_source(folder, "teal").read_bytes()
    changed = re.sub(rb"(?m)^%s: .*$" % field.encode(), b"%s: %d" % (field.encode(), value), data)
    try:
        print(apply_text(folder, "teal", changed, if_match=digest_of(data)), flush=True)
    except Conflict:
        print("conflict", flush=True)
"""
EDITOR = """
import os, re, sys
from pathlib import Path
path = Path(sys.argv[1]) / "teal.yaml"
for line in sys.stdin:
    value = int(line)
    data = path.read_bytes()
    changed = re.sub(rb"(?m)^note: .*$", b"note: %d" % value, data)
    if value % 2:
        (path.parent / ".teal.yaml.tmp").write_bytes(changed)
        os.rename(path.parent / ".teal.yaml.tmp", path)
    else:
        with open(path, "r+b", buffering=0) as stream:
            if stream.read() != data:
                print("reloaded", flush=True)
                continue
            stream.seek(0)
            stream.truncate()
            stream.write(changed)
    print("saved", flush=True)
"""
FIELDS = re.compile(rb"cpus: (\d+)\nnote: (\d+)\nlabel: (\d+)\n" + b"# padding\n" * 300)


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(process: subprocess.Popen[str], value: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{value}\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_c6_of_two_changes_and_a_save_none_is_lost_in_100_rounds(boxes: Path) -> None:
    path = boxes / "teal.yaml"
    path.write_bytes(b"cpus: 0\nnote: 0\nlabel: 0\n" + b"# padding\n" * 300)
    processes = [start(CHANGER, str(boxes), "cpus"), start(CHANGER, str(boxes), "label")]
    editor = start(EDITOR, str(boxes))
    landed = {"cpus": 0, "label": 0}
    conflicts = 0
    torn: list[bytes] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            if not FIELDS.fullmatch(data):
                torn.append(data)
            time.sleep(0.0005)

    reader = threading.Thread(target=read)
    try:
        reader.start()
        for value in range(1, 101):
            save = value % 10 != 0
            for process in processes:
                tell(process, value)
            if save:
                tell(editor, 2 * value + 1)
            outcomes = [answer(process) for process in processes]
            if save:
                assert answer(editor) == "saved"
            for field, outcome in zip(landed, outcomes, strict=True):
                assert outcome in ("configured", "conflict")
                if outcome == "configured":
                    landed[field] = value
                conflicts += outcome == "conflict"
            match = FIELDS.fullmatch(path.read_bytes())
            assert match is not None
            cpus, note, label = (int(group) for group in match.groups())
            if not save:
                # Without the editor, whose save may carry older values, both land or one is told.
                assert (cpus, label) == (landed["cpus"], landed["label"])
            else:
                # An editor overwrites what it had not read: its own save is never lost to us.
                assert note == 2 * value + 1
            landed = {"cpus": cpus, "label": label}
    finally:
        stop.set()
        reader.join()
        for process in (*processes, editor):
            process.kill()
            process.communicate()
    assert not torn
    assert names(boxes) == ["teal.yaml"]
    assert conflicts < 200


def test_c6_two_changers_alone_never_lose_one(boxes: Path) -> None:
    path = boxes / "teal.yaml"
    path.write_bytes(b"cpus: 0\nnote: 0\nlabel: 0\n" + b"# padding\n" * 300)
    processes = [start(CHANGER, str(boxes), "cpus"), start(CHANGER, str(boxes), "label")]
    landed = [0, 0]
    outcomes: list[str] = []
    try:
        for value in range(1, 101):
            for process in processes:
                tell(process, value)
            for i, process in enumerate(processes):
                outcomes.append(answer(process))
                if outcomes[-1] == "configured":
                    landed[i] = value
            match = FIELDS.fullmatch(path.read_bytes())
            assert match is not None
            assert [int(match[1]), int(match[3])] == landed
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert set(outcomes) <= {"configured", "conflict"}
    # In every round at least one of the two lands.
    assert all("configured" in outcomes[i : i + 2] for i in range(0, 200, 2))


def test_c6_an_editor_that_writes_in_place_meets_no_swapped_file(boxes: Path) -> None:
    """Each in-place save is found in the file afterwards, whatever box was doing meanwhile."""
    path = boxes / "teal.yaml"
    path.write_bytes(b"cpus: 0\nnote: 0\nlabel: 0\n" + b"# padding\n" * 300)
    changer, editor = start(CHANGER, str(boxes), "cpus"), start(EDITOR, str(boxes))
    saved = 0
    try:
        for value in range(2, 202, 2):
            tell(changer, value)
            tell(editor, value)
            outcome, edit = answer(changer), answer(editor)
            match = FIELDS.fullmatch(path.read_bytes())
            assert match is not None
            if edit == "saved":
                saved += 1
                assert int(match[2]) == value, (outcome, edit)
            elif outcome == "configured":
                assert int(match[1]) == value
    finally:
        for process in (changer, editor):
            process.kill()
            process.communicate()
    assert saved > 10
    assert names(boxes) == ["teal.yaml"]
