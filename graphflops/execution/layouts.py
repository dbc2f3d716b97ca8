"""How tensors lie in memory while a program runs eagerly: the strides of every value.

An export records operators, not whether they copy: `contiguous` and `reshape` copy only if their operand is not contiguous
enough. As in PyTorch, views change strides, an elementwise result has the order of axes of its first operand of the same
shape, an attention's result that of its query, and every other result is row-major.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphflops.attention.kernel import Choice, Operand, Problem, attention_kernel
from graphflops.devices import Platform
from graphflops.dims import Dim
from graphflops.execution.strides import (
    Forms,
    Laid,
    Strides,
    Values,
    channels_last,
    dense_as,
    has_channels_last,
    is_contiguous,
    regrouped,
    repeated,
    row_major,
    size_hint,
)
from graphflops.graph import Ref, Step, tensor_type
from graphflops.kernels.kernel import HALF, SEQUENCE_RANK, SINGLE
from graphflops.ops import Op
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

_BATCH_FIRST, _STEPS_FIRST = "#8", (1, 0, 2)  # an argument by place; cuDNN stores steps outside the batch
_HEADS_INSIDE = (0, 2, 1, 3)  # order of axes in which the efficient kernel stores heads inside rows
# Their results are channels last where their operand is (`suggest_memory_format` in their kernels).
_KEEPING_CHANNELS_LAST = frozenset({"convolution", "pooling", "resampling"})  # kinds
_ALSO_KEEPING = frozenset({"batch_norm", "pad"})  # operators
# Operators whose results have the operand's order of axes.
_IN_ORDER_OF_OPERAND = frozenset(
    {"flip", "sort", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like"}
)
# They change a row-major copy of the operand (TensorAdvancedIndexing.cpp of ATen).
_COPIED_IN_ORDER = frozenset({"masked_fill", "masked_scatter"})
_ELEMENTWISE = frozenset({"elementwise", "comparison", "logic", "cast", "dropout"})  # kinds
_MAYBE_COPIES = frozenset({"view", "identity"})  # kinds


def is_normed_in_order(operator: Op, x: TensorType) -> bool:
    """Whether cuDNN normalises sequences: it reads and writes them row-major. 16-bit sequences go to another kernel."""
    return operator.name == "batch_norm" and x.rank == SEQUENCE_RANK and x.dtype.bits > HALF


class Layouts:
    """The strides of every value of a graph: those that operators give, or those that a step recorded."""

    def __init__(
        self,
        calls: Sequence[PricedCall],
        values: Values,
        platform: Platform,  # of the device; it decides the layouts of attentions' results
        orders: Mapping[str, Sequence[int]] | None = None,
        recorded: Step | None = None,
    ) -> None:
        self.values, self.platform, self.recorded = {**values}, platform, recorded
        self.known: dict[str, Strides] = {}
        for name, order in (orders or {}).items():
            if isinstance(value := values.get(name), TensorType) and value.rank == len(order):
                self.known[name] = row_major(value.shape, order)
        if recorded is not None:
            self.known = {name: recorded.strides[name] for name in recorded.strides.keys() & values.keys()}
        self.copies: set[str] = set()  # results of `reshape` that are copies
        self.views: set[str] = set()  # results of `contiguous` that are no copies
        self.wrong: list[PricedCall] = []  # views of a step with other strides than their operators give
        self.forms = Forms(values)
        for name in self.known:
            self.forms.kinds[name] = self.kind(name)
        self.extend(calls, {})

    def extend(self, calls: Sequence[PricedCall], made: Values) -> None:
        """Note the layouts of what further calls make. made: those of the values that were not known before."""
        if made:
            self.values.update(made)
            self.forms.add(made)
        for call in calls:
            if self.recorded is None:
                self.follow(call)
            elif call.node.operator.kind in _MAYBE_COPIES:
                views = self.recorded.views.intersection(call.node.outputs)
                self.views.update(views)
                if any(not self.is_laid_so(call, name) for name in views):
                    self.wrong.append(call)
            if self.recorded is not None:
                is_copy = self.is_copy(next(filter(None, call.node.outputs), None))
                self.forms.results(call, lambda _: (), is_copy)  # they lie as recorded

    def typed(self, name: str) -> TensorType:
        value = self.values[name]
        assert isinstance(value, TensorType)
        return value

    def of(self, name: str) -> Strides:
        """The strides of a value; inputs without a recorded order are row-major."""
        return self.known[name] if name in self.known else row_major(self.typed(name).shape)

    def follow(self, call: PricedCall) -> None:
        """Note the layouts of a call's results, which are computed once for all calls of a form."""
        for name, laid in zip(call.node.outputs, self.forms.results(call, self.results), strict=True):
            if name is not None and laid is not None:
                self.known[name], self.forms.kinds[name] = laid.strides, laid.kind
                if laid.is_copy is not None:
                    (self.copies if laid.is_copy else self.views).add(name)

    def results(self, call: PricedCall) -> list[Laid | None]:
        """The layout of each result that is a tensor; None for the others."""
        arguments = call.node.arguments()
        x = self.operand(arguments, "x", "a")
        found: list[Laid | None] = []
        for name in call.node.outputs:
            out = self.values.get(name) if name is not None else None
            if name is None or not isinstance(out, TensorType):
                found.append(None)
                continue
            strides = self.result(call, arguments, x, name, out)
            self.known[name] = row_major(out.shape) if strides is None else strides
            found.append(Laid(self.known[name], self.kind(name), self.is_copy(name)))
        return found

    def is_laid_so(self, call: PricedCall, name: str) -> bool:
        """Whether a view of a recorded step has the strides that its operator would give it."""
        arguments, out = call.node.arguments(), self.typed(name)
        x, operator = self.operand(arguments, "x", "a"), call.node.operator.name
        if operator == "as_strided":
            laid: Any = arguments.get("strides")
        else:
            laid = self.result(call, arguments, x, name, out)
        pairs = [*zip(out.shape, laid or row_major(out.shape), self.known[name], strict=False)]
        is_right = all(ours == theirs for size, ours, theirs in pairs if size != 1)
        return 0 in out.shape or (is_right and len(pairs) == out.rank)

    def is_copy(self, name: str | None) -> bool | None:
        """Whether the layout operator that makes a value copies; None if the call's estimate decides."""
        return True if name in self.copies else False if name in self.views else None

    def kind(self, name: str) -> int:
        """The number of a tensor's type and strides; for row-major strides, that of its type."""
        strides = self.known[name]
        is_plain = strides == row_major(self.typed(name).shape)
        return self.forms.types[name] if is_plain else self.forms.kind(name, strides)

    def operand(self, arguments: Mapping[str, Any], *names: str) -> str:
        """Name of the first of these arguments that is a tensor; "" if none is."""
        for name in names:
            argument = arguments.get(name)
            if isinstance(argument, Ref) and isinstance(self.values.get(argument.name), TensorType):
                return argument.name
        return ""

    def result(
        self, call: PricedCall, arguments: Mapping[str, Any], x: str, name: str, out: TensorType
    ) -> Strides | None:
        """The strides of one result; None for row-major ones."""
        operator = call.node.operator
        if operator.name in _RESHAPES and x:
            # A view if the merged axes are adjacent in memory, else a copy.
            strides = regrouped(self.typed(x).shape, self.of(x), out.shape)
            if strides is None:
                self.copies.add(name)
            return strides
        if operator.name in _VIEWS and x and call.estimate.alias:
            return _viewed(operator, arguments, self.typed(x).shape, self.of(x), out)
        if operator.name in ("identity", "detach") and x:
            strides = self.of(x)
            if operator.word != "contiguous":  # `clone` keeps the order of axes
                return self.as_operand(x, out) if operator.word.startswith(("clone", "_lazy")) else strides
            if is_contiguous(out.shape, strides):
                self.views.add(name)
            return None  # else it copies
        if operator.name in _IN_ORDER_OF_OPERAND and x:
            return self.as_operand(x, out)
        if operator.kind == "attention":
            return self.attention(call, arguments, out)
        is_last = x and out.rank == self.typed(x).rank and self.keeps_channels_last(call, x)
        joins = operator.name == "cat"
        if is_last or (joins and all(map(self.has_channels_last, call.tensors(self.values)))):
            return row_major(out.shape, channels_last(out.rank))
        if operator.kind == "recurrent" and arguments.get(_BATCH_FIRST) is True:
            is_sequence = out.rank == len(_STEPS_FIRST) and name == call.node.outputs[0]
            return row_major(out.shape, _STEPS_FIRST) if is_sequence else None
        is_copy = operator.name in _COPIED_IN_ORDER and not operator.mutates
        if operator.kind not in _ELEMENTWISE or is_copy:
            return None
        return self.elementwise(call.uses[:1] if operator.kind == "cast" else call.uses, out)

    def attention(self, call: PricedCall, arguments: Mapping[str, Any], out: TensorType) -> Strides | None:
        """The efficient kernel stores heads inside rows; a result of the others has its query's order of axes."""
        query = self.operand(arguments, "query")
        if out.dtype.bits == SINGLE and out.rank == len(_HEADS_INSIDE):
            return row_major(out.shape, _HEADS_INSIDE)
        return self.as_operand(query, out)

    def keeps_channels_last(self, call: PricedCall, x: str) -> bool:
        """Whether a result is channels last; for convolutions, if the operand or the weight is."""
        operator = call.node.operator
        if operator.kind not in _KEEPING_CHANNELS_LAST and operator.name not in _ALSO_KEEPING:
            return False
        is_in_order = operator.kind == "convolution" or operator.name == "pad"
        is_in_order = is_in_order or is_normed_in_order(operator, self.typed(x))
        if self.typed(x).rank == SEQUENCE_RANK and is_in_order:
            return False
        read = call.tensors(self.values) if operator.kind == "convolution" else [x]
        return any(self.has_channels_last(name) for name in read)

    def has_channels_last(self, name: str) -> bool:
        return has_channels_last(self.typed(name).shape, self.of(name))

    def elementwise(self, names: Sequence[str], out: TensorType) -> Strides:
        """The strides of an elementwise call's result: its axes are ordered by the strides of the operands.

        Two axes that the first operand does not order, because it is broadcast along one of them, are ordered by the next
        operand (`reorder_dimensions` in aten/src/ATen/TensorIterator.cpp). Operands with more axes than the result are
        attributes, such as the bounds of an ONNX Clip.
        """
        typed = [(name, x) for name in names if isinstance(x := self.values.get(name), TensorType)]
        operands = [repeated(x.shape, self.of(name), out.shape) for name, x in typed if x.rank <= out.rank]
        return _ordered(operands, out.shape)

    def as_operand(self, name: str, out: TensorType) -> Strides | None:
        """Dense strides with the order of axes of an operand that has the same rank and shape, but for the last size."""
        value = self.values.get(name)
        is_alike = isinstance(value, TensorType) and value.rank == out.rank
        if not is_alike or self.typed(name).shape[:-1] != out.shape[:-1]:
            return None
        return dense_as(self.of(name), out.shape)


def _ordered(operands: Sequence[Strides], shape: Sequence[Dim]) -> Strides:
    """The strides of a result whose axes are ordered by operands with these strides."""
    numbers = [[*map(size_hint, strides)] for strides in operands]
    inner_first = [*reversed(range(len(shape)))]
    for place in range(1, len(shape)):
        for before in reversed(range(place)):
            order = _compared(inner_first[before], inner_first[place], numbers, shape)
            if order < 0:
                break
            if order > 0:
                inner_first[before], inner_first[place] = inner_first[place], inner_first[before]
                place = before
    return row_major(shape, inner_first[::-1])


def _compared(inner: int, outer: int, operands: Sequence[Sequence[int]], shape: Sequence[Dim]) -> int:
    """Negative if `inner` stays inside `outer`, positive if they change places, 0 if no operand orders them."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if a == 0 or b == 0:
            continue
        if a != b:
            return a - b
        if size_hint(shape[inner]) > size_hint(shape[outer]):
            return 1
    return 0


_RESHAPES = frozenset({"reshape", "flatten", "unflatten", "ravel"})
_CUTTING = frozenset({"slice", "narrow", "split", "chunk"})
_SELECTING = frozenset({"select", "unbind"})
_VIEWS = frozenset(
    {*_CUTTING, *_SELECTING, "permute", "transpose", "t", "movedim"}
    | {"squeeze", "unsqueeze", "expand", "diagonal", "unfold"}
)


def _viewed(
    operator: Op, arguments: Mapping[str, Any], shape: Sequence[Dim], strides: Strides, out: TensorType
) -> Strides | None:
    """Strides of a view: axes are permuted, cut, removed or broadcast, or axes of size 1 are added or removed."""
    axis, step = arguments.get("axis", 0), arguments.get("step", 1)
    if (order := operator.turned(arguments, len(strides))) is not None:
        return tuple([strides[each] for each in order])
    if operator.name in _SELECTING:
        axis %= len(shape)
        return (*strides[:axis], *strides[axis + 1 :])
    if operator.name in _CUTTING:
        if step == 1 or not isinstance(axis, int) or not isinstance(step, int) or not strides:
            return strides
        axis %= len(strides)
        return (*strides[:axis], strides[axis] * step, *strides[axis + 1 :])
    if operator.name == "unsqueeze" and isinstance(at := arguments.get("axes"), int):
        at %= len(shape) + 1
        return (*strides[:at], shape[at] * strides[at] if at < len(shape) else 1, *strides[at:])
    if operator.name == "diagonal":  # a step along both axes at once; the new axis is the last
        a, b = (arguments.get(name, place) % len(strides) for place, name in enumerate(("axis1", "axis2")))
        rest = [stride for place, stride in enumerate(strides) if place not in (a, b)]
        return (*rest, strides[a] + strides[b])
    if operator.name == "unfold" and strides:  # windows, whose own axis is the last
        axis %= len(strides)
        return (*strides[:axis], strides[axis] * step, *strides[axis + 1 :], strides[axis])
    lay_out = repeated if operator.name == "expand" else regrouped
    return lay_out(shape, strides, out.shape)


def chosen_kernel(call: PricedCall, layouts: Layouts, training: bool) -> tuple[Problem, Choice] | None:
    """The problem and the kernel of a call of the operator that chooses its kernel; None for other calls."""
    if call.node.operator.name != "scaled_dot_product_attention" or "._" in call.node.op:
        return None
    problem = attention_problem(call, layouts, training)
    return None if problem is None else (problem, attention_kernel(problem, layouts.platform))


def attention_problem(call: PricedCall, layouts: Layouts, training: bool) -> Problem | None:
    """A call of scaled_dot_product_attention with the strides of its operands; None if an operand is not known."""
    arguments = call.node.arguments()
    operands: dict[str, Operand] = {}
    for name in ("query", "key", "value", "mask"):
        argument = arguments.get(name)
        if isinstance(argument, Ref) and (type_ := tensor_type(argument, layouts.values)) is not None:
            operands[name] = Operand(type_, layouts.of(argument.name))
    mask, dropout = operands.pop("mask", None), arguments.get("dropout_p")
    if len(operands) < 3 or min(operand.type.rank for operand in operands.values()) < 3:
        return None
    return Problem(
        *(operands["query"], operands["key"], operands["value"], mask),
        dropout=float(dropout) if isinstance(dropout, (int, float)) else 0.0,
        is_causal=arguments.get("is_causal") is True,
        is_grouped=arguments.get("enable_gqa") is True,
        wants_gradient=training and call.gradient is not None,
    )
