"""JSON out of plain values, without `json`: loading that takes the launcher longer than its layers.

Pure. Part of the launcher process. It knows the few kinds of values that a report has, and must not
learn to read.
"""

from __future__ import annotations


def written(value: object) -> bytes:
    """The value in ASCII. Raises TypeError for one that JSON, or this, has no form for."""
    return _text(value).encode("ascii")


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_quoted(name)}: {_text(each)}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"a report has no {type(value).__name__}")


def _quoted(text: str) -> str:
    """Units of UTF-16, as JSON wants them; half of a pair alone, from a file name, stays one."""
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return f'"{"".join(map(_character, numbers))}"'


def _character(number: int) -> str:
    plain = 0x20 <= number < 0x7F and chr(number) not in '"\\'
    return chr(number) if plain else f"\\u{number:04x}"
