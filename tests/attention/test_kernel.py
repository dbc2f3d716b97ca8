"""Which attention kernel runs: the choices that PyTorch 2.11 made on an H200, read from its dispatcher."""

from __future__ import annotations

import pytest

from graphflops.attention.kernel import Operand, Problem, attention_kernel
from graphflops.devices import HOPPER, Platform, device, platform_of
from graphflops.tensor import BFLOAT16, BOOL, FLOAT32, TensorType


def operand(*shape: int, dtype: object = BFLOAT16, last: int = 1, wants: bool = False) -> Operand:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    strides = strides[::-1]
    strides[-1] = last
    return Operand(TensorType(shape, dtype, requires_grad=wants), tuple(strides))  # type: ignore[arg-type]


def problem(width: int = 64, heads: int = 12, shared: int = 12, rows: int = 256, **more: object) -> Problem:
    dtype = more.pop("dtype", BFLOAT16)
    query = operand(4, heads, rows, width, dtype=dtype)
    key = operand(4, shared, 256, width, dtype=dtype)
    return Problem(query, key, key, **more)  # type: ignore[arg-type]


CHOSEN = [
    ("bert, gpt2, llama, vit", problem(), "cudnn"),
    ("mobilevit: 36 is no multiple of 8", problem(width=36), "flash"),
    ("wide heads", problem(width=256), "cudnn"),
    ("heads of 264", problem(width=264), "efficient"),
    ("single precision", problem(dtype=FLOAT32), "efficient"),
    ("grouped queries in single precision", problem(shared=4, is_grouped=True, dtype=FLOAT32), "math"),
    ("a mask in single precision", problem(mask=operand(4, 1, 256, 256, dtype=FLOAT32)), "cudnn"),
    ("gpt with padding mask", problem(mask=operand(4, 1, 256, 256, dtype=BOOL)), "cudnn"),
    (
        "beit while training: the table of positions wants a gradient",
        problem(mask=operand(1, 12, 256, 256, wants=True), wants_gradient=True),
        "efficient",
    ),
    ("beit without gradients", problem(mask=operand(1, 12, 256, 256, wants=True)), "cudnn"),
    ("t5: a permuted table of positions", problem(mask=operand(1, 12, 256, 256, last=12)), "math"),
    ("falcon: one key head, without enable_gqa", problem(shared=1), "math"),
    ("grouped queries with enable_gqa", problem(shared=4, is_grouped=True), "cudnn"),
]


@pytest.mark.parametrize(("what", "asked", "chosen"), CHOSEN, ids=[row[0] for row in CHOSEN])
def test_the_kernel_is_the_one_that_ran(what: str, asked: Problem, chosen: str) -> None:
    assert attention_kernel(asked, HOPPER).kernel == chosen


def test_the_reason_names_each_faster_kernel() -> None:
    choice = attention_kernel(problem(mask=operand(1, 12, 256, 256, last=12)), HOPPER)
    assert choice.reason == (
        "cudnn: the last stride of the mask is not 1; flash: a mask is given; "
        "efficient: the last stride of the mask is not 1"
    )


def test_before_hopper_flash_comes_first() -> None:
    assert attention_kernel(problem(), Platform((8, 0))).kernel == "flash"
    assert attention_kernel(problem(), Platform((7, 5))).kernel == "efficient"


RELEASES = ("2.10", "2.11", "2.12", "2.13", "2.14")


@pytest.mark.parametrize(
    ("asked", "kernels"),
    [  # of RELEASES: what sdp_utils.cpp refuses, by the names and numbers in each release's libtorch_cuda.so
        (problem(), "flash cudnn cudnn cudnn cudnn"),
        (problem(dropout=0.1), "flash cudnn flash flash flash"),
        (problem(dropout=0.125), "flash cudnn cudnn cudnn cudnn"),
        (problem(heads=70_000, shared=70_000), "flash cudnn cudnn flash flash"),
        (problem(width=192), "flash cudnn cudnn cudnn cudnn"),
        (problem(width=192, wants_gradient=True), "flash cudnn cudnn cudnn flash"),
        (problem(width=256, wants_gradient=True), "flash cudnn cudnn cudnn cudnn"),
        (problem(mask=operand(4, 1, 256, 256, dtype=BOOL)), "efficient cudnn cudnn cudnn cudnn"),
    ],
)
def test_releases_of_pytorch_choose_by_limits_of_their_own(asked: Problem, kernels: str) -> None:
    platforms = [platform_of(device("h100"), release) for release in RELEASES]
    assert [attention_kernel(asked, platform).kernel for platform in platforms] == kernels.split()


def test_heads_of_latent_attention_have_gradients_in_every_release() -> None:
    query, value = operand(4, 12, 256, 192), operand(4, 12, 256, 128)
    asked = Problem(query, query, value, wants_gradient=True)
    assert [attention_kernel(asked, platform_of(None, release)).kernel for release in RELEASES[1:]] == [
        "cudnn"
    ] * 4
