"""Calls of aten operators that a pass adds to a program, and what torch.autocast does with each operator on CUDA.

like: the call whose module and source line the new one gets.
"""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Literal

from graphflops.base.record import replace
from graphflops.graph import Argument, Node
from graphflops.ops import Op


def _call(op: str, like: Node, name: str, *args: Argument, **kwargs: Argument) -> Node:
    return replace(like, name=name, op=op, args=args, kwargs=tuple(kwargs.items()), outputs=(name,))


converted = partial(_call, "aten._to_copy.default")  # a copy of x in another element type, `dtype`
linear = partial(_call, "aten.linear.default")  # x by the transposed weight
scaled = partial(_call, "aten.mul.Tensor")  # x times a number
added = partial(_call, "aten.add.Tensor")  # the sum of two tensors
viewed = partial(_call, "aten.view.default")  # x with another shape
log_softmax = partial(_call, "aten.log_softmax.int")  # of x along an axis, in an element type
# Of logarithms, classes, and the weight, reduction and ignored class as of a cross-entropy.
nll_loss = partial(_call, "aten.nll_loss_nd.default")
cross_entropy = partial(_call, "aten.cross_entropy_loss.default")  # mean cross-entropy of logits and classes


Treatment = Literal["lower", "single", "single result", "widest"]


@cache
def _treatments() -> Mapping[str, Treatment]:
    text = Path(__file__).with_name("autocast.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    lines = (line.split(": ") for line in text.splitlines() if not line.startswith("#"))
    return {word: how for how, words in lines for word in words.split()}  # type: ignore[misc]


def autocast(operator: Op) -> Treatment | None:
    """How autocast runs an operator: operands in the lower, single or widest type, or a single result; None: left alone."""
    return _treatments().get(operator.word) if operator.dialect == "aten" else None
