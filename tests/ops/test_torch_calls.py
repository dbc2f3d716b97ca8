"""Kinds and numbers of operands that torch refuses, and those that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphflops.ops.onnx_operands import misplaced
from graphflops.tensor import DType, TensorType, dtype_named
from tests.test_refused_by_torch import refusals

X, POSITIONS = torch.ones(4, 6), torch.zeros(4, 6, dtype=torch.int64)
EIGHT = torch.ones(32, 16, dtype=torch.int8)
IMAGE, SQUARE, HEAD = torch.ones(1, 2, 4, 4), torch.eye(4), torch.ones(1, 2, 4, 8)
# By operator: the operands before the one that is tried, what is tried, and the operands after it.
TRIED: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    # kinds of values
    "relu.default": ((), (X, 2, 2.5, "x"), ()),
    "lt.Tensor": ((X,), (X, 2), ()),
    "mul.Tensor": ((X,), (X, 2), ()),  # a number may stand for this tensor
    "add.Scalar": ((X,), (2, 2.5, True, "x"), ()),
    "cat.default": ((), ([X, X], [X, 3], X), ()),
    "view.default": ((X,), ([24], [24.0], 24), ()),
    "sum.dim_IntList": ((X,), ([0], 0, [0, 1], [1, 1], [0, -2], [1, -1], [2]), ()),
    "softmax.int": ((X,), (1, 1.5), ()),
    # numbers
    "dropout.default": ((X,), (0, 1.0, 1.5, -0.5), (False,)),
    "feature_dropout.default": ((IMAGE,), (0, 1.0, 1.5, -0.5), (False,)),
    "scaled_dot_product_attention.default": ((HEAD, HEAD, HEAD, None), (0.0, 1.0, 1.5), ()),
    "cauchy_.default": ((X.clone(), 0.0), (0.5, 0.0, -1.0), ()),
    "geometric_.default": ((X.clone(),), (0.5, 0.0, 1.0), ()),
    "log_normal_.default": ((X.clone(), 0.0), (0.5, 0.0), ()),
    "normal_.default": ((X.clone(), 0.0), (0.5, 0.0, -0.5), ()),
    "polygamma.default": ((), (0, 1, -1), (X,)),
    "tril_indices.default": ((), (0, 3, -1), (3,)),
    "channel_shuffle.default": ((IMAGE,), (1, 2, 0, -1), ()),
    "histc.default": ((X,), (1, 0, -1), ()),
    "chunk.default": ((X,), (1, 5, 0), ()),
    "tensor_split.sections": ((X,), (1, 0, -1), ()),
    "repeat_interleave.self_int": ((X,), (0, 2, -1), ()),
    "quantile.scalar": ((X,), (0.0, 1.0, 1.5), ()),
    "one_hot.default": ((POSITIONS,), (-1, 2, -2), ()),
    "adaptive_avg_pool2d.default": ((IMAGE,), ([2, 2], [2], [2, 2, 2]), ()),
    "index_fill.int_Scalar": ((torch.ones(4),), (0, -1, 1, -2), (torch.tensor([0]), 1.0)),
    "flip.default": ((X,), ([0, 1], [0, 0], [1, -1]), ()),
    "repeat_interleave.self_Tensor": ((X,), tuple(map(torch.tensor, ([1] * 4, [1], [1] * 3, [[1]]))), (0,)),
    # element types and axes
    "_int_mm.default": (
        (),
        (EIGHT, EIGHT.to(torch.uint8), EIGHT.to(torch.int32), EIGHT.float()),
        (EIGHT[:16],),
    ),
    "_weight_norm.default": ((), (X, X.int()), (X[:, :1],)),
    "convolution.default": (
        (),
        (IMAGE, IMAGE[0]),
        (torch.ones(2, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ),
    # texts
    "linalg_eigh.default": ((SQUARE,), ("L", "u", "x"), ()),
    "linalg_qr.default": ((X,), ("reduced", "r", "x"), ()),
    "scatter_reduce.two": ((X, 0, POSITIONS, X), ("sum", "amax", "multiply"), ()),
    "conv2d.padding": ((IMAGE, torch.ones(2, 2, 3, 3), None, [1, 1]), ("same", "valid", "x"), ()),
    "pad.default": ((IMAGE, [1, 1, 1, 1]), ("constant", "circular", "x"), ()),
}
CASES = [(op, (*before, tried, *after)) for op, (before, every, after) in TRIED.items() for tried in every]


@pytest.mark.parametrize(("op", "arguments"), CASES)
def test_what_torch_takes(op: str, arguments: tuple[Any, ...]) -> None:
    refused, said = refusals(op, arguments)
    assert said == ("GF118" if refused else "")


FLOAT: DType = dtype_named("float32")


@pytest.mark.parametrize(
    ("op", "operands", "says"),
    [
        ("aten.relu.default", [2], "self of aten.relu.default cannot be 2"),
        (
            "aten.cat.default",
            [(TensorType((2,), FLOAT), 3)],
            "tensors of aten.cat.default cannot be 3",
        ),
        (
            "aten.dropout.default",
            [TensorType((2,), FLOAT), 1.5],
            "p of aten.dropout.default cannot be 1.5",
        ),
        ("aten.dropout.default", [TensorType((2,), FLOAT), float("nan")], ""),  # a number without an example
        ("aten.relu.default", [None], ""),  # as kernels get it for a gradient that is not there
        ("my.operator", [2], ""),
    ],
)
def test_what_is_said(op: str, operands: list[Any], says: str) -> None:
    assert misplaced(op, operands) == says
