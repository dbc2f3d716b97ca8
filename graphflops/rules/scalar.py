"""Queries of sizes and types, assertions, and arithmetic on sizes and other Python numbers: free, and exact if known."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import (
    Dim,
    Expr,
    arguments,
    at_least,
    call,
    compare,
    differ,
    dim_max,
    dim_min,
    floor_div,
    meet,
    mod,
    prod,
    same,
    total,
    where,
)
from graphflops.dims.atoms import FUNCTIONS, MAX_POWER_BITS
from graphflops.rules.registry import rule
from graphflops.rules.shapes import axis, if_negative, remainder_of_dividend
from graphflops.tensor import FLOAT32, TensorType

Function = Callable[..., Value]

KIND = "query"


def number(*values: Value) -> Estimate:
    """An estimate whose results are numbers."""
    return free(*values, alias=False)


def applied(exact: Function, symbolic: Function, *operands: Value) -> Estimate:
    """A function of numbers: `exact` of plain ones, `symbolic` of sizes; no value where it has none, or one too long."""
    dims = _sizes(operands) if any(isinstance(operand, Expr) for operand in operands) else None
    function, arguments = (exact, operands) if dims is None else (symbolic, dims)
    # A file may give texts and lists.
    if not all(isinstance(argument, (int, float, Expr)) for argument in arguments):
        return number(None)
    try:
        result = function(*arguments)
    except (ArithmeticError, TypeError, ValueError):  # the program may never execute it
        return number(None)
    too_long = isinstance(result, int) and result.bit_length() > MAX_POWER_BITS
    return number(None if too_long or isinstance(result, complex) else result)


def _sizes(operands: Sequence[Value]) -> list[Dim] | None:
    """The operands as sizes; None if one of them is not an integer."""
    whole = [int(x) if isinstance(x, float) and x.is_integer() else x for x in operands]
    sizes = [x for x in whole if isinstance(x, (int, Expr))]
    return sizes if len(sizes) == len(whole) else None


def _of_one(a: Value, *, exact: Function, symbolic: Function) -> Estimate:
    """The function's value."""
    return applied(exact, symbolic, a)


def _of_two(a: Value, b: Value, *, exact: Function, symbolic: Function) -> Estimate:
    """The function's value."""
    return applied(exact, symbolic, a, b)


def unary(keys: str, exact: Function, symbolic: Function) -> None:
    """Register a function of one number."""
    rule(*keys.split()).derived(_of_one, exact=exact, symbolic=symbolic)


def binary(keys: str, exact: Function, symbolic: Function) -> None:
    """Register a function of two numbers."""
    rule(*keys.split()).derived(_of_two, exact=exact, symbolic=symbolic)


def _floor(a: Dim) -> Dim:
    return floor_div(a, 1)


def _ceil(a: Dim) -> Dim:
    return -floor_div(-a, 1)


def _power(a: float, b: float) -> float:
    """A power; an integer one of at most as many digits as formulas may have."""
    power: float = float(a) ** b if b < 0 else FUNCTIONS["pow"](a, b)
    return power


unary("math.trunc torch.sym_int builtins.int", int, lambda a: if_negative(a, _ceil(a), _floor(a)))
unary("math.floor", math.floor, _floor)
unary("math.ceil", math.ceil, _ceil)
unary("torch.sym_float builtins.float", float, lambda a: a)
unary("builtins.round", round, lambda a: call("round", a))
unary("_operator.neg", operator.neg, operator.neg)
unary("_operator.pos", operator.pos, operator.pos)
unary("_operator.abs builtins.abs math.fabs", abs, lambda a: a if at_least(a, 0) else dim_max(a, -a))
unary("torch.sym_not _operator.not_", operator.not_, lambda a: compare("==", a, 0))
unary("_operator.truth builtins.bool", bool, lambda a: compare("!=", a, 0))
_CIRCULAR = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")
for _name in ("sqrt", "log", "log2", "exp", *_CIRCULAR):
    unary(
        f"math.{_name} torch.sym_{_name} torch._sym_{_name}",
        getattr(math, _name),
        lambda a, name=_name: call(name, a),
    )

binary("_operator.add", operator.add, operator.add)
binary("_operator.sub", operator.sub, operator.sub)
binary("_operator.mul", operator.mul, operator.mul)
binary("_operator.floordiv", operator.floordiv, floor_div)
binary("_operator.mod", operator.mod, mod)
binary("math.fmod", math.fmod, remainder_of_dividend)
binary("_operator.truediv", operator.truediv, lambda a, b: call("truediv", a, b))
binary("_operator.pow", _power, operator.pow)
binary("math.pow", math.pow, operator.pow)
binary("_operator.and_", operator.and_, lambda a, b: call("bitwise_and", a, b))
binary("_operator.or_", operator.or_, lambda a, b: call("bitwise_or", a, b))
binary("_operator.xor", operator.xor, lambda a, b: call("bitwise_xor", a, b))
binary("_operator.lshift", FUNCTIONS["lshift"], lambda a, b: call("lshift", a, b))
binary("_operator.rshift", operator.rshift, lambda a, b: call("rshift", a, b))
binary("torch.sym_max builtins.max", max, dim_max)
binary("torch.sym_min builtins.min", min, dim_min)
for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    binary(f"_operator.{_name}", getattr(operator, _name), lambda a, b, sign=_sign: compare(sign, a, b))


@rule("torch.sym_ite")
def choose(b: Value, t: Value, f: Value) -> Estimate:
    """One of two numbers."""
    return applied(lambda b, t, f: t if b else f, where, b, t, f)


@rule("torch.sym_sum")
def sym_sum(args: Sequence[Value]) -> Estimate:
    """A sum of any number of sizes."""
    return applied(lambda *terms: sum(terms), lambda *terms: total(terms), *args)


@rule("_operator.getitem")
def getitem(a: Sequence[Value], b: int) -> Estimate:
    """One result of several."""
    return free(a[b])


# Sizes.


def strides(x: TensorType) -> tuple[Dim, ...]:
    """Steps in memory from one position of each axis to the next, in a tensor without gaps."""
    return tuple(prod(x.shape[place + 1 :]) for place in range(x.rank))


@rule("aten.sym_size", "aten.size")
def size(x: TensorType, dim: int | None = None) -> Estimate:
    """The length of an axis, or of all."""
    return number(*x.shape) if dim is None else number(x.shape[axis(dim, x.rank)])


@rule("aten.sym_stride", "aten.stride")
def stride(x: TensorType, dim: int | None = None) -> Estimate:
    """The step in memory along an axis, or along all, as if the tensor had no gaps."""
    return number(*strides(x)) if dim is None else number(strides(x)[axis(dim, x.rank)])


@rule("aten.sym_numel", "aten.numel")
def numel(x: TensorType) -> Estimate:
    """How many elements there are."""
    return number(x.numel)


@rule("aten.dim")
def dim(x: TensorType) -> Estimate:
    """How many axes there are."""
    return number(x.rank)


# Answered by the type; questions about memory are answered for a contiguous tensor.
_ANSWERS: dict[str, Callable[[TensorType], Value]] = {
    "is_complex": lambda x: x.dtype.kind == "complex",
    "is_floating_point": lambda x: x.dtype.kind == "float",
    "is_signed": lambda x: x.dtype.kind not in ("uint", "bool"),
    "sym_storage_offset": lambda x: data_dependent("storage_offset"),  # the storage offset of a view
    "storage_offset": lambda x: data_dependent("storage_offset"),
    "sym_is_contiguous": lambda x: True,
    "is_contiguous": lambda x: True,
    "is_conj": lambda x: False,
    "is_neg": lambda x: False,
    "is_inference": lambda x: False,
    "is_pinned": lambda x: False,
    "is_distributed": lambda x: False,
    "is_coalesced": lambda x: False,
    "_is_zerotensor": lambda x: False,
    "retains_grad": lambda x: False,
    "is_leaf": lambda x: not x.requires_grad,
    "output_nr": lambda x: 0,
    "_version": lambda x: 0,
    "_debug_has_internal_overlap": lambda x: 0 if x.stored is None else 1,
}


def _ask(x: TensorType, *unused: Value, answer: Callable[[TensorType], Value]) -> Estimate:
    """Free: the answer follows from the tensor's type."""
    return number(answer(x))


for _name, _answer in _ANSWERS.items():
    rule(f"aten.{_name}").derived(_ask, answer=_answer)


@rule("aten.is_same_size")
def is_same_size(a: TensorType, b: TensorType) -> Estimate:
    """True if two shapes are equal; no value if that depends on unknown sizes."""
    if a.rank != b.rank or any(map(differ, a.shape, b.shape)):
        return number(False)
    return number(True if all(map(same, a.shape, b.shape)) else None)


# Reads of single elements.


@rule("aten.item", "aten._local_scalar_dense")
def item(x: TensorType) -> Estimate:
    """Reads the only element, unless its value is known."""
    if isinstance(x.value, (int, Expr)):
        return number(x.value)
    return Estimate((data_dependent("item"),), reads=(x,), writes=())


@rule("aten.is_nonzero")
def is_nonzero(x: TensorType) -> Estimate:
    """Reads and compares the only element, unless its value is known."""
    if isinstance(x.value, int):
        return number(x.value != 0)
    return Estimate((data_dependent("is_nonzero"),), vector_flops=1, reads=(x,), writes=())


# Assertions: no work; a few return a token that orders them.


@rule(
    "aten._functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size"
)
def functional_promise(*, dep_token: TensorType) -> Estimate:
    """Nothing."""
    return free(dep_token)


@rule("aten._assert_scalar")
def assert_scalar(x: Value) -> Estimate:
    """Nothing; sizes that it asserts to be equal are."""
    atom = x.as_atom() if isinstance(x, Expr) else None
    if atom is not None and atom.kind == "==":
        a, b = arguments(atom)
        meet(a, b)
    return free(alias=False)


@rule("aten._assert_async")
def assert_async(x: TensorType) -> Estimate:
    """Reads the only element."""
    return Estimate(reads=(x,))


@rule("aten._functional_assert_async")
def functional_assert_async(x: TensorType, *, dep_token: TensorType) -> Estimate:
    """Reads the only element."""
    return Estimate((dep_token,), reads=(x,), writes=())


@rule("aten._make_dep_token")
def make_dep_token() -> Estimate:
    """An empty token."""
    return free(TensorType((), FLOAT32), alias=False)


# Hints for profilers, debuggers and the caching allocator.


@rule("profiler._record_function_enter", "profiler._record_function_enter_new")
def record_function_enter() -> Estimate:
    """Free: the result is a handle."""
    return free(None, alias=False)


@rule("profiler._record_function_exit", "aten.record_stream", "aten.retain_grad", "aten._propagate_xla_data")
def note(*unused: Value, **named: Value) -> Estimate:
    """Nothing."""
    return free(alias=False)


rule("aten._assert_tensor_metadata _print sym_constrain_range sym_constrain_range_for_size").derived(note)
