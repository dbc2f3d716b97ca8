"""Verdicts: what holds is equal, what does not is told apart, and why."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from click.testing import CliRunner
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import graphflops
from graphflops.analysis import as_graph
from graphflops.cli import main
from graphflops.errors import FileError, ModelError
from graphflops.render import render
from graphflops.report.timeline import CallTime
from graphflops.runtime import isolated, run as validation
from graphflops.runtime.execute import Execution, Weights, random_inputs
from graphflops.runtime.input_plans import random_values
from graphflops.runtime.validation import CheckResult, NodeResult, Validation
from graphflops.view import View

pytestmark = pytest.mark.usefixtures("copied_children")
SAMPLES = Path(__file__).parents[2] / "samples"


def run(*args: str) -> Any:
    return CliRunner().invoke(main, ["validate", *map(str, args)])


@pytest.mark.parametrize(
    ("name", "explained"),
    [("gqa_transformer", 0), ("convnet", 0), ("lstm", 1), ("cond", 0), ("training_step", 0)],
)
def test_samples_hold(name: str, explained: int) -> None:
    found = graphflops.validate(as_graph(SAMPLES / f"{name}.pt2"), repeats=0)
    assert found.holds
    assert found.verdicts["different"] == 0
    assert found.verdicts["explained"] == explained


def test_lstm_has_no_count_of_torchs_to_compare_with() -> None:
    found = graphflops.validate(as_graph(SAMPLES / "lstm.pt2"), repeats=0)
    (lstm,) = [node for node in found.nodes if node.op == "aten.lstm.input"]
    assert lstm.verdict == "explained"
    assert "FlopCounterMode has no formula" in lstm.reason


def test_a_formula_of_torchs_that_fails_is_not_the_operators_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import flop_counter

    space: dict[str, Any] = {}
    exec(compile("def fails(*a, **k): raise AssertionError('shapes')", flop_counter.__file__, "exec"), space)
    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, space["fails"])
    found = graphflops.validate(as_graph(SAMPLES / "convnet.pt2"), repeats=0)
    (linear,) = [node for node in found.nodes if node.op == "aten.linear.default"]
    assert not any(check.verdict == "not executed" for check in linear.checks)
    assert [check.measured for check in linear.checks if check.what == "flops"] == ["0"]


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_torch_counts_gradients_of_grouped_convolutions_wrong(groups: int) -> None:
    """The weight's gradient is 2 * 16 * (16 / groups) * 9 * 6 * 6 FLOPs, and so is the input's."""

    class Convolution(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(16, 16, 3, groups=groups, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x * self.layer.weight.mean()).sum()

    from torch.export.experimental import _export_forward_backward

    program = _export_forward_backward(torch.export.export(Convolution(), (torch.randn(1, 16, 8, 8),)))
    found = graphflops.validate(program, repeats=0)
    (back,) = [node for node in found.nodes if node.op == "aten.convolution_backward.default"]
    assert back.flops == 2 * 2 * 16 * (16 // groups) * 9 * 6 * 6
    assert found.holds
    assert back.verdict == ("equal" if groups == 1 else "explained")


def test_the_branch_that_did_not_run_is_not_executed() -> None:
    found = graphflops.validate(as_graph(SAMPLES / "cond.pt2"), repeats=0)
    assert {node.node for node in found.nodes if node.verdict == "not executed"} <= {
        "cond/linear",
        "cond/relu",
        "cond/linear_1",
    }
    assert found.verdicts["not executed"] > 0


def lying(report: Any, op: str, **changes: Any) -> Any:
    """The report with the work or the results of an operator's calls changed."""
    return replace(
        report, rows=tuple(changed(row, **changes) if row.op == op else row for row in report.rows)
    )


def changed(row: Any, flops: int = 0, shape: tuple[int, ...] | None = None) -> Any:
    cost = replace(row.cost, matrix_flops=row.cost.matrix_flops + flops)
    outputs = row.outputs
    if shape is not None:
        outputs = tuple(named._replace(type=named.type.like(shape)) for named in outputs)
    return row._replace(cost=cost, outputs=outputs)


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"flops": 2}, "flops"), ({"shape": (4, 11)}, "type"), ({"shape": (4, 10, 1)}, "type")],
)
def test_a_wrong_count_is_different(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], what: str
) -> None:
    analyze = validation.analyze
    monkeypatch.setattr(
        validation, "analyze", lambda *a, **k: lying(analyze(*a, **k), "aten.linear.default", **changes)
    )
    found = graphflops.validate(as_graph(SAMPLES / "convnet.pt2"), repeats=0)
    assert not found.holds
    wrong = [check for node in found.nodes for check in node.checks if check.verdict == "different"]
    assert {check.what for check in wrong} == {what}
    monkeypatch.setattr(isolated, "validate_file", lambda *given: found)
    result = run(SAMPLES / "convnet.pt2", "--repeats", "0")
    assert result.exit_code == 3
    assert "1 call differ" in result.stderr


def test_sizes_that_only_data_tell_are_put_into_the_formulas() -> None:
    class Picked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x[x.sum(-1) > 0])

    program = graphflops.capture(Picked(), (torch.randn(6, 8),))
    x = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])[:, None].expand(6, 8)
    found = graphflops.validate(program, inputs={"x": x}, repeats=0)
    assert found.holds
    (linear,) = [node for node in found.nodes if node.op.startswith("aten.linear")]
    assert linear.flops == 2 * 3 * 8 * 4  # three of the six rows are positive
    assert 3 in found.sizes.values()


def test_turns_of_a_loop_are_counted() -> None:
    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8, bias=False)

        def forward(self, n: torch.Tensor, x: torch.Tensor) -> Any:
            return torch._higher_order_ops.while_loop(
                lambda i, y: i > 0, lambda i, y: (i - 1, self.layer(y)), (n, x)
            )

    program = torch.export.export(Loop(), (torch.tensor(3), torch.randn(2, 8)), strict=True)
    found = graphflops.validate(
        program,
        inputs=dict(
            zip(program.graph_signature.user_inputs, (torch.tensor(7), torch.randn(2, 8)), strict=True)
        ),
        repeats=0,
    )
    assert found.holds
    (linear,) = [node for node in found.nodes if "linear" in node.op or ".mm" in node.op]
    assert (linear.turns, linear.flops) == (7, 7 * 2 * 2 * 8 * 8)


def test_flexible_attention_counts_in_the_kernel() -> None:
    """Causal over 64 places: 64 * 65 / 2 scores are seen, each 2 * (16 + 16) FLOPs, in one batch entry and two heads."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Flex(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = create_block_mask(
                lambda b, h, i, j: i >= j, None, None, 64, 64, device=device, BLOCK_SIZE=32
            )

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return flex_attention(q, q, q, block_mask=self.mask)

    program = torch.export.export(Flex(), (torch.randn(1, 2, 64, 16, device=device),))
    found = graphflops.validate(program, repeats=0, device=device)
    assert found.holds
    (flex,) = [node for node in found.nodes if "flex_attention" in node.op]
    kinds = {check.what: check for check in flex.checks}
    assert kinds["tiles"].verdict == "equal"
    assert kinds["visible"].measured == str(2 * (64 * 65 // 2) * 2 * (16 + 16))
    assert kinds["visible"].verdict == "equal"


class Loss(torch.nn.Module):
    """Causal flexible attention whose scores are squared, in front of which something is trained."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 48, bias=False, device=device)
        self.causal = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 32, 32, device=device, BLOCK_SIZE=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.linear(x).unflatten(-1, (3, 1, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * s, block_mask=self.causal).sum()

    def spelled_out(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.linear(x).unflatten(-1, (3, 1, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1) / 4) ** 2
        hidden = torch.ones(32, 32, dtype=torch.bool, device=x.device).triu(1)
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).sum()


def test_gradients_of_flexible_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batch entries of 32 * 33 / 2 visible scores; five products of width 16 for each in the backward."""
    pytest.importorskip("triton")
    from torch.export.experimental import _export_forward_backward
    from torch.nn.attention import flex_attention as flex

    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # torch does not run gradients on a CPU
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module, x = Loss(device), torch.randn(2, 32, 8, device=device)
    program = _export_forward_backward(torch.export.export(module, (x,), strict=True))
    (wanted,) = torch.autograd.grad(module.spelled_out(x), [module.linear.weight])
    graph = as_graph(program)
    execution = Execution(graph, Weights(graph, torch.device(device)), trusted=True)
    results = dict(zip([output.role for output in graph.outputs], execution.run({"x": x}), strict=True))
    torch.testing.assert_close(results["gradient"], wanted, rtol=1e-4, atol=1e-5)
    found = graphflops.validate(program, inputs={"x": x}, repeats=0, device=device)
    assert found.holds
    (back,) = [node for node in found.nodes if node.op.endswith("flex_attention_backward")]
    assert [check.verdict for check in back.checks if check.what == "tiles"] == ["equal", "equal"]
    visible = [check.measured for check in back.checks if check.what == "visible"]
    assert visible == [str(5 * 2 * 16 * 2 * 32 * 33 // 2)] * 2


def test_made_up_weights_hold_too() -> None:
    found = graphflops.validate(
        as_graph(SAMPLES / "gqa_transformer.pt2"), dims={"s27": 9}, random_weights=True, repeats=0
    )
    assert found.holds
    assert found.sizes["s27"] == 9


def test_integers_are_drawn_within_the_tables_they_index() -> None:
    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.kinds = torch.nn.Embedding(50, 4), torch.nn.Embedding(3, 4)

        def forward(
            self, ids: torch.Tensor, kinds: torch.Tensor, places: torch.Tensor, keep: torch.Tensor
        ) -> torch.Tensor:
            found = self.tokens(ids + 2) + self.kinds(kinds.view(-1).view_as(kinds))
            return (found * keep[..., None]).index_select(1, places)

    ids = torch.zeros(4, 64, dtype=torch.int64)
    program = torch.export.export(Tables(), (ids, ids.clone(), ids[0, :5].clone(), ids.bool()))
    graph = as_graph(program)
    report = graphflops.analyze(graph)
    made = random_inputs(report, View(graph, report.rows), torch.device("cpu"))
    assert 8 < made["ids"].max() < 50 - 2
    assert made["kinds"].max() == 2
    assert made["places"].max() < 64
    assert made["keep"].all()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_inputs_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"inputs{suffix}"
    ids = numpy.arange(12).reshape(2, 6)
    if suffix == ".npz":
        numpy.savez(path, ids=ids)
    else:
        pytest.importorskip("safetensors.numpy").save_file({"ids": ids}, path)
    result = run(SAMPLES / "gqa_transformer.pt2", "--inputs", path, "--repeats", "0", "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["holds"] is True
    assert found["sizes"] == {"s23": 2, "s27": 6}
    assert all(node["verdict"] == "equal" for node in found["nodes"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--device", "cuda:99"), "device"),
        (("--device", "abacus"), "no such device"),
        (("--device", "meta"), "give cpu or cuda"),
        (("--inputs", "nothing.npz"), "nothing.npz: no such file"),
        (("--dim", "s99=4"), "no such size"),
    ],
)
def test_wrong_words_are_one_line(args: tuple[str, ...], said: str) -> None:
    result = run(SAMPLES / "gqa_transformer.pt2", *args)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", ids=numpy.zeros((2, 6), numpy.float32))
    numpy.savez(tmp_path / "b.npz", tokens=numpy.zeros((2, 6), numpy.int64))
    (tmp_path / "c.npz").write_bytes(b"\x80\x04nonsense")
    numpy.save(tmp_path / "d.npy", numpy.array([object()]), allow_pickle=True)
    model = as_graph(SAMPLES / "gqa_transformer.pt2")
    with pytest.raises(ModelError, match="ids"):
        graphflops.validate(model, inputs=str(tmp_path / "a.npz"))
    with pytest.raises(ModelError, match="tokens"):
        graphflops.validate(model, inputs=str(tmp_path / "b.npz"))
    numpy.savez(tmp_path / "o.npz", ids=numpy.array([{}], dtype=object))
    with pytest.raises(FileError, match=r"o\.npz: .* \(it holds objects, which are not unpickled\)"):
        graphflops.validate(model, inputs=str(tmp_path / "o.npz"))
    for name in ("c.npz", "d.npy"):
        with pytest.raises(FileError, match="plain tensors"):
            graphflops.validate(model, inputs=str(tmp_path / name))


def test_table_and_markdown() -> None:
    found = graphflops.validate(as_graph(SAMPLES / "lstm.pt2"), repeats=1)
    table = render(found, "table")
    assert "every count holds" in table
    assert "of peak" in table
    text = render(found, "markdown")
    assert "| lstm | aten.lstm.input | explained |" in text


def test_predicted_times_stand_beside_measured_ones() -> None:
    validated = graphflops.validate(as_graph(SAMPLES / "convnet.pt2"), profile="h200", repeats=1)
    found = json.loads(render(validated, "json"))
    report = graphflops.analyze(SAMPLES / "convnet.pt2", device="h200", execution="graph")
    assert found["profile"] == "NVIDIA H200 SXM"
    assert found["predicted"]["seconds"] == report.totals.time.seconds
    assert [node["predicted"]["seconds"] for node in found["nodes"]] == [
        row.time.seconds for row in report.rows
    ]
    assert found["times"]["calls"] == sum(row.time.seconds > 0 for row in report.rows)
    assert "predicted" in render(validated, "table")


def test_intervals_cover_calls_or_do_not() -> None:
    def call(measured: float, predicted: float) -> NodeResult:
        time = CallTime(predicted, predicted / 2, predicted * 2, "memory", "copy")
        return NodeResult(0, "", "", "", (), 1, 0, 0, seconds=measured, predicted=time)

    nodes = (call(2.0, 1.0), call(4.0, 5.0), call(10.0, 1.0), call(4.0, 0.0))  # the last launches nothing
    times = Validation("", "", "", {}, nodes).times
    assert (times.calls, times.covered) == (3, 2)
    assert times.median_error == pytest.approx(0.5)  # 0.5, 0.25 and 0.9
    assert times.mean_error == pytest.approx(0.55)
    assert times.share == pytest.approx(0.8)
    assert Validation("", "", "", {}, nodes[3:]).times is None


def test_onnx_runs_in_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    result = run(SAMPLES / "convnet.onnx", "--random-weights", "--repeats", "0")
    assert result.exit_code == 0, result.stderr
    assert "onnxruntime" in result.stdout
    sizes = ("--dim", "batch=2", "--dim", "sequence=5")
    result = run(
        SAMPLES / "gqa_transformer.onnx", *sizes, "--random-weights", "--repeats", "0", "--format", "json"
    )
    found = json.loads(result.stdout)
    assert found["holds"]
    assert found["verdicts"]["equal"] == len(found["nodes"])


def test_an_onnx_file_runs_without_torch() -> None:
    pytest.importorskip("onnxruntime")
    code = (
        "import sys; sys.modules['torch'] = None; import graphflops;"
        f"graph = graphflops.load({str(SAMPLES / 'gqa_transformer.onnx')!r});"
        "found = graphflops.validate(graph, random_weights=True, repeats=0,"
        " dims={'batch': 2, 'sequence': 5}); assert found.holds, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("convnet.pt2", "torch", "runtime"), ("convnet.onnx", "onnxruntime", "onnxruntime")],
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    for module in [found for found in sys.modules if found.startswith("graphflops.runtime.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    from graphflops.runtime.validate import validate

    with pytest.raises(ModelError) as caught:
        validate(as_graph(SAMPLES / name))
    assert f"needs {package}: pip install 'graphflops[{extra}]'" in str(caught.value)


def test_all_open_sizes_are_named_at_once() -> None:
    graph = graphflops.load(SAMPLES / "gqa_transformer.onnx")
    report = graphflops.analyze(graph, assume=False)
    with pytest.raises(ModelError, match="give --dim batch=N, --dim sequence=N"):
        next(random_values(report, View(graph, report.rows), torch.randn, torch.ones, torch.randint))


def test_arrays_from_a_file_are_those_of_the_inputs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "inputs.npz"
    numpy.savez(path, ids=numpy.arange(12).reshape(2, 6))
    options = ("--random-weights", "--repeats", "0", "--inputs", path)
    found = run(SAMPLES / "gqa_transformer.onnx", *options, "--format", "json")
    assert json.loads(found.stdout)["sizes"] == {"batch": 2, "sequence": 6}
    numpy.savez(path, ids=numpy.zeros((2, 6), numpy.float32))
    assert (
        "input ids is int64[2, 6], the file holds [2, 6] float32"
        in run(SAMPLES / "gqa_transformer.onnx", *options).stderr
    )


def test_onnx_without_its_weights_says_what_to_do() -> None:
    pytest.importorskip("onnxruntime")
    result = run(SAMPLES / "convnet.onnx")
    assert result.exit_code == 1
    assert "use --random-weights" in result.stderr


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (("equal", "equal"), "equal"),
        (("equal", "explained"), "explained"),
        (("explained", "different"), "different"),
        (("not executed", "different"), "different"),
        (("equal", "not executed"), "not executed"),
        ((), "equal"),
    ],
)
def test_the_worst_check_decides(verdicts: tuple[Any, ...], whole: str) -> None:
    checks = tuple(CheckResult("flops", verdict, "1", "2") for verdict in verdicts)
    assert NodeResult(0, "n", "aten.mm.default", "", checks, 1, 2, 3).verdict == whole


def test_what_marks_add_to_a_call_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(
        [0.0, 0.0, 10.0, 14.0, 20.0, 20.5, 30.0, 30.0]
    )  # the start, two marks of each of two calls, the end
    monkeypatch.setattr(validation.time, "perf_counter", lambda: next(moments))
    clock = validation.Clock(torch.device("cpu"), lambda step: step.row)
    clock.overhead = 1.0
    clock.start()
    for row in (3, 4):
        clock.around(FakeStep(row))
    clock.stop()
    assert clock.seconds() == {3: 3.0, 4: 0.0}
    assert validation.mark_seconds(torch.device("cpu")) == 0.0


def test_a_gpu_that_soon_waits_for_launches_is_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    is_done, pauses = False, list[float]()
    monkeypatch.setattr(validation, "keep_busy", pauses.append)
    clock = validation.Clock(torch.device("cuda"), lambda step: step.row)
    monkeypatch.setattr(clock, "_mark", lambda: SimpleNamespace(query=lambda: is_done))
    clock.pause = 0.5
    for row in range(30):  # a pause before the first call: the GPU is behind from then on
        clock.around(FakeStep(row))
    assert pauses == [0.5]
    is_done = True
    clock.around(FakeStep(30))
    assert pauses == [0.5] * 2
    for row in range(31, 38):  # too few since that pause to tell
        clock.around(FakeStep(row))
    assert pauses == [0.5] * 2
    clock.around(FakeStep(38))
    assert pauses == [0.5] * 3


class FakeStep:
    """A call that does nothing."""

    nests = False

    def __init__(self, row: int) -> None:
        self.row = row

    def __call__(self) -> None:
        """Run it."""
