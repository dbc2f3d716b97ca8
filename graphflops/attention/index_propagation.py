"""Index propagation: the value of a tensor at one index, from the values of its operands at the indices that follow.

`x.transpose(0, 1)` at (a, b) is `x` at (b, a); `x + y` is the sum of both at the same index. The domain decides what indices
and values are: formulas (`affine`), or arrays of numbers and of intervals (`arrays`).
Operators along whole axes (cumulative sums, reductions, repeats, buckets) are evaluated in numpy.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from graphflops.attention import structure
from graphflops.attention.elementwise import OPTIONS, Function, converted, is_known, primitive
from graphflops.attention.scopes import Domain, Evaluator, Indices, Restriction, Scope, V
from graphflops.base.lazy import numpy as np
from graphflops.errors import GraphflopsError
from graphflops.graph import Ref
from graphflops.tensor import TensorType
from graphflops.view import Step

_REDUCTIONS = {"any": "any", "all": "all", "sum": "sum", "amax": "max", "amin": "min", "prod": "prod"}


def along_axes(p: Evaluator[Any], step: Step, array: Callable[[str], Any]) -> Any:
    """The whole result of one of the operators in WHOLE, given how to compute a whole operand."""
    dtype: Any = p.result_type(step)

    def whole(argument: Any) -> Any:
        """An operand as an array, or as the number that it is; ValueError if it is not known."""
        found = array(argument.name) if isinstance(argument, Ref) and p.type_of(argument) else None
        found = p.number(argument) if found is None else found
        if found is None:
            raise ValueError
        return found

    return converted(_FUNCTIONS[step.operator.name](p, step, whole), dtype)


def _axes(p: Evaluator[Any], step: Step, name: str) -> Any:
    """The axes that a call works along; None for all."""
    given = p.number(step.argument(name))
    return None if given == () else given


def _cumsum(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    array, axis = whole(step.argument("x")), _axes(p, step, "axis")
    array = np.flip(array, axis) if step.argument("reverse", 0) else array
    found = np.cumsum(array, axis)
    found = found - array if step.argument("exclusive", 0) else found
    return np.flip(found, axis) if step.argument("reverse", 0) else found


def _reduced(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    keeps = step.argument("keep", int(step.operator.is_onnx))
    reduce = getattr(np, _REDUCTIONS[step.operator.name])
    return reduce(whole(step.argument("x")), axis=_axes(p, step, "axes"), keepdims=bool(keeps))


def _repeated(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    times = whole(step.argument("repeats", 1))
    return np.repeat(whole(step.argument("x")), times, p.number(step.argument("axis")))


def _bucket(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    """For each number, the place of the range between given edges that contains it."""
    edges = whole(step.argument("edges"))
    if edges.ndim != 1 or step.argument("sorter") is not None:
        raise ValueError
    right = bool(step.argument("right", False)) or step.argument("side") == "right"
    return np.searchsorted(edges, whole(step.argument("x")), side="right" if right else "left")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cumsum": _cumsum, **dict.fromkeys(_REDUCTIONS, _reduced), "repeat_interleave": _repeated,
    "repeat_indices": lambda p, step, whole: np.repeat(
        np.arange(len(times := whole(step.argument("repeats")))), times
    ),
    "roll": lambda p, step, whole: np.roll(
        whole(step.argument("x")), p.number(step.argument("shifts")), _axes(p, step, "axes")
    ),
    "bucketize": _bucket, "searchsorted": _bucket,
}  # fmt: skip
WHOLE = frozenset(_FUNCTIONS)


# Whatever a file contains, it is never wrong not to follow a value.
NOT_FOLLOWED = (ArithmeticError, AttributeError, GraphflopsError, LookupError, TypeError, ValueError)
_DEEPEST = 80  # steps between a mask and what it consists of
_ELEMENTWISE = ("elementwise", "comparison", "logic", "cast")


def is_followed(step: Step) -> bool:
    """Whether values are propagated through a step."""
    op = step.operator
    computed = op.name in WHOLE or (op.kind in _ELEMENTWISE and is_known(op.name))
    return step.is_priced and (computed or op.name in structure.FUNCTIONS or op.kind == "identity")


class Propagation(Evaluator[V]):
    """Index propagation over one domain."""

    def __init__(self, domain: Domain[V], limit: int) -> None:
        self.domain = domain
        self.limit = limit  # steps followed for one value
        self.memo: dict[tuple[Any, ...], tuple[V, Indices]] = {}

    def evaluate(
        self, scope: Scope, argument: Any, at: Indices, before: int, inputs: Mapping[str, V] | None = None
    ) -> V:
        """A value of a scope, or the result of a step, as the call at `before` finds it; inputs: values that are given."""
        self.memo.clear()
        self.scope, self.before, self.left, self.depth = scope, before, self.limit, 0
        self.function = None if inputs is None else scope
        self.inputs: Mapping[str, V] = inputs or {}  # values of the inputs of a function, by name
        # lost: whether evaluation may make an unknown value known. open: whether one stays unknown in any evaluation,
        # because the caller passes it in or its operator is not supported. unsure: whether an unknown one may hide pairs,
        # a condition or the result of an operator along whole axes; a number that is only added does not.
        self.lost = self.open = self.missing = self.unsure = False
        if not isinstance(argument, Step):
            return self.operand(argument, at)
        found = self.step(argument, at)
        self.open = self.open or found is None
        return self.domain.unknown(None) if found is None else found

    def restriction(self, each: Restriction, at: Indices) -> V:
        """What hides pairs, at an index of the scores."""
        if not each.places:
            given = {each.scores: self.domain.literal(int(each.sense == "keep"))} if each.scores else None
            return self.evaluate(each.scope, each.value, each.placed(at), each.before, given)
        first = len(each.places) - len(at)
        inputs = {name: self.domain.score() for name in each.places[:first]}
        for name, index in zip(each.places[first:], at, strict=True):
            typed = each.scope.type_of(name)
            if index is None or typed is None:
                inputs[name] = self.domain.unknown(None if typed is None else typed.dtype)
            else:
                inputs[name] = self.domain.from_index(index, typed.dtype)
        return self.evaluate(each.scope, each.value, (), each.before, inputs)

    def value(self, name: str, at: Indices) -> V:
        written = self.before if self.scope.writes else 0
        key = (id(self.scope), name, written, *map(id, at))
        if key not in self.memo:
            around, self.missing = self.missing, False
            found = self._value(name, at)
            is_unknown = self.domain.is_unknown(found)
            dtype = self.dtype_of(Ref(name)) if is_unknown else None
            self.unsure = self.unsure or (dtype is not None and dtype.kind == "bool")
            if is_unknown and not self.missing:
                is_open = self.is_open(name)
                self.open, self.lost = self.open or is_open, self.lost or not is_open
            self.missing = around or is_unknown
            self.memo[key] = found, at  # keeps the indices alive, so that no others get their ids
        elif self.domain.is_unknown(self.memo[key][0]):
            self.missing = True
        return self.memo[key][0]

    def _value(self, name: str, at: Indices) -> V:
        self.left -= 1
        typed = self.scope.type_of(name)
        if self.scope is self.function and name in self.inputs:
            return self.inputs[name]
        if self.left < 0 or self.depth > _DEEPEST or typed is None or len(at) != typed.rank:
            return self.domain.unknown(self.dtype_of(Ref(name)))
        self.depth += 1
        try:
            found = self._made(name, typed, at)
        finally:
            self.depth -= 1
        return self.domain.unknown(typed.dtype) if found is None else found

    def _made(self, name: str, typed: TensorType, at: Indices) -> V | None:
        maker, write = self.scope.makers.get(name), self.scope.last_write(name, self.before)
        found: V | None = None
        if write is None:
            found = self.domain.stored(self.scope, name, typed, at)
            if found is None and maker is None:
                return self._bound(name, typed, at)
        elif maker is None or not self.scope.is_view(name):
            with suppress(*NOT_FOLLOWED):
                return self._written(name, write, at)
            return None
        if found is None and maker is not None and name in maker.node.outputs[:1]:
            with self.seen_at(self.scope, self.before if write is not None else maker.place):
                found = self.value(maker.uses[0], at) if maker.writes else self.step(maker, at)
        return found

    def _bound(self, name: str, typed: TensorType, at: Indices) -> V | None:
        """The input of a nested graph: the operand that is passed for it."""
        handed = self.scope.bound.get(name)
        if handed is None:
            return None
        scope, argument, place = handed
        around = scope.type_of(argument.name) if isinstance(argument, Ref) else None
        if isinstance(argument, Ref) and (around is None or around.rank != typed.rank):
            return None
        captures = self.scope is self.function is not scope
        with self.seen_at(scope, place):
            if captures and isinstance(argument, Ref) and typed.rank:
                found = self.domain.captured(self, argument.name, at)
                if found is not None:
                    return found
            return self.operand(argument, at)

    @contextmanager
    def seen_at(self, scope: Scope, before: int) -> Iterator[None]:
        """Within this context, values of a scope are as they are before a place in it."""
        saved = self.scope, self.before
        self.scope, self.before = scope, before
        try:
            yield
        finally:
            self.scope, self.before = saved

    def step(self, step: Step, at: Indices) -> V | None:
        """The first result of a step; None if it is not followed."""
        if not is_followed(step):
            return None
        with suppress(*NOT_FOLLOWED):
            function, lost = structure.FUNCTIONS.get(step.operator.name), self.lost
            if function is not None:
                found: V | None = function(self, step, at)
                is_unknown = found is None or self.domain.is_unknown(found)
                if is_unknown and step.operator.name in structure.CHOOSING and self.is_open(step.uses[0]):
                    self.open, self.lost, self.missing = True, lost, True  # whatever the index is
                return found
            if step.operator.kind == "identity":
                return self.operand(step.argument("x"), at)
            if step.operator.kind in _ELEMENTWISE:
                return self.elementwise(step, at)
            found = self.domain.whole(self, step, at)
            self.unsure = self.unsure or found is None
            return found
        return None

    def elementwise(self, step: Step, at: Indices) -> V | None:
        """A function of the elements of all operands at the same index."""
        arguments = step.arguments
        if any(name.startswith("#") for name in arguments):
            return None
        given = [arguments.get(name) for name in step.operator.parameters if name not in OPTIONS]
        if step.operator.kind == "cast":
            given = given[:1]
        function = Function(
            step.operator.name,
            tuple(map(self.dtype_of, given)),
            self.result_type(step),
            {name: arguments[name] for name in arguments if name in OPTIONS and arguments[name] is not None},
        )
        values = [None if x is None else self.operand(x, at) for x in given]
        return self.domain.apply(*primitive(function, values))

    def _written(self, name: str, write: Step, at: Indices) -> V | None:
        """The value of that name after a step wrote in place to it, or to part of it."""
        with self.seen_at(self.scope, write.place):
            place: Indices | None = at
            conditions: list[V] = []
            for view in reversed([*self.scope.views_back(write.uses[0], name)]):
                if place is not None and not view.writes:
                    place = structure.inside(self, view, place, conditions)
            if place is None:
                return None
            found = self.step(write, place)
            for condition in conditions:
                given = self.domain.unknown(self.dtype_of(Ref(name))) if found is None else found
                found = self.domain.choose(condition, given, self.value(name, at))
            return found

    def is_open(self, name: str) -> bool:
        """Whether evaluation would not help either: the value is an input, or its operator is not followed."""
        maker, typed = self.scope.makers.get(name), self.scope.type_of(name)
        if maker is None and typed is not None:
            known = (typed.value, typed.uniform, self.scope.bound.get(name))
            return all(each is None for each in known) and self.scope.constants.array(name, typed) is None
        if maker is None:
            return True
        return not is_followed(maker) or maker.result != name
