"""All kernels of attentions, one after the other: what each computes, reads and writes, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.attention.kernel import Choice, Operand, Problem
from graphflops.execution.strides import row_major
from graphflops.kernels.attention import fused_memory
from graphflops.kernels.kernel import Attention, Product, Rows, Strided
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, copied, forward, kernels_of, launcher_of, made, pointwise

SDPA = "aten.scaled_dot_product_attention.default"
HALF: dict[str, Any] = {"dtype": "bfloat16"}
HEADS, QUERIES, KEYS, WIDTH = 2 * 6, 40, 24, 16
Q, K = HEADS * QUERIES * WIDTH, HEADS * KEYS * WIDTH  # elements of query and result, of key and value
ROWS, SCORES = HEADS * QUERIES, HEADS * QUERIES * KEYS
PAIRS = QUERIES * KEYS  # elements of a mask that all heads share
S = 4 * SCORES  # bytes


def operands(dtype: str = "float32", width: int = WIDTH, keys: int = KEYS, wants: bool = False) -> list[Any]:
    make = g if wants else t
    return [make(2, 6, size, width, dtype=dtype) for size in (QUERIES, keys, keys)]


def fused(width: int, keys: int, kernel: Any, read: int, masking: Any = "") -> Made:
    sizes = Attention(2, 6, 6, QUERIES, keys, width, kernel=kernel, masking=masking)
    return ("attention", "", 0, read, 2 * HEADS * QUERIES * width, sizes)


def zeros(count: int) -> Made:
    return pointwise(0, 0, 2 * count)


def test_heads_of_flash_attention_are_filled_up_to_eight() -> None:
    """12 numbers of each are copied among 16 zeros."""
    rows = HEADS * QUERIES, HEADS * KEYS, HEADS * KEYS
    copies = [each for count in rows for each in (zeros(16 * count), copied(24 * count, 24 * count))]
    whole = fused(12, KEYS, "flash", 2 * 12 * sum(rows))
    assert made(forward(SDPA, *operands("bfloat16", 12), kernel="flash")) == [*copies, whole]
    for kernel in ("efficient", "cudnn"):
        assert len(forward(SDPA, *operands("bfloat16", 12), kernel=kernel)) == 1
    assert len(forward(SDPA, *operands("bfloat16", 16), kernel="flash")) == 1


def test_rows_of_a_mask_of_the_efficient_kernel_are_filled_up_to_eight() -> None:
    """21 to 24."""
    given, mask = operands("bfloat16", keys=21), t(QUERIES, 21, **HALF)
    elements, count = 2 * (Q + 2 * HEADS * 21 * WIDTH), QUERIES * 21
    assert made(forward(SDPA, *given, mask, kernel="efficient")) == [
        zeros(QUERIES * 24),
        copied(2 * count, 2 * count, Strided(count, 2, 2)),
        fused(WIDTH, 21, "efficient", elements + 2 * count, "masked"),
    ]
    assert len(forward(SDPA, *given, kernel="efficient")) == 1
    assert len(forward(SDPA, *operands("bfloat16"), t(QUERIES, KEYS, **HALF), kernel="efficient")) == 1


NUMBERS = [zeros(1), zeros(1), pointwise(PAIRS, PAIRS, 2 * PAIRS, Strided(PAIRS, 2, 3))]


def test_a_mask_of_truth_values_is_made_one_of_numbers() -> None:
    """Two of one number, and a choice between them for each pair."""
    found = made(forward(SDPA, *operands("bfloat16"), t(QUERIES, KEYS, dtype="bool"), kernel="efficient"))
    assert found[:-1] == NUMBERS


def product(m: int, n: int, k: int, layout: Any) -> Made:
    sizes = Product(m, n, k, HEADS, layout)
    return ("matmul", "", 0, 4 * HEADS * (m * k + k * n), 4 * HEADS * m * n, sizes)


SCALED = [pointwise(Q, 4 * Q, 4 * Q), pointwise(K, 4 * K, 4 * K)]
FIRST, SECOND = product(QUERIES, KEYS, WIDTH, "tn"), product(QUERIES, WIDTH, KEYS, "nn")
SOFTMAX = [
    ("softmax", "softmax", 5 * SCORES, S, S, Rows(ROWS, KEYS)),
    pointwise(SCORES, S, SCORES),  # which are -inf
    ("reduction", "", SCORES, SCORES, ROWS, Rows(ROWS, KEYS)),
    pointwise(SCORES, S + ROWS, S, Strided(SCORES, 2, 3)),
]
CONVERTED = [copied(2 * n, 4 * n, Strided(n, 1, 2, has_casts=True)) for n in (Q, K, K)]
BACK = [copied(4 * Q, 2 * Q), copied(S, 2 * SCORES)]


# The numbers are read where they are.
CHOSEN = [*NUMBERS[:2], pointwise(PAIRS, PAIRS + 2 * 2, 2 * PAIRS, Strided(PAIRS, 1, 4))]


def masked(read: int, has_casts: bool) -> Made:
    return pointwise(SCORES, S + read, S, Strided(SCORES, 2, 3, has_casts=has_casts))


def unfused(*given: Any, **more: Any) -> tuple[list[Made], list[Made]]:
    """What a step launches for an attention of three axes, which no kernel of its own takes, and for its gradients."""
    heads = [replace(x, shape=(HEADS, *x.shape[2:])) for x in given[:3]] if given[0].rank > 3 else given[:3]
    launcher = launcher_of(SDPA, *heads, *given[3:], **more)
    return made(kernels_of(launcher.forward(records=True))), made(kernels_of(launcher.backward()))


@pytest.mark.parametrize(
    ("dtype", "more", "expected"),
    [
        ("float32", (), [*SCALED, FIRST, *SOFTMAX, SECOND]),
        ("float32", (t(40, 24),), [*SCALED, FIRST, masked(4 * PAIRS, False), *SOFTMAX, SECOND]),
        ("bfloat16", (), [*CONVERTED, *SCALED, FIRST, *SOFTMAX, BACK[1], SECOND, BACK[0]]),
        (
            "bfloat16",
            (t(40, 24, **HALF),),
            [*CONVERTED, *SCALED, FIRST, masked(2 * PAIRS, True), *SOFTMAX, BACK[1], SECOND, BACK[0]],
        ),
        (
            "bfloat16",
            (t(40, 24, dtype="bool"),),
            [
                *CHOSEN,
                *CONVERTED,
                *SCALED,
                FIRST,
                masked(2 * PAIRS, True),
                *SOFTMAX,
                BACK[1],
                SECOND,
                BACK[0],
            ],
        ),
    ],
)
def test_all_that_an_unfused_attention_runs(dtype: str, more: Any, expected: list[Made]) -> None:
    assert unfused(*operands(dtype, wants=True), *more)[0] == expected


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_cpu_takes_as_long_for_each_kernel_of_an_unfused_attention(phase: str) -> None:
    launcher = launcher_of(SDPA, *[g(HEADS, QUERIES, WIDTH) for _ in range(3)])
    made = launcher.forward(records=True) if phase == "forward" else launcher.backward()
    each = launcher.costs[f"{phase}.inside"]
    assert [launch.host_seconds for launch in made[1:]] == [
        each * len(launch.kernels or ()) for launch in made[1:]
    ]


def test_a_causal_mask_is_made_of_ones() -> None:
    """Below the diagonal; then the numbers 0 and -inf."""
    plain, causal = (unfused(*operands(), *more)[0] for more in ((), (None, 0.0, True)))
    query, *before, key, product, added = causal[:9]
    assert [each[4] for each in before] == [PAIRS, PAIRS, 4, 4, 4 * PAIRS]
    assert added == masked(4 * PAIRS, False)
    assert [query, key, product, *causal[9:]] == plain


def test_keys_that_heads_share_are_repeated_for_each() -> None:
    given = g(2, 6, QUERIES, WIDTH), g(2, 2, KEYS, WIDTH), g(2, 2, KEYS, WIDTH)
    repeated = [copied(4 * K // 3, 4 * K, Strided(K, 3, 2))] * 2
    launcher = launcher_of(SDPA, *given, enable_gqa=True)
    found = made(kernels_of(launcher.forward(records=True)))
    assert found == [SCALED[0], *repeated, SCALED[1], FIRST, *SOFTMAX, SECOND]


TURNED_BACK = [
    product(QUERIES, KEYS, WIDTH, "tn"),  # gradients of the probabilities, of values, of queries and of keys
    product(WIDTH, KEYS, QUERIES, "nt"),
    pointwise(SCORES, 2 * S, S),
    ("softmax", "softmax_backward", 8 * SCORES, 2 * S, S, Rows(ROWS, KEYS)),
    product(QUERIES, WIDTH, KEYS, "nn"),
    product(KEYS, WIDTH, QUERIES, "nt"),
    *SCALED[::-1],
]


def test_all_that_its_gradient_runs() -> None:
    _, (_, one, *found) = unfused(*operands(wants=True))
    assert one == pointwise(
        0, 0, 4
    )  # the gradient of the sum, which each product of the result copies to all elements
    copies = [each for each in found if each[0] == "elementwise" and each[3:5] == (4, 4 * Q)]
    assert (found[0], found[2]) == (*copies,)
    assert [found[1], *found[3:]] == TURNED_BACK
    _, halves = unfused(*operands("bfloat16", wants=True))
    casts = [each[3:5] for each in halves if each[0] == "copy"]
    assert casts == [(2 * Q, 4 * Q), *[(4 * n, 2 * n) for n in (K, K, Q)]]


@pytest.mark.parametrize(
    ("keys", "queries", "mask", "masking"),
    [
        (24, 40, (40, 24), "masked"),
        (24, 40, (1, 24), "row"),
        (24, 40, (24,), "row"),
        (24, 1, (1, 24), "masked"),
        (22, 40, (40, 22), "masked"),
        (21, 40, (40, 21), "uneven"),
        (22, 1, (1, 22), "uneven"),
        (24, 40, None, ""),
        (24, 2, (1, 24), "row"),
        (22, 2, (2, 22), "masked"),
    ],
)
def test_masks_of_cudnn(keys: int, queries: int, mask: Any, masking: str) -> None:
    """Rows of 2 keys load at once, and of 4 where there is one query."""
    given = [t(2, 6, size, WIDTH, **HALF) for size in (queries, keys, keys)]
    extra = [] if mask is None else [t(*mask, **HALF)]
    *_, kernel = forward(SDPA, *given, *extra, kernel="cudnn")
    assert kernel.sizes.masking == masking


@pytest.mark.parametrize(
    ("kernel", "mask", "masking"),
    [("cudnn", (), "dropout"), ("cudnn", (40, 24), "masked_dropout"), ("efficient", (40, 24), "dropout")],
)
def test_a_forward_that_drops_weights_has_a_time_of_its_own(kernel: Any, mask: Any, masking: str) -> None:
    given = [t(2, 6, size, WIDTH, **HALF) for size in (40, 24, 24)]
    *_, found = forward(SDPA, *given, t(*mask, **HALF) if mask else None, 0.1, kernel=kernel)
    assert found.sizes.masking == masking


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("width", [12, 16])
def test_memory_of_heads_that_are_filled_up(kernel: Any, width: int) -> None:
    """Copies of three operands with 16 numbers for 12, and a result of 16 beside one of 12; sums of gradients in float32."""
    given = [Operand(x, row_major(x.shape)) for x in operands("bfloat16", width)]
    numbers = t(QUERIES, KEYS, dtype="bool")
    mask = Operand(numbers, row_major(numbers.shape))
    out = 2 * HEADS * QUERIES * width
    found = fused_memory(Problem(*given, mask, 0.0), Choice(kernel, ""), out)
    rows, is_filled = HEADS * (QUERIES + 2 * KEYS), kernel == "flash" and width == 12
    filled = 2 * 16 * rows + 2 * 16 * HEADS * QUERIES - out
    assert found.mask_copy == 2 * PAIRS
    assert found.forward == 2 * PAIRS + filled * is_filled
    sums = 64 * 64 + 4 if kernel == "efficient" else QUERIES * width  # a whole block and its locks
    assert found.backward == 4 * HEADS * (sums + QUERIES)
    assert found.gradient_parts == (0, 0)


@pytest.mark.parametrize(("strides", "read"), [({}, K), ({1: (2 * KEYS * WIDTH, 0, WIDTH, 1)}, K // 6)])
def test_heads_that_are_repeated_by_a_copy_are_all_read(strides: Any, read: int) -> None:
    """Of keys that all six heads share a tensor that repeats them has one."""
    query, key, value = operands("bfloat16")
    key = t(2, 6, KEYS, WIDTH, dtype="bfloat16", stored=K // 6)
    (kernel,) = forward(SDPA, query, key, value, kernel="flash", strides=strides)
    assert kernel.read_bytes == 2 * (Q + read + K)
