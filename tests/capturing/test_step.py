"""Steps of stock modules, recorded: figures are products of sizes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from graphflops import analyze, record
from graphflops.devices import device
from graphflops.errors import ModelError, OptionError
from graphflops.exporters import load
from tests.capturing import steps
from tests.capturing.steps import (
    BATCH,
    BYTES,
    HIDDEN,
    LAYER,
    LAYERS,
    LENGTH,
    OUTER,
    PARAMETERS,
    PRODUCTS,
    STEP,
    TOKENS,
    VOCABULARY,
    WIDTH,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from graphflops.report import Report


def report_of(factory: Any, mesh: dict[str, int] | None = None, **options: Any) -> Report:
    return analyze(steps.recorded(factory, mesh, **options))


def sent(report: Report, axis: str = "") -> int:
    return sum(int(one.bytes) for one in report.exchanges if axis in ("", one.axis))


def test_one_device() -> None:
    report = report_of(steps.single)
    assert report.totals.cost.matrix_flops == STEP
    assert report.coverage.unknown == 0
    assert report.parameters == PARAMETERS
    (memory,) = report.memory_use
    assert memory.phase == "training"
    assert memory.weights == PARAMETERS * BYTES
    assert memory.optimizer == 2 * PARAMETERS * BYTES
    assert not report.exchanges


def test_flops_are_those_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, ids, *_ = steps.single()
    model, ids = model.to("meta"), ids.to("meta")
    with FlopCounterMode(display=False) as counter:
        scores = model(ids).flatten(0, 1)
        loss_of = torch.nn.functional.cross_entropy
        loss_of(scores, torch.zeros(TOKENS, dtype=torch.long, device="meta")).backward()
    # On the meta device the scores are not computed again: twice the forward, not 2.5 times.
    again = LAYERS * BATCH * 4 * LENGTH * LENGTH * WIDTH // 2
    assert counter.get_total_flops() == STEP - again


def test_inference() -> None:
    report = report_of(steps.inference)
    assert report.totals.cost.matrix_flops == PRODUCTS // 3 + LAYERS * BATCH * 4 * LENGTH * LENGTH * WIDTH
    assert report.memory_use[0].phase == "inference"
    assert {row.phase for row in report.rows} == {"forward"}


def test_a_fused_optimizer() -> None:
    report = report_of(steps.fused)
    numbers = (
        2 * PARAMETERS + 2 * 2 + LAYERS * (4 + 6)
    )  # moments, and the number of the step for each parameter
    assert report.memory_use[0].optimizer == numbers * BYTES
    assert report.coverage.unknown == 0


def test_checkpoints_run_the_forward_again() -> None:
    report = report_of(steps.checkpointed)
    # The last product of a checkpoint is not run again: nothing reads it in the backward.
    again = report.totals.cost.matrix_flops - STEP  # type: ignore[operator]
    attention = BATCH * 4 * LENGTH * LENGTH * WIDTH
    assert again == LAYERS * (2 * TOKENS * (4 * WIDTH * WIDTH + WIDTH * HIDDEN) + attention)
    assert {row.module for row in report.rows} >= {"layers.0.mlp.up", "layers.1.attention.q"}


def test_checkpoints_run_the_same_attention_again() -> None:
    # Without recomputed products that nothing reads, work does not depend on the element type.
    steps_ = [report_of(one) for one in (steps.checkpointed, steps.checkpointed_in_half_precision)]
    assert len({one.totals.cost.matrix_flops for one in steps_}) == 1
    calls = [row.op for row in steps_[1].rows if row.op.startswith("aten._scaled_dot_product_cudnn")]
    assert len(calls) == 3 * LAYERS  # forward, again, backward


class Sees(TorchDispatchMode):
    """Runs each call that it sees."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def hooked(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """How many hooks Python runs in a step of a function of one parameter."""

    def factory() -> Callable[[], None]:
        weight = torch.nn.Parameter(torch.zeros(4))
        return lambda: function(weight).sum().backward()

    step = record(factory).step
    assert step is not None
    return sum(step.hooked)


def test_hooks_of_python_are_counted() -> None:
    def waves(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sin()  # each saves what it reads

    def seen(x: torch.Tensor) -> torch.Tensor:
        with Sees():
            return waves(x)

    assert hooked(waves) == 0
    assert hooked(seen) == 2
    # Each saved tensor is packed, packed again as the forward runs again, and unpacked.
    assert hooked(lambda x: checkpoint(waves, x, use_reentrant=False)) == 2 * 3


def test_functions_run_as_on_a_gpu() -> None:
    report = report_of(steps.masked)
    counts = Counter(row.op.removeprefix("aten.").removesuffix(".default") for row in report.rows)
    for name, gradient in (
        ("_fused_rms_norm", "_fused_rms_norm_backward"),
        ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward"),
        ("native_dropout", "native_dropout_backward"),
    ):
        assert counts[name] == counts[gradient] == 1
    assert report.coverage.unknown == 0


def test_autocast_is_that_of_a_gpu() -> None:
    graph = record(steps.autocast)
    types = {
        (node.op.removeprefix("aten."), graph.types[name].dtype.name)
        for node in graph.nodes
        for name in node.outputs[:1]
        if name is not None
    }
    found = {
        name: dtype for name, dtype in types if name.split(".")[0] in ("addmm", "mm", "native_layer_norm")
    }
    assert found == {
        "addmm.default": "bfloat16", "mm.default": "bfloat16", "native_layer_norm.default": "float32",
    }  # fmt: skip
    assert ("_log_softmax.default", "bfloat16") in types  # the loss says the type of its operand
    assert ("nll_loss_forward.default", "float32") in types


@pytest.mark.parametrize(("kind", "gates", "kept"), [(torch.nn.LSTM, 4, 5), (torch.nn.GRU, 3, 6)])
def test_recurrent_layers_are_calls_of_cudnn(kind: Any, gates: int, kept: int) -> None:
    """All layers and steps in one, and one for the gradients; what these read is kept: gates and states of each layer."""
    steps, batch, width = 5, 3, 8

    def factory() -> Any:
        model = kind(width, width, 2, batch_first=True)
        return model, torch.rand(batch, steps, width), None, lambda made: made[0].sum()

    graph = record(factory)
    recurrent = [node.op for node in graph.nodes if "rnn" in node.op]
    assert recurrent == ["aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default"]
    assert graph.step is not None
    unit = steps * batch * width * 4
    assert (2 * kept + 1) * unit in {memory.bytes for memory in graph.step.storages}
    report = analyze(graph)
    product = 2 * steps * batch * width * gates * width  # of operand or state of one layer
    forward, backward = (row for row in report.rows if "rnn" in row.op)
    assert forward.cost.matrix_flops == 2 * 2 * product
    assert backward.cost.matrix_flops > forward.cost.matrix_flops
    for row in analyze(graph, device="h200").rows:
        if "rnn" in row.op:
            assert row.time is not None
            assert row.time.kernel.endswith("recurrence")


def test_frozen_recurrent_layers_have_no_gradients() -> None:
    def factory() -> Any:
        model = torch.nn.LSTM(8, 8).requires_grad_(False)
        return model, torch.rand(5, 3, 8, requires_grad=True), None, lambda made: made[0].sum()

    (node,) = (node for node in record(factory).nodes if node.op == "aten._cudnn_rnn_backward.default")
    assert node.args[-1] == (True, False, False, False)
    assert len([name for name in node.outputs if name]) == 1


def test_layers_with_projections_are_the_calls_of_a_cpu() -> None:
    def factory() -> Any:
        return torch.nn.LSTM(8, 8, proj_size=4), torch.rand(5, 3, 8)

    assert not any("cudnn" in node.op for node in record(factory).nodes)


def test_an_optimizer_counts_its_steps_on_the_cpu() -> None:
    """Unless it is fused: then the counters are on the device, where one call adds to all of them."""

    def factory(fused: bool) -> Any:
        model = torch.nn.Linear(8, 4)
        return model, torch.rand(2, 8), torch.optim.AdamW(model.parameters(), fused=fused or None), torch.sum

    report = analyze(record(lambda: factory(False)), device="h200")
    asked = [row for row in report.rows if row.op == "aten._local_scalar_dense.default"]
    added = [row for row in report.rows if row.op.startswith("aten._foreach_add_") and row.time is not None]
    assert asked
    assert all(row.time is not None and row.time.bound == "launch" and not row.time.kernel for row in asked)
    assert any(not row.time.kernel for row in added if row.time is not None)
    seconds = sum(row.time.seconds for row in asked if row.time is not None)
    host = device("h200").host
    assert host is not None
    assert seconds <= len(asked) * host.seconds["optimizer.tensor"]  # the kernels before them run meanwhile
    fused = analyze(record(lambda: factory(True)), device="h200")
    (counted,) = (row for row in fused.rows if row.op.startswith("aten._foreach_add_"))
    assert counted.time is not None
    assert counted.time.kernel


def test_an_optimizer_updates_all_parameters_together() -> None:
    for factory, mesh in ((steps.single, None), (steps.data_parallel, {"dp": 2})):
        updates = {row.op for row in report_of(factory, mesh).rows if row.phase == "optimizer"}
        assert any(op.startswith("aten._foreach_addcdiv_") for op in updates)
        assert not any(op.startswith("aten.addcdiv_") for op in updates)


def test_data_parallel() -> None:
    report = report_of(steps.data_parallel, {"dp": 4})
    assert sent(report, "dp") == sent(report) == 2 * (4 - 1) * PARAMETERS * BYTES // 4
    assert report.totals.cost.matrix_flops == STEP
    assert report.totals.cost.link_bytes == sent(report)


def test_fully_sharded() -> None:
    report = report_of(steps.fully_sharded, {"dp": 4})
    # Layers are gathered for the forward and for the backward, what lies outside of them once; gradients are scattered.
    assert sent(report, "dp") == (4 - 1) * BYTES * (3 * LAYERS * LAYER + 2 * OUTER) // 4
    assert report.parameters == PARAMETERS // 4
    assert report.memory_use[0].weights == PARAMETERS // 4 * BYTES
    assert report.memory_use[0].optimizer == 2 * PARAMETERS // 4 * BYTES
    layers = {(one.module, one.phase): int(one.bytes) for one in report.exchanges if "allgather" in one.op}
    part = (4 - 1) * LAYER * BYTES // 4
    assert layers["layers.0", "forward"] == layers["layers.1", "backward"] == part


def test_parameters_that_stay_gathered() -> None:
    report = report_of(steps.kept_gathered, {"dp": 4})
    assert sent(report) == (4 - 1) * BYTES * 2 * PARAMETERS // 4


def test_mixed_precision() -> None:
    report = report_of(steps.mixed_precision, {"dp": 4})
    gathered, scattered = 2 * LAYERS * LAYER + OUTER, PARAMETERS
    assert sent(report) == (4 - 1) * (2 * gathered + BYTES * scattered) // 4
    assert not [found for found in report.diagnostics if found.code == "GF103"]


def test_tensor_and_sequence_parallel() -> None:
    report = report_of(steps.tensor_parallel, {"tp": 2})
    assert report.totals.cost.matrix_flops == STEP // 2
    activation = TOKENS * WIDTH * BYTES // 2  # of each gather and each scatter, forward and backward alike
    products = 2 * 2 * 2 * LAYERS * activation
    ends = (
        4 * activation + TOKENS * VOCABULARY * BYTES // 2
    )  # of the embedding and the head, and the scores gathered
    norms = (
        3 * (2 * LAYERS + 1) * 2 * WIDTH * BYTES
    )  # AdamW asks three times for gradients that are partial sums
    assert sent(report, "tp") == products + ends + norms


def test_sharded_and_split() -> None:
    report = report_of(steps.sharded_and_split, {"dp": 2, "tp": 2})
    assert report.mesh is not None
    assert dict(report.mesh.axes) == {"dp": 2, "tp": 2}
    assert {group.axis: group.ranks for group in report.mesh.groups.values()} == {
        "dp": (0, 2),
        "tp": (0, 1),
        "dp+tp": (0, 1, 2, 3),
    }
    norms = (2 * LAYERS + 1) * 2 * WIDTH
    layer = (LAYER - 2 * 2 * WIDTH) // 2 + 2 * 2 * WIDTH
    assert (
        sent(report, "dp") == BYTES * (3 * LAYERS * layer + 2 * ((OUTER - 2 * WIDTH) // 2 + 2 * WIDTH)) // 2
    )
    assert report.parameter_bytes == BYTES * ((PARAMETERS - norms) // 2 + norms) // 2


def test_a_file_is_read_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "step.recorded"
    graph = record(steps.fully_sharded, mesh={"dp": 2}, rank=1, file=file)
    assert analyze(file).totals == analyze(graph).totals
    code = f"import sys, graphflops as g; print(g.analyze({str(file)!r}).mesh.rank); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    read = load(file)
    assert read.step is not None
    assert graph.step == read.step


def test_phases_and_places() -> None:
    graph = steps.recorded(steps.single)
    assert graph.step is not None
    places = {(node.module, phase) for node, phase in zip(graph.nodes, graph.step.phases, strict=True)}
    assert {("layers.1.mlp.up", "forward"), ("layers.1.mlp.up", "backward"), ("", "optimizer")} <= places
    sources = {node.source for node in graph.nodes if node.module == "layers.0.mlp"}
    assert all("steps.py:" in source for source in sources)


def test_what_is_no_step() -> None:
    with pytest.raises(ModelError, match=r"returned a int, not \(module, inputs"):
        record(lambda: 1)
    with pytest.raises(OptionError, match="number of devices by axis"):
        record(steps.single, mesh={"dp": 0})
    with pytest.raises(ModelError, match="returns no loss"):
        record(lambda: steps.single()[:3])


def test_a_step_of_ones_own() -> None:
    def factory() -> Any:
        model, ids, optimizer, loss = steps.single()

        def step() -> None:
            for _ in range(2):
                loss(model(ids)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    assert report_of(factory).totals.cost.matrix_flops == 2 * STEP


def test_a_peak_by_hand() -> None:
    import torch

    def factory() -> Any:
        x = torch.zeros(1024)

        def step() -> None:
            a = x + 1
            b = a * 2
            del a
            c = torch.cat([b, b])
            del b, c

        return step

    (memory,) = analyze(record(factory)).memory_use
    assert memory.requested_peak == (1 + 1 + 2) * 1024 * BYTES  # x, b and c


@pytest.mark.parametrize("offloads", [False, True])
def test_what_is_saved_on_the_host_is_not_on_the_device(offloads: bool) -> None:
    import contextlib

    import torch

    def factory() -> Any:
        x = torch.zeros(1024, requires_grad=True)

        def step() -> None:
            with torch.autograd.graph.save_on_cpu() if offloads else contextlib.nullcontext():
                y = x.exp().exp().exp().exp()  # each result is saved
            y.backward(y.detach())
            x.grad = None

        return step

    report = analyze(record(factory))
    # x, the last result, the gradient of one call and that of the next; and all results, or the one that comes back
    assert report.memory_use[0].requested_peak == (1 + 1 + 2 + (1 if offloads else 3)) * 1024 * BYTES
    said = [found.message for found in report.diagnostics if found.code == "GF133"]
    copies = "4 tensors, 16.38 kB in all, are kept on the host: they are copied there and back over the bus"
    assert said == [copies] * offloads


def test_numbers_from_data_are_guesses() -> None:
    def factory() -> Any:
        model, ids, optimizer, loss = steps.single()

        def logged(scores: Any) -> Any:
            value = loss(scores)
            return value if value.item() > 0 else value + 1

        return model, ids, optimizer, logged

    report = report_of(factory)
    assert "GF132" in [found.code for found in report.diagnostics]
    assert report.totals.cost.matrix_flops == STEP


def test_expert_parallel() -> None:
    report = report_of(steps.expert_parallel, {"ep": 4})
    assert (
        sent(report, "ep") == 2 * 2 * (4 - 1) * TOKENS * WIDTH * BYTES // 4
    )  # there and back, and the gradients
    assert report.totals.cost.matrix_flops == 3 * 2 * TOKENS * WIDTH * WIDTH


def test_a_stage_of_a_pipeline() -> None:
    first, last = (report_of(steps.pipelined, {"pp": 2}, rank=rank) for rank in (0, 1))
    activation = TOKENS * WIDTH * BYTES
    assert (
        sent(first, "pp") == sent(last, "pp") == 4 * activation
    )  # of micro-batches; back go their gradients
    whole = 3 * 2 * TOKENS * steps.LAYER_MATRICES + BATCH * 4 * LENGTH * LENGTH * WIDTH * 7 // 2
    assert last.totals.cost.matrix_flops == 4 * whole
    inputs = 3 * 2 * TOKENS * WIDTH * WIDTH  # the first stage computes no gradients of what comes in
    assert 4 * (whole - inputs) <= first.totals.cost.matrix_flops <= 4 * whole  # type: ignore[operator]


def test_context_parallel() -> None:
    report = report_of(steps.context_parallel, {"cp": 2})
    keys_and_values = 2 * TOKENS // 2 * WIDTH * 2  # bytes of bfloat16
    gathers = [int(one.bytes) for one in report.exchanges if "all_gather" in one.op]
    assert gathers == [keys_and_values, keys_and_values]  # forward and backward
    assert {one.axis for one in report.exchanges} == {"cp"}
    products = (
        9 * 2 * (TOKENS // 2) * WIDTH * WIDTH
    )  # 4 forward, 4 gradients of weights, that of what the last one reads
    half = LENGTH // 2  # tokens of a device; half of them see those of the other
    attention = 4 * BATCH * WIDTH * (half * half + half // 2 * half)
    assert report.totals.cost.matrix_flops == products + attention * 7 // 2


def test_a_module_in_half_precision() -> None:
    def factory() -> Any:
        model, ids, _, loss = steps.single()
        return model.to("cuda").bfloat16(), ids.cuda(), None, lambda scores: loss(scores.float())

    report = report_of(factory)
    assert report.totals.cost.matrix_flops == STEP
    assert report.memory_use[0].weights == PARAMETERS * 2
    assert any("cudnn_attention" in row.op for row in report.rows)


def test_a_budget_says_where_the_memory_is(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from graphflops import cli

    file = tmp_path / "step.recorded"
    record(steps.fully_sharded, mesh={"dp": 2}, file=file)
    limits = tmp_path / "budget.toml"
    limits.write_text('[[budget]]\ndevice = "h100"\nmax_device_bytes = "1 MB"\n')
    done = CliRunner().invoke(cli.main, ["check", str(file), "--budget", str(limits)])
    assert done.exit_code == 3
    text = " ".join(done.stdout.split())
    assert " of 1.000 MB on rank 0, at " in text
    assert " of the backward" in text


def test_two_recipes_differ(tmp_path: Path) -> None:
    from graphflops import compare

    files = []
    for factory in (steps.fully_sharded, steps.kept_gathered):
        files.append(tmp_path / f"{factory.__name__}.recorded")
        record(factory, mesh={"dp": 4}, file=files[-1])
    sent_bytes = compare(*files).totals["forward"]["link_bytes"]
    less = (4 - 1) * BYTES * LAYERS * LAYER // 4  # of a gather for the backward
    assert sent_bytes.delta == -less


def test_collectives_between_nodes_take_the_network() -> None:
    recorded = record(steps.sharded_and_split, mesh={"dp": 4, "tp": 4})
    time = {}
    for network in ("8x400Gbit", "8x1Gbit"):
        report = analyze(recorded, device="h100", network=network)
        assert report.totals.time is not None
        time[network] = report.totals.time.communication
        # dp has every fourth rank, two in each node; tp is in one node
        assert "times among 4 devices are a guess" in report.network
    assert time["8x1Gbit"] > time["8x400Gbit"]


def test_layouts_are_those_of_the_run() -> None:
    graph = steps.recorded(steps.single)
    step = graph.step
    assert step is not None
    turned = next(node.outputs[0] for node in graph.nodes if node.op == "aten.t.default") or ""
    rows, _ = graph.types[turned].shape
    assert step.strides[turned] == (1, rows)  # of a weight that lies in order
    assert turned in step.views


def test_a_device_adds_the_buffers_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, needed = steps.recorded(steps.single), 10**9
    before = analyze(graph, device="h200").memory_use[0].requested_peak
    assert isinstance(before, int)
    assert before < needed
    monkeypatch.setattr(
        "graphflops.kernels.buffers.forward_bytes",
        lambda call, layouts: needed if call.node.op.startswith("aten.gelu_backward") else 0,
    )
    after = analyze(graph, device="h200").memory_use[0]
    assert isinstance(after.requested_peak, int)
    assert needed < after.requested_peak <= needed + before
    assert after.peak_node in {node.name for node in graph.nodes if "gelu_backward" in node.op}


def test_what_a_step_without_gradients_keeps() -> None:
    """FSDP leaves the root's parameters whole after it: they are there beside their parts when the next step begins."""

    def factory(mesh: Any) -> Any:
        import torch
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
        fully_shard(model[0], mesh=mesh)
        return fully_shard(model, mesh=mesh), torch.zeros(1, WIDTH)

    layer = (WIDTH * WIDTH + WIDTH) * 4
    (use,) = report_of(factory, {"dp": 2}).memory_use
    assert use.weights == 2 * layer // 2
    assert use.buffers == layer


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.BatchNorm1d])
def test_norms_of_16_bits_keep_statistics_in_float32(norm: Any) -> None:
    def factory() -> Any:
        return norm(8).bfloat16(), torch.zeros(4, 8, dtype=torch.bfloat16)

    graph = record(factory)
    (call,) = (node for node in graph.nodes if "norm" in node.op)
    assert [graph.types[name].dtype.name for name in call.outputs if name] == [
        "bfloat16",
        "float32",
        "float32",
    ]


def test_a_wait_makes_no_memory() -> None:
    def factory(mesh: Any) -> Any:
        import torch
        from torch.distributed._functional_collectives import all_gather_tensor

        x = torch.zeros(1024)
        return lambda: all_gather_tensor(x, 0, mesh.get_group("dp")).sum()

    report = report_of(factory, {"dp": 2})
    assert report.memory_use[0].requested_peak == (1024 + 2 * 1024 + 1) * 4


def test_a_norm_of_inputs_makes_no_gradient_of_them() -> None:
    """The gradients of the first norm are 16 numbers of weight and bias; torch's function on fake tensors makes a third."""

    def factory() -> Any:
        return torch.nn.BatchNorm1d(8), torch.zeros(4, 8), None, lambda y: y.sum()

    report = report_of(factory)
    assert not [note.name for note in report.diagnostics]
    (call,) = (row for row in report.rows if "norm_backward" in row.op)
    assert sum(int(one.type.numel) for one in call.outputs) == 16
