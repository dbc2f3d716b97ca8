"""Broadcasting, promotion, gradients and known contents of all elementwise rules; the work is in work.txt.

Result element types follow ATen: category first (bool < integer < float < complex), then width. Within a category,
tensors with axes outrank 0-d tensors, and those outrank Python numbers
(https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from graphflops.cost import Estimate, Value
from graphflops.dims import Expr, broadcast
from graphflops.ops import operator
from graphflops.rules.operands import Operands, Taking
from graphflops.rules.registry import Backward, ForwardCall, backward, require, rule
from graphflops.rules.shapes import Fold, combine
from graphflops.rules.work import PASS, WORK, ZERO, Gradient, Work, gradient_of
from graphflops.tensor import BOOL, COMPLEX64, DTYPES, FLOAT32, INT16, INT64, DType, TensorType

DEFAULT_FLOAT = FLOAT32
_CATEGORY = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
_COMPLEX_OF = {
    "float16": "complex32",
    "bfloat16": "complex64",
    "float32": "complex64",
    "float64": "complex128",
}
_REAL_OF = {"complex32": "float16", "bcomplex32": "bfloat16", "complex64": "float32", "complex128": "float64"}


def result_type(*operands: Value) -> DType:
    """The element type ATen computes in for these tensors and Python numbers (None is skipped)."""
    ranked: list[tuple[int, DType]] = []  # (0 number, 1 tensor without axes, 2 tensor with axes), type
    for operand in operands:
        if isinstance(operand, TensorType):
            ranked.append((2 if operand.rank else 1, operand.dtype))
        elif operand is not None:
            real = INT64 if isinstance(operand, (int, Expr)) else DEFAULT_FLOAT
            number = BOOL if isinstance(operand, bool) else real
            ranked.append((0, COMPLEX64 if isinstance(operand, complex) else number))
    result: DType | None = None
    for priority in (2, 1, 0):
        group = [dtype for rank, dtype in ranked if rank == priority]
        if not group:
            continue
        promoted = group[0]
        for dtype in group[1:]:
            promoted = promote(promoted, dtype)
        if result is None:
            result = promoted
        elif category(promoted) > category(result):
            # A lower priority contributes its category only; the width stays.
            if promoted.kind == "complex" and result.kind == "float":
                promoted = complex_of(result)
            result = promoted
    return result or DEFAULT_FLOAT


def float_result(*operands: Value) -> DType:
    """As `result_type`, but integers become the default float, as for division, sqrt or mean."""
    dtype = result_type(*operands)
    return dtype if dtype.is_floating else DEFAULT_FLOAT


def promote(a: DType, b: DType) -> DType:
    """The smallest type both convert to."""
    if a == b:
        return a
    if category(a) != category(b):
        low, high = sorted((a, b), key=category)
        is_wider = high.kind == "complex" and low.kind == "float" and complex_of(low).bits > high.bits
        return complex_of(low) if is_wider else high
    if a.kind == b.kind:
        if a.bits == b.bits:  # float16 with bfloat16
            return FLOAT32 if a.kind == "float" and a.bits == 16 else a
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
    return signed if signed.bits > unsigned.bits else (INT16 if unsigned.bits == 8 else INT64)


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float, 3 complex."""
    return _CATEGORY.get(dtype.kind, 2)


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts have this type."""
    return DTYPES[_COMPLEX_OF.get(dtype.name, dtype.name if dtype.kind == "complex" else "complex64")]


def real_of(dtype: DType) -> DType:
    """The type of a complex type's parts; other types are their own."""
    return DTYPES[_REAL_OF[dtype.name]] if dtype.name in _REAL_OF else dtype


Promotion = Callable[..., DType]  # from the operands to the result's element type


def to_bool(*_: Value) -> DType:
    """The result type of predicates."""
    return BOOL


def elementwise(
    work: Work, *operands: Value, result: Promotion = result_type, fold: Fold | None = None
) -> Estimate:
    """One result of the tensors' broadcast shape, with the work of a row of the table for each element of it.

    fold: the same function on sizes; it gives the contents of a small integer result if those of the operands are known.
    """
    require(all(x is not None for x in operands), "an operand is missing")
    tensors = tuple(x for x in operands if isinstance(x, TensorType))
    dtype = result(*operands)
    out = TensorType(broadcast(*(x.shape for x in tensors)), dtype)
    if fold is not None and not dtype.is_floating:
        out = replace(out, value=combine(fold, out.shape, operands))
    flops, transcendentals = work.flops, work.transcendentals
    if result_type(*operands).kind == "complex":
        flops, transcendentals = work.complex_work or (2 * flops, 2 * transcendentals)
    n = out.numel
    return Estimate((out,), vector_flops=flops * n, transcendentals=transcendentals * n, reads=tensors)


def pointwise(
    names: str,
    row: str = "",
    *,
    operands: str = "a b c",
    result: Promotion = result_type,
    fold: Fold | None = None,
    dialect: str = "aten",
) -> None:
    """Register elementwise functions, separated by commas, each under all of its names; those of ATen also with gradients.

    The row of the table is `row`, or that of the first name. operands: their names. Other arguments are attributes that
    change neither type nor work.
    """
    for spellings in names.split(","):
        keys = [f"{dialect}.{name}" for name in spellings.split()]
        work = WORK[row or operator(keys[0]).name]
        taken = operands.split()[: work.operands]
        rule(*keys)(_priced(taken, work, result, fold))
        if work.formulas and dialect == "aten":
            backward(*keys)(differentiate(work, *taken))


def _priced(taken: Sequence[str], work: Work, result: Promotion, fold: Fold | None) -> Taking:
    """The rule of a function of these operands, tensors or numbers."""

    def function(of: Operands) -> Estimate:
        return elementwise(work, *of, result=result, fold=fold)

    priced = Taking(" ".join(f"{name}=" for name in taken), function)
    priced.says = f"Operations per element: {work.flops}; functions evaluated: {work.transcendentals}."
    return priced


def differentiate(work: Work, *parameters: str) -> Backward:
    """The backward rule of an elementwise operator. parameters: its operands' names, "a", "b" and "c" unless given."""
    names = parameters or ("a", "b", "c")[: work.operands]

    def priced(call: ForwardCall) -> Estimate:
        from graphflops.rules.formula import numbers_of  # only training reads formulas

        letters = dict(zip("abc", names, strict=False))
        given = [(letter, call.get(name)) for letter, name in letters.items()]
        given += [(name, value) for name, value in call.arguments.items() if name not in names]
        numbers = numbers_of(each for each in given if not isinstance(each[1], TensorType))
        found: dict[str, Gradient | None] = {}
        for name, formula in zip(names, work.formulas, strict=False):
            gradient = None if formula is None else gradient_of(formula, numbers)
            found[name] = gradient and gradient._replace(
                reads=" ".join(letters.get(name, name) for name in gradient.reads.split())
            )
        return gradients_of(call, found)

    return priced


def gradients_of(call: ForwardCall, gradients: Mapping[str, Gradient | None]) -> Estimate:
    """The wanted operands' gradients; the gradient of a broadcast operand is also summed over its repeats."""
    out = call.out
    parts = 2 if out.dtype.kind == "complex" else 1
    flops = transcendentals = 0
    results, written, touched = [], [], set()
    for name, operand in wanted(call):
        gradient, summed = gradients.get(name, ZERO), is_repeated(operand, out)
        results.append(operand.like())
        if gradient is not PASS or summed or operand.dtype != out.dtype:
            written.append(results[-1])
        if gradient == ZERO:
            continue
        work = gradient or Gradient()
        flops += parts * (work.flops + summed)
        transcendentals += parts * work.transcendentals
        touched |= {"grad", *work.reads.split()} if gradient or summed else set()
    saved = {**call.arguments, "grad": out, "out": out}
    return Estimate(
        tuple(results),
        vector_flops=flops * out.numel,
        transcendentals=transcendentals * out.numel,
        reads=tuple(saved[name] for name in sorted(touched) if isinstance(saved[name], TensorType)),
        writes=tuple(written),
    )


def is_repeated(operand: TensorType, out: TensorType) -> bool:
    """Whether an operand is broadcast: it has fewer axes, or an axis of 1. Other sizes are equal, however spelled."""
    pairs = zip(operand.shape, out.shape, strict=False)
    return operand.rank < out.rank or any(own == 1 != whole for own, whole in pairs)


def wanted(call: ForwardCall) -> list[tuple[str, TensorType]]:
    """Names and types of the operands that want a gradient, in the order of the parameters."""
    given = call.arguments.items()
    return [(name, x) for name, x in given if name in call.wants and isinstance(x, TensorType)]
