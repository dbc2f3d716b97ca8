"""Transposes that only switch the memory layout of images between channels first and channels last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Edit, Observation, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model
    from graphflops.view import Call

_MOST_BETWEEN = 16


@check(
    "GF250",
    "layout-ping-pong",
    "warning",
    fix="convert the model to one layout (tf2onnx: --inputs-as-nchw), or run a layout optimizer before shipping it",
)
def layout_ping_pong(model: Model) -> Iterator[Observation]:
    """A Transpose that puts channels last after a convolution or pooling, and a later one that puts them first again, with
    only elementwise calls in between: each moves the whole activation without need.
    """
    for first in model.view.calls:
        order = _order(first)
        if order is None or len(order) < 3 or not _follows_images(first, model):
            continue
        between = 0
        at: Call | None = model.view.only_user(first.result)
        last, edits = first, [Edit("instead", first.result, first.value("x"))]
        while (
            at is not None and at.operator.is_pointwise and between < _MOST_BETWEEN and _is_unary(at, model)
        ):
            last, between = at, between + 1
            edits.append(Edit("undeclared", last.result))
            at = model.view.only_user(last.result)
        then = None if at is None else _order(at)
        if at is None or then is None or not between or len(then) != len(order):
            continue
        if [order[axis] for axis in then] == list(range(len(order))):
            moved = first.bytes + at.bytes
            text = (
                f"{shown(first.name)} and {shown(at.name)} undo each other around {between} elementwise calls"
            )
            edits.append(Edit("instead", at.result, last.result))
            yield Observation(text, first, 0, moved, model.graded(0, moved), tuple(edits))


def _order(call: Call) -> tuple[int, ...] | None:
    """The order that a Transpose states; None for another operator, or where it states none."""
    return (call.argument("order") or None) if call.operator.name == "permute" else None


def _follows_images(call: Call, model: Model) -> bool:
    maker = model.view.makers.get(call.value("x"))
    return maker is not None and (maker.operator.is_of_images or maker.operator.is_pointwise)


def _is_unary(call: Call, model: Model) -> bool:
    """True if all operands but one are stored scalars, whose axes need no permutation."""
    varying = [name for name in call.operands if name and name not in model.view.stored]
    fixed = [model.view.types.get(name) for name in call.operands if name and name in model.view.stored]
    return len(varying) == 1 and all(typed is not None and typed.numel == 1 for typed in fixed)
