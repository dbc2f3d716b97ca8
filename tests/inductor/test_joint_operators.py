"""Operators of the joint graph of one call, forward and backward, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.inductor.lowering import JointGraph
from graphflops.inductor.rowwise import is_along_last
from tests.inductor.one_call import each, kind_of, made, plan_of
from tests.inductor.several_calls import plan_of_calls
from tests.one_call import g
from tests.support import t

N, ROWS, COLUMNS = 6 * 4 * 64, 6 * 4, 64  # of a norm of rows
IMAGES, CHANNELS, PIXELS = 4, 8, 16
E = IMAGES * CHANNELS * PIXELS
HALF = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        (
            "relu",
            (g(4, 64),),
            [
                ("pointwise", 4 * 256, 256, 0, "x0", ""),
                ("pointwise", 256, 256, 0, "y0", ""),  # a truth value for each element
                ("pointwise", 4 * 256, 256, 0, "g1 mask", ""),
            ],
        ),
        (
            "mul.Tensor",
            (g(40, 64), g(64)),
            [
                ("pointwise", 4 * 2560, 2560, 0, "x0 x1", ""),
                ("pointwise", 4 * 2560, 2560, 0, "g1 x1", ""),  # each gradient reads the other factor
                ("reduction", 4 * 64, 2560, 64, "g1 x0", "outer"),
            ],
        ),
        (
            "mul.Tensor",
            (g(40, 64), g(40, 1)),
            [
                ("pointwise", 4 * 2560, 2560, 0, "x0 x1", ""),
                ("pointwise", 4 * 2560, 2560, 0, "g1 x1", ""),
                ("reduction", 4 * 40, 2560, 40, "g1 x0", ""),
            ],
        ),
        (
            "layer_norm",  # two moments of float32 for each row, and sums over columns and rows of the gradient
            (g(6, 4, 64), (64,), g(64), g(64)),
            [
                ("reduction", 8 * ROWS, N, ROWS, "x0", "moments"),
                ("pointwise", 4 * N, N, 0, "x0 x2 x3 statistics", ""),
                ("reduction", 4 * COLUMNS, N, COLUMNS, "g1 x0 statistics", "outer"),
                ("reduction", 4 * COLUMNS, N, COLUMNS, "g1", "outer"),
                ("reduction", 8 * ROWS, N, ROWS, "g1 x0 statistics x2", ""),
                ("pointwise", 4 * N, N, 0, "g1 x0 statistics x2 g5", ""),
            ],
        ),
        (
            "batch_norm",
            (g(4, 8, 4, 4), g(8), g(8), t(8), t(8), True, 0.1, 1e-5, True),
            [
                ("reduction", 8 * CHANNELS, E, CHANNELS, "x0", "moments"),
                ("pointwise", 4 * E, E, 0, "x0 x1 x2 x3 x4 statistics", ""),
                ("reduction", 4 * CHANNELS, E, CHANNELS, "g1 x0 statistics", ""),
                ("reduction", 4 * CHANNELS, E, CHANNELS, "g1", ""),
                ("pointwise", 4 * E, E, 0, "g1 x0 statistics x1 g3 g4", ""),
            ],
        ),
        (
            "batch_norm",
            (g(4, 8, 4, 4), g(8), g(8), t(8), t(8), False, 0.1, 1e-5, True),
            [
                ("pointwise", 4 * E, E, 0, "x0 x1 x2 x3 x4", ""),
                ("reduction", 4 * CHANNELS, E, CHANNELS, "g1 x0", ""),
                ("reduction", 4 * CHANNELS, E, CHANNELS, "g1", ""),
                ("pointwise", 4 * E, E, 0, "g1 x1 x2 x3 x4", ""),
            ],
        ),
        (
            "batch_norm",
            (g(4, 8, 4, 4), t(8), t(8), t(8), t(8), True, 0.1, 1e-5, True),
            [
                ("reduction", 8 * CHANNELS, E, CHANNELS, "x0", "moments"),
                ("pointwise", 4 * E, E, 0, "x0 x1 x2 x3 x4 statistics", ""),
                ("reduction", 8 * CHANNELS, E, CHANNELS, "g1 x0 statistics x1", ""),
                ("pointwise", 4 * E, E, 0, "g1 x0 statistics x1 g3", ""),
            ],
        ),
        (
            "group_norm",  # of 2 images with 80 channels in two groups, of 64 pixels
            (g(2, 80, 8, 8), 2, g(80), g(80)),
            [
                ("reduction", 8 * 4, 10240, 4, "x0", "unordered, moments"),
                ("pointwise", 4 * 10240, 10240, 0, "x0 x2 x3 statistics", ""),
                ("reduction", 4 * 160, 10240, 160, "g1 x0", ""),
                ("reduction", 4 * 160, 10240, 160, "g1", ""),
                ("pointwise", 4 * 80, 80, 0, "g5 g6 statistics", ""),  # sums of two images take no loop
                ("pointwise", 4 * 80, 80, 0, "g5 g6 statistics", ""),
                ("reduction", 8 * 4, 160, 4, "g5 g6 x2", ""),
                ("pointwise", 4 * 10240, 10240, 0, "g1 x0 statistics x2 g7", ""),
                ("pointwise", 4 * 10240, 10240, 0, "g8 statistics g7", ""),
            ],
        ),
        (
            "softmax.int",
            (g(4, 600), -1),
            [
                ("reduction", 8 * 4, 2400, 4, "x0", ""),
                ("pointwise", 4 * 2400, 2400, 0, "x0 statistics", ""),
                ("reduction", 8 * 4, 2400, 4, "g1 y0", ""),
                ("pointwise", 4 * 2400, 2400, 0, "g1 y0 g3", ""),
            ],
        ),
        (
            "softmax.int",
            (g(4, 100, 8), 1),
            [
                ("reduction", 8 * 32, 3200, 32, "x0", "outer"),
                ("pointwise", 4 * 3200, 3200, 0, "x0 statistics", ""),
                ("reduction", 8 * 32, 3200, 32, "g1 y0", "outer"),
                ("pointwise", 4 * 3200, 3200, 0, "g1 y0 g3", ""),
            ],
        ),
        (
            "linear",
            (g(8, 4, 64), g(32, 64), g(32)),
            [
                ("extern", 4 * 1024, 1024, 0, "x0 x1 x2", "stored"),
                ("extern", 4 * 2048, 2048, 0, "g1 x1", ""),
                ("extern", 4 * 2048, 2048, 0, "g1 x0", ""),
                ("reduction", 4 * 32, 1024, 32, "g1", "outer"),
            ],
        ),
        (
            "linear",  # 30 columns are padded to 32 in half precision, and a bias with them
            (g(8, 4, 64, **HALF), g(30, 64, **HALF), g(30, **HALF)),
            [
                ("pointwise", 2 * 32 * 64, 32 * 64, 0, "x1", "alone"),
                ("pointwise", 2 * 32, 32, 0, "x2", "alone"),
                ("extern", 2 * 32 * 32, 960, 0, "x0 1 2", "stored, padded"),
                ("extern", 2 * 2048, 2048, 0, "g1 x1", ""),
                ("extern", 2 * 30 * 64, 2048, 0, "g1 x0", ""),
                ("reduction", 2 * 30, 960, 30, "g1", "outer"),
            ],
        ),
        (
            "matmul",  # so are those of any product of rows with a matrix, where arithmetic takes the time
            (t(2, 1024, 512, **HALF), t(512, 1001, **HALF)),
            [
                ("pointwise", 2 * 512 * 1008, 512 * 1008, 0, "x1", "alone"),
                ("extern", 2 * 2048 * 1008, 2048 * 1001, 0, "x0 1", "stored, padded"),
            ],
        ),
        (
            "matmul",  # of 96 multiply-adds for each result, moving the elements takes the time
            (t(1024, 96, **HALF), t(96, 1001, **HALF)),
            [("extern", 2 * 1024 * 1001, 1024 * 1001, 0, "x0 x1", "stored")],
        ),
        (
            "embedding",  # rows are added up in a table of float32
            (g(100, 8, **HALF), t(4, 5, dtype="int64")),
            [
                ("pointwise", 2 * 160, 160, 0, "x0 x1", "stored"),
                ("pointwise", 4 * 800, 800, 0, "", "alone"),
                ("pointwise", 0, 160, 0, "g1 x1 g3", "stored, adds"),
                ("pointwise", 2 * 800, 800, 0, "g3 g4", ""),
            ],
        ),
        (
            "max_pool2d",  # a position is a byte
            (g(2, 3, 8, 8), (2, 2), (2, 2)),
            [
                ("pointwise", 4 * 96, 96, 0, "x0", "stored, window 4"),
                ("pointwise", 96, 96, 0, "x0", "stored, window 4"),
                ("pointwise", 4 * 384, 384, 0, "g1 x0 positions", "stored"),
            ],
        ),
        (
            "avg_pool2d",
            (g(2, 3, 9, 9), (3, 3), (3, 3)),
            [
                ("pointwise", 4 * 54, 54, 0, "x0", "stored, window 9"),
                ("pointwise", 4 * 486, 486, 0, "g1 x0", "stored"),
            ],
        ),
        (
            "adaptive_avg_pool2d",
            (g(2, 3, 8, 8), (1, 1)),
            [("reduction", 4 * 6, 384, 6, "x0", ""), ("pointwise", 4 * 384, 384, 0, "g1", "")],
        ),
        ("sum.dim_IntList", (g(4, 64), (1,)), [("reduction", 4 * 4, 256, 4, "x0", "")]),
        ("sum.dim_IntList", (g(40, 64), (0,)), [("reduction", 4 * 64, 2560, 64, "x0", "outer")]),
        ("sum.dim_IntList", (g(4, 7), (1,)), [("pointwise", 4 * 4, 4, 0, "x0", "")]),  # seven numbers need no loop
        ("sum.dim_IntList", (g(4, 8), (1,)), [("reduction", 4 * 4, 32, 4, "x0", "")]),
        (
            "cumsum",
            (g(4, 64), 1),
            [("reduction", 4 * 256, 256, 4, "x0", "stored"), ("extern", 4 * 256, 256, 0, "g1", "allocated")],
        ),
        (
            "dropout",
            (g(4, 64), 0.5, True),
            [
                ("pointwise", 4 * 256, 256, 0, "", "stored, random"),
                ("pointwise", 256, 256, 0, "random", ""),
                ("pointwise", 4 * 256, 256, 0, "mask x0", ""),
                ("pointwise", 4 * 256, 256, 0, "g1 mask", ""),
            ],
        ),
        (
            "upsample_bilinear2d.vec",
            (g(4, 8, 8, 8), None, False, (2.0, 2.0)),
            [
                ("pointwise", 4 * 8192, 8192, 0, "x0", "stored, window 4"),
                *[("pointwise", 4 * 2048, 2048, 0, "", "alone")] * 4,  # a table for each of four neighbours
                ("pointwise", 0, 8192, 0, "g1 g3 g4 g5 g6", "stored, adds"),
                ("pointwise", 4 * 2048, 2048, 0, "g3 g4 g5 g6 g7", ""),
            ],
        ),
        ("cat", ((g(4, 8), g(4, 6)), 1), [("pointwise", 4 * 56, 56, 0, "x0_0 x0_1", "stored")]),
        (
            "cross_entropy_loss",
            (g(10, 8), t(10, dtype="int64")),
            [
                ("reduction", 8 * 10, 80, 10, "x0", ""),
                ("reduction", 4, 10, 1, "x0 x1 statistics", ""),  # of each row one element
                ("pointwise", 4 * 80, 80, 0, "g1 x0 x1 statistics", ""),
            ],
        ),
        (
            "convolution",
            (g(2, 8, 16, 16), g(16, 8, 3, 3), g(16), (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
            [
                ("extern", 4 * 8192, 8192, 0, "x0 x1", "stored, allocated"),
                ("pointwise", 4 * 8192, 8192, 0, "bias x2", ""),
                ("extern", 4 * 4096, 4 * 1152, 8192, 0, "g1 x0 x1", "allocated"),
                ("reduction", 4 * 16, 8192, 16, "g1", ""),
            ],
        ),
    ],
)  # fmt: skip
def test_operators_of_one_call(op: str, operands: tuple[Any, ...], expected: list[Any]) -> None:
    name = op if "." in op else f"{op}.default"
    if op == "mul.Tensor":
        name = op
    assert made(plan_of(f"aten.{name}", *operands)) == expected


def test_a_gradient_reads_the_operand_that_was_overwritten() -> None:
    """As it was before: an activation in place makes a new tensor."""
    found = made(plan_of("aten.hardtanh_.default", g(40, 64), 0.0, 6.0))
    assert found[-1] == ("pointwise", 4 * 2560, 2560, 0, "g1 mask", "")


def test_sums_of_images_follow_their_layout() -> None:
    """With channels last, sums of pixels go along outer axes, those of channels along the innermost."""
    joint = JointGraph({}, HOPPER, channels_last=True)
    shape, rows = (8, 64, 7, 7), (8, 7, 7, 64)
    for image, summed, expected in (
        (shape, (0, 2, 3), False),
        (shape, (2, 3), False),
        (shape, (1,), True),
        (rows, (3,), True),
        (rows, (0, 1, 2), False),
        (rows, (1, 2), False),
        ((8, 64, 1, 1), (1,), True),
        ((8, 64), (1,), True),
    ):
        assert is_along_last(joint, image, [axis in summed for axis in range(4)]) == expected
    joint.channels_last = False
    assert is_along_last(joint, shape, (True, False, True, True))


SDPA, S, Q = "aten.scaled_dot_product_attention.default", 2 * 4 * 256 * 256, 2 * 4 * 256 * 64


def test_fused_attention_keeps_a_float32_sum_for_each_query() -> None:
    operands = [g(2, 4, 256, 64, dtype="bfloat16") for _ in range(3)]
    plan = plan_of(SDPA, *operands)
    assert made(plan) == [
        ("extern", 2 * Q, 4 * 2 * 4 * 256, Q, 0, "x0 x1 x2", "stored, allocated"),
        ("extern", 2 * Q, 2 * Q, 2 * Q, Q, 0, "g1 x0 x1 x2 y0 sums", "allocated"),
    ]
    assert plan.joint.ops[1].workspace == 4 * 2 * 4 * 256 * (
        64 + 1
    )  # the query's gradient, and a sum of each row
    inference = plan_of(SDPA, *(t(2, 4, 256, 64, dtype="bfloat16") for _ in range(3)))
    assert inference.backward is None
    assert made(inference) == [("extern", 2 * Q, Q, 0, "x0 x1 x2", "stored, allocated")]


def test_a_mask_of_truth_values_is_converted_once() -> None:
    operands = [g(2, 4, 256, 64) for _ in range(3)]
    mask, *_, gradient = made(plan_of(SDPA, *operands, t(256, 256, dtype="bool")))
    assert mask == ("pointwise", 4 * 256 * 256, 256 * 256, 0, "x3", "")
    assert gradient[-2] == "g1 x0 x1 x2 y0 sums converted"  # the gradient reads the copy too


def test_unfused_attention_is_two_products_with_a_softmax_between_them() -> None:
    """A head of 300 fits in no fused kernel: everything is in float32."""
    q, width = 2 * 4 * 64 * 300, 300
    s, rows = 2 * 4 * 64 * 64, 2 * 4 * 64
    operands = [g(2, 4, 64, width, dtype="bfloat16") for _ in range(3)]
    plan = plan_of(SDPA, *operands, None, 0.1)
    if len(plan.joint.ops) < 4:
        pytest.skip("this platform has a fused kernel for it")
    forward = [
        *[("pointwise", 4 * q, q, 0, name, "") for name in ("x0", "x1", "x2", "y/0.0", "y/1.0")],
        ("extern", 4 * s, s, 0, "y/3.0 y/5.0", "stored"),
        ("reduction", 8 * rows, s, rows, "y/6.0", ""),
        ("pointwise", 4 * s, s, 0, "y/6.0 statistics", ""),
        ("pointwise", 4 * s, s, 0, "", "stored, random"),
        ("pointwise", s, s, 0, "random", ""),
        ("pointwise", 4 * s, s, 0, "mask y/7.0", ""),
        ("pointwise", 2 * s, s, 0, "y/8.0", ""),  # which nothing reads
        ("extern", 4 * q, q, 0, "y/8.0 y/2.0", "stored"),
        ("pointwise", 2 * q, q, 0, "y/10.0", ""),
    ]
    assert made(plan)[: len(forward)] == forward
    backward = made(plan)[len(forward) :]
    assert [(kind, size, elements, kept) for kind, size, elements, kept, *_ in backward] == [
        ("pointwise", 4 * q, q, 0),
        ("extern", 4 * s, q, 0),
        ("extern", 4 * q, q, 0),
        ("pointwise", 4 * s, s, 0),
        ("reduction", 8 * rows, s, rows),
        ("pointwise", 4 * s, s, 0),
        ("extern", 4 * q, q, 0),
        ("extern", 4 * q, q, 0),
        *[("pointwise", 4 * q, q, 0)] * 2,  # of what was scaled
        *[("pointwise", 2 * q, q, 0)] * 3,
    ]


@pytest.mark.parametrize("heads", [7, 8])
def test_gradients_of_a_head_that_queries_share_are_summed(heads: int) -> None:
    """Eight or more repeats take a loop. Rows of scores longer than 1024 numbers begin at multiples of 32."""
    rows, keys, width = 2 * heads * 64, 1030, 300
    own = 2 * 1 * keys * width
    found = made(plan_of(SDPA, g(2, heads, 64, width), *[g(2, 1, keys, width) for _ in range(2)]))
    aligned = rows * 1056 - (1056 - keys)  # the last row ends with its last number
    assert found[6] == ("pointwise", 4 * aligned, rows * keys, 0, "y/11.0 statistics", "")
    summed = ("reduction", 4 * own, heads * own, own) if heads == 8 else ("pointwise", 4 * own, own, 0)
    assert [each[:4] for each in found[-3:-1]] == [summed] * 2


@pytest.mark.parametrize(
    ("dtype", "batch", "filters", "side", "expected"),
    [
        ("float16", 16, 24, 7, 0),
        ("bfloat16", 32, 48, 3, 0),
        ("bfloat16", 16, 160, 7, 2 * (16 * 3 * 224 * 224 + 160 * 3 * 7 * 7) * 8 // 3),
        ("float32", 8, 24, 3, 0),
        ("float32", 8, 96, 3, 4 * (8 * 3 * 224 * 224 + 96 * 3 * 3 * 3)),
    ],
)
def test_workspace_of_a_convolution_of_three_channels(
    dtype: str, batch: int, filters: int, side: int, expected: int
) -> None:
    """As cuDNN 9.19 was seen to take on an H200: read as it lies, padded to eight channels, or rounded in a copy."""
    more = (None, (2, 2), (side // 2, side // 2), (1, 1), False, (0, 0), 1)
    operands = (t(batch, 3, 224, 224, dtype=dtype), t(filters, 3, side, side, dtype=dtype))
    plan = plan_of("aten.convolution.default", *operands, *more)
    assert plan.joint.ops[-1].workspace == expected


def test_eight_channels_need_no_workspace() -> None:
    more = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    eight = plan_of("aten.convolution.default", t(2, 8, 16, 16), t(16, 8, 3, 3), *more)
    assert eight.joint.channels_last
    assert eight.joint.ops[-1].workspace == 0


@pytest.mark.parametrize(
    ("op", "operands", "numbers", "instructions"),
    [
        ("add.Tensor", (t(4, 64), 2.5), (2.5,), 1),
        ("add.Tensor", (t(4, 64), t(4, 64)), (), 1),
        ("softmax.int", (t(4, 600), -1), (), 3),
        ("layer_norm.default", (t(4, 64), (64,)), (), 10),
        ("embedding.default", (t(100, 8), t(4, dtype="int64")), (), 0),
        ("clamp.default", (t(4, 64), 0, 6), (0, 6), 1),
        ("upsample_bilinear2d.vec", (t(4, 8, 8, 8), None, False, (2.0, 2.0)), (), 12),
    ],
)
def test_instructions_and_constants(
    op: str, operands: tuple[Any, ...], numbers: Any, instructions: int
) -> None:
    found = plan_of(f"aten.{op}", *operands).joint.ops[-1]
    assert (found.numbers, found.instructions) == (numbers, instructions)


@pytest.mark.parametrize(("op", "kernels"), [("sum.dim_IntList", 2), ("cumsum.default", 1)])
def test_a_scan_goes_along_its_rows_in_one_kernel(op: str, kernels: int) -> None:
    """A sum of a few long rows is cut into parts, which a second kernel adds."""
    plan = plan_of(f"aten.{op}", t(100_000, 4), (0,) if kernels == 2 else 0)
    assert len(plan.forward.kernels) == kernels


def test_a_copy_across_rows_is_a_kernel_of_its_own() -> None:
    """Heads of queries and keys are sums with one tensor; keys are copied across their rows, which visits tiles."""
    given = {"x": t(2, 16, 4, 8), "y": t(2, 16, 4, 8), "c": t(16, 1, 8)}
    sums = ("a", "add.Tensor", "x", "c"), ("b", "add.Tensor", "y", "c")
    heads = ("q", "transpose.int", "a", 1, 2), ("k", "transpose.int", "b", 1, 2)
    scores = ("r", "transpose.int", "k", 2, 3), ("z", "matmul.default", "q", "r")
    plan = plan_of_calls(given, *sums, *heads, *scores)
    assert [kernel.outputs for kernel in plan.forward.kernels] == [
        ("z operand 0",),
        ("z operand 1",),
        ("z",),
    ]


@pytest.mark.parametrize(
    ("order", "is_across"),
    [
        ((0, 3, 1, 2), True),  # rows of what lay 5 elements apart
        ((0, 2, 1, 3), False),
    ],
)
def test_copies_of_operands_whose_batches_do_not_merge(order: tuple[int, ...], is_across: bool) -> None:
    """A kernel before the product writes what `reshape` copies."""
    shape = (2, 3, 4, 5)
    batch, inner = (shape[order[0]], shape[order[1]]), shape[order[3]]
    turned = ("y", "permute.default", "x", order)
    plan = plan_of_calls(
        {"x": t(*shape), "w": t(*batch, inner, 7)}, turned, ("z", "matmul.default", "y", "w")
    )
    assert each(plan, "is_across") == [is_across, False]


@pytest.mark.parametrize(
    ("shape", "order", "copied"),
    [
        ((4, 6, 8), (2, 0, 1), 4 * 6 * 8 * 4),  # neither rows nor columns lie together, which BLAS needs
        ((2, 6, 8), (2, 1, 0), 2 * 6 * 8 * 4),
        ((4, 2, 1), (1, 0, 2), 0),  # rows of one element lie either way
    ],
)
def test_a_product_copies_what_blas_cannot_read(
    shape: tuple[int, int, int], order: tuple[int, int, int], copied: int
) -> None:
    batch, _, inner = (shape[axis] for axis in order)
    turned = ("y", "permute.default", "x", order)
    plan = plan_of_calls({"x": t(*shape), "w": t(batch, inner, 5)}, turned, ("z", "bmm.default", "y", "w"))
    assert each(plan, "workspace") == [copied]


def test_copies_of_scattered_operands_of_products() -> None:
    plan = plan_of("aten.linear.default", g(64, 64, **HALF), g(50304, 64, **HALF))
    assert each(plan, "is_padded") == [False] * 3


def test_what_is_put_at_indices_goes_to_a_copy_that_nothing_else_has() -> None:
    """Rows of a tensor in one kernel with what makes it; sums in bfloat16 are left to PyTorch."""
    operands = t(100, 8), 0, t(20, dtype="int64"), t(20, 8)
    for op in ("index_copy", "index_add"):
        assert made(plan_of(f"aten.{op}.default", *operands)) == [
            ("pointwise", 4 * 800, 800, 0, "x0", "stored"),
            ("pointwise", 4 * 800, 160, 0, "x2 x3 operand", "stored, adds"),
        ]
    sums = t(100, 8, dtype="bfloat16"), 0, t(20, dtype="int64"), t(20, 8, dtype="bfloat16")
    assert [kind_of(op) for op in plan_of("aten.index_add.default", *sums).joint.ops] == ["extern"]
