"""Masks whose pairs can be counted by hand, the same in every spelling and for lengths that are bound afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from graphflops.analysis import analyze
from graphflops.dims import Dim, evaluate
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.tensor import BOOL, FLOAT32, TensorType
from tests.attention import mask_expressions as expressions
from tests.attention.flex_programs import PAIR, at, flexible

LENGTH, WIDTH, SIZE = 256, 32, 32
DENSE = 2 * LENGTH * LENGTH * (WIDTH + WIDTH)  # FLOPs of both products: 8,388,608
BLOCKS = LENGTH // SIZE

# Each query sees the keys fewer than 32 places away: 63 but for those that lie before the first or after the last place.
NEAR = LENGTH * 63 - 2 * sum(range(1, SIZE))
# Each of 8 blocks sees itself: 32 x 32 pairs, causal 1 + 2 + ... + 32.
SAME_BLOCK = BLOCKS * SIZE * SIZE
CAUSAL_BLOCK = BLOCKS * sum(range(1, SIZE + 1))


def near(i: Any, j: Any) -> Any:
    return (i - j).abs() < SIZE


def same_block(i: Any, j: Any) -> Any:
    return i // SIZE == j // SIZE


def causal_block(i: Any, j: Any) -> Any:
    return same_block(i, j) & (j <= i)


MASKS = [(near, NEAR), (same_block, SAME_BLOCK), (causal_block, CAUSAL_BLOCK)]


class Masked(torch.nn.Module):
    def __init__(self, mask: Any, spelling: str) -> None:
        super().__init__()
        self.mask, self.spelling = mask, spelling

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        places = torch.arange(q.shape[2])
        seen = self.mask(places[:, None], places[None, :])
        if self.spelling == "added":
            seen = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=seen)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("spelling", ["keep", "added"])
@pytest.mark.parametrize(("mask", "visible"), MASKS)
def test_as_a_tensor(mask: Any, visible: int, spelling: str, fixed: bool) -> None:
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(
        Masked(mask, spelling),
        (torch.randn(1, 1, LENGTH, WIDTH),),
        dynamic_shapes=None if fixed else ({2: length},),
    )
    report = analyze(program)
    (use,) = report.attentions
    sizes = {} if fixed else {str(use.queries): LENGTH}
    assert evaluate(use.flops, sizes) == DENSE
    assert evaluate(use.masked_flops, sizes) == DENSE - visible * 2 * (WIDTH + WIDTH)
    assert use.mask == "structure"


@pytest.mark.parametrize("length", [LENGTH, "s"])
@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize(("mask", "visible"), MASKS)
def test_as_a_function(mask: Any, visible: int, scored: bool, length: int | str) -> None:
    functions: dict[str, Any] = {"mask": lambda b, h, i, j: mask(i, j)}
    if scored:
        functions = {"score": lambda s, b, h, i, j: torch.where(mask(i, j), s, float("-inf"))}
    report = analyze(flexible(1, 1, length, length, **functions))
    (use,) = report.attentions
    assert not report.diagnostics
    assert evaluate(use.flops - use.masked_flops, {"s": LENGTH}) == visible * PAIR


def test_the_hidden_flops_of_the_three() -> None:
    pair = 2 * (WIDTH + WIDTH)
    hidden = [DENSE - visible * pair for _, visible in MASKS]
    assert (DENSE, hidden) == (8_388_608, [6_451_200, 7_340_032, 7_847_936])


@pytest.mark.parametrize("length", [16, expressions.QUERIES])
def test_into_a_nested_graph(length: Dim) -> None:
    """A causal mask that is made outside of the graph in which it masks: half a square, its diagonal with it."""
    around = expressions.Builder(expressions.ATEN)
    seen = around.made(("le", "j", "i"), expressions.places(around, length, length))
    shape = (1, 1, length, expressions.WIDTH)
    handed = {"q": Ref("query"), "k": Ref("key"), "v": Ref("value"), "m": seen}
    call = Node(
        "inner", "aten.scaled_dot_product_attention.default", tuple(map(Ref, handed)), outputs=("inner",)
    )
    types = {name: TensorType(shape, FLOAT32) for name in ("q", "k", "v", "inner")}
    types["m"] = TensorType((length, length), BOOL)
    inner = Graph((call,), types, tuple(Input(name, "user") for name in handed), (Output(Ref("inner")),))
    wrap = "higher_order.wrap_with_set_grad_enabled"
    out = around.call(wrap, False, inner, *handed.values(), dtype=FLOAT32, shape=shape)
    (use,) = analyze(expressions.graph_of(around, length, length, {}, out.name)).attentions
    assert evaluate(use.flops - use.masked_flops, {"q": 16}) == 16 * 17 // 2 * expressions.PAIR
    assert use.mask == "structure"


def test_two_attentions_that_share_a_mask_function_capture_tensors_of_their_own() -> None:
    """Documents are counted up where one starts: of 4 and 4 places in the first attention, of 2 and 6 in the second."""

    def same_document(b: Any, h: Any, q: Any, k: Any, starts: Any, other: Any) -> Any:
        documents = torch.cumsum(starts, 0)
        return at(documents, q) == at(documents, k)

    starts = {"s": torch.eye(8, dtype=torch.int64)[4], "t": torch.eye(8, dtype=torch.int64)[2]}
    graph = flexible(1, 1, 8, 8, mask=same_document, tensors=starts, block=4)
    (first,) = graph.nodes
    *arguments, scored, _ = first.args
    turned = replace(
        first, name="second", args=(*arguments, scored, (Ref("t"), Ref("s"))), outputs=("more", None, None)
    )
    types = {**graph.types, "more": graph.types["out"]}
    report = analyze(
        replace(graph, nodes=(first, turned), types=types, outputs=(*graph.outputs, Output(Ref("more"))))
    )
    visible = [(use.flops - use.masked_flops) // PAIR for use in report.attentions]
    assert visible == [4 * 4 + 4 * 4, 2 * 2 + 6 * 6]
