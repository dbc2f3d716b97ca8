"""Searches by value: result sizes are data-dependent, or follow from known contents."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, floor_div
from graphflops.rules.lapack import n_log_n
from graphflops.rules.onnx.entries import filled, known_contents, literals, moved, size
from graphflops.rules.onnx.fused import Outputs, chosen
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis as place_of
from graphflops.rules.shapes import replaced, same_elements, shown
from graphflops.rules.sort import distinct, nonzero
from graphflops.rules.vision import OVERLAP
from graphflops.tensor import INT64, TensorType

KIND = "sort"


@rule("onnx.NonZero")
def non_zero(x: TensorType) -> Estimate:
    """The position of every element that is not zero, a column each: one comparison per element."""
    known = known_contents(x)
    if known is not None and not any(isinstance(entry, Expr) for entry in known.entries):
        found = [place for place in known.places if known.at(place) != 0]
        out = filled(x.like((x.rank, len(found)), INT64), lambda at: found[at[1]][at[0]])
    elif x.uniform is not None:  # how exporters made a range before ONNX had a Range operator
        out = x.like((x.rank, x.numel if x.uniform else 0), INT64)
    else:
        out = x.like((x.rank, data_dependent("nonzero")), INT64)
    return replace(nonzero(x), out=(out,))


@rule("onnx.Compress")
def compress(x: TensorType, condition: TensorType, *, axis: int | None = None) -> Estimate:
    """The slices of an axis, or the elements of the flattened tensor, for which a condition holds."""
    source = same_elements(x, (x.numel,)) if axis is None else x
    place = 0 if axis is None else place_of(axis, x.rank)
    holds = literals(condition)
    if holds is None:
        out = source.like(replaced(source.shape, place, data_dependent("compress")))
    else:
        kept = [index for index, one in enumerate(holds) if one]
        shape = replaced(source.shape, place, len(kept))
        out = moved(source, source.like(shape), lambda at: replaced(at, place, kept[at[place]]))  # type: ignore[arg-type,return-value]
    return Estimate((out,), reads=(out, condition))


@rule("onnx.Unique")
def unique(x: TensorType, *, axis: int | None = None, sorted: int = 1, outputs: Outputs = ()) -> Estimate:
    """The distinct elements or slices: n*log2(n) comparisons sort them, one per element tells neighbours apart."""
    (values, inverse, counts), work = distinct(x, axis, inverse=True, counts=True, sorting=True)
    inverse = replace(inverse, shape=(inverse.numel,))
    found = literals(x) if axis is None else None
    if found is not None:
        values, counts = _distinct(values, counts, found, bool(sorted))
    return Estimate(chosen(outputs, values, counts.like(), inverse, counts), vector_flops=work, reads=(x,))


def _distinct(
    values: TensorType, counts: TensorType, found: tuple[int, ...], ordered: bool
) -> tuple[TensorType, TensorType]:
    """The distinct values and how many there are of each, from known contents."""
    once = list(dict.fromkeys(found))
    if ordered:
        once.sort()
    return (
        filled(values.like((len(once),)), lambda at: once[at[0]]),
        filled(counts.like((len(once),)), lambda at: found.count(once[at[0]])),
    )


@rule("onnx.NonMaxSuppression")
@takes("boxes scores max_output_boxes_per_class? iou_threshold? score_threshold?")
def non_max_suppression(of: Operands) -> Estimate:
    """Upper bound per class: boxes are sorted by score, and the overlap of every pair is computed."""
    boxes, scores, limit, *_ = of
    given = f"{shown(boxes.shape)} and {shown(scores.shape)}"
    require(boxes.rank == scores.rank == 3, f"{given} are not boxes and scores")
    batch, classes, n = scores.shape
    most = 0 if limit is None else size(limit)
    kept: Dim = 0 if most == 0 else data_dependent("nms")
    out = TensorType((kept, 3), INT64)
    if most == 0:
        return Estimate((out,))
    work = n_log_n(n) + OVERLAP * floor_div(n * (n - 1), 2)
    return Estimate((out,), vector_flops=batch * classes * (n + work), reads=(boxes, scores))
