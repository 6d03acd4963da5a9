"""The Boxfiles that people copy: which there are, what each is for, its text for this host.

They lie in `examples/`, in the source tree and in the wheel. This module must not write files.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from controller.cli.output import safe
from specs.errors import UsageError

SUFFIXES = (".box.yaml", ".box.toml")
FOLDER = Path(__file__).resolve().parents[2] / "examples"


def names() -> list[str]:
    return sorted(_stem(path) for path in _files())


def about() -> list[tuple[str, str]]:
    """Each example's name and the first sentence of its comment."""
    return [(_stem(path), _first_sentence(path)) for path in _files()]


def text_of(wanted: str, name: str, accel: str) -> tuple[str, str]:
    """The example's text for a sandbox `name`, and the suffix of its file.

    `accel` is what an example that leaves that to the host is given, a line or comment of its own.
    Raises UsageError.
    """
    found = {_stem(path): path for path in _files()}
    path = found.get(_stem(Path(wanted)))
    if path is None:
        raise UsageError(f"there is no example {safe(wanted)}", fix=_nearest(wanted, sorted(found)))
    suffix = next(one for one in SUFFIXES if path.name.endswith(one))
    toml = suffix.endswith("toml")
    text = path.read_text(encoding="utf-8")
    line = f'name = "{name}"' if toml else f"name: {name}"
    text = re.sub(r"^name *[:=].*$", line, text, flags=re.MULTILINE)
    if not re.search(r"^accel *[:=]", text, flags=re.MULTILINE):
        setting = re.sub(r"^accel: (\w+)", r'accel = "\1"', accel, flags=re.M) if toml else accel
        # In TOML a field stands before the first table, so it goes in front of all fields.
        head, rest = _parted(text)
        text = f"{head}{setting}\n\n{rest}"
    return text, suffix


def _parted(text: str) -> tuple[str, str]:
    """The comment an example begins with, and what follows its blank line."""
    head, blank, rest = text.partition("\n\n")
    return (head + blank, rest) if head.startswith("#") and blank else ("", text)


def _nearest(wanted: str, known: list[str]) -> str:
    if not known:
        return "none are installed; box new NAME without --from writes a first one"
    close = difflib.get_close_matches(_stem(Path(wanted)).lower(), known, n=1, cutoff=0.5)
    listed = f"{', '.join(known)}; box new --list says what each is for"
    return f"did you mean {close[0]}? There are: {listed}" if close else f"one of: {listed}"


def _first_sentence(path: Path) -> str:
    """Up to the full stop that ends it; the comment may go on over several lines."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        words.append(line[2:].strip())
    return re.split(r"(?<=\.)\s", " ".join(words), maxsplit=1)[0].rstrip(".")


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _files() -> list[Path]:
    if not FOLDER.is_dir():
        return []
    return sorted(path for path in FOLDER.iterdir() if path.name.endswith(SUFFIXES))
