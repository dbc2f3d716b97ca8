"""The line of a comparison that says how many products a quantizer changed."""

from __future__ import annotations

import pytest

from graphflops.analysis import analyze
from graphflops.comparison.compare import compared
from graphflops.report import Named
from tests.passes.test_quantized import FUSED, program
from tests.render.reports import linear, made
from tests.support import t


def model(**products):
    """A model of 98 products, of which so many have that type, or weights of that type; the others are bfloat16."""
    rows = [linear(f"linear_{place}", f"net.{place}", 8, 8) for place in range(98)]
    kinds = [kind for kind, count in products.items() for _ in range(count)]
    for place, kind in enumerate(kinds):
        row = rows[place]
        if kind.startswith("weights_"):
            weight = Named("w", t(8, 8, dtype=kind.removeprefix("weights_")))
            rows[place] = row._replace(inputs=(row.inputs[0], weight))
        else:
            rows[place] = row._replace(matrix_dtype=kind)
    return made(rows)


def lines(old, new):
    return [remark.message for remark in compared(old, new).remarks if remark.name == "quantized"]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ({}, {"int8": 96}, ["quantized to int8: 96 of 98 products"]),
        ({}, {"uint8": 96}, ["quantized to int8: 96 of 98 products"]),
        ({}, {"float8_e4m3fn": 90}, ["quantized to float8_e4m3fn: 90 of 98 products"]),
        ({}, {"weights_int4": 97}, ["weights quantized to int4: 97 of 98 products"]),
        (
            *({}, {"int8": 2, "weights_uint8": 3}),
            ["quantized to int8: 2 of 98 products", "weights quantized to int8: 3 of 98 products"],
        ),
        ({"int8": 10}, {"int8": 96}, ["quantized to int8: 96 of 98 products, 10 before"]),
        ({"int8": 96}, {}, ["no longer quantized to int8: 96 of 98 products"]),
        ({"int8": 96}, {"int8": 96}, []),
        ({}, {"bfloat16": 96}, []),
    ],
)  # fmt: skip
def test_how_many_products_are_quantized(old, new, expected):
    assert lines(model(**old), model(**new)) == expected


def test_bytes_that_hold_two_weights_each():
    """4 rows of 32 by 32 x 8 weights in 8 blocks of 16 bytes: 128 bytes hold 256 weights."""
    calls = "y = com.microsoft.MatMulNBits <K = 32, N = 8, bits = 4, block_size = 32> (x, w, scales)"
    packed = program(calls, "x: float[4, 32]", "y: float[4, 8]", "w: uint8[8, 1, 16], scales: float[8]")
    plain = program("y = MatMul(x, w)", "x: float[4, 32]", "y: float[4, 8]", "w: float[32, 8]")
    assert lines(analyze(plain), analyze(packed)) == ["weights quantized to int4: 1 of 1 products"]


def test_a_model_in_qdq_form():
    old = program("y = MatMul(x, w)", "x: float[2, 8]", "y: float[2, 4]", "w: float[8, 4]")
    for name, what in (("a product", "quantized to int8"), ("weights alone", "weights quantized to int8")):
        new = analyze(program(*FUSED[name][0]))
        assert lines(analyze(old), new) == [f"{what}: 1 of 1 products"]
