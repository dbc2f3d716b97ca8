"""Operators that are written as several calls where one call would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Edit, Observation, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model
    from graphflops.ops import Op


@check(
    "GF254",
    "unfolded-batch-norm",
    "note",
    fix="export in evaluation mode, or fold the statistics into the weights",
)
def unfolded_batch_norm(model: Model) -> Iterator[Observation]:
    """A BatchNormalization with stored statistics that is the only user of a convolution: its scale and shift can be folded
    into the convolution's weights.
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
            yield Observation(text, call, call.flops, call.bytes, edits=edits, exact=False)


@check(
    "GF101",
    "unknown-operator",
    "warning",
    fix="register a rule for the operator (`--rules FILE.py`), or export without it",
    kind="cost",
)
def cost_unknown(model: Model) -> Iterator[Observation]:
    """No rule gives the operator's cost, so every total is a lower bound."""
    assert model.report is not None
    for op, times in model.report.coverage.unknown_ops.items():
        call = next(call for call in model.view.calls if call.node.op == op and call.row.state == "unknown")
        what = f"1 call of {shown(op)} is" if times == 1 else f"{times:,} calls of {shown(op)} are"
        yield Observation(f"{what} not counted in any total", call, None, None)


@check(
    "GF256",
    "unfused-attention",
    "note",
    fix="export with opset 23 or later, or run onnxruntime's transformer optimizer: a fused operator keeps scores on chip",
)
def unfused_attention(model: Model) -> Iterator[Observation]:
    """Attention written as two products with a softmax in between: the scores are written to memory and read again, which a
    fused operator (Attention of opset 23, or onnxruntime's) avoids. The bytes reported are those of the scores.
    """
    assert model.report is not None
    calls = {call.name: call for call in model.view.calls}
    for use in model.report.attentions:
        if not use.is_fused:
            text = f"{use.heads} heads of width {use.width} over {use.queries} x {use.keys}, in {len(use.calls)} calls"
            yield Observation(text, calls[use.calls[0]], bytes=use.score_bytes)


@check(
    "GF257",
    "expanded-keys",
    "note",
    fix="use an operator with grouped heads: Attention of opset 23 with kv_num_heads, or GroupQueryAttention",
)
def expanded_keys(model: Model) -> Iterator[Observation]:
    """Keys and values shared by several query heads are copied for each of these heads before the products. The bytes
    reported are those of the copies.
    """
    assert model.report is not None
    calls = {call.name: call for call in model.view.calls}
    for use in model.report.attentions:
        if use.repeated_bytes != 0:
            text = f"{use.kv_heads} heads of keys and values are copied to {use.heads}"
            yield Observation(text, calls[use.calls[0]], bytes=use.repeated_bytes)


def _is_convolution(op: Op) -> bool:
    """True for a convolution of channels first whose result nothing else is applied to."""
    return op.kind == "convolution" and op.is_of_images and not op.has_activation
