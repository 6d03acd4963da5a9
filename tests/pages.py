"""The Boxfiles that documents show, so that tests run what people copy."""

from __future__ import annotations

import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def boxfile_in(page: str, name: str) -> str:
    """The block of docs/`page` that begins with the comment `# NAME.box.yaml`."""
    lines = (DOCS / page).read_text().splitlines()
    start = lines.index(f"    # {name}.box.yaml")
    end = next(n for n in range(start, len(lines)) if lines[n] and not lines[n].startswith("    "))
    return textwrap.dedent("\n".join(lines[start:end])).strip() + "\n"
