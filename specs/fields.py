"""The kinds of text that fields hold, shared by the models of a Boxfile.

Each check judges a value alone and says in words what to write instead. It must not know which
field it serves.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr, StringConstraints

from specs.errors import NotAllowed

LINES_MAX = 1000


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise NotAllowed("control characters are not allowed", "write one line of plain text")
    return text


def check_no_nul(text: str) -> str:
    """`text` itself when it holds no NUL. Raises NotAllowed."""
    if "\0" in text:
        raise NotAllowed("a NUL character cannot be passed to a program", "leave it out")
    return text


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise NotAllowed("must be an absolute path", "write the whole path, from / on")
    return path


Line = Annotated[
    StrictStr, StringConstraints(min_length=1, max_length=4096), AfterValidator(_one_line)
]
Text = Annotated[StrictStr, AfterValidator(check_no_nul)]
AbsolutePath = Annotated[Line, AfterValidator(_absolute)]
ShortLine = Annotated[StrictStr, StringConstraints(max_length=256), AfterValidator(_one_line)]
Lines = Annotated[tuple[Text, ...], Field(max_length=LINES_MAX)]


class Part(BaseModel):
    """Common settings: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
