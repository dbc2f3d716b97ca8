"""Memory under torch.compile: peaks that an H200 measured with PyTorch 2.11, and the rules behind them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from onnx import TensorProto, helper, save
from onnx.parser import parse_model
from torch import nn

import graphflops
from benchmarks.memory_models import Gpt, Unet
from graphflops.memory.compiled import Buffer, reused

LAYER = partial(nn.TransformerEncoderLayer, 512, 8, 2048, 0.1, batch_first=True)

MEASURED = [  # module, input, bytes of inference
    (partial(Gpt, 3, 768), torch.empty(4, 512, dtype=torch.int64), 286_232_576),
    (Unet, torch.empty(4, 3, 128, 128, dtype=torch.bfloat16), 50_331_648),
    (
        lambda: nn.TransformerEncoder(LAYER(), 4),
        torch.empty(16, 256, 512, dtype=torch.bfloat16),
        29_360_128,
    ),
]


@pytest.mark.parametrize(("build", "x", "measured"), MEASURED, ids=["gpt", "unet", "encoder"])
def test_the_peak_is_that_measured(build: object, x: torch.Tensor, measured: int) -> None:
    with torch.device("meta"):
        module = build().to(torch.bfloat16).eval()  # type: ignore[operator]
    program = graphflops.capture(module, (x.to("meta"),))
    report = graphflops.analyze(program, execution="compiled")
    assert report.value(report.totals.peak_bytes) - x.nbytes == pytest.approx(measured, rel=0.002)


class Mlp(nn.Module):
    """Two products with a chain of elementwise calls between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.up(x))
        return self.down(y * 2 + 1) + x


def test_a_fused_chain_makes_no_tensors() -> None:
    x = torch.empty(8, 64)
    program = graphflops.capture(Mlp(), (x,))
    peaks = [graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "compiled")]
    wide, narrow = 4 * 8 * 256, 4 * 8 * 64
    assert peaks == [
        narrow + 2 * wide,
        narrow + wide + narrow,
    ]  # the chain is written over the product's result


def test_dropout_keeps_a_mask_for_the_gradients() -> None:
    """Random numbers are not drawn again."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dropout(self.fc(x), 0.5, True)

    program = graphflops.capture(Dropped(), (torch.empty(8, 64),))
    held = graphflops.analyze(program, training=True, execution="compiled").memory.held
    assert [entry.bytes for entry in held if entry.kind == "saved"] == [8 * 64]


def test_a_buffer_is_used_again_if_that_does_not_raise_the_peak() -> None:
    first, wide = Buffer("first", 4, 0, 1), Buffer("wide", 10, 2, 2)
    second = Buffer("second", 4, 3, 4)
    assert reused([first, second], [0, 0, 0, 4]) == {"second": "first"}
    assert reused([first, wide, second], [4, 10, 0, 4]) == {}  # 10 + 4 would be more than the peak of 10
    assert reused([first, Buffer("over", 4, 1, 2, ("first",))], [8, 4]) == {"over": "first"}
    assert reused([first, replace(second, is_fresh=True)], [0, 0, 0, 4]) == {}  # a library allocates it


def test_a_convolution_of_unknown_operands_is_a_kernel_of_its_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unheard", ["x"], ["a"], domain="somewhere"),
        helper.make_node("Conv", ["a", "w"], ["y"]),
    ]
    x, w = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 8, 8]), ("w", [4, 3, 3, 3]))
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    save(helper.make_model(helper.make_graph(nodes, "graph", [x, w], [y])), tmp_path / "model.onnx")
    report = graphflops.analyze(tmp_path / "model.onnx", training=True, execution="compiled")
    assert report.totals.peak_bytes is not None


def test_a_sum_of_a_thousand_products_is_written_over_one_of_them(tmp_path: Path) -> None:
    count = 1000
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"a{index}"]) for index in range(count)]
    nodes.append(helper.make_node("Sum", [f"a{index}" for index in range(count)], ["y"]))
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xwy")
    save(helper.make_model(helper.make_graph(nodes, "graph", [x, w], [y])), tmp_path / "model.onnx")
    report = graphflops.analyze(tmp_path / "model.onnx", execution="compiled")
    assert report.value(report.totals.peak_bytes) == (count + 2) * 4 * 4 * 4  # with both operands


def test_a_program_without_calls_trains() -> None:
    program = graphflops.capture(nn.Identity(), (torch.empty(4, 4),))
    for way in ("graph", "compiled"):
        assert graphflops.analyze(program, training=True, execution=way).totals.peak_bytes == 4 * 4 * 4


def test_an_activation_in_a_branch_reads_a_value_from_around_it(tmp_path: Path) -> None:
    """The branch is planned with a gradient of a value that it does not make."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[8,8] x, bool c) => (float[8,8] y)
        <float[8,8] w = {WEIGHTS}> { h = MatMul(x, w) y = If (c) <
            then_branch = a () => (float[8,8] p) { p = Elu(h) }, else_branch = b () => (float[8,8] q) { q = Elu(h) }> }"""
    save(parse_model(text.replace("WEIGHTS", ", ".join(["1"] * 64))), tmp_path / "a.onnx")
    report = graphflops.analyze(tmp_path / "a.onnx", training=True, execution="compiled")
    assert report.totals.cost.matrix_flops == 2 * 8 * 8 * 8
    assert report.coverage.unknown == 0
