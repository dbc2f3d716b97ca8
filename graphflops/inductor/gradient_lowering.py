"""What the lowering of every kind of gradient needs: new tensors, and operators appended to the joint graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import Dim, prod
from graphflops.inductor.joint_graph import JointGraph, Op, OpKind
from graphflops.inductor.lowering import instructions
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from graphflops.inductor.forward import ForwardLowering, Lowered


class GradientLowering:
    """Appends the operators of gradients to a joint graph."""

    def __init__(self, forward: ForwardLowering, joint: JointGraph) -> None:
        self.joint, self.forward, self.values = joint, forward, forward.values
        self.count = 0

    def new(self, name: str, size: Dim) -> str:
        """A new tensor that holds a gradient of a value."""
        self.count += 1
        tensor = f"gradient {self.count} of {name}"
        self.joint.sizes[tensor] = size
        self.joint.labels[tensor] = (name, "gradient")
        return tensor

    def add(
        self,
        lowered: Lowered,
        kind: OpKind,
        outputs: Sequence[str],
        reads: Iterable[str],
        elements: int | None = None,
        **more: Any,
    ) -> None:
        """Append one operator of a call's gradients."""
        call = lowered.call
        given = tuple(dict.fromkeys(reads))
        if elements is None:
            names = [*(name or "" for name in call.node.outputs), *call.tensors(self.values)]
            elements = max((self.forward.elements(name) for name in names), default=0)
        more.setdefault("is_gradient", True)
        more.setdefault("instructions", 2 * instructions(call))
        if lowered.outer:
            more.setdefault("outer", lowered.outer.intersection(given))
        if lowered.parts:
            more.setdefault("parts", {name: lowered.parts[name] for name in given if name in lowered.parts})
        self.joint.add(Op(kind, tuple(outputs), given, elements, call.row, call.node.name, **more), {})

    def workspace(self, lowered: Lowered) -> Dim:
        """Bytes that a kernel of the gradients needs beside what it reads and writes."""
        gradient = lowered.call.gradient
        return 0 if gradient is None else gradient.estimate.workspace

    def read(self, lowered: Lowered) -> list[str]:
        """Operands and results that the gradients of a call read."""
        gradient = lowered.call.gradient
        assert gradient is not None
        operands = [lowered.operands[place] for place in sorted(gradient.operands)]
        return operands + [
            lowered.results[place] for place in sorted(gradient.results) if place < len(lowered.results)
        ]

    def elements(self, name: str) -> int:
        """Elements of the gradient of a value."""
        value = self.values[name]
        assert isinstance(value, TensorType)
        return self.joint.number(prod(value.shape))
