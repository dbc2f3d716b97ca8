"""Our attention kernels, torch.compile(flex_attention) and cuDNN, in one run on the GPU at hand.

    python -m benchmarks.flex

TFLOP/s of the scores that are visible, a multiply-add being two; a backward counts 2.5 times its forward. Medians.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench

from graphflops.runtime.flex import prepare

WINDOW = 1024


@dataclass(frozen=True)
class Case:
    mask: str
    batch: int
    heads: int
    key_heads: int
    length: int
    width: int

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.key_heads else f"{self.heads}/{self.key_heads}"
        return f"({self.batch}, {heads}, {self.length}, {self.width}) {self.mask}"


CASES = (
    *(Case(mask, 4, 16, 16, 4096, 64) for mask in ("full", "causal", "window")),
    *(Case(mask, 4, 16, 16, 4096, 128) for mask in ("full", "causal", "alibi+causal", "window")),
    Case("causal", 2, 32, 8, 8192, 128),
)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < WINDOW)


def pairs(case: Case) -> int:
    """Visible scores."""
    n, w = case.length, WINDOW
    one = {"full": n * n, "window": w * (w + 1) // 2 + (n - w) * w}.get(case.mask, n * (n + 1) // 2)
    return case.batch * case.heads * one


def time(function: Any) -> float:
    return float(do_bench(function, warmup=50, rep=300, return_mode="median"))


def both(forward: Any, inputs: list[torch.Tensor], grad: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of the forward and of the backward."""
    with torch.no_grad():
        first = time(lambda: forward(*inputs))
    wanted = [x.detach().requires_grad_() for x in inputs]
    out = forward(*wanted)
    return first, time(lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True))


def operands(case: Case, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Query, key, value and the gradient of the output."""
    torch.manual_seed(0)
    heads = (case.heads, case.key_heads, case.key_heads, case.heads)
    shape = (case.length, case.width)
    return [torch.randn(case.batch, h, *shape, device="cuda", dtype=dtype) for h in heads]


def functions(case: Case) -> tuple[Any, Any]:
    """Score function and block mask."""
    mask = {"full": None, "window": window}.get(case.mask, causal)
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, None, None, case.length, case.length, device="cuda")
    slopes = torch.exp2(-8.0 * torch.arange(1, case.heads + 1, device="cuda") / case.heads)
    score = (lambda s, b, h, q, k: s + (k - q) * slopes[h]) if case.mask.startswith("alibi") else None
    return score, blocks


def run(case: Case) -> dict[str, tuple[float, float] | None]:
    """TFLOP/s by implementation."""
    q, k, v, grad = operands(case)
    score, blocks = functions(case)
    shared = case.heads != case.key_heads
    ours = prepare(q, k, score, blocks)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    times = {
        "ours": both(lambda q, k, v: ours(q, k, v)[0], [q, k, v], grad),
        "flex": both(
            lambda q, k, v: compiled(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=shared),
            [q, k, v],
            grad,
        ),
        "cudnn": None,
    }
    if case.mask in ("full", "causal"):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            times["cudnn"] = both(
                lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=case.mask == "causal", enable_gqa=shared
                ),
                [q, k, v],
                grad,
            )
    work = 4 * pairs(case) * case.width / 1e9
    return {name: t and (work / t[0], 2.5 * work / t[1]) for name, t in times.items()}


def counting() -> None:
    """What counting costs: medians of the same kernel with it and without."""
    q, k, v = (torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    blocks = create_block_mask(causal, None, None, 4096, 4096, device="cuda")
    ours = prepare(q, k, None, blocks)
    for word, count in (("tiles", 1), ("tiles and visible scores", 2)):
        ratios = []
        for _ in range(5):
            without = time(lambda: ours.forward(q, k, v, count=0))
            ratios.append(time(lambda: ours.forward(q, k, v, count=count)) / without)  # noqa: B023
        print(f"counting {word}: {100 * (sorted(ratios)[2] - 1):+.2f} % of the forward's time")


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=int, nargs="*")
    given = parser.parse_args()
    chosen = CASES if given.case is None else [CASES[i] for i in given.case]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, bfloat16")
    print(
        f"{'TFLOP/s, forward / backward':36} {'ours':>11} {'flex':>11} {'cudnn':>11} {'of flex':>13} {'of cudnn':>13}"
    )
    ratios: dict[str, list[tuple[float, float]]] = {"flex": [], "cudnn": []}
    for case in chosen:
        speeds = run(case)
        texts, parts = [], []
        for name in ("ours", "flex", "cudnn"):
            speed = speeds[name]
            texts.append(f"{speed[0]:5.0f}/{speed[1]:5.0f}" if speed else f"{'-':>11}")
            if speed and name != "ours":
                ratio = (speeds["ours"][0] / speed[0], speeds["ours"][1] / speed[1])
                ratios[name].append(ratio)
                parts.append(f"{ratio[0]:6.2f}/{ratio[1]:6.2f}")
            elif name != "ours":
                parts.append(f"{'-':>13}")
        print(f"{case!s:36} {' '.join(texts)} {' '.join(parts)}", flush=True)
    for name, found in ratios.items():
        if found:
            print(
                f"geometric mean of {name}: forward {mean([x for x, _ in found]):.3f}, "
                f"backward {mean([x for _, x in found]):.3f}"
            )
    counting()


if __name__ == "__main__":
    main()
