from __future__ import annotations

import pytest

from tests.support import price, t

HALF, DOUBLE = 10, 11  # TensorProto.DataType


@pytest.mark.parametrize(
    "op, operands, attributes, out, vector, transcendental",
    [
        ("RandomUniform", (), {"shape": (2, 3)}, t(2, 3), 0, 0),
        ("RandomUniform", (), {"shape": (2, 3), "dtype": HALF, "low": -1.0}, t(2, 3, dtype="float16"), 0, 0),
        ("RandomUniformLike", (t(2, 3, dtype="int32"),), {"dtype": DOUBLE}, t(2, 3, dtype="float64"), 0, 0),
        ("RandomNormal", (), {"shape": (2, 3)}, t(2, 3), 3 * 6, 2 * 6),
        ("RandomNormalLike", (t("N", 3),), {}, t("N", 3), 9 * t("N").numel, 6 * t("N").numel),
        ("Bernoulli", (t(2, 3),), {"dtype": 9}, t(2, 3, dtype="bool"), 6, 0),
        ("Multinomial", (t(2, 5),), {"sample_size": 4}, t(2, 4, dtype="int32"), 3 * 10, 10),
    ],
)
def test_random_numbers(op, operands, attributes, out, vector, transcendental):
    estimate = price(f"onnx.{op}", *operands, **attributes)
    assert estimate.out == (out,)
    assert (estimate.vector_flops, estimate.transcendentals) == (vector, transcendental)
    read = out.numel * 0 if op.endswith("Like") or not operands else operands[0].nbytes
    assert estimate.cost.read_bytes == read
