"""Calls that make and cut tensors of computed sizes, drawn at random; importing it adds them to those of `onnx_integer_calls`."""

from __future__ import annotations

import math
from random import Random

import numpy as np

from tests.oracle.onnx_integer_calls import (
    FAR,
    MOST,
    Constant,
    Operand,
    Proposal,
    Refused,
    draw,
    ints,
    is_whole,
    pick,
)


def _shape(rng: Random, pool: list[Operand], constant: Constant) -> Operand:
    """Sizes of a new tensor: computed, or new ones; few elements."""
    given = pick(rng, pool, lambda a: a.ndim == 1 and a.dtype == np.int64 and a.size <= 6)
    if math.prod(abs(int(n)) or 1 for n in given.array) > MOST:
        raise Refused
    return given


@draw(3)
def fill(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    value = rng.choice((("int64", 3), ("int32", 0), ("float32", 1), ("int64", 0)))
    return Proposal("ConstantOfShape", [_shape(rng, pool, constant)], {"value": value})


@draw(3)
def reshaped(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """Other sizes, with 0 and -1 among them."""
    x = pick(rng, pool, lambda a: a.ndim > 0)
    if rng.random() < 0.5:
        target = _shape(rng, pool, constant)
        if np.any(
            target.array < 1
        ):  # where the size is open, graphflops takes a computed one to be no 0 and no -1
            raise Refused
    else:
        kept = [rng.choice((0, int(n))) for n in x.array.shape]
        target = ints(constant, rng.choice(([-1], [0, -1], [-1, 1], kept, [*kept[:-1], -1], [1, -1, 2])))
    return Proposal("Reshape", [x, target], {"allowzero": 1} if rng.random() < 0.1 else {})


@draw(2)
def repeated(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """Expand or Tile, to computed sizes; two open sizes that meet in Expand are taken to be equal, so that one is 1."""
    target = _shape(rng, pool, constant)
    if rng.random() < 0.5:
        x = ints(constant, rng.choice(([3], [-2])))
        return Proposal("Expand", [x, target])
    x = pick(rng, pool, lambda a: a.ndim == target.array.size)
    if x.array.size * math.prod(max(int(n), 0) for n in target.array) > MOST or np.any(target.array < 0):
        raise Refused
    return Proposal("Tile", [x, target])


@draw(10)
def sliced(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """A range of an axis; bounds are computed, far beyond it, or of either sign."""
    x = pick(rng, pool, lambda a: a.ndim > 0)
    bounds = []
    for _ in range(2):
        if rng.random() < 0.5:
            bounds.append(pick(rng, pool, lambda a: a.dtype == np.int64 and a.shape == (1,)))
        else:
            bounds.append(ints(constant, [rng.choice(FAR)]))
    axis = rng.randrange(-x.array.ndim, x.array.ndim)
    first, last = (int(bound.array[0]) for bound in bounds)
    if x.name not in "xy" and not 0 <= first <= last <= x.array.shape[axis]:
        bounds[1] = ints(constant, [last])  # a computed end is taken to lie within an axis of fixed length
    step = ints(constant, [rng.choice((1, 1, -1, -1, 2, -2, 3, -3))])
    return Proposal("Slice", [x, *bounds, ints(constant, [axis]), step])


@draw()
def bordered(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: a.ndim in (1, 2) and a.dtype in (np.float32, np.int64, np.int32))
    if rng.random() < 0.5:
        widths = pick(rng, pool, lambda a: a.dtype == np.int64 and a.shape == (2 * x.array.ndim,))
        if np.any(np.abs(widths.array) > 16):
            raise Refused
    else:
        widths = ints(constant, [rng.choice((0, 1, 2, -1, 3)) for _ in range(2 * x.array.ndim)])
    after = [
        n + int(widths.array[at]) + int(widths.array[at + x.array.ndim]) for at, n in enumerate(x.array.shape)
    ]
    if min(after) < 0 or math.prod(after) > MOST:
        raise Refused
    return Proposal("Pad", [x, widths], {"mode": rng.choice(("constant", "constant", "edge", "wrap"))})


@draw()
def split(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: a.ndim > 0 and a.shape[0] > 1)
    count = rng.randint(2, 3)
    if rng.random() < 0.5:
        return Proposal("Split", [x], {"axis": 0, "num_outputs": count}, count)
    first = pick(rng, pool, lambda a: a.dtype == np.int64 and a.shape == (count,))
    if sum(first.array) != x.array.shape[0] or np.any(first.array < 0):
        raise Refused
    return Proposal("Split", [x, first], {"axis": 0}, count)


@draw()
def turned(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: a.ndim > 1)
    order = tuple(rng.sample(range(x.array.ndim), x.array.ndim))
    return Proposal("Transpose", [x], {"perm": order})


@draw()
def flattened(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    x = pick(rng, pool, lambda a: True)
    return Proposal("Flatten", [x], {"axis": rng.randint(-x.array.ndim, x.array.ndim)})


@draw()
def largest(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """The k largest elements; k is computed."""
    x = pick(rng, pool, lambda a: a.ndim > 0 and a.dtype in (np.float32, np.int64))
    k = pick(rng, pool, lambda a: a.dtype == np.int64 and a.shape == (1,) and 0 <= a[0] <= x.array.shape[-1])
    return Proposal("TopK", [x, k], {}, 2)


@draw()
def classes(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """One of two values per index and class; how many classes is computed."""
    x = pick(rng, pool, lambda a: a.dtype == np.int64 and 0 < a.size <= 8)
    depth = pick(
        rng, pool, lambda a: a.dtype == np.int64 and a.size == 1 and a.ndim < 2 and 0 < a.flatten()[0] <= 16
    )
    return Proposal("OneHot", [x, depth, constant(np.array([0, 1], np.int64))], {"axis": rng.choice((0, -1))})


@draw()
def taken(rng: Random, pool: list[Operand], constant: Constant) -> Proposal:
    """Entries of a vector at computed places."""
    x = pick(rng, pool, lambda a: is_whole(a) and a.ndim == 1 and a.size > 0)
    places = pick(rng, pool, lambda a: a.dtype == np.int64 and a.size <= 8)
    length = x.array.shape[0]
    if np.any(places.array < -length) or np.any(places.array >= length):
        raise Refused
    return Proposal("Gather", [x, places])
