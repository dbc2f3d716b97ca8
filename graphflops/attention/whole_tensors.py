"""Operators along whole axes, in numpy: running sums, reductions, repeats, buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphflops.attention.domain import Evaluator
from graphflops.attention.elementwise import converted
from graphflops.attention.scopes import Step
from graphflops.base.lazy import numpy as np
from graphflops.graph import Ref

_REDUCTIONS = {"any": "any", "all": "all", "sum": "sum", "amax": "max", "amin": "min", "prod": "prod"}


def along_axes(p: Evaluator[Any], step: Step, array: Callable[[str], Any]) -> Any:
    """The whole result of an operator, given how to compute a whole operand; None where it is not followed."""
    result = p.type_of(Ref(step.result))
    function = _FUNCTIONS.get(step.operator.name)
    if result is None or function is None:
        return None

    def whole(argument: Any) -> Any:
        """An operand as an array, or the number that it is; ValueError where it is not known."""
        found = array(argument.name) if isinstance(argument, Ref) and p.type_of(argument) else None
        found = p.number(argument) if found is None else found
        if found is None:
            raise ValueError
        return found

    return converted(function(p, step, whole), result.dtype)


def _axes(p: Evaluator[Any], step: Step, name: str) -> Any:
    """The axes that a call goes along; None for all."""
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


def _repeated_indices(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    repeats = whole(step.argument("repeats"))
    return np.repeat(np.arange(len(repeats)), repeats)


def _rolled(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    return np.roll(whole(step.argument("x")), p.number(step.argument("shifts")), _axes(p, step, "axes"))


def _bucket(p: Evaluator[Any], step: Step, whole: Callable[[Any], Any]) -> Any:
    """The range between given edges that each number is in."""
    edges = whole(step.argument("edges"))
    if edges.ndim != 1 or step.argument("sorter") is not None:
        raise ValueError
    right = bool(step.argument("right", False)) or step.argument("side") == "right"
    return np.searchsorted(edges, whole(step.argument("x")), side="right" if right else "left")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cumsum": _cumsum, **dict.fromkeys(_REDUCTIONS, _reduced), "repeat_interleave": _repeated,
    "repeat_indices": _repeated_indices, "roll": _rolled, "bucketize": _bucket, "searchsorted": _bucket,
}  # fmt: skip
WHOLE = frozenset(_FUNCTIONS)
