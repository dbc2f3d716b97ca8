"""Kernels of matrix products, recurrent cells and attention, and of their gradients, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import devices
from graphflops.kernels.kernel import Attention, Kernel, Product, Rows, Strided
from graphflops.time.predict import predict
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, copied, forward, made, pointwise


def matmul(
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    layout: Any = "tn",
    bias: bool = False,
    width: int = 4,
    algorithm: Any = "",
) -> Kernel:
    """A product of matrices that are each read once, the bias with them."""
    read, written = width * (batch * k * (m + n) + bias * n), width * batch * m * n
    dtype = {4: "float32", 2: "bfloat16"}[width]
    sizes = Product(m, n, k, batch, layout, algorithm)
    return Kernel("matmul", dtype, 2 * batch * m * n * k, bias * m * n, read, written, sizes)


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("linear", (t(8, 4, 64), t(32, 64), t(32)), [matmul(8 * 4, 32, 64, bias=True, algorithm="long")]),
        ("linear", (t(4, 64), t(32, 64)), [matmul(4, 32, 64)]),
        ("matmul", (t(8, 4, 64), t(8, 64, 6)), [matmul(4, 6, 64, 8, "nn")]),
        ("matmul", (t(8, 4, 64), t(64, 6)), [matmul(8 * 4, 6, 64, 1, "nn")]),
        ("matmul", (t(2, 3, 4, 64), t(2, 3, 64, 6)), [matmul(4, 6, 64, 2 * 3, "nn")]),
        ("mm", (t(4, 8, dtype="bfloat16"), t(8, 6, dtype="bfloat16")), [matmul(4, 6, 8, 1, "nn", width=2)]),
        ("addmm", (t(6), t(4, 8), t(8, 6)), [matmul(4, 6, 8, 1, "nn", bias=True)]),
    ],
)  # fmt: skip
def test_products(op: str, operands: tuple[Any, ...], expected: list[Kernel]) -> None:
    assert forward(f"aten.{op}.default", *operands) == expected


@pytest.mark.parametrize(
    ("sizes", "way"),
    [
        ((8, 768, 768), ""),  # threads hold a row each
        ((128, 512, 512), "long"),  # 65,536 results are fewer than 140 * 512
        ((100, 768, 3072), "long"),
        ((100, 3072, 768), "tn"),
        ((196, 768, 768), "tn"),
        ((51, 248, 2008), "long_in_parts"),  # 2 * 8 tiles
        ((51, 248, 200), "long"),
    ],
)
def test_how_a_product_with_a_bias_is_computed_in_float32(sizes: tuple[int, int, int], way: str) -> None:
    m, n, k = sizes
    (kernel,) = forward("aten.linear.default", t(m, k), t(n, k), t(n))
    assert kernel.sizes.algorithm == way
    (half,) = forward("aten.linear.default", *(t(*each, dtype="bfloat16") for each in ((m, k), (n, k), (n,))))
    assert half.sizes.algorithm == ""


@pytest.mark.parametrize(
    ("sizes", "microseconds"),
    [
        *(
            ((128, 512, 512), 20.6),
            ((100, 768, 768), 29.1),
            ((100, 768, 3072), 58.6),
            ((196, 768, 3072), 95.4),
        ),
        *(((77, 488, 4024), 47.7), ((51, 248, 2008), 21.2), ((52, 160, 1480), 17.9), ((339, 344, 984), 30.4)),
    ],
)
def test_products_with_a_bias_take_as_long_as_on_an_h100(
    sizes: tuple[int, int, int], microseconds: float
) -> None:
    m, n, k = sizes
    (kernel,) = forward("aten.linear.default", t(m, k), t(n, k), t(n))
    assert predict(kernel, devices.device("h100")).seconds == pytest.approx(microseconds * 1e-6, rel=0.3)


def test_a_matrix_that_is_added_is_copied_into_the_result_first() -> None:
    before, product = forward("aten.addmm.default", t(4, 6), t(4, 8), t(8, 6))
    assert made([before]) == [pointwise(0, 4 * 4 * 6, 4 * 4 * 6)]
    assert product == matmul(4, 6, 8, 1, "nn")


@pytest.mark.parametrize(
    ("op", "shapes", "steps", "layout"),
    [
        ("mm", ((4, 8), (8, 6)), {0: (1, 4)}, "nt"),
        ("mm", ((4, 8), (8, 6)), {1: (1, 8)}, "tn"),
        ("mm", ((4, 8), (8, 6)), {0: (1, 4), 1: (1, 8)}, "tt"),
        ("linear", ((4, 8), (6, 8)), {0: (1, 4)}, "tt"),
    ],
)
def test_which_axis_of_the_operands_is_contiguous(
    op: str, shapes: Any, steps: dict[int, tuple[int, ...]], layout: str
) -> None:
    a, b = shapes
    (kernel,) = forward(f"aten.{op}.default", t(*a), t(*b), strides=steps)
    assert kernel == matmul(4, 6, 8, 1, layout)


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        (
            "linear",
            (g(8, 4, 64), g(32, 64)),
            [matmul(8 * 4, 64, 32, 1, "nn"), matmul(32, 64, 8 * 4, 1, "nt")],
        ),
        ("linear", (t(8, 4, 64), g(32, 64)), [matmul(32, 64, 8 * 4, 1, "nt")]),
        ("linear", (g(8, 4, 64), t(32, 64)), [matmul(8 * 4, 64, 32, 1, "nn")]),
        ("matmul", (g(8, 4, 64), g(8, 64, 6)), [matmul(4, 64, 6, 8, "tn"), matmul(6, 64, 4, 8, "nt")]),
    ],
)  # fmt: skip
def test_gradients_of_products(op: str, operands: tuple[Any, ...], expected: list[Kernel]) -> None:
    assert backward(f"aten.{op}.default", *operands) == expected


def test_the_gradient_of_a_matrix_times_a_vector_is_a_column_times_a_row() -> None:
    """It reads the four elements of the gradient and the 64 of the vector, and writes the matrix."""
    of_matrix, of_vector = backward("aten.mv.default", g(4, 64), g(64))
    assert made([of_matrix]) == [pointwise(4 * 64, 4 * (4 + 64), 4 * 4 * 64)]
    assert of_vector == matmul(1, 64, 4, 1, "tn")


def test_the_gradient_of_a_bias_is_a_sum_over_rows() -> None:
    (kernel,) = backward("aten.linear.default", t(8, 4, 64), t(32, 64), g(32))
    rows = 8 * 4
    assert made([kernel]) == [("reduction", "outer", rows * 32, 4 * rows * 32, 4 * 32, Rows(32, rows, False))]


def test_rows_that_do_not_follow_one_another_are_copied_and_the_bias_is_added_apart() -> None:
    size = 4 * 8 * 4 * 64
    copy, product, bias = forward(
        "aten.linear.default", t(8, 4, 64), t(32, 64), t(32), strides={0: (64, 8 * 64, 1)}
    )
    assert made([copy]) == [copied(size, size, Strided(8 * 4 * 64, 3, 2))]
    assert product == matmul(8 * 4, 32, 64)
    results = 8 * 4 * 32
    assert made([bias]) == [pointwise(results, 4 * (results + 32), 4 * results, Strided(results, 2, 3))]
    even = forward("aten.linear.default", t(8, 4, 64), t(32, 64), t(32), strides={0: (4 * 80, 80, 1)})
    assert [kernel.family for kernel in even] == ["matmul", "elementwise"]


@pytest.mark.parametrize(
    ("steps", "is_copied"),
    [
        ((8 * 4 * 64, 4 * 64, 64, 1), False),
        ((4 * 64, 2 * 4 * 64, 64, 1), True),  # heads of both images are not evenly apart
        ((8 * 4 * 64, 64, 8 * 64, 1), True),  # rows of a head are 8 * 64 apart, as after a transposition
        ((8 * 4 * 64, 4 * 64, 1, 4), False),  # transposed matrices are read as they lie
        ((8 * 4 * 64 * 2, 4 * 64 * 2, 64 * 2, 2), True),  # no axis is contiguous
    ],
)
def test_operands_that_no_product_can_read_are_copied(steps: tuple[int, ...], is_copied: bool) -> None:
    kernels = forward("aten.matmul.default", t(2, 8, 4, 64), t(2, 8, 64, 6), strides={0: steps})
    assert [kernel.family for kernel in kernels] == ["copy"] * is_copied + ["matmul"]
    if is_copied:
        assert kernels[0].written_bytes == 4 * 2 * 8 * 4 * 64


@pytest.mark.parametrize(("name", "gates"), [("gru", 3), ("lstm", 4), ("rnn_tanh", 1)])
def test_cells_are_two_products_and_one_kernel_for_the_gates(name: str, gates: int) -> None:
    rows, inputs, hidden = 4, 10, 8
    columns = gates * hidden
    state: Any = (g(rows, hidden), g(rows, hidden)) if name == "lstm" else g(rows, hidden)
    weights = (g(columns, inputs), g(columns, hidden), g(columns), g(columns))
    outputs = 2 if name == "lstm" else 1
    first, second, last = forward(
        f"aten.{name}_cell.default", g(rows, inputs), state, *weights, outputs=outputs
    )
    assert first == matmul(rows, columns, inputs)
    assert second == matmul(rows, columns, hidden)
    size = 4 * rows * columns
    assert made([last]) == [pointwise(3 * rows * columns, 2 * size, size // gates)]
    kernels = backward(f"aten.{name}_cell.default", g(rows, inputs), state, *weights, outputs=outputs)
    summed = ("reduction", "outer", rows * columns, size, 4 * columns, Rows(columns, rows, False))
    assert made(kernels[:3]) == [pointwise(3 * rows * columns, 2 * size, size), summed, summed]
    assert kernels[3:] == [
        product
        for width in (inputs, hidden)
        for product in (matmul(rows, width, columns, 1, "nn"), matmul(columns, width, rows, 1, "nt"))
    ]


BATCH, HEADS, QUERIES, WIDTH = 2, 4, 256, 64
PAIRS = BATCH * HEADS * QUERIES * QUERIES


def attention(
    kernel: str, *, kv_heads: int = HEADS, keys: int = QUERIES, dtype: str = "bfloat16", **more: Any
) -> Any:
    given = [
        g(BATCH, heads, rows, WIDTH, dtype=dtype) for heads, rows in ((HEADS, QUERIES), (kv_heads, keys))
    ]
    return ("aten.scaled_dot_product_attention.default", *given, given[1]), {"kernel": kernel, **more}


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_fused_attention_multiplies_the_tiles_that_a_causal_mask_leaves(kernel: Any) -> None:
    operands, more = attention(kernel, kv_heads=2, is_causal=True, enable_gqa=True)
    sizes = (BATCH, HEADS, 2, QUERIES, QUERIES, WIDTH)
    left = 3 / 4  # of 2 x 2 tiles of 128 queries and keys
    (kernel_forward,) = forward(*operands, **more)
    assert kernel_forward.sizes == Attention(*sizes, computed=left, kernel=kernel)
    assert kernel_forward.flops == 2 * 2 * PAIRS * WIDTH * left
    query, key = 2 * BATCH * HEADS * QUERIES * WIDTH, 2 * BATCH * 2 * QUERIES * WIDTH
    assert (kernel_forward.read_bytes, kernel_forward.written_bytes) == (query + 2 * key, query)
    kernel_backward, shared = backward(*operands, **more)
    # each query head's part of the gradients of keys and values is added up
    assert (shared.read_bytes, shared.written_bytes) == (HEADS * key, 2 * key)
    assert kernel_backward.sizes == Attention(*sizes, computed=left, kernel=kernel, phase="backward")
    assert kernel_backward.flops == 5 * 2 * PAIRS * WIDTH * left
    assert kernel_backward.written_bytes == query + 2 * key


@pytest.mark.parametrize(
    ("queries", "keys", "tiles"),
    [(384, 384, (1 + 2 + 3) / 9), (129, 129, 3 / 4), (128, 128, 1.0), (256, 128, 1.0), (128, 256, 0.5)],
)
def test_tiles_of_a_causal_mask(queries: int, keys: int, tiles: float) -> None:
    x, y = t(1, 1, queries, 64), t(1, 1, keys, 64)
    (kernel,) = forward("aten.scaled_dot_product_attention.default", x, y, y, None, 0.0, True, kernel="flash")
    assert isinstance(kernel.sizes, Attention)
    assert kernel.sizes.computed == pytest.approx(tiles)


@pytest.mark.parametrize(
    ("kernel", "keys", "masking"),
    [("cudnn", 251, "uneven"), ("cudnn", 252, "masked"), ("efficient", 256, "masked")],
)
def test_a_mask_of_truth_values_is_turned_into_numbers(kernel: str, keys: int, masking: str) -> None:
    mask = t(QUERIES, keys, dtype="bool")
    operands, more = attention(kernel, keys=keys)
    *numbers, fused = forward(*operands, mask, **more)
    size = QUERIES * keys
    assert made(numbers) == [
        pointwise(0, 0, 2),
        pointwise(0, 0, 2),
        pointwise(size, size, 2 * size, Strided(size, 2, 3)),
    ]
    assert (fused.sizes.masking, fused.flops) == (masking, 2 * 2 * BATCH * HEADS * QUERIES * keys * WIDTH)
    (gradient,) = backward(*operands, mask, **more)
    assert gradient.sizes.masking == "masked"
