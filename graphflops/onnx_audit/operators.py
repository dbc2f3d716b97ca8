"""Operators spelled out or left apart where one would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import shown
from graphflops.onnx_audit.registry import Found, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model


@check(
    "GF254",
    "unfolded-batch-norm",
    "note",
    fix="export in evaluation mode, or fold the statistics into the weights",
)
def unfolded_batch_norm(model: Model) -> Iterator[Found]:
    """A BatchNormalization with stored statistics right after a convolution that nothing else uses: its scale and shift can
    be part of the convolution's weights.
    """
    for call in model.view.calls:
        if call.kind != "BatchNormalization" or call.attribute("training_mode", 0):
            continue
        maker = model.view.makers.get(call.operand(0))
        if (
            maker is None
            or maker.kind not in ("Conv", "ConvTranspose")
            or maker.operand(1) not in model.view.stored
        ):
            continue
        if model.view.only_user(maker.result) is call and all(
            name in model.view.stored for name in call.operands[1:]
        ):
            text = f"{shown(call.name)} could be part of {shown(maker.name)}"
            yield Found(text, call, call.flops, call.bytes)


@check(
    "GF255",
    "cost-unknown",
    "warning",
    fix="register a rule for the operator (`--rules FILE.py`), or export without it",
)
def cost_unknown(model: Model) -> Iterator[Found]:
    """No rule prices the operator, so that every total is a lower bound."""
    assert model.report is not None
    for op, times in model.report.coverage.unknown_ops.items():
        call = next(call for call in model.view.calls if call.node.op == op and call.row.state == "unknown")
        yield Found(f"{times} calls of {shown(op)} are in no total", call, None, None)


@check(
    "GF256",
    "unfused-attention",
    "note",
    fix="export with opset 23 or later, or run onnxruntime's transformer optimizer: one operator keeps scores on chip",
)
def unfused_attention(model: Model) -> Iterator[Found]:
    """Attention spelled out as two products with a softmax between: scores are written to memory and read again, which one
    operator (Attention of opset 23, or onnxruntime's) need not do. The bytes are those of the scores.
    """
    assert model.report is not None
    calls = {call.name: call for call in model.view.calls}
    for use in model.report.attentions:
        if not use.is_fused:
            text = f"{use.heads} heads of width {use.width} over {use.queries} x {use.keys}, in {len(use.calls)} calls"
            yield Found(text, calls[use.calls[0]], bytes=use.score_bytes)


@check(
    "GF257",
    "expanded-keys",
    "note",
    fix="use an operator that knows groups: Attention of opset 23 with kv_num_heads, or GroupQueryAttention",
)
def expanded_keys(model: Model) -> Iterator[Found]:
    """Keys and values that several query heads share are written out once for each of these heads before the products. The
    bytes are those of writing them out.
    """
    assert model.report is not None
    calls = {call.name: call for call in model.view.calls}
    for use in model.report.attentions:
        if use.repeated_bytes != 0:
            text = f"{use.kv_heads} heads of keys and values are written out as {use.heads}"
            yield Found(text, calls[use.calls[0]], bytes=use.repeated_bytes)
