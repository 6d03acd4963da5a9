"""What each reading of `box verify` proves, in words, and in which order they are shown.

The statements about layers are those of the confinement's own table, so that command, code and
docs/confinement.md say the same. It must not judge a reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

# the readings that belong to no layer of the confinement, by layer and, where they differ, by item
_STATEMENTS = {
    "kernel": {
        "process": "this is the very process that was launched",
        "executable": "it runs the program that was checked before the launch",
        "virtualization": "who runs the guest's instructions: KVM's descriptors, none if emulated",
        "kernel image": "the kernel it booted is the one handed over: hashed before, and now",
        "initramfs": "so is what holds the agent and its modules",
    },
    "guest": {"": "the guest's own word, compared; by itself it proves nothing"},
    "sockets": {"": "keeps others from speaking to the VMM in the controller's place"},
}


def statement(layer: str, item: str) -> str:
    """What a reading proves, or empty for a layer nobody has described."""
    from reconcilers.confinement.layers import LAYERS

    known = _STATEMENTS.get(layer, {})
    if found := known.get(item) or known.get(""):
        return found
    stops = next((each.stops for each in LAYERS if each.name == layer), "")
    return f"stops {stops}" if stops else ""


def groups(readings: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(statement, readings) as they came, neighbours that prove the same together."""
    gathered: list[dict[str, Any]] = []
    title = ""
    for one in readings:
        said = statement(str(one.get("layer", "")), str(one.get("item", "")))
        if gathered and said != title:
            yield title, gathered
            gathered = []
        title = said
        gathered.append(one)
    if gathered:
        yield title, gathered
