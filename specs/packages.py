"""What may stand in `packages`: names as apk, apt and dnf take them, and nothing else they would.

A name is judged as text; whether a repository has it is found out inside the guest.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StrictStr, StringConstraints

from specs.errors import NotAllowed
from specs.fields import LINES_MAX
from specs.text import visible

# With a version (apt name=1.2, apk name~1.2, dnf name-1.2), an architecture (name:arch, name.arch),
# a release (apt name/suite), a group (dnf @name), or what provides it (dnf perl(Foo::Bar)).
_NAME = re.compile(r"[A-Za-z0-9@][A-Za-z0-9+._:@/=~<>()-]*")


def check_package(name: str) -> str:
    """`name` itself. Raises NotAllowed with what is wrong."""
    if name.startswith("-"):
        raise NotAllowed("a package manager takes this for an option", "write names of packages")
    if not _NAME.fullmatch(name):
        shown = visible(name, 60)
        message = f'"{shown}" is not the name of a package'
        raise NotAllowed(message, "write one name per entry; commands belong into run")
    if "://" in name or name.endswith((".apk", ".deb", ".rpm")):
        message = "a package manager takes this for a file to install, from wherever it is"
        raise NotAllowed(message, "fetch and check it with a line in run")
    if name.endswith("-"):
        message = "apt takes a name with a - behind it as a package to remove"
        raise NotAllowed(message, f"write {name.rstrip('-')}, or remove it with a line in run")
    return name


Package = Annotated[
    StrictStr, StringConstraints(min_length=1, max_length=200), AfterValidator(check_package)
]
Packages = Annotated[tuple[Package, ...], Field(max_length=LINES_MAX)]
