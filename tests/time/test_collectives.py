"""Time of collectives: what each device sends, over the link of the device, against NCCL on two H200."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.devices import device
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.time.predict import predict
from graphflops.time.schedule import Link, Running
from tests.process_group import first_of
from tests.support import price, t

MB = 2**20


def sent(name: str, nbytes: int) -> int:
    """What each of two devices sends. nbytes: of the operand."""
    x, two = t(2, nbytes // 4, dtype="bfloat16"), {"devices": 2}
    estimate = {
        "all_reduce": lambda: price("_c10d_functional.all_reduce", x, "sum", "0", **two),
        "all_gather": lambda: price("_c10d_functional.all_gather_into_tensor", x, 2, "0"),
        "reduce_scatter": lambda: price("_c10d_functional.reduce_scatter_tensor", x, "sum", 2, "0"),
        "all_to_all": lambda: price("_c10d_functional.all_to_all_single", x, (), (), "0", **two),
        "broadcast": lambda: price("_c10d_functional.broadcast", x, 0, "0"),
    }[name]()
    assert isinstance(estimate.link_bytes, int)
    return estimate.link_bytes


@pytest.mark.parametrize(
    ("name", "operand", "microseconds"),
    [
        # NCCL in torch 2.11 between two H200: one after another in a CUDA graph
        ("all_reduce", 4096, 10.83),
        ("all_reduce", 1 * MB, 17.19),
        ("all_reduce", 64 * MB, 246.79),
        ("all_reduce", 256 * MB, 890.26),
        ("all_gather", 4096, 10.42),
        ("all_gather", 1 * MB, 19.38),
        ("all_gather", 64 * MB, 293.23),
        ("all_gather", 256 * MB, 1052.94),
        ("reduce_scatter", 4096, 9.79),
        ("reduce_scatter", 1 * MB, 13.43),
        ("reduce_scatter", 64 * MB, 166.65),
        ("reduce_scatter", 256 * MB, 588.59),
        ("all_to_all", 4096, 10.5),
        ("all_to_all", 1 * MB, 15.91),
        ("all_to_all", 64 * MB, 139.72),
        ("all_to_all", 256 * MB, 476.16),
        ("broadcast", 4096, 9.6),
        ("broadcast", 1 * MB, 14.33),
        ("broadcast", 64 * MB, 200.71),
        ("broadcast", 256 * MB, 743.32),
    ],
)
def test_two_h200(name: str, operand: int, microseconds: float) -> None:
    sizes = Exchange(sent(name, operand))
    found = predict(Kernel("collective", "bfloat16", sizes=sizes, variant=name), device("h200"))
    assert found.seconds == pytest.approx(microseconds * 1e-6, rel=0.12)
    assert found.bound == ("link" if operand > MB else "latency")


@pytest.mark.parametrize("profile", ["h100", "a100", "l40s", "rtx4090", "l4", "mi300x"])
def test_every_device_has_a_time_for_them(profile: str) -> None:
    sizes = Exchange(256 * MB)
    found = predict(Kernel("collective", "bfloat16", sizes=sizes, variant="all_reduce"), device(profile))
    assert found.seconds > 256 * MB / device(profile).links[0].bandwidth


def _time(devices: int, *, gathers: bool) -> Any:
    """The predicted time of an exported program that adds up a tensor over devices, and may gather it."""
    with first_of(devices) as (torch, exchange):

        class Parallel(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                whole = exchange.all_reduce(x, "sum", "0")
                return exchange.all_gather_tensor(whole, 0, "0") if gathers else whole

        exported = torch.export.export(Parallel(), (torch.zeros(8192, 8192, device="meta"),))
        return analyze(exported, device="h200", execution="graph").totals.time


def test_without_the_number_of_devices_the_time_is_that_of_two() -> None:
    assert _time(8, gathers=False).seconds == _time(2, gathers=False).seconds


def test_another_collective_of_the_group_tells_the_number_of_devices() -> None:
    two, eight = _time(2, gathers=True), _time(8, gathers=True)
    # Of 268,435,456 bytes each of 8 sends 7 / 4 in the sum and 7 in the gathering, each of 2 once and once.
    assert eight.seconds - two.seconds > (7 / 4 + 7 - 2) * 8192 * 8192 * 4 / 450e9


class _Programs:
    """Programs of one collective and products, as calls."""

    x, y = t(4096, 4096, dtype="bfloat16"), t(64, 2**20, dtype="bfloat16")

    def __init__(self, *calls: tuple[str, str, tuple[Any, ...]]) -> None:
        nodes = [Node(out, op, args, outputs=(out,)) for out, op, args in calls]
        types = {"x": self.x, "y": self.y, **{node.name: self._type(node) for node in nodes}}
        outputs = tuple(Output(Ref(name)) for name in (nodes[-1].name, "sum"))
        self.graph = Graph(tuple(nodes), types, (Input("x", "user"), Input("y", "user")), outputs)

    def _type(self, node: Node) -> Any:
        return self.x if node.op.startswith("aten.mm") else self.y

    def seconds(self, execution: Any = "graph") -> float:
        time = analyze(self.graph, device="h200", execution=execution).totals.time
        assert time is not None
        return time.seconds


START = ("started", "_c10d_functional.all_reduce.default", (Ref("y"), "sum", "0"))
WAIT = ("sum", "_c10d_functional.wait_tensor.default", (Ref("started"),))
PRODUCTS = tuple((f"m{i}", "aten.mm.default", (Ref("x"), Ref("x"))) for i in range(3))
LAST = ("twice", "aten.mul.Tensor", (Ref("sum"), 2))


def test_a_collective_runs_beside_what_does_not_read_its_result() -> None:
    beside = _Programs(START, WAIT, *PRODUCTS, LAST).seconds()
    after = _Programs(START, WAIT, LAST, *PRODUCTS).seconds()
    products = _Programs(*PRODUCTS, ("sum", "aten.mul.Tensor", (Ref("y"), 1))).seconds()
    assert 0.25 * products < after - beside < 0.8 * products


def test_a_wait_further_down_is_a_wait() -> None:
    late = _Programs(START, *PRODUCTS, WAIT, LAST).seconds()
    early = _Programs(START, PRODUCTS[0], WAIT, *PRODUCTS[1:], LAST).seconds()
    assert late < early


def test_the_time_that_nothing_hides_is_that_of_the_collective() -> None:
    report = analyze(_Programs(START, WAIT, *PRODUCTS, LAST).graph, device="h200", execution="graph")
    seconds = {row.node: row.time.seconds for row in report.rows if row.time is not None}
    assert seconds["started"] > seconds["sum"] == 0
    assert sum(seconds.values()) == pytest.approx(report.totals.time.seconds)


@pytest.mark.parametrize(
    ("exchange", "kernels", "measured"),
    [
        # two H200, microseconds: the collective alone, each kernel alone, all of them together
        (899.2, [1383.5 / 8] * 8, 1746.6),
        (1121.2, [1393.8 / 8] * 8, 1817.2),
        (536.9, [1406.9 / 8] * 8, 1610.2),
        (262.7, [260.2], 396.6),
        (254.7, [765.4 / 3] * 3, 846.0),
        (1080.5, [511.7], 1323.3),
        (899.5, [1525.7 / 3] * 3, 1803.1),
    ],
)
def test_two_streams_share_a_gpu(exchange: float, kernels: list[float], measured: float) -> None:
    link = Link()
    link.start(1, -10.0, exchange)
    at = 0.0
    for seconds in kernels:
        at = link.beside(at, seconds)
    assert max(at, link.end(1)) == pytest.approx(measured, rel=0.06)


def test_a_collective_knows_may_run_ahead_of_the_kernels() -> None:
    """From 1 s on, kernels are launched until 4 s: 3 s ahead, and what they take longer beside it."""
    link = Link()
    first, second = Running(1, 1.0, 100.0), Running(2, 1.5, 100.0)
    delay = link.start_ahead(first, 4.0)
    assert delay == pytest.approx(3 * (1 - 0.8))  # they run at 0.8 of their speed
    assert link.start_ahead(second, 4.0) == 0  # in the queue behind the first
    assert (first.ready, second.ready) == (1, 1.5)
