"""Pictures of graphs: places of boxes and lines, modules folded into sheets, and the SVG."""

from __future__ import annotations

import random
import re
from itertools import combinations
from xml.etree import ElementTree

import networkx
import pytest

from graphflops import analyze
from graphflops.comparison.compare import compared
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.render.picture.layout import Box, Layout, layout
from graphflops.render.picture.nest import MOST, Sheet, joined, nested, validated
from graphflops.render.picture.svg import page, svg
from graphflops.runtime.validation import CheckResult, NodeResult, Validation
from graphflops.tensor import FLOAT32, TensorType
from tests.render.reports import HOSTILE

Pair = tuple[int, int]


def chain(*calls: tuple[str, str, int], skips: tuple[Pair, ...] = ()) -> networkx.MultiDiGraph:
    """Calls (module, operator, FLOPs) one after another, and further edges between them by place."""
    graph = networkx.MultiDiGraph(name="chain.pt2", level="call")
    graph.add_node("x", label="x", kind="input")
    for place, (module, op, flops) in enumerate(calls):
        graph.add_node(
            f"c{place}",
            label=op,
            op=f"aten.{op}",
            kind="call",
            module=module,
            flops=flops,
            bytes=8,
            exact="exact",
        )
        graph.add_edge(
            f"c{place - 1}" if place else "x", f"c{place}", value=f"v{place}", shape="[2, 3]", bytes=24
        )
    for start, end in skips:
        graph.add_edge(
            f"c{start}" if start >= 0 else "x", f"c{end}", value=f"v{start + 1}", shape="[2, 3]", bytes=24
        )
    return graph


def decoder(layers: int, wide: int = -1) -> networkx.MultiDiGraph:
    """Layers of four calls with a skip connection over three of them; `wide` is the one that works ten times as much."""
    calls, skips = [], []
    for layer in range(layers):
        work = 1000 if layer == wide else 100
        at = f"layers.{layer}"
        skips.append((len(calls) - 1, len(calls) + 3))
        calls += [
            (f"{at}.norm", "rms_norm", 0),
            (f"{at}.up", "linear", work),
            (f"{at}.down", "linear", work),
            (at, "add", 0),
        ]
    return chain(*calls, skips=tuple(skips))


def labels(sheet: Sheet) -> list[str]:
    return [f"{item.label} x{item.count}" if item.count > 1 else item.label for item in sheet.items]


def random_case(seed: int) -> tuple[list[Box], list[Pair]]:
    pick = random.Random(seed)
    count = pick.randint(1, 40)
    boxes = [Box(pick.randint(40, 200), pick.randint(20, 70), pick.choice((0, 150))) for _ in range(count)]
    return boxes, [
        (pick.randint(max(0, b - 9), b - 1), b) for b in range(1, count) for _ in range(pick.randint(1, 3))
    ]


def room(box: Box, place: tuple[float, float]) -> tuple[float, float, float, float]:
    return (
        place[0] - box.width / 2,
        place[1] - box.height / 2,
        place[0] + box.width / 2,
        place[1] + box.height / 2,
    )


def crossed(found: Layout, boxes: list[Box]) -> list[tuple[Pair, int]]:
    """Lines that run down through a box which they do not join."""
    hit = []
    for pair, route in found.routes.items():
        for (x, start), (_, end) in zip(route.points[::2], route.points[1::2], strict=True):
            for other, box in enumerate(boxes):
                left, top, right, bottom = room(box, found.places[other])
                if other not in pair and left < x < right and start < bottom and end > top:
                    hit.append((pair, other))
    return hit


def test_no_box_lies_on_another_and_no_line_on_a_box() -> None:
    for seed in range(150):
        boxes, edges = random_case(seed)
        found = layout(boxes, edges)
        rooms = [room(box, place) for box, place in zip(boxes, found.places, strict=True)]
        for one, other in combinations(rooms, 2):
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1], seed
        assert crossed(found, boxes) == [], seed
        assert found.routes.keys() == {*edges}
        for (start, end), route in found.routes.items():
            assert route.points[0] == pytest.approx((found.places[start][0], rooms[start][3]), abs=0.11)
            assert rooms[end][0] <= route.points[-1][0] <= rooms[end][2]
            assert found.places[start][1] < found.places[end][1], (
                "every box stands below those that it depends on"
            )
        assert all(left >= 0 and right <= found.width + 0.1 for left, _, right, _ in rooms)


def test_a_skip_connection_is_one_straight_line_beside_what_it_skips() -> None:
    boxes = [Box(80 + 60 * (place % 3), 40, 90) for place in range(10)]
    found = layout(boxes, [*((place, place + 1) for place in range(9)), (0, 9), (2, 7)])
    column = {x for x, _ in found.places}
    assert len(column) == 1, "the chain itself is straight, too"
    for pair, gaps in (((0, 9), 8), ((2, 7), 4)):
        between = found.routes[pair].points[2:-2]
        assert len(between) == 2 * gaps
        assert len({x for x, _ in between}) == 1


def test_an_edge_back_goes_up() -> None:
    found = layout([Box(50, 20)] * 3, [(0, 1), (1, 2), (2, 0)])
    back = found.routes[2, 0]
    assert back.back
    assert back.points[0][1] > back.points[-1][1]
    assert not found.routes[0, 1].back


def test_equal_layers_are_one_box_which_holds_the_first() -> None:
    sheet = nested(decoder(24), {"layers.0": "my.Layer"})
    assert labels(sheet) == ["x", "layers.0-23 x24"]
    layers = sheet.items[1]
    assert (layers.what, layers.facts["flops"]) == ("Layer", 24 * 200)
    assert layers.inside is not None
    assert labels(layers.inside) == ["from x", "norm", "up", "down", "add", "to layers.1"]
    assert [item.times for item in layers.inside.items[1:5]] == [24] * 4
    assert {(0, 1), (0, 4), (3, 4), (4, 5)} <= layers.inside.links.keys(), (
        "the skip connection goes around the work"
    )


def test_layers_that_alternate_are_folded_together() -> None:
    calls = [
        (f"layers.{place}.{'dense' if place % 2 else 'sparse'}", "linear", 10 + place % 2)
        for place in range(8)
    ]
    (_, repeated) = nested(chain(*calls), {}).items
    assert (repeated.label, repeated.count, repeated.what) == ("layers.0-7", 4, "2 in turn")
    assert repeated.facts["flops"] == 4 * (10 + 11)
    assert repeated.inside is not None
    assert labels(repeated.inside) == ["from x", "0.sparse", "1.dense", "to layers.2"]


def test_a_layer_that_differs_is_a_box_of_its_own() -> None:
    sheet = nested(decoder(6, wide=3), {})
    inside = next(item.inside for item in sheet.items if item.inside is not None)
    assert inside is not None
    assert [name for name in labels(inside) if name[0].isdigit()] == ["0-2 x3", "3", "4-5 x2"]


def test_a_module_called_again_after_others_is_another_box() -> None:
    graph = chain(
        ("a", "conv", 5), ("relu", "relu", 0), ("b", "conv", 5), ("relu", "relu", 0), ("c", "conv", 5)
    )
    sheet = nested(graph, {})
    assert labels(sheet) == ["x", "a", "relu", "b", "relu", "c"]
    assert all(start < end for start, end in sheet.links), "nothing leads back"


def test_many_calls_without_modules_are_boxes_of_consecutive_ones() -> None:
    count = 3 * MOST + 1
    sheet = nested(chain(*[("", "add", 1)] * count), {})
    assert labels(sheet)[0] == "part 1 of 4"
    assert len(sheet.items) == 4
    assert sum(item.facts["flops"] for item in sheet.items) == count


def test_calls_that_compute_a_mask_are_one_box_among_many() -> None:
    """Connected calls without FLOPs, where there are many boxes; what they depend on stays before them."""
    mask = [("", op, 0) for op in ("arange", "view", "le", "where", "expand")]
    layers = [(f"m{place}", "linear", 5) for place in range(30)]
    sheet = nested(chain(*layers[:1], *mask, *layers[1:]), {})
    assert labels(sheet)[:4] == ["x", "m0", "arange, view …", "m1"]
    assert (sheet.items[2].what, sheet.items[2].facts["flops"]) == ("5 parts", 0)
    assert all(start < end for start, end in sheet.links), "nothing leads back"
    few = nested(chain(*layers[:1], *mask, *layers[1:5]), {})
    assert "arange" in labels(few), "a few boxes are shown as they are"


def test_an_svg_is_well_formed_whatever_the_names() -> None:
    graph = chain((HOSTILE, HOSTILE, 5), ("m", "</text><script>", 7))
    graph.nodes["c1"].update(exact="unknown", status="changed", stage=2)
    text = svg(graph)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert {one.tag.removeprefix(space) for one in root.iter()} <= {
        *("svg", "title", "style", "defs", "marker", "pattern", "path", "rect", "g", "circle", "text")
    }
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_boxes_say_what_is_known_and_mark_what_is_not() -> None:
    graph = chain(("m", "conv", 3_000), ("n", "custom", 0), ("o", "linear", 1_000))
    del graph.nodes["c1"]["flops"]
    graph.nodes["c1"]["exact"] = "unknown"
    found = svg(graph)
    assert ">3,000 FLOPs · 75.0 %<" in found
    assert ">1,000 FLOPs · 25.0 %<" in found
    assert found.count(">cost unknown<") == 1
    assert found.count('class="hatched"') == 1
    assert found.count(">2×3 · 24 B<") == 3
    heats = [float(heat) for heat in re.findall(r'fill-opacity="([\d.]+)"', found)]
    assert heats == sorted(heats, reverse=True)
    assert len(heats) == 2


def test_odd_graphs_are_drawn() -> None:
    """Nothing, nodes without attributes, circles, and costs that no float holds."""
    assert svg(networkx.MultiDiGraph()).count('class="node') == 0
    circle = networkx.MultiDiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("a", "a")])
    assert svg(circle).count('class="node') == page(circle).count('class="node') == 3
    huge = svg(chain(("m", "mm", 3 * 10**400), ("n", "mm", 10**400)))
    assert "· 75.0 %<" in huge


def test_shares_of_a_sample_are_those_of_its_report() -> None:
    report = analyze("samples/gqa_transformer.pt2")
    whole = report.value(report.total().matrix_flops)
    blocks = report.by("module", depth=1)["blocks"]
    share = 100 * (report.value(blocks.matrix_flops) or 0) / (whole or 1)
    assert f"· {share:.1f} %<" in page(report)
    assert ">blocks.0-3 × 4<" in page(report)


def program(calls: dict[str, tuple[str, str, tuple[str, ...]]]) -> Graph:
    """Calls by name: module, operator and the values that they read; `x` is the input, the last call the result."""
    typed = TensorType((4, 4), FLOAT32)
    nodes = [
        Node(name, op, tuple(Ref(one) for one in reads), (), (name,), module=module)
        for name, (module, op, reads) in calls.items()
    ]
    types = dict.fromkeys(["x", *calls], typed)
    return Graph(tuple(nodes), types, (Input("x", "user"),), (Output(Ref([*calls][-1])),))


BEFORE = {
    "a": ("first", "aten.mm.default", ("x", "x")),
    "b": ("second", "aten.relu.default", ("a",)),
    "c": ("third", "aten.mm.default", ("b", "b")),
    "d": ("", "aten.add.Tensor", ("c", "a")),
    "e": ("last", "aten.mm.default", ("d", "d")),
}


def statuses(
    after: dict[str, tuple[str, str, tuple[str, ...]]],
) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Of nodes and of edges, where they have one."""
    old, new = analyze(program(BEFORE)), analyze(program(after))
    graph = joined(compared(old, new), old)
    nodes = {name: facts["status"] for name, facts in graph.nodes(data=True) if "status" in facts}
    return nodes, {(a, b): facts["status"] for a, b, facts in graph.edges(data=True) if "status" in facts}


def test_what_is_equal_has_no_status_even_under_other_names() -> None:
    names = {name: f"{name}_1" for name in BEFORE}
    renamed = {
        names[n]: (m, op, tuple(names.get(one, one) for one in reads)) for n, (m, op, reads) in BEFORE.items()
    }
    assert statuses(renamed) == ({}, {})


def test_calls_that_only_moved_within_a_module_have_no_status() -> None:
    pair = {"p": ("", "aten.neg.default", ("a",)), "q": ("", "aten.relu.default", ("a",))}
    end = {"r": ("", "aten.add.Tensor", ("p", "q"))}
    old = analyze(program({"a": BEFORE["a"], **pair, **end}))
    new = analyze(program({"a": BEFORE["a"], **dict(reversed(pair.items())), **end}))
    graph = joined(compared(old, new), old)
    assert not any("status" in facts for _, facts in graph.nodes(data=True))


def test_added_and_removed_modules_are_boxes_beside_the_others() -> None:
    nodes, edges = statuses({**BEFORE, "f": ("extra", "aten.relu.default", ("e",))})
    assert nodes["f"] == "new"
    assert edges["e", "f"] == "new"
    less = {name: call for name, call in BEFORE.items() if name != "b"} | {
        "c": ("third", "aten.mm.default", ("a", "a"))
    }
    nodes, edges = statuses(less)
    assert nodes == {"b (gone)": "gone", "c": "changed"}
    assert edges == {("a", "b (gone)"): "gone", ("b (gone)", "c"): "gone", ("a", "c"): "new"}


def test_a_skip_connection_that_is_gone_is_seen_though_all_costs_are_equal() -> None:
    nodes, edges = statuses({**BEFORE, "d": ("", "aten.add.Tensor", ("c", "c"))})
    assert nodes == {"d": "changed"}
    assert edges == {("a", "d"): "gone"}


def test_calls_of_a_run_have_their_verdicts() -> None:
    report = analyze(program(BEFORE))
    checks = {"a": "equal", "c": "different", "d": "explained"}
    results = tuple(
        NodeResult(place, name, "", "", (CheckResult("flops", verdict, "128", "130"),), 1, 128, 64)
        for place, (name, verdict) in enumerate(checks.items())
    )
    graph = validated(report, Validation("", "cpu", "2.13", {}, results))
    assert {name: facts["status"] for name, facts in graph.nodes(data=True) if "status" in facts} == {
        "c": "different",
        "d": "explained",
    }
    assert graph.nodes["c"]["note"] == "flops: 128, ran 130"
    assert "≠ differs" in page(graph)
