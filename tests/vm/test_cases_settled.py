"""Twenty settled sandboxes, two controllers on one folder, and changes made in parallel."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracebacks import no_traceback
from tests.vm.cases import CaseHome, case_home, undisturbed
from tests.vm.harness import BOX, ROOT, TINY, until

ALL = os.environ.get("BOX_TEST_ALL") == "1"
ROUNDS = 100 if ALL else 8
IDLE_SECONDS = 300 if ALL else 8
RUNNING = ("run-a", "run-b")
STILL = tuple(f"still-{number}" for number in range(18))

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(1200 if ALL else 240)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHome]:
    """The state folder lies inside the watched one: what is written there must not be a hint."""
    with case_home(below="watched/home") as home:
        home.stop()
        for path in home.boxes.iterdir():
            path.unlink()
        home.boxes.rmdir()
        home.boxes.symlink_to("..")
        home.start()
        labels = "labels: {team: 'a', tier: 'b', owner: 'c'}\nenv: {A: '1', B: '2'}\n"
        for name in STILL:
            home.put(name, "state: stopped\n" + labels)
        for name in RUNNING:
            home.put(name, TINY + labels)
        for name in RUNNING:
            home.ready(name)
        for name in STILL:
            settled(home, name)
        time.sleep(1)
        yield home


def settled(home: CaseHome, name: str) -> None:
    until(lambda: home.condition(name, "Ready")[1] == "Stopped", 30, f"{name} is known")


def written(home: CaseHome) -> dict[str, tuple[int, int]]:
    """Inode and change time of everything of this home, guests' disks and our own log apart."""
    found = {}
    for path in [home.path, *home.path.rglob("*"), *home.runtime.rglob("*")]:
        if path.suffix not in (".raw", ".log") and not path.is_symlink():
            facts = path.lstat()
            found[str(path)] = (facts.st_ino, facts.st_ctime_ns)
    return found


def cpu_seconds(home: CaseHome) -> float:
    assert home.controller is not None
    fields = Path(f"/proc/{home.controller.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.quiet  # a guest that is late for a ping has its report written
def test_c4_settled_sandboxes_cost_no_write_and_next_to_no_cpu(home: CaseHome) -> None:
    with undisturbed(home, *RUNNING):
        before, used = written(home), cpu_seconds(home)
        time.sleep(IDLE_SECONDS)
        used = cpu_seconds(home) - used
        home.passes(3)
        time.sleep(1)
        assert written(home) == before
        # 0.5 % of a core is the aim, measured in bench/; a loaded host measures no better
        assert used < 0.02 * IDLE_SECONDS


def test_c4_touching_and_rewriting_the_same_text_restarts_and_writes_nothing(
    home: CaseHome,
) -> None:
    with undisturbed(home, *RUNNING):
        before = {n: (home.pid(n), home.report(n)) for n in RUNNING}
        reports = {n: written(home)[str(home.path / "observed" / n)] for n in (*RUNNING, *STILL)}
        for path in home.boxes.glob("*.box.yaml"):
            os.utime(path)
        for name in RUNNING:
            home.put(name, (home.boxes / f"{name}.box.yaml").read_text())
            # another text of the same meaning is no change either
            with open(home.boxes / f"{name}.box.yaml", "a") as file:
                file.write("# a remark\n")
        home.passes(3)
        assert {n: (home.pid(n), home.report(n)) for n in RUNNING} == before
        assert {n: written(home)[str(home.path / "observed" / n)] for n in reports} == reports


def test_c6_a_second_controller_on_the_same_folder_refuses_to_start(home: CaseHome) -> None:
    with undisturbed(home, *RUNNING):
        second = home.path.parent.parent / "second"
        second.mkdir(mode=0o700)
        (second / "boxes").symlink_to(home.boxes.resolve())
        for through in (second, second.parent / "link"):
            if not through.exists():
                through.symlink_to(second)
            done = subprocess.run(
                [*BOX, "controller"],
                env={**home.env, "BOX_HOME": str(through)},
                cwd=ROOT,
                capture_output=True,
                timeout=60,
            )
            assert done.returncode not in (0, 2)
            assert b"the watched folder" in done.stderr
            assert home.controller is not None
            assert f"{home.controller.pid}".encode() in done.stderr
            no_traceback(done.stderr)
        assert list(second.glob("state/*.toml")) == []
        (Path("/run/box") / (second / "instance").read_text().strip()).rmdir()  # it is empty


def apply(home: CaseHome, text: str, match: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*BOX, "apply", "-f", "-", "--if-match", match],
        env=home.env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.close()
    process.stdin = None
    return process


def digest_shown(home: CaseHome, name: str) -> str:
    lines = home.box("describe", name).stdout.decode().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("Digest"))


def test_c6_parallel_changes_land_or_conflict_and_no_save_is_lost(home: CaseHome) -> None:
    """Two applies made for the same text, and in every other round an editor that saves between."""
    base = "name: teal\nstate: stopped\n"
    home.put("teal", base)
    settled(home, "teal")
    target, state = home.boxes / "teal.box.yaml", home.path / "state" / "teal.toml"
    torn: list[str] = []
    over = threading.Event()

    def read_state() -> None:
        while not over.is_set():
            try:
                tomllib.loads(state.read_text())
            except (OSError, ValueError) as error:
                torn.append(str(error))
            time.sleep(0.002)

    watcher = threading.Thread(target=read_state)
    with undisturbed(home, *RUNNING):
        watcher.start()
        try:
            for number in range(ROUNDS):
                text = target.read_text()
                match = digest_shown(home, "teal")
                texts = [
                    base + f"cpus: {1 + number % 16}\n# {number} cpu\n",
                    base + f"labels: {{round: 'n{number}'}}\n# {number} label\n",
                ]
                edited = base + f"env: {{EDITED: 'n{number}'}}\n"
                running = [apply(home, one, match) for one in texts]
                if number % 2:
                    time.sleep(0.05 * (number % 8))
                    home.put("teal", edited)
                ended = [(p.wait(60), p.communicate()[1]) for p in running]
                won = [text for text, (code, _) in zip(texts, ended, strict=True) if code == 0]
                for code, said in ended:
                    assert code == 0 or (code == 1 and b"fix:" in said), ended
                final = target.read_text()
                if number % 2:
                    # an editor replaces what it finds; nothing made for an older text undoes that
                    assert final == edited
                    assert len(won) <= 1
                else:
                    assert [final] == won, (text, ended)
            until(lambda: f"n{ROUNDS - 1}" in state.read_text(), 20, "the last one is in force")
        finally:
            over.set()
            watcher.join()
    assert torn == []
