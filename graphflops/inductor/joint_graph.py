"""The joint graph of a program's forward and backward, as AOTAutograd hands it to torch.compile's partitioner.

Operators are finer than the calls of an export: a normalisation is a reduction and a pointwise operator, attention that no
fused kernel accepts is two products with a softmax between them. Views are none: a tensor is named for the memory it is in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from graphflops.dims import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.devices import Platform
    from graphflops.dims import Dim
    from graphflops.report import HeldKind

OpKind = Literal["pointwise", "reduction", "extern"]
_UNROLLED = 8  # elements (inductor's unroll_reductions_threshold)
_SOME_SIZE = 97  # of a size without a value, where tensors are compared


@dataclass(frozen=True, slots=True)
class Op:
    """One operator of the joint graph.

    outputs, reads: names of tensors. elements: how many a kernel of it iterates over. kept: of a reduction, the elements of
    its result. row, node: of the call that it belongs to. workspace: bytes during the operator alone.
    is_gradient: whether it depends on the gradients of the results. recomputable: whether the partitioner may compute it
    again; what it may not is a kernel of its own there, unless is_random: its numbers are random. must_recompute: whether
    a checkpoint asks to compute it again. is_alone: whether it is a kernel that fuses with nothing. allocates: whether a
    library allocates the results, so that they take no memory that is free. is_over: whether a library writes its result
    over what it reads. is_exchange: whether it is a collective; nothing is written over its result. is_padded: whether a
    product runs with its sizes rounded up to what tensor cores load. part_bytes: how much of its result it writes, where
    others write the rest.
    moved: tensors that it reads at other places than it writes to.
    reads_twice: whether its formula has what it reads more than once. window: from how many elements of what it reads each
    element is computed. instructions: for each element, as inductor counts them; numbers: constants in
    them, which a kernel has once. parts: by tensor of which it reads parts
    only, bytes by part. views: tensors that it reads in another shape. outer: tensors whose last axis is not the innermost
    in memory, as it reads them. is_inner: whether what a reduction adds up is along the last axis. in_order: whether a loop
    over what a reduction reads visits one row after the other. of_moments: whether a reduction computes means and
    variances. computes: what it reads that is not stored, and so computed
    inside of its kernel.
    """

    kind: OpKind
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    elements: int
    row: int
    node: str
    kept: int = 0
    workspace: Dim = 0
    is_gradient: bool = False
    recomputable: bool = True
    must_recompute: bool = False
    is_random: bool = False
    is_alone: bool = False
    allocates: bool = False
    is_over: bool = False
    is_exchange: bool = False
    is_padded: bool = False
    reads_twice: bool = False
    window: int = 1
    part_bytes: Dim = 0
    moved: frozenset[str] = frozenset()
    parts: Mapping[str, Mapping[str, Dim]] = field(default_factory=dict)
    views: frozenset[str] = frozenset()
    is_inner: bool = True
    in_order: bool = True
    of_moments: bool = False
    outer: frozenset[str] = frozenset()
    instructions: int = 2
    numbers: tuple[float, ...] = ()
    computes: tuple[str, ...] = ()

    @property
    def is_fusible(self) -> bool:
        """Whether other operators can be part of its kernel."""
        return self.kind != "extern" and not self.is_alone


@dataclass(slots=True)
class JointGraph:
    """Operators in program order: those of the forward first.

    values: sizes by symbol. platform: of the device, by which inductor cuts reductions. inputs: bytes of what the
    program is given, weights included. sizes: bytes by tensor; 0 for weights, which are not the program's own. labels:
    name and kind of a tensor in a timeline, where they differ from its name and a value. results: what the forward
    returns. gradients: tensors that the backward returns. tangents: gradients of the results, which come from outside.
    turned: tensors that inductor stores with another axis innermost than the last. lies_in: by part of a tensor that is
    written by itself, the tensor.
    """

    values: Mapping[str, int]
    platform: Platform
    ops: list[Op] = field(default_factory=list)
    sizes: dict[str, Dim] = field(default_factory=dict)
    inputs: dict[str, Dim] = field(default_factory=dict)
    labels: dict[str, tuple[str, HeldKind]] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)
    gradients: dict[str, None] = field(default_factory=dict)
    tangents: dict[str, None] = field(default_factory=dict)
    turned: set[str] = field(default_factory=set)
    lies_in: dict[str, str] = field(default_factory=dict)
    numbers: dict[Dim, int] = field(default_factory=dict)

    def number(self, size: Dim) -> int:
        """A size as a number: open sizes are taken at their example, or at some size."""
        if isinstance(size, int):
            return size
        if size not in self.numbers:
            names = dict.fromkeys(size.symbols, _SOME_SIZE)
            self.numbers[size] = evaluate(size, {**names, **self.values}) or 0
        return self.numbers[size]

    def bytes(self, name: str) -> int:
        """Bytes of a tensor as a number; 0 for what is not the program's own."""
        return self.number(self.sizes.get(name, 0))

    def given_bytes(self, name: str) -> int:
        """Bytes of a tensor as a number, those of weights too."""
        return self.number(self.inputs.get(name) or self.sizes.get(name, 0))

    def add(self, op: Op, sizes: Mapping[str, Dim]) -> None:
        """Append an operator with the sizes of what it makes; a sum of a few elements is computed without a loop."""
        if op.kept and op.elements < _UNROLLED * op.kept:
            op = replace(op, kind="pointwise", elements=op.kept, kept=0)
        self.ops.append(op)
        self.sizes.update(sizes)
