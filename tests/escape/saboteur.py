"""`box` with walls taken away: python -m tests.escape.saboteur WALL[,WALL...] -- ARGUMENTS OF BOX

The product itself is changed in this process and in the launchers it starts, and blinded: whatever
it reads back, it believes that all is well. So the sandboxes run on without those walls, and only
somebody who looks with eyes of his own can see it. Nothing in the product knows of this program.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass
class Product:
    """The product as it is taken apart: what was replaced comes back with `stack`."""

    stack: contextlib.ExitStack
    launcher: list[str]
    """Programs that run in each jail launcher of a VMM before it begins."""

    def replace(self, target: str, new: Any) -> Any:
        """Put `new` under the dotted name `target`; what was there before."""
        patched = mock.patch(target, new)
        self.stack.enter_context(patched)
        return patched.temp_original

    def around(self, target: str, wrapped: Any) -> None:
        """Replace the function `target` by `wrapped(original, *arguments)`."""
        original: list[Any] = []

        def call(*arguments: Any, **named: Any) -> Any:
            return wrapped(original[0], *arguments, **named)

        original.append(self.replace(target, call))


def main() -> int:
    names, separator, *words = sys.argv[1:]
    if separator != "--":
        sys.exit("usage: python -m tests.escape.saboteur WALL[,WALL...] -- ARGUMENTS OF BOX")
    from controller.cli import main as box
    from tests.escape import impostors

    sys.argv = ["box", *words]
    if words[:1] != ["controller"]:
        answer = impostors.answer(names.split(","), words)
        return box.main() if answer is None else answer
    from tests.escape import blindness, walls, walls_beyond, walls_shares  # noqa: F401

    with contextlib.ExitStack() as stack:
        product = Product(stack, [])
        blindness.blind(product)
        for name in names.split(","):
            if name not in impostors.IMPOSTORS or name in walls.WALLS:
                walls.WALLS[name](product)
        walls.into_launchers(product)
        return box.main()


if __name__ == "__main__":
    sys.exit(main())
