"""chain.toml: a chain as text, and what may be read as one.

Pure. What does not say exactly what it must is refused as a whole, for nobody can tell afterwards
which layer lies on which.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import tomli_w

from reconcilers.chain import (
    LAYERS_MAX,
    Applied,
    Chain,
    Layer,
    Origin,
    Snapshot,
    is_layer_file,
)
from specs.names import is_name

T = TypeVar("T")


def render(chain: Chain) -> str:
    """The text of chain.toml. Every layer is listed with its format; snapshots name its file."""
    known = {layer.file: layer for layer in _all_layers(chain)}
    plain: dict[str, Any] = {"sandbox": chain.sandbox}
    if chain.size_mib:
        plain["size_mib"] = chain.size_mib
    plain["layer"] = [_plain_layer(layer) for layer in chain.layers]
    beside = [each for each in known.values() if each not in chain.layers]
    if beside:
        plain["beside"] = [_plain_layer(layer) for layer in beside]
    if chain.snapshots:
        plain["snapshot"] = [
            {
                "label": each.label,
                "taken": each.taken,
                "size_mib": each.size_mib,
                "layers": [layer.file for layer in each.layers],
            }
            for each in chain.snapshots
        ]
    if chain.origin is not None:
        plain["fork"] = {
            "of": chain.origin.of,
            "taken": chain.origin.taken,
            "layers": [layer.file for layer in chain.origin.layers],
        }
        if (applied := chain.origin.applied) is not None:
            plain["fork"]["applied"] = {
                "mark": applied.mark,
                "taken": applied.taken,
                "layers": [layer.file for layer in applied.layers],
            }
    if chain.marks:
        plain["mark"] = [{"mark": mark, "layer": file} for mark, file in chain.marks]
    return tomli_w.dumps(plain)


def parse(text: str) -> Chain:
    """What `render` wrote, now or in an older version. Raises ValueError for anything else."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    layers = tuple(_parse_layers(found, "layer"))
    if not layers:
        raise ValueError("layer: at least one is expected")
    known = {each.file: each for each in (*layers, *_parse_layers(found, "beside"))}
    snapshots = tuple(_parse_snapshot(each, known) for each in _get(found, "snapshot", list, []))
    size = _size(found)
    origin = _parse_origin(found["fork"], known) if "fork" in found else None
    marks = tuple(map(_parse_mark, _get(found, "mark", list, [])))
    chain = Chain(_get(found, "sandbox", str), layers, size, snapshots, origin, marks)
    frozen = [*(taken.layers for taken in snapshots), *(origin.held if origin else ())]
    for each in (layers, *frozen):
        _check_order(each)
    if (chain.top.format == "raw") != (size == 0):
        raise ValueError("size_mib: expected just where the top is an overlay")
    if len({each.label for each in snapshots}) != len(snapshots):
        raise ValueError("snapshot: two have one label")
    if any(chain.top in each for each in frozen):
        raise ValueError("layer: the top is frozen")
    return chain


def _all_layers(chain: Chain) -> Iterator[Layer]:
    yield from chain.layers
    for each in chain.snapshots:
        yield from each.layers
    if chain.origin is not None:
        for held in chain.origin.held:
            yield from held


def _plain_layer(layer: Layer) -> dict[str, Any]:
    size = {"size_mib": layer.size_mib} if layer.size_mib else {}
    return {"file": layer.file, "format": layer.format, **size}


def _parse_layers(found: Mapping[str, Any], key: str) -> Iterator[Layer]:
    for each in _get(found, key, list, []):
        if not isinstance(each, dict):
            raise ValueError(f"{key}: a table is expected")
        layer = Layer(_get(each, "file", str), _size(each))
        if not is_layer_file(layer.file):
            raise ValueError(f"{key}: {layer.file!r} is no name of a layer")
        if _get(each, "format", str) != layer.format:
            raise ValueError(f"{key}: {layer.file} is not {each['format']!r}")
        yield layer


def _parse_snapshot(found: object, known: Mapping[str, Layer]) -> Snapshot:
    if not isinstance(found, dict):
        raise ValueError("snapshot: a table is expected")
    label = _get(found, "label", str)
    if not is_name(label):
        raise ValueError(f"snapshot: {label!r} is no label")
    return Snapshot(label, _get(found, "taken", str), _size(found), _named(found, known))


def _parse_origin(found: object, known: Mapping[str, Layer]) -> Origin:
    if not isinstance(found, dict) or not is_name(_get(found, "of", str)):
        raise ValueError("fork: a table that names a sandbox is expected")
    applied = _parse_applied(found["applied"], known) if "applied" in found else None
    return Origin(found["of"], _get(found, "taken", str), _named(found, known), applied)


def _parse_applied(found: object, known: Mapping[str, Layer]) -> Applied:
    if not isinstance(found, dict) or not is_layer_file(_get(found, "mark", str)):
        raise ValueError("applied: a table that names a layer is expected")
    return Applied(found["mark"], _get(found, "taken", str), _named(found, known))


def _parse_mark(found: object) -> tuple[str, str]:
    if not isinstance(found, dict):
        raise ValueError("mark: a table is expected")
    pair = _get(found, "mark", str), _get(found, "layer", str)
    if not all(map(is_layer_file, pair)):
        raise ValueError("mark: two names of layers are expected")
    return pair


def _named(found: Mapping[str, Any], known: Mapping[str, Layer]) -> tuple[Layer, ...]:
    files = _get(found, "layers", list)
    if not files or not all(isinstance(file, str) and file in known for file in files):
        raise ValueError("layers: one that is not listed is named")
    return tuple(known[file] for file in files)


def _check_order(layers: tuple[Layer, ...]) -> None:
    if layers[0].format != "raw" or any(each.format == "raw" for each in layers[1:]):
        raise ValueError("layer: a raw one is expected first, and qcow2 overlays on it")
    if len(layers) > LAYERS_MAX or len(set(layers)) != len(layers):
        raise ValueError(f"layer: at most {LAYERS_MAX} are expected, each once")
    if any((each.format == "raw") != (each.size_mib == 0) for each in layers):
        raise ValueError("layer: size_mib is expected just of an overlay")


def _size(found: Mapping[str, Any]) -> int:
    size = _get(found, "size_mib", int, 0)
    if size < 0:
        raise ValueError("size_mib: a size is expected")
    return size


def _get(found: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    value = found.get(key, default)
    if type(value) is not kind:  # a bool is no int
        raise ValueError(f"{key}: {kind.__name__} expected")
    return value
