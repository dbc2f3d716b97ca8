"""Factories as training scripts have them: devices by number, drawn parameters, rates that are read, copies of modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from graphflops import analyze, record
from graphflops.errors import ModelError

BATCH, WIDTH, LAYERS = 4, 8, 3
FORWARD = 2 * BATCH * WIDTH * WIDTH  # of one layer
WEIGHT = FORWARD  # its gradient costs the product once more


def trained(module: nn.Module, device: Any = "cuda") -> Any:
    """A step: the sum of the results is the loss."""
    optimizer = torch.optim.SGD(module.parameters())
    x = torch.randn(BATCH, WIDTH, device=device)

    def step() -> None:
        module(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def flops(factory: Any, mesh: dict[str, int] | None = None) -> Any:
    return analyze(record(factory, mesh=mesh)).totals.cost.matrix_flops


def test_parameters_are_drawn_within_bounds() -> None:
    def factory() -> Any:
        layer = nn.Linear(WIDTH, WIDTH)
        nn.init.trunc_normal_(layer.weight, std=0.02)  # which reads whether all numbers are within its bounds
        return trained(layer.cuda())

    assert flops(factory) == FORWARD + WEIGHT


def test_rates_of_layers_are_read() -> None:
    """A rate of 0 leaves a dropout out, so the numbers must be right: 0, 0.5 and 1."""
    seen: list[float] = []

    def factory() -> Any:
        rates = torch.linspace(0, 1, LAYERS)
        seen[:] = [*rates[:1].tolist(), *(rate.item() for rate in rates[1:])]
        return trained(nn.Linear(WIDTH, WIDTH).cuda())

    record(factory)
    assert seen == [0.0, 0.5, 1.0]


def test_a_copy_of_a_module_with_buffers() -> None:
    """A teacher, whose parameters move after those of the student: it runs forward only."""

    def factory() -> Any:
        student = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).cuda()
        teacher = copy.deepcopy(student)
        optimizer, x = torch.optim.SGD(student.parameters()), torch.randn(BATCH, WIDTH, device="cuda")

        def step() -> None:
            with torch.no_grad():
                wanted = teacher(x)
            nn.functional.mse_loss(student(x), wanted).backward()
            optimizer.step()

        return step

    assert flops(factory) == 2 * FORWARD + WEIGHT


def test_devices_by_number() -> None:
    def factory() -> Any:
        torch.cuda.set_device(0)
        device = torch.cuda.current_device()
        return trained(nn.Linear(WIDTH, WIDTH).to(device), device)

    assert flops(factory) == FORWARD + WEIGHT


def test_data_parallel_on_a_device_by_number() -> None:
    def factory(mesh: Any) -> Any:
        rank = torch.distributed.get_rank()
        layer = nn.Linear(WIDTH, WIDTH, bias=False).to(rank)
        return trained(DistributedDataParallel(layer, device_ids=[rank]), rank)

    report = analyze(record(factory, mesh={"dp": 2}))
    # A ring sends each gradient 2 * (2 - 1) / 2 times.
    assert sum(int(one.bytes) for one in report.exchanges if one.phase == "backward") == WIDTH * WIDTH * 4


def test_a_mesh_of_ones_own() -> None:
    def factory(mesh: Any) -> Any:
        own = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        layer = nn.Linear(WIDTH, WIDTH, bias=False)
        fully_shard(layer, mesh=own)
        return trained(layer)

    report = analyze(record(factory, mesh={"dp": 4}))
    assert report.parameters == WIDTH * WIDTH // 2


def test_a_gradient_belongs_to_the_module_of_its_forward() -> None:
    """A batch norm counts its batches before it runs, a call without gradient after that of the layer before it."""

    def factory() -> Any:
        return trained(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).cuda())

    report = analyze(record(factory))
    products = [row for row in report.rows if row.cost.matrix_flops]
    assert {row.module for row in products} == {"0"}
    assert sum(int(row.cost.matrix_flops) for row in products) == FORWARD + WEIGHT


def test_an_error_says_the_line_of_the_script() -> None:
    def factory() -> Any:
        raise_here(torch.randn(3))

    def raise_here(x: torch.Tensor) -> None:
        x.nonzero()

    with pytest.raises(ModelError, match=rf"\(test_factories\.py:{raise_here.__code__.co_firstlineno + 1}\)"):
        record(factory)


def test_a_module_that_is_made_by_the_first_step() -> None:
    class Late(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "inner"):
                self.inner = nn.Linear(WIDTH, WIDTH)
            return self.inner(x)

    def factory() -> Any:
        return Late().eval(), (torch.randn(BATCH, WIDTH),)

    report = analyze(record(factory))
    assert report.parameters == WIDTH * WIDTH + WIDTH
    assert {row.module for row in report.rows if row.cost.matrix_flops} == {"inner"}


def codes(report: Any) -> set[str]:
    return {found.code for found in report.diagnostics}


def test_a_mask_chooses_all_rows() -> None:
    """How many rows a mask chooses is in no recording: every product has all of them, the most that can be."""

    def factory() -> Any:
        first, second = nn.Linear(WIDTH, WIDTH, bias=False).cuda(), nn.Linear(WIDTH, WIDTH, bias=False).cuda()
        x, labels = torch.randn(BATCH, WIDTH, device="cuda"), torch.randint(0, 2, (BATCH,), device="cuda")

        def step() -> None:
            hidden = first(x)
            hidden = torch.where(hidden > 0, hidden, 0.0)
            hidden[labels == 1] = 0.0
            second(hidden[labels == 0]).masked_select(torch.ones(WIDTH, device="cuda") > 0).sum().backward()

        return step

    report = analyze(record(factory))
    # Forward and gradients of weights of both layers, and the second one's gradient of its operand.
    assert report.totals.cost.matrix_flops == 2 * FORWARD + 2 * WEIGHT + FORWARD
    assert "GF132" in codes(report)
    assert not report.coverage.unknown


def test_paths_of_speech_are_as_many_as_labels_allow() -> None:
    steps, words = 6, 5

    def factory() -> Any:
        scores = torch.randn(steps, BATCH, WIDTH, device="cuda", requires_grad=True)
        labels = torch.randint(1, WIDTH, (BATCH, words), device="cuda")
        lengths = torch.full((BATCH,), steps), torch.full((BATCH,), words)
        return lambda: nn.functional.ctc_loss(scores.log_softmax(-1), labels, *lengths).backward()

    graph = record(factory)
    (call,) = [node for node in graph.nodes if "_ctc_loss" in node.op and "backward" not in node.op]
    paths = graph.types[call.outputs[1]]
    assert paths.shape == (BATCH, steps, 2 * words + 1)  # a blank before, between and behind the words


def test_a_batch_norm_of_all_ranks() -> None:
    ranks = 4

    def factory(mesh: Any) -> Any:
        layers = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.SyncBatchNorm(WIDTH))
        return trained(DistributedDataParallel(layers.cuda()))

    report = analyze(record(factory, mesh={"dp": ranks}))
    found = {
        one.op.split(".")[1].strip("_"): int(one.bytes) for one in report.exchanges if one.phase == "forward"
    }
    # Each rank gives a mean and a deviation for each channel, and its number of rows.
    assert found["allgather_base"] == (ranks - 1) * (2 * WIDTH + 1) * 4
    summed = sum(int(one.bytes) for one in report.exchanges if one.phase == "backward")
    # Two sums for each channel, and the gradients of a layer, a weight and a bias.
    assert summed == 2 * (ranks - 1) * (2 * WIDTH + WIDTH * WIDTH + 2 * WIDTH) * 4 // ranks
    assert not report.coverage.unknown


def test_what_is_to_be_compiled_is_recorded_as_it_is() -> None:
    def given(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    before = torch.compile(given)

    def compiled() -> Any:
        layer = nn.Linear(WIDTH, WIDTH)
        layer.compile()
        return trained(torch.compile(layer.cuda(), mode="max-autotune"))

    def decorated() -> Any:
        x = torch.randn(WIDTH, WIDTH, device="cuda")
        return lambda: torch.compile(fullgraph=True)(given)(x)

    def outside() -> Any:
        x = torch.randn(WIDTH, WIDTH, device="cuda")
        return lambda: before(x)

    for factory, wanted in (compiled, FORWARD + WEIGHT), (decorated, 2 * WIDTH**3), (outside, 2 * WIDTH**3):
        report = analyze(record(factory))
        assert report.totals.cost.matrix_flops == wanted
        assert "GF136" in codes(report)
    assert "GF136" not in codes(analyze(record(lambda: trained(nn.Linear(WIDTH, WIDTH).cuda()))))


def test_what_cannot_be_recorded_says_what_to_do() -> None:
    def attention() -> Any:
        from torch.nn.attention.flex_attention import flex_attention

        x = torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True)
        return lambda: flex_attention(x, x, x).sum().backward()

    with pytest.raises(ModelError, match="use scaled_dot_product_attention"):
        record(attention)


def test_a_script_asks_for_its_gpu() -> None:
    """What scripts do with a GPU beside computing: they look for one, name it, measure, and tell other ranks."""

    def factory(mesh: Any) -> Any:
        assert torch.cuda.is_available()
        rank = torch.distributed.get_rank() % torch.cuda.device_count()
        own = torch.device(rank)
        assert torch.cuda.get_device_properties(own).total_memory > 2**30
        layer = nn.Linear(WIDTH, WIDTH).to(own)
        optimizer = torch.optim.AdamW(layer.parameters(), capturable=True)
        scaler, x = torch.amp.GradScaler("cuda"), torch.randn(BATCH, WIDTH, device=own)

        def step() -> None:
            with torch.cuda.device(own), torch.cuda.amp.autocast(enabled=False):
                torch.cuda.nvtx.range_push("forward")
                loss = layer(x).sum()
                torch.cuda.nvtx.range_pop()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
            told = [None] * mesh.size()
            torch.distributed.all_gather_object(told, torch.cuda.mem_get_info()[0])
            assert told.count(told[0]) == mesh.size()

        return step

    report = analyze(record(factory, mesh={"dp": 2}))
    assert report.totals.cost.matrix_flops == FORWARD + WEIGHT
    numbers = (WIDTH + 1) * WIDTH
    # The device has the counters of a capturable optimizer.
    assert report.memory_use[0].optimizer == 2 * numbers * 4 + 2 * 4


def test_derivatives_along_a_direction() -> None:
    """The queries that they make are no calls; torch multiplies a tangent of zeros with the input of each layer, too."""

    def factory() -> Any:
        layer, x = nn.Linear(WIDTH, WIDTH).cuda(), torch.randn(BATCH, WIDTH, device="cuda")
        return lambda: torch.func.jvp(layer, (x,), (x,))

    report = analyze(record(factory))
    assert not report.coverage.unknown
    assert report.totals.cost.matrix_flops == 3 * FORWARD
