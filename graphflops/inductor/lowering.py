"""What the lowering of every kind of call needs: tensors, their sizes, and operators appended to the joint graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.dims import Dim, prod
from graphflops.inductor.joint_graph import JointGraph, Op, OpKind
from graphflops.inductor.layout_choice import prefers_channels_last
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.memory.on_gpu import OnGpu
    from graphflops.passes.program import PricedCall, PricedGraph


# Kinds of calls that read their operands at other places than they write to.
_MOVING = frozenset({"movement", "gather", "resampling", "pooling", "view", "identity"})
_OF_LIBRARIES = frozenset({"product", "convolution", "attention"})
# Instructions for an element that the pointwise operator of a call takes, about; others one.
_INSTRUCTIONS = {"normalisation": 10, "softmax": 3, "dropout": 3, "loss": 6, "resampling": 12}
_INSTRUCTIONS |= {"gather": 0, "identity": 0, "view": 0}
_INSTRUCTIONS_OF_GATE = 6


def instructions(call: PricedCall) -> int:
    """Instructions for each element of a call's result, as inductor counts them, without those for constants."""
    operator = call.node.operator
    return _INSTRUCTIONS_OF_GATE if operator.is_gate else _INSTRUCTIONS.get(operator.kind, 1)


def numbers(call: PricedCall) -> tuple[float, ...]:
    """The constants in the formula of an elementwise call."""
    if call.node.operator.kind not in ("elementwise", "comparison", "logic"):
        return ()
    given = call.node.arguments().values()
    return tuple(
        [value for value in given if isinstance(value, (int, float)) and not isinstance(value, bool)]
    )


class Lowering:
    """Appends the operators of a graph's forward to a joint graph. execution: the calls with their layouts."""

    def __init__(self, graph: PricedGraph, execution: OnGpu, joint: JointGraph) -> None:
        self.joint, self.execution = joint, execution
        self.values, self.training = execution.values, execution.training
        self.root = execution.owners()
        self.recomputed = graph.graph.recomputed if self.training else {}
        # Of what the call that is lowered reads, tensors of which it reads parts: bytes by part.
        self.parts: dict[str, dict[str, Dim]] = {}
        # Of these, tensors whose last axis is not the innermost in memory.
        self.outer: frozenset[str] = frozenset()
        self.of_libraries: set[str] = set()  # results that libraries made
        self.pointwise: set[str] = set()  # results of pointwise operators
        self.version: dict[str, str] = {}  # by owner of memory: the tensor that an in-place call made of it
        self.channels_last = prefers_channels_last(
            execution.calls, self.values, len(graph.graph.inputs), training=self.training
        )
        self.readers: dict[str, list[PricedCall]] = {}
        for call in execution.calls:
            for name in call.uses:
                self.readers.setdefault(name, []).append(call)
        self.user_inputs = {entry.name for entry in graph.graph.inputs if entry.role == "user"}

    def tensor(self, name: str) -> str:
        """The tensor that a value is, or is a view of."""
        owner = self.root.get(name, name)
        return self.version.get(owner, owner)

    def is_read_by_library(self, name: str) -> bool:
        """Whether a product, convolution or attention reads a value, or a view of it."""
        todo = [name]
        while todo:
            for call in self.readers.get(todo.pop(), ()):
                if call.node.operator.kind in _OF_LIBRARIES:
                    return True
                todo += [out for out in call.node.outputs if out is not None and self.root.get(out) != out]
        return False

    def is_read_beside(self, call: PricedCall, name: str) -> bool:
        """Whether another call reads the memory of a value, views of it included."""
        todo = [self.root.get(name, name)]
        while todo:
            for other in self.readers.get(todo.pop(), ()):
                views = [out for out in other.node.outputs if out is not None and self.root.get(out) != out]
                if other is not call and not views:
                    return True
                todo += views
        return False

    def elements(self, name: str) -> int:
        """Elements of a value."""
        value = self.values.get(name)
        return self.joint.number(prod(value.shape)) if isinstance(value, TensorType) else 0

    def is_inner(self, *, of_images: bool = False) -> bool:
        """Whether the last axis of a tensor is the innermost in memory: of images, channels may be."""
        return not (of_images and self.channels_last)

    def is_outer(self, name: str) -> bool:
        """Whether the last axis of a value is not the innermost in memory; what inductor itself stores lies in order."""
        strides = self.execution.layouts.known.get(name)
        if self.channels_last or not strides or strides[-1] in (0, 1):
            return False
        return name not in self.root or self.root[name] != name or name in self.of_libraries

    def typed(self, name: str) -> TensorType:
        """The type of a value that is a tensor."""
        value = self.values[name]
        assert isinstance(value, TensorType)
        return value

    def nbytes(self, name: str) -> Dim:
        """Bytes of a value; a copy of a repeated tensor has all of its elements."""
        value = self.values.get(name)
        if not isinstance(value, TensorType):
            return 0
        return value.like().nbytes if name in self.execution.layouts.copies else value.nbytes

    def add(
        self,
        call: PricedCall,
        kind: OpKind,
        outputs: Sequence[str],
        reads: Iterable[str],
        sizes: Mapping[str, Dim] | None = None,
        elements: int | None = None,
        **more: Any,
    ) -> None:
        """Append one operator of a call."""
        sizes = {name: self.nbytes(name) for name in outputs} if sizes is None else sizes
        given = tuple(dict.fromkeys(reads))
        if kind == "extern" and self.parts and not self.training:
            given = tuple([one for name in given for one in self.taken(call, name)])
        if elements is None:
            elements = max((self.elements(name) for name in call.node.outputs if name), default=0)
        if self.parts:
            more.setdefault("parts", {name: self.parts[name] for name in given if name in self.parts})
        if self.outer:
            more.setdefault("outer", self.outer.intersection(given))
        if kind == "extern":
            self.of_libraries.update(outputs)
        elif kind == "pointwise":
            self.pointwise.update(outputs)
        more.setdefault("recomputable", kind != "extern")
        if call.node.operator.kind in _MOVING and call.node.outputs[0] in outputs:
            more.setdefault("moved", frozenset(given))
        more.setdefault("instructions", instructions(call))
        more.setdefault("numbers", numbers(call))
        more.setdefault("must_recompute", call.node.name in self.recomputed)
        self.joint.add(Op(kind, tuple(outputs), given, elements, call.row, call.node.name, **more), sizes)

    def taken(self, call: PricedCall, tensor: str) -> list[str]:
        """What a library reads of a tensor: a copy of each part that it reads, where the tensor need not be stored."""
        parts = self.parts.get(tensor)
        if not parts or tensor not in self.pointwise:
            return [tensor]
        found = [f"{call.node.name} {part}" for part in parts]
        for name, (part, size) in zip(found, parts.items(), strict=True):
            elements = self.elements(part)
            own = {tensor: {part: size}}
            moved = frozenset((tensor,))
            self.add(call, "pointwise", (name,), (tensor,), {name: size}, elements, parts=own, moved=moved)
        return found

    def copied(
        self, call: PricedCall, tensor: str, size: Dim, use: str, bits: int, *, of: str = "", **more: Any
    ) -> str:
        """Append a copy of an operand that a library's kernel wants to lie otherwise.

        bits: of an element. of: the value that is copied, of which the tensor may hold more.
        """
        name, elements = f"{call.node.name} {use}", self.joint.number(size) * 8 // bits
        parts = self.parts.get(tensor, {})
        if of in parts:
            more["parts"] = {tensor: {of: parts[of]}}
        more["moved"] = frozenset((tensor,))
        self.add(call, "pointwise", (name,), (tensor,), {name: size}, elements, **more)
        return name

    def extern(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """A kernel of a library, or one that fuses with nothing."""
        kept = call.gradient.beside_bytes if call.gradient is not None else 0
        sizes = {name: self.nbytes(name) for name in made}
        beside = {"kept": f"{call.node.name} kept"} if kept != 0 else {}
        sizes.update(dict.fromkeys(beside.values(), kept))
        own = 0 if beside else call.estimate.workspace
        self.add(
            call, "extern", (*made, *beside.values()), operands, sizes=sizes, workspace=own, allocates=True
        )
        for name in beside.values():
            self.joint.labels[name] = (call.node.name, "saved")
        return beside
