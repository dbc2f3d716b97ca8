"""Which operators are one kernel, which tensors are stored, and in which order kernels run."""

from __future__ import annotations

from typing import Any

from graphflops.inductor.fusing import Kernel, fused
from graphflops.inductor.joint_graph import Op
from graphflops.inductor.ordering import lowest_peak
from graphflops.inductor.realizing import realized


def op(kind: Any, out: str, *reads: str, elements: int = 100, **more: Any) -> Op:
    return Op(kind, (out,), reads, elements, 0, out, **more)


def stored(*ops: Op, outputs: set[str]) -> list[tuple[str, ...]]:
    return [kernel.outputs for kernel in fused(realized(ops, outputs)[0], outputs)]


def test_what_is_computed_from_few_tensors_is_computed_in_each_reader() -> None:
    total = op("pointwise", "total", "a", "b")
    one, two = op("pointwise", "one", "total"), op("extern", "two", "one")
    three = op("pointwise", "three", "total", "two")
    assert stored(total, one, two, three, outputs={"three"}) == [("one",), ("two",), ("three",)]


def test_what_is_computed_from_more_than_four_tensors_and_read_twice_is_stored() -> None:
    total = op("pointwise", "total", "a", "b", "c", "d", "e")
    one, two = op("pointwise", "one", "total"), op("extern", "two", "one")
    three = op("pointwise", "three", "total", "two")
    assert stored(total, one, two, three, outputs={"three"}) == [("total", "one"), ("two",), ("three",)]


def test_a_normalisation_is_one_kernel() -> None:
    moments = op("reduction", "moments", "x", kept=10)
    assert stored(moments, op("pointwise", "normed", "x", "moments"), outputs={"normed"}) == [("normed",)]


def test_sums_along_other_axes_are_kernels_of_their_own() -> None:
    rows, columns = op("reduction", "rows", "x", kept=10), op("reduction", "columns", "x", kept=20)
    assert stored(rows, columns, outputs={"rows", "columns"}) == [("rows",), ("columns",)]


def kernel(out: str, *reads: str) -> Kernel:
    return Kernel((op("pointwise", out, *reads),), (out,), (), reads)


def test_a_large_result_is_computed_last() -> None:
    """The gradient of a large weight, 100 bytes, waits until the activations, 50 bytes, are gone."""
    sizes = {"saved": 50, "gradient": 10, "weight": 100, "earlier": 10}
    found = lowest_peak(
        [kernel("weight", "gradient"), kernel("earlier", "gradient", "saved")],
        lambda name: sizes[name],
        {"saved": None, "gradient": None},
        {"weight": None, "earlier": None},
    )
    assert [one.node for one in found] == ["earlier", "weight"]
