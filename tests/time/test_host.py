"""The CPU's time of calls: costs by operator or kind, further kernels, modules, recording, and what runs without Python."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphflops import tensor
from graphflops.devices import Host, complete, device
from graphflops.kernels.kernel import Kernel, Recurrence
from graphflops.ops import operator
from graphflops.time.launches import Launches
from graphflops.time.predict import predict
from graphflops.time.program_time import _Timer
from graphflops.time.schedule import backward_seconds, entering_seconds, forward_seconds, start_seconds, waits

COSTS = {
    "forward.call": 10.0,
    "forward.collective": 60.0,
    "forward.allreduce_": 12.0,
    "forward.linear": 20.0,
    "forward.product": 30.0,
    "forward.without_kernel": 3.0,
    "forward.skipped": 2.0,
    "forward.further_kernel": 5.0,
    "forward.inside": 9.0,
    "forward.module": 1.0,
    "forward.module.timm": 1.5,
    "forward.recording": 4.0,
    "backward.call": 40.0,
    "backward.inside": 35.0,
    "backward.without_kernel": 6.0,
    "backward.further_kernel": 7.0,
    "backward.parameter": 8.0,
    "recurrent.call": 100.0,
    "recurrent.layer": 10.0,
    "recurrent.step": 0.5,
}
KERNEL = Kernel("elementwise", "float32", 0, 0, 4, 4)
LSTM = Recurrence(steps=3, batch=2, inputs=8, hidden=8, gates=4, layers=2)


@pytest.mark.parametrize(
    ("op", "kernels", "records", "modules", "seconds"),
    [
        ("aten.linear.default", 1, False, (), 20),  # by name
        ("aten.mm.default", 1, False, (), 30),  # by kind
        ("_c10d_functional.all_reduce.default", 1, False, (), 60),
        ("c10d.allreduce_.default", 1, False, (), 12),  # the same as DDP spells it
        ("aten.relu.default", 1, False, (), 10),  # as any call
        ("aten.relu.default", 3, True, ("timm", "torch"), 10 + 2 * 5 + 4 + 1.5 + 1),
        ("aten.view.default", 0, False, (), 3),
        ("aten.dropout.default", 0, False, ("torch",), 2 + 1),
        ("aten.sym_size.int", 0, False, (), 0),
        ("aten.item.default", 0, False, (), 10),  # a copy to the CPU
        (
            "aten._assert_tensor_metadata.default",
            0,
            False,
            (),
            0,
        ),  # exporting writes it down, Python does not run it
    ],
)
def test_forward(op, kernels, records, modules, seconds):
    found = forward_seconds(COSTS, operator(op), [KERNEL] * kernels, records=records)
    assert found + entering_seconds(COSTS, modules) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("dtype", "seconds"),
    [
        ("bfloat16", 100 + 2 * 10 + 3 * 2 * 0.5),
        ("float32", 100 + 2 * 10),
    ],  # one kernel has all steps of small weights
)
def test_each_step_of_each_recurrent_layer_is_launched(dtype, seconds):
    kernel = Kernel("recurrence", dtype, 0, 0, 4, 4, LSTM)
    found = forward_seconds(COSTS, operator("aten.lstm.input"), [kernel], records=False)
    assert found == pytest.approx(seconds)


def test_a_library_that_wraps_its_models_takes_longer_to_start():
    costs = {"forward.start": 7.0, "forward.start.transformers": 20.0}
    mine = "L__self__,,mine.Wrapper"
    assert start_seconds(costs, ["", mine, mine]) == 7
    theirs = f"{mine};L__self__.model,model,transformers.models.llama.modeling_llama.LlamaModel"
    assert start_seconds(costs, [mine, theirs, theirs]) == 27


@pytest.mark.parametrize(
    ("op", "kernels", "parameters", "seconds"),
    [
        ("aten.linear.default", 3, 2, 40 + 2 * 7 + 2 * 8),
        ("aten.view.default", 0, 0, 6),
    ],
)
def test_backward(op, kernels, parameters, seconds):
    assert backward_seconds(COSTS, operator(op), [KERNEL] * kernels, parameters) == pytest.approx(seconds)


def test_every_device_has_a_host():
    names = ("h200", "a100", "tpu-v5e")
    hosts = [complete(device(name)).host for name in names]
    assert all(host.seconds.keys() >= {name for name in COSTS if "linear" not in name} for host in hosts)


def test_an_encoder_layer_is_one_call_where_nothing_wants_a_gradient():
    torch = pytest.importorskip("torch")
    import graphflops

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    exported = graphflops.capture(layer, (torch.randn(2, 8, 64),))
    report = graphflops.analyze(exported, device="h200", training=True)
    kernels = sum(bool(row.time and row.time.kernel) for row in report.rows)
    inside = device("h200").host.seconds["forward.inside"]
    assert report.totals.time.seconds < 2 * kernels * inside
    recorded = sum(row.time.seconds for row in report.rows if row.time)
    assert recorded > report.totals.time.seconds


@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_the_cpu_waits_for_a_number_that_it_looks_at(execution):
    known = device("h200")
    kernel = Kernel("elementwise", "float32", 0, 0, 4 * 10**8, 4 * 10**8)
    gpu = predict(kernel, known).seconds
    calls = [Launches(0, (kernel,), gpu / 100), Launches(1, (), gpu / 10), Launches(2, (), gpu)]
    behind, _ = _Timer(known, execution == "eager").phase(calls)
    waiting, _ = _Timer(known, execution == "eager").phase(
        [calls[0], replace(calls[1], waits=True), calls[2]]
    )
    launched = gpu / 100 if execution == "eager" else known.launch.graph_seconds
    if execution == "graph":
        assert behind.seconds == waiting.seconds == pytest.approx(gpu + launched)
    else:
        assert behind.seconds == pytest.approx(gpu * 1.11)  # the CPU is the slower
        assert waiting.seconds == pytest.approx(gpu / 100 + gpu + gpu)  # launch, kernel, and what follows


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [("item", "FLOAT32", True), ("index", "BOOL", True), ("index", "INT64", False), ("add", "BOOL", False)],
)
def test_which_calls_the_cpu_waits_for(op, dtype, expected):
    x = tensor.TensorType((8,), tensor.FLOAT32)
    assert waits(operator(f"aten.{op}"), (x, x.like(dtype=getattr(tensor, dtype)))) is expected


def test_an_interval_has_the_times_beside_a_fast_and_a_slow_cpu():
    known = device("h200")
    kernel = Kernel("elementwise", "float32", 0, 0, 4 * 10**8, 4 * 10**8)
    long = predict(kernel, known).seconds
    timer = _Timer(known, is_launched=True)
    bound_by_cpu, _ = timer.phase([Launches(0, (KERNEL,), long)] * 10)
    low, high = bound_by_cpu.low / bound_by_cpu.seconds, bound_by_cpu.high / bound_by_cpu.seconds
    assert 1 / 1.5 < low < 1 / known.host.faster  # wider by the least error of any program
    assert known.host.slower < high < 1.05 * known.host.slower
    bound_by_gpu, _ = _Timer(known, is_launched=True).phase([Launches(0, (kernel,), long / 10)] * 10)
    assert bound_by_gpu.high / bound_by_gpu.seconds < 1.25
    nearly, _ = _Timer(known, is_launched=True).phase([Launches(0, (kernel,), long / 1.01)] * 10)
    assert nearly.bound == "memory"
    assert nearly.high / nearly.seconds > 1.5  # a slower CPU would make it wait


def test_the_gpu_runs_steps_of_a_recurrent_layer_while_the_cpu_launches_the_next():
    sizes = Recurrence(steps=512, batch=16, inputs=1024, hidden=1024, gates=4)
    kernel = Kernel("recurrence", "bfloat16", 2**30, 0, 2**20, 2**20, sizes)
    gpu = predict(kernel, device("h200")).seconds
    took, _ = _Timer(device("h200"), is_launched=True).phase([Launches(0, (kernel,), 2 * gpu)])
    assert took.seconds == pytest.approx(2 * gpu + gpu / 8)  # the last steps end behind the CPU


def test_ranks_that_wait_for_one_another_take_as_long_as_the_slowest() -> None:
    host = Host({}, disturbed=1.6, disturbed_share=0.5)
    assert host.slowness(1) == 1.0  # timed while nothing disturbs it
    assert host.slowness(2) == pytest.approx(1 + 0.6 * 3 / 4)  # a quarter of the time neither is disturbed
    assert host.slowness(1024) == pytest.approx(1.6)
