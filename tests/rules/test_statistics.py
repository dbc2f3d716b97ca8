"""Order statistics, histograms, covariances and other summaries."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

s = symbol("s")


@pytest.mark.parametrize(
    ("op", "arguments", "named", "expected", "flops"),
    [
        ("aten.median.default", (t(4, 8),), {}, [()], 32),
        ("aten.median.dim", (t(4, 8), 1), {}, [(4,), (4,)], 32),
        ("aten.nanmedian.dim", (t(4, 8), 1, True), {}, [(4, 1), (4, 1)], 32),
        ("aten.kthvalue.default", (t(4, 8), 3), {}, [(4,), (4,)], 32),
        ("aten.mode.default", (t(4, 8),), {}, [(4,), (4,)], 4 * 8 * 3 + 32),
        ("aten.quantile.scalar", (t(4, 8), 0.5), {}, [()], 32 * 5 + 3),
        ("aten.quantile.scalar", (t(4, 8), 0.5, 1, True), {}, [(4, 1)], 4 * 8 * 3 + 3 * 4),
        ("aten.nanquantile.default", (t(4, 8), t(2), 1), {}, [(2, 4)], 4 * 8 * 3 + 3 * 2 * 4),
        ("aten.histc.default", (t(4, 8),), {}, [(100,)], 4 * 32),
        ("aten.histogram.bin_ct", (t(32), 10), {}, [(10,), (11,)], 4 * 32),
        ("aten.histogram.bin_ct", (t(32), 10), {"density": True}, [(10,), (11,)], 4 * 32 + 3 * 10),
        ("aten.histogram.bins_tensor", (t(32), t(9)), {}, [(8,), (9,)], (4 + 1) * 32),
        ("aten.histogramdd.default", (t(50, 2), (4, 5)), {}, [(4, 5), (5,), (6,)], (3 + 2) * 100 + 50),
        ("aten.histogramdd.int_bins", (t(50, 2), 4), {}, [(4, 4), (5,), (5,)], (3 + 2) * 100 + 50),
        ("aten.histogramdd.int_bins", (t(50, 2), 4, (0, 1, 0, 1)), {}, [(4, 4), (5,), (5,)], 3 * 100 + 50),
        (
            "aten.histogramdd.TensorList_bins",
            (t(50, 2), (t(9), t(5))),
            {},
            [(8, 4), (9,), (5,)],
            50 * (4 + 3 + 1),
        ),
        ("aten.segment_reduce.default", (t(10, 3), "sum"), {"lengths": t(4)}, [(4, 3)], 30),
        ("aten.segment_reduce.default", (t(10, 3), "mean"), {"offsets": t(5)}, [(4, 3)], 30 + 12),
        (
            "aten._segment_reduce_backward.default",
            (t(4, 3), t(4, 3), t(10, 3), "max"),
            {"lengths": t(4)},
            [(10, 3)],
            30,
        ),
        ("aten.dist.default", (t(4, 8), t(8)), {}, [()], (1 + 2) * 32),
        ("aten.trace.default", (t(4, 8),), {}, [()], 4),
        ("aten.trace_backward.default", (t(), (4, 8)), {}, [(4, 8)], 0),
    ],
)
def test_summaries(op: str, arguments: Any, named: Any, expected: Any, flops: int) -> None:
    priced = price(op, *arguments, **named)
    assert shapes(priced) == expected
    assert priced.vector_flops == flops
    assert priced.matrix_flops == 0


def test_bins_that_only_data_can_tell() -> None:
    (out,) = price("aten.bincount.default", t(20, dtype="int64")).out
    assert isinstance(out, TensorType)
    assert (str(out.shape[0]), out.dtype.name) == ("Symbol('bincount?')", "int64")
    (weighted,) = price("aten.bincount.default", t(20, dtype="int64"), t(20, dtype="int32")).out
    assert isinstance(weighted, TensorType)
    assert weighted.dtype.name == "float64"


def test_a_trace_reads_the_diagonal() -> None:
    assert price("aten.trace.default", t(100, 200)).cost.read_bytes == 4 * 100


def test_covariance_is_a_product_of_the_centred_variables() -> None:
    priced = price("aten.cov.default", t(5, 100))
    assert shapes(priced) == [(5, 5)]
    assert priced.matrix_flops == 2 * (5 * 5) * 100
    assert priced.vector_flops == 2 * 500 + 25
    assert price("aten.cov.default", t(5, 100, dtype="complex64")).matrix_flops == 4 * 2 * (5 * 5) * 100
    assert price("aten.cov.default", t(5, 100), aweights=t(100)).vector_flops == 4 * 500 + 25
    assert price("aten.cov.default", t(5, "s")).matrix_flops == 2 * 5 * 5 * s
    assert shapes(price("aten.cov.default", t(100))) == [()]


def test_correlations_divide_by_two_deviations() -> None:
    priced = price("aten.corrcoef.default", t(5, 100))
    assert priced.vector_flops == 2 * 500 + 25 + 4 * 25
    assert priced.transcendentals == 5


def test_the_norm_of_a_difference_takes_a_root() -> None:
    assert price("aten.dist.default", t(4, 8), t(8)).transcendentals == 1
    assert price("aten.dist.default", t(4, 8), t(8), 1).transcendentals == 0
    assert price("aten.dist.default", t(4, 8), t(8), 3).transcendentals == 32 + 1


def test_how_many_results_must_be_known() -> None:
    with pytest.raises(ShapeError, match="number of coordinates must be known"):
        price("aten.histogramdd.int_bins", t(50, "s"), 4)


def test_the_gradient_of_a_median_is_scattered() -> None:
    gradient = find_backward("aten.median.dim")
    assert gradient is not None
    given = {"x": t(4, 8), "dim": 1}
    priced = gradient(ForwardCall(price("aten.median.dim", *given.values()), given, frozenset({"x"})))
    assert (shapes(priced), priced.vector_flops) == ([(4, 8)], 0)


def test_the_gradient_of_the_median_of_everything_is_shared_among_equals() -> None:
    gradient = find_backward("aten.median.default")
    assert gradient is not None
    given = {"x": t(4, 8)}
    priced = gradient(ForwardCall(price("aten.median.default", t(4, 8)), given, frozenset({"x"})))
    assert priced.vector_flops == 3 * 4 * 8
