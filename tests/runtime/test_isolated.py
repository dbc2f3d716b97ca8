"""A program from a file runs in a child process: what it may not do, and how its end is said."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import graphflops
from graphflops.analysis import as_graph
from graphflops.cli import main
from graphflops.errors import ModelError, RunError
from graphflops.graph import Graph, Node, Opaque, Ref
from graphflops.ops import operator
from graphflops.runtime import execute, isolated, run as running
from graphflops.runtime.compare import RunComparison
from graphflops.runtime.isolated import ChildLimits, child_command, validate_file
from graphflops.runtime.operators import reason_to_refuse, refuse_unsafe, resolve

SAMPLES = Path(__file__).parents[2] / "samples"
OPTIONS: dict[str, Any] = {
    "model_name": None,
    "dims": {},
    "names": {},
    "inputs": None,
    "device": "cpu",
    "random_weights": False,
    "seed": 0,
}


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, ["validate", *map(str, args)])


def answered(code: str, seconds: float = 60) -> isolated.Answer:
    return isolated.answered([sys.executable, "-c", code], seconds, "model.pt2")


def test_the_child_gives_the_validation_of_this_process() -> None:
    path = SAMPLES / "lstm.pt2"
    there = validate_file(str(path), 0, OPTIONS, ChildLimits(600, None), ())
    here = graphflops.validate(as_graph(path), repeats=0)
    assert there.nodes == here.nodes
    assert (there.sizes, there.predicted_peak_bytes, there.torch) == (
        here.sizes,
        here.predicted_peak_bytes,
        here.torch,
    )


def test_inputs_in_memory_reach_the_child() -> None:
    ids = torch.arange(12).reshape(2, 6)
    found = graphflops.validate(SAMPLES / "gqa_transformer.pt2", inputs={"ids": ids}, repeats=0)
    assert found.sizes == {"s23": 2, "s27": 6}
    assert found.holds


def test_a_crash_is_one_line() -> None:
    with pytest.raises(RunError, match=r"model\.pt2: .*signal 11") as caught:
        answered("import os; os.kill(os.getpid(), 11)")
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match=r"without an answer .exit status 0"):
        answered("print('{')")


def test_a_run_that_does_not_end_is_ended() -> None:
    with pytest.raises(RunError, match=r"longer than 0\.2 s"):
        answered("import time; time.sleep(60)", 0.2)


def test_what_a_program_prints_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\\x1b[31mred\\n::error::x\\n##[error]y"
    assert bytes(answered(f"import sys; sys.stderr.write('{text}'); print('{{}}')")) == b"null"
    assert capsys.readouterr().err == "  | \\x1b[31mred\n  | ::error::x\n  | # #[error]y\n"
    answered("import sys; sys.stderr.write('line\\n' * 100); print('{}')")
    assert capsys.readouterr().err.splitlines()[-1] == "  | (80 more lines)"


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    for name in ("json", "torch", "graphflops", "msgspec"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    command = child_command("validate", {"model": "no.pt2"})
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


def test_a_limited_process_writes_no_file(tmp_path: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no limits on Windows")
    code = (
        "from graphflops.runtime.machine import limit_process\n"
        "limit_process(10, 2**26, 0)\n"
        "try: open('written', 'wb', buffering=0).write(b'x')\n"
        "except OSError: print('refused')\n"
        "try: bytearray(2**28)\n"
        "except MemoryError: print('too much')\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env, check=True
    )
    assert ran.stdout.split("\n")[0] == "refused"
    assert not (tmp_path / "written").exists() or (tmp_path / "written").stat().st_size == 0
    if sys.platform == "linux":
        assert "too much" in ran.stdout


def test_a_peak_that_does_not_fit_is_refused() -> None:
    result = run(SAMPLES / "gqa_transformer.pt2", "--dim", "s27=10000000", "--repeats", 0)
    assert result.exit_code == 1
    assert "are free: give smaller sizes by --dim" in result.stderr


def test_an_operator_that_moves_memory_is_refused(tmp_path: Path) -> None:
    """`relu` of a sample is renamed in the file, as somebody may who writes a program by hand."""
    forged = tmp_path / "forged.pt2"
    with zipfile.ZipFile(SAMPLES / "convnet.pt2") as old, zipfile.ZipFile(forged, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(
                name, data.replace(b"torch.ops.aten.relu.default", b"torch.ops.aten.as_strided_.default")
            )
    result = run(forged, "--random-weights", "--repeats", 0)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "aten.as_strided_.default is not run from a file: it gives a tensor other memory" in result.stderr


@pytest.mark.parametrize(
    "op",
    [
        *(
            "set_.source_Tensor",
            "resize_.default",
            "as_strided_.default",
            "_print.default",
            "segment_reduce.default",
        ),
        *("_sparse_coo_tensor_unsafe.default", "_sparse_csr_tensor_unsafe.default"),
        *("_reshape_alias.default", "_reshape_alias_copy.default", "_nnpack_spatial_convolution.default"),
    ],
)
def test_operators_that_are_not_run_from_a_file(op: str) -> None:
    node = Node("n", f"aten.{op}", (Ref("x"),), (), ("y",))
    with pytest.raises(ModelError, match="is not run from a file"):
        refuse_unsafe(Graph((node,), {}, (), ()))
    with pytest.raises(ModelError, match="is not run from a file"):
        resolve(f"aten.{op}")
    wrapped = Node("n", "higher_order.out_dtype", (Opaque(f"torch.ops.aten.{op}"),), (), ("y",))
    inner = Graph((wrapped,), {}, (), ())
    outer = Node("c", "higher_order.cond", (Ref("p"), inner, inner), (), ("z",))
    with pytest.raises(ModelError, match="is not run from a file"):
        refuse_unsafe(Graph((outer,), {}, (), ()))


def test_views_that_torch_checks_are_run() -> None:
    for op in ("aten._unsafe_view.default", "aten._unsafe_index.Tensor", "aten.as_strided.default"):
        assert reason_to_refuse(operator(op)) == ""


def test_gradients_check_the_indices_that_the_forward_saved() -> None:
    pool = resolve("aten.max_pool2d_with_indices_backward.default")
    image, grad = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    indices = torch.tensor([[[[0, 2], [8, 15]]]])
    settings = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    assert pool(grad, image, *settings, indices).sum() == 4
    with pytest.raises(RunError, match="within the 16 places"):
        pool(grad, image, *settings, indices + 2**20)
    loss = resolve("aten.nll_loss_backward.default")
    scores, weight = torch.zeros(2, 3), torch.tensor(2.0)
    assert loss(torch.tensor(1.0), scores, torch.tensor([2, -100]), None, 1, -100, weight).sum() == -0.5
    with pytest.raises(RunError, match="within the 3 places"):
        loss(torch.tensor(1.0), scores, torch.tensor([2, 2**30]), None, 1, -100, weight)


def test_indices_of_sparse_tensors_are_checked() -> None:
    """An index of 2^38 in a tensor of 4 x 4: torch itself would not look at it."""

    class Sparse(torch.nn.Module):
        def forward(self, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return torch.sparse_coo_tensor(places, values, (4, 4)).to_dense()

    program = torch.export.export(Sparse(), (torch.zeros(2, 1, dtype=torch.int64), torch.ones(1)))
    graph = as_graph(program)
    execution = execute.Execution(graph, running.Weights(graph, torch.device("cpu")))
    with pytest.raises(RunError, match="index"):
        execution.run({"places": torch.full((2, 1), 2**38), "values": torch.ones(1)})


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("aten._stack.default", ([], -1)),
        ("aten._foreach_copy.default", ([], [torch.ones(2)])),
        ("aten.reflection_pad1d_backward.default", (torch.ones(5), torch.ones(3), [])),
        ("aten.reflection_pad2d_backward.default", (torch.ones(()), torch.ones(2), [])),
        (
            "aten.fractional_max_pool3d_backward.default",
            (torch.ones(4, 4), torch.ones(4), [4, 2, 4], [], torch.zeros(2, 4, 4, 3, dtype=torch.int64)),
        ),
    ],
)
def test_lists_that_torch_takes_on_trust(op: str, arguments: tuple[Any, ...]) -> None:
    """Each of these calls ends torch 2.13 with signal 11."""
    with pytest.raises(RunError, match=op):
        resolve(op)(*arguments)


def test_options_that_are_numbers() -> None:
    """torch takes any number for a memory format; -1 ends it with signal 11."""
    with pytest.raises(RunError, match="memory_format"):
        resolve("aten.empty_like.default")(torch.ones(2), memory_format=-1)
    assert resolve("aten.empty_like.default")(torch.ones(2), memory_format=torch.preserve_format).shape == (
        2,
    )


def test_loops_of_a_file_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch._higher_order_ops.while_loop(lambda y: y.sum() > -1, lambda y: (y + 1,), (x,))

    graph = as_graph(torch.export.export(Endless(), (torch.ones(3),), strict=True))
    monkeypatch.setattr(execute, "_TURNS", 10)
    execution = execute.Execution(graph, running.Weights(graph, torch.device("cpu")))
    with pytest.raises(RunError, match="more than 10 turns") as caught:
        execution.run({"x": torch.ones(3)})
    assert "while_loop" in str(caught.value)


def test_autocast_for_another_device_type_changes_nothing() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self, device: str) -> None:
            super().__init__()
            self.device = device
            self.layer = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(self.device, dtype=torch.bfloat16):
                return self.layer(x) + 1

    for device, result in (("cuda", torch.float32), ("cpu", torch.bfloat16)):
        program = torch.export.export(Mixed(device), (torch.ones(2, 8),))
        assert program.module()(torch.ones(2, 8)).dtype == result
        found = graphflops.validate(program, repeats=0)
        assert all(check.verdict == "equal" for node in found.nodes for check in node.checks)


def test_a_bias_that_hides_by_a_large_number_is_counted_as_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5 adds the smallest float to later keys: 64 * 65 / 2 of the 64 * 64 scores of 2 heads are seen, 4 * 16 FLOPs each."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")

    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(2, 64, 64))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            later = torch.ones(64, 64, dtype=torch.bool).triu(1)
            bias = self.table + torch.zeros(64, 64).masked_fill(later, torch.finfo(torch.float32).min)
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias[None])

    def counting(*given: Any, kernel: bool) -> RunComparison:
        return RunComparison(*given, kernel=True)

    monkeypatch.setattr(running, "RunComparison", counting)
    found = graphflops.validate(torch.export.export(Biased(), (torch.randn(1, 2, 64, 16),)), repeats=0)
    (visible,) = [check for node in found.nodes for check in node.checks if check.what == "visible"]
    assert (visible.verdict, visible.measured) == ("equal", str(2 * (64 * 65 // 2) * 4 * 16))
