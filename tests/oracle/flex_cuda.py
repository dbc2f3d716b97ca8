"""Attention kernels on a GPU against a float64 reference, and against torch's compiled flex attention.

    python -m tests.oracle.flex_cuda            # every case, ours alone: errors, counts, repeatability
    python -m tests.oracle.flex_cuda --torch    # and torch.compile(flex_attention) on the same inputs (minutes)

Errors are |x - reference| / |reference| in the Euclidean norm. Prints one line for each case and a summary.
"""

from __future__ import annotations

import argparse
import os
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention as torch_flex

from graphflops.runtime.flex import counted, prepare, sdpa
from tests.runtime.flex_cases import CASES, Sizes, case, operands, reference_gradients, seen

PLAIN = Sizes(2, 4, 4, 512, 512, 64, 64)
SIZES = {
    "plain": PLAIN,
    "gqa": Sizes(2, 8, 2, 512, 512, 128, 128),
    "odd": Sizes(2, 4, 2, 391, 517, 64, 64),
    "narrow": Sizes(1, 4, 4, 384, 384, 16, 16),
    "wide": Sizes(1, 2, 2, 384, 384, 256, 256),
    "value": Sizes(1, 4, 4, 300, 300, 64, 128),
    "width 80": Sizes(1, 4, 4, 384, 384, 80, 80),
}
NAMES = ("out", "lse", "dq", "dk", "dv")
SLACK = {torch.float16: 1.1, torch.bfloat16: 1.1, torch.float32: 1.5}  # of torch's error
FLOOR = 2e-6  # below it both are rounding of single precision


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values as a projection leaves them: [batch, length, heads, width] in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def error(x: torch.Tensor, y: torch.Tensor) -> float:
    finite = torch.isfinite(y)
    if not torch.equal(torch.isfinite(x), finite):
        return float("inf")
    x, y = x.double()[finite], y[finite]
    return float((x - y).norm() / y.norm().clamp(min=1e-30))


def check(job: tuple[str, str, torch.dtype, bool]) -> tuple[str, bool]:
    """One line about one case, and whether all of it holds."""
    name, kind, dtype, compare = job
    try:
        return _check(name, kind, dtype, compare)
    except Exception as problem:
        last = traceback.format_exc().strip().splitlines()
        return (
            f"FAIL {name}, {kind}, {dtype}: {type(problem).__name__}: {str(problem)[:300]} @ {last[-3].strip()}",
            False,
        )


def _check(name: str, kind: str, dtype: torch.dtype, compare: bool) -> tuple[str, bool]:
    device = torch.device("cuda")
    sizes = PLAIN if kind == "strides" else SIZES[kind]
    score, mask = case(name).make(sizes, device)
    q, k, v, grad = operands(sizes, dtype, device)
    if kind == "strides":
        q, k, v, grad = (strided(x) for x in (q, k, v, grad))
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, sizes.batch, sizes.heads, sizes.queries, sizes.keys, device="cuda")
    wanted = reference_gradients(q, k, v, grad, score, mask, sizes.width**-0.5, sizes)
    attention = prepare(q, k, score, blocks)
    out, lse, forward = attention.forward(q, k, v, count=2)
    *gradients, by_query, by_key = attention.backward(q, k, v, out, lse, grad, count=2)
    again = attention.backward(q, k, v, out, lse, grad)
    repeats = all(torch.equal(a, b) for a, b in zip(gradients, again, strict=False))
    visible = int(seen(mask, sizes, device).sum())
    counts = True
    for kernel, found in (("forward", forward), ("query_gradient", by_query), ("key_gradient", by_key)):
        predicted, seen_by = attention.predicted(kernel, q, v), counted(found)
        counts &= (seen_by.full_tiles, seen_by.partial_tiles) == (
            predicted.full_tiles,
            predicted.partial_tiles,
        )
        counts &= seen_by.visible == visible
    ours = [error(x, y) for x, y in zip((out, lse, *gradients), wanted, strict=True)]
    theirs = _torch(q, k, v, grad, score, blocks, wanted) if compare else []
    limit = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    good = (
        all(x <= limit for x in ours)
        if not compare
        else all(x <= SLACK[dtype] * y + FLOOR for x, y in zip(ours, theirs, strict=True))
    )
    texts = [
        f"{word} {x:.2e}" + (f" / {theirs[i]:.2e}" if theirs else "")
        for i, (word, x) in enumerate(zip(NAMES, ours, strict=True))
    ]
    line = f"{name}, {kind}, {str(dtype)[6:]}: {'; '.join(texts)}"
    line += "" if counts else "; COUNTS DIFFER"
    line += "" if repeats else "; NOT REPEATABLE"
    return ("" if good and counts and repeats else "FAIL ") + line, good and counts and repeats


def _torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    score: Any,
    blocks: Any,
    wanted: list[torch.Tensor],
) -> list[float]:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    gqa = q.shape[1] != k.shape[1]
    for options in (None, {"num_stages": 2}, {"num_stages": 1}):
        torch._dynamo.reset()
        compiled = torch.compile(torch_flex, dynamic=False)
        try:
            out, lse = compiled(
                *inputs, score, blocks, enable_gqa=gqa, return_lse=True, kernel_options=options
            )
            gradients = torch.autograd.grad(out, inputs, grad)
            break
        except RuntimeError as problem:  # torch's own choice of stages may not fit with a captured bias
            if "out of resource" not in str(problem) or options == {"num_stages": 1}:
                raise
    return [error(x.detach(), y) for x, y in zip((out, lse, *gradients), wanted, strict=True)]


def masks() -> list[tuple[str, bool]]:
    """scaled_dot_product_attention: a mask of truth values with broadcast axes, and a bias."""
    lines = []
    q, k, v, _ = operands(SIZES["odd"], torch.bfloat16, torch.device("cuda"))
    truth = torch.rand(2, 1, 391, 517, device="cuda") > 0.3
    for name, mask in (("truth values", truth), ("bias", torch.randn(391, 517, device="cuda"))):
        out, _ = sdpa(q, k, mask)(q, k, v)
        wide = [q.double(), *(x.double().repeat_interleave(2, 1) for x in (k, v))]
        wide_mask = mask if mask.dtype == torch.bool else mask.double()
        wanted = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=wide_mask)
        found = error(out, wanted)
        lines.append((f"sdpa with {name}: {found:.2e}", found < 1e-2))
    return lines


def jobs(compare: bool) -> list[tuple[str, str, torch.dtype, bool]]:
    halves = (torch.bfloat16, torch.float16)
    found = [(c.name, "plain", dtype, compare) for c in CASES for dtype in (*halves, torch.float32)]
    varied = ("identity", "causal mask", "alibi and causal mask", "document", "bias by head")
    kinds = [kind for kind in (*SIZES, "strides") if kind != "plain"]
    found += [(name, kind, torch.bfloat16, compare) for kind in kinds for name in varied]
    return found + [("alibi and causal mask", kind, torch.float32, compare) for kind in ("odd", "wide")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1))
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        lines = list(pool.map(check, jobs(given.torch)))
    lines += masks()
    for line, _ in lines:
        print(line)
    print(f"{len(lines)} cases, {sum(not good for _, good in lines)} fail")


if __name__ == "__main__":
    main()
