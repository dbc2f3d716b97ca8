"""The shapes of the layers of a report: what goes in, what comes out, and the weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphflops.dims import evaluate
from graphflops.report import Report
from graphflops.report.size_names import named
from graphflops.tensor import TensorType

HEADS = ("input", "output", "weight")


class LayerShapes(NamedTuple):
    """Of one module: its first operand from outside, its last result, and the largest tensor stored for its own calls."""

    operand: TensorType | None = None
    result: TensorType | None = None
    weight: TensorType | None = None


def shape_cells(report: Report, paths: Sequence[str | None]) -> list[list[str]]:
    """The shapes of modules by path, `[2, 16, 64]`, a size without a value by its name; "" where there is no such tensor."""
    found, nothing = layer_shapes(report), LayerShapes()
    return [
        [_text(report, tensor) for tensor in (nothing if path is None else found.get(path, nothing))]
        for path in paths
    ]


def layer_shapes(report: Report) -> dict[str, LayerShapes]:
    """The shapes of each module by path, as the forward runs it: of one that runs several times the last result."""
    given = {entry.name for entry in report.inputs}
    made: dict[str, str] = {}  # by value, the module that makes it
    found: dict[str, LayerShapes] = {}
    for row in report.rows:
        if row.phase == "backward":
            continue
        stored = [
            x.type
            for x in row.inputs
            if not (x.name in made or x.name in given or row.regions) and _is_weight(x.type)
        ]
        for path in _with_parents(row.module):
            shapes = found.get(path, LayerShapes())
            outside = (
                x.type for x in row.inputs if x.name in given or not _is_within(made.get(x.name, path), path)
            )
            operand = shapes.operand or next(outside, None)
            result = row.outputs[0].type if row.outputs else shapes.result
            found[path] = LayerShapes(operand, result, shapes.weight)
        own = found[row.module]
        found[row.module] = own._replace(
            weight=max([*filter(None, [own.weight]), *stored], key=_size, default=None)
        )
        made.update((entry.name, row.module) for entry in row.outputs)
    return found


def _text(report: Report, tensor: TensorType | None) -> str:
    if tensor is None:
        return ""
    values = (evaluate(size, report.values) for size in tensor.shape)
    known = zip(values, tensor.shape, strict=True)
    sizes = (named(str(size), report.names) if value is None else str(value) for value, size in known)
    return f"[{', '.join(sizes)}]"


def _is_weight(tensor: TensorType) -> bool:
    """True for a stored tensor but for single numbers, and for the sizes and indices that exporters store."""
    return tensor.numel != 1 and tensor.rank > 0 and tensor.dtype.name != "int64"


def _with_parents(path: str) -> Iterator[str]:
    """A module's path and those of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _is_within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _size(tensor: TensorType) -> int:
    return tensor.numel if isinstance(tensor.numel, int) else 0
