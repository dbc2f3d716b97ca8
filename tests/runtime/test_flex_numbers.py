"""Output, log-sum-exp, gradients and counts of the kernels against dense attention in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from graphflops.rules import find
from graphflops.runtime.flex import (
    PreparedAttention,
    Tiles,
    counted,
    flex_attention,
    override,
    prepare,
    scaled_dot_product_attention,
    sdpa,
)
from tests.runtime.flex_cases import (
    CASES,
    Case,
    Sizes,
    case,
    operands,
    reference,
    reference_gradients,
    seen,
)
from tests.support import t

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Sizes(1, 2, 1, 20, 28, 16, 16)  # one tile a head: the functions are what is tried
KERNELS = ("forward", "query_gradient", "key_gradient")


def tiled(rows: int, columns: int) -> Any:
    tiles = Tiles(rows, columns)
    return override(forward=tiles, query_gradient=tiles, key_gradient=tiles)


def prepared(given: Case, sizes: Sizes, dtype: torch.dtype, block: int) -> tuple[PreparedAttention, Any, Any]:
    score, mask = given.make(sizes, DEVICE)
    q, k, _, _ = operands(sizes, dtype, DEVICE)
    blocks = None
    if mask is not None:
        lengths = (sizes.queries, sizes.keys)
        blocks = create_block_mask(
            mask, sizes.batch, sizes.heads, *lengths, device=DEVICE.type, BLOCK_SIZE=block
        )
    return prepare(q, k, score, blocks), score, mask


def agree(given: Case, sizes: Sizes, dtype: torch.dtype, block: int, tolerance: float) -> None:
    """Run forward and backward, counting; compare everything."""
    attention, score, mask = prepared(given, sizes, dtype, block)
    q, k, v, grad = operands(sizes, dtype, DEVICE)
    wanted = reference_gradients(q, k, v, grad, score, mask, sizes.width**-0.5, sizes)
    out, lse, forward = attention.forward(q, k, v, count=2)
    *gradients, by_query, by_key = attention.backward(q, k, v, out, lse, grad, count=2)
    for found, exact in zip((out, lse, *gradients), wanted, strict=True):
        finite = torch.isfinite(exact)
        assert torch.equal(torch.isfinite(found), finite)
        off = (found.double() - exact)[finite].norm() / exact[finite].norm()
        assert off < tolerance
    visible = int(seen(mask, sizes, DEVICE).sum())
    for kernel, counts in zip(KERNELS, (forward, by_query, by_key), strict=True):
        predicted, executed = attention.predicted(kernel, q, v), counted(counts)
        assert (executed.full_tiles, executed.partial_tiles) == (
            predicted.full_tiles,
            predicted.partial_tiles,
        )
        assert executed.visible == visible


@pytest.mark.parametrize("given", CASES, ids=str)
def test_every_function(given: Case) -> None:
    with tiled(32, 32):
        agree(given, SMALL, torch.float32, 32, 2e-6)


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("bias by head", Sizes(2, 2, 2, 5, 7, 16, 16)),
        ("alibi and causal mask", replace(SMALL, keys=36)),  # two heads share a key head; tiles split blocks
        ("document", Sizes(1, 1, 1, 33, 17, 16, 32)),  # odd lengths, wider values
        ("sliding window", Sizes(1, 1, 1, 20, 20, 24, 24)),  # widths that are no power of two
    ],
)
def test_sizes(name: str, sizes: Sizes) -> None:
    with tiled(16, 16):
        agree(case(name), sizes, torch.float32, 32, 2e-6)


# The interpreter cuts bfloat16 off where a GPU rounds, which doubles its error.
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 3e-2)])
def test_half_precision(dtype: torch.dtype, tolerance: float) -> None:
    with tiled(16, 32):
        agree(case("document"), replace(SMALL, heads=1), dtype, 32, tolerance)


def test_strides_and_descriptors() -> None:
    q, k, v, grad = (
        x.transpose(1, 2).contiguous().transpose(1, 2)
        for x in operands(replace(SMALL, heads=1), torch.float32, DEVICE)
    )
    attention = prepare(q, k)
    tiles = Tiles(16, 32)
    with override(forward=tiles, query_gradient=tiles, key_gradient=tiles):
        by_pointer = attention(q, k, v)
        plain = attention.backward(q, k, v, *by_pointer, grad)
    tiles = Tiles(16, 32, descriptors=True)
    with override(forward=tiles, query_gradient=tiles, key_gradient=tiles):
        by_descriptor = attention(q, k, v)
        described = attention.backward(q, k, v, *by_descriptor, grad)
    for a, b in zip((*by_pointer, *plain[:3]), (*by_descriptor, *described[:3]), strict=True):
        assert torch.equal(a, b)
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert torch.allclose(by_pointer[0].double(), wanted, atol=1e-5)


def test_gradients_numerically() -> None:
    sizes = replace(SMALL, heads=1, queries=3, keys=4)
    q, k, v, _ = (x.requires_grad_() for x in operands(sizes, torch.float64, DEVICE))
    attention = prepare(
        q, k, lambda s, b, h, i, j: torch.where(i >= j - 1, 2 * torch.tanh(s * s / 2), float("-inf"))
    )
    assert torch.autograd.gradcheck(lambda *x: attention(*x, scale=0.7), (q, k, v), fast_mode=True, atol=1e-7)


def test_gradient_through_the_log_sum_exp() -> None:
    sizes = replace(SMALL, heads=1)
    inputs = [x.requires_grad_() for x in operands(sizes, torch.float32, DEVICE)[:3]]
    out, lse = flex_attention(*inputs, return_lse=True)
    found = torch.autograd.grad(out.square().sum() + lse.sin().sum(), inputs)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out, lse = reference(*wide, None, None, 0.25, sizes)
    wanted = torch.autograd.grad(out.square().sum() + lse.sin().sum(), wide)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a.double(), b, atol=1e-5)


def test_rows_that_see_nothing() -> None:
    mask = torch.zeros(1, 1, 20, 28, dtype=torch.bool, device=DEVICE)
    mask[..., :7, :5] = True
    inputs = [x.requires_grad_() for x in operands(replace(SMALL, heads=1), torch.float32, DEVICE)[:3]]
    out, lse = sdpa(*inputs[:2], mask)(*inputs)
    assert (out[:, :, 7:] == 0).all()
    assert torch.isinf(lse[:, :, 7:]).all()
    gradients = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.isfinite(x).all() for x in gradients)
    assert (gradients[0][:, :, 7:] == 0).all()
    assert (gradients[2][:, :, 5:] == 0).all()


@pytest.mark.parametrize(
    "mask, causal",
    [
        (None, False),
        (None, True),
        (torch.arange(2 * 20 * 28).view(1, 2, 20, 28) % 3 != 0, False),
        (torch.linspace(-2, 2, 28).expand(20, 28), False),
    ],
    ids=["dense", "causal", "truth values", "bias"],
)
def test_scaled_dot_product_attention(mask: torch.Tensor | None, causal: bool) -> None:
    q, k, v, _ = operands(SMALL, torch.float32, DEVICE)
    mask = mask if mask is None else mask.to(DEVICE)
    found = scaled_dot_product_attention(q, k, v, mask, causal, enable_gqa=True)
    wide = [x.double() for x in (q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1))]
    bias = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    wanted = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=bias, is_causal=causal)
    assert torch.allclose(found.double(), wanted, atol=1e-5)


def test_counts_meet_the_analysis() -> None:
    """The rule's unmasked matrix work over that of one pair is what the kernel saw, to the element."""
    q, k, v, _ = operands(replace(SMALL, heads=1), torch.float32, DEVICE)
    _, counts = flex_attention(
        q,
        k,
        v,
        block_mask=create_block_mask(
            lambda b, h, i, j: i >= j, None, None, 20, 28, device=DEVICE.type, BLOCK_SIZE=16
        ),
        count=True,
    )
    found = find("aten.scaled_dot_product_attention")
    assert found is not None
    types = [t(*x.shape) for x in (q, k, v)]
    estimate = found.function(*types, is_causal=True)
    assert counts.visible == (estimate.matrix_flops - estimate.masked_flops) // (2 * (16 + 16))
