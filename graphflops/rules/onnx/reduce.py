"""Products of two matrices and over named axes, determinants, reductions, running sums, searches by value.

The size of what a search finds is data-dependent, or follows from known contents.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, at_least, compare, meet
from graphflops.rules import contraction, cumulative, lapack, linalg, matmul as products, reduce as shared
from graphflops.rules.cumulative import distinct, nonzero
from graphflops.rules.onnx import entries, values
from graphflops.rules.onnx.values import filled, known_contents, moved
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.resample import suppression
from graphflops.rules.shapes import axis_of, only_result, replaced, same_elements, tensors_of
from graphflops.tensor import INT64, TensorType

Fold = Callable[[Sequence[values.Number]], values.Number]

KIND = "reduction"


def running(x: TensorType, axis: TensorType, *, exclusive: int = 0, reverse: int = 0, fold: Fold) -> Estimate:
    """One operation per element."""
    place = entries.size(axis)
    estimate = cumulative.running(x, place if isinstance(place, int) else 0)
    out, known = only_result(estimate), known_contents(x)
    if x.rank == 1 and known is not None:
        numbers = [*known.values()][:: -1 if reverse else 1]

        def entry(at: values.Place) -> values.Number:
            before = len(numbers) - 1 - at[0] if reverse else at[0]
            return values.converted(fold(numbers[: before + (not exclusive)]), out.dtype)

        out = filled(out, entry)
    return replace(estimate, out=(out,), reads=(x, axis))


rule("onnx.CumSum").derived(running, fold=values.total)
rule("onnx.CumProd").derived(running, fold=values.product_of)


@rule("onnx.TopK")
def top_k(x: TensorType, k: entries.Numbers = None, *, axis: int = -1, sorted: int = 1) -> Estimate:
    """Per lane of n a selection in n comparisons, then k*log2(k) to put the k found in order."""
    found = cumulative.topk(x, entries.said(k, "topk"), axis, sorted=bool(sorted))
    values_found, places = found.out
    assert isinstance(places, TensorType)
    reads = (x, k if isinstance(k, TensorType) else None)
    return replace(found, out=(values_found, places.like(dtype=INT64)), reads=reads)


@rule("onnx.Einsum")
def einsum(*tensors: TensorType, equation: str) -> Estimate:
    """Matrix products of the pairwise contractions, left to right; a mere transposition is a copy."""
    estimate = contraction.einsum(equation, tensors)
    if not estimate.alias:
        return estimate
    return Estimate((only_result(estimate).like(),), reads=(only_result(estimate).like(),))


rule("onnx.MatMul", product=("a", "b"))(products.matmul)
rule("onnx.Det", kind="linear_algebra").derived(
    linalg.factored,
    says="Gaussian elimination, and the product of the diagonal.",
    made="-",
    work=lambda _, n: lapack.lu(n, n) + n,
)


@rule("onnx.MatMulInteger", product=("a", "b")).takes("a b a_zero_point? b_zero_point?")
def matmul_of_integers(of: Operands) -> Estimate:
    """As `MatMul` in 32 bits, with a subtraction per element of an operand that has a zero point."""
    entries.require_scales((*of.a.shape[:-1], 1), of.a_zero_point)
    entries.require_scales((*of.b.shape[:-2], 1, of.b.shape[-1]), of.b_zero_point)
    return entries.in_32_bits(products.matmul(of.a, of.b), (of.a, of.a_zero_point), (of.b, of.b_zero_point))


@rule("onnx.Gemm", product=("a", "b")).takes("a b c?; alpha=1.0 beta=1.0 transA=0 transB=0")
def gemm(of: Operands, **others: object) -> Estimate:
    """The product, and vector FLOPs for the remaining operations of alpha * (a @ b) + beta * c."""
    a, b, c = of
    pairs = ((a, of.transA), (b, of.transB))
    product = products.matmul(*(x.view(x.shape[::-1]) if transposed else x for x, transposed in pairs))
    if c is None:
        scaled = products.additions(only_result(product)) if of.alpha != 1 else 0
        return replace(product, vector_flops=scaled)
    return products.add_product(c, product, of.beta, of.alpha)


class Reduction(NamedTuple):
    """Operations and functions per element, and per result; how contents are reduced."""

    each: int = 1
    final: int = 0
    evaluated: int = 0
    evaluated_final: int = 0
    fold: Fold | None = None


REDUCTIONS = {
    "ReduceSum": Reduction(fold=values.total),
    "ReduceProd": Reduction(fold=values.product_of),
    "ReduceMax": Reduction(fold=lambda of: values.largest(*of)),
    "ReduceMin": Reduction(fold=lambda of: values.smallest(*of)),
    "ReduceMean": Reduction(final=1),
    "ReduceL1": Reduction(2),  # magnitude, sum
    "ReduceL2": Reduction(2, evaluated_final=1),  # square, sum; root
    "ReduceSumSquare": Reduction(2),  # square, sum
    "ReduceLogSum": Reduction(evaluated_final=1),
    "ReduceLogSumExp": Reduction(3, 1, 1, 1),  # maximum, difference, exp, sum; log, sum
}


@takes("x axes?; keepdims=1 noop_with_empty_axes=0")
def reduction(of: Operands, *, kind: Reduction) -> Estimate:
    """So many operations per element and per result; the axes became an operand in version 18, of sums in version 13."""
    x, axes, keepdims = of.x, of.axes, of.keepdims
    gone = entries.chosen_axes(axes, x.rank) if axes is not None else ()
    reads = (x, axes if isinstance(axes, TensorType) else None)
    if gone is None:  # data-dependent axes: the remaining sizes are unknown
        count = entries.many(axes)
        require_known(count is not None or keepdims == 1, "neither the axes nor their number are known")
        left = x.rank if keepdims == 1 or count is None else x.rank - count
        out = x.like(entries.unknown("reduced", place) for place in range(left))
        flops = kind.each * x.numel + kind.final * out.numel
        functions = kind.evaluated * x.numel + kind.evaluated_final * out.numel
        return Estimate((out,), vector_flops=flops, transcendentals=functions, reads=reads)
    if not gone and of.noop_with_empty_axes == 1:  # as onnxruntime reads it
        # a reduction over no axes: only the operations before and after the sum, maximum or product
        sums = 2 if kind.evaluated else 1  # the sum; with exponentials the maximum too
        flops = (kind.each - sums + kind.final) * x.numel
        functions = (kind.evaluated + kind.evaluated_final) * x.numel
        same = x.like() if flops or functions else replace(x.like(), value=x.value)
        return Estimate((same,), vector_flops=flops, transcendentals=functions, reads=(x,))
    require(bool(x.rank) or not gone, "a number has no axis to be reduced")
    estimate = shared.reduction(x, gone, keepdims == 1, None, *kind[:4])
    out = only_result(estimate)
    if kind.fold is not None:
        out = values.reduced(kind.fold, out, x, gone or tuple(range(x.rank)))
    return replace(estimate, out=(out,), reads=reads)


for _name, _kind in REDUCTIONS.items():
    rule(f"onnx.{_name}").derived(reduction, kind=_kind)


@rule("onnx.ArgMax", "onnx.ArgMin")
def arg_extreme(x: TensorType, *, axis: int = 0, keepdims: int = 1) -> Estimate:
    """One comparison per element."""
    return shared.reduction(x, axis, keepdims == 1, dtype=INT64)


@rule("onnx.NonZero")
def non_zero(x: TensorType) -> Estimate:
    """The position of every element that is not zero, a column each: one comparison per element."""
    known = known_contents(x)
    if known is not None and not any(isinstance(entry, Expr) for entry in known.values()):
        found = [place for place, number in known.items() if number != 0]
        out = filled(x.like((x.rank, len(found)), INT64), lambda at: found[at[1]][at[0]])
    elif x.uniform is not None:  # how exporters made a range before ONNX had a Range operator
        out = x.like((x.rank, x.numel if x.uniform else 0), INT64)
    else:
        out = x.like((x.rank, data_dependent("nonzero")), INT64)
    return replace(nonzero(x), out=(out,))


@rule("onnx.Compress", kind="sort")
def compress(x: TensorType, condition: TensorType, *, axis: int | None = None) -> Estimate:
    """The slices of an axis, or the elements of the flattened tensor, for which a condition holds."""
    source = same_elements(x, (x.numel,)) if axis is None else x
    place = 0 if axis is None else axis_of(axis, x.rank)
    holds = entries.literals(condition)
    if holds is None:
        out = source.like(replaced(source.shape, place, data_dependent("compress")))
    else:
        kept = [index for index, one in enumerate(holds) if one and not at_least(index, source.shape[place])]
        # The axis is long enough for all of them.
        meet(compare(">=", max(kept, default=-1), source.shape[place]), 0)
        shape = replaced(source.shape, place, len(kept))
        out = moved(source, source.like(shape), lambda at: replaced(at, place, kept[at[place]]))  # type: ignore[arg-type,return-value]
    return Estimate((out,), reads=(out, condition))


@rule("onnx.Unique", kind="sort")
def unique(x: TensorType, *, axis: int | None = None, sorted: int = 1) -> Estimate:
    """The distinct elements or slices: n*log2(n) comparisons sort them, one per element tells neighbours apart."""
    apart = distinct(x, axis, True, True)
    values, inverse, counts = tensors_of(apart.out)
    inverse = replace(inverse, shape=(inverse.numel,))
    found = entries.literals(x) if axis is None else None
    if found is not None:
        # the distinct values and how many there are of each, from known contents
        once = list(dict.fromkeys(found))
        if sorted:
            once.sort()
        values = filled(values.like((len(once),)), lambda at: once[at[0]])
        counts = filled(counts.like((len(once),)), lambda at: found.count(once[at[0]]))
    return replace(apart, out=(values, counts.like(), inverse, counts))


@rule("onnx.NonMaxSuppression", kind="sort").takes(
    "boxes scores max_output_boxes_per_class? iou_threshold? score_threshold?"
)
def non_max_suppression(of: Operands) -> Estimate:
    """Upper bound per class: boxes are sorted by score, and the overlap of every pair is computed."""
    boxes, scores, limit, *_ = of
    batch, classes, n = scores.shape
    most = 0 if limit is None else entries.size(limit)
    kept: Dim = 0 if most == 0 else data_dependent("nms")
    out = TensorType((kept, 3), INT64)
    if most == 0:
        return Estimate((out,))
    return Estimate((out,), vector_flops=batch * classes * (n + suppression(n)), reads=(boxes, scores))
