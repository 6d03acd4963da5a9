"""Make text from a file, a guest or a VMM safe to show on a terminal or in a log.

It must not interpret the text: it only replaces what a terminal would act on and cuts what is too
long.
"""

from __future__ import annotations


def visible(text: str, limit: int = 200) -> str:
    """`text` with unprintable characters shown as escapes, cut to about `limit` characters."""
    cut = text[:limit]
    shown = cut if cut.isprintable() else "".join(map(_escape, cut))
    return shown + ("..." if len(text) > limit else "")


def visible_lines(text: str, limit: int = 4000) -> str:
    """Like `visible`, but line breaks and tabs stay, and the end of the text is what is kept."""
    kept = text[-limit:]
    return "".join(c if c in "\n\t" else _escape(c) for c in kept)


def one_line(text: str) -> str:
    """Its lines as one, for a log: a list of mistakes has a line for each."""
    return "; ".join(filter(None, (line.strip() for line in text.split("\n"))))


def code_point(character: str) -> str:
    """`U+0430 CYRILLIC SMALL LETTER A` for one character."""
    from unicodedata import name  # a 1 MB table; only an error message needs it

    return f"U+{ord(character):04X} {name(character, '(no name)')}"


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    value = ord(character)
    if value < 0x100:
        return f"\\x{value:02x}"
    return f"\\u{value:04x}" if value < 0x10000 else f"\\U{value:08x}"
