"""What masks hide, counted against the whole mask: built in the program, stored in its file, and told by the user."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch.nn import functional

from graphflops import cli
from graphflops.analysis import analyze
from graphflops.dims import evaluate
from graphflops.errors import ModelError
from tests.torch_tables import onnx_export

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from graphflops.report import Report

BATCH, HEADS, WIDTH = 2, 4, 8
QUERIES, KEYS = 8, 11
PAIR = 2 * (WIDTH + WIDTH)  # FLOPs of a pair in both products
DOCUMENTS = [0] * 4 + [1] * 3 + [2] * 20

Mask = torch.Tensor


def places(q: int, k: int) -> tuple[Mask, Mask]:
    return torch.arange(q)[:, None], torch.arange(k)[None, :]


def prefix(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return (j <= i) | (j < 5)


def prefix_written_in_place(q: int, k: int) -> Mask:
    mask = torch.ones(q, k, dtype=torch.bool).tril()
    mask[:, :3] = True
    return mask


def opened_in_place(q: int, k: int) -> Mask:
    mask = torch.full((q, k), float("-inf"))
    mask.triu_(1)
    return mask


def filled_in_place(q: int, k: int) -> Mask:
    mask = torch.zeros(q, k)
    i, j = places(q, k)
    mask.masked_fill_(j > i, float("-inf"))
    return mask


def parts_in_place(q: int, k: int) -> Mask:
    mask = torch.ones(q, k, dtype=torch.bool)
    mask[2] = False
    mask[:, 1] = False
    mask[3:, 4:6] = False
    mask[3][4] = True
    return mask


def rows_and_columns(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return (i < 3) | (j < 4)


def blocks(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return i // 3 == j // 3


def causal_blocks(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return (i // 4 == j // 4) & (j <= i)


def documents(q: int, k: int) -> Mask:
    i, j = places(q, k)
    which = torch.tensor(DOCUMENTS)
    return (which[:q][:, None] == which[:k][None, :]) & (j <= i)


def documents_by_their_ends(q: int, k: int) -> Mask:
    which = torch.bucketize(torch.arange(max(q, k)), torch.tensor([3, 5, 9]), right=True)
    return which[:q][:, None] == which[:k][None, :]


def documents_by_their_marks(q: int, k: int) -> Mask:
    which = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0]).cumsum(0)
    return which[:q][:, None] == which[:k][None, :]


def documents_by_their_lengths(q: int, k: int) -> Mask:
    which = torch.arange(3).repeat_interleave(torch.tensor([2, 5, 4]), output_size=11)
    return which[:q][:, None] == which[:k][None, :]


def lengths(q: int, k: int) -> Mask:
    return torch.arange(k)[None, None, None, :] < torch.tensor([3, 6])[:, None, None, None]


def every_second(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return ((i - j) % 2 == 0) & (j <= i)


def slopes(q: int, k: int) -> Mask:
    i, j = places(q, k)
    by_head = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
    return (-(i - j).abs() * by_head).masked_fill(j > i, float("-inf"))[None]


def two_added(q: int, k: int) -> Mask:
    i, j = places(q, k)
    causal = torch.zeros(q, k).masked_fill(j > i, -1e9)
    return causal + torch.where(j < k - 2, 0.0, torch.finfo(torch.float32).min)


def with_axes_moved(q: int, k: int) -> Mask:
    j, i = places(k, q)
    return (j <= i).movedim(0, -1)


def near_or_first(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return ((i - j).abs() < 2) | (j == 0) | (i == 0)


def window_with_sink(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return (j <= i) & ((i - j < 3) | (j < 2))


def either(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return (j < 3) ^ (i < 4)


def joined(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return torch.cat([torch.ones(q, 2, dtype=torch.bool), (j <= i)[:, : k - 2]], 1)


def padded(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return functional.pad((j <= i)[:, : k - 2], (1, 1), value=True)


def padded_and_cut(q: int, k: int) -> Mask:
    i, j = places(q, k)
    bias = torch.zeros(q, k).masked_fill(j > i, float("-inf"))
    return functional.pad(bias, (1, -1, -1, 1), value=-1e9)


def by_head(q: int, k: int) -> Mask:
    i, j = places(q, k)
    return torch.stack([j <= i, j >= i, i == j, i != j])


FORMULAS: list[Callable[[int, int], Mask]] = [
    prefix,
    prefix_written_in_place,
    opened_in_place,
    filled_in_place,
    rows_and_columns,
    slopes,
    two_added,
    with_axes_moved,
    near_or_first,
    window_with_sink,
    either,
    joined,
    padded,
    padded_and_cut,
    blocks,
    causal_blocks,
]
NUMBERS: list[Callable[[int, int], Mask]] = [
    parts_in_place,
    documents,
    documents_by_their_ends,
    documents_by_their_marks,
    documents_by_their_lengths,
    lengths,
    every_second,
    by_head,
]


DECOMPOSED = (padded, prefix_written_in_place, parts_in_place, documents_by_their_lengths, slopes, two_added)


def hidden(mask: Mask, q: int = QUERIES, k: int = KEYS) -> int:
    """Pairs that a mask hides of all batch entries and heads."""
    seen = mask if mask.dtype == torch.bool else mask > -1e4
    return int((~seen.expand(BATCH, HEADS, q, k)).sum())


class Masked(torch.nn.Module):
    def __init__(self, make: Callable[[int, int], Mask], spelling: str = "operator") -> None:
        super().__init__()
        self.make, self.spelling = make, spelling

    def forward(self, q: Mask, k: Mask, v: Mask) -> Mask:
        mask = self.make(q.shape[-2], k.shape[-2])
        if self.spelling == "operator":
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-2, -1) * 0.5
        if mask.dtype != torch.bool:
            scores = scores + mask
        elif self.spelling == "filled":
            scores = scores.masked_fill(~mask, -1e30)
        elif self.spelling == "taken":
            scores = scores - (1 - mask.float()) * 1e9
        else:
            scores = scores + (1 - mask.float()) * -1e9
        return scores.softmax(-1) @ v


def operands(q: int = QUERIES, k: int = KEYS) -> tuple[Mask, Mask, Mask]:
    return (
        torch.randn(BATCH, HEADS, q, WIDTH),
        torch.randn(BATCH, HEADS, k, WIDTH),
        torch.randn(BATCH, HEADS, k, WIDTH),
    )


def exported(module: torch.nn.Module, *more: Mask, dynamic: bool = False) -> torch.export.ExportedProgram:
    sizes = torch.export.Dim("q", min=4, max=11), torch.export.Dim("k", min=4, max=11)
    shapes = ({2: sizes[0]}, {2: sizes[1]}, {2: sizes[1]}) if dynamic else None
    return torch.export.export(module, (*operands(), *more), dynamic_shapes=shapes)


def masked(report: Report) -> Any:
    (use,) = report.attentions
    assert report.total().masked_flops == use.masked_flops
    return use.masked_flops


SPELLINGS = ("operator", "filled", "added", "taken")


@pytest.mark.parametrize("place, make", list(enumerate((*FORMULAS, *NUMBERS))))
def test_sizes_that_are_numbers(place: int, make: Callable[[int, int], Mask]) -> None:
    program = exported(Masked(make, SPELLINGS[place % 4]))
    want = hidden(make(QUERIES, KEYS)) * PAIR
    assert masked(analyze(program)) == want
    if make in DECOMPOSED:
        assert masked(analyze(program.run_decompositions())) == want


@pytest.mark.parametrize("place, make", list(enumerate(FORMULAS)))
def test_sizes_that_are_open(place: int, make: Callable[[int, int], Mask]) -> None:
    report = analyze(exported(Masked(make, SPELLINGS[(place + 1) % 4]), dynamic=True))
    (use,) = report.attentions
    for q, k in itertools.product((4, 9), (4, 7, 11)):
        sizes = {str(use.queries): q, str(use.keys): k}
        assert evaluate(masked(report), sizes) == hidden(make(q, k), q, k) * PAIR


def test_what_has_no_formula_is_counted_at_the_sizes_given() -> None:
    program = exported(Masked(documents), dynamic=True)
    (use,) = analyze(program).attentions
    assert use.mask == "structure"  # causal at least
    given = analyze(program, dims={str(use.queries): 7, str(use.keys): 9})
    assert masked(given) == hidden(documents(7, 9), 7, 9) * PAIR
    assert given.attentions[0].mask == "constant"


class Written(torch.nn.Module):
    """A mask as an expression over i, j, a stored row c, and the empty mask e."""

    def __init__(self, text: str, spelling: str) -> None:
        super().__init__()
        self.code, self.spelling = compile(text, text, "eval"), spelling
        self.register_buffer("c", torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]))

    def make(self, q: int, k: int) -> Mask:
        i, j = places(q, k)
        names = {"i": i, "j": j, "c": self.c, "e": torch.zeros(q, k, dtype=torch.bool)}
        made: Mask = eval(self.code, {"torch": torch}, names)
        return made

    def forward(self, q: Mask, k: Mask, v: Mask) -> Mask:
        return Masked(self.make, self.spelling)(q, k, v)  # type: ignore[no-any-return]


def written(rng: random.Random, depth: int = 3, *, truth: bool = True) -> str:
    """An expression at random: a truth, or a number."""

    def number() -> str:
        return written(rng, depth - 1, truth=False)

    def condition() -> str:
        return written(rng, depth - 1)

    if truth:
        comparison = (
            f"({number()} {rng.choice(('<=', '<', '>=', '>', '==', '!='))} {rng.choice((number(), '3'))})"
        )
        if depth <= 0:
            return comparison
        several = (f"({condition()} {rng.choice('&|^')} {condition()})", f"(~{condition()})")
        triangle = f"({condition()} | e).{rng.choice(('tril', 'triu'))}({rng.randint(-2, 2)})"
        return rng.choice((comparison, comparison, *several, several[0], triangle))
    if depth <= 0:
        return rng.choice("ij")
    return rng.choice(
        (
            *"ijij",
            f"({number()} + {rng.randint(-4, 4)})",
            f"({number()} - {number()})",
            f"({number()} * {rng.choice((-1, 2))})",
            f"({number()} {rng.choice(('//', '%'))} {rng.choice((2, 3))})",
            f"{number()}.abs()",
            f"c[{rng.choice('ij')}]",
            f"torch.where({condition()}, {number()}, 2)",
        )
    )


@pytest.mark.parametrize("seed", range(12))
def test_masks_at_random(seed: int) -> None:
    rng = random.Random(seed)
    module = Written(written(rng), SPELLINGS[seed % 4])
    dynamic = seed % 3 == 0
    report = analyze(exported(module, dynamic=dynamic))
    (use,) = report.attentions
    for q, k in [(QUERIES, KEYS), (5, 5), (9, 4)][: 3 if dynamic else 1]:
        found = evaluate(masked(report), {str(use.queries): q, str(use.keys): k})
        want = hidden(module.make(q, k), q, k) * PAIR
        assert found == want if not dynamic else found is not None and found <= want


class Stored(torch.nn.Module):
    """A mask that is kept for the longest sequence, and cut for this one as old exports of GPT-2 do."""

    def __init__(self, mask: Mask, spelling: str = "operator") -> None:
        super().__init__()
        self.spelling = spelling
        self.register_buffer("mask", mask)

    def forward(self, q: Mask, k: Mask, v: Mask) -> Mask:
        queries, keys = q.shape[-2], k.shape[-2]
        mask = self.mask[..., keys - queries : keys, :keys]
        if self.spelling == "operator":
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-2, -1)
        return torch.where(mask.bool(), scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


LONGEST = 16
I, J = places(LONGEST, LONGEST)
STORED = {
    "causal": (J <= I)[None, None],
    "causal, bytes": (J <= I).to(torch.uint8)[None, None],
    "added": torch.zeros(LONGEST, LONGEST).masked_fill(J > I, float("-inf")),
    "added, half": torch.zeros(LONGEST, LONGEST).masked_fill(J > I + 1, -65504).half().float(),
    "at random": torch.rand(LONGEST, LONGEST, generator=torch.Generator().manual_seed(1)) > 0.5,
    "by head": torch.stack([J <= I, J >= I, (I - J).abs() < 3, I // 4 == J // 4])[None],
    "by batch entry": (J[None] < torch.tensor([5, 9])[:, None, None])[:, None]
    .expand(-1, 1, LONGEST, -1)
    .clone(),
    "transposed": (J >= I).t(),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_masks(name: str, tmp_path: Path) -> None:
    module = Stored(STORED[name], "chosen" if "bytes" in name else "operator")
    program = exported(module)
    torch.export.save(program, tmp_path / "stored.pt2")
    mask = STORED[name][..., KEYS - QUERIES : KEYS, :KEYS]
    want = hidden(mask.bool() if mask.dtype == torch.uint8 else mask) * PAIR
    for form in (program, tmp_path / "stored.pt2"):
        report = analyze(form)
        assert masked(report) == want
        assert report.attentions[0].mask == "constant"


def test_a_stored_mask_of_a_simple_form_gives_a_formula(tmp_path: Path) -> None:
    program = exported(Stored(STORED["causal"], "chosen"), dynamic=True)
    torch.export.save(program, tmp_path / "stored.pt2")
    report = analyze(tmp_path / "stored.pt2")
    (use,) = report.attentions
    for q, k in ((4, 4), (4, 7), (8, 11)):
        # Row i sees keys up to k - q + i: of q * k pairs, q * (q - 1) / 2 are hidden.
        want = BATCH * HEADS * (q * (q - 1) // 2) * PAIR
        assert evaluate(masked(report), {str(use.queries): q, str(use.keys): k}) == want


@pytest.mark.parametrize("dynamo", [False, True])
def test_stored_masks_in_onnx(dynamo: bool, tmp_path: Path) -> None:
    mask = torch.rand(1, HEADS, 40, 40, generator=torch.Generator().manual_seed(3)) > 0.5
    for spelling in ("operator", "chosen"):
        path = str(tmp_path / f"{spelling}.onnx")
        kwargs: dict[str, Any] = {"external_data": False} if dynamo else {}
        onnx_export(Stored(mask, spelling), operands(), path, dynamo=dynamo, verbose=False, **kwargs)
        report = analyze(path)
        assert masked(report) == hidden(mask[..., KEYS - QUERIES : KEYS, :KEYS]) * PAIR
        assert report.attentions[0].mask == "constant"


def test_a_large_stored_mask() -> None:
    mask = torch.zeros(4096, 4096, dtype=torch.bool)
    mask[:, ::7] = True
    mask[17] = False
    q = torch.randn(1, 3, 4096, WIDTH)
    report = analyze(torch.export.export(Stored(mask), (q, q, q)))
    columns = len(range(0, 4096, 7))
    assert masked(report) == 3 * (4096 * 4096 - 4095 * columns) * PAIR


def test_masks_made_alike_of_other_numbers_are_others() -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number in range(3):
                documents = (torch.arange(QUERIES) * 5 % 7) // (number + 2)
                self.register_buffer(f"documents_{number}", documents)

        def masks(self) -> list[Mask]:
            each = [self.documents_0, self.documents_1, self.documents_2, self.documents_0]
            return [which[:, None] == which[None, :] for which in each]

        def forward(self, q: Mask) -> Mask:
            for mask in self.masks():
                q = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
            return q

    module = Layers()
    report = analyze(torch.export.export(module, (operands()[0],)))
    want = [hidden(mask, QUERIES, QUERIES) * PAIR for mask in module.masks()]
    assert [use.masked_flops for use in report.attentions] == want
    assert len(set(want)) == 3


@pytest.mark.parametrize("core", [False, True])
def test_a_stored_mask_that_the_program_changes_is_not_followed(core: bool) -> None:
    class Changing(Stored):
        def forward(self, q: Mask, k: Mask, v: Mask) -> Mask:
            out = super().forward(q, k, v)
            self.mask.logical_not_()
            return out  # type: ignore[no-any-return]

    program = exported(Changing(STORED["at random"].clone()))
    report = analyze(program.run_decompositions() if core else program)
    assert masked(report) == 0
    assert report.attentions[0].mask == "tensor"


def test_a_constant_that_a_copy_of_is_changed() -> None:
    def make(q: int, k: int) -> Mask:
        mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 0]]).repeat(4, 3)[:q, :k].bool()
        mask[1] = True
        return mask

    assert masked(analyze(exported(Masked(make)))) == hidden(make(QUERIES, KEYS)) * PAIR


def test_what_a_caller_masks_beside_a_stored_mask_is_not_told() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", STORED["at random"][:QUERIES, :KEYS].clone())

        def forward(self, q: Mask, k: Mask, v: Mask, padding: Mask) -> Mask:
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=self.mask & padding[:, None, None].bool()
            )

    report = analyze(exported(Both(), torch.ones(BATCH, KEYS)))
    assert masked(report) == hidden(STORED["at random"][:QUERIES, :KEYS]) * PAIR
    (said,) = [d.message for d in report.diagnostics if d.code == "GF117"]
    assert "padding" in said


# Gradients


class Trained(torch.nn.Module):
    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.q, self.k, self.v = (torch.nn.Linear(8, HEADS * WIDTH, bias=False) for _ in "qkv")
        self.register_buffer("mask", STORED["at random"][:QUERIES, :QUERIES].clone())

    def forward(self, x: Mask) -> Mask:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        return Masked(lambda *_: self.mask, self.spelling)(q, k, v).sum()  # type: ignore[no-any-return]


HIDDEN = hidden(STORED["at random"][:QUERIES, :QUERIES], QUERIES, QUERIES) * PAIR


@pytest.mark.parametrize("spelling, factor", [("operator", 5), ("filled", 4), ("added", 4)])
def test_the_backward_is_over_the_same_pairs(spelling: str, factor: int) -> None:
    from torch.export.experimental import _export_forward_backward

    program = torch.export.export(Trained(spelling), (torch.randn(BATCH, QUERIES, 8),))
    report = analyze(program, training=True)
    assert report.backward is not None
    # Each product of the forward is half of HIDDEN; a fused kernel computes the scores again.
    assert 2 * report.backward.cost.masked_flops == factor * HIDDEN
    assert 2 * analyze(_export_forward_backward(program)).total().masked_flops == (2 + factor) * HIDDEN
    if spelling == "operator":
        core = _export_forward_backward(program.run_decompositions())
        assert 2 * analyze(core).total().masked_flops == (2 + 4) * HIDDEN


# What the user says


class Given(torch.nn.Module):
    def forward(self, q: Mask, k: Mask, v: Mask, attn_mask: Mask) -> Mask:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


@pytest.fixture(scope="module")
def given() -> torch.export.ExportedProgram:
    return exported(Given(), torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool))


AT = KEYS - QUERIES  # keys before the first query's own place
STATED = [
    ("causal", lambda i, j: j <= i + AT),
    ("window:4", lambda i, j: (j <= i + AT) & (j > i + AT - 4)),
    ("prefix:6", lambda i, j: (j <= i + AT) | (j < 6)),
    ("density:0.25", lambda i, j: (i * KEYS + j) % 4 == 0),
    ("density:1", lambda i, j: i >= 0),
]


@pytest.mark.parametrize("text, seen", STATED)
def test_an_input_that_the_user_tells_of(
    given: torch.export.ExportedProgram, text: str, seen: Callable[[Mask, Mask], Mask]
) -> None:
    report = analyze(given, masks={"attn_mask": text})
    i, j = places(QUERIES, KEYS)
    assert masked(report) == hidden(seen(i, j)) * PAIR
    assert report.attentions[0].mask == "stated"
    assert not [d for d in report.diagnostics if d.code == "GF117"]


def test_an_input_that_nobody_tells_of_is_dense_and_said(given: torch.export.ExportedProgram) -> None:
    report = analyze(given)
    assert masked(report) == 0
    assert report.attentions[0].mask == "tensor"
    (said,) = [d.message for d in report.diagnostics if d.code == "GF117"]
    assert "attn_mask" in said


@pytest.mark.parametrize(
    "masks, said",
    [
        ({"atn_mask": "causal"}, "did you mean attn_mask?"),
        ({"nothing_like": "causal"}, "the program has q, k, v, attn_mask"),
        ({"attn_mask": "casual"}, "'casual' is no mask"),
        ({"attn_mask": "window:0"}, "at least 1"),
        ({"attn_mask": "density:1.5"}, "from 0 to 1"),
        ({"q": "causal"}, "it masks no attention that was found"),
    ],
)
def test_what_cannot_be_told(given: torch.export.ExportedProgram, masks: dict[str, str], said: str) -> None:
    with pytest.raises(ModelError, match=r"^(--mask |')") as caught:
        analyze(given, masks=masks)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mask_of_keys_alone_has_no_structure() -> None:
    class Padded(torch.nn.Module):
        def forward(self, q: Mask, k: Mask, v: Mask, padding: Mask) -> Mask:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=padding[:, None, None] > 0)

    program = exported(Padded(), torch.ones(BATCH, KEYS))
    with pytest.raises(ModelError, match="only density is for it"):
        analyze(program, masks={"padding": "causal"})
    assert (
        masked(analyze(program, masks={"padding": "density:0.5"}))
        == BATCH * HEADS * QUERIES * KEYS // 2 * PAIR
    )


# The command line


@pytest.fixture(scope="module")
def saved(given: torch.export.ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "given.pt2"
    torch.export.save(given, path)
    return str(path)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["analyze", *args], prog_name="graphflops")


def test_the_option(saved: str) -> None:
    for result, said in (
        (run(saved, "--by", "attention", "--mask", "attn_mask=window:4"), "stated"),
        (run(saved), "--mask attn_mask=causal"),
    ):
        assert result.exit_code == 0, result.output
        assert said in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    "masks, code, said",
    [
        (["attn_mask"], 2, "'attn_mask' is not NAME=KIND"),
        (["attn_mask=casual"], 2, "causal, window:1024, prefix:128 or density:0.3"),
        (["attn_mask=causal", "attn_mask=prefix:3"], 2, "attn_mask is given twice"),
        (
            ["atn_mask=causal"],
            1,
            "graphflops: error: --mask atn_mask: no such input; did you mean attn_mask?",
        ),
        (["v=causal"], 1, "graphflops: error: --mask v: it masks no attention that was found"),
    ],
)
def test_the_option_misused(saved: str, masks: list[str], code: int, said: str) -> None:
    result = run(saved, *(word for mask in masks for word in ("--mask", mask)))
    assert result.exit_code == code
    assert result.stdout == ""
    assert said in " ".join(result.stderr.split())
    assert code == 2 or result.stderr.count("\n") == 1


def test_an_input_of_which_only_the_size_is_asked_is_no_mask() -> None:
    """Positions repeated for each row of a batch have no formula: what they hide needs a length, and is of no input."""

    class Repeated(torch.nn.Module):
        def forward(self, q: Mask, ids: Mask) -> Mask:
            positions = torch.arange(ids.shape[-1]).repeat(2, 1)
            seen = positions[:, None, :, None] * positions[:, None, None, :] % 3 == 0
            return functional.scaled_dot_product_attention(q, q, q, attn_mask=seen) + ids.sum()

    length = torch.export.Dim("length", min=4, max=512)
    operands = torch.randn(2, 2, 8, 4), torch.zeros(2, 8, dtype=torch.int64)
    program = torch.export.export(Repeated(), operands, dynamic_shapes={"q": {2: length}, "ids": {1: length}})
    report = analyze(program)
    assert [use.mask for use in report.attentions] == ["tensor"]
    (said,) = [each.message for each in report.diagnostics]
    assert "only if sizes are numbers" in said


ENDS = (3_000, 4_100, 13_333, 20_000, 32_765)


@pytest.mark.parametrize("causal", [False, True])
def test_documents_of_a_long_sequence(causal: bool) -> None:
    """2^30 pairs, of which rectangles settle most; a document of n places has n * n pairs, causal n * (n + 1) / 2."""

    class Documents(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer(
                "document", torch.bucketize(torch.arange(2**15), torch.tensor(ENDS), right=True)
            )

        def forward(self, q: Mask) -> Mask:
            place = torch.arange(q.shape[2])
            seen = self.document[:, None] == self.document[None, :]
            if causal:
                seen = seen & (place[:, None] >= place[None, :])
            return functional.scaled_dot_product_attention(q, q, q, attn_mask=seen)

    with torch.no_grad():
        program = torch.export.export(Documents(), (torch.empty(1, 1, 2**15, WIDTH),))
    (use,) = analyze(program).attentions
    lengths = [end - start for start, end in itertools.pairwise((0, *ENDS, 2**15))]
    visible = sum(n * (n + 1) // 2 if causal else n * n for n in lengths)
    assert use.flops - use.masked_flops == visible * PAIR
    assert use.mask == "constant"
