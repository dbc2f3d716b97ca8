"""Random score and mask functions of flexible attention: what is counted of them against all pairs asked by torch.

    python -m tests.oracle.flex_masks [FIRST] [LAST]

Functions are made of places, captured tensors and numbers with the operators that such functions are written with. Visible pairs
and blocks must be those that torch finds by computing the functions of all pairs at once. Prints each that differs or is not
counted for certain, and one summary line; exits 1 if there is one.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from graphflops.analysis import analyze
from tests.attention.flex_programs import PAIR, at, flexible

BATCH, HEADS, LONGEST = 2, 3, 40
TENSORS = {
    "d": torch.tensor([0] * 3 + [1] * 6 + [2] * 11 + [3] * 20),
    "t": torch.arange(2 * LONGEST).view(2, LONGEST) * 7 % 13 - 3,
    "f": (torch.arange(LONGEST) * 1.37).sin().bfloat16(),
    "m": (torch.arange(LONGEST)[:, None] * 5 + torch.arange(LONGEST) * 3) % 7 < 2,
}
NAMES = {"torch": torch, "at": at, "hidden": float("-inf")}


def number(draw: random.Random, depth: int) -> str:
    """A whole number, as Python; `z` is a zero that makes a tensor of a number."""
    if depth == 0 or draw.random() < 0.25:
        leaves = ["q", "k", "q", "k", "b", "h", str(draw.randint(-5, 12))]
        return draw.choice([*leaves, "at(d, q)", "at(d, k)", "at(t, b, k)"])
    a, b = number(draw, depth - 1), number(draw, depth - 1)
    return draw.choice(
        [
            *(f"({a} + {b})", f"({a} - {b})", f"({a} * {draw.randint(-3, 4)})", f"(-{a})", f"abs(z + {a})"),
            *(
                f"({a} // {draw.randint(1, 9)})",
                f"({a} % {draw.randint(1, 9)})",
                f"torch.minimum(z + {a}, z + {b})",
            ),
            f"(z + {a}).clamp({draw.randint(-4, 3)}, {draw.randint(4, 20)})",
            f"torch.where(z + {a} >= {b}, z + {a}, z + {b})",
        ]
    )


def truth(draw: random.Random, depth: int) -> str:
    """A truth."""
    if depth == 0 or draw.random() < 0.2:
        compares = draw.choice([">=", "<=", "<", ">", "==", "!="])
        a, b = number(draw, 2), number(draw, 1)
        rare = [
            "at(m, q, k)",
            f"(at(f, q) {compares} at(f, k) * 0.5 + 0.1)",
            f"((z + {a}) * 0.3 {compares} {b})",
        ]
        return draw.choice(rare) if draw.random() < 0.25 else f"(z + {a} {compares} {b})"
    a, b = truth(draw, depth - 1), truth(draw, depth - 1)
    chosen = f"torch.where({a}, {b}, {truth(draw, depth - 1)})"
    return draw.choice(
        [f"({a} & {b})", f"({a} | {b})", f"(~{a})", f"({a} ^ {b})", f"torch.logical_and({a}, {b})", chosen]
    )


def score(draw: random.Random) -> str:
    """A score, which may be hidden."""
    where = truth(draw, 1)
    twice = f"torch.where({where}, torch.where({truth(draw, 1)}, s, -1e9), s + at(t, b, q))"
    plain = ["s", "s", "s * 0.5 + (q - k) * 0.1", f"torch.where({where}, s * 2, s)"]
    hiding = [
        f"torch.where({where}, s, hidden)",
        f"s + torch.where({where}, 0.0, hidden)",
        f"s.masked_fill({where}, hidden)",
    ]
    return draw.choice([*plain, *hiding, twice])


@dataclass(frozen=True)
class Drawn:
    """Two functions, as Python, and the lengths and the block that they are counted for."""

    mask: str
    score: str
    queries: int
    keys: int
    block: int

    @staticmethod
    def of(seed: int) -> Drawn:
        draw = random.Random(seed)
        functions = truth(draw, 2), score(draw)
        return Drawn(
            *functions, draw.randint(1, LONGEST), draw.randint(1, LONGEST), draw.choice([4, 7, 8, 16])
        )

    def functions(self) -> tuple[Any, Any]:
        """Of the mask, and of scores."""
        places, tensors = "b, h, q, k", ", ".join(TENSORS)
        of_mask = f"lambda {places}, {tensors}: (lambda z: {self.mask})(q * 0)"
        return eval(of_mask, NAMES), eval(
            f"lambda s, {places}, {tensors}: (lambda z: {self.score})(q * 0)", NAMES
        )

    def expected(self) -> tuple[int, int, int]:
        """Visible pairs, partial and full blocks, by computing everything."""
        mask, of_scores = self.functions()
        sizes = (BATCH, HEADS, self.queries, self.keys)
        places = [
            torch.arange(size, dtype=torch.int32).view([-1 if axis == at else 1 for at in range(4)])
            for axis, size in enumerate(sizes)
        ]
        seen = mask(*places, *TENSORS.values()).expand(sizes)
        kept = of_scores(torch.full(sizes, 0.5), *places, *TENSORS.values()) > -1e8
        ends = (0, -self.keys % self.block, 0, -self.queries % self.block)
        blocks = (
            torch.nn.functional.pad(seen, ends).unflatten(2, (-1, self.block)).unflatten(4, (-1, self.block))
        )
        pairs, whole = blocks.sum((3, 5)), self.block**2
        partial, full = (pairs > 0) & (pairs < whole), pairs == whole
        return int((seen & kept).sum()), int(partial.sum()), int(full.sum())

    def counted(self) -> tuple[Any, ...]:
        """The same, counted; what is doubtful instead, if anything is."""
        mask, of_scores = self.functions()
        sizes = (BATCH, HEADS, self.queries, self.keys)
        report = analyze(flexible(*sizes, mask=mask, score=of_scores, tensors=TENSORS, block=self.block))
        if report.diagnostics:
            return tuple(diagnostic.message for diagnostic in report.diagnostics)
        (use,) = report.attentions
        return (use.flops - use.masked_flops) // PAIR, use.partial_blocks, use.full_blocks


def main() -> int:
    first, last = (int(x) for x in (sys.argv[1:3] if len(sys.argv) > 2 else ("0", "300")))
    failed = 0
    for seed in range(first, last):
        drawn = Drawn.of(seed)
        expected, counted = drawn.expected(), drawn.counted()
        if expected != counted:
            failed += 1
            print(f"{seed}: {drawn}: {counted}, not {expected}")
    print(f"{last - first} pairs of functions, {failed} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
