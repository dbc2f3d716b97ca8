"""Calls computed in a wider type than intended, quantization without effect, several calls where one would do."""

from __future__ import annotations

from collections.abc import Iterator

from graphflops.errors import shown
from graphflops.onnx_audit.model import Model
from graphflops.onnx_audit.registry import Edit, Observation, check
from graphflops.ops import Op
from graphflops.view import Call


@check("GF254", "unfolded-batch-norm", "note")
def unfolded_batch_norm(model: Model) -> Iterator[Observation]:
    """A BatchNormalization with stored statistics that is the only user of a convolution: its scale and shift can be folded
    into the convolution's weights.

    Fix: export in evaluation mode, or fold the statistics into the weights.
    """
    for call in model.view.calls:
        if call.operator.name != "batch_norm" or call.argument("training"):
            continue
        maker = model.view.makers.get(call.value("x"))
        if maker is None or not _is_convolution(maker.operator):
            continue
        if maker.value("weight") not in model.view.stored:
            continue
        if model.view.only_user(maker.result) is call and all(
            name in model.view.stored for name in call.operands[1:]
        ):
            text = f"{shown(call.name)} can be folded into {shown(maker.name)}"
            edits = (Edit("folded", call.result),)
            flops, moved, stored = model.freed(call, [maker.result])
            if not maker.value("bias"):  # it gets one
                added = model.view.types[call.value("bias")].nbytes
                moved, stored = moved - added, stored - model.at(added)
            yield Observation(text, call, flops, moved, edits=edits, exact=False, stored=stored)


@check("GF101", "unknown-operator", "warning", kind="cost")
def cost_unknown(model: Model) -> Iterator[Observation]:
    """No rule gives the operator's cost, so every total is a lower bound.

    Fix: register a rule for the operator (`--rules FILE.py`), or export without it.
    """
    assert model.report is not None
    for op, times in model.report.coverage.unknown_ops.items():
        call = next(call for call in model.view.calls if call.node.op == op and call.row.state == "unknown")
        what = f"1 call of {shown(op)} is" if times == 1 else f"{times:,} calls of {shown(op)} are"
        yield Observation(f"{what} not counted in any total", call, None, None)


def _is_convolution(op: Op) -> bool:
    """True for a convolution of channels first whose result nothing else is applied to."""
    return op.kind == "convolution" and op.is_of_images and not op.has("activation")


_HALVES = frozenset({"float16", "bfloat16"})
_MOST_STEPS = 3  # calls between a cast and the product that uses it


@check("GF251", "float32-island", "warning")
def float32_island(model: Model) -> Iterator[Observation]:
    """A matrix product or convolution in float32 on values that were cast up from half precision, in a model whose other
    products are in half precision: it runs at a fraction of their speed. Norms and softmax in float32 are correct as they
    are, and not reported.

    Fix: cast after the product, not before it; only norms, softmax and sums need float32.
    """
    work: dict[str, int] = {}
    for call in model.view.calls:
        if call.row.matrix_dtype:
            dtype = call.row.matrix_dtype
            work[dtype] = work.get(dtype, 0) + model.at(call.cost.matrix_flops)
    if sum(work.get(name, 0) for name in _HALVES) <= work.get("float32", 0):
        return
    for call in model.view.calls:
        if call.row.matrix_dtype == "float32" and any(
            _was_half(name, model, _MOST_STEPS) for name in call.operands if name
        ):
            flops = call.cost.matrix_flops
            text = f"{shown(call.name)} ({shown(call.operator.word)}) runs in float32 on values that were half precision"
            yield Observation(text, call, flops, call.bytes, model.graded(flops, call.bytes))


@check("GF252", "double-precision", "warning")
def double_precision(model: Model) -> Iterator[Observation]:
    """Arithmetic in float64 in a model without float64 parameters: usually caused by a constant of the wrong type.

    Fix: make the constant or the input float32: one float64 operand makes every later result float64.
    """
    assert model.report is not None
    if model.report.parameter_dtypes.get("float64"):
        return
    for call in model.view.calls:
        result = model.view.types.get(call.result)
        is_wide = result is not None and result.dtype.name == "float64"
        if is_wide and call.cost and call.operator.kind != "cast":
            text = f"{shown(call.name)} ({shown(call.operator.word)}) computes {result}"
            yield Observation(text, call, call.flops, call.bytes, model.graded(call.flops, call.bytes))


@check("GF253", "idle-quantization", "warning")
def idle_quantization(model: Model) -> Iterator[Observation]:
    """A DequantizeLinear whose only user quantizes the result again, with the same scale and zero point.

    Fix: remove the two calls: the quantized values do not change.
    """
    for first in model.view.calls:
        if first.operator.name != "dequantize":
            continue
        second = model.view.only_user(first.result)
        if second is None or second.operator.name != "quantize":
            continue
        same = [_known(first, name, model) == _known(second, name, model) for name in ("scale", "zero_point")]
        if all(same) and first.argument("axis") == second.argument("axis"):
            flops, moved, stored = model.freed(second, [first.value("x")])
            text = f"{shown(first.name)} and {shown(second.name)} undo each other"
            before, after = (model.view.types.get(name) for name in (first.value("x"), second.result))
            alike = before is not None and after is not None and before.dtype is after.dtype
            edits = (Edit("instead", second.result, first.value("x")),) if alike else ()
            yield Observation(text, second, flops, moved, model.graded(flops, moved), edits, stored=stored)


def _known(call: Call, argument: str, model: Model) -> object:
    """The number of a scale or zero point; its name if the number is unknown."""
    name = call.value(argument)
    typed = model.view.types.get(name)
    return typed.value if typed is not None and typed.value is not None else name


def _was_half(name: str, model: Model, steps: int) -> bool:
    """True if at most `steps` calls that keep the precision lie between a cast from half precision and the value."""
    maker = model.view.makers.get(name)
    if maker is None or not steps:
        return False
    op = maker.operator
    if op.kind == "cast":
        source, result = model.view.types.get(maker.value("x")), model.view.types.get(name)
        widened = result is not None and result.dtype.name == "float32"
        return widened and source is not None and source.dtype.name in _HALVES
    passes = op.has("arithmetic") or op.kind in ("view", "identity")
    return passes and any(_was_half(operand, model, steps - 1) for operand in maker.operands if operand)
