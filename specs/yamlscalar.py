"""The YAML 1.2 core schema: what a plain word means.

It must not guess: a word that people and programs read in two ways is refused, not interpreted.
"""

from __future__ import annotations

import re

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS_MAX = 18  # fits 64 bits, which is what TOML, JSON readers and the agent can carry


class BadScalar(Exception):
    """A word that has no single meaning, with the way to write it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def resolve(text: str, plain: bool) -> str | int | float | bool | None:
    """The value of a scalar; `plain` says that it was written without quotes.

    Raises BadScalar for a number with a leading zero (octal to YAML 1.1, decimal to YAML 1.2), a
    number that does not fit 64 bits, and half of a surrogate pair, which no encoding can carry.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadScalar("half of a surrogate pair is not a character", "write the character itself")
    if not plain:
        return text
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.fullmatch(text):
        return _integer(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def is_plain_text(text: str) -> bool:
    """Whether `text`, written without quotes, would be read as this very text."""
    try:
        return resolve(text, plain=True) == text
    except BadScalar:
        return False


def _integer(text: str) -> int:
    if _LEADING_ZERO.fullmatch(text):
        raise BadScalar(
            f"{text[:40]} has a leading zero, which some programs read as octal",
            f'quote it: "{text[:40]}", or write the number without the zero',
        )
    if len(text) > _DIGITS_MAX:
        raise BadScalar("the number is too large", "use a smaller number, or quote it as text")
    base = 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10
    return int(text, base)
