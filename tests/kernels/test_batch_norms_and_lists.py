"""Batch norms and calls on lists of tensors at the limits of their kernels, worked out by hand."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from graphflops.kernels.foreach import Pass, _packed, together
from graphflops.kernels.kernel import Chunks, Kernel, Rows
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made


def batch_norm(shape: tuple[int, ...], dtype: str = "float32", training: bool = True, **more: Any) -> Any:
    channels = shape[1]
    vectors = [
        g(channels, dtype=dtype),
        g(channels, dtype=dtype),
        t(channels, dtype=dtype),
        t(channels, dtype=dtype),
    ]
    return ("aten.batch_norm.default", g(*shape, dtype=dtype), *vectors, training, 0.1, 1e-5, True), more


@pytest.mark.parametrize(
    ("dtype", "shape", "forward_once", "backward_once"),
    [
        # A channel of 114,688 bytes stays on the chip: of one tensor in the forward, of two in the backward.
        ("float32", (1, 8, 128, 112), True, True),
        ("float32", (1, 8, 128, 113), True, False),
        ("float32", (2, 8, 128, 112), True, False),
        ("float32", (2, 8, 128, 113), False, False),
        # In half precision one of 196,608 bytes.
        ("float16", (1, 8, 256, 192), True, True),
        ("float16", (1, 8, 256, 193), True, False),
        ("float16", (2, 8, 256, 193), False, False),
    ],
)
def test_channels_that_stay_on_the_chip_are_read_once(
    dtype: str, shape: tuple[int, ...], forward_once: bool, backward_once: bool
) -> None:
    size = (4 if dtype == "float32" else 2) * shape[0] * 8 * shape[2] * shape[3]
    (op, _, *rest), _ = batch_norm(shape)
    given = op, g(*shape, dtype=dtype), *rest
    for kernels, is_once, tensors, name in (
        (forward(*given), forward_once, 1, "batch_norm_training"),
        (backward(*given), backward_once, 2, "batch_norm_training_backward"),
    ):
        (kernel,) = kernels
        assert kernel.variant == name + "_once" * is_once
        assert (kernel.read_bytes, kernel.written_bytes) == (tensors * size * (1 if is_once else 2), size)
        assert kernel.sizes == Rows(8, shape[0] * shape[2] * shape[3], False)


@pytest.mark.parametrize(
    ("dtype", "weight", "shape", "is_of_cudnn"),
    [
        ("float32", "float32", (4, 8, 4, 4), True),
        ("float16", "float32", (4, 8, 4, 4), True),
        ("float16", "float16", (4, 8, 4, 4), False),
        ("bfloat16", "float32", (4, 8, 4, 4), False),
        ("bfloat16", "bfloat16", (4, 8, 4, 4), False),
        ("float32", "float32", (4, 8), False),  # rows
        ("float32", "float32", (4, 8, 4), True),
        ("float32", None, (4, 8, 4, 4), False),
    ],
)
def test_which_batch_norms_are_of_cudnn(
    dtype: str, weight: str | None, shape: Any, is_of_cudnn: bool
) -> None:
    vectors = [None, None] if weight is None else [g(8, dtype=weight), g(8, dtype=weight)]
    x = g(*shape, dtype=dtype)
    kernels = forward("aten.batch_norm.default", x, *vectors, t(8), t(8), True, 0.1, 1e-5, True)
    assert any("training" in kernel.variant for kernel in kernels) is is_of_cudnn


def test_the_work_of_a_batch_norm_is_its_operators() -> None:
    """Of each element in inference a product with a factor and what is added; a root of each channel."""
    given, _ = batch_norm((4, 8, 4, 4), training=False)
    (kernel,) = forward(*given)
    elements = 4 * 8 * 4 * 4
    assert kernel.vector_flops == 2 * elements + 8
    assert kernel.flops == 0


CHUNK, BLOCKS = 65_536, 320


@pytest.mark.parametrize(
    ("sizes", "tensors", "has_scalars", "expected"),
    [
        # chunks, elements, those of the largest chunk; how often
        ([8, 16], 1, False, [(2, 24, 16, 1)]),
        ([0, 8], 1, False, [(1, 8, 8, 1)]),
        ([CHUNK], 1, False, [(1, CHUNK, CHUNK, 1)]),
        ([CHUNK + 1], 1, False, [(2, CHUNK + 1, CHUNK, 1)]),
        ([BLOCKS * CHUNK], 1, False, [(BLOCKS, BLOCKS * CHUNK, CHUNK, 1)]),
        ([2 * BLOCKS * CHUNK + 3], 1, False, [(BLOCKS, BLOCKS * CHUNK, CHUNK, 2), (1, 3, 3, 1)]),
        ([5, BLOCKS * CHUNK], 1, False, [(BLOCKS, 5 + (BLOCKS - 1) * CHUNK, CHUNK, 1), (1, CHUNK, CHUNK, 1)]),
        ([8] * 110, 1, False, [(110, 880, 8, 1)]),
        ([8] * 111, 1, False, [(110, 880, 8, 1), (1, 8, 8, 1)]),
        ([8] * 65, 2, False, [(64, 512, 8, 1), (1, 8, 8, 1)]),
        # The rest of a tensor is one of the next kernel's 110.
        (
            [BLOCKS * CHUNK + 8, *[8] * 110],
            1,
            False,
            [(BLOCKS, BLOCKS * CHUNK, CHUNK, 1), (110, 880, 8, 1), (1, 8, 8, 1)],
        ),
        ([], 1, False, []),
    ],
)
def test_what_a_kernel_on_lists_holds(
    sizes: list[int], tensors: int, has_scalars: bool, expected: Any
) -> None:
    kernels = groupby(_packed(sizes, Pass(tensors, 1, 1, has_scalars=has_scalars)))
    assert [(*packed, len([*same])) for packed, same in kernels] == expected


def test_factors_of_each_parameter_leave_room_for_fewer() -> None:
    many, few = ([*_packed([8] * 110, Pass(1, 1, 1, has_scalars=each))] for each in (False, True))
    assert len(many) == 1 < len(few)


def test_equal_kernels_follow_one_another() -> None:
    first, second, rest = together("bfloat16", [2 * BLOCKS * CHUNK + 3], Pass(2, 4, 2, "root"))
    assert first == second
    elements = BLOCKS * CHUNK
    assert first == Kernel(
        "optimizer", "bfloat16", 0, 0, 4 * elements, 2 * elements, Chunks(BLOCKS, CHUNK), "root"
    )
    assert rest == Kernel("optimizer", "bfloat16", 0, 0, 4 * 3, 2 * 3, Chunks(1, 3), "root")


@pytest.mark.parametrize(
    ("name", "given", "variant", "lists"),
    [
        # One list more where results are not written over the first.
        ("add_.List", ((t(8),), (t(8),)), "", 2),
        ("add.List", ((t(8),), (t(8),)), "", 3),
        ("mul_.Scalar", ((t(8),), 2.0), "", 1),
        ("addcdiv_.Scalar", ((t(8),), (t(8),), (t(8),)), "quotient", 3),
        ("div_.List", ((t(8),), (t(8),)), "division", 2),
        ("sqrt_.default", ((t(8),),), "root", 1),
    ],
)
def test_lists_that_a_kernel_works_on(name: str, given: Any, variant: str, lists: int) -> None:
    """As many tensors of each parameter leave room for so many parameters."""
    most = {1: 110, 2: 64, 3: 48}[lists]
    long = tuple(each * (most + 1) if isinstance(each, tuple) else each for each in given)
    kernels = forward(f"aten._foreach_{name}", *long, outputs=1)
    assert [kernel[-1] for kernel in made(kernels)] == [Chunks(most, 8), Chunks(1, 8)]
    assert {kernel.variant for kernel in kernels} == {variant}
    read = lists if "_." in name else lists - 1  # one list is written, in place or not
    assert [kernel.read_bytes for kernel in kernels] == [read * 4 * 8 * most, read * 4 * 8]
    assert [kernel.written_bytes for kernel in kernels] == [4 * 8 * most, 4 * 8]
    assert all(kernel.vector_flops == kernel.flops == 0 for kernel in kernels)


def test_lists_without_elements_are_no_kernel() -> None:
    assert forward("aten._foreach_add_.List", (t(0),), (t(0),)) == []


def test_kernels_on_more_elements_than_a_device_holds_are_not_listed() -> None:
    """Of 2**40 elements each kernel has 320 * 65536, of one more there is one kernel of no size."""
    most = 2**40
    assert len(forward("aten._foreach_add_.List", (t(most),), (t(most),))) == -(-most // (BLOCKS * CHUNK))
    size = 4 * (most + 1)
    (kernel,) = forward("aten._foreach_div_.List", (t(most + 1),), (t(most + 1),))
    assert kernel == Kernel("optimizer", "float32", 0, 0, 2 * size, size, variant="division")
