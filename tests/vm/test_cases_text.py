"""Texts that trip people: each leaves the running VM alone and says where the mistake is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracebacks import no_traceback
from tests.vm.cases import BYSTANDER, CaseHome, bystander, case_home, names, undisturbed
from tests.vm.harness import TINY, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

FORTY = "# something else\n" * 40
FILE = "oak.box.yaml"

# what is written -> where the mistake is, and words the message must hold
BROKEN = {
    "name of another box": (TINY + "name: no\n", "5:7", ['"no"', "oak"]),
    "boolean for text": (
        TINY + "env: {REGION: true}\n",
        "5:15",
        ["env.REGION", 'quote it: "true"'],
    ),
    "number for a base": (TINY + "base: 1.10\n", "5:7", ["base", 'quote it: "1.10"']),
    "number for a label": (TINY + "labels: {tag: 1.10}\n", "5:15", ["labels.tag", "quote it"]),
    "octal": (TINY + "env: {MODE: 0755}\n", "5:13", ["env.MODE", "quote it"]),
    "digits with an underscore": (
        TINY.replace("192", "1_000"),
        "3:10",
        ["ram_mib", "write 1000"],
    ),
    "duplicate 40 lines below": (
        "egress: none\n" + TINY + FORTY + "egress: all\n",
        "46:1",
        ["egress", "line 1", "line 46"],
    ),
    "duplicate of a supported field": (
        TINY + FORTY + "cpus: 4\n",
        "45:1",
        ["cpus", "line 2", "line 45"],
    ),
    "merge key": (
        TINY + "labels: &base {a: 'x'}\nenv:\n  <<: *base\n  a: 'z'\n",
        "7:3",
        ["merge keys (<<) are not supported"],
    ),
    "no-break space": (TINY + "env:\n\u00a0\u00a0A: 'b'\n", "6:1", ["U+00A0"]),
    "Cyrillic a": (TINY.replace("ram_mib", "r\u0430m_mib"), "3:1", ["U+0430"]),
    "empty": ("", "1:1", ["the file is empty"]),
    "only a marker": ("---\n", "2:1", ["the document is empty"]),
    "only a null": ("~\n", "1:1", [""]),
    "nothing under a key": ("spec: ~\n", "1:1", ["spec", "unknown field"]),
    "two documents": (TINY + "---\n" + TINY, "5:1", ["second document"]),
    "not UTF-8": (TINY + "env: {A: '\udcff'}\n", "5:", ["UTF-8"]),
    "a field that is not built": (TINY + "backend: krun\n", "5:1", ["not supported yet"]),
    "a feature that is not built": (
        TINY + "warm: 2\n",
        "5:1",
        ["warm", "not supported yet"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def home() -> Iterator[CaseHome]:
    """Many short cases: what must hold after each is looked at once after all of them."""
    with case_home() as home, bystander(home):
        home.put("oak")
        home.ready("oak")
        with undisturbed(home, BYSTANDER):
            yield home


@pytest.fixture(autouse=True)
def one_vm(home: CaseHome) -> Iterator[None]:
    """No text below may change the running VM."""
    home.put("oak")
    home.valid("oak")
    before = home.pid("oak")
    yield
    assert home.pid("oak") == before, home.box("events", "oak").stdout.decode()
    assert home.vmms("oak") == [before]


def save(home: CaseHome, data: bytes, name: str = FILE) -> Path:
    temporary = home.boxes / ".saving"
    temporary.write_bytes(data)
    return temporary.rename(home.boxes / name)


@pytest.mark.parametrize("what", BROKEN)
def test_y1_y4_y6_an_invalid_text_keeps_the_vm_and_says_where(home: CaseHome, what: str) -> None:
    text, place, words = BROKEN[what]
    generation = home.generation("oak")
    save(home, text.encode("utf-8", "surrogateescape"))
    home.valid("oak", "InvalidBoxfile")
    shown = home.box("describe", "oak").stdout.decode()
    for word in (f"{FILE}:{place}", *words):
        assert word in shown, shown
    assert home.generation("oak") == generation
    home.ready("oak")


def test_y4_get_shows_both_lines_of_a_duplicate_and_commands_still_run(home: CaseHome) -> None:
    text, place, words = BROKEN["duplicate 40 lines below"]
    save(home, text.encode())
    home.valid("oak", "InvalidBoxfile")
    for form in ("json", "yaml", "wide"):
        shown = home.box("get", "oak", "-o", form).stdout.decode()
        assert f"{FILE}:{place}" in shown.replace("\n", " "), shown
    for word in words:
        assert word in home.box("get", "oak", "-o", "json").stdout.decode()
    assert home.run("oak", "echo", "on").stdout == b"on\n"
    assert names(home) == ["oak", BYSTANDER]


def test_y1_y4_y6_apply_refuses_every_invalid_text_at_once_and_writes_nothing(
    home: CaseHome, tmp_path: Path
) -> None:
    flags: list[str] = []
    for number, (text, _, _) in enumerate(BROKEN.values()):
        given = tmp_path / f"{number}" / FILE
        given.parent.mkdir()
        given.write_bytes(text.encode("utf-8", "surrogateescape"))
        flags += ["-f", str(given)]
    good = tmp_path / "elm.box.yaml"
    good.write_text("state: stopped\n")
    before = sorted((p.name, p.lstat().st_mtime_ns) for p in home.boxes.iterdir())
    done = home.box("apply", *flags, "-f", str(good), check=False)
    assert done.returncode == 2
    said = done.stderr.decode()
    for number, (_, place, words) in enumerate(BROKEN.values()):
        mine = [line for line in said.splitlines() if f"/{number}/{FILE}:" in line]
        assert any(f"{FILE}:{place}" in line for line in mine), (number, said)
        for word in words:
            assert any(word in line for line in mine), (word, mine)
    no_traceback(said)
    assert sorted((p.name, p.lstat().st_mtime_ns) for p in home.boxes.iterdir()) == before


def test_y1_yaml_1_2_strings_stay_what_was_written(home: CaseHome) -> None:
    """NO, 2222:22 and the name no are strings in YAML 1.2, and nothing else."""
    generation = home.generation("oak")
    home.put("oak", TINY + "env: {REGION: NO, PORT: 2222:22}\n")
    until(lambda: home.generation("oak") == generation + 1, 20, "taken")
    shown = home.run("oak", "sh", "-c", "echo $REGION $PORT").stdout
    assert shown == b"NO 2222:22\n"
    save(home, b"name: no\nstate: stopped\n", "no.yaml")
    home.valid("no")
    assert names(home) == ["no", "oak", BYSTANDER]
    (home.boxes / "no.yaml").unlink()
    home.nothing_left("no")
    home.put("oak")
    until(lambda: home.generation("oak") == generation + 2, 20, "taken")


def test_y6_a_byte_order_mark_and_crlf_change_nothing(home: CaseHome) -> None:
    generation = home.generation("oak")
    save(home, b"\xef\xbb\xbf" + TINY.replace("\n", "\r\n").encode())
    digest = hashlib.sha256((home.boxes / FILE).read_bytes()).hexdigest()
    until(lambda: digest in home.box("describe", "oak").stdout.decode(), 20, "it is read")
    home.passes(2)
    assert home.condition("oak", "Valid") == ("True", "Accepted")
    assert home.generation("oak") == generation


def test_a_new_box_whose_text_is_invalid_owns_nothing(home: CaseHome) -> None:
    save(home, b"", "elm.box.yaml")
    home.valid("elm", "InvalidBoxfile")
    assert home.condition("elm", "Ready") == ("False", "InvalidBoxfile")
    assert home.vmms("elm") == []
    assert not (home.path / "disks" / "elm").exists()
    (home.boxes / "elm.box.yaml").unlink()
    home.nothing_left("elm")
    until(lambda: names(home) == ["oak", BYSTANDER], 10, "forgotten")
