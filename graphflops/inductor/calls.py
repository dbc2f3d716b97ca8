"""Lowers the calls of a forward, then their gradients from the last call to the first, as torch.compile decomposes them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from graphflops.dims import Dim, prod
from graphflops.graph import Graph, Ref
from graphflops.inductor import library_calls, rowwise
from graphflops.inductor.lowering import Extern, Loop, Lowered, Lowering, Reduction, filled_with
from graphflops.kernels.beside import reduced_axes
from graphflops.kernels.buffers import axes_of
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import FLOAT_BYTES, INDEX_BYTES, SINGLE
from graphflops.passes.program import PricedCall
from graphflops.tensor import BFLOAT16, FLOAT32, TensorType

# Kinds whose results are computed elementwise, and those of them that the partitioner may recompute.
_BY_ELEMENT = frozenset({"elementwise", "comparison", "logic"})
_AGAIN = frozenset({"elementwise", "comparison", "logic", "cast", "identity", "creation", "gather", "view"})
_POINTWISE = _AGAIN | {"movement", "random", "resampling", "pooling", "loss"}
_SCATTERS = ("index_copy", "scatter")  # inductor generates them if they have a source tensor
_FUSIBLE = _POINTWISE | {"dropout", "reduction"}
_WINDOW = "#1"  # an argument by place
_INTERPOLATED = {"linear": 2, "cubic": 4}  # elements along an axis that each result is interpolated from
_RESAMPLED, _INTERPOLATING = 4, 40  # elements that a result is interpolated from, and its instructions, about
_MOST_WINDOW, _MOST_TERMS = limits("inductor_2", "pool", "window terms")


class CallLowering(Lowering):
    """Lowers calls and their gradients by the kind of each call."""

    def lower(self, call: PricedCall) -> Lowered:
        names = call.tensors(self.values)
        operands = tuple(self.tensor(name) for name in names)
        outputs = [name for name in call.node.outputs if name is not None]
        results = [name for name in outputs if isinstance(self.values.get(name), TensorType)]
        made = [name for name in results if self.root.get(name) == name]
        parts: dict[str, dict[str, Dim]] = {}  # by tensor that it reads only in parts, bytes by part
        views: dict[str, str] = {}
        whole: set[str] = set()
        for place, (name, tensor) in enumerate(zip(names, operands, strict=True)):
            out, view = next(iter(call.node.outputs), None), self.view.get(name)
            if view is not None:
                views.setdefault(tensor, view)
            if call.node.operator.kind == "gather" and place == 0 and out is not None:  # rows that it returns
                parts.setdefault(tensor, {})[out] = self.nbytes(out)
            elif self.elements(name) < self.elements(self.root.get(name, name)):
                parts.setdefault(tensor, {})[view or name] = self.nbytes(name)
            else:
                whole.add(tensor)
        parts = {tensor: read for tensor, read in parts.items() if tensor not in whole}
        of = Lowered(call, names, operands, parts, made, views=views)
        if call.in_place and results:
            self.overwrite(of, results[0])
            of.results = results[:1]
            return of
        same = self.known.setdefault(self.key(of), of)
        if same is not of:  # a common subexpression is computed once
            of.beside, of.operands = same.beside, same.operands
            self.version.update(zip(made, map(self.tensor, same.made), strict=True))
        elif made:
            self.computed(of)
        for name, other in zip(outputs, same.call.node.outputs, strict=False):
            if name not in made:
                view = self.view[name] = self.view.get(other or "", name)
                if len(outputs) > 1 or not self.joint.items.isdisjoint(views.values()):
                    self.joint.items.add(view)
        of.results = [self.tensor(name) for name in results]
        return of

    def overwrite(self, of: Lowered, out: str) -> None:
        """An in-place call makes a new tensor, which everything that shares the memory reads from now on.

        A part of an input is written where it lies, because it would be copied there in the end (inductor's reinplace.py).
        If a scatter writes to a view of an input, the view is copied, and in the end the whole input.
        """
        owner, operator = self.root.get(out, out), of.call.node.operator
        is_scatter, is_whole = operator.kind == "scatter", self.elements(out) == self.elements(owner)
        source, made = of.names[-1] if is_scatter else out, out
        if owner not in self.maker and is_scatter and not is_whole:
            self.scatter(of, out)
            made, reads = f"{out} whole", (of.operands[0], out)
            self.add(of, Loop, {made: self.nbytes(owner)}, reads, self.elements(owner), role="placing")
        elif owner not in self.maker and self.elements(source) < self.elements(owner):
            others = [each for each in of.operands if each != self.tensor(owner)]
            self.write(of, f"{out} part", others, source)
            self.joint.written.add(owner)
            return
        else:
            alone, twice = operator.kind not in _POINTWISE, operator.has("gate")
            sizes = {out: self.nbytes(out if is_whole else owner)}
            self.add(of, Loop, sizes, of.operands, is_alone=alone, reads_twice=twice)
        self.version[owner] = made

    def write(self, of: Lowered, name: str, reads: Sequence[str], value: str) -> None:
        """Append what writes a value into an input's memory, which outlives the graph."""
        self.add(of, Loop, {name: 0}, reads, self.elements(value), part_bytes=self.nbytes(value))
        self.joint.results[name] = None

    def write_back(self, lowered: Iterable[Lowered]) -> None:
        """Copy the last version of each overwritten input back to the input in the end."""
        last = {self.root.get(name, name): of for of in lowered if of.call.in_place for name in of.names[:1]}
        for owner, of in last.items():
            if owner not in self.maker and owner in self.version:
                self.write(of, f"{owner} written", (self.version[owner],), owner)

    def computed(self, of: Lowered) -> None:
        operator, estimate = of.call.node.operator, of.call.estimate
        is_elementwise = (operator.kind in _POINTWISE or operator.name == "one_hot") and len(of.made) == 1
        # Whether Triton adds such values atomically (needs_fallback_due_to_atomic_add_limitations of inductor; its
        # decomposition of index_add excludes bfloat16).
        dtype, is_late = self.typed(of.made[0]).dtype, self.joint.platform.capability >= (9, 0)
        has_atomic = dtype.is_floating and (dtype != BFLOAT16 or (is_late and operator.name != "index_add"))
        if estimate.regions or estimate.unknown:
            self.extern(of)
        elif filled_with(of.call) is not None:
            self.add(of, Loop, of.made, ())
        elif operator.kind in _FORWARD:
            _FORWARD[operator.kind](self, of)
        elif (operator.has("adds") and has_atomic) or (operator.name in _SCATTERS and len(of.names) > 2):
            self.scatter(of, of.made[0])
        elif not is_elementwise:
            self.extern(of)
        elif operator.name == "im2col":
            library_calls.patches(self, of)
        else:
            again = operator.kind in _AGAIN and operator.name != "embedding"
            # The calls through which it reads each tensor; all parts of a split count as one.
            ways = [{self.maker.get(name) for name in read} for read in of.parts.values()]
            more: dict[str, Any] = {
                "recomputable": again or operator.has("computed_again"),
                "reads_twice": operator.has("gate") or any(len(way) > 1 for way in ways),
                "views": dict(zip(of.operands, of.names, strict=True)) if operator.name == "stack" else {},
                "is_repeating": operator.kind == "view" and self.typed(of.names[0]).stored is not None,
            }
            self.add(of, Loop, of.made, of.operands, **more)
            value = of.call.node.arguments().get("value")
            if operator.name == "masked_fill" and not isinstance(value, Ref):
                self.joint.constants.setdefault(f"{value} {dtype.name}", []).append(len(self.joint.ops) - 1)

    def resampling(self, of: Lowered) -> None:
        """An interpolation. In half precision it runs in float32, and operand and result are converted."""
        call, out = of.call, of.made[0]
        more: dict[str, Any] = {"window": _RESAMPLED, "recomputable": False}
        if self.typed(out).dtype.bits >= SINGLE or not places_of_interpolation(call, self.typed(out).rank):
            self.add(of, Loop, of.made, of.operands, **more)
            return
        elements = self.elements(of.names[0])
        wide, inner = f"{call.node.name} operand", f"{call.node.name} in float32"
        self.add(of, Loop, {wide: elements * FLOAT_BYTES}, of.operands, elements, instructions=1)
        more |= {"moved": frozenset((wide,)), "instructions": _INTERPOLATING}
        self.add(of, Loop, {inner: self.elements(out) * FLOAT_BYTES}, (wide,), **more)
        self.joint.labels[inner] = (out, "value")
        self.add(of, Loop, of.made, (inner,), instructions=1, moved=frozenset())

    def scatter(self, of: Lowered, out: str) -> None:
        """Copy the operand; the kernel that computes what is added or written then puts it into the copy."""
        copied, elements = f"{of.call.node.name} operand", self.elements(of.names[-1])
        base: dict[str, Any] = {"instructions": 1, "recomputable": False, "role": "base"}
        self.add(of, Loop, {copied: self.nbytes(out)}, of.operands[:1], **base)
        self.joint.lies_in[copied] = out
        each = FLOAT_BYTES if of.call.node.operator.has("adds") else self.typed(out).dtype.bits // 8
        reads, parts = (*of.operands[1:], copied), {copied: {out: elements * each}}
        more: dict[str, Any] = {"role": "adding", "recomputable": False, "moved": frozenset(reads)}
        self.add(of, Loop, (out,), reads, elements, parts=parts, **more)

    def reduction(self, of: Lowered) -> None:
        x = self.typed(of.names[0])
        axes = reduced_axes(of.call.node.arguments().get("axes"), x.rank)
        is_inner = rowwise.is_along_last(self.joint, x.shape, [axis in axes for axis in range(x.rank)])
        space, kept, reads = max(map(self.elements, of.names)), self.elements(of.made[0]), of.operands
        if of.call.node.operator.name == "vector_norm":  # a sum of powers
            reads = (f"{of.call.node.name} powers",)
            self.add(of, Loop, {reads[0]: self.nbytes(of.names[0])}, of.operands, space)
        self.add(of, Reduction, of.made, reads, space, kept=kept, is_inner=is_inner)

    def scan(self, of: Lowered) -> None:
        """A cumulative sum or the like: a kernel over rows, like a reduction of each row."""
        rows, is_inner = rowwise.rows_of(self, of)
        kept, space = max(self.joint.number(rows), 1), self.elements(of.names[0])
        more = {"kept": kept, "is_inner": is_inner, "role": "scan", "recomputable": False}
        self.add(of, Reduction, of.made, of.operands, space, **more)

    def dropout(self, of: Lowered) -> None:
        """The random numbers, the boolean mask, and the result."""
        count, random = self.typed(of.made[0]).numel, f"{of.call.node.name} random"
        mask = self.save(of, "mask", f"{of.call.node.name} mask")
        self.add(of, Loop, {random: count * FLOAT_BYTES}, (), recomputable=False, role="random")
        self.add(of, Loop, {mask: count}, (random,))
        self.add(of, Loop, of.made[:1], (mask, *of.operands))

    def pooling(self, of: Lowered) -> None:
        """A pointwise kernel reads a small window; a maximum also saves its position in the window, as a byte."""
        operator, out = of.call.node.operator, self.typed(of.made[0])
        spatial = out.shape[2:] or out.shape[-1:]
        if operator.name.startswith(("adaptive", "global")) and all(size == 1 for size in spatial):
            self.reduction(of)
            return
        window = of.call.node.arguments().get(_WINDOW, 1)
        sizes = window if isinstance(window, tuple) else (window,) * len(spatial)
        count = math.prod(size for size in sizes if isinstance(size, int))
        more = {"recomputable": False, "window": count}
        self.add(of, Loop, of.made[:1], of.operands, **more)
        if operator.name == "max_pool" and of.call.gradient is not None:
            kept = self.save(of, "positions", f"{of.call.node.name} positions")
            size = out.numel * (1 if count < _MOST_WINDOW else INDEX_BYTES)
            self.add(of, Loop, {kept: size}, of.operands, **more)

    def backward(self, graph: Graph, lowered: Sequence[Lowered]) -> None:
        """Lower the gradients of calls, from the last call to the first."""
        joint, stored = self.joint, [entry for entry in graph.inputs if entry.role == "parameter"]
        first = {entry.target: entry.name for entry in reversed(stored)}
        self.parameters.update((entry.name, first.get(entry.alias_of, entry.name)) for entry in stored)
        for name in graph.seeds:
            value = self.values.get(name)
            if name not in self.gradient_of and isinstance(value, TensorType) and value.requires_grad:
                tangent = self.gradient_of[name] = self.new_gradient(name, value.like().nbytes)
                joint.tangents[tangent] = None
        for of in reversed(lowered):
            if of.call.gradient is not None:
                self.lower_gradients(of)
        inputs = {entry.name for entry in graph.inputs}
        joint.gradients.update((tensor, None) for name, tensor in self.gradient_of.items() if name in inputs)

    def lower_gradients(self, of: Lowered) -> None:
        call = of.call
        of.incoming = [self.gradient_of[name] for name in call.node.outputs if name in self.gradient_of]
        if not of.incoming:
            return
        pairs = [*zip(of.gradient.gradients, of.gradient.estimate.out, strict=False)]
        for (place, is_fresh), gradient in pairs:
            size = gradient.nbytes if isinstance(gradient, TensorType) else 0
            # The operand of a gate may be in float32, unless it also comes from around a branch.
            if call.node.operator.has("gate"):
                size = self.joint.sizes.get(of.operands[place], size)
            if is_fresh:
                of.fresh[place] = self.new_gradient(of.names[place], size)
        if of.fresh:
            self.compute_gradients(of)
        for name in call.node.outputs:
            self.gradient_of.pop(name or "", None)
        for (place, _), _ in pairs:
            self.accumulate(of.names[place], of.fresh.get(place, of.incoming[0]), of)

    def accumulate(self, name: str, tensor: str, of: Lowered) -> None:
        """Note a gradient of a value; any further gradient is added to the first."""
        name = self.parameters.get(name, name)
        before = self.gradient_of.get(name)
        if before is not None:
            both = self.new_gradient(name, self.joint.sizes[before])
            self.add_back(of, Loop, (both,), (before, tensor), self.elements(name), role="sum")
            tensor = both
        self.gradient_of[name] = tensor

    def compute_gradients(self, of: Lowered) -> None:
        operator = of.call.node.operator
        is_own = not of.call.estimate.regions and operator.name != "embedding_bag"  # ATen's function runs
        if operator.kind in _GRADIENTS and is_own:
            _GRADIENTS[operator.kind](self, of)
        elif (operator.kind in _FUSIBLE and is_own) or operator.has("adds"):
            self.pointwise_gradient(of)
        else:
            self.extern_gradient(of)

    def extern_gradient(self, of: Lowered) -> None:
        operator, reads = of.call.node.operator, (*of.incoming, *self.read(of), *of.beside.values())
        role = "exchange" if operator.kind == "collective" else ""
        into, own = "operand" if operator.name == "all_reduce" else "own", of.gradient.estimate.workspace
        self.add_back(of, Extern, of.fresh.values(), reads, workspace=own, into=into, role=role)

    def pointwise_gradient(self, of: Lowered) -> None:
        """Compute each gradient from the results' gradients; it is summed if the operand was broadcast."""
        operator, result = of.call.node.operator, of.call.node.outputs[0] or ""
        is_pooling = operator.kind == "pooling"
        # A pooling with one result for each channel is a mean.
        if is_pooling and any(size != 1 for size in self.typed(of.made[0]).shape[2:]):
            self.pooling_gradient(of)
            return
        wide = max(map(self.elements, of.call.node.outputs), default=0)
        is_narrowed = operator.kind in _BY_ELEMENT or operator.name in ("expand", "repeat")
        moved = of.incoming if operator.has("adds") else ()  # read at the places that something was added to
        for place, tensor in of.fresh.items():
            count = self.elements(of.names[place])
            read = [] if is_pooling else [*self.read(of, place), *of.beside.values()]
            if operator.kind == "loss":  # a cross-entropy recomputes its softmax
                read = [*dict.fromkeys((of.operands[0], *read))]
            if operator.has("threshold"):
                read = [self.threshold(of, tensor) for tensor in read]
            reads = (*of.incoming, *read)
            if is_narrowed:
                shape, out = self.typed(of.names[place]).shape, self.typed(result).shape
                own = dict(zip(axes_of(operator, shape, len(out)), shape, strict=True))
                summed = [own.get(axis, 1) != size for axis, size in enumerate(out)]
                is_inner = rowwise.is_along_last(self.joint, out, summed)
                self.add_back(of, Reduction, (tensor,), reads, wide, kept=count, is_inner=is_inner)
            else:
                self.add_back(of, Loop, (tensor,), reads, count, moved=frozenset(moved))

    def pooling_gradient(self, of: Lowered) -> None:
        """It gets the operand for its shape. For means over wide windows, PyTorch's kernel runs."""
        reads, call = (*of.incoming, *of.operands, *of.beside.values()), of.call
        terms = self.joint.number(call.estimate.vector_flops) / max(self.elements(of.names[0]), 1)
        is_own = bool(of.beside) or (call.node.operator.name == "avg_pool" and terms <= _MOST_TERMS)
        for tensor in of.fresh.values():
            if is_own:
                self.add_back(of, Loop, (tensor,), reads, recomputable=False)
            else:
                self.add_back(of, Extern, (tensor,), reads, into="own")

    def threshold(self, of: Lowered, tensor: str) -> str:
        """Append the comparison by which an activation's gradient selects: a boolean for each element."""
        name = f"{of.call.node.name} mask"
        self.joint.labels[name] = (of.call.node.name, "saved")
        mask = {name: self.typed(of.call.node.outputs[0] or "").numel}
        self.add(of, Loop, mask, (tensor,), must_recompute=False)
        return name

    def resampling_gradient(self, of: Lowered) -> None:
        """Each element is added to all elements that it was interpolated from, with one table of zeros for each of these."""
        places = places_of_interpolation(of.call, self.typed(of.names[0]).rank)
        if places:
            self.sum_into_zeros(of, places, ())
        elif of.call.node.operator.name == "grid_sample":  # inductor has no formula: PyTorch's kernel runs
            self.extern_gradient(of)
        else:
            self.pointwise_gradient(of)

    def sum_into_zeros(self, of: Lowered, tables: int, indices: Sequence[str]) -> None:
        """Add the gradients to `tables` tables of zeros, at the places that indices name.

        One table, if in float32 or for `index`, is the gradient itself. Others are in float32, and summed or converted then.
        """
        rows, is_index = self.elements(of.call.node.outputs[0]), of.call.node.operator.name == "index"
        for place, tensor in of.fresh.items():
            name, dtype = of.names[place], self.typed(of.names[place]).dtype
            is_own = tables == 1 and (is_index or dtype.bits >= SINGLE)
            each = dtype.bits // 8 if is_own else FLOAT_BYTES
            count, size = self.elements(name), prod(self.typed(name).shape) * each
            zeros = [self.new_gradient(name, size) for _ in range(tables)]
            summed = tensor if is_own else self.new_gradient(name, 0)  # it shares the tables' memory
            # If the forward has the same zeros, one operator makes both, and the partitioner saves them.
            same = self.known.get((0, self.typed(name).shape, dtype if is_own else FLOAT32))
            made = same.made if same else ()
            for table in zeros:
                self.add_back(of, Loop, (table,), made, count, role="base", is_alone=True)
            if is_own:
                self.joint.lies_in[zeros[0]] = tensor
            parts = {table: {summed: rows * each} for table in zeros}
            reads = (*of.incoming, *indices, *zeros)
            more: dict[str, Any] = {"role": "adding", "recomputable": False, "moved": frozenset(reads)}
            self.add_back(of, Loop, (summed,), reads, rows, parts=parts, **more)
            if not is_own:
                self.add_back(of, Loop, (tensor,), (*zeros, summed), count)


def places_of_interpolation(call: PricedCall, rank: int) -> int:
    """How many elements each result of a linear or cubic interpolation is computed from; 0 for other calls."""
    return next((taps ** (rank - 2) for word, taps in _INTERPOLATED.items() if word in call.node.op), 0)


_FORWARD: Mapping[str, Callable[[CallLowering, Lowered], None]] = {
    "normalisation": rowwise.normalisation,
    "softmax": rowwise.softmax,
    "loss": rowwise.loss,
    "attention": rowwise.attention,
    "convolution": library_calls.convolution,
    "product": library_calls.product,
    "collective": library_calls.exchange,
    "dropout": CallLowering.dropout,
    "pooling": CallLowering.pooling,
    "reduction": CallLowering.reduction,
    "scan": CallLowering.scan,
    "resampling": CallLowering.resampling,
}
_GRADIENTS: Mapping[str, Callable[[CallLowering, Lowered], None]] = {
    "product": library_calls.product_gradient,
    # The gradients of rows are summed into a table of zeros.
    "gather": lambda low, of: low.sum_into_zeros(of, 1, low.read(of)),
    "resampling": CallLowering.resampling_gradient,
    "convolution": library_calls.convolution_gradient,
    "attention": rowwise.attention_gradient,
    "normalisation": rowwise.normalisation_gradient,
    "softmax": rowwise.softmax_gradient,
}
