"""The joint graph of a program's forward and backward, as AOTAutograd hands it to the partitioner, and what builds it.

Operators are finer than the calls of an export: a normalisation is a reduction and a pointwise operator; attention that no
fused kernel accepts is two products with a softmax between them. Views are no operators: tensors are named by their memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from graphflops.base.record import Record
from graphflops.devices import Platform
from graphflops.dims import Dim, evaluate, prod
from graphflops.kernels.buffers import gradient_kernels
from graphflops.kernels.choices import limits
from graphflops.memory.on_gpu import OnGpu
from graphflops.passes.program import Backward, PricedCall
from graphflops.report import HeldKind
from graphflops.tensor import TensorType, grouped

Names = Iterable[str]  # of tensors
Made = Sequence[str] | Mapping[str, Dim]
(_UNROLLED,) = limits("inductor_2", "store", "unrolled")
_SOME_SIZE = 97  # for a size without a value, when tensors are compared


class Op(Record, frozen=True):
    """One operator of the joint graph."""

    outputs: tuple[str, ...]  # names of tensors
    reads: tuple[str, ...]
    elements: int  # elements that its kernel loops over
    row: int  # the row of its call
    node: str
    is_gradient: bool = False  # whether it depends on gradients of the results
    # Whether the partitioner may recompute it. If not, it is a kernel of its own there, unless it draws random numbers.
    recomputable: bool = True
    must_recompute: bool = False  # whether a checkpoint recomputes it
    parts: Mapping[str, Mapping[str, Dim]] = {}  # by tensor that it reads only in parts, bytes by part
    views: Mapping[str, str] = {}  # by tensor that it reads in another shape or in part: the view
    role: str = ""  # what it does that others of its class do not

    @property
    def is_fusible(self) -> bool:
        """Whether it may share a kernel with other operators."""
        return False


class Loop(Op, frozen=True):
    """An operator for which inductor generates a loop; if it is no `Reduction`, each element is computed by itself."""

    moved: frozenset[str] = frozenset()  # tensors that it reads at other places than it writes
    reads_twice: bool = False  # whether its formula contains an operand more than once
    window: int = 1  # elements that each of its elements is computed from
    part_bytes: Dim = 0  # bytes of its result that it writes, if others write the rest
    instructions: int = 2  # per element, as inductor counts them
    numbers: tuple[float, ...] = ()  # constants among its instructions; a kernel has each only once
    computes: tuple[Loop, ...] = ()  # operators that its kernel computes for it without storing their results
    role: Literal[
        "",
        "random",  # it draws random numbers
        "placing",  # it reads elements at places that it computes
        "apart",  # what its threads write next to each other lies in different sectors
        "join",  # it concatenates tensors
        "base",  # its result is stored, and something is then added to it in place
        "adding",  # it adds to what it reads, at places that indices name; no reader of its result fuses with it
        "sum",  # a sum of what it reads
        "moments",  # a reduction to means and variances
        "parts",  # a reduction of what its earlier step leaves; of moments, in blocks of many columns
        "parts.moments",
        "parts.wide",
        "parts.moments.wide",
        "scan",  # a reduction that keeps all elements
    ] = ""
    is_alone: bool = False  # whether it fuses with nothing
    is_across: bool = False  # whether it transposes, and so loops over tiles
    is_repeating: bool = False  # whether it copies an expanded tensor: it loops over the repeats as an axis

    @property
    def is_fusible(self) -> bool:
        return not self.is_alone


class Reduction(Loop, frozen=True):
    """A loop over rows, each of which leaves one element."""

    kept: int = 1  # elements of its result
    is_inner: bool = True  # whether it is along the last axis
    in_order: bool = True  # whether a loop over its elements goes row by row


class Extern(Op, frozen=True):
    """A kernel of a library."""

    role: Literal[
        "",
        "product",  # a product of matrices that adds nothing yet
        "product and sum",  # a product that adds the last tensor that it reads
        "product and bias",  # the same for a bias, which kernels that read the result may add instead
        "exchange",  # a collective: no result is written over its own
        "joined",  # a join without a kernel: the kernels that make its parts write them into place
    ] = ""
    workspace: Dim = 0  # bytes during the operator alone
    # Where its results are: in memory that freed tensors may have had, in memory that it allocates, over what it reads.
    into: Literal["any", "own", "operand"] = "any"
    is_padded: bool = False  # whether a product's sizes are rounded up to what tensor cores load


class JointGraph(Struct):
    """Operators in program order, those of the forward first."""

    values: Mapping[str, int]  # sizes by symbol
    platform: Platform  # of the device; it decides how inductor splits reductions
    ops: list[Op] = []
    sizes: dict[str, Dim] = {}  # bytes by tensor; 0 for weights, which are not the program's own
    inputs: dict[str, Dim] = {}  # bytes of the inputs, with weights
    # The name and kind of a tensor in a timeline, unless they are its own name and "value".
    labels: dict[str, tuple[str, HeldKind]] = {}
    results: dict[str, None] = {}  # tensors that the forward returns
    gradients: dict[str, None] = {}  # tensors that the backward returns
    tangents: dict[str, None] = {}  # gradients of the results, which the backward is given
    # By part of a tensor that is written separately, or by tensor that is then added to in place: the whole tensor.
    lies_in: dict[str, str] = {}
    written: set[str] = set()  # inputs of which a part is overwritten where it lies
    channels_last: bool = False  # whether its images are
    items: set[str] = set()  # views of a call that returns several, and views of those
    numbers: dict[Dim, int] = {}
    # By number and type that calls fill in: the places of their operators, which inductor merges into one.
    constants: dict[str, list[int]] = {}

    def number(self, size: Dim) -> int:
        """A size as a number: an open size has its example, or else a fixed value."""
        if isinstance(size, int):
            return size
        if size not in self.numbers:
            names = dict.fromkeys(size.symbols, _SOME_SIZE)
            self.numbers[size] = evaluate(size, {**names, **self.values}) or 0
        return self.numbers[size]

    def bytes(self, name: str) -> int:
        """Bytes of a tensor as a number; 0 if it is not the program's own."""
        return self.number(self.sizes.get(name, 0))

    def without_bias(self, out: str) -> str:
        """A new tensor for a library's result, to which a bias is added afterwards."""
        inner = f"{out} without bias"
        self.labels[inner] = (out, "value")
        return inner

    def add(self, op: Op) -> None:
        """Append an operator; a reduction of a few elements is unrolled into a pointwise one."""
        if isinstance(op, Reduction) and op.elements < _UNROLLED * max(op.kept, 1):
            fields = {name: getattr(op, name) for name in Loop.__struct_fields__}
            op = Loop(**(fields | {"elements": op.kept, "role": ""}))
        self.ops.append(op)


def users_of(ops: Iterable[Op]) -> dict[str, list[Op]]:
    """By tensor, the operators that read it, in order."""
    ops = [*ops]
    return {name: [ops[place] for place in places] for name, places in places_of(ops)[1].items()}


def places_of(ops: Iterable[Op]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """By tensor, the place of the operator that makes it; and by tensor, the places of the operators that read it."""
    pairs = [*enumerate(ops)]
    makers = {name: place for place, op in pairs for name in op.outputs}
    return makers, grouped((name, place) for place, op in pairs for name in op.reads)


# Kinds of calls that read their operands at other places than they write.
_PLACING = frozenset({"movement", "gather", "resampling", "pooling"})
_MOVING = _PLACING | {"view", "identity"}
_WITH_NUMBERS = frozenset({"elementwise", "comparison", "logic"})  # kinds whose constants inductor counts
_DIFFERING = frozenset({"random", "dropout", "attention", "collective"})  # kinds whose equal calls differ
_EMPTY, _FILLED = ("empty", "empty_like", "new_empty"), {"zeros": 0, "ones": 1}
# About how many instructions per element the pointwise operator of a call has; 1 for other kinds.
_INSTRUCTIONS = {"normalisation": 10, "softmax": 3, "dropout": 3, "loss": 6, "resampling": 12}
_INSTRUCTIONS |= {"gather": 0, "identity": 0, "view": 0}
_INSTRUCTIONS_OF_GATE = 6


class Lowered(Struct):
    """A call, and what it is lowered to."""

    call: PricedCall
    names: Sequence[str]  # of its operands
    operands: Sequence[str]  # their tensors
    parts: Mapping[str, Mapping[str, Dim]]  # by operand that it reads only in parts, bytes by part
    made: Sequence[str] = ()  # results with memory of their own
    results: Sequence[str] = ()  # the tensors of its results
    views: Mapping[str, str] = {}  # by operand that it reads only as a view: the view
    beside: dict[str, str] = {}  # by use, what its gradient reads beside operands and results
    incoming: Sequence[str] = ()  # gradients of its results
    fresh: dict[int, str] = {}  # by place, the gradients of operands that it computes

    @property
    def gradient(self) -> Backward:
        assert self.call.gradient is not None
        return self.call.gradient

    def op(self, made: type[Op], outputs: Names, reads: Names, count: int, **more: Any) -> Op:
        given = tuple(dict.fromkeys(reads))
        more.setdefault("parts", {name: self.parts[name] for name in given if name in self.parts})
        views = {name: self.views[name] for name in given if name in self.views}
        more["views"] = more.get("views", {}) | views
        return made(tuple(outputs), given, count, self.call.row, self.call.node.name, **more)


def instructions(call: PricedCall) -> int:
    """Instructions per element of a call's result, as inductor counts them, without constants."""
    operator = call.node.operator
    return _INSTRUCTIONS_OF_GATE if operator.has("gate") else _INSTRUCTIONS.get(operator.kind, 1)


def filled_with(call: PricedCall) -> int | float | None:
    """The number that a call fills a new tensor with; None for other calls."""
    word = call.node.operator.name.removeprefix("new_").removesuffix("_like")
    value = call.node.arguments().get("value") if word == "full" else _FILLED.get(word)
    return value if isinstance(value, (int, float)) else None


def _role(call: PricedCall) -> str:
    """The role of the pointwise operator that makes a call's result."""
    operator = call.node.operator
    if operator.name in ("cat", "stack"):
        return "join"
    if operator.name == "add" and call.node.arguments().get("alpha", 1) == 1:
        return "sum"
    return "placing" if operator.kind in _PLACING else "random" if operator.kind == "random" else ""


class Lowering:
    """Appends the operators of calls and of their gradients to a joint graph. execution: the calls with their layouts."""

    def __init__(self, execution: OnGpu, joint: JointGraph) -> None:
        self.joint, self.execution = joint, execution
        self.values, self.training, self.typed = execution.values, execution.training, execution.layouts.typed
        self.root = execution.owners()
        self.recomputed = execution.recomputed if self.training else {}
        self.pointwise: set[str] = set()  # results of pointwise operators
        # By owner of memory: its tensor, or the tensor that the last in-place call made of it.
        self.version: dict[str, str] = {}
        self.view: dict[str, str] = {}  # by value that is a view: the first equal view
        # By operator, attributes and operands: the first such call.
        self.known: dict[tuple[Any, ...], Lowered] = {}
        self.gradient_of: dict[str, str] = {}  # by value, the tensor that is its gradient
        self.parameters: dict[str, str] = {}  # by stored input, the first that shares its memory
        self.gradients = 0  # their number so far
        calls = [*reversed(execution.calls)]
        self.readers = grouped((name, call) for call in calls for name in call.uses)
        self.maker = {name: call.node.name for call in calls for name in call.node.outputs}  # by result
        # Values that convolutions read, also through other calls than reductions: their rows are never padded
        # (`mark_nodes_dislike_padding` of torch/_inductor/graph.py).
        self.dense: set[str] = set()
        for call in calls:
            kind = call.node.operator.kind
            is_read = not self.dense.isdisjoint(filter(None, call.node.outputs))
            if kind == "convolution" or (is_read and kind != "reduction"):
                self.dense.update(call.uses)

    def tensor(self, name: str) -> str:
        """The tensor that a value is or is a view of."""
        owner = self.root.get(name, name)
        return self.version.get(owner, owner)

    def key(self, of: Lowered) -> tuple[Any, ...]:
        """A key that is equal for calls that compute the same. Only the partitioner merges them, so without gradients only
        views have equal keys. Calls that a checkpoint recomputes or that draw random numbers never do.
        """
        call, operator, value = of.call, of.call.node.operator, filled_with(of.call)
        is_own = operator.kind in _DIFFERING or operator.name in _EMPTY or call.node.name in self.recomputed
        if call.form is None or is_own or (of.made and not self.training):
            return (call.node.name,)
        if value is not None:
            return value, self.typed(of.made[0]).shape, self.typed(of.made[0]).dtype
        return call.form, *[(self.tensor(name), self.view.get(name)) for name in of.names]

    def elements(self, name: str | None) -> int:
        value = self.values.get(name or "")
        return self.joint.number(prod(value.shape)) if isinstance(value, TensorType) else 0

    def nbytes(self, name: str) -> Dim:
        """Bytes of a value; a copy of a broadcast tensor has all elements."""
        value = self.values.get(name)
        if not isinstance(value, TensorType):
            return 0
        return value.like().nbytes if name in self.execution.layouts.copies else value.nbytes

    def add(
        self, of: Lowered, kind: type[Op], outputs: Made, reads: Names, count: int | None = None, **more: Any
    ) -> None:
        """Append one operator of a call. outputs: with sizes, or values whose sizes are known. count: of its elements."""
        call, operator = of.call, of.call.node.operator
        sizes = outputs if isinstance(outputs, dict) else {x: self.nbytes(x) for x in outputs}
        self.joint.sizes.update(sizes)
        if count is None:
            count = max(map(self.elements, call.node.outputs), default=0)
        own: dict[str, Any] = {"must_recompute": call.node.name in self.recomputed}
        if kind is Extern:
            own["recomputable"] = False
        else:
            own["instructions"] = instructions(call)
            if operator.kind in _WITH_NUMBERS:
                own["numbers"] = tuple([x for x in call.node.arguments().values() if type(x) in (int, float)])
            if operator.kind in _MOVING and call.node.outputs[0] in outputs:
                own["moved"] = frozenset(reads)
        if kind is Loop:
            self.pointwise.update(outputs)
            if call.node.outputs[0] in outputs:
                own["role"] = _role(call)
        self.joint.add(of.op(kind, outputs, reads, count, **(own | more)))

    def add_back(
        self, of: Lowered, kind: type[Op], outputs: Names, reads: Names, count: int | None = None, **more: Any
    ) -> None:
        """Append one operator of a call's gradients. outputs: tensors that `new_gradient` made."""
        if count is None:
            count = max(map(self.elements, (*of.call.node.outputs, *of.names)), default=0)
        if kind is not Extern:
            more = {"instructions": 2 * instructions(of.call), **more}
        self.joint.add(of.op(kind, outputs, reads, count, **({"is_gradient": True} | more)))

    def new_gradient(self, name: str, size: Dim) -> str:
        """A new tensor for a gradient of a value."""
        self.gradients += 1
        tensor = f"gradient {self.gradients} of {name}"
        self.joint.sizes[tensor] = size
        self.joint.labels[tensor] = (name, "gradient")
        return tensor

    def save(self, of: Lowered, use: str, tensor: str) -> str:
        """Note that a call's gradient reads this tensor beside operands and results; return its name."""
        of.beside[use] = tensor
        self.joint.labels[tensor] = (of.call.node.name, "saved")
        return tensor

    def copied(
        self, of: Lowered, x: str, size: Dim, use: str, value: str, bits: int = 0, name: str = "", **more: Any
    ) -> str:
        """Append a copy of an operand that a library's kernel needs in another layout.

        value: the value that is copied; "" for all of x. bits: of an element, without a value. name: if others share it.
        """
        elements = self.joint.number(size) * 8 // (bits or self.typed(value).dtype.bits)
        name = name or f"{of.call.node.name} {use}"
        if name in self.joint.sizes:
            return name
        parts, strides = of.parts.get(x, {}), self.execution.layouts.of(value) if value else ()
        if value in parts:
            more["parts"] = {x: {value: parts[value]}}
        if strides and self.typed(value).shape[-1] != 1:
            more["is_across"] = strides[-1] != 1
        self.add(of, Loop, {name: size}, (x,), elements, moved=frozenset((x,)), **more)
        return name

    def extern(self, of: Lowered) -> None:
        """A library kernel, or one that does not fuse."""
        kept = of.call.gradient.beside_bytes if of.call.gradient is not None else 0
        sizes = {name: self.nbytes(name) for name in of.made}
        if kept != 0:
            sizes[self.save(of, "kept", f"{of.call.node.name} kept")] = kept
        own = 0 if kept != 0 else of.call.estimate.workspace
        self.add(of, Extern, sizes, of.operands, workspace=own, into="own")

    def read(self, of: Lowered, place: int | None = None) -> list[str]:
        """Operands and results that the gradients of a call read, or that of the operand at a place."""
        operands = [(of.names[each], of.operands[each]) for each in sorted(of.gradient.operands)]
        results = [of.results[each] for each in sorted(of.gradient.results) if each < len(of.results)]
        found = None if place is None else gradient_kernels(of.call, place, self.values)
        if found is None:
            return [tensor for _, tensor in operands] + results
        named = {name for launch in found.launches for name in launch.leaves}
        used = {found.named[name] for name in named & found.named.keys()}
        return [tensor for name, tensor in operands if name in used] + results * ("out" in named)
