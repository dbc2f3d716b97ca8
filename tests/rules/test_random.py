"""Random numbers: what is written, what is read, and the work of turning bits into a distribution."""

from __future__ import annotations

import pytest

from tests.support import price, t


@pytest.mark.parametrize(
    ("op", "arguments", "keywords", "out", "flops", "evaluations", "read"),
    [
        ("aten.rand.default", ((4, 8),), {}, t(4, 8), 0, 0, 0),
        (
            "aten.rand.default",
            ((4, 8),),
            {"dtype": t(dtype="float64").dtype},
            t(4, 8, dtype="float64"),
            0,
            0,
            0,
        ),
        ("aten.randn.default", ((4, 8),), {}, t(4, 8), 32, 64, 0),
        ("aten.randint.default", (10, (4, 8)), {}, t(4, 8, dtype="int64"), 0, 0, 0),
        ("aten.randint.low", (5, 10, (4, 8)), {}, t(4, 8, dtype="int64"), 0, 0, 0),
        (
            "aten.rand_like.default",
            (t(8),),
            {"dtype": t(dtype="float16").dtype},
            t(8, dtype="float16"),
            0,
            0,
            0,
        ),
        ("aten.randint_like.low_dtype", (t(8), 0, 5), {}, t(8), 0, 0, 0),
        ("aten.randn_like.default", (t(8),), {}, t(8), 8, 16, 0),
        ("aten.randperm.default", (8,), {}, t(8, dtype="int64"), 0, 0, 0),
        ("aten.uniform_.default", (t(8), 0.0, 2.0), {}, t(8), 0, 0, 0),
        ("aten.random_.from", (t(8), 0, 5), {}, t(8), 0, 0, 0),
        ("aten.normal_.default", (t(8), 0.0, 0.02), {}, t(8), 3 * 8, 16, 0),
        ("aten.normal_functional.default", (t(8),), {}, t(8), 3 * 8, 16, 0),
        ("aten.normal.Tensor_float", (t(8),), {}, t(8), 3 * 8, 16, 32),
        ("aten.normal.float_Tensor", (0.0, t(8)), {}, t(8), 3 * 8, 16, 32),
        ("aten.normal.Tensor_Tensor", (t(4, 1), t(8)), {}, t(4, 8), 3 * 32, 64, 16 + 32),
        ("aten.normal.float_float", (0.0, 1.0, (8,)), {}, t(8), 3 * 8, 16, 0),
        ("aten.log_normal_.default", (t(8),), {}, t(8), 3 * 8, 24, 0),
        ("aten.exponential_.default", (t(8),), {}, t(8), 16, 8, 0),
        ("aten.bernoulli.default", (t(8),), {}, t(8), 8, 0, 32),
        ("aten.bernoulli.p", (t(8), 0.5), {}, t(8), 8, 0, 0),
        ("aten.bernoulli_.float", (t(8),), {}, t(8), 8, 0, 0),
        ("aten.bernoulli_.Tensor", (t(8), t(8)), {}, t(8), 8, 0, 32),
        ("aten.poisson.default", (t(8),), {}, t(8), 0, 8, 32),
        ("aten.multinomial.default", (t(4, 8), 3), {}, t(4, 3, dtype="int64"), 4 * 32, 32, 128),
        ("aten.multinomial.default", (t(8), 3, True), {}, t(3, dtype="int64"), 3 * 8, 0, 32),
    ],
)
def test_random_numbers(op, arguments, keywords, out, flops, evaluations, read) -> None:
    estimate = price(op, *arguments, **keywords)
    assert estimate.out == (out,)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (read, out.nbytes)


def test_symbolic_sizes() -> None:
    assert price("aten.randn.default", (t("s").shape[0], 8)).transcendentals == 16 * t("s").shape[0]


def test_counting_generators_return_their_state() -> None:
    estimate = price("rngprims.philox_rand.default", (8,), t(dtype="int64"), t(dtype="int64"), None)
    assert estimate.out == (t(8), t(dtype="int64"))
    drawn = price("aten._philox_randint_.default", t(8, dtype="int32"), t(2, dtype="uint64"), 0, 4)
    assert (drawn.out, drawn.cost.read_bytes) == ((t(8, dtype="int32"),), 2 * 8)
    assert price("aten._philox_key_split.default", t(2, dtype="uint64"), 3).out == (t(3, 2, dtype="uint64"),)
