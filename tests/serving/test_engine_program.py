"""A decoder as engines run it takes what the same decoder takes that was written so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from graphflops import analyze, serve
from graphflops.analysis import as_graph
from graphflops.serving.engines import as_engines_run

if TYPE_CHECKING:
    from graphflops.report import Report

torch = pytest.importorskip("torch")
functional = torch.nn.functional

BATCH, HEADS, SHARED, EACH, LENGTH = 4, 8, 2, 64, 256
REPEATS = {
    "expanded": lambda x: x[:, :, None].expand(BATCH, SHARED, HEADS // SHARED, -1, EACH).flatten(1, 2),
    "interleaved": lambda x: x.repeat_interleave(HEADS // SHARED, 1),
}


class Joined(torch.nn.Module):  # type: ignore[misc]
    """Joins its caches, repeats their heads, and hides nothing by a mask."""

    def __init__(self, repeat: str) -> None:
        super().__init__()
        self.repeat = REPEATS[repeat]

    def forward(self, q, k, v, keys, values):  # type: ignore[no-untyped-def]
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        mask = torch.arange(keys.shape[2]) <= keys.shape[2]
        found = functional.scaled_dot_product_attention(
            q, self.repeat(keys), self.repeat(values), attn_mask=mask
        )
        return found, keys, values


class InPlace(torch.nn.Module):  # type: ignore[misc]
    """Reads caches that hold the new entries."""

    def forward(self, q, k, v, keys, values):  # type: ignore[no-untyped-def]
        return functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True), k, v


class Prompt(torch.nn.Module):  # type: ignore[misc]
    """Attention over a prompt, causal by a mask or by its flag."""

    def __init__(self, has_mask: bool) -> None:
        super().__init__()
        self.has_mask = has_mask

    def forward(self, q, k, v):  # type: ignore[no-untyped-def]
        if not self.has_mask:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        places = torch.arange(q.shape[2])
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=places[:, None] >= places, enable_gqa=True
        )


def exported(module: torch.nn.Module, *shapes: tuple[int, ...]) -> object:
    tensors = tuple(torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    with torch.device("meta"):
        return torch.export.export(module, tensors)


def step(module: torch.nn.Module) -> object:
    query, new = ((BATCH, heads, 1, EACH) for heads in (HEADS, SHARED))
    cache = (BATCH, SHARED, LENGTH, EACH)
    return exported(module, query, new, new, cache, cache)


def timed(program: object) -> Report:
    return analyze(program, device="h200", execution="graph")


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_step(repeat: str) -> None:
    found = timed(as_engines_run(as_graph(step(Joined(repeat)))))
    written = timed(step(InPlace()))
    assert [row.op for row in found.rows] == ["aten.scaled_dot_product_attention.default"]
    assert found.totals.time == written.totals.time
    assert found.totals.cost == written.totals.cost


def test_a_prompt() -> None:
    shapes = [(BATCH, heads, LENGTH, EACH) for heads in (HEADS, SHARED, SHARED)]
    found = timed(as_engines_run(as_graph(exported(Prompt(True), *shapes))))
    written = timed(exported(Prompt(False), *shapes))
    assert found.totals.time == written.totals.time


def test_what_returns_other_results_stays() -> None:
    """A join of two new tensors is no cache."""

    class Both(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x, y):  # type: ignore[no-untyped-def]
            return torch.cat([x + 1, y], 2)

    graph = as_graph(exported(Both(), (1, 2, 3, 4), (1, 2, 3, 4)))
    assert as_engines_run(graph).nodes == graph.nodes


class Converted(torch.nn.Module):  # type: ignore[misc]
    """A step whose weights of 8 bits are converted for their product."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(EACH, EACH, dtype=torch.int8))

    def forward(self, x, keys, values):  # type: ignore[no-untyped-def]
        new = functional.linear(x, self.weight.to(x.dtype))
        keys, values = torch.cat([keys, new], 2), torch.cat([values, new], 2)
        return functional.scaled_dot_product_attention(new, keys, values), keys, values


def test_what_serves_reads_weights_in_their_few_bits() -> None:
    past = torch.zeros(2, HEADS, 4, EACH)
    axes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("past", max=9999)}
    shapes = ({0: axes[0]}, axes, axes)
    step = torch.export.export(
        Converted(), (torch.zeros(2, HEADS, 1, EACH), past, past), dynamic_shapes=shapes
    )
    report = serve(step, device="h200", batch=[2], context=[64]).report
    (product,) = [row for row in report.rows if row.op == "aten.linear.default"]
    assert [entry.type.dtype.name for entry in product.inputs] == ["float32", "int8"]
    assert not [row for row in report.rows if row.op.startswith("aten.to") and row.state == "counted"]
