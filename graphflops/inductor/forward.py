"""Lowers the calls of a forward into operators of the joint graph, as the decompositions of torch.compile do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from graphflops.dims import Dim, prod
from graphflops.inductor.library_calls import attention, convolution, exchange, product
from graphflops.inductor.lowering import Lowering
from graphflops.inductor.padding import aligned_bytes
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.passes.program import PricedCall

# Kinds whose results are computed element by element, and those of them that the partitioner may compute again.
_AGAIN = frozenset({"elementwise", "comparison", "logic", "cast", "identity", "creation", "gather"})
_POINTWISE = _AGAIN | {"movement", "random", "resampling", "pooling", "loss", "view"}
_FLOAT_BYTES, _FLOAT_BITS = 4, 32
_ALIGNED = 8  # channels and columns of operands of tensor cores in half precision
_IMAGE_RANK = 4
_WINDOW = "#1"  # an argument by place
_MOST_JOINED = 8  # tensors that one kernel concatenates (inductor's max_pointwise_cat_inputs)
_INTERPOLATED = ("linear", "cubic")
_RESAMPLED = 4  # elements that an interpolated one is computed from
_INTERPOLATING = 40  # instructions for an interpolated element, about
_MOST_WINDOW = 256  # positions of the window of a pooling that is one pointwise kernel


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a call became. operands, results: tensors by place; beside: what its gradient reads beside these, by use.

    parts: of operands of which it reads parts, bytes by part. outer: operands whose last axis is not innermost.
    """

    call: PricedCall
    operands: tuple[str, ...]
    results: tuple[str, ...]
    beside: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Dim]] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()


class ForwardLowering(Lowering):
    """Appends the operators of a graph's forward to a joint graph, by the kind of each call."""

    def lower(self, call: PricedCall) -> Lowered:
        """Append the operators of one call."""
        names = call.tensors(self.values)
        operands = tuple(self.tensor(name) for name in names)
        self.parts = self.parts_read(call, names, operands)
        self.outer = frozenset(
            tensor for name, tensor in zip(names, operands, strict=True) if self.is_outer(name)
        )
        made = [name for name in call.node.outputs if isinstance(self.values.get(name or ""), TensorType)]
        results = tuple(name for name in made if name is not None)
        if call.in_place and results:
            self.overwrite(call, operands, results[0])
            return Lowered(call, operands, (results[0],), {}, self.parts, self.outer)
        fresh = [name for name in results if self.root.get(name) == name]
        beside = self.computed(call, operands, fresh) if fresh else {}
        made_of = tuple(self.tensor(name) for name in results)
        return Lowered(call, operands, made_of, beside, self.parts, self.outer)

    def parts_read(
        self, call: PricedCall, names: Sequence[str], operands: Sequence[str]
    ) -> dict[str, dict[str, Dim]]:
        """By tensor of which a call reads only parts, bytes by part; of a table it reads the rows that it returns."""
        found: dict[str, dict[str, Dim]] = {}
        whole: set[str] = set()
        for place, (name, tensor) in enumerate(zip(names, operands, strict=True)):
            out = next(iter(call.node.outputs), None)
            if call.node.operator.kind == "gather" and place == 0 and out is not None:
                found.setdefault(tensor, {})[out] = self.nbytes(out)
            elif self.elements(name) < self.elements(self.root.get(name, name)):
                found.setdefault(tensor, {})[name] = self.nbytes(name)
            else:
                whole.add(tensor)
        return {tensor: read for tensor, read in found.items() if tensor not in whole}

    def overwrite(self, call: PricedCall, operands: Sequence[str], out: str) -> None:
        """An in-place call makes a new tensor; what shares the memory reads that one from now on."""
        owner = self.root.get(out, out)
        alone = call.node.operator.kind not in _POINTWISE
        twice = call.node.operator.is_gate
        is_whole = self.elements(out) == self.elements(owner)
        size = self.nbytes(out if is_whole else owner)
        self.add(call, "pointwise", (out,), operands, sizes={out: size}, is_alone=alone, reads_twice=twice)
        self.version[owner] = out

    def computed(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """Append what computes the results that have memory of their own; what the gradient reads beside them, by use."""
        kind = call.node.operator.kind
        if call.estimate.regions or call.estimate.unknown:
            return self.extern(call, operands, made)
        special: Mapping[str, Callable[..., Mapping[str, str]]] = {
            "normalisation": self.normalisation,
            "softmax": self.softmax,
            "loss": self.softmax,
            "dropout": self.dropout,
            "attention": partial(attention, self),
            "convolution": partial(convolution, self),
            "product": partial(product, self),
            "collective": partial(exchange, self),
            "pooling": self.pooling,
            "reduction": self.reduction,
            "scan": self.scan,
            "resampling": self.resampling,
        }
        if kind in special:
            return special[kind](call, operands, made)
        if kind not in _POINTWISE or len(made) > 1:
            return self.extern(call, operands, made)
        if kind == "movement" and len(operands) > _MOST_JOINED:
            return self.concatenated(call, operands, made[0])
        again = (
            kind in _AGAIN and call.node.operator.name != "embedding"
        ) or call.node.operator.name == "repeat"
        twice = call.node.operator.is_gate
        self.add(
            call,
            "pointwise",
            made,
            operands,
            recomputable=again,
            is_random=kind == "random",
            reads_twice=twice,
        )
        return {}

    def resampling(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """An interpolation; of half precision it is one in float32, of which operand and result are converted."""
        x, out = operands[0], made[0]
        more: dict[str, Any] = {"window": _RESAMPLED, "recomputable": False}
        is_wide = self.typed(out).dtype.bits >= _FLOAT_BITS
        if is_wide or not any(word in call.node.op for word in _INTERPOLATED):
            self.add(call, "pointwise", made, operands, **more)
            return {}
        elements = self.elements(call.tensors(self.values)[0])
        wide, inner = f"{call.node.name} operand", f"{call.node.name} in float32"
        self.add(call, "pointwise", (wide,), (x,), {wide: elements * _FLOAT_BYTES}, elements, instructions=1)
        more |= {"moved": frozenset((wide,)), "instructions": _INTERPOLATING}
        size = self.elements(out) * _FLOAT_BYTES
        self.add(call, "pointwise", (inner,), (wide, *operands[1:]), {inner: size}, **more)
        self.joint.labels[inner] = (out, "value")
        self.add(call, "pointwise", made, (inner,), instructions=1, moved=frozenset())
        return {}

    def concatenated(self, call: PricedCall, operands: Sequence[str], out: str) -> Mapping[str, str]:
        """Many tensors in one: each is copied by itself, into memory that is there from the first copy on."""
        copies = [*[f"{out}, part {place}" for place in range(1, len(operands))], out]
        rest: dict[str, dict[str, Dim]] = {name: {"": 0} for name in copies[:-1]}
        for name, tensor, copy in zip(call.tensors(self.values), operands, copies, strict=True):
            reads: tuple[str, ...] = (tensor,)
            size, parts, whole = self.nbytes(name), self.parts, self.nbytes(name)
            if copy == out:  # the last waits for the others, which it does not read
                reads, parts, whole = (tensor, *rest), {**rest, **self.parts}, self.nbytes(out)
            elements = self.elements(name)
            self.add(call, "pointwise", (copy,), reads, {copy: whole}, elements, part_bytes=size, parts=parts)
        self.joint.lies_in.update(dict.fromkeys(rest, out))
        return {}

    def kept_statistics(
        self, call: PricedCall, operands: Sequence[str], rows: int, size: Dim, *, is_inner: bool
    ) -> str:
        """Append the reduction that a normalisation or softmax starts with: its tensor of statistics."""
        name = f"{call.node.name} statistics"
        space = max(self.elements(use) for use in call.tensors(self.values))
        operator = call.node.operator
        order = {"is_inner": is_inner, "in_order": operator.name != "batch_norm"}
        order["of_moments"] = operator.kind == "normalisation"
        self.add(call, "reduction", (name,), operands[:1], {name: size}, space, kept=rows, **order)
        self.joint.labels[name] = (call.node.name, "saved")
        return name

    def normalisation(
        self, call: PricedCall, operands: Sequence[str], made: Sequence[str]
    ) -> Mapping[str, str]:
        """Moments, and then the result; with stored moments the result alone."""
        arguments = call.node.arguments()
        x = self.values[call.tensors(self.values)[0]]
        assert isinstance(x, TensorType)
        is_batch = call.node.operator.name == "batch_norm"
        if is_batch and arguments.get("training") is not True:
            self.add(call, "pointwise", made[:1], operands, sizes={made[0]: self.normed_bytes(made[0])})
            return {}
        if is_batch:
            rows: Dim = x.shape[1]
        elif isinstance(groups := arguments.get("groups"), int):
            rows = x.shape[0] * groups
        else:
            given = arguments.get("shape")
            rows = prod(x.shape[: -len(given)]) if isinstance(given, tuple) and given else prod(x.shape[:-1])
        size = 2 * _FLOAT_BYTES * rows
        operator = call.node.operator
        is_inner = self.is_inner(of_images=operator.is_of_images or "group" in operator.name)
        statistics = self.kept_statistics(call, operands, self.joint.number(rows), size, is_inner=is_inner)
        sizes = {made[0]: self.normed_bytes(made[0])}
        self.add(call, "pointwise", made[:1], (*operands, statistics), sizes=sizes)
        for name in made[1:]:  # moments that the call itself returns
            self.add(call, "pointwise", (name,), (statistics,))
        return {"statistics": statistics}

    def normed_bytes(self, name: str) -> Dim:
        """Bytes of a normalised result: in float32 if all its readers compute in float32 and read it more than once."""
        value = self.values[name]
        assert isinstance(value, TensorType)
        readers = self.readers.get(name, [])
        is_activated = bool(readers) and all(reader.node.operator.is_gate for reader in readers)
        return value.numel * _FLOAT_BYTES if is_activated else value.nbytes

    def softmax(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """The maximum and the sum of each row, and then the result; of a loss a sum over the rows."""
        x = self.values[call.tensors(self.values)[0]]
        assert isinstance(x, TensorType)
        axis = _axis(call, x.rank)
        width = 1 if axis is None else x.shape[axis]
        space = self.joint.number(prod(x.shape))
        rows = space // max(self.joint.number(width), 1)
        size = 2 * _FLOAT_BYTES * (x.numel // width if width != 0 else 0)
        statistics = self.kept_statistics(call, operands, rows, size, is_inner=self.is_last_axis(call))
        if call.node.operator.kind == "loss":
            self.add(call, "reduction", made, (*operands, statistics), elements=space, kept=1)
        else:
            out = self.values[made[0]]
            assert isinstance(out, TensorType)
            size = aligned_bytes(out.shape, out.dtype.bits) or out.nbytes
            self.add(call, "pointwise", made, (*operands[:1], statistics), {made[0]: size}, space)
        return {"statistics": statistics}

    def is_last_axis(self, call: PricedCall) -> bool:
        """Whether the rows of a softmax or loss are along the last axis."""
        x = self.values[call.tensors(self.values)[0]]
        assert isinstance(x, TensorType)
        return _axis(call, x.rank) == x.rank - 1

    def reduction(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """A sum, mean or the like."""
        names = call.tensors(self.values)
        space = max(self.elements(name) for name in names)
        x, out = self.values[names[0]], self.values[made[0]]
        assert isinstance(x, TensorType)
        assert isinstance(out, TensorType)
        is_inner = self.is_inner(of_images=x.rank >= _IMAGE_RANK) and not _keeps_last(call, x, out)
        self.add(
            call, "reduction", made, operands, elements=space, kept=self.elements(made[0]), is_inner=is_inner
        )
        return {}

    def scan(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """Sums and the like up to each element: a kernel over rows, as a reduction of each row is."""
        x = self.values[call.tensors(self.values)[0]]
        assert isinstance(x, TensorType)
        axis = _axis(call, x.rank)
        space = self.joint.number(prod(x.shape))
        rows = space // max(self.joint.number(1 if axis is None else x.shape[axis]), 1)
        is_inner = axis == x.rank - 1
        self.add(call, "reduction", made, operands, elements=space, kept=max(rows, 1), is_inner=is_inner)
        return {}

    def dropout(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """The mask, a truth value for each element, and the result."""
        random, mask = f"{call.node.name} random", f"{call.node.name} mask"
        out = self.typed(made[0])
        sizes = {random: out.numel * _FLOAT_BYTES}
        self.add(call, "pointwise", (random,), (), sizes, recomputable=False, is_random=True)
        self.add(call, "pointwise", (mask,), (random,), {mask: out.numel})
        self.joint.labels[mask] = (call.node.name, "saved")
        self.add(call, "pointwise", made[:1], (*operands[:1], mask))
        return {"mask": mask}

    def pooling(self, call: PricedCall, operands: Sequence[str], made: Sequence[str]) -> Mapping[str, str]:
        """A small window is read by a pointwise kernel; of a maximum its position in the window is kept, in a byte."""
        operator, arguments = call.node.operator, call.node.arguments()
        x, out = (self.values[name] for name in (call.tensors(self.values)[0], made[0]))
        assert isinstance(x, TensorType)
        assert isinstance(out, TensorType)
        spatial = out.shape[2:] if out.rank > 2 else out.shape[-1:]
        if operator.name.startswith(("adaptive", "global")) and all(size == 1 for size in spatial):
            return self.reduction(call, operands, made)
        window = arguments.get(_WINDOW, 1)
        sizes = window if isinstance(window, tuple) else (window,) * len(spatial)
        count = math.prod(size for size in sizes if isinstance(size, int))
        self.add(call, "pointwise", made[:1], operands[:1], recomputable=False, window=count)
        if operator.name != "max_pool":
            return {}
        kept = f"{call.node.name} positions"
        width = 1 if count < _MOST_WINDOW else _ALIGNED
        if call.gradient is None:
            return {}
        self.add(
            call,
            "pointwise",
            (kept,),
            operands[:1],
            sizes={kept: out.numel * width},
            recomputable=False,
            window=count,
        )
        self.joint.labels[kept] = (call.node.name, "saved")
        return {"positions": kept}


def _axis(call: PricedCall, rank: int) -> int | None:
    """The axis of the rows of a softmax or loss."""
    axis = call.node.arguments().get("axis", 1 if call.node.operator.kind == "loss" else -1)
    return axis % rank if isinstance(axis, int) and -rank <= axis < rank else None


def _keeps_last(call: PricedCall, x: TensorType, out: TensorType) -> bool:
    """Whether a reduction leaves the last axis as it is."""
    if out.rank == x.rank:
        return bool(x.rank) and out.shape[-1] == x.shape[-1] and x.shape[-1] != 1
    axes = call.node.arguments().get("axes")
    given = axes if isinstance(axes, tuple) else (axes,) if isinstance(axes, int) else ()
    return bool(given) and all(isinstance(axis, int) and axis % x.rank < x.rank - 1 for axis in given)
