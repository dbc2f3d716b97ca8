"""Calls of aten operators that a pass adds to a program, and what torch.autocast does with each operator on CUDA.

like: the call whose module and source line the new one gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from graphflops.graph import Argument, Node, Ref
from graphflops.ops import Op
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


Treatment = Literal["lower", "single", "single result", "widest"]


@cache
def _treatments() -> Mapping[str, Treatment]:
    """How autocast treats each operator, by the lines of `autocast.txt`."""
    text = Path(__file__).with_name("autocast.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    lines = (line.split(": ") for line in text.splitlines() if not line.startswith("#"))
    return {word: how for how, words in lines for word in words.split()}  # type: ignore[misc]


def autocast(operator: Op) -> Treatment | None:
    """How autocast runs an operator: operands in the lower, in single or in the widest type, or a single precision result.

    None for an operator that autocast leaves alone.
    """
    return _treatments().get(operator.word) if operator.dialect == "aten" else None
