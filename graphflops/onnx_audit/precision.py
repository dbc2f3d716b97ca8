"""Element types: work done wider than the model is meant to, and quantization that does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Found, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model
    from graphflops.view import Call

_HALVES = frozenset({"float16", "bfloat16"})
_TRANSPARENT = frozenset(
    {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Mul", "Div", "Add", "Identity", "Slice"}
)


@check(
    "GF251",
    "float32-island",
    "warning",
    fix="cast after the product, not before it; keep norms, softmax and sums wide, not products",
)
def float32_island(model: Model) -> Iterator[Found]:
    """A matrix product or convolution in float32 on values that were cast up from half precision, in a model that does its
    other products in half: it runs at a fraction of the speed. Norms and softmax in float32 are as they should be.
    """
    work: dict[str, int] = {}
    for call in model.view.calls:
        if call.row.matrix_dtype:
            work[call.row.matrix_dtype] = work.get(call.row.matrix_dtype, 0) + model.at(
                call.cost.matrix_flops
            )
    if sum(work.get(name, 0) for name in _HALVES) <= work.get("float32", 0):
        return
    for call in model.view.calls:
        if call.row.matrix_dtype == "float32" and any(
            _was_half(name, model, 3) for name in call.operands if name
        ):
            flops = call.cost.matrix_flops
            text = f"{shown(call.name)} ({shown(call.kind)}) runs in float32 on what was half precision"
            yield Found(text, call, flops, call.bytes, model.graded(flops, call.bytes))


@check(
    "GF252",
    "double-precision",
    "warning",
    fix="make the constant or the input float32: one double operand makes all that follows double",
)
def double_precision(model: Model) -> Iterator[Found]:
    """Arithmetic in float64 in a model whose parameters are not: mostly a constant that was typed without care."""
    assert model.report is not None
    if model.report.parameter_dtypes.get("float64"):
        return
    for call in model.view.calls:
        result = model.view.types.get(call.result)
        if result is not None and result.dtype.name == "float64" and call.cost and call.kind != "Cast":
            text = f"{shown(call.name)} ({shown(call.kind)}) computes {result}"
            yield Found(text, call, call.flops, call.bytes, model.graded(call.flops, call.bytes))


@check(
    "GF253",
    "idle-quantization",
    "warning",
    fix="remove the two calls: the values stay the quantized ones they were",
)
def idle_quantization(model: Model) -> Iterator[Found]:
    """A DequantizeLinear whose result is only quantized again, with the same scale and zero point."""
    for first in model.view.calls:
        if first.kind.rpartition(".")[2] != "DequantizeLinear":
            continue
        second = model.view.only_user(first.result)
        if second is None or second.kind.rpartition(".")[2] != "QuantizeLinear":
            continue
        same = [_known(first, place, model) == _known(second, place, model) for place in (1, 2)]
        if all(same) and first.attribute("axis") == second.attribute("axis"):
            flops, moved = first.flops + second.flops, first.bytes + second.bytes
            text = f"{shown(first.name)} and {shown(second.name)} undo each other"
            yield Found(text, second, flops, moved, model.graded(flops, moved))


def _known(call: Call, place: int, model: Model) -> object:
    """What is known of a scale or zero point: its number, else its name."""
    name = call.operand(place)
    typed = model.view.types.get(name)
    return typed.value if typed is not None and typed.value is not None else name


def _was_half(name: str, model: Model, steps: int) -> bool:
    maker = model.view.makers.get(name)
    if maker is None or not steps:
        return False
    if maker.kind == "Cast":
        source, result = model.view.types.get(maker.operand(0)), model.view.types.get(name)
        widened = result is not None and result.dtype.name == "float32"
        return widened and source is not None and source.dtype.name in _HALVES
    return maker.kind in _TRANSPARENT and any(_was_half(n, model, steps - 1) for n in maker.operands if n)
