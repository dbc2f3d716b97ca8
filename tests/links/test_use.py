"""Collectives of a program on a network: what a report says of them."""

from __future__ import annotations

import json

import pytest

from graphflops.analysis import analyze
from graphflops.devices import device
from graphflops.errors import OptionError
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.links import network_of
from graphflops.links.cost import described, of_sent
from graphflops.render import render
from graphflops.report import Report
from graphflops.time.predict import predict
from tests.support import t

X, Y = t(4096, 4096, dtype="bfloat16"), t(64, 2**20, dtype="bfloat16")


def program(*calls: tuple[str, str, tuple]) -> Graph:
    """Calls whose results are as large as what they read. y: what is sent; x: what is multiplied."""
    nodes = tuple(Node(out, op, args, outputs=(out,)) for out, op, args in calls)
    types = {"x": X, "y": Y, **{node.name: X if node.op.startswith("aten.mm") else Y for node in nodes}}
    return Graph(nodes, types, (Input("x", "user"), Input("y", "user")), (Output(Ref(nodes[-1].name)),))


def summed(*between: tuple[str, str, tuple]) -> Graph:
    """A sum over devices that is read after other calls."""
    start = ("started", "_c10d_functional.all_reduce.default", (Ref("y"), "sum", "0"))
    wait = ("sum", "_c10d_functional.wait_tensor.default", (Ref("started"),))
    return program(start, *between, wait, ("twice", "aten.mul.Tensor", (Ref("sum"), 2)))


PRODUCTS = tuple((f"m{i}", "aten.mm.default", (Ref("x"), Ref("x"))) for i in range(4))


def test_what_other_kernels_hide_is_not_exposed():
    alone, beside = (
        analyze(graph, device="h200", execution="graph").totals.time
        for graph in (summed(), summed(*PRODUCTS))
    )
    assert alone.communication == pytest.approx(alone.exposed, rel=0.05)
    assert beside.communication == alone.communication
    # four products of 4096^3 take at least 2 * 4 * 4096^3 / 989.5e12 s, beside which the sum runs at 0.6 of its speed
    hidden = 0.6 * 2 * 4 * 4096**3 / 989.5e12
    assert 0 < beside.exposed < alone.exposed - hidden / 2
    assert beside.exposed < beside.seconds - 2 * 4 * 4096**3 / 989.5e12


def test_the_network_is_said():
    report = analyze(summed(), device="h200", execution="graph")
    text = render(report, "table")
    assert "8 devices a node, 8 x 400 Gbit/s between nodes (assumed, set it with --network)" in text
    assert "exposed" in text
    assert "guess" not in text
    assert Report.from_json(report.to_json()).network == report.network
    without = analyze(program(("m", "aten.mm.default", (Ref("x"), Ref("x")))), device="h200")
    assert without.network == "" == analyze(summed()).network
    assert without.totals.time.communication == 0


def test_a_group_larger_than_a_node_takes_the_network_that_is_given():
    def seconds(**given):
        dims = {"group_0": 64}
        return analyze(summed(), device="h200", execution="graph", dims=dims, **given)

    fast, slow = seconds(network="8x400Gbit"), seconds(network="1x400Gbit")
    nbytes = 2 * 64 * 2**20
    assert slow.totals.time.communication - fast.totals.time.communication == pytest.approx(
        2 * nbytes / 46e9 * (1 - 1 / 8), rel=0.1
    )
    assert (
        fast.network == "8 devices a node, 8 x 400 Gbit/s between nodes; times among 64 devices are a guess"
    )
    assert seconds().totals.time.seconds == fast.totals.time.seconds


@pytest.mark.parametrize(
    ("graph", "given"),
    [
        (summed(), {"network": "8x400Gbit"}),
        (summed(), {"network": "fast", "device": "h200"}),
        (program(("m", "aten.mm.default", (Ref("x"), Ref("x")))), {"network": "8x400Gbit", "device": "h200"}),
    ],
)
def test_a_network_that_nothing_depends_on_is_refused(graph, given):
    with pytest.raises(OptionError, match="--network"):
        analyze(graph, **given)


def test_a_trace_has_a_track_of_collectives():
    report = analyze(summed(*PRODUCTS), device="h200", execution="graph")
    events = json.loads(render(report, "chrome-trace"))["traceEvents"]
    track = next(event["tid"] for event in events if event["args"].get("name") == "collectives")
    (sum_,) = [event for event in events if event["ph"] == "X" and event["tid"] == track]
    assert sum_["dur"] > report.totals.time.communication * 1e6  # beside products, behind the first of them
    products = [event for event in events if event.get("name") == "aten.mm"]
    assert products[0]["ts"] < sum_["ts"] + sum_["dur"]
    (reader,) = [event for event in events if event.get("name") == "aten.mul.Tensor"]
    ends = [each["ts"] + each["dur"] for each in (*products, sum_)]
    assert reader["ts"] == pytest.approx(max(ends))
    assert reader["ts"] + reader["dur"] == pytest.approx(report.totals.time.seconds * 1e6)
    plain = analyze(program(("m", "aten.mm.default", (Ref("x"), Ref("x")))), device="h200")
    assert "collectives" not in {
        e["args"].get("name")
        for e in json.loads(render(plain, "chrome-trace"))["traceEvents"]
        if e["ph"] == "M"
    }


def test_ranks_that_lie_apart_are_in_several_nodes():
    network = network_of(device("h100"))
    # of 4 ranks at a distance of 4 two are in each node of 8: those of the others share the links of the node
    near, far = (of_sent("all_reduce", 2**20, 4, network, within=network.within(stride)) for stride in (1, 4))
    assert far.is_guess > near.is_guess
    assert (network.within(1), network.within(4), network.within(64)) == (8, 2, 1)
    kernel = Kernel("collective", "bfloat16", sizes=Exchange(2**20, 4, 4), variant="all_reduce")
    assert predict(kernel, device("h100")).seconds > far.seconds > near.seconds
    assert described([kernel], network).endswith("times among 4 devices are a guess")
