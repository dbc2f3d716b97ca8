"""What all elementwise operators share: broadcasting, promotion, work per element, gradients, known contents.

Work is that of the operator's defining formula; guards against special values (nan, infinity, a zero
argument) are not counted, and a choice between two values by one comparison is one operation. Complex
arithmetic counts both parts, and products by their real operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value
from graphflops.dims import Dim, broadcast
from graphflops.rules.contents import combine
from graphflops.rules.promotion import float_result, real_of, result_type
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.tensor import BOOL, DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.rules.contents import Fold

Promotion = Callable[..., DType]  # from the operands to the result's element type


@dataclass(frozen=True, slots=True)
class Gradient:
    """Work per element for one operand's gradient, and what is read beside the gradient of the result.

    reads: names of operands ("a", "b", "c"), and "out" for the result, that the forward pass kept.
    Without any work the gradient is zero, and only written.
    """

    flops: int = 0
    transcendentals: int = 0
    reads: str = ""


ZERO = Gradient()
PASS = None  # the result's gradient is the operand's too: no work, the same memory


def to_bool(*_: Value) -> DType:
    """The result type of predicates."""
    return BOOL


def to_real(*operands: Value) -> DType:
    """The promoted type, of which only the real part's type remains."""
    return real_of(result_type(*operands))


def to_real_float(*operands: Value) -> DType:
    """The real part's type, and the default float for integers."""
    return real_of(float_result(*operands))


def elementwise(
    *operands: Value,
    flops: Dim = 0,
    transcendentals: Dim = 0,
    result: Promotion = result_type,
    complex_work: tuple[int, int] | None = None,
    fold: Fold | None = None,
) -> Estimate:
    """One result of the tensors' broadcast shape; `flops` and `transcendentals` are per element of it.

    complex_work: both counts per complex element, where they are not twice those of a real one.
    fold: the same operation on sizes, by which known contents of small integer tensors are followed.
    """
    tensors = tuple(x for x in operands if isinstance(x, TensorType))
    dtype = result(*operands)
    out = TensorType(broadcast(*(x.shape for x in tensors)), dtype)
    if fold is not None and not dtype.is_floating:
        out = replace(out, value=combine(fold, out.shape, operands))
    if result_type(*operands).kind == "complex":
        flops, transcendentals = complex_work or (2 * flops, 2 * transcendentals)
    n = out.numel
    return Estimate((out,), vector_flops=flops * n, transcendentals=transcendentals * n, reads=tensors)


def pointwise(
    names: str,
    flops: int = 0,
    transcendentals: int = 0,
    *,
    arity: int = 1,
    result: Promotion = result_type,
    complex_work: tuple[int, int] | None = None,
    fold: Fold | None = None,
    gradients: tuple[Gradient | None, ...] = (),
    namespace: str = "aten",
) -> None:
    """Register elementwise operators: work per element, how the result's type is found, gradients by operand.

    The first `arity` arguments are operands, the others attributes that change neither type nor work.
    """

    def estimate(*operands: Value) -> Estimate:
        return elementwise(
            *operands,
            flops=flops,
            transcendentals=transcendentals,
            result=result,
            complex_work=complex_work,
            fold=fold,
        )

    def unary(a: Value, *attributes: Value, **named: Value) -> Estimate:
        return estimate(a)

    def binary(a: Value, b: Value, *attributes: Value, **named: Value) -> Estimate:
        return estimate(a, b)

    def ternary(a: Value, b: Value, c: Value, *attributes: Value, **named: Value) -> Estimate:
        return estimate(a, b, c)

    keys = [f"{namespace}.{name}" for name in names.split()]
    rule(*keys)({1: unary, 2: binary, 3: ternary}[arity])
    if gradients:
        backward(*keys)(differentiate(dict(zip("abc", gradients, strict=False))))


def differentiate(formulas: Mapping[str, Gradient | None]) -> Callable[[ForwardCall], Estimate]:
    """The backward rule of an elementwise operator with these gradients by operand name."""

    def priced(call: ForwardCall) -> Estimate:
        return gradients_of(call, formulas)

    return priced


def gradients_of(call: ForwardCall, formulas: Mapping[str, Gradient | None]) -> Estimate:
    """The wanted operands' gradients; one that was broadcast is summed over its repeats."""
    out = result_of(call)
    parts = 2 if out.dtype.kind == "complex" else 1
    flops = transcendentals = 0
    results, written, touched = [], [], set()
    for name, operand in wanted(call):
        formula, summed = formulas.get(name, ZERO), operand.shape != out.shape
        results.append(operand.like())
        if formula is not PASS or summed:
            written.append(operand.like())
        if formula == ZERO:
            continue
        work = formula or Gradient()
        flops += parts * (work.flops + summed)
        transcendentals += parts * work.transcendentals
        touched |= {"grad", *work.reads.split()} if formula or summed else set()
    saved = {**call.arguments, "grad": out, "out": out}
    return Estimate(
        tuple(results),
        vector_flops=flops * out.numel,
        transcendentals=transcendentals * out.numel,
        reads=tuple(saved[name] for name in sorted(touched) if isinstance(saved[name], TensorType)),
        writes=tuple(written),
    )


def result_of(call: ForwardCall) -> TensorType:
    """The forward call's first result, of whose type its gradient is too."""
    out = call.estimate.out[0]
    assert isinstance(out, TensorType)
    return out


def wanted(call: ForwardCall) -> list[tuple[str, TensorType]]:
    """The operands that want a gradient, by name, in the order of the parameters."""
    return [
        (name, x) for name, x in call.arguments.items() if name in call.wants and isinstance(x, TensorType)
    ]
