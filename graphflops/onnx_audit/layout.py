"""Transposes that only change the layout in which images are held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Found, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model
    from graphflops.view import Call

_IMAGES = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "BatchNormalization",
    }
    | {"InstanceNormalization", "Resize", "Upsample", "QLinearConv", "ConvInteger", "LRN"}
)
_ELEMENTWISE = frozenset(
    {
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Elu",
        "Selu",
        "HardSwish",
        "HardSigmoid",
        "Mish",
        "Gelu",
        "Clip",
        "Cast",
    }
    | {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Abs",
        "Exp",
        "Erf",
        "Sqrt",
        "Softplus",
        "Swish",
        "Dropout",
        "Identity",
    }
    | {"QuantizeLinear", "DequantizeLinear"}
)
_MOST_BETWEEN = 16


@check(
    "GF250",
    "layout-ping-pong",
    "warning",
    fix="convert the model to one layout (tf2onnx: --inputs-as-nchw) or run a layout optimizer before shipping it",
)
def layout_ping_pong(model: Model) -> Iterator[Found]:
    """A Transpose that puts channels last after a convolution or pooling, and one further on that puts them first again,
    with nothing between but work on single elements: each moves the whole activation for nothing.
    """
    for first in model.view.calls:
        order = first.attribute("perm")
        if first.kind != "Transpose" or not order or len(order) < 3 or not _follows_images(first, model):
            continue
        between = 0
        at: Call | None = model.view.only_user(first.result)
        while at is not None and at.kind in _ELEMENTWISE and between < _MOST_BETWEEN and _is_unary(at, model):
            at, between = model.view.only_user(at.result), between + 1
        then = at.attribute("perm") if at is not None and at.kind == "Transpose" else None
        if at is None or not then or not between or len(then) != len(order):
            continue
        if [order[axis] for axis in then] == list(range(len(order))):
            moved = first.bytes + at.bytes
            text = (
                f"{shown(first.name)} and {shown(at.name)} undo each other around {between} elementwise calls"
            )
            yield Found(text, first, bytes=moved, severity=model.graded(0, moved))


def _follows_images(call: Call, model: Model) -> bool:
    maker = model.view.makers.get(call.operand(0))
    return maker is not None and (maker.kind in _IMAGES or maker.kind in _ELEMENTWISE)


def _is_unary(call: Call, model: Model) -> bool:
    """Whether all operands but one are stored, and single numbers: their own axes need no change."""
    varying = [name for name in call.operands if name and name not in model.view.stored]
    fixed = [model.view.types.get(name) for name in call.operands if name and name in model.view.stored]
    return len(varying) == 1 and all(typed is not None and typed.numel == 1 for typed in fixed)
