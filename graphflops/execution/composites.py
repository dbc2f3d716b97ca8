"""Operators that ATen computes by calling other operators: those are the calls that run.

A composite is written as ATen's own function, with `t` for `at`: `t.mul(a, b)` notes a call. Layouts, what is saved for
backward, kernels and buffers follow from the noted calls. As in C++, a result lives until its function returns. Autograd
sees the calls of most composites (CompositeImplicitAutograd). It sees none of the calls of an operator that has a gradient
of its own: such an operator has one function for its kernels (`kernel`) and one for its gradients (`gradient`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Union

from graphflops.base.record import Record, replace
from graphflops.cost import Value
from graphflops.dims import Dim, dim_max, total
from graphflops.errors import GraphflopsError, RuleError
from graphflops.execution.strides import Values, size_hint
from graphflops.graph import Node, Ref
from graphflops.ops import operator
from graphflops.passes.gradients import reached, without_gradient
from graphflops.passes.price_call import Priced, key_of, price_call
from graphflops.passes.program import PricedCall, owners
from graphflops.rules.registry import find
from graphflops.tensor import INT64, TensorType, mapped

Composite = Callable[..., Any]
Function = TypeVar("Function", bound=Composite)
Prices = dict[tuple[Any, ...], Priced]  # of the calls that composites have made, by operator and operands

COMPOSITES: dict[str, Composite] = {}
KERNELS: dict[str, Composite] = {}
GRADIENTS: dict[str, Composite] = {}
MEAN, SUM = 1, 2  # ATen's numbers for how a loss is reduced
_FORMS = 2**32  # more than the calls of any composite


def _registering(functions: dict[str, Composite]) -> Callable[..., Callable[[Function], Function]]:
    """A decorator that registers a function of ATen under names of its operators, or ONNX's (`name` or `name.overload`)."""

    def named(*names: str) -> Callable[[Function], Function]:
        return lambda function: functions.update(dict.fromkeys(names, function)) or function

    return named


composite = _registering(COMPOSITES)
kernel = _registering(KERNELS)
gradient = _registering(GRADIENTS)


class Operand(Record, frozen=True):
    """A tensor that the calls of a composite read or make."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def is_wanted(self) -> bool:
        return self.type.requires_grad

    def without_gradient(self) -> Operand:
        """The operand as code sees it that records no gradients."""
        return replace(self, type=replace(self.type, requires_grad=False))


Given = Union[Operand, None]  # an operand that may be missing
_NONE = Operand("", TensorType((), INT64))


class Calls:
    """Notes the calls that a composite makes. of: the composite's own call. records: whether autograd records the calls."""

    def __init__(
        self, of: PricedCall, values: Values, *, records: bool = True, prices: Prices | None = None
    ) -> None:
        self.of, self.records = of, records and of.gradient is not None
        self.prices = {} if prices is None else prices
        self.calls: list[PricedCall] = []
        self.values: dict[str, Value] = {}  # the results of the calls
        # The results of `of`, their gradients, and the first of each.
        outputs = [(name or "", values.get(name or "")) for name in of.node.outputs]
        self.results = [Operand(name, value) for name, value in outputs if isinstance(value, TensorType)]
        self.gradients = [Operand(f"{made.name}/gradient", made.type.like()) for made in self.results]
        self.out, self.g = (self.results[0], self.gradients[0]) if self.results else (_NONE, _NONE)
        gradients: dict[str, Value] = {made.name: made.type for made in self.gradients}
        self.known: Values = ChainMap(self.values, gradients, values)  # type: ignore[arg-type]
        self.until: dict[str, int] = {}  # by value, the place of the last call during which it is held

    def __getattr__(self, word: str) -> Callable[..., Operand]:
        return partial(self.call, f"aten.{word}")

    def call(self, op: str, *args: Any, **kwargs: Any) -> Operand:
        """Notes a call and returns its first result. Raises RuleError where it has no price."""
        given = (args, tuple(kwargs.items()))
        types, refs = [_mapped(given, change) for change in (lambda x: x.type, lambda x: Ref(x.name))]
        key = (op, self.records, key_of(types))
        priced = self.prices.get(key)
        if priced is None:
            if (rule := find(op)) is None:
                raise RuleError(op)
            priced = price_call(rule, op, *types, training=self.records)
            self.prices[key] = priced
        if priced.estimate.unknown:
            raise RuleError(priced.estimate.unknown)
        number, outer = len(self.calls), self.of
        name = f"{outer.node.name}/{number}"
        names = tuple([f"{name}.{place}" for place in range(len(priced.estimate.out))])
        node = replace(outer.node, name=name, op=op, args=refs[0], kwargs=refs[1], outputs=names)
        form = None if outer.form is None else (outer.form + 1) * _FORMS + number
        self.calls.append(PricedCall(node, node.reads(), priced.estimate, priced.gradient, outer.row, form))
        self.values.update(zip(names, priced.estimate.out, strict=True))
        first = priced.estimate.out[0]
        assert isinstance(first, TensorType)
        return Operand(names[0], first)

    def inside(self, function: Composite, *args: Any) -> Operand:
        """The result of another function of ATen, which frees its other values when it returns."""
        known = {*self.values}
        made: Operand = function(self, *args)
        released = self.values.keys() - known - self.until.keys() - {made.name}
        self.until.update(dict.fromkeys(released, len(self.calls) - 1))
        return made

    def reduced(self, loss: Operand, reduction: int) -> Operand:
        """The mean or the sum of a loss, or the loss itself."""
        return self.mean(loss) if reduction == MEAN else self.sum(loss) if reduction == SUM else loss

    def operand(self, ref: Ref) -> Any:
        """A tensor that the composite reads, as an operand; any other value as it is."""
        value = self.known.get(ref.name)
        wanted = value if self.of.gradient is not None else without_gradient(value)
        return Operand(ref.name, wanted) if isinstance(wanted, TensorType) else wanted

    @property
    def arguments(self) -> dict[str, Any]:
        """The composite's arguments by canonical name."""
        return {name: _mapped(value, self.operand) for name, value in self.of.node.arguments().items()}

    def beside(self, results: Dim) -> Dim:
        """Peak bytes of the values that the calls make, minus those of the results."""
        owner = owners(self.calls, self.known)
        made: dict[str, int] = {}
        until: dict[str, int] = {}
        for place, call in enumerate(self.calls):
            for name in call.node.outputs:
                root = owner.get(name or "", name or "")
                made.setdefault(root, place)
                until[root] = max(until.get(root, 0), self.until.get(name or "", len(self.calls)))
        live = [
            total(self.values[x].nbytes for x in made if x in self.values and made[x] <= place <= until[x])  # type: ignore[union-attr]
            for place in range(len(self.calls))
        ]
        return dim_max(0, max(live, key=size_hint, default=0) - results)

    def result(self, made: Operand) -> list[PricedCall]:
        """The calls, with `made` under the name of the composite's result; calls that do not lead to it have no gradient."""
        live = reached(self.calls, self.known, (made.name,))
        pairs = enumerate(self.calls)
        calls = [call if place in live else replace(call, gradient=None) for place, call in pairs]
        last = max(place for place, call in enumerate(calls) if made.name in call.node.outputs)
        node = calls[last].node
        outputs = [self.of.node.outputs[0] if name == made.name else name for name in node.outputs]
        calls[last] = replace(calls[last], node=replace(node, outputs=tuple(outputs)))
        return calls


class Expanded(Record, frozen=True):
    """A program's calls, in which a composite's calls replace it."""

    calls: Sequence[PricedCall]
    values: Values  # with the results of the composites' calls
    until: Mapping[str, int]  # by result or operand of a composite: its last call that holds the value
    outer: Mapping[str, Node]  # by name of a call that a composite makes, the composite
    given: Sequence[tuple[PricedCall, int]]  # the calls before, each with the last place that replaces it


def expanded(
    calls: Sequence[PricedCall], values: Values, prices: Prices | None = None,
    is_unfused: Callable[[PricedCall], bool] = lambda call: False,
    follow: Callable[[Sequence[PricedCall], Values], None] = lambda calls, made: None,
) -> Expanded:  # fmt: skip
    """The calls that run. is_unfused: whether an attention has no kernel of its own; it is asked once `follow` has taken the
    calls before, each time with what those of a composite make.
    """
    functions = {op: _function(COMPOSITES, op) for op in {call.node.op for call in calls}}
    if not any(functions.values()):
        follow(calls, {})
        return Expanded(calls, values, {}, {}, [(call, place) for place, call in enumerate(calls)])
    found, given = list[PricedCall](), list[tuple[PricedCall, int]]()
    made, until, outer = dict(values), dict[str, int](), dict[str, Node]()
    for call in calls:
        function = functions[call.node.op] if len(call.node.outputs) == 1 and call.node.outputs[0] else None
        if function and call.node.operator.kind == "attention" and not is_unfused(call):
            function = None
        inside: Sequence[PricedCall] = (call,)
        own: Values = {}
        if function and (applied := _applied(function, Calls(call, values, prices=prices))):
            inner, result = applied
            inside, own = inner.result(result), inner.values
            first, last = len(found), len(found) + len(inside) - 1
            made.update(own)
            until.update({name: first + inner.until.get(name, last - first) for name in own})
            until.update(dict.fromkeys(call.uses, last))
            outer.update((each.node.name, call.node) for each in inside)
        found += inside
        follow(inside, own)
        given.append((call, len(found) - 1))
    return Expanded(found, made, until, outer, given)


class Inside(Record, frozen=True):
    """The calls that compute an operator or its gradients; autograd sees none of them."""

    calls: Sequence[PricedCall]
    values: Values  # with the results of the calls
    beside: Dim  # peak bytes beside the results


def kernel_calls(call: PricedCall, values: Values) -> Inside | None:
    """The calls that compute an operator; None if it has kernels of its own."""
    return _unseen(KERNELS, call, values, call.estimate.out)


def gradient_calls(call: PricedCall, values: Values) -> Inside | None:
    """The calls that compute the gradients of a call."""
    if call.gradient is None:
        return None
    made = zip(call.gradient.estimate.out, call.gradient.gradients, strict=False)
    return _unseen(GRADIENTS, call, values, [x for x, (_, is_fresh) in made if is_fresh])


def _unseen(
    functions: Mapping[str, Composite], call: PricedCall, values: Values, results: Sequence[Value]
) -> Inside | None:
    function = _function(functions, call.node.op)
    applied = function and _applied(function, Calls(call, values, records=False))
    if not applied:
        return None
    t, _ = applied
    return Inside(t.calls, t.known, t.beside(total(x.nbytes for x in results if isinstance(x, TensorType))))


def _applied(function: Composite, t: Calls) -> tuple[Calls, Any] | None:
    """The calls of ATen's function, and what it returns; None if the function does not take these arguments."""
    if t.of.estimate.unknown:
        return None
    kwargs = {name: _mapped(value, t.operand) for name, value in t.of.node.kwargs}
    try:
        return t, function(t, *_mapped(t.of.node.args, t.operand), **kwargs)
    except (GraphflopsError, TypeError):
        return None


def _function(functions: Mapping[str, Composite], op: str) -> Composite | None:
    """The function registered for an operator's overload, or else for the operator."""
    spelled = operator(op)
    if spelled.dialect not in ("aten", "onnx"):
        return None
    return functions.get(f"{spelled.word}.{spelled.variant}") or functions.get(spelled.word)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """An argument whose tensors are replaced by `change`."""
    return mapped(value, lambda x: change(x) if isinstance(x, (Operand, Ref)) else x)
