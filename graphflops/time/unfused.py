"""How much longer attention takes because no fused kernel runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.attention.kernel import last_refusal
from graphflops.time.kernel import Attention, Kernel, bytes_of
from graphflops.time.predict import predict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.attention.attention_use import AttentionUse
    from graphflops.devices import Device
    from graphflops.report import Report, Row

UNFUSED = "math"  # the kernel
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


def fused_seconds(use: AttentionUse, dtype: str, report: Report, device: Device) -> float:
    """The time of a fused kernel on the same operands, and never less than the shortest call of the program takes."""
    value = {name: report.value(getattr(use, name)) or 0 for name in _SIZES}
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
    return max(predict(kernel, device).seconds, _shortest(report)) * value["times"]


def _shortest(report: Report) -> float:
    times = [row.time.seconds for row in report.rows if row.time is not None and row.time.seconds > 0]
    return min(times, default=0.0)


def with_slowdowns(report: Report, device: Device) -> Report:
    """The report whose diagnostics of unfused attention say how many times as long it takes."""
    rows = {row.node: row for row in report.rows}
    # Seconds, unfused and fused, by the reason of the last kernel refused.
    taken: dict[str, tuple[float, float]] = {}
    for use in report.attentions:
        row = rows.get(use.calls[0])
        if use.kernel != UNFUSED or row is None:
            continue
        why = last_refusal(use.kernel_reason)
        unfused, fused = taken.get(why, (0.0, 0.0))
        fused += fused_seconds(use, row.matrix_dtype, report, device)
        taken[why] = unfused + seconds_of(use, rows), fused
    found = list(report.diagnostics)
    for index, one in enumerate(found):
        times = next(
            (times for why, times in taken.items() if one.code == "GF122" and why in one.message), None
        )
        if times is not None and times[0] > times[1] > 0:
            clause = f" and about {times[0] / times[1]:.2g} x the time of a fused kernel: "
            found[index] = replace(one, message=one.message.replace(": ", clause, 1))
    return replace(report, diagnostics=tuple(found))
