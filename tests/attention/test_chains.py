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


def best_of(s: Tensor) -> Tensor:
    return s.masked_fill(s < s.topk(3, -1).values[..., -1:], NEVER)


def best(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return best_of(scores(q, k)).softmax(-1) @ v


def positive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    return torch.where(s > 0, s, NEVER).softmax(-1) @ v


def positive_once_more(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(scores(q, k) > 0, scores(q, k), NEVER).softmax(-1) @ v


def product_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.addcmul(scores(q, k), after().float(), torch.full((1,), -1e9)).softmax(-1) @ v


def diagonal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    own = torch.diag_embed(torch.ones(PLACES))
    return scores(q, k).masked_fill(own == 0, NEVER).softmax(-1) @ v


def scattered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first = torch.zeros(PLACES, PLACES).scatter(1, torch.zeros(PLACES, 1, dtype=torch.long), 1.0)
    return scores(q, k).masked_fill(~first.bool(), NEVER).softmax(-1) @ v


def of_one_kind(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kinds = (torch.arange(PLACES)[:, None] == torch.arange(2)).float()
    return scores(q, k).masked_fill(kinds.mm(kinds.T).bool(), NEVER).softmax(-1) @ v


def best_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return best_of(masked(q, k)).softmax(-1) @ v


class One(torch.nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v)


NOT_FOLLOWED: dict[str, Attend] = {
    "aten.masked_fill.Scalar": best, "aten.where.ScalarOther": positive, "aten.addcmul.default": product_added,
    "aten.matmul.default": positive_once_more, "aten.diag_embed.default": diagonal, "aten.scatter.value": scattered,
    "aten.mm.default": of_one_kind,
}  # fmt: skip


@pytest.mark.parametrize("op", [*NOT_FOLLOWED])
def test_what_is_not_followed_is_said(op: str) -> None:
    report: Report = analyze(exported(One(NOT_FOLLOWED[op])))
    (use,), (said,) = report.attentions, [each.message for each in report.diagnostics if each.code == "GF117"]
    assert (use.mask, use.masked_flops) == ("tensor", 0)
    assert said == f"{op}: masks of attention by it are not followed, and count as hiding nothing"


def test_what_is_not_followed_beside_a_known_mask_is_said() -> None:
    """The causal mask is counted, 28 of 64 pairs in 8 heads at 2 x 2 x 4 FLOPs; the three best scores are not."""
    report = analyze(exported(One(best_before)))
    assert report.total().masked_flops == 28 * 8 * 16
    (said,) = [each.message for each in report.diagnostics if each.code == "GF117"]
    assert said.startswith("aten.masked_fill.Scalar: ")


def hidden_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (scores(q, k).softmax(-1) * (~after())) @ v


def test_probabilities_hidden_late_need_every_score() -> None:
    """They sum to one over all scores, so that the second product alone can be skipped: 28 pairs, 8 heads, 2 x 4 FLOPs."""
    report = analyze(exported(One(hidden_late)))
    assert report.total().masked_flops == report.attentions[0].masked_flops == 28 * 8 * 8
    assert [row.cost.masked_flops for row in report.rows if row.cost.matrix_flops] == [0, 28 * 8 * 8]


def open_length(attend: Attend) -> torch.export.ExportedProgram:
    given = tuple(torch.zeros(BATCH, HEADS, PLACES, WIDTH) for _ in "qkv")
    length = {2: torch.export.Dim("n", min=4, max=64)}
    return torch.export.export(One(attend), given, dynamic_shapes=(length,) * 3, strict=False)


def packed(numbers: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal within documents, as transformers finds them where positions do not go up by one."""
    places = torch.arange(q.shape[2])
    own = numbers(places)
    seen = (own[:, None] == own[None, :]) & (places[None, :] <= places[:, None])
    return scores(q, k).masked_fill(~seen, NEVER).softmax(-1) @ v


def by_differences(places: Tensor) -> Tensor:
    return (torch.diff(places, prepend=places[:1] - 1) != 1).cumsum(0)


def by_threes(places: Tensor) -> Tensor:
    return (places % 3 == 0).cumsum(0)


def test_documents_of_open_length() -> None:
    """One document is a causal mask at every length. Documents of three places are counted only at a given length, which
    is said: of 8 places 3 * 4 / 2 + 3 * 4 / 2 + 2 * 3 / 2 = 15 pairs are seen, 49 hidden.
    """
    report = analyze(open_length(lambda *qkv: packed(by_differences, *qkv)))
    assert report.value(report.total().masked_flops) == 28 * 8 * 16
    assert not report.diagnostics
    several = open_length(lambda *qkv: packed(by_threes, *qkv))
    assert [each.code for each in analyze(several).diagnostics] == ["GF117"]
    whole = analyze(several, dims={"q[2]": PLACES})
    assert (whole.total().masked_flops, whole.diagnostics) == (49 * 8 * 16, ())
