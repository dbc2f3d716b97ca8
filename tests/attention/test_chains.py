"""Weights made of scores as code bases write it: along any axis, normalised anywhere, hidden by any elementwise step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import leaky_relu

from graphflops.analysis import analyze
from graphflops.report import Report

Tensor = torch.Tensor
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
BATCH, HEADS, PLACES, WIDTH = 2, 4, 8, 4
HIDDEN = PLACES * (PLACES - 1) // 2  # pairs whose key comes after the query
NEVER = -torch.inf


def after() -> Tensor:
    """Where a key comes after the query."""
    places = torch.arange(PLACES)
    return places[None, :] > places[:, None]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / 2


def masked(q: Tensor, k: Tensor) -> Tensor:
    return scores(q, k).masked_fill(after(), NEVER)


def indexed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    s[after().expand_as(s)] = NEVER
    return s.softmax(-1) @ v


def indexed_behind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    s[:, :, after()] = NEVER
    return s.softmax(-1) @ v


def below_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k).tril()
    return s.masked_fill(s == 0, NEVER).softmax(-1) @ v


def summed_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = masked(q, k)
    weights = (s - s.amax(-1, keepdim=True)).exp()
    return weights @ v / weights.sum(-1, keepdim=True)


def one_more(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = masked(q, k)
    weights = (s - s.max(-1, keepdim=True).values).exp()
    return weights / (1 + weights.sum(-1, keepdim=True)) @ v


def factors(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = scores(q, k).exp() * (~after())
    return weights / (weights.sum(-1, keepdim=True) + 1e-9) @ v


def factors_of_probabilities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = scores(q, k).softmax(-1) * torch.ones(PLACES, PLACES).tril()
    return weights / weights.sum(-1, keepdim=True) @ v


def logarithms(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = masked(q, k)
    return (s - s.logsumexp(-1, keepdim=True)).exp() @ v


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhqd,bhkd->bqkh", q, k)
    return torch.einsum("bqkh,bhkd->bqhd", s.masked_fill(after()[:, :, None], NEVER).softmax(2), v)


def minus_infinity(q: Tensor) -> Tensor:
    return torch.where(after(), NEVER, 0.0)


CHAINS: dict[str, Attend] = {
    "an index": indexed, "an index of the last axes": indexed_behind, "zeros": below_first,
    "the sum after the product": summed_late, "one more than the sum": one_more, "factors": factors,
    "factors of probabilities": factors_of_probabilities, "a logarithm of the sum": logarithms,
    "a logarithm": lambda q, k, v: masked(q, k).log_softmax(-1).exp() @ v,
    "alpha": lambda q, k, v: torch.add(scores(q, k), after().float(), alpha=-1e9).softmax(-1) @ v,
    "a mask less scores": lambda q, k, v: torch.rsub(-scores(q, k), minus_infinity(q)).softmax(-1) @ v,
    "the least": lambda q, k, v: torch.minimum(scores(q, k), torch.where(after(), NEVER, 1e9)).softmax(-1) @ v,
    "a limit": lambda q, k, v: scores(q, k).clamp(max=torch.where(after(), NEVER, 1e9)).softmax(-1) @ v,
    "between two": lambda q, k, v: torch.lerp(scores(q, k), torch.full((1,), -1e9), after().float()).softmax(-1) @ v,
    "an activation of scores": lambda q, k, v: leaky_relu(scores(q, k)).masked_fill(after(), NEVER).softmax(-1) @ v,
    "an activation of a mask": lambda q, k, v: leaky_relu(masked(q, k)).softmax(-1) @ v,
    "a sigmoid": lambda q, k, v: masked(q, k).sigmoid() @ v,
    "the whole of probabilities": lambda q, k, v: masked(q, k).softmax(-1).nan_to_num() @ v,
    "scores of keys by queries": lambda q, k, v: scores(k, q).masked_fill(after().mT, NEVER).softmax(-2).mT @ v,
    "values by keys": lambda q, k, v: (v.mT @ masked(q, k).mT.softmax(-2)).mT,
    "heads last": heads_last,
    "a product with a bias": lambda q, k, v: torch.addmm(minus_infinity(q), q[0, 0], k[0, 0].T).softmax(1) @ v[0, 0],
}  # fmt: skip


class Every(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        return [attend(q, k, v) for attend in CHAINS.values()]


def exported(module: torch.nn.Module) -> torch.export.ExportedProgram:
    given = tuple(torch.zeros(BATCH, HEADS, PLACES, WIDTH) for _ in "qkv")
    return torch.export.export(module, given, strict=False)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return exported(Every())


@pytest.mark.parametrize("core", [False, True])
def test_every_chain(program: torch.export.ExportedProgram, core: bool) -> None:
    uses = analyze(program.run_decompositions() if core else program).attentions
    found = {name: (use.masked_flops, use.pattern) for name, use in zip(CHAINS, uses, strict=True)}
    pairs = dict.fromkeys(CHAINS, BATCH * HEADS * HIDDEN) | {"a product with a bias": HIDDEN}
    assert found == {name: (2 * 2 * WIDTH * pairs[name], "causal") for name in CHAINS}
    sizes = {(use.batch * use.heads, use.queries, use.keys, use.width, use.value_width) for use in uses}
    assert sizes == {(1, 8, 8, 4, 4), (8, 8, 8, 4, 4)}


def best(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    return s.masked_fill(s < s.topk(3, -1).values[..., -1:], NEVER).softmax(-1) @ v


def positive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    return torch.where(s > 0, s, NEVER).softmax(-1) @ v


def positive_once_more(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(scores(q, k) > 0, scores(q, k), NEVER).softmax(-1) @ v


def product_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.addcmul(scores(q, k), after().float(), torch.full((1,), -1e9)).softmax(-1) @ v


class One(torch.nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v)


NOT_FOLLOWED: dict[str, Attend] = {
    "aten.masked_fill.Scalar": best, "aten.where.ScalarOther": positive, "aten.addcmul.default": product_added,
    "aten.gt.Scalar": positive_once_more,
}  # fmt: skip


@pytest.mark.parametrize("op", [*NOT_FOLLOWED])
def test_what_is_not_followed_is_said(op: str) -> None:
    report: Report = analyze(exported(One(NOT_FOLLOWED[op])))
    (use,), (said,) = report.attentions, [each.message for each in report.diagnostics if each.code == "GF117"]
    assert (use.mask, use.masked_flops) == ("tensor", 0)
    assert said == f"{op}: masks of attention by it are not followed, and count as hiding nothing"
