"""Times the attention kernels over tile sizes and launch settings, on the GPU at hand: what `configs.json` is made of.

    python -m benchmarks.flex_tune [--width 64] [--kernel forward] [--mask full]

Prints TFLOP/s of visible scores by mask for the best settings, the best of all last.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch
from triton.testing import do_bench

from benchmarks import flex
from graphflops.runtime.flex import PreparedAttention, Tiles, launch, override, prepare

if TYPE_CHECKING:
    from collections.abc import Callable


KERNELS = ("forward", "query_gradient", "key_gradient")
PER_PAIR = {
    "forward": 2,
    "query_gradient": 3 + 4,
    "key_gradient": 3 + 4,
}  # products; both gradients run together


def settings(kernel: str, width: int, dtype: str) -> list[Tiles]:
    """What is tried: a tile's sums and operands must have room; the tensor cores do no single precision."""
    if dtype == "float32":
        return [
            Tiles(rows, columns, warps, depth)
            for rows, columns, warps, depth in itertools.product((16, 32, 64), (16, 32, 64), (4, 8), (1, 2))
            if rows * columns * width <= 64 * 32 * 64
        ]
    small, stages = (64, 128) if kernel == "forward" else (32, 64, 128), (1, 2, 3, 4)
    return [
        Tiles(rows, columns, warps, depth, True)
        for rows, columns, warps, depth in itertools.product(small, (32, 64, 128), (4, 8), stages)
        if rows * columns * width <= 128 * 128 * 128
    ]


def prepared(width: int, mask: str, dtype: str) -> tuple[PreparedAttention, tuple[torch.Tensor, ...]]:
    """An attention and its operands: query, key, value, gradient, output and log-sum-exp."""
    case = flex.Case(mask, 4, 16, 16, 4096, width)
    q, k, v, grad = flex.operands(case, getattr(torch, dtype))
    attention = prepare(q, k, *flex.functions(case))
    return attention, (q, k, v, grad, *attention(q, k, v))


def call(attention: PreparedAttention, kernel: str, tensors: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """The launch of a kernel; that of a gradient launches the other one too, in the tiles that it has without settings."""
    q, k, v, grad, out, lse = tensors
    problem = attention.problem(q)
    if kernel == "forward":
        return lambda: launch.forward(q, k, v, problem)
    return lambda: launch.backward(q, k, v, out, lse, grad, None, problem)


def compiled(job: tuple[int, str, str, str, list[Tiles]]) -> list[str]:
    """Compile settings into Triton's cache; what could not be."""
    width, mask, kernel, dtype, settings = job
    attention, tensors = prepared(width, mask, dtype)
    failed = []
    for tiles in settings:
        try:
            with override(**{kernel: tiles}):
                call(attention, kernel, tensors)()
        except Exception as error:  # noqa: BLE001
            failed.append(f"{width} {mask} {kernel} {tiles}: {type(error).__name__} {str(error)[:120]!r}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--kernel", nargs="*", default=KERNELS)
    parser.add_argument("--mask", nargs="*", default=["full", "causal", "window", "alibi+causal"])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--shown", type=int, default=8)
    given = parser.parse_args()
    wanted = [
        (width, mask, kernel, given.dtype, settings(kernel, width, given.dtype))
        for width, mask, kernel in itertools.product(given.width, given.mask, given.kernel)
    ]
    jobs = [(w, m, k, d, s[i::8]) for w, m, k, d, s in wanted for i in range(8)]
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for line in itertools.chain.from_iterable(pool.map(compiled, jobs)):
            print("not compiled:", line)
    speeds: dict[tuple[int, str], dict[Tiles, list[float]]] = {}
    for width, mask, kernel, dtype, tried in wanted:
        attention, tensors = prepared(width, mask, dtype)
        work = PER_PAIR[kernel] * 2 * flex.pairs(flex.Case(mask, 4, 16, 16, 4096, width)) * width
        for tiles in tried:
            try:
                with override(**{kernel: tiles}):
                    time = do_bench(call(attention, kernel, tensors), warmup=5, rep=30, return_mode="median")
            except Exception:  # noqa: BLE001
                continue
            speeds.setdefault((width, kernel), {}).setdefault(tiles, []).append(work / time / 1e9)
    for (width, kernel), found in speeds.items():
        ranked = sorted(found.items(), key=lambda entry: flex.mean(entry[1]))
        for tiles, each in ranked[-given.shown :]:
            print(f"{width:4} {kernel:15} {' '.join(f'{x:5.0f}' for x in each)}  {tiles}", flush=True)


if __name__ == "__main__":
    main()
