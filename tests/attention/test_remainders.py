"""Masks with remainders (dilated, strided, every nth key) at open lengths: closed forms, exact for every size."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from graphflops.analysis import analyze
from graphflops.attention import residues
from graphflops.dims import evaluate

MASKS = {
    "every 4th key": lambda i, j: j % 4 == 0,
    "all but every 5th key": lambda i, j: j % 5 != 2,
    "every 3rd query": lambda i, j: i % 3 == 1,
    "dilated": lambda i, j: (i - j) % 4 == 0,
    "dilated, the other way": lambda i, j: (j - i + 1) % 3 == 0,
    "equal remainders": lambda i, j: i % 3 == j % 3,
    "dilated, causal": lambda i, j: ((i - j) % 4 == 0) & (j <= i),
    "dilated, causal, window": lambda i, j: ((i - j) % 3 == 0) & (j <= i) & (i - j < 8),
    "small remainders, causal": lambda i, j: (j % 6 < 2) & (j <= i),
    "large remainders": lambda i, j: (j % 6 >= 2) & (j <= i + 1),
    "first keys": lambda i, j: (j % 3 == 2) & (j < 7) & (j <= i),
    "later queries": lambda i, j: ((i - j) % 3 == 1) & (i >= 3) & (j > 1),
    "queries and keys": lambda i, j: (i % 2 == 0) & (j % 3 == 1),
    "two remainders of one distance": lambda i, j: ((i - j) % 2 == 0) & ((i - j) % 3 == 1) & (j <= i),
    "strided: window or stride": lambda i, j: (j <= i) & ((i - j < 3) | ((i - j) % 4 == 0)),
    "fixed: block or its last key": lambda i, j: (i // 4 == j // 4) | (j % 4 == 3),
    "fixed, causal": lambda i, j: (j <= i) & ((i // 4 == j // 4) | (j % 4 == 3)),
    "not dilated": lambda i, j: ~((i - j) % 4 == 0),
    "either of two remainders": lambda i, j: ((i - j) % 5 == 0) | ((i - j) % 5 == 2),
    "stored offset": lambda i, j: ((i + 3 - j) % 4 == 0) & (j <= i + 3),
}


class Masked(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, q, k):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=MASKS[self.name](i, j))


def masked(name, *, square=False):
    """The attention at open lengths, and a mask of them as a number of pairs."""
    rows, keys = (torch.export.Dim(length, min=2, max=4096) for length in ("rows", "keys"))
    lengths = ({2: rows}, {2: rows if square else keys})
    tensors = torch.zeros(1, 2, 8, 4), torch.zeros(1, 2, 8 if square else 9, 4)
    report = analyze(torch.export.export(Masked(name), tensors, dynamic_shapes=lengths, strict=False))
    (use,) = report.attentions
    return report, use


def visible(name, rows, keys):
    return int(
        (
            MASKS[name](torch.arange(rows)[:, None], torch.arange(keys)[None, :])
            & torch.ones(rows, keys, dtype=torch.bool)
        ).sum()
    )


@pytest.mark.parametrize("name", MASKS)
def test_the_count_is_exact_for_every_length(name):
    """2 heads, 2 products of 2 * 4 FLOPs a pair."""
    report, use = masked(name)
    assert use.mask == "structure"
    flops = report.total().masked_flops
    axes = {info.where[0].partition("[")[0]: symbol for symbol, info in report.symbols.items()}
    for rows, keys in [*itertools.product((2, 3, 5, 8, 11, 12, 13), repeat=2), (40, 23), (23, 40), (64, 64)]:
        hidden = evaluate(flops, {axes["q"]: rows, axes["k"]: keys})
        assert hidden == 2 * 2 * 2 * 4 * (rows * keys - visible(name, rows, keys)), (rows, keys)


@pytest.mark.parametrize("name", MASKS)
def test_as_many_queries_as_keys(name):
    report, _ = masked(name, square=True)
    (symbol,) = report.symbols
    for length in (2, 3, 7, 12, 33, 64):
        hidden = evaluate(report.total().masked_flops, {symbol: length})
        assert hidden == 2 * 2 * 2 * 4 * (length * length - visible(name, length, length)), length


def test_a_dilated_mask_has_a_name():
    assert masked("dilated")[1].pattern == "every 4 places"
    assert masked("dilated, causal")[1].pattern == "causal, every 4 places"


def test_pairs_of_a_band_with_a_remainder():
    """Random bands of random rectangles, counted pair by pair."""
    chosen = random.Random(0)
    for _ in range(500):
        rows, keys, modulus = chosen.randint(0, 9), chosen.randint(0, 9), chosen.randint(2, 6)
        kept = chosen.sample(range(modulus), chosen.randint(1, modulus - 1))
        constant, offset, form = chosen.randint(-7, 7), chosen.randint(-5, 5), chosen.choice(residues.FORMS)
        left, right = (chosen.choice([None, chosen.randint(-4, 9)]) for _ in "lr")
        if left is not None and right is not None and left + right < 0:
            continue
        pairs = sum(
            (form[0] * i + form[1] * j + constant) % modulus in kept
            for i, j in itertools.product(range(rows), range(keys))
            if (right is None or j - i - offset <= right) and (left is None or j - i - offset >= -left)
        )
        found = residues.doubled(form, constant, modulus, kept, rows, keys, left, right, offset)
        assert found == 2 * pairs
