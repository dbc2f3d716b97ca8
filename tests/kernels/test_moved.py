"""Facts about how tensors lie, by which kernels are chosen."""

from __future__ import annotations

import pytest

from graphflops.devices import HOPPER
from graphflops.execution.strides import row_major
from graphflops.kernels.beside import reduction_buffers
from graphflops.kernels.call import Tensor
from graphflops.kernels.kernel import Strided
from graphflops.kernels.moved import copy, is_last
from graphflops.tensor import BFLOAT16, FLOAT32
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward


def tensor(shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return Tensor(shape, "float32", 32, strides, 4)


@pytest.mark.parametrize(
    ("shape", "strides", "last", "contiguous", "repeated", "transposed"),
    [
        ((2, 8, 5), (40, 5, 1), False, True, False, False),
        ((2, 8, 5), (40, 1, 8), True, False, False, True),
        ((2, 8, 5, 5), (200, 1, 40, 8), True, False, False, False),
        ((2, 1, 5), (5, 1, 1), False, True, False, False),  # one channel is innermost in either order
        ((8, 5), (5, 1), False, True, False, False),
        ((5, 8), (1, 5), False, False, False, True),
        ((8, 5), (0, 1), False, False, True, False),
        ((1, 5), (0, 1), False, True, False, False),
        ((8, 5), (10, 2), False, False, False, False),
        ((), (), False, True, False, False),
    ],
)
def test_how_a_tensor_lies(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    last: bool,
    contiguous: bool,
    repeated: bool,
    transposed: bool,
) -> None:
    x = tensor(shape, strides)
    assert is_last(x) is last
    assert (x.is_contiguous, x.is_repeated, x.is_transposed) == (contiguous, repeated, transposed)


@pytest.mark.parametrize(
    ("shape", "axes", "merged", "of"),
    [  # axes that lie together are one
        ((4, 1024, 1024), {1, 2}, (4, 1024**2), {1}),
        ((1024, 1024, 4), {0, 1}, (1024**2, 4), {0}),
        ((2, 2, 1024**2), {2}, (4, 1024**2), {1}),
        ((1, 4, 1, 1024**2), {3}, (4, 1024**2), {1}),
        ((1024, 4, 32, 32), {0, 2, 3}, (1024, 4, 1024), {0, 2}),
    ],
)
def test_axes_that_lie_together_are_reduced_as_one(
    shape: tuple[int, ...], axes: set[int], merged: tuple[int, ...], of: set[int]
) -> None:
    found = reduction_buffers(shape, row_major(shape), axes, 4, HOPPER)
    assert found == reduction_buffers(merged, row_major(merged), of, 4, HOPPER)
    assert found


def test_an_attention_of_matrices_has_one_head() -> None:
    for shape, batch, heads in (((8, 16), 1, 1), ((4, 8, 16), 1, 4), ((2, 4, 8, 16), 2, 4)):
        found = forward(
            "aten.scaled_dot_product_attention.default", *[t(*shape, dtype="bfloat16")] * 3, kernel="flash"
        )
        sizes = [kernel.sizes for kernel in found if kernel.family == "attention"]
        assert [(each.batch, each.heads, each.queries, each.width) for each in sizes] == [
            (batch, heads, 8, 16)
        ]  # type: ignore[union-attr]


def test_every_second_element_is_walked() -> None:
    """Of 8 bytes that are loaded for an element of 4, 4 are waste."""
    (kernel,) = forward("aten.relu.default", t(64), strides={0: (2,)})
    assert kernel.sizes == Strided(64, 1, 2, 4.0)
    (kernel,) = forward("aten.relu.default", t(64))
    assert kernel.sizes is None


def test_the_gradient_of_a_conversion_is_converted_back() -> None:
    size = 4 * 64
    (back,) = backward("aten.to.dtype", g(4, 64), BFLOAT16)
    assert (back.family, back.read_bytes, back.written_bytes) == ("copy", 2 * size, 4 * size)
    assert backward("aten.to.dtype", g(4, 64), FLOAT32) == []


@pytest.mark.parametrize(
    ("dtype", "step", "waste"),
    [  # as many bytes are loaded as lie between elements, at most the 32 of a sector
        ("float32", 2, 2 * 4 - 4),
        ("float32", 8, 8 * 4 - 4),
        ("float32", 9, 32 - 4),
        ("bfloat16", 2, 2 * 2 - 2),
        ("bfloat16", 16, 16 * 2 - 2),
        ("bfloat16", 64, 32 - 2),
    ],
)
def test_what_is_loaded_between_elements(dtype: str, step: int, waste: int) -> None:
    (kernel,) = forward("aten.relu.default", t(64, dtype=dtype), strides={0: (step,)})
    assert kernel.sizes == Strided(64, 1, 2, waste)


@pytest.mark.parametrize(
    ("dtype", "width", "bits", "sizes"),
    [  # narrowed from float32 to 16 bits, it is as fast as one that moves elements; else it computes addresses
        ("float32", 32, None, None),
        ("float32", 32, 16, None),
        ("float32", 32, 64, Strided(3 * 5, 1, 2, has_casts=True)),
        ("float64", 64, 16, Strided(3 * 5, 1, 2, has_casts=True)),
    ],
)
def test_a_copy_to_another_element_type_writes_its_bytes(
    dtype: str, width: int, bits: int | None, sizes: Strided | None
) -> None:
    read = 3 * 5 * width // 8
    kernel = copy(Tensor((3, 5), dtype, width, (5, 1), read), bits)
    assert (kernel.read_bytes, kernel.written_bytes) == (read, 3 * 5 * (bits or width) // 8)
    variant = "cast" if sizes else "narrowed" if kernel.read_bytes != kernel.written_bytes else "memcpy"
    assert (kernel.sizes, kernel.variant) == (sizes, variant)
