"""Normalisations and dropout, version by version."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import BOOL, FLOAT16, FLOAT32
from tests.support import price, shapes, t

X, C = t(2, 6, 4, 4), t(6)  # 192 elements


def test_batch_statistics_in_inference_fold_into_scale_and_shift() -> None:
    for version in (1, 6, 7, 9, 14, 15):
        estimate = price(f"onnx.BatchNormalization.{version}", X, C, C, C, C, outputs=(True,))
        assert shapes(estimate) == [X.shape]
        assert (estimate.vector_flops, estimate.transcendentals) == (2 * 192, 6)


def test_batch_normalization_in_training() -> None:
    estimate = price("onnx.BatchNormalization.15", X, C, C, C, C, training_mode=1, outputs=(True, True, True))
    assert estimate.out == (X, C, C)
    assert estimate.vector_flops == 7 * 192 + 2 * (3 * 6)


def test_before_version_14_training_is_told_by_the_results() -> None:
    estimate = price("onnx.BatchNormalization.9", X, C, C, C, C, outputs=(True,) * 5)
    assert estimate.out == (X, C, C, C, C)
    assert estimate.vector_flops == 7 * 192 + 2 * (3 * 6)
    tested = price("onnx.BatchNormalization.6", X, C, C, C, C, is_test=1, outputs=(True,) * 5)
    assert tested.vector_flops == 2 * 192


def test_statistics_of_every_position() -> None:
    each = t(6, 4, 4)
    estimate = price("onnx.BatchNormalization.7", X, each, each, each, each, spatial=0, outputs=(True,))
    assert (shapes(estimate), estimate.transcendentals) == ([X.shape], 96)


@pytest.mark.parametrize(
    "op, operands, settings, each, groups",
    [
        ("onnx.InstanceNormalization.6", (C, C), {}, 7, 12),
        ("onnx.GroupNormalization.18", (t(3), t(3)), {"num_groups": 3}, 7, 6),
        ("onnx.GroupNormalization.21", (C, C), {"num_groups": 3}, 7, 6),
        ("onnx.LayerNormalization.17", (t(4),), {}, 6, 48),
        ("onnx.LayerNormalization.17", (t(4, 4), t(4, 4)), {"axis": 2}, 7, 12),
        ("onnx.RMSNormalization.23", (t(4),), {}, 4, 48),
        ("onnx.LpNormalization.1", (), {"axis": 1}, 3, 32),
        ("onnx.LpNormalization.22", (), {"p": 1}, 3, 0),
        ("onnx.MeanVarianceNormalization.13", (), {}, 5, 6),
        ("onnx.LRN.13", (), {"size": 5}, 9, 192),
    ],
)
def test_work(op: str, operands: Any, settings: dict[str, Any], each: int, groups: int) -> None:
    estimate = price(op, X, *operands, **settings)
    assert shapes(estimate)[0] == X.shape
    assert (estimate.vector_flops, estimate.transcendentals) == (each * 192, groups)


def test_statistics_of_rows() -> None:
    estimate = price(
        "onnx.LayerNormalization.17", t("b", 8, 16, dtype=FLOAT16), t(16, dtype=FLOAT16), outputs=(True,) * 3
    )
    assert estimate.out[1:] == (t("b", 8, 1, dtype=FLOAT32),) * 2
    assert estimate.transcendentals == 8 * symbol("b")


def test_what_provably_does_not_fit_is_rejected() -> None:
    with pytest.raises(ShapeError, match="4 groups"):
        price("onnx.GroupNormalization.21", X, C, C, num_groups=4)
    with pytest.raises(ShapeError, match="0 groups"):
        price("onnx.GroupNormalization.21", X, C, C, num_groups=0)


TRUE, FALSE = t(dtype=BOOL, value=1), t(dtype=BOOL, value=0)


@pytest.mark.parametrize(
    "version, operands, settings, work",
    [
        (1, (), {}, 3),
        (6, (), {"is_test": 1}, 0),
        (7, (), {}, 0),
        (10, (), {}, 0),
        (13, (), {}, 0),
        (13, (t(value=0.5), FALSE), {}, 0),
        (13, (t(value=0.5), TRUE), {}, 3),
        (13, (None, TRUE), {}, 3),
        (22, (t(value=0.0), TRUE), {}, 0),
        (22, (None, t(dtype=BOOL)), {}, 3),  # as in training where only data can tell
    ],
)
def test_dropout(version: int, operands: Any, settings: dict[str, Any], work: int) -> None:
    estimate = price(f"onnx.Dropout.{version}", X, *operands, outputs=(True,), **settings)
    assert shapes(estimate) == [X.shape]
    assert estimate.vector_flops == work * 192
    assert estimate.alias == (work == 0)
    assert bool(estimate.cost) == (work != 0)


@pytest.mark.parametrize("version, dtype", [(1, FLOAT32), (7, FLOAT32), (10, BOOL), (13, BOOL)])
def test_the_mask_of_a_dropout(version: int, dtype: Any) -> None:
    estimate = price(f"onnx.Dropout.{version}", X, outputs=(True, True))
    assert estimate.out == (X, X.like(dtype=dtype))
    assert estimate.cost.written_bytes == 192 * dtype.bits // 8 + (768 if version == 1 else 0)
