"""Elementwise functions: their work, which is in work.txt, broadcasting, promotion, gradients and known contents.

Every dialect and every operator that a function is fused into counts it from its row of the table, by its canonical name;
what an attribute adds (a scale that is not one) is added where the rule of the operator reads the attribute. Work is that of
the defining formula; guards against special values (nan, infinity, a zero argument) are not counted, and a choice between
two values by one comparison is one operation.

The rows are the lines of `work.txt`; after an empty line those of activations, and after another the gradients of reductions
and scans. A row has names, how many operands, FLOPs and function evaluations, and both for a complex element where they are
not twice those of a real one; then the gradient of each operand as a formula, where the function has a gradient rule of its
own: `g` passes the result on, `fused` is computed by one kernel; after `=>`, the formula that PyTorch computes instead,
with its guards against special values (tools/autograd/derivatives.yaml).

Result element types follow ATen: category first (bool < integer < float < complex), then width. Within a category,
tensors with axes outrank 0-d tensors, and those outrank Python numbers
(https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphflops.base.record import Record, replace
from graphflops.cost import Estimate, Value
from graphflops.dims import Dim, Expr, broadcast
from graphflops.errors import RuleError
from graphflops.ops import operator
from graphflops.rules.operands import Operands, Taking
from graphflops.rules.registry import Backward, ForwardCall, backward, require, rule
from graphflops.rules.shapes import Fold, combine
from graphflops.tensor import BOOL, COMPLEX64, DTYPES, FLOAT32, INT16, INT64, DType, TensorType

if TYPE_CHECKING:
    from graphflops.rules.formula import Launch, Numbers


class Gradient(NamedTuple):
    """Work per element of one operand's gradient; without any, the gradient is zero, and is only written."""

    flops: int = 0
    transcendentals: int = 0
    # Read beside the result's gradient: operands by place ("a", "b", "c"), "out": the result, which the forward keeps.
    reads: str = ""


class Formula(Record, frozen=True):
    """The gradient of one operand as a formula, from which its work is counted (`formula.py` says how to write one)."""

    text: str
    launched: str = ""  # what PyTorch computes instead
    is_fused: bool = False  # `fused` of the table


ZERO = Gradient()
PASS = None  # the gradient of the result is also the operand's: no work, the same memory


class Work(Record, frozen=True):
    """Work of one function per element of its result."""

    name: str
    flops: int = 0
    transcendentals: int = 0
    complex_work: tuple[int, int] | None = None  # both for a complex element; None: twice those of a real one
    formulas: tuple[Formula | None, ...] = ()  # of each operand's gradient; () without a gradient rule
    operands: int = 1  # number of operands

    def more(self, flops: int = 0, transcendentals: int = 0) -> Work:
        """The same function with more real operations on each element, or on both parts of a complex one."""
        both = self.complex_work
        both = both and (both[0] + 2 * flops, both[1] + 2 * transcendentals)
        work = self.flops + flops, self.transcendentals + transcendentals
        return Work(self.name, *work, both, self.formulas, self.operands)

    def on(self, elements: Dim) -> Estimate:
        """The arithmetic, without traffic, on a number of elements."""
        return Estimate(vector_flops=self.flops * elements, transcendentals=self.transcendentals * elements)

    def times(self, count: int) -> Work:
        """The function applied `count` times to each element."""
        return replace(self, flops=count * self.flops, transcendentals=count * self.transcendentals)


def _cells(table: str) -> Iterator[list[str]]:
    """The cells of each row of a table; a line that is indented goes on with the row above it."""
    lines = [line.partition("#")[0].rstrip() for line in table.splitlines()]
    return (row.split(" | ") for row in "\n".join(lines).replace("\n    ", " ").splitlines() if row)


def _rows(table: str) -> Iterator[Work]:
    for head, *gradients in _cells(table):
        names, _, counts = head.partition(":")
        operands, flops, transcendentals, *both = map(int, counts.split())
        formulas: list[Formula | None] = []
        for text, _, launched in (each.partition(" => ") for each in gradients):
            formula = text.removeprefix("fused ")
            found = Formula(formula, launched, formula != text)
            formulas.append(PASS if text == "g" else found)
        for name in names.split():
            pair = (both[0], both[1]) if both else None
            yield Work(name, flops, transcendentals, pair, tuple(formulas), operands)


_TEXT = Path(__file__).with_name("work.txt").read_text(encoding="utf-8")
_FUNCTIONS, _ACTIVATIONS, _REDUCTIONS = _TEXT.split("\n\n")
_ACTIVATED = list(_rows(_ACTIVATIONS))
WORK: Mapping[str, Work] = {row.name: row for row in (*_rows(_FUNCTIONS), *_ACTIVATED)}
REDUCTIONS: Mapping[str, Formula] = {
    name: Formula(text) for names, text in _cells(_REDUCTIONS) for name in names.split()
}


@lru_cache(maxsize=1024)
def gradient_of(formula: Formula, numbers: Numbers = ()) -> Gradient | None:
    """The work and the reads of a formula; PASS where it is `g`. numbers: operands other than tensors, by name."""
    from graphflops.rules.formula import is_part_of_choice, launches  # only training reads formulas

    flops = transcendentals = 0
    found = launches(formula.text, numbers)
    if not found:
        return PASS
    for launch in found:
        if not is_part_of_choice(launch, found):
            work = work_of_launch(launch)
            flops, transcendentals = flops + work.flops, transcendentals + work.transcendentals
    read = found if not formula.launched else launches(formula.launched, numbers)
    names = {name for launch in read for name in launch.operands if isinstance(name, str)} - {"g"}
    return Gradient(flops, transcendentals, " ".join(sorted(names)))


def work_of_launch(launch: Launch) -> Work:
    """Work per element of one kernel of a formula."""
    if launch.function == "fill":
        return Work("fill")
    if launch.function == "pow" and launch.numbers:
        return power_work(launch.numbers[0])
    return WORK[launch.function]


def first_gradient(work: Work) -> Work:
    """Work of the first operand's gradient."""
    formula = work.formulas[0] if work.formulas else None
    flops, transcendentals, _ = (formula and gradient_of(formula)) or ZERO
    return Work(work.name, flops, transcendentals)


# An exponent that is a small constant stands for products or a root.
_POWERS = {
    exponent: Work("pow", flops, roots, (6 * flops, 2 * roots))
    for flops, roots, exponents in ((0, 0, (0, 1)), (1, 0, (2, -1)), (2, 0, (3, -2)), (0, 1, (0.5, -0.5)))
    for exponent in exponents
}


def power_work(exponent: object) -> Work:
    """Work of x ** exponent: one evaluation, or the products or the root that a constant exponent stands for."""
    return _POWERS.get(exponent, WORK["pow"]) if isinstance(exponent, (int, float)) else WORK["pow"]


# Activations as attributes of other operators name them, in lower case and without underscores.
_NAMED = {row.name.replace("_", ""): row for row in _ACTIVATED}
_ALSO = {
    "": "identity",
    "none": "identity",
    "clip": "hardtanh",
    "swish": "silu",
    "thresholdedrelu": "threshold",
}


def activation_named(name: str) -> Work:
    """Work of the activation that an attribute names, in any spelling: `LeakyRelu`, `hard_sigmoid`, `NONE`."""
    key = name.lower().replace("_", "")
    found = _NAMED.get(_ALSO.get(key, key))
    if found is None:
        raise RuleError(f"unknown activation {name!r}")
    return found


def gelu_work(approximate: str) -> Work:
    """Work of gelu by erf, or by tanh."""
    return WORK["gelu" if approximate == "none" else "gelu_tanh"]


DEFAULT_FLOAT = FLOAT32
_CATEGORY = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
_REAL_OF = {"complex32": "float16", "bcomplex32": "bfloat16", "complex64": "float32", "complex128": "float64"}
_COMPLEX_OF = {real: name for name, real in _REAL_OF.items()} | {"bfloat16": "complex64"}


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
    """One result of the tensors' broadcast shape, with a row's work for each element. fold: the same on known contents."""
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
        gradient, pairs = gradients.get(name, ZERO), zip(operand.shape, out.shape, strict=False)
        # A broadcast operand has fewer axes, or an axis of 1. Other sizes are equal, however spelled.
        summed = operand.rank < out.rank or any(own == 1 != whole for own, whole in pairs)
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


def wanted(call: ForwardCall) -> list[tuple[str, TensorType]]:
    """Names and types of the operands that want a gradient, in the order of the parameters."""
    given = call.arguments.items()
    return [(name, x) for name, x in given if name in call.wants and isinstance(x, TensorType)]
