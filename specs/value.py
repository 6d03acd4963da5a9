"""Base of the small immutable values that the fast path of the command line imports.

Why not dataclasses: importing that module costs a third of a bare interpreter's start, and `box
exec` is measured against it. A value lists its fields in `__slots__` and fills them with `_fill`
in `__init__`. It must not grow behaviour beyond equality, hashing and repr.
"""

from __future__ import annotations


class Value:
    """An immutable record; equal to another of the same class with equal fields."""

    __slots__: tuple[str, ...] = ()

    def _fill(self, *fields: object) -> None:
        for slot, field in zip(self.__slots__, fields, strict=True):
            object.__setattr__(self, slot, field)

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, slot) for slot in self.__slots__)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{slot}={getattr(self, slot)!r}" for slot in self.__slots__)
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._fields()
