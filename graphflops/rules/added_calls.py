"""Calls of aten operators that a pass adds to a program.

like: the call whose module and source line the new one gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphflops.graph import Argument, Node, Ref
from graphflops.tensor import DType


def converted(like: Node, name: str, x: Ref, dtype: DType) -> Node:
    """A copy of x in another element type."""
    return replace(_call(like, name, "aten._to_copy.default", (x,)), kwargs=(("dtype", dtype),))


def linear(like: Node, name: str, x: Argument, weight: Ref) -> Node:
    """X by the transposed weight."""
    return _call(like, name, "aten.linear.default", (x, weight))


def scaled(like: Node, name: str, x: Ref, factor: float) -> Node:
    """X times a number."""
    return _call(like, name, "aten.mul.Tensor", (x, factor))


def added(like: Node, name: str, x: Ref, y: Ref) -> Node:
    """The sum of two tensors."""
    return _call(like, name, "aten.add.Tensor", (x, y))


def viewed(like: Node, name: str, x: Ref, shape: Sequence[Argument]) -> Node:
    """X with another shape."""
    return _call(like, name, "aten.view.default", (x, tuple(shape)))


def cross_entropy(like: Node, name: str, logits: Ref, labels: Ref) -> Node:
    """The mean cross-entropy of logits against classes."""
    return _call(like, name, "aten.cross_entropy_loss.default", (logits, labels))


def _call(like: Node, name: str, op: str, args: tuple[Argument, ...]) -> Node:
    return replace(like, name=name, op=op, args=args, kwargs=(), outputs=(name,))
