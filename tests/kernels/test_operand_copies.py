"""Copies of operands that do not lie as kernels read them: bytes that an H200 allocated (PyTorch 2.11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.tensor import BFLOAT16, DTYPES, FLOAT32, DType, TensorType
from tests.memory.one_call import eager
from tests.one_call import g, program_of
from tests.time.one_call import backward, forward

IMAGE, ROWS = (8, 32, 28, 28), (4, 256, 128)
TURNED_IMAGE, TURNED_ROWS = (25088, 784, 1, 28), (32768, 1, 256)  # its last two axes exchanged
SIZE = {IMAGE: 401_408, ROWS: 262_144}  # bytes in bfloat16
WEIGHT = (128,)
# Operator, what it reads, the strides of its first operand, copies in the forward and in the backward in bytes.
MEASURED: list[tuple[str, tuple[Any, ...], tuple[int, ...], int, int]] = [
    ("max_pool2d.default", (IMAGE, [2, 2]), TURNED_IMAGE, SIZE[IMAGE], SIZE[IMAGE]),
    ("avg_pool2d.default", (IMAGE, [2, 2]), TURNED_IMAGE, SIZE[IMAGE], SIZE[IMAGE]),
    ("adaptive_avg_pool2d.default", (IMAGE, [7, 7]), TURNED_IMAGE, SIZE[IMAGE], 0),
    ("adaptive_avg_pool2d.default", (IMAGE, [1, 1]), TURNED_IMAGE, 0, 0),
    ("max_pool2d.default", (IMAGE, [2, 2]), (25088, 1, 896, 32), 0, 0),  # channels last
    ("rms_norm.default", (ROWS, [128], WEIGHT), TURNED_ROWS, SIZE[ROWS], SIZE[ROWS]),
    ("layer_norm.default", (ROWS, [128], WEIGHT), TURNED_ROWS, SIZE[ROWS], SIZE[ROWS]),
    ("softmax.int", (ROWS, -1), TURNED_ROWS, SIZE[ROWS], 0),
    ("bmm.default", ((4, 128, 128), (4, 128, 64)), (32768, 256, 2), 131_072, 131_072),
    ("bmm.default", ((4, 256, 128), (4, 128, 64)), TURNED_ROWS, 0, 0),  # columns lie together
    ("bmm.default", ((128, 4, 256), (128, 256, 64)), (256, 32768, 1), 0, 0),  # matrices apart by a row
    ("linear.default", ((4, 128, 128), (100, 128)), (32768, 256, 2), 131_072, 131_072),
    ("linear.default", ((4, 64, 256), (100, 256)), (32768, 512, 1), 0, 0),  # rows evenly apart
    ("mm.default", ((64, 64), (64, 32)), (256, 2), 8192, 8192),
    ("mm.default", ((64, 64), (64, 32)), (1, 64), 0, 0),
]


@pytest.mark.parametrize(("op", "reads", "strides", "forward_bytes", "backward_bytes"), MEASURED)
def test_memory_and_time_copy_the_same(
    op: str, reads: tuple[Any, ...], strides: tuple[int, ...], forward_bytes: int, backward_bytes: int
) -> None:
    args = [
        g(*each, dtype=BFLOAT16)
        if isinstance(each, tuple)
        else tuple(each)
        if isinstance(each, list)
        else each
        for each in reads
    ]
    execution, call = eager(f"aten.{op}", *args, lies={"x0": strides})
    copies = execution.operand_copies(call).values()
    assert sum(copy.nbytes for copy in copies) == forward_bytes  # type: ignore[misc]
    assert sum(copy.nbytes for copy in copies if copy.is_again) == backward_bytes  # type: ignore[misc]
    for lowered, size in ((forward, forward_bytes), (backward, backward_bytes)):
        kernels = lowered(f"aten.{op}", *args, strides={0: strides})
        assert sum(kernel.written_bytes for kernel in kernels if kernel.family == "copy") == size


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("dtype", "wanted", "is_converted"),
    [
        ("bfloat16", FLOAT32, True),
        ("float16", FLOAT32, False),
        ("float32", BFLOAT16, True),
        ("float32", FLOAT32, False),
    ],
)
def test_a_softmax_to_another_type_converts_all_but_float16(
    op: str, dtype: str, wanted: DType, is_converted: bool
) -> None:
    program = program_of(f"aten.{op}.int", g(*ROWS, dtype=DTYPES[dtype]), -1, wanted)
    run = Runs((), HOPPER, is_eager=True).of(program.main)
    assert [call.node.operator.kind for call in run.calls] == ["cast"] * is_converted + ["softmax"]


@pytest.mark.parametrize("op", ["aten.matmul.default", "onnx.MatMul"])
def test_batches_that_differ_are_expanded_and_copied(op: str) -> None:
    """8 matrices are repeated for 2 batches, and `reshape` copies them: 2 * 8 * 64 * 64 elements."""
    program = program_of(op, g(2, 8, 256, 64), g(8, 64, 64))
    calls = Runs((), HOPPER, is_eager=True).of(program.main).calls
    names = [call.node.operator.name for call in calls]
    assert names == ["expand", "expand", "reshape", "reshape", "bmm", "reshape"]  # the last one is `view`
    assert calls[3].estimate.out[0].shape == (2 * 8, 64, 64)


@pytest.mark.parametrize(
    ("a", "b", "settings"),
    [
        ((3, 256, 128), (128, 3, 64), {"transBatchB": 1}),  # the batch of b stands behind its rows
        ((256, 3, 128), (128, 3, 64), {"transBatchA": 1, "transBatchB": 1}),
        ((3, 128, 256), (64, 128), {"transA": 1, "transB": 1}),
    ],
)
def test_operands_that_a_product_turns_are_read_as_they_lie(
    a: tuple[int, ...], b: tuple[int, ...], settings: dict[str, int]
) -> None:
    """Attentions that onnxruntime optimises read queries, keys and values so."""
    (made,) = forward("com.microsoft.FusedMatMul.1", g(*a), g(*b), **settings)
    assert (made.family, made.written_bytes) == ("matmul", 3 * 256 * 64 * 4)


def test_the_gradient_of_a_prelu_is_summed_to_its_channels() -> None:
    """96 parameters for images 128 wide: the gradient in the shape of the images, and parts of 96 sums only."""
    images, parameters = g(4, 96, 128, 128, dtype=BFLOAT16), g(96, dtype=BFLOAT16)
    execution, call = eager("aten.prelu.default", images, parameters)
    (_, (wide, parts)) = execution.gradient_kernels(call, False).buffers
    assert wide == 2 * 4 * 96 * 128 * 128
    assert parts < 4 * 96 * 1024  # at most 1,024 blocks share a sum
    (rows,) = [
        each.sizes
        for each in backward("aten.prelu.default", images, parameters)
        if each.family == "reduction"
    ]
    assert (rows.rows, rows.columns) == (96, 4 * 128 * 128)


def test_a_copy_is_made_again_only_for_a_gradient_that_reads_it() -> None:
    """That of the other factor does."""
    x, y = TensorType((64, 64), BFLOAT16), TensorType((64, 32), BFLOAT16)
    for wanted, is_read in (("x", False), ("y", True)):
        operands = [replace(each, requires_grad=name == wanted) for name, each in (("x", x), ("y", y))]
        execution, call = eager("aten.mm.default", *operands, lies={"x0": (256, 2)})
        (copy,) = execution.operand_copies(call).values()
        assert copy.is_again is is_read


def test_a_matrix_is_copied_once_for_all_matrices_of_the_other() -> None:
    args = TensorType((64, 64), BFLOAT16), g(4, 64, 32, dtype=BFLOAT16)
    execution, call = eager("aten.matmul.default", *args, lies={"x0": (256, 2)})
    assert [copy.nbytes for copy in execution.operand_copies(call).values()] == [64 * 64 * 2]
