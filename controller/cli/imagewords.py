"""The verbs that act on root images with their arguments, for the parser."""

from __future__ import annotations

from controller.cli import words
from controller.cli.words import Verb


def add(verb: Verb) -> None:
    one = verb(
        "build",
        "images",
        "make the image of a sandbox now, and watch",
        "box build agent",
        "box build agent --pull     # look its tag up again; another image replaces the VM",
    )
    words.name(one)
    one.add_argument(
        "--pull",
        action="store_true",
        help="look up again what its base means; the VM is replaced only if that is another image",
    )
    one = verb(
        "images",
        "images",
        "list the images that are here, or remove those that no sandbox uses",
        "box images",
        "box images --prune --dry-run",
    )
    words.form(one, ("table", "json", "yaml", "toml"))
    one.add_argument("--prune", action="store_true", help="remove what no sandbox uses")
    one.add_argument("--dry-run", action="store_true", help="with --prune: only say what that is")
