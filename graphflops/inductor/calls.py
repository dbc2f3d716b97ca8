"""Lowers the calls of a forward, as the decompositions of torch.compile do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from graphflops.dims import Dim, prod
from graphflops.inductor.library_calls import (
    convolution,
    exchange,
    product,
)
from graphflops.inductor.lowering import Lowered, Lowering
from graphflops.inductor.rowwise import (
    attention,
    axis_of,
    loss,
    normalisation,
    softmax,
)
from graphflops.kernels.kernel import FLOAT_BYTES, IMAGE_RANK, INDEX_BYTES, SINGLE
from graphflops.passes.program import PricedCall
from graphflops.tensor import BFLOAT16, DType, TensorType

# Kinds whose results are computed element by element, and those of them that the partitioner may compute again.
_AGAIN = frozenset({"elementwise", "comparison", "logic", "cast", "identity", "creation", "gather", "view"})
POINTWISE = _AGAIN | {"movement", "random", "resampling", "pooling", "loss"}
_WINDOW = "#1"  # an argument by place
_MOST_JOINED = 8  # tensors that one kernel concatenates (inductor's max_pointwise_cat_inputs)
_INTERPOLATED = {"linear": 2, "cubic": 4}  # elements along an axis that each is interpolated from
_RESAMPLED = 4  # elements that an interpolated one is computed from
_INTERPOLATING = 40  # instructions for an interpolated element, about
_ADDS_BFLOAT16 = (9, 0)  # compute capability
_MOST_WINDOW = 256  # positions of the window of a pooling that is one pointwise kernel


class ForwardLowering(Lowering):
    """Appends the operators of a graph's forward to a joint graph, by the kind of each call."""

    def lower(self, call: PricedCall) -> Lowered:
        names = call.tensors(self.values)
        operands = tuple(self.tensor(name) for name in names)
        outer = [tensor for name, tensor in zip(names, operands, strict=True) if self.is_outer(name)]
        outputs = [name for name in call.node.outputs if name is not None]
        results = [name for name in outputs if isinstance(self.values.get(name), TensorType)]
        made = [name for name in results if self.root.get(name) == name]
        parts: dict[str, dict[str, Dim]] = {}  # by tensor of which it reads only parts, bytes by part
        whole: set[str] = set()
        for place, (name, tensor) in enumerate(zip(names, operands, strict=True)):
            out = next(iter(call.node.outputs), None)
            if call.node.operator.kind == "gather" and place == 0 and out is not None:  # rows that it returns
                parts.setdefault(tensor, {})[out] = self.nbytes(out)
            elif self.elements(name) < self.elements(self.root.get(name, name)):
                parts.setdefault(tensor, {})[name] = self.nbytes(name)
            else:
                whole.add(tensor)
        parts = {tensor: read for tensor, read in parts.items() if tensor not in whole}
        of = Lowered(call, names, operands, parts, frozenset(outer), made)
        if call.in_place and results:
            self.overwrite(of, results[0])
            of.results = results[:1]
            return of
        if made:
            self.computed(of)
        of.results = [self.tensor(name) for name in results]
        return of

    def overwrite(self, of: Lowered, out: str) -> None:
        """An in-place call makes a new tensor; what shares the memory reads that one from now on.

        A part of what the program is given is written where it lies, since it would be copied there in the end
        (inductor's reinplace.py).
        """
        owner, operator = self.root.get(out, out), of.call.node.operator
        source = of.names[-1] if operator.kind == "scatter" else out
        if owner not in self.maker and self.elements(source) < self.elements(owner):
            reads, size = [each for each in of.operands if each != self.tensor(owner)], self.nbytes(source)
            self.add(of, "pointwise", {f"{out} part": 0}, reads, self.elements(source), part_bytes=size)
            return
        is_whole = self.elements(out) == self.elements(owner)
        alone, twice = operator.kind not in POINTWISE, operator.has("gate")
        made = {out: self.nbytes(out if is_whole else owner)}
        self.add(of, "pointwise", made, of.operands, is_alone=alone, reads_twice=twice)
        self.version[owner] = out

    def computed(self, of: Lowered) -> None:
        """Append what computes the results that have memory of their own."""
        operator, estimate = of.call.node.operator, of.call.estimate
        is_elementwise = (operator.kind in POINTWISE or operator.name == "one_hot") and len(of.made) == 1
        if estimate.regions or estimate.unknown:
            self.extern(of)
        elif operator.kind in _FORWARD:
            _FORWARD[operator.kind](self, of)
        elif operator.has("adds") and self.has_atomic(self.typed(of.made[0]).dtype):
            self.scatter(of)
        elif not is_elementwise:
            self.extern(of)
        elif operator.kind == "movement" and len(of.operands) > _MOST_JOINED:
            self.concatenated(of)
        else:
            again = operator.kind in _AGAIN and operator.name != "embedding"
            # Calls by way of which it reads each tensor; the parts of a split are one.
            ways = [{self.maker.get(name) for name in read} for read in of.parts.values()]
            twice = operator.has("gate") or any(len(way) > 1 for way in ways)
            more = {"recomputable": again or operator.has("computed_again"), "reads_twice": twice}
            self.add(of, "pointwise", of.made, of.operands, is_random=operator.kind == "random", **more)

    def resampling(self, of: Lowered) -> None:
        """An interpolation; of half precision it is one in float32, of which operand and result are converted."""
        call, out = of.call, of.made[0]
        more: dict[str, Any] = {"window": _RESAMPLED, "recomputable": False}
        is_wide = self.typed(out).dtype.bits >= SINGLE
        if is_wide or not places_of_interpolation(call, self.typed(out).rank):
            self.add(of, "pointwise", of.made, of.operands, **more)
            return
        elements = self.elements(of.names[0])
        wide, inner = f"{call.node.name} operand", f"{call.node.name} in float32"
        self.add(of, "pointwise", {wide: elements * FLOAT_BYTES}, of.operands[:1], elements, instructions=1)
        more |= {"moved": frozenset((wide,)), "instructions": _INTERPOLATING}
        self.add(of, "pointwise", {inner: self.elements(out) * FLOAT_BYTES}, (wide, *of.operands[1:]), **more)
        self.joint.labels[inner] = (out, "value")
        self.add(of, "pointwise", of.made, (inner,), instructions=1, moved=frozenset())

    def scatter(self, of: Lowered) -> None:
        """What is added is added to a copy of the operand by the kernel that computes it."""
        copied, out, elements = f"{of.call.node.name} operand", of.made[0], self.elements(of.names[-1])
        self.add(of, "pointwise", {copied: self.nbytes(out)}, of.operands[:1], instructions=1)
        reads, parts, moved = (copied, *of.operands[1:]), {copied: {out: elements * FLOAT_BYTES}}, {copied}
        more: dict[str, Any] = {"adds": True, "parts": parts, "moved": frozenset(moved)}
        self.add(of, "pointwise", of.made, reads, elements, **more)

    def has_atomic(self, dtype: DType) -> bool:
        """Whether Triton adds values of this type in memory (needs_fallback_due_to_atomic_add_limitations of inductor)."""
        is_late = self.execution.layouts.platform.capability >= _ADDS_BFLOAT16
        return dtype.is_floating and (dtype != BFLOAT16 or is_late)

    def concatenated(self, of: Lowered) -> None:
        """Many tensors in one: each is copied by itself, into memory that is there from the first copy on."""
        out = of.made[0]
        copies = [*[f"{out}, part {place}" for place in range(1, len(of.operands))], out]
        rest: dict[str, dict[str, Dim]] = {name: {"": 0} for name in copies[:-1]}
        for name, tensor, copy in zip(of.names, of.operands, copies, strict=True):
            reads: tuple[str, ...] = (tensor,)
            size, parts, whole = self.nbytes(name), of.parts, self.nbytes(name)
            if copy == out:  # the last waits for the others, which it does not read
                reads, parts, whole = (tensor, *rest), {**rest, **of.parts}, self.nbytes(out)
            elements = self.elements(name)
            self.add(of, "pointwise", {copy: whole}, reads, elements, part_bytes=size, parts=parts)
        self.joint.lies_in.update(dict.fromkeys(rest, out))

    def reduction(self, of: Lowered) -> None:
        x, out = self.typed(of.names[0]), self.typed(of.made[0])
        axes = of.call.node.arguments().get("axes")
        given = axes if isinstance(axes, tuple) else (axes,) if isinstance(axes, int) else ()
        keeps_last = bool(given) and {*range(x.rank - 1), *range(-x.rank, -1)}.issuperset(given)
        if out.rank == x.rank:
            keeps_last = bool(x.rank) and out.shape[-1] == x.shape[-1] and x.shape[-1] != 1
        is_inner = not (keeps_last or (x.rank >= IMAGE_RANK and self.channels_last))
        space, kept = max(map(self.elements, of.names)), self.elements(of.made[0])
        self.add(of, "reduction", of.made, of.operands, space, kept=kept, is_inner=is_inner)

    def scan(self, of: Lowered) -> None:
        """Sums and the like up to each element: a kernel over rows, as a reduction of each row is."""
        x = self.typed(of.names[0])
        axis, space = axis_of(of.call, x.rank), self.joint.number(prod(x.shape))
        rows = space // max(self.joint.number(1 if axis is None else x.shape[axis]), 1)
        more = {"kept": max(rows, 1), "is_inner": axis == x.rank - 1}
        self.add(of, "reduction", of.made, of.operands, space, **more)

    def dropout(self, of: Lowered) -> None:
        """The mask, a truth value for each element, and the result."""
        count, random = self.typed(of.made[0]).numel, f"{of.call.node.name} random"
        mask = self.save(of, "mask", f"{of.call.node.name} mask")
        self.add(of, "pointwise", {random: count * FLOAT_BYTES}, (), recomputable=False, is_random=True)
        self.add(of, "pointwise", {mask: count}, (random,))
        self.add(of, "pointwise", of.made[:1], (*of.operands[:1], mask))

    def pooling(self, of: Lowered) -> None:
        """A small window is read by a pointwise kernel; of a maximum its position in the window is kept, in a byte."""
        operator, out = of.call.node.operator, self.typed(of.made[0])
        spatial = out.shape[2:] or out.shape[-1:]
        if operator.name.startswith(("adaptive", "global")) and all(size == 1 for size in spatial):
            self.reduction(of)
            return
        window = of.call.node.arguments().get(_WINDOW, 1)
        sizes = window if isinstance(window, tuple) else (window,) * len(spatial)
        count = math.prod(size for size in sizes if isinstance(size, int))
        more = {"recomputable": False, "window": count}
        self.add(of, "pointwise", of.made[:1], of.operands[:1], **more)
        if operator.name == "max_pool" and of.call.gradient is not None:
            kept = self.save(of, "positions", f"{of.call.node.name} positions")
            size = out.numel * (1 if count < _MOST_WINDOW else INDEX_BYTES)
            self.add(of, "pointwise", {kept: size}, of.operands[:1], **more)


def places_of_interpolation(call: PricedCall, rank: int) -> int:
    """From how many elements each of a linear or cubic interpolation is computed; 0 of others."""
    return next((taps ** (rank - 2) for word, taps in _INTERPOLATED.items() if word in call.node.op), 0)


_FORWARD: Mapping[str, Callable[[ForwardLowering, Lowered], None]] = {
    "normalisation": normalisation,
    "softmax": softmax,
    "loss": loss,
    "attention": attention,
    "convolution": convolution,
    "product": product,
    "collective": exchange,
    "dropout": ForwardLowering.dropout,
    "pooling": ForwardLowering.pooling,
    "reduction": ForwardLowering.reduction,
    "scan": ForwardLowering.scan,
    "resampling": ForwardLowering.resampling,
}
