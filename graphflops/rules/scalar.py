"""Queries of sizes and types, assertions, and arithmetic on sizes and other Python numbers: free, and exact if known."""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial

from graphflops import dims
from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Expr
from graphflops.dims.atoms import FUNCTIONS, MAX_POWER_BITS
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import Shape, axis_of, divided, remainder_of_dividend
from graphflops.tensor import TensorType

Function = Callable[..., Value]

KIND = "query"


def number(*values: Value) -> Estimate:
    """An estimate whose results are numbers."""
    return free(*values, alias=False)


def applied(*operands: Value, exact: Function, symbolic: Function) -> Estimate:
    """A function of numbers: `exact` on plain numbers, `symbolic` on sizes; None if it fails or the value is too long."""
    if not all(isinstance(x, (int, float, Expr)) for x in operands):  # a file may give texts and lists
        return number(None)
    whole = [int(x) if isinstance(x, float) and x.is_integer() else x for x in operands]
    are_sizes = not any(isinstance(x, float) for x in whole) and any(isinstance(x, Expr) for x in whole)
    try:
        result = symbolic(*whole) if are_sizes else exact(*operands)
    except (ArithmeticError, TypeError, ValueError):  # the program may never execute it
        return number(None)
    too_long = isinstance(result, int) and result.bit_length() > MAX_POWER_BITS
    return number(None if too_long or isinstance(result, complex) else result)


def _function(a: Value, b: Value = None, *, exact: Function, symbolic: Function) -> Estimate:
    return applied(*((a,) if b is None else (a, b)), exact=exact, symbolic=symbolic)


def _power(a: float, b: float) -> float:
    """A power; an integer power has at most as many digits as formulas may have."""
    power: float = float(a) ** b if b < 0 else FUNCTIONS["pow"](a, b)
    return power


_CIRCULAR = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")
_FUNCTIONS: tuple[tuple[str, Function, Function], ...] = (
    ("math.trunc torch.sym_int builtins.int", int, lambda a: divided(a, 1)),
    ("math.floor", math.floor, lambda a: dims.floor_div(a, 1)),
    ("math.ceil", math.ceil, lambda a: -dims.floor_div(-a, 1)),
    ("torch.sym_float builtins.float", float, lambda a: a),
    ("builtins.round", round, lambda a: dims.call("round", a)),
    ("_operator.neg", operator.neg, operator.neg),
    ("_operator.pos", operator.pos, operator.pos),
    (
        "_operator.abs builtins.abs math.fabs",
        abs,
        lambda a: a if dims.at_least(a, 0) else dims.dim_max(a, -a),
    ),
    ("torch.sym_not _operator.not_", operator.not_, lambda a: dims.compare("==", a, 0)),
    ("_operator.truth builtins.bool", bool, lambda a: dims.compare("!=", a, 0)),
    *(
        (f"math.{name} torch.sym_{name} torch._sym_{name}", getattr(math, name), partial(dims.call, name))
        for name in ("sqrt", "log", "log2", "exp", *_CIRCULAR)
    ),
    ("_operator.add", operator.add, operator.add),
    ("_operator.sub", operator.sub, operator.sub),
    ("_operator.mul", operator.mul, operator.mul),
    ("_operator.floordiv", operator.floordiv, dims.floor_div),
    ("_operator.mod", operator.mod, dims.mod),
    ("math.fmod", math.fmod, remainder_of_dividend),
    ("_operator.truediv", operator.truediv, partial(dims.call, "truediv")),
    ("_operator.pow", _power, operator.pow),
    ("math.pow", math.pow, operator.pow),
    ("_operator.and_", operator.and_, partial(dims.call, "bitwise_and")),
    ("_operator.or_", operator.or_, partial(dims.call, "bitwise_or")),
    ("_operator.xor", operator.xor, partial(dims.call, "bitwise_xor")),
    ("_operator.lshift", FUNCTIONS["lshift"], partial(dims.call, "lshift")),
    ("_operator.rshift", operator.rshift, partial(dims.call, "rshift")),
    ("torch.sym_max builtins.max", max, dims.dim_max),
    ("torch.sym_min builtins.min", min, dims.dim_min),
    *(
        (f"_operator.{name}", getattr(operator, name), partial(dims.compare, sign))
        for name, sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()
    ),
)
for _keys, _exact, _symbolic in _FUNCTIONS:
    rule(*_keys.split()).derived(_function, exact=_exact, symbolic=_symbolic)


@rule("torch.sym_ite")
def choose(b: Value, t: Value, f: Value) -> Estimate:
    """One of two numbers."""
    return applied(b, t, f, exact=lambda b, t, f: t if b else f, symbolic=dims.where)


@rule("torch.sym_sum")
def sym_sum(args: Sequence[Value]) -> Estimate:
    """A sum of any number of sizes."""
    return applied(*args, exact=lambda *terms: sum(terms), symbolic=lambda *terms: dims.total(terms))


@rule("_operator.getitem")
def getitem(a: Sequence[Value], b: int) -> Estimate:
    """One result of several."""
    return free(a[b])


def _along(x: TensorType, dim: int | None = None, *, of: Callable[[TensorType], Shape]) -> Estimate:
    """The length of an axis, or its stride as if the tensor had no gaps; those of all axes if none is named."""
    return number(*of(x)) if dim is None else number(of(x)[axis_of(dim, x.rank)])


rule("aten.sym_size", "aten.size").derived(_along, of=lambda x: x.shape)
rule("aten.sym_stride", "aten.stride").derived(
    _along, of=lambda x: tuple(dims.prod(x.shape[at + 1 :]) for at in range(x.rank))
)


# Answered by the type; questions about memory are answered for a contiguous tensor.
_ANSWERS: dict[str, Callable[[TensorType], Value]] = {
    "sym_numel numel": lambda x: x.numel,
    "dim": lambda x: x.rank,
    "is_complex": lambda x: x.dtype.kind == "complex",
    "is_floating_point": lambda x: x.dtype.kind == "float",
    "is_signed": lambda x: x.dtype.kind not in ("uint", "bool"),
    "sym_storage_offset storage_offset": lambda x: data_dependent("storage_offset"),  # of a view
    "sym_is_contiguous is_contiguous": lambda x: True,
    "is_conj is_neg is_inference is_pinned is_distributed is_coalesced": lambda x: False,
    "_is_zerotensor retains_grad": lambda x: False,
    "is_leaf": lambda x: not x.requires_grad,
    "output_nr _version": lambda x: 0,
    "_debug_has_internal_overlap": lambda x: 0 if x.stored is None else 1,
}


def _ask(x: TensorType, *unused: Value, answer: Callable[[TensorType], Value]) -> Estimate:
    """Free: the answer follows from the tensor's type."""
    return number(answer(x))


for _names, _answer in _ANSWERS.items():
    rule(f"aten.{_names}").derived(_ask, answer=_answer)


@rule("aten.promote_types", "aten.result_type", "aten.can_cast")
def about_types(*unused: Value) -> Estimate:
    """Free: a question about element types, whose answer the program's types hold already."""
    return number(None)


@rule("aten.is_same_size")
def is_same_size(a: TensorType, b: TensorType) -> Estimate:
    """True if two shapes are equal; no value if that depends on unknown sizes."""
    if a.rank != b.rank or any(map(dims.differ, a.shape, b.shape)):
        return number(False)
    return number(True if all(map(dims.same, a.shape, b.shape)) else None)


@rule("aten.item _local_scalar_dense", "prims.item")
def item(x: TensorType) -> Estimate:
    """Reads the only element, unless its value is known."""
    require(not dims.differ(x.numel, 1), f"{x} is no single number")
    if isinstance(x.value, (int, Expr)):
        return number(x.value)
    return Estimate((data_dependent("item"),), reads=(x,), writes=())


@rule("aten.is_nonzero")
def is_nonzero(x: TensorType) -> Estimate:
    """Reads and compares the only element, unless its value is known."""
    item(x)
    if isinstance(x.value, int):
        return number(x.value != 0)
    return Estimate((data_dependent("is_nonzero"),), vector_flops=1, reads=(x,), writes=())


# Assertions: no work; a few return a token that orders them.


@rule("aten._assert_scalar")
def assert_scalar(x: Value) -> Estimate:
    """Nothing; sizes that it asserts to be equal are."""
    atom = x.as_atom() if isinstance(x, Expr) else None
    if atom is not None and atom.kind == "==":
        a, b = dims.arguments(atom)
        dims.meet(a, b)
    return free(alias=False)


@rule("aten._assert_async", "aten._functional_assert_async")
def assert_async(x: TensorType, *, dep_token: TensorType | None = None) -> Estimate:
    """Reads the only element."""
    return Estimate(() if dep_token is None else (dep_token,), reads=(x,), writes=())


@rule(
    "aten.record_stream retain_grad _propagate_xla_data _assert_tensor_metadata _print sym_constrain_range",
    "aten.sym_constrain_range_for_size",
    "profiler._record_function_exit",
)
def note(*unused: Value, **named: Value) -> Estimate:
    """Nothing."""
    return free(alias=False)
