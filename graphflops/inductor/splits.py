"""Reductions to few results run in several steps (`Reduction.num_splits` and `reduction_split_factor` of inductor)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.inductor.joint_graph import Op

if TYPE_CHECKING:
    from graphflops.devices import Platform
    from graphflops.inductor.joint_graph import JointGraph

_LEAST_EACH, _MOST_EACH = 32, 512  # elements of a thread
_BLOCK = 256  # threads
_INNER_WHOLE = 8192  # elements that one block reduces along the innermost axis
_OUTER_ROWS, _OUTER_COLUMNS = 4, 128  # of a block that reduces along an outer axis
_EVEN, _EVEN_INNER, _EVEN_LONG = 20, 30, 50  # how far from the wanted elements of a thread a divisor may be


def split_lengths(
    results: int, length: int, platform: Platform, *, is_inner: bool, of_moments: bool
) -> list[tuple[int, int]]:
    """The steps of a reduction: how many results each has, and of how many elements each is made.

    of_moments: of means and variances what one step leaves is split again; of others there are two steps at most.
    """
    steps: list[tuple[int, int]] = []
    while True:
        parts = _parts(results, length, platform, is_inner=is_inner)
        if parts <= 1 or (steps and not of_moments):
            return [*steps, (results, length)]
        steps.append((results * parts, -(-length // parts)))
        length = parts


def _parts(results: int, length: int, platform: Platform, *, is_inner: bool) -> int:
    if length <= _LEAST_EACH or results >= 2 * _LEAST_EACH * platform.multiprocessors:
        return 1
    if is_inner or results == 1:
        if results >= 2 * platform.multiprocessors or length <= _INNER_WHOLE:
            return 1
        blocks = -(-platform.threads // (2 * _BLOCK) // results)
        return -(-length // (_each(results, length, _BLOCK * blocks, platform, is_inner=True) * _BLOCK))
    blocks = -(-platform.threads // _BLOCK // -(-results // _OUTER_COLUMNS))
    return -(
        -length // (_each(results, length, _OUTER_ROWS * blocks, platform, is_inner=False) * _OUTER_ROWS)
    )


def _each(results: int, length: int, threads: int, platform: Platform, *, is_inner: bool) -> int:
    """Elements that a thread reduces: so many that the device is full, preferably a divisor of the length."""
    if results * length <= _LEAST_EACH * platform.threads:
        return _LEAST_EACH
    is_long = results * length >= _MOST_EACH * platform.threads
    wanted = _MOST_EACH if is_long else -(-length // threads)
    for distance in range(_EVEN_LONG if is_long else _EVEN_INNER if is_inner else _EVEN):
        for near in (wanted - distance, wanted + distance):
            if near > 0 and length % near == 0:
                return max(near, _LEAST_EACH)
    return max(wanted, 1)


def in_steps(op: Op, joint: JointGraph) -> list[Op]:
    """The operators that a reduction is split into; another operator as it is. What a step leaves gets a size."""
    if not op.kept:
        return [op]
    length = op.elements // op.kept
    lengths = split_lengths(op.kept, length, joint.platform, is_inner=op.is_inner, of_moments=op.of_moments)
    found: list[Op] = []
    for place, (results, _) in enumerate(lengths[:-1]):
        made = tuple([f"{name}, step {place + 1}" for name in op.outputs])
        joint.sizes.update(
            (part, joint.bytes(name) // op.kept * results)
            for part, name in zip(made, op.outputs, strict=True)
        )
        found.append(replace(op, outputs=made, kept=results, in_order=False))
        op = Op("reduction", op.outputs, made, results, op.row, op.node, op.kept, is_gradient=op.is_gradient)
    return [*found, op]
