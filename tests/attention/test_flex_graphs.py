"""What is visible of one flexible attention, of every kind that its functions can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphflops.analysis import analyze
from graphflops.attention import rectangles
from graphflops.dims import evaluate, floor_div, mod
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.render.document import report_csv as csv
from graphflops.render.table import table
from graphflops.report import Report
from tests.attention.flex_programs import PAIR, at, flexible
from tests.oracle.flex_masks import Drawn

OFFSETS = torch.tensor([3, 9, 20, 40])
DOCUMENTS = torch.tensor([0] * 3 + [1] * 6 + [2] * 11 + [3] * 20)
TRIANGLES = 3 * 4 // 2 + 6 * 7 // 2 + 11 * 12 // 2 + 20 * 21 // 2


def causal(b: Any, h: Any, q: Any, k: Any, *rest: Any) -> Any:
    return q >= k


def same_document(b: Any, h: Any, q: Any, k: Any, documents: Any, *rest: Any) -> Any:
    return at(documents, q) == at(documents, k)


def causal_in_document(b: Any, h: Any, q: Any, k: Any, documents: Any) -> Any:
    return same_document(b, h, q, k, documents) & (q >= k)


def pairs(graph: Graph | Report, **how: Any) -> Any:
    """Visible pairs."""
    report = graph if isinstance(graph, Report) else analyze(graph, **how)
    (use,) = report.attentions
    flops = use.flops - use.masked_flops
    assert mod(flops, PAIR) == 0
    return floor_div(flops, PAIR)


def known(graph: Graph) -> int:
    """The same, where nothing is in doubt."""
    report = analyze(graph)
    assert not report.diagnostics
    assert report.attentions[0].mask != "tensor"
    found: int = pairs(report)
    return found


LENGTHS = torch.tensor([5, 30])
BIAS = torch.zeros(4, 40).masked_fill(
    torch.arange(40) >= torch.tensor([[0], [10], [20], [40]]), float("-inf")
)
REACH = torch.tensor([[True] * 39 + [False] * 40])
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "documents": (3**2 + 6**2 + 11**2 + 20**2, {"mask": same_document, "tensors": {"d": DOCUMENTS}}),
    "causal in documents": (TRIANGLES, {"mask": causal_in_document, "tensors": {"d": DOCUMENTS}}),
    "documents of half precision": (
        TRIANGLES,
        {"mask": causal_in_document, "tensors": {"d": DOCUMENTS.bfloat16()}},
    ),
    "documents by strides": (
        TRIANGLES,
        {"mask": causal_in_document, "tensors": {"d": DOCUMENTS.repeat_interleave(2)[::2]}},
    ),
    "each batch entry of another length": (
        4 * 40 * (5 + 30),
        {"sizes": (2, 4), "mask": lambda b, h, q, k, n: k < at(n, b), "tensors": {"n": LENGTHS}},
    ),
    "each head a window of its own": (
        3 * (40 + (40 + 39) + (40 + 39 + 38) + (40 + 39 + 38 + 37)),
        {"sizes": (3, 4), "mask": lambda b, h, q, k: (q >= k) & (q - k <= h)},
    ),
    "each head a window of its own in many batch entries": (
        2**15 * (40 + (40 + 39)),
        {"sizes": (2**15, 2), "mask": lambda b, h, q, k: (q >= k) & (q - k <= h)},
    ),
    "each head a bias of minus infinity": (
        40 * (10 + 20 + 40),
        {"sizes": (1, 4), "score": lambda s, b, h, q, k, x: s + at(x, h, k), "tensors": {"x": BIAS}},
    ),
    "scores replaced by what stands for it": (
        40 * 41 // 2,
        {"score": lambda s, b, h, q, k: torch.where(q >= k, s, -1e9)},
    ),
    "scores made small by what is added": (
        40 * 41 // 2,
        {"score": lambda s, b, h, q, k: s + (q < k) * -1e9},
    ),
    "documents by what is added": (
        3**2 + 6**2 + 11**2 + 20**2,
        {"score": lambda s, b, h, q, k, d: s + (at(d, q) != at(d, k)) * -1e9, "tensors": {"d": DOCUMENTS}},
    ),
    "a steep bias": (40 * 40, {"score": lambda s, b, h, q, k: s - 20000.0 * (q - k)}),
    "by table of distances": (
        40 * 39 // 2,
        {"mask": lambda b, h, q, k, t: at(t, b, k - q + 39), "tensors": {"t": REACH}},
    ),
    "by indices from the end": (
        20 * 40,
        {"mask": lambda b, h, q, k, d: at(d, q - 40) == 3, "tensors": {"d": DOCUMENTS}},
    ),
    "both functions": (
        TRIANGLES,
        {
            "mask": same_document,
            "score": lambda s, b, h, q, k, d: torch.where(q >= k, s, float("-inf")),
            "tensors": {"d": DOCUMENTS},
        },
    ),
    "nothing": (0, {"mask": lambda b, h, q, k: q > k + 40}),
    "every other": (40 * 20, {"mask": lambda b, h, q, k: (q + k) % 2 == 0}),
    "a table of pairs": (
        40 * 41 // 2,
        {
            "mask": lambda b, h, q, k, m: at(m, q, k),
            "tensors": {"m": torch.ones(40, 40, dtype=torch.bool).tril()},
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pairs(name: str) -> None:
    expected, how = CASES[name]
    assert (
        known(flexible(*how.get("sizes", (1, 1)), 40, 40, **{x: how[x] for x in how if x != "sizes"}))
        == expected
    )


def test_long_sequences_in_closed_form() -> None:
    length = 2**20
    window = flexible(1, 2, length, length, mask=lambda b, h, q, k: (q >= k) & (q - k < 4096), block=128)
    assert known(window) == 2 * (4096 * 4097 // 2 + (length - 4096) * 4096)
    assert known(flexible(1, 2, length, length, mask=causal, block=128)) == 2 * length * (length + 1) // 2


def test_blocks_of_causal_attention() -> None:
    (use,) = analyze(flexible(3, 2, 80, 80, mask=causal)).attentions
    assert (use.partial_blocks, use.full_blocks) == (3 * 2 * 5, 3 * 2 * (4 + 3 + 2 + 1))


def test_visible_pairs_and_blocks_that_run_are_two_numbers() -> None:
    """Of the pairs of causal attention over two lines of blocks 50.2 % are visible, and three blocks of four run."""
    graph = flexible(1, 1, 256, 256, mask=causal, block=128)
    assert known(graph) == 256 * 257 // 2
    (use,) = analyze(graph).attentions
    assert (use.partial_blocks, use.full_blocks) == (2, 1)


def test_work_is_done_for_all_pairs_without_a_block_mask() -> None:
    """Of the two batch entries one sees 5 keys and one 15, in 4 heads; every score is computed."""
    functions = {"mask": lambda b, h, q, k: k < b * 10 + 5, "score": lambda s, b, h, q, k: s * 2}
    report = analyze(flexible(2, 4, 40, 40, **functions, block=2**30))
    cost = next(row.cost for row in report.rows if row.node == "flex")
    scale, softmax, double, multiply, add, compare, select = 1, 4, 1, 1, 1, 1, 1
    each = scale + softmax + double + multiply + add + compare + select
    assert cost.vector_flops == 2 * 4 * 40 * 40 * each
    assert pairs(report) == 4 * 40 * (5 + 15)


def test_work_is_done_where_blocks_run() -> None:
    """Of five lines of five blocks of 16 x 16, 15 blocks run, and in 5 of them the mask is asked."""
    report = analyze(flexible(1, 1, 80, 80, mask=causal, score=lambda s, b, h, q, k: torch.exp(s) * 2))
    cost = next(row.cost for row in report.rows if row.node == "flex")
    scale, softmax, double, compare, select = 1, 4, 1, 1, 1
    assert cost.vector_flops == 15 * 256 * (scale + softmax + double) + 5 * 256 * (compare + select)
    assert cost.transcendentals == 15 * 256 * 2


def test_reports_name_blocks() -> None:
    """Two lines of blocks in each of two heads: on the diagonal partial, below it full."""
    report = analyze(flexible(1, 2, 32, 32, mask=causal))
    assert Report.from_json(report.to_json()).attentions == report.attentions
    heads, line = (text.split(",") for text in csv(report, by="attention").splitlines())
    told = dict(zip(heads, line, strict=True))
    assert (told["mask"], told["partial_blocks"], told["full_blocks"]) == ("structure", "4", "2")
    text = table(report, by="attention", width=200)
    assert "partial + full blocks" in text
    assert "4 + 2" in text
    assert "branches" not in text


# What is not at hand


def test_contents_that_the_caller_passes() -> None:
    """Documents are not known, that nobody looks ahead is."""
    report = analyze(flexible(1, 1, 40, 40, mask=causal_in_document, tensors={"d": DOCUMENTS}, passed=["d"]))
    assert pairs(report) == 40 * 41 // 2
    assert report.attentions[0].mask == "tensor"
    assert report.attentions[0].partial_blocks is None
    (diagnostic,) = report.diagnostics
    assert (diagnostic.code, diagnostic.name, diagnostic.node) == ("GF117", "mask-not-known", "flex")
    assert "what d holds is not at hand" in diagnostic.message


def test_nothing_at_hand_is_all_visible() -> None:
    report = analyze(flexible(1, 1, 40, 40, mask=same_document, tensors={"d": DOCUMENTS}, passed=["d"]))
    assert pairs(report) == 40 * 40
    assert [d.code for d in report.diagnostics] == ["GF117"]


def test_a_bias_that_is_not_at_hand_hides_nothing() -> None:
    biased = flexible(
        1,
        1,
        40,
        40,
        mask=causal,
        score=lambda s, b, h, q, k, x: s + at(x, q),
        tensors={"x": torch.ones(40)},
        passed=["x"],
    )
    assert known(biased) == 40 * 41 // 2


def test_lists_of_blocks_tell_where_the_mask_does_not() -> None:
    """Of 3 x 3 blocks of 16 three run, one of them in full; the last line and column are 8 wide."""
    lists = [torch.tensor(x, dtype=torch.int32)[None, None] for x in LISTS]
    given = {"mask": same_document, "tensors": {"d": DOCUMENTS}, "lists": lists}
    report = analyze(flexible(1, 1, 40, 40, **given, passed=["d"]))
    assert pairs(report) == 16 * 16 + 16 * 16 + 8 * 8
    assert report.attentions[0].mask == "tensor"
    seen = DOCUMENTS[:, None] == DOCUMENTS
    assert known(flexible(1, 1, 40, 40, **given)) == 16 * 16 + int(seen[16:32, 16:32].sum()) + 8 * 8
    (use,) = analyze(flexible(1, 1, 40, 40, **given)).attentions
    assert (use.partial_blocks, use.full_blocks) == (2, 1)


LISTS = ([0, 1, 1], [[0, 0, 0], [1, 0, 0], [2, 0, 0]], [1, 0, 0], [[0, 0, 0], [0, 0, 0], [0, 0, 0]])


def test_too_many_pairs_to_ask_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rectangles, "MOST_PAIRS", 1000)
    report = analyze(flexible(1, 1, 40, 40, mask=same_document, tensors={"d": DOCUMENTS}))
    assert pairs(report) == 40 * 40
    assert "more than 1,000 pairs" in report.diagnostics[0].message


def test_an_operator_that_is_not_followed() -> None:
    report = analyze(flexible(1, 1, 40, 40, mask=lambda b, h, q, k: (q >= k) & (torch.lgamma(q) >= k)))
    assert pairs(report) == 40 * 41 // 2
    assert "aten.lgamma.default is not followed" in report.diagnostics[0].message


def test_what_is_doubtful_is_said_once() -> None:
    graph = flexible(1, 1, 40, 40, mask=same_document, tensors={"d": DOCUMENTS}, passed=["d"])
    (flex,) = graph.nodes
    again = replace(flex, name="flex_1", outputs=("out_1", None, None))
    types = {**graph.types, "out_1": graph.types["out"]}
    outputs = (*graph.outputs, Output(Ref("out_1")))
    report = analyze(replace(graph, nodes=(flex, again), types=types, outputs=outputs))
    assert len(report.attentions) == 2
    assert [(d.code, d.node) for d in report.diagnostics] == [("GF117", "flex")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda args: args[:2],
        lambda args: args[:7],
        lambda args: (*args[:3], None, *args[4:]),
        lambda args: (*args[:4], None, *args[5:]),
        lambda args: (*args[:4], args[4][:-1], *args[5:]),
        lambda args: (*args[:4], args[4][-3:], *args[5:]),
        lambda args: (*args[:4], (*args[4][:2], *(Ref("d"),) * 10, *args[4][-3:]), *args[5:]),
        lambda args: (*args[:8], ()),
        lambda args: (*args[:8], (3, 4)),
        lambda args: (Ref("d"), *args[1:]),
    ],
)
def test_calls_of_another_form(spoil: Any) -> None:
    """Whatever a program says, there is a report."""
    graph = flexible(1, 1, 40, 40, mask=same_document, tensors={"d": DOCUMENTS})
    (flex,) = graph.nodes
    (row, *_) = analyze(replace(graph, nodes=(replace(flex, args=spoil(flex.args)),))).rows
    assert row.state in ("counted", "unknown")


# Lengths that are symbols


def test_symbols() -> None:
    graph = flexible("b", 2, "s", "s", mask=causal)
    found = pairs(graph)
    for length in (1, 2, 16, 17, 40):
        assert evaluate(found, {"b": 3, "s": length}) == 3 * 2 * length * (length + 1) // 2
    (use,) = analyze(graph).attentions
    assert evaluate(use.partial_blocks or 0, {"b": 3, "s": 40}) == 3 * 2 * (
        1 + 1 + 3
    )  # the last line is not full
    assert evaluate(use.full_blocks or 0, {"b": 3, "s": 40}) == 3 * 2


def test_symbols_and_contents() -> None:
    """Without sizes only the structure is known, with sizes everything."""
    graph = flexible(1, 1, "s", "s", mask=causal_in_document, tensors={"d": DOCUMENTS})
    report = analyze(graph)
    assert evaluate(pairs(report), {"s": 40}) == 40 * 41 // 2
    assert "give sizes" in report.diagnostics[0].message
    assert pairs(graph, dims={"s": 40}) == TRIANGLES


# Where contents come from


def inside(graph: Graph, operator: str, leading: tuple[Any, ...]) -> Graph:
    """The program as a graph nested in another."""
    names = [entry.name for entry in graph.inputs]
    inner = replace(graph, inputs=tuple(Input(name, "user") for name in names), contents=None, symbols={})
    call = Node("wrap", operator, (*leading, inner, *map(Ref, names)), outputs=("out",))
    return replace(graph, nodes=(call,), outputs=(Output(Ref("out")),))


@pytest.mark.parametrize(
    ("operator", "leading"),
    [("higher_order.wrap_with_set_grad_enabled", (False,)), ("higher_order.wrap", ())],
)
def test_in_a_nested_graph(operator: str, leading: tuple[Any, ...]) -> None:
    graph = flexible(1, 1, 40, 40, mask=causal_in_document, tensors={"d": DOCUMENTS})
    assert known(inside(graph, operator, leading)) == TRIANGLES


def before(graph: Graph, *calls: Node) -> Graph:
    """The program with calls in front that make what the functions capture."""
    types = {**graph.types, **{call.name: graph.types["d"] for call in calls}}
    (flex,) = graph.nodes
    arguments = (*flex.args[:8], (Ref(calls[-1].name),))
    return replace(graph, nodes=(*calls, replace(flex, args=arguments)), types=types)


def made(name: str, op: str, *args: Any) -> Node:
    return Node(name, op, args, outputs=(name,))


def test_made_in_the_program() -> None:
    graph = flexible(1, 1, 40, 40, mask=causal_in_document, tensors={"d": DOCUMENTS})
    calls = (
        made("places", "aten.arange.default", 40),
        made("eights", "aten.floor_divide.default", Ref("places"), 8),
    )
    assert known(before(graph, *calls)) == 5 * (8 * 9 // 2)
    copied = (
        made("fresh", "aten.lift_fresh_copy.default", Ref("d")),
        made("own", "aten.detach_.default", Ref("fresh")),
    )
    assert known(before(graph, *copied)) == TRIANGLES


def test_written_in_place() -> None:
    """What a call has written over is not what the file stores: zeros everywhere are one document."""
    graph = flexible(1, 1, 40, 40, mask=causal_in_document, tensors={"d": DOCUMENTS})
    calls = (
        made("view", "aten.view.default", Ref("d"), (40,)),
        made("zero", "aten.zero_.default", Ref("view")),
    )
    written = before(graph, *calls, made("again", "aten.alias.default", Ref("d")))
    assert known(written) == 40 * 41 // 2


def test_calls_that_differ_in_contents_alone() -> None:
    first = flexible(1, 1, 40, 40, mask=same_document, tensors={"d": DOCUMENTS})
    second = flexible(1, 1, 40, 40, mask=same_document, tensors={"d": torch.arange(40)})
    (one,), (other,) = first.nodes, second.nodes
    renamed = replace(
        one, name="flex_1", args=(*one.args[:7], (Ref("e"),), (Ref("e"),)), outputs=("out_1", None, None)
    )

    def contents(name: str) -> Any:
        assert first.contents is not None
        assert second.contents is not None
        return first.contents("d") if name == "d" else second.contents("d")

    both = replace(
        first,
        nodes=(one, renamed),
        types={**first.types, "e": first.types["d"], "out_1": first.types["out"]},
        inputs=(*first.inputs, Input("e", "buffer", "e")),
        outputs=(*first.outputs, Output(Ref("out_1"))),
        contents=contents,
    )
    uses = analyze(both).attentions
    assert [(use.flops - use.masked_flops) // PAIR for use in uses] == [3**2 + 6**2 + 11**2 + 20**2, 40]
    assert other.name == "flex"


@pytest.mark.parametrize("seed", range(20))
def test_random_functions(seed: int) -> None:
    drawn = Drawn.of(seed)
    assert drawn.counted() == drawn.expected(), drawn
