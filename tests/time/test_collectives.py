"""Time of collectives: what each device sends, over the link of the device, against NCCL on two H200."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.devices import device
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.time.kernel import Exchange, Kernel
from graphflops.time.predict import predict
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
        "broadcast": lambda: price("_c10d_functional.broadcast", x, 0, "0", **two),
    }[name]()
    assert isinstance(estimate.link_bytes, int)
    return estimate.link_bytes


@pytest.mark.parametrize(
    ("name", "operand", "microseconds"),
    [
        # kernels of NCCL in torch 2.11 between two H200, by the profiler
        ("all_reduce", 64 * MB, 241.1),
        ("all_reduce", 256 * MB, 886.9),
        ("all_gather", 64 * MB, 285.8),
        ("all_gather", 256 * MB, 1051.5),
        ("reduce_scatter", 64 * MB, 163.3),
        ("reduce_scatter", 256 * MB, 581.4),
        ("all_to_all", 64 * MB, 121.1),
        ("all_to_all", 256 * MB, 465.7),
        ("broadcast", 64 * MB, 195.9),
        ("broadcast", 256 * MB, 736.3),
    ],
)
def test_two_h200(name: str, operand: int, microseconds: float) -> None:
    sizes = Exchange(sent(name, operand))
    found = predict(Kernel("collective", "bfloat16", sizes=sizes, variant=name), device("h200"))
    assert found.seconds == pytest.approx(microseconds * 1e-6, rel=0.1)
    assert found.bound == "link"


@pytest.mark.parametrize("profile", ["h100", "a100", "l40s", "rtx4090", "l4", "mi300x"])
def test_every_device_has_a_time_for_them(profile: str) -> None:
    sizes = Exchange(256 * MB)
    found = predict(Kernel("collective", "bfloat16", sizes=sizes, variant="all_reduce"), device(profile))
    assert found.seconds > 256 * MB / device(profile).links[0].bandwidth


def _time(devices: int, *, gathers: bool) -> Any:
    """The predicted time of an exported program that adds up a tensor over devices, and may gather it."""
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not torch.distributed.is_available():
        pytest.skip("this torch knows no other devices")
    import torch.distributed._functional_collectives as exchange

    class Parallel(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            whole = exchange.all_reduce(x, "sum", "0")
            return exchange.all_gather_tensor(whole, 0, "0") if gathers else whole

    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=devices)
    try:
        exported = torch.export.export(Parallel(), (torch.zeros(8192, 8192, device="meta"),))
        return analyze(exported, device="h200", execution="graph").totals.time
    finally:
        torch.distributed.destroy_process_group()


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
    assert beside < after
    assert after - beside == pytest.approx(products, rel=0.3)


def test_a_wait_further_down_is_a_wait() -> None:
    late = _Programs(START, *PRODUCTS, WAIT, LAST).seconds()
    early = _Programs(START, PRODUCTS[0], WAIT, *PRODUCTS[1:], LAST).seconds()
    assert late < early


def test_the_time_that_nothing_hides_is_that_of_the_collective() -> None:
    report = analyze(_Programs(START, WAIT, *PRODUCTS, LAST).graph, device="h200", execution="graph")
    seconds = {row.node: row.time.seconds for row in report.rows if row.time is not None}
    assert seconds["started"] > seconds["sum"] == 0
    assert sum(seconds.values()) == pytest.approx(report.totals.time.seconds)
