"""How many products a quantizer changed, in a line for each element type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphflops.comparison.result import Remark
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.tensor import DTYPES, TensorType

_FEW = 16  # bits of what a quantizer stores, at most
_BYTE = 8  # bits


def quantized(old: Report, new: Report) -> Iterator[Remark]:
    """The types that more products, or fewer, compute in or have their weights in than before: `8 of 9 products`."""
    before, after = _types(old), _types(new)
    for what in sorted({*before, *after} - {""}, key=lambda what: (what.startswith("weights"), what)):
        count, was = after[what], before[what]
        if count > was:
            earlier = f", {was:,} before" if was else ""
            yield Remark("quantized", f"{what}: {count:,} of {after.total():,} products{earlier}")
        elif count < was:
            text = f"no longer {what}: {was - count:,} of {before.total():,} products"
            yield Remark("quantized", text)


def _types(report: Report) -> Counter[str]:
    """How many products are quantized how; "" for those that are not."""
    return Counter(_how(row, report) for row in report.rows if row.cost.matrix_flops != 0)


def _how(row: Row, report: Report) -> str:
    """What is quantized in a product: its factors, its weights alone, or nothing."""
    dtype = DTYPES.get(row.matrix_dtype)
    if dtype is None or dtype.bits < _FEW or dtype.kind in ("int", "uint"):
        return f"quantized to {row.matrix_dtype.removeprefix('u')}"
    for _, value in row.inputs:
        if value.rank > 1 and value.dtype.bits <= _BYTE and value.dtype.kind in ("int", "uint"):
            return f"weights quantized to int{_packed(value, row, report) or value.dtype.bits}"
    return ""


def _packed(weight: TensorType, row: Row, report: Report) -> int | None:
    """Bits of each weight where bytes hold several: the rows of the first operand tell how many weights there are."""
    x = row.inputs[0].type
    if operator(row.op).kind != "product" or not x.dtype.is_floating or not x.rank:
        return None
    sizes = map(report.value, (row.cost.matrix_flops, x.shape[-1], x.numel, weight.nbytes))
    flops, inner, elements, stored = (size or 0 for size in sizes)
    weights = flops * inner // (2 * elements) if elements else 0
    bits = _BYTE * stored // weights if weights else _BYTE
    return bits if 0 < bits < _BYTE else None
