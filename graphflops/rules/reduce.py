"""Reductions: sums, means, extremes, variances, counts; and softmax. A reduction of n elements is n operations."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, free
from graphflops.dims import Dim, Expr, dim_max, dim_min, prod, same, total
from graphflops.rules.elementwise import DEFAULT_FLOAT, real_of
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import Backward, ForwardCall, backward, require, rule
from graphflops.rules.shapes import Axes, Shape, Tensors, axis_of, only_result, reduced, tensors_of
from graphflops.tensor import BOOL, FLOAT32, INT64, UINT8, UINT64, DType, TensorType

KIND = "reduction"

Fold = Callable[[Iterable[Dim]], Dim]  # reduces the known contents of a vector


def accumulated(dtype: DType) -> DType:
    """The type in which ATen accumulates sums and products: every integer type becomes int64."""
    return dtype if dtype.kind in ("float", "complex", "other") else INT64


def parts(x: TensorType) -> int:
    """Real numbers per element: 2 for complex types."""
    return 2 if x.dtype.kind == "complex" else 1


def reduction(
    x: TensorType,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    each: int = 1,
    final: int = 0,
    evaluated: int = 0,
    evaluated_final: int = 0,
    *,
    result: Callable[[DType], DType] | None = None,
    fold: Fold | None = None,
) -> Estimate:
    """`each` operations and `evaluated` functions per element, `final` and `evaluated_final` per result.

    result: its element type by that of `x`, if no `dtype` is given. fold: computes contents from a vector's known contents.
    """
    out = x.like(reduced(x.shape, dim, keepdim), dtype or (result and result(x.dtype)))
    work = parts(x) * (each * x.numel + final * out.numel)
    if fold is not None and isinstance(x.value, tuple) and x.rank == 1 and not out.dtype.is_floating:
        folded = fold(value for value in x.value if isinstance(value, (int, Expr)))
        out = replace(out, value=(folded,) if out.rank else folded)
    return Estimate((out,), 0, work, evaluated * x.numel + evaluated_final * out.numel, reads=(x,))


def indexed(estimate: Estimate) -> Estimate:
    """The estimate with the index of each result as a second result."""
    values = only_result(estimate)
    return replace(estimate, out=(values, values.like(dtype=INT64)))


def truths(dtype: DType) -> DType:
    """The type of truth values: bool, or uint8 if the operand is uint8."""
    return UINT8 if dtype == UINT8 else BOOL


for _names, _says, _given in (
    ("sum", "One addition per element.", {"result": accumulated, "fold": total}),
    ("nansum", "A comparison, a selection and an addition per element.", {"result": accumulated, "each": 3}),
    ("mean", "One addition per element and one division per result.", {"final": 1}),
    (
        "nanmean",
        "A comparison, a selection, an addition and a count per element, a division per result.",
        {"each": 4, "final": 1},
    ),
    ("amax", "One comparison per element.", {"fold": lambda values: dim_max(*values)}),
    ("amin", "One comparison per element.", {"fold": lambda values: dim_min(*values)}),
    ("argmax argmin", "One comparison per element.", {"result": lambda _: INT64}),
    ("all any", "One logical operation per element.", {"result": truths}),
    ("_is_all_true _is_any_true", "One logical operation per element.", {"result": truths}),
    ("count_nonzero", "A comparison and an addition per element.", {"result": lambda _: INT64, "each": 2}),
    ("hash_tensor", "One exclusive or per element.", {"result": lambda _: UINT64}),
):
    rule(f"aten.{_names}").derived(reduction, says=_says, order="x dim keepdim", **_given)


@rule("aten.prod")
def product_of(
    x: TensorType, dim: Axes = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Estimate:
    """One multiplication per element, a complex one being six operations."""
    each = 3 if x.dtype.kind == "complex" else 1
    return reduction(x, dim, keepdim, dtype=dtype, each=each, result=accumulated, fold=prod)


def extreme(x: TensorType, dim: int | None = None, keepdim: bool = False, *, fold: Fold | None) -> Estimate:
    """One comparison per element; along one axis also where each extreme was found."""
    return reduction(x, fold=fold) if dim is None else indexed(reduction(x, dim, keepdim))


rule("aten.max").derived(extreme, fold=lambda values: dim_max(*values))
rule("aten.min").derived(extreme, fold=lambda values: dim_min(*values))


@rule("aten._aminmax", "aten.aminmax")
def aminmax(x: TensorType, dim: int | None = None, keepdim: bool = False) -> Estimate:
    """Two comparisons per element, one for each extreme."""
    estimate = reduction(x, dim, keepdim, each=2)
    return replace(estimate, out=estimate.out * 2)


@rule("aten.all.dims", "aten.any.dims")
def any_along(x: TensorType, dim: Axes = None, keepdim: bool = False) -> Estimate:
    """One logical operation per element; an empty list of axes reduces none, unlike in other reductions."""
    if dim == ():
        return Estimate((x.like(dtype=truths(x.dtype)),), vector_flops=x.numel, reads=(x,))
    return reduction(x, dim, keepdim, result=truths)


@rule("aten.var").takes("x * dim? keepdim? output_dtype?")
def spread(of: Operands, *, root: bool = False, with_mean: bool = False) -> Estimate:
    """The mean, then the squared distances: four operations per element, two divisions per result."""
    x, dim, keepdim, dtype = of
    out = x.like(reduced(x.shape, dim, bool(keepdim)), dtype or real_of(x.dtype))
    return Estimate(
        (out, out.like(dtype=x.dtype)) if with_mean else (out,),
        vector_flops=parts(x) * (4 * x.numel + 2 * out.numel),
        transcendentals=out.numel if root else 0,
        reads=(x,),
    )


rule("prims.var").derived(spread, order="x dim")
rule("aten.std").derived(spread, root=True)
rule("aten.var_mean").derived(spread, with_mean=True)
rule("aten.std_mean").derived(spread, root=True, with_mean=True)


@rule("aten.logsumexp", "aten.special_logsumexp")
def logsumexp(x: TensorType, dim: Axes, keepdim: bool = False) -> Estimate:
    """Maximum, difference, exponential and sum per element; a logarithm and an addition per result."""
    dtype = x.dtype if x.dtype.is_floating else DEFAULT_FLOAT
    return reduction(x, dim, keepdim, dtype, each=3, final=1, evaluated=1, evaluated_final=1)


@rule("aten.sum_to_size")
def sum_to_size(x: TensorType, size: Shape) -> Estimate:
    """One addition per element; the tensor itself if no axis is reduced, and there is one."""
    require(len(size) <= x.rank, f"{x.rank} axes do not sum to {len(size)}")
    if 0 < len(size) == x.rank and all(same(a, b) for a, b in zip(x.shape, size, strict=True)):
        return free(x.view(size))
    return Estimate((x.like(size, accumulated(x.dtype)),), vector_flops=parts(x) * x.numel, reads=(x,))


@rule("prims.sum", "prims.prod", "prims.amax", "prims.amin", "prims.xor_sum")
def prims_reduction(x: TensorType, dims: Axes, *, output_dtype: DType | None = None) -> Estimate:
    """One operation per element."""
    return reduction(x, dims, dtype=output_dtype)


def operand_gradient(call: ForwardCall, each: int = 0, evaluated: int = 0, saved: Tensors = ()) -> Estimate:
    """The gradient of `x` from the first result's, by `each` operations and `evaluated` functions per element."""
    x = call["x"]
    work = parts(x) * each * x.numel
    return Estimate((x.like(),), 0, work, evaluated * x.numel, reads=(call.out, *saved))


def x_and_result(call: ForwardCall) -> tuple[TensorType, TensorType]:
    """The operand and the first result, which many gradients read again; the gradient has the result's type."""
    return call["x"], call.out


# The gradient is a view that repeats the result's gradient.
backward("aten.sum")(lambda call: free(replace(call["x"].like(), stored=call.out.numel)))


def per_element(
    each: int = 0, evaluated: int = 0, saved: Callable[[ForwardCall], Tensors] = lambda _: ()
) -> Backward:
    """The backward rule with this work per element of the operand. saved: tensors read beside the gradient."""
    return lambda call: operand_gradient(call, each, evaluated, saved(call))


backward("aten.mean")(per_element(1))  # a division
backward("aten.prod")(per_element(2, saved=x_and_result))  # times the product, divided by the element


@backward("aten.amax", "aten.amin", "aten.max", "aten.min")
def amax_backward(call: ForwardCall) -> Estimate:
    """Along one axis a scatter; else the gradient is shared among equal extremes, which are found and counted."""
    if len(call.estimate.out) == 2:
        return operand_gradient(call, saved=selected_indices(call))
    return operand_gradient(call, each=3, saved=x_and_result(call))


def selected_indices(call: ForwardCall) -> Tensors:
    """The index tensor of the forward call."""
    return tensors_of(call.estimate.out[1:2])


# The mean is recomputed; then a difference and a product with the scaled gradient.
backward("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")(
    per_element(3, saved=lambda call: x_and_result(call)[:1])
)
# The difference from the result, its exponential and a product.
backward("aten.logsumexp", "aten.special_logsumexp")(per_element(2, 1, x_and_result))


KIND = "softmax"

SOFTMAX = 4  # maximum 1, subtract 1, sum 1, divide 1; and an exponential
LOG_SOFTMAX = 4  # maximum 1, subtract 1, sum 1, subtract 1; and an exponential
SAFE = 3  # compare 1, any 1, select 1: fully masked rows become zero
SOFTMAX_GRADIENT = 4  # multiply 1, sum 1, subtract 1, multiply 1
LOG_SOFTMAX_GRADIENT = 3  # sum 1, multiply 1, subtract 1; and an exponential


@rule("aten.softmax special_softmax _softmax").takes("x dim? dtype? mask?")
def softmax_along(of: Operands, *, per_element: int = SOFTMAX) -> Estimate:
    """Maximum, difference, exponential, sum and division; the axis need only exist."""
    x, dim, dtype, mask = of
    axis_of(-1 if dim is None else dim, x.rank)
    if isinstance(dtype, bool):  # whether half precision becomes single
        dtype = FLOAT32 if dtype else None
    out = x.like(dtype=dtype)
    work = (per_element + (out.dtype != x.dtype)) * x.numel
    return Estimate((out,), vector_flops=work, transcendentals=x.numel, reads=(x, mask))


rule("aten._safe_softmax").derived(softmax_along, per_element=SOFTMAX + SAFE)
rule("aten._masked_softmax").derived(softmax_along, order="x mask dim", per_element=SOFTMAX + 1)


@rule("aten.log_softmax", "aten.special_log_softmax", "aten._log_softmax")
def log_softmax(x: TensorType, dim: int, dtype: DType | bool | None = None) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    rows = prod(reduced(x.shape, dim))
    return softmax_along(x, dim, dtype, per_element=LOG_SOFTMAX).plus(transcendentals=rows)


@takes("grad_output output mask? * input_dtype?")
def gradient(of: Operands, *, per_element: int = SOFTMAX_GRADIENT, exponentials: int = 0) -> Estimate:
    """The product with the result, minus its row sum: four operations; of logarithms three and an exponential."""
    grad_output, output, mask, input_dtype = of
    ranks = f"the gradient has {grad_output.rank} axes, the result {output.rank}"
    require(grad_output.rank == output.rank, ranks)
    out = grad_output.like(dtype=input_dtype)
    work, functions = (per_element + (out.dtype != grad_output.dtype)) * out.numel, exponentials * out.numel
    return Estimate((out,), vector_flops=work, transcendentals=functions, reads=(grad_output, output, mask))


_LOG: dict[str, Any] = {"per_element": LOG_SOFTMAX_GRADIENT, "exponentials": 1}
rule("aten._softmax_backward_data").derived(gradient, order="grad_output output")
rule("aten._log_softmax_backward_data").derived(gradient, order="grad_output output", **_LOG)
rule("aten._masked_softmax_backward").derived(gradient, per_element=SOFTMAX_GRADIENT + 1)


@backward("aten.softmax special_softmax _softmax _safe_softmax _masked_softmax")
def softmax_gradient(call: ForwardCall, **given: Any) -> Estimate:
    """As the backward operator, from the result."""
    return gradient(call.out.like(), call.out, input_dtype=call["x"].dtype, **given)


backward("aten.log_softmax special_log_softmax _log_softmax")(partial(softmax_gradient, **_LOG))
