"""Edits of a small decoder, as a reviewer would meet them: the first three lines say what changed, and only that is listed.

Expected numbers are products of the sizes of the programs: 2 rows of 8 tokens make `TOKENS`, two blocks of width 32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import nn

from graphflops.comparison.compare import compared
from graphflops.comparison.result import WORK, Comparison
from graphflops.render import render
from graphflops.render.diff.texts import VISIBLE
from graphflops.render.diff.words import headlines
from graphflops.render.formats import UNLIMITED
from graphflops.report import Report
from tests.compare.programs import BATCH, SHAPE, TIME, Decoder, Mixer, Renamed, Served, decoder, report

TOKENS = BATCH * TIME
LAYERS, WIDTH, INNER, WORDS = SHAPE.layers, SHAPE.width, SHAPE.inner, SHAPE.vocabulary
SCORES = 2 * 2 * BATCH * TIME * TIME * WIDTH  # FLOPs of one attention: two products for each pair of tokens
HIDDEN = 2 * 2 * BATCH * (TIME * (TIME - 1) // 2) * WIDTH  # of these above the diagonal
PROJECTION = 2 * TOKENS * WIDTH * WIDTH
BLOCK = 4 * PROJECTION + SCORES + 2 * (2 * TOKENS * WIDTH * INNER)
BLOCK_PARAMETERS = 2 * WIDTH + 4 * WIDTH * WIDTH + 2 * WIDTH * INNER


class Edit(NamedTuple):
    """What is changed, what the first three lines must say (in this order), and what may be listed.

    flops, parameters: by how much the total changes.
    """

    made: Callable[[], Report]
    says: tuple[str, ...]
    lists: tuple[str, ...]
    flops: int = 0
    parameters: int = 0


def edit(model: Callable[[], nn.Module], says: str, lists: str = "", **rest: int) -> Edit:
    return Edit(lambda: report(model()), tuple(says.split(" ... ")), tuple(lists.split()), **rest)


EDITS = {
    "nothing": edit(decoder, "identical"),
    "inner width": edit(
        lambda: decoder(inner=96),
        "FLOPs ... blocks.0-1.mlp (x2): 64 → 96 wide in up, down, act",
        "blocks.0-1.mlp.up blocks.0-1.mlp.down blocks.0-1.mlp.act",
        flops=LAYERS * 2 * (2 * TOKENS * WIDTH * 32),
        parameters=LAYERS * 2 * WIDTH * 32,
    ),
    "layer added": edit(
        lambda: decoder(layers=LAYERS + 1),
        "FLOPs ... [new] blocks.2 (Block)",
        "blocks.2",
        flops=BLOCK,
        parameters=BLOCK_PARAMETERS,
    ),
    "layer removed": edit(
        lambda: decoder(layers=LAYERS - 1),
        "FLOPs ... [gone] blocks.1 (Block)",
        "blocks.1",
        flops=-BLOCK,
        parameters=-BLOCK_PARAMETERS,
    ),
    "layer put between": edit(
        lambda: decoder(extra=1),
        "FLOPs ... [new] blocks.1 (Linear)",
        "blocks.1",
        flops=PROJECTION,
        parameters=WIDTH * WIDTH,
    ),
    "module moved": edit(
        lambda: decoder(post_norm=True),
        "FLOPs ... as before (0, 0.0 %) ... [moved] blocks.0-1.norm (x2, LayerNorm): runs after attention now, first before",
        "blocks.0-1.norm",
    ),
    "module renamed": edit(
        lambda: decoder(mlp="feed_forward"),
        "as before (0, 0.0 %) ... [moved] blocks.0-1.mlp → blocks.0-1.feed_forward (x2, MLP)",
        "blocks.0-1.feed_forward",
    ),
    "container renamed": edit(
        lambda: Renamed(SHAPE), "as before (0, 0.0 %) ... [moved] blocks → layers", "layers"
    ),
    "renamed and changed": edit(
        lambda: Renamed(replace(SHAPE, inner=96)),
        "FLOPs ... layers.0-1.mlp (x2): 64 → 96 wide in up, down, act ... [moved] blocks → layers",
        "layers layers.0-1.mlp.up layers.0-1.mlp.down layers.0-1.mlp.act",
        flops=LAYERS * 2 * (2 * TOKENS * WIDTH * 32),
        parameters=LAYERS * 2 * WIDTH * 32,
    ),
    "wrapped": edit(
        lambda: Served(decoder()),
        "FLOPs ... as before (0, 0.0 %) ... [new] Served",
        "(itself)",
    ),
    "activation swapped": edit(
        lambda: decoder(act=nn.GELU),
        "FLOPs ... as before (0, 0.0 %), vector FLOPs ... blocks.0-1.mlp.act (x2, GELU): SiLU → GELU",
        "blocks.0-1.mlp.act",
    ),
    "norm swapped": edit(
        lambda: decoder(norm=nn.RMSNorm),
        "parameters ... blocks.0-1.norm (x2, RMSNorm): LayerNorm → RMSNorm",
        "blocks.0-1.norm",
        parameters=-LAYERS * WIDTH,
    ),
    "grouped queries": edit(
        lambda: decoder(kv_heads=2),
        "FLOPs ... blocks.0-1.attention (x2): key and value heads 4 → 2, 32 → 16 wide in k, v",
        "blocks.0-1.attention.{k,v} blocks.0-1.attention",
        flops=-LAYERS * 2 * PROJECTION // 2,
        parameters=-LAYERS * 2 * WIDTH * WIDTH // 2,
    ),
    "mask added": edit(
        lambda: decoder(causal=True),
        "FLOPs skippable by masks 0 → 14.34 k ... blocks.0-1.attention (x2, Attention): a mask hides 14.34 k FLOPs now",
        "blocks.0-1.attention",
    ),
    "element type": edit(
        lambda: decoder().to(torch.bfloat16),
        "parameter memory ... -50.0 % ... parameters float32 → bfloat16 ... weight float32 → bfloat16",
        "blocks.0-1.attention.{q,k,v,out} blocks.0-1.mlp.up blocks.0-1.mlp.down blocks.0-1.mlp.act blocks.0-1 "
        "blocks.0-1.attention blocks.0-1.norm norm head embedding",
    ),
    "low rank": edit(
        lambda: decoder(rank=4),
        "FLOPs ... blocks.0-1.mlp.up (x2, LowRank): Linear → LowRank",
        "blocks.0-1.mlp.up",
        flops=LAYERS * 2 * TOKENS * (4 * (WIDTH + INNER) - WIDTH * INNER),
        parameters=LAYERS * (4 * (WIDTH + INNER) - WIDTH * INNER),
    ),
    "weights tied": edit(
        lambda: decoder(tied=True),
        "FLOPs ... as before (0, 0.0 %), parameters ... head (Linear): weight shared with embedding now",
        "head",
        parameters=-WORDS * WIDTH,
    ),
    "biases added": edit(
        lambda: decoder(bias=True),
        "parameters ... blocks.0-1.attention.{q,k,v,out} (x8, Linear): with bias float32[32]",
        "blocks.0-1.attention.{q,k,v,out}",
        parameters=LAYERS * 4 * WIDTH,
    ),
    "larger vocabulary": edit(
        lambda: decoder(vocabulary=128),
        "FLOPs ... head, embedding: 96 → 128 rows",
        "head embedding",
        flops=2 * TOKENS * WIDTH * 32,
        parameters=2 * WIDTH * 32,
    ),
    "called twice": edit(
        lambda: decoder(double=True),
        "FLOPs ... blocks.0-1.mlp.up (x2, Linear): +1 linear",
        "blocks.0-1.mlp.up blocks.0-1.mlp.down blocks.0-1.mlp.act",
        flops=LAYERS * 2 * (2 * TOKENS * WIDTH * INNER),
    ),
    "no attention": edit(
        lambda: Decoder(SHAPE, Mixer),
        "FLOPs: quadratic in ids[1] before, linear in ids[1] now (blocks.0-1.attention) ... Attention → Mixer",
        "blocks.0-1.attention",
        flops=-LAYERS * (3 * PROJECTION + SCORES),
        parameters=-LAYERS * 3 * WIDTH * WIDTH,
    ),
    "batch made dynamic": Edit(
        lambda: report(decoder(), batch=True), ("as before (0, 0.0 %)", "ids[0] was 2, is open now"), ()
    ),
    "length made static": Edit(
        lambda: report(decoder(), time=False),
        ("as before (0, 0.0 %)", "ids[1] was open, is fixed at 8 now"),
        (),
    ),
}


@cache
def base() -> Report:
    return report(decoder())


@cache
def found(name: str) -> Comparison:
    return compared(base(), EDITS[name].made())


@pytest.mark.parametrize("name", EDITS)
def test_first_lines_say_what_changed(name: str) -> None:
    text, at = render(found(name), "table", width=UNLIMITED), 0
    assert text.count("\n") <= VISIBLE
    for part in EDITS[name].says:
        assert part in text[at:], text
        at = text.index(part, at) + len(part)


@pytest.mark.parametrize("name", EDITS)
def test_only_what_changed_is_listed(name: str) -> None:
    listed = {
        (fold.path if fold.path is not None else fold.before_path) or "(itself)"
        for fold in found(name).folded
    }
    assert listed == {*EDITS[name].lists}
    assert found(name).same == (name == "nothing")


@pytest.mark.parametrize("name", EDITS)
def test_totals_change_by_what_was_edited(name: str) -> None:
    totals = found(name).totals["forward"]
    assert totals["matrix_flops"].delta == EDITS[name].flops
    assert totals["parameters"].delta == EDITS[name].parameters


@pytest.mark.parametrize("name", EDITS)
def test_parts_sum_to_the_total(name: str) -> None:
    comparison = found(name)
    for parts in (comparison.modules, comparison.folded, comparison.ops, comparison.sources):
        for quantity in WORK:
            if parts and quantity != "macs":
                whole = comparison.totals["forward"][quantity].formula
                assert sum(part.figures[quantity].formula for part in parts) == whole, quantity


@pytest.mark.parametrize("name", EDITS)
def test_saved_reports_compare_like_programs(name: str) -> None:
    old, new = (Report.from_json(side.to_json()) for side in (base(), found(name).new))
    assert headlines(compared(old, new)) == headlines(found(name))


@pytest.mark.parametrize("name", EDITS)
def test_the_other_way_round_is_the_opposite(name: str) -> None:
    back = compared(found(name).new, base())
    for quantity, figure in found(name).totals["forward"].items():
        assert back.totals["forward"][quantity].delta == -(figure.delta or 0), quantity
    assert len(back.modules) == len(found(name).modules)


@pytest.mark.parametrize("form", ["table", "markdown", "json", "csv"])
def test_every_format_renders(form: str) -> None:
    for name in EDITS:
        assert render(found(name), form)  # type: ignore[arg-type]


def test_training_compares_every_phase() -> None:
    old, new = report(decoder(), training=True), report(decoder(inner=96), training=True)
    comparison = compared(old, new)
    more = LAYERS * 2 * (2 * TOKENS * WIDTH * 32)
    deltas = {phase: figures["matrix_flops"].delta for phase, figures in comparison.totals.items()}
    assert deltas == {"forward": more, "backward": 2 * more, "optimizer": 0, "step": 3 * more}
    assert sum(change.backward["matrix_flops"].delta or 0 for change in comparison.modules) == 2 * more
    only = compared(old, base())
    assert [remark.name for remark in only.remarks] == ["training-in-one"]


def test_memory_of_two_executions_is_said_to_be() -> None:
    comparison = compared(replace(base(), execution="eager"), base())
    message = "memory is compared across executions: eager before, graph after"
    assert [(remark.name, remark.message) for remark in comparison.remarks] == [
        ("executions-differ", message)
    ]
