"""Calls of ONNX operators that compute with sizes, drawn at random: the alphabet of `tests.oracle.onnx_integers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto

SMALL = (-9, -7, -5, -4, -3, -2, -1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 100)
FAR = (*SMALL, -(2**63), -(2**31), 2**31 - 1, 2**63 - 1, -1000, 1000)
TYPES = {
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint64": TensorProto.UINT64,
}
MOST = 512  # elements of a result that is proposed


class Refused(Exception):
    """A call that nobody should run: a division by zero, a tensor of many elements, a type without a kernel."""


@dataclass(frozen=True)
class Operand:
    """A value by its name, and what it holds."""

    name: str
    array: np.ndarray


@dataclass(frozen=True)
class Proposal:
    """A call that may be added to a model."""

    op: str
    operands: Sequence[Operand]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: int = 1


Constant = Callable[[np.ndarray], Operand]
Draw = Callable[[Random, "list[Operand]", Constant], Proposal]
CALLS: list[Draw] = []


def draw(times: int = 1) -> Callable[[Draw], Draw]:
    """Register a way to draw a call, to be taken so many times as often as others."""

    def register(function: Draw) -> Draw:
        CALLS.extend([function] * times)
        return function

    return register


def pick(rng: Random, pool: list[Operand], accept: Callable[[np.ndarray], bool]) -> Operand:
    """A value of the pool that is accepted, later ones more often."""
    fitting = [operand for operand in pool if accept(operand.array)]
    if not fitting:
        raise Refused
    return fitting[max(rng.randrange(len(fitting)), rng.randrange(len(fitting)))]


def is_whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" and array.size <= 32


def whole(rng: Random, pool: list[Operand], constant: Constant, like: np.ndarray | None = None) -> Operand:
    """Integers: of the pool, or new ones."""
    kind = np.dtype("int64") if like is None else like.dtype
    if rng.random() < 0.6:
        try:
            return pick(rng, pool, lambda a: is_whole(a) and a.dtype == kind)
        except Refused:
            pass
    shape = rng.choice(((), (1,), (2,), (3,)))
    low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "iu" else (-100, 100)
    numbers = [min(max(rng.choice(SMALL), low), high) for _ in range(math.prod(shape))]
    return constant(np.array(numbers, kind).reshape(shape))


def fits(*arrays: np.ndarray) -> None:
    """Raise Refused unless the arrays have one shape, scalars aside: two open sizes that meet are taken to be equal."""
    shapes = {a.shape for a in arrays} - {()}
    if len(shapes) > 1 or any(math.prod(shape) > MOST for shape in shapes):
        raise Refused


def ints(constant: Constant, numbers: Sequence[int]) -> Operand:
    return constant(np.array(numbers, np.int64))


@draw(3)
def sizes(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """The sizes of a tensor, or of some of its axes."""
    x = pick(rng, pool, lambda a: a.ndim > 0)
    bounds = {name: rng.randint(-5, 5) for name in ("start", "end") if rng.random() < 0.4}
    return Proposal("Shape", [x], bounds)


@draw()
def number_of_elements(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    return Proposal("Size", [pick(rng, pool, lambda a: True)])


@draw(2)
def entry(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: is_whole(a) and a.ndim > 0 and a.shape[0] > 0)
    length = x.array.shape[0]
    index = constant(np.array(rng.randrange(-length, length), np.int64))
    return Proposal("Gather", [x, index], {"axis": 0})


@draw(6)
def arithmetic(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    a = whole(rng, pool, constant)
    a = whole(rng, pool, constant) if a.array.dtype.kind == "f" else a
    b = whole(rng, pool, constant, a.array)
    fits(a.array, b.array)
    op = rng.choice(
        (
            "Add",
            "Sub",
            "Mul",
            "Max",
            "Min",
            "Equal",
            "Less",
            "Greater",
            "LessOrEqual",
            "GreaterOrEqual",
            "Pow",
        )
    )
    if op == "Pow" and (
        np.any(b.array < 0) or np.any(b.array > 4) or np.any(np.abs(a.array.astype(float)) > 500)
    ):
        raise Refused
    return Proposal(op, [a, b])


@draw(8)
def division(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """A quotient or a remainder, of either sign."""
    a = pick(rng, pool, is_whole) if rng.random() < 0.7 else whole(rng, pool, constant)
    b = whole(rng, pool, constant, a.array)
    if rng.random() < 0.4:
        b, a = a, b
    fits(a.array, b.array)
    lowest = np.iinfo(a.array.dtype).min
    if np.any(b.array == 0) or (np.any(a.array == lowest) and np.any(b.array == -1)):
        raise Refused
    op = rng.choice(("Div", "Mod"))
    return Proposal(op, [a, b], {"fmod": rng.randrange(2)} if op == "Mod" else {})


@draw(2)
def of_one(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = whole(rng, pool, constant)
    return Proposal(rng.choice(("Neg", "Abs", "Sign", "Neg", "BitwiseNot")), [x])


@draw()
def bits(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    a = pick(rng, pool, is_whole)
    b = whole(rng, pool, constant, a.array)
    fits(a.array, b.array)
    return Proposal(rng.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), [a, b])


@draw()
def shift(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    a = pick(rng, pool, lambda a: is_whole(a) and a.dtype.kind == "u")
    b = constant(np.array(rng.randrange(8), a.array.dtype))
    return Proposal("BitShift", [a, b], {"direction": rng.choice(("LEFT", "RIGHT"))})


@draw(3)
def conversion(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """A conversion; of floating numbers only those that the type holds."""
    x = pick(rng, pool, lambda a: a.size <= 32 and a.dtype.kind in "iubf")
    kind = rng.choice([*TYPES, "int64", "float32"])
    if x.array.dtype.kind == "f" and (
        not np.all(np.isfinite(x.array)) or (kind not in ("float32", "bool") and not _held(x.array, kind))
    ):
        raise Refused
    return Proposal("Cast", [x], {"to": TYPES[kind]})


def _held(array: np.ndarray, kind: str) -> bool:
    info = np.iinfo(kind)
    return bool(np.all(array > info.min / 2) and np.all(array < info.max / 2))


@draw(3)
def of_fractions(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """Sizes computed in floating point: `floor(height * 0.5)`."""
    a = pick(rng, pool, lambda a: a.dtype == np.float32 and 0 < a.size <= 8)
    op = rng.choice(("Floor", "Ceil", "Round", "Mul", "Div", "Neg", "Abs", "Sign", "Add", "Sub", "Mod"))
    if op in ("Floor", "Ceil", "Round", "Neg", "Abs", "Sign"):
        return Proposal(op, [a])
    b = constant(np.array(rng.choice((0.5, 2.0, -0.5, 0.25, 3.0, -2.0, 1.5)), np.float32))
    return Proposal(op, [a, b], {"fmod": 1} if op == "Mod" else {})


@draw()
def condition(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    c = pick(rng, pool, lambda a: a.dtype == bool and a.size <= 32)
    if rng.random() < 0.3:
        return Proposal("Not", [c])
    a = whole(rng, pool, constant)
    b = whole(rng, pool, constant, a.array)
    fits(a.array, b.array, c.array)
    return Proposal("Where", [c, a, b])


@draw()
def bounded(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, is_whole)
    kind = x.array.dtype
    low, high = sorted((rng.choice(SMALL), rng.choice(SMALL)))
    ends = [constant(np.array(max(n, 0) if kind.kind == "u" else n, kind)) for n in (low, high)]
    return Proposal("Clip", [x, *ends])


@draw(2)
def joined(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    parts = [pick(rng, pool, lambda a: is_whole(a) and a.ndim == 1) for _ in range(rng.randint(1, 3))]
    kind = parts[0].array.dtype
    parts = [part for part in parts if part.array.dtype == kind]
    if rng.random() < 0.5:
        parts.append(constant(np.array([rng.choice(SMALL) if kind.kind == "i" else 3], kind)))
    return Proposal("Concat", parts, {"axis": rng.choice((0, -1))})


@draw(2)
def as_vector(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: is_whole(a) and a.ndim == 0)
    return Proposal("Unsqueeze", [x, ints(constant, [rng.choice((0, -1))])])


@draw()
def squeezed(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: a.ndim > 0)
    axes = [rng.randrange(-x.array.ndim, x.array.ndim)]
    return Proposal("Squeeze", [x, ints(constant, axes)])


@draw(2)
def reduced(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: is_whole(a) and a.ndim > 0 and a.size > 0)
    op = rng.choice(("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"))
    axes = [ints(constant, [rng.randrange(-x.array.ndim, x.array.ndim)])] if rng.random() < 0.6 else []
    return Proposal(op, [x, *axes], {"keepdims": rng.randrange(2)})


@draw()
def running(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: is_whole(a) and a.ndim == 1)
    axis = constant(np.array(rng.choice((0, -1)), np.int64))
    return Proposal("CumSum", [x, axis], {"exclusive": rng.randrange(2), "reverse": rng.randrange(2)})


def _length(first: int, last: int, step: int) -> int:
    return max(0, -((first - last) // step))


@draw(2)
def progression(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """Evenly spaced integers; one of the three operands at least is computed."""
    kind = rng.choice(("int64", "int64", "int32"))
    ends = [
        pick(rng, pool, lambda a: a.ndim == 0 and a.dtype == kind)
        if rng.random() < 0.6
        else constant(np.array(rng.choice(SMALL), kind))
        for _ in range(3)
    ]
    first, last, step = (int(end.array) for end in ends)
    if step == 0 or _length(first, last, step) > MOST:
        raise Refused
    return Proposal("Range", ends)
