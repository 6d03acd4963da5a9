"""docs/confinement.md says what the code does: the order and the table are compared."""

from __future__ import annotations

import re
from pathlib import Path

from controller.cli.proven import statement
from reconcilers.confinement.launch import ORDER
from reconcilers.confinement.layers import LAYERS
from reconcilers.confinement.preflight import launching_side
from reconcilers.network.networks import HOST_RULES_ITEM, RULES_ITEM, TAP_ITEM
from reconcilers.network.state import ITEMS
from tests.vm import test_layers_mended

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "confinement.md").read_text()


def test_page_quotes_the_order_of_the_launcher() -> None:
    section = PAGE.split("## The order", 1)[1].split("\n## ", 1)[0]
    quoted = re.findall(r"^\d+\. \*\*(.+?)\*\*", section, re.MULTILINE)
    assert tuple(quoted) == tuple(name for name, _ in ORDER)


def test_page_has_a_row_per_layer_with_the_same_words() -> None:
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in PAGE.split("## The layers", 1)[1].split("\n## ", 1)[0].splitlines()
        if line.startswith("| `")
    ]
    wanted = [(f"`{each.name}`", each.stops, each.when, each.mend) for each in LAYERS]
    assert [row[:4] for row in rows] == wanted


def test_page_names_every_reading_that_is_of_no_layer() -> None:
    """Those are made under a literal name, or under a module's LAYER."""
    made = re.compile(r'(?:\bReading\(\s*(?:layer=)?|^LAYER = )"([\w ]+)"', re.MULTILINE)
    files = [*ROOT.glob("reconcilers/**/*.py"), *ROOT.glob("controller/**/*.py")]
    named = {name for path in files for name in made.findall(path.read_text())}
    others = named - {each.name for each in LAYERS} - {name for name, _ in ORDER} - {"launcher"}
    section = PAGE.split("## The layers", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| \*([\w ]+)\* \|", section, re.MULTILINE)) == others


def test_page_lists_every_reading_that_is_mended_in_place() -> None:
    section = PAGE.split("## What can change in a live process", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| [`*](\w+)[`*] \| (.+?) \|$", section, re.MULTILINE)
    listed = {layer: tuple(items.split(", ")) for layer, items in rows}
    assert listed == {
        "cgroup": (*test_layers_mended.CONTROL, "member of each hierarchy"),
        "rlimits": test_layers_mended.RLIMITS,
        "scheduler": test_layers_mended.SCHEDULER,
        "network": (*ITEMS, RULES_ITEM, HOST_RULES_ITEM, TAP_ITEM),
        "sockets": test_layers_mended.FILES,
    }


def test_launching_side_names_what_it_lacks() -> None:
    found = {each.item: each for each in launching_side()}
    assert set(found) == {"capabilities", "NoNewPrivs", "seccomp", "cgroup controllers"}


def test_every_layer_says_in_box_verify_what_it_proves() -> None:
    assert all(statement(each.name, "any") for each in LAYERS)
    assert statement("kernel", "kernel image") and statement("guest", "boot id")
