"""Steps that copy to the host by themselves, and that make streams: what leaves the device, what is assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from graphflops import analyze, record
from graphflops.exporters.recorded import read_step
from graphflops.render.chakra import chakra
from tests.render.chakra_messages import read

BYTES, SIZE = 4, 1024
Hook = Callable[[Any], Any]


def said(report: Any, code: str) -> list[str]:
    return [found.message for found in report.diagnostics if found.code == code]


def hooked(pack: Hook, unpack: Hook) -> Callable[[], Any]:
    """Four results are saved, which hooks take away and bring back."""

    def factory() -> Any:
        x = torch.zeros(SIZE, device="cuda", requires_grad=True)

        def step() -> None:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                y = x.exp().exp().exp().exp()
            y.backward(y.detach())
            x.grad = None

        return step

    return factory


def into_pinned(x: Any) -> Any:
    kept = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return kept.copy_(x, non_blocking=True)


@pytest.mark.parametrize(
    ("pack", "unpack", "waits"),
    [
        (lambda x: x.cpu(), lambda kept: kept.cuda(), True),
        (lambda x: (x.device, x.cpu()), lambda kept: kept[1].to(kept[0]), True),
        (lambda x: x.to("cpu", non_blocking=True), lambda kept: kept.to("cuda", non_blocking=True), False),
        (into_pinned, lambda kept: kept.cuda(non_blocking=True), False),
    ],
)
def test_hooks_that_offload(pack: Hook, unpack: Hook, waits: bool) -> None:
    """As `save_on_cpu`: x, the last result, the gradient of one call and that of the next, and what comes back."""
    graph = record(hooked(pack, unpack))
    report = analyze(graph, device="h100")
    assert report.memory_use[0].requested_peak == (1 + 1 + 2 + 1) * SIZE * BYTES
    copies = "4 tensors, 16.38 kB in all, are kept on the host: they are copied there and back over the bus"
    assert said(report, "GF133") == [copies]
    rows = [row for row in report.rows if row.time is not None and "transfer" in row.time.kernel]
    assert [row.phase for row in rows] == ["forward"] * 4 + ["backward"] * 4
    assert graph.step is not None
    kinds = {memory.kind for memory in graph.step.storages} & {"host", "pinned"}
    assert kinds == {"host" if waits else "pinned"}


def test_what_is_computed_on_the_host_is_not_on_the_device() -> None:
    def factory() -> Any:
        x = torch.zeros(SIZE, device="cuda")
        return lambda: ((x.exp().cpu() + 1) * 2).cuda() * x.sum().cpu()

    report = analyze(record(factory), device="h100")
    assert said(report, "GF133") == [
        "2 tensors, 4,100 B in all, are kept on the host: they are copied there and back over the bus; "
        "the CPU computes with them in 2 calls, whose time is not known"
    ]
    # x and its exponential; then x, what comes back, the sum, and the product of both
    assert report.memory_use[0].requested_peak == 3 * SIZE * BYTES
    assert [row.op for row in report.rows if row.time is None] == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert report.totals.time is not None
    assert report.totals.time.is_lower_bound


def test_both_sides_in_one_call_are_the_device() -> None:
    """The step has made one of them on a device that it does not name."""

    def factory() -> Any:
        x = torch.zeros(SIZE, device="cuda")
        return lambda: x.exp().cpu() + x

    report = analyze(record(factory))
    assert not said(report, "GF133")
    assert report.memory_use[0].requested_peak == (1 + 2) * SIZE * BYTES


def test_a_device_that_is_the_cpu_is_no_host() -> None:
    def factory() -> Any:
        x = torch.zeros(SIZE)
        return lambda: x.exp().to("cpu").exp()

    assert "aten._to_copy.default" not in {row.op for row in analyze(record(factory)).rows}


@pytest.mark.parametrize("layers", [2, 5])
def test_offload_wrapper_keeps_what_is_saved(layers: int) -> None:
    """What the product and GELU of each layer read; weights too, but the first: its input wants no gradient."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper

    def factory() -> Any:
        each = [nn.Sequential(nn.Linear(SIZE, SIZE, bias=False), nn.GELU()) for _ in range(layers)]
        model = nn.Sequential(*map(offload_wrapper, each))
        return model, torch.zeros(8, SIZE), torch.optim.SGD(model.parameters()), torch.sum

    graph = record(factory)
    assert graph.step is not None
    kept = [memory.bytes for memory in graph.step.storages if memory.kind == "pinned"]
    assert sum(kept) == BYTES * (layers * 2 * 8 * SIZE + (layers - 1) * SIZE * SIZE)


def test_streams_of_a_step(tmp_path: Any) -> None:
    file = tmp_path / "step.recorded"

    def factory() -> Any:
        x, own = torch.zeros(SIZE, SIZE, device="cuda", requires_grad=True), torch.cuda.Stream()

        def step() -> None:
            own.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(own):
                y = x.exp()
                done = own.record_event()
            z = x.sin()
            torch.cuda.current_stream().wait_event(done)
            y.record_stream(torch.cuda.current_stream())
            torch.cuda.synchronize()
            (y + z).sum().backward()
            x.grad = None

        return step

    report = analyze(record(factory, file=file))
    step, _ = read_step(file)
    streams = {(step.operators[call.operator], call.stream) for call in step.calls}
    assert {number for op, number in streams if op == "aten.exp.default"} == {1}
    assert {number for op, number in streams if op == "aten.mul.Tensor"} == {0, 1}  # gradients of both
    assert {number for op, number in streams if op in ("aten.sin.default", "aten.cos.default")} == {0}
    (note,) = said(report, "GF135")
    assert "in 1 streams that the step makes: copies" in note


def test_a_copy_in_a_stream_of_its_own_hides_beside_products() -> None:
    """32 MiB go to pinned memory beside eight products; nobody reads them before they have come."""

    def factory(has_own: bool) -> Any:
        own = contextlib.nullcontext() if not has_own else torch.cuda.stream(torch.cuda.Stream())
        x = torch.zeros(4 * SIZE, 4 * SIZE, device="cuda", dtype=torch.bfloat16)

        def step() -> Any:
            y, z = x.exp(), x
            with own:
                kept = y.to("cpu", non_blocking=True)
            for _ in range(8):
                z = z @ x
            return kept, z

        return step

    alone, beside = (analyze(record(partial(factory, own)), device="h100") for own in (False, True))
    (copy,) = (row.time for row in alone.rows if row.time is not None and "transfer" in row.time.kernel)
    assert alone.totals.time is not None
    assert beside.totals.time is not None
    assert copy.seconds > 32 * 2**20 / 64e9
    assert alone.totals.time.seconds - beside.totals.time.seconds == pytest.approx(copy.seconds, rel=0.05)
    assert read(chakra(beside))[1]


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("turns", [1, 2])
def test_parameters_that_the_cpu_updates(pinned: bool, turns: int) -> None:
    """Their parts come for each forward and backward; gradients go back, where AdamW has its state."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    devices, layers = 4, 3

    def factory(mesh: Any, policy: Any) -> Any:
        model = nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(layers)))
        for layer in model:
            fully_shard(layer, mesh=mesh["dp"], offload_policy=policy)
        fully_shard(model, mesh=mesh["dp"], offload_policy=policy)
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.zeros(8, SIZE, device="cuda")

        def step() -> None:
            for _ in range(turns):
                model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    policies = OffloadPolicy(), CPUOffloadPolicy(pin_memory=pinned)
    device, host = (
        analyze(record(partial(factory, policy=one), mesh={"dp": devices}), device="h100") for one in policies
    )
    assert host.exchanges
    assert [(one.op, one.bytes) for one in host.exchanges] == [
        (one.op, one.bytes) for one in device.exchanges
    ]
    assert host.totals.cost.matrix_flops == device.totals.cost.matrix_flops
    part = layers * SIZE * SIZE * BYTES // devices
    (use,), (other,) = host.memory_use, device.memory_use
    assert (other.weights, other.optimizer) == (part, 2 * part)
    assert (use.weights, use.optimizer, use.gradients) == (0, 0, 0)
    moved = [
        row.cost.read_bytes for row in host.rows if row.time is not None and "transfer" in row.time.kernel
    ]
    assert sum(map(int, moved)) == (2 + 1) * turns * part
    assert {row.phase for row in host.rows if row.op == "aten.addcdiv_.default"} == {"optimizer"}
    assert all(row.time is None for row in host.rows if row.op == "aten.addcdiv_.default")
    (text,) = said(host, "GF133")
    assert "the CPU computes with them in " in text
    assert read(chakra(host))[1]
