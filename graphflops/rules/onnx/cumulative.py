"""Running sums and products, and the largest of many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, data_dependent
from graphflops.rules import cumulative, sort
from graphflops.rules.onnx import values
from graphflops.rules.onnx.entries import size
from graphflops.rules.registry import rule
from graphflops.tensor import INT64, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.rules.onnx.entries import Numbers

    Fold = Callable[[Sequence[values.Number]], values.Number]


def register_running(name: str, fold: Fold) -> None:
    """Register a running sum or product."""

    @rule(f"onnx.{name}")
    def running(x: TensorType, axis: TensorType, *, exclusive: int = 0, reverse: int = 0) -> Estimate:
        """One operation per element."""
        place = size(axis)
        estimate = cumulative.running(x, place if isinstance(place, int) else 0)
        (out,) = estimate.out
        if x.rank == 1 and isinstance(out, TensorType):
            out = values.running(fold, out, x, bool(exclusive), bool(reverse))
        return replace(estimate, out=(out,), reads=(x, axis))


register_running("CumSum", values.total)
register_running("CumProd", values.product_of)


@rule("onnx.TopK")
def top_k(x: TensorType, k: Numbers = None, *, axis: int = -1, sorted: int = 1) -> Estimate:
    """Per lane of n a selection in n comparisons, then k*log2(k) to put the k found in order."""
    count = size(k)
    found = sort.topk(x, data_dependent("topk") if count is None else count, axis, sorted=bool(sorted))
    values_found, places = found.out
    assert isinstance(places, TensorType)
    reads = (x, k if isinstance(k, TensorType) else None)
    return replace(found, out=(values_found, places.like(dtype=INT64)), reads=reads)
