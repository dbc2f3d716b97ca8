"""How much longer attention takes because no fused kernel runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.kernel import last_refusal
from graphflops.dims import evaluate
from graphflops.kernels.kernel import Attention, Kernel, bytes_of
from graphflops.time.predict import predict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.attention.attention_use import AttentionUse
    from graphflops.devices import Device
    from graphflops.report import Row

_UNFUSED = "math"  # the kernel
_HALF = ("bfloat16", "float16")
# The fields of an attention that the time of a fused kernel takes.
_SIZES = (
    *("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width"),
    *("flops", "masked_flops", "kv_bytes", "times"),
)


def seconds_of(use: AttentionUse, rows: Mapping[str, Row]) -> float:
    """The forward time of all calls of an attention."""
    times = [rows[name].time for name in use.calls if name in rows]
    return sum(time.seconds for time in times if time is not None)


def fused_seconds(
    use: AttentionUse, dtype: str, rows: Iterable[Row], values: Mapping[str, int], device: Device
) -> float:
    """The time of a fused kernel on the same operands, and never less than the shortest call of the program takes."""
    value = {name: evaluate(getattr(use, name), values) or 0 for name in _SIZES}
    width = max(value["width"], value["value_width"])
    hidden = value["masked_flops"] / value["flops"] if value["flops"] else 0.0
    sizes = Attention(
        value["batch"],
        value["heads"],
        value["kv_heads"],
        value["queries"],
        value["keys"],
        width,
        computed=1 - hidden,
        kernel="flash" if dtype in _HALF else "efficient",
    )
    moved = int(bytes_of(dtype)) * value["batch"] * value["heads"] * value["queries"] * width
    flops = value["flops"] - value["masked_flops"]
    kernel = Kernel("attention", dtype, flops, 0, moved + value["kv_bytes"], moved, sizes)
    return max(predict(kernel, device).seconds, _shortest(rows)) * value["times"]


def _shortest(rows: Iterable[Row]) -> float:
    times = [row.time.seconds for row in rows if row.time is not None and row.time.seconds > 0]
    return min(times, default=0.0)


def slowdowns(
    attentions: Iterable[AttentionUse], timed: Sequence[Row], values: Mapping[str, int], device: Device
) -> dict[str, float]:
    """How many times as long as a fused kernel unfused attention takes, by the reason of the last kernel refused."""
    taken: dict[str, tuple[float, float]] = {}  # unfused and fused
    rows: dict[str, Row] = {}
    for use in attentions:
        rows = rows or {row.node: row for row in timed}
        row = rows.get(use.calls[0])
        if use.kernel != _UNFUSED or row is None:
            continue
        why = last_refusal(use.kernel_reason)
        unfused, fused = taken.get(why, (0.0, 0.0))
        fused += fused_seconds(use, row.matrix_dtype, timed, values, device)
        taken[why] = unfused + seconds_of(use, rows), fused
    return {why: unfused / fused for why, (unfused, fused) in taken.items() if unfused > fused > 0}
