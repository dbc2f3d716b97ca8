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
        """Bytes of a value."""
        value = self.values.get(name)
        return value.nbytes if isinstance(value, TensorType) else 0

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
        if elements is None:
            elements = max((self.elements(name) for name in call.node.outputs if name), default=0)
        if self.parts:
            more.setdefault("parts", {name: self.parts[name] for name in given if name in self.parts})
        if self.outer:
            more.setdefault("outer", self.outer.intersection(given))
        if kind == "extern":
            self.of_libraries.update(outputs)
        more.setdefault("recomputable", kind != "extern")
        more.setdefault("must_recompute", call.node.name in self.recomputed)
        self.joint.add(Op(kind, tuple(outputs), given, elements, call.row, call.node.name, **more), sizes)

    def copied(self, call: PricedCall, tensor: str, size: Dim, use: str, bits: int, **more: Any) -> str:
        """Append a copy of an operand that a library's kernel wants to lie otherwise. bits: of an element."""
        name, elements = f"{call.node.name} {use}", self.joint.number(size) * 8 // bits
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
