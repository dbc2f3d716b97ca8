"""Which operators are one kernel, which tensors are stored, and in which order kernels run."""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.devices import HOPPER
from graphflops.inductor.fusing import Kernel, fused, in_steps
from graphflops.inductor.lowering import JointGraph, Op
from graphflops.inductor.plan import lowest_peak
from graphflops.inductor.storing import realized
from tests.inductor.one_call import op


def stored(*ops: Op, outputs: set[str]) -> list[tuple[str, ...]]:
    return [
        kernel.outputs
        for kernel in fused(realized(ops, outputs, JointGraph({}, HOPPER)), outputs, lambda _: 1)
    ]


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
    assert [one.last.node for one, _ in found] == ["earlier", "weight"]


def test_what_one_kernel_reads_is_computed_there() -> None:
    """Random numbers are stored for the estimate of memory, but in the kernel that reads them."""
    drawn = op("pointwise", "drawn", role="random")
    product = op("extern", "product", "x")
    dropped = op("pointwise", "dropped", "product", "drawn")
    assert stored(product, drawn, dropped, outputs={"dropped"}) == [("product",), ("dropped",)]


def test_a_window_of_nine_elements_is_stored() -> None:
    pooled = op("pointwise", "pooled", "x", window=9)
    one, two = op("pointwise", "one", "pooled"), op("extern", "two", "one")
    three = op("pointwise", "three", "pooled", "two")
    assert ("pooled", "one") in stored(pooled, one, two, three, outputs={"three"})


def test_a_reduction_of_what_does_not_lie_in_order_is_split() -> None:
    """The sizes are those of a patch embedding of 8 images, as inductor splits its first layer norm on an H200."""
    graph = JointGraph({}, HOPPER, sizes={"image": 2 * 8 * 1024 * 768, "moments": 8 * 8192})
    rows = op("reduction", "moments", "image", elements=8 * 1024 * 768, kept=8192)
    turned = replace(rows, is_inner=False)
    assert [(step.kept, step.elements // step.kept) for step in in_steps(turned, graph)] == [
        (49152, 128),
        (8192, 6),
    ]
    assert [step.kept for step in in_steps(rows, graph)] == [8192]


def test_parts_of_a_tensor_are_written_where_their_operands_are_read() -> None:
    """Two concatenations of the same tensors: one kernel for each of these."""
    parts = [
        op("pointwise", f"{out} {place}", source, part_bytes=4)
        for out in ("one", "two")
        for place, source in enumerate("abc")
    ]
    outputs = {name for part in parts for name in part.outputs}
    assert [len(kernel) for kernel in stored(*parts, outputs=outputs)] == [2, 2, 2]


def test_each_part_that_is_read_of_a_tensor_is_a_load() -> None:
    """A sum of two parts of one tensor and three others has five loads: it is stored where two kernels read it."""
    whole = op("pointwise", "sum", "a", "b", "c", "d")
    parted = op("pointwise", "sum", "a", "b", "c", "d", parts={"a": {"first": 100, "second": 100}})
    readers = [op("pointwise", "x", "sum"), op("pointwise", "y", "sum")]
    for summed, expected in ((whole, ["x", "y"]), (parted, ["sum", "x", "y"])):
        found = realized([summed, *readers], {"x", "y"}, JointGraph({}, HOPPER))
        assert [each.outputs[0] for each in found] == expected
