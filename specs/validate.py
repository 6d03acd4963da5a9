"""Judge a document against a model and say every mistake in words, with its place and a fix.

The model decides what is right; this module only translates. It serves Boxfiles, policy.toml and
config.toml alike, so it must not know a particular field beyond the names people try first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, time
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from specs.document import PROBLEMS_MAX, Document, Path, dotted
from specs.errors import Problem
from specs.text import visible

M = TypeVar("M", bound=BaseModel)

# Words from other tools, where spelling distance would not find ours.
_SYNONYMS: Mapping[str, str] = {
    "memory": "ram_mib",
    "memory_mib": "ram_mib",
    "mem": "ram_mib",
    "ram": "ram_mib",
    "cpu": "cpus",
    "vcpus": "cpus",
    "cores": "cpus",
    "image": "base",
    "from": "base",
    "timeout": "timeout_seconds",
    "environment": "env",
    "volumes": "mounts",
    "disk": "data",
    "size_mib": "data.size_mib",
    "on_delete": "data.on_delete",
    "read_only": "readonly",
    "acceleration": "accel",
    "tags": "labels",
    "mode": "permissions",  # of a written file
}
_NOT_TRUE_FALSE: Mapping[str, str] = {
    "yes": "true",
    "on": "true",
    "y": "true",
    "no": "false",
    "off": "false",
    "n": "false",
}
_GROUPED_DIGITS = re.compile(r"[0-9]+([_,][0-9]+)+")
_WITH_UNIT = re.compile(r"([0-9]+)\s*([a-z]+)", re.IGNORECASE)
# What a field's name ends in says its unit; whoever wrote another one gets the number in it.
_UNITS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "_mib": ("MiB", {"m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024,
                     "t": 1024**2, "tb": 1024**2, "tib": 1024**2}),
    "_seconds": ("seconds", {"s": 1, "sec": 1, "seconds": 1, "m": 60, "min": 60, "minutes": 60,
                             "h": 3600, "hours": 3600, "d": 86400, "days": 86400}),
}  # fmt: skip


def judge(
    model: type[M],
    document: Document,
    file: str,
    known: Iterable[Problem] = (),
    hidden: Collection[str] = (),
) -> tuple[M | None, tuple[Problem, ...]]:
    """The value of `document.data`, or None with problems.

    A mistake at a place that `known` already names is not reported a second time; with `known`
    problems there is no value, whatever the model thinks. No fix offers a field of `hidden`.
    """
    found = list(known)
    value: M | None = None
    try:
        value = model.model_validate(document.data)
    except ValidationError as error:
        taken: set[object] = {(one.line, one.column) for one in found if one.field}
        for problem, missing in _translate(model, error, document, file, hidden):
            # A field that is not there has no place of its own, only that of its map.
            key = problem.field if missing else (problem.line, problem.column)
            if key not in taken:
                found.append(problem)
                taken.add(key)
    return (None, tuple(found)) if found else (value, ())


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems by place, the first `PROBLEMS_MAX` of them, with a last one that counts the rest."""
    ordered = sorted(set(problems), key=lambda p: (p.line, p.column, p.field, p.message))
    rest = len(ordered) - PROBLEMS_MAX
    if rest <= 0:
        return tuple(ordered)
    last = ordered[PROBLEMS_MAX]
    more = Problem(last.file, last.line, last.column, "", f"and {rest} more mistakes from here on")
    return (*ordered[:PROBLEMS_MAX], more)


def _translate(
    model: type[BaseModel],
    error: ValidationError,
    document: Document,
    file: str,
    hidden: Collection[str],
) -> Iterator[tuple[Problem, bool]]:
    """Each mistake, and whether it is a field that is not there."""
    for detail in error.errors(include_url=False):
        kind = detail["type"]
        path, of_key = _path(detail["loc"], document, kind == "missing")
        if kind == "extra_forbidden":
            message, fix = _unknown(model, path, hidden)
            place = document.key_place(path)
        elif of_key:
            message, fix = _wording(kind, detail, path, path[-1], str(path[-1]))
            place = document.key_place(path)
        else:
            written = document.texts.get(path, "")
            message, fix = _wording(kind, detail, path, detail.get("input"), written)
            place = document.place(path)
        if kind == "model_type" and (holder := _model_at(model, path)) is not None:
            fix += f"; the fields are {', '.join(holder.model_fields)}"
        yield Problem(file, *place, dotted(path), message, fix), kind == "missing"


def _path(loc: tuple[int | str, ...], document: Document, missing: bool) -> tuple[Path, bool]:
    """The part of pydantic's location that is in the document, with the name of a field that is
    missing there, and whether it means a key.
    """
    path: Path = ()
    value: Any = document.data
    for step in loc:
        inside_map = isinstance(value, dict) and step in value
        inside_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not (inside_map or inside_list):
            if isinstance(value, list) and isinstance(step, str):
                continue  # pydantic's name for one of several types
            if step != "[key]" and isinstance(value, dict) and (missing or not path):
                path = (*path, step)
            break
        value = value[step]
        path = (*path, step)
    return path, "[key]" in loc


def _unknown(model: type[BaseModel], path: Path, hidden: Collection[str] = ()) -> tuple[str, str]:
    key = str(path[-1])
    holder = _model_at(model, path[:-1]) or model
    fields = [
        name for name in holder.model_fields if name not in (hidden if holder is model else ())
    ]
    message = "unknown field"
    synonym = _SYNONYMS.get(key.lower(), "")
    if synonym.split(".")[0] in fields:
        return message, f"did you mean {synonym}?"
    close = difflib.get_close_matches(key.lower()[:100], fields, n=1, cutoff=0.6)
    if close:
        return message, f"did you mean {close[0]}?"
    return message, f"remove it; the fields are {', '.join(fields)}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int):
            continue
        if current is None or step not in current.model_fields:
            return None
        current = next(_models(current.model_fields[step].annotation), None)
    return current


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, tuple, Annotated):
        for argument in get_args(annotation):
            yield from _models(argument)


def _wording(kind: str, detail: Any, path: Path, value: Any, text: str) -> tuple[str, str]:
    """What is wrong with `value` at `path`, written as `text`, and what to write instead."""
    context = detail.get("ctx", {})
    if kind == "missing":
        return "this field is required", "write it"
    if value is None:
        return "there is no value", "write a value, or remove the line to get the default"
    match kind:
        case "string_type":
            return _not_text(value, text)
        case "int_type" | "int_from_float":
            return _not_integer(value, str(path[-1]) if path else "")
        case "bool_type":
            return _not_bool(value)
        case "enum" | "literal_error":
            return _not_one_of(value, str(context.get("expected", "")))
        case "greater_than_equal":
            return f"{value} is too small", f"use {context['ge']} or more"
        case "less_than_equal":
            return f"{value} is too large", f"use {context['le']} or less"
        case "string_too_short":
            return "the text is empty", "write a value, or remove the line to get the default"
        case "string_too_long":
            return "the text is too long", f"use at most {context['max_length']} characters"
        case "too_short":
            return "too few entries", f"write at least {context['min_length']}"
        case "too_long":
            return "too many entries", f"use at most {context['max_length']}"
        case "string_pattern_mismatch":
            return f'"{visible(str(value), 60)}" has the wrong form', f"match {context['pattern']}"
        case "tuple_type" | "list_type":
            return "this must be a list", 'write "- item" lines, or [item, item]'
        case "dict_type" | "model_type":
            return "this must be a map", 'write "key: value" lines, indented'
        case "value_error":
            error = context.get("error", "not allowed")
            return str(error), getattr(error, "fix", "correct the value")
    return visible(str(detail.get("msg", "not allowed"))), "correct the value"


def _not_text(value: Any, text: str) -> tuple[str, str]:
    if isinstance(value, dict | list):
        return "this must be text, not a list or a map", "write one value"
    what = "true or false" if isinstance(value, bool) else "a number"
    if isinstance(value, date | time):
        what = "a date or time"
    shown = visible(text or _spelling(value), 60)
    return f"this must be text, and {shown} without quotes is {what}", f'quote it: "{shown}"'


def _not_integer(value: Any, field: str) -> tuple[str, str]:
    message = "this must be a whole number"
    if isinstance(value, str):
        compact = value.strip()
        if compact.isascii() and compact.isdigit():
            return f"{message}, not text", f"remove the quotes: {compact[:20]}"
        if _GROUPED_DIGITS.fullmatch(compact):
            plain = re.sub("[_,]", "", compact)[:20]
            return f"{message}, and {visible(compact, 40)} is text in YAML 1.2", f"write {plain}"
        if unit := _WITH_UNIT.fullmatch(compact[:30]):
            return f"{message} without a unit", _in_unit_of(field, *unit.groups())
    return f"{message}, not {visible(_spelling(value), 40)}", "write digits only"


def _in_unit_of(field: str, number: str, unit: str) -> str:
    """What to write for `5m` or `4G` in this field."""
    name, factors = next(
        (one for end, one in _UNITS.items() if field.endswith(end)), ("", dict[str, int]())
    )
    factor = factors.get(unit.lower())
    if factor is None:
        return f"write digits only, in {name}" if name else "write digits only"
    return f"in {name} that is {int(number) * factor}"


def _not_bool(value: Any) -> tuple[str, str]:
    meant = _NOT_TRUE_FALSE.get(value.lower(), "") if isinstance(value, str) else ""
    message = f"{visible(_spelling(value), 40)} is not true or false"
    return message, f"write {meant or 'true or false'}, without quotes"


def _not_one_of(value: Any, expected: str) -> tuple[str, str]:
    choices = re.findall(r"'([^']*)'", expected)
    shown = visible(_spelling(value), 60)
    close = difflib.get_close_matches(shown.lower(), choices, n=1, cutoff=0.6)
    message = f"{shown} is not one of {', '.join(choices)}"
    return message, f"did you mean {close[0]}?" if close else "use one of these"


def _spelling(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    return str(value)
