"""Programs that no exporter writes but a file can hold: a report or one line, in training too."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from graphflops import analyze, cli
from tests.exporters.build import call, meta, program, save, tensor

SHAPES = [(), (1,), (4,), (2, 4), (0,), (1, 2, 3, 4), (1, 0, 3, 4), ("s0", "s0")]
FUSED = [
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
]


def printed(path, *options):
    """What `analyze` prints; it ends by itself."""
    done = CliRunner().invoke(cli.main, ["analyze", str(path), *options])
    assert done.exit_code in (0, 1)
    return done.output


@pytest.mark.parametrize("options", [(), ("--training",)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_of_any_rank(shape, options, tmp_path):
    operands = [{"user_input": {"arg": tensor(name)}} for name in "qkv"]
    values = {name: meta(*shape) for name in "qkvdey"}
    fused = [[call(f"torch.ops.aten.{name}.default", *map(tensor, "qkv"))] for name in FUSED]
    for nodes in (SPELLED, *fused):
        path = save(tmp_path / "a.pt2", program(nodes, values, operands))
        assert "defect" not in printed(path, *options)


SPELLED = [
    call("torch.ops.aten.matmul.default", tensor("q"), tensor("k"), out="d"),
    call("torch.ops.aten.softmax.int", tensor("d"), {"as_int": -1}, out="e"),
    call("torch.ops.aten.matmul.default", tensor("e"), tensor("v")),
]
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


@pytest.mark.parametrize("options", [(), ("--training", "--device", "h200")], ids=len)
@pytest.mark.parametrize("shape", [(), (4,), (1, 2, 4, 4, 1)], ids=str)
@pytest.mark.parametrize("name", "qkvdey")
def test_one_value_of_an_attention_is_recorded_with_another_rank(name, shape, options, tmp_path):
    operands = [{"user_input": {"arg": tensor(operand)}} for operand in "qkv"]
    values = {**{value: meta(2, 4, 4) for value in "qkvdey"}, name: meta(*shape)}
    mask = tensor("d")
    gradients = call(f"torch.ops.aten.{BACKWARD}.default", *map(tensor, "qqkvey"), mask, mask, out="e")
    fused = [[call(f"torch.ops.aten.{kernel}.default", *map(tensor, "qkv"))] for kernel in FUSED]
    for nodes in (SPELLED, *fused, [gradients, *fused[0]]):
        path = save(tmp_path / "a.pt2", program(nodes, values, operands))
        assert "defect" not in printed(path, *options)


@pytest.mark.parametrize("training", [(), ("--training",)], ids=len)
@pytest.mark.parametrize("device", [(), ("--device", "h200", "--execution", "eager")], ids=len)
@pytest.mark.parametrize("op", [*FUSED, "mT", "t", "relu", "native_layer_norm", "lstm", "nll_loss", "sum"])
def test_a_call_on_a_number_and_one_without_results(op, device, training, tmp_path):
    operands = [{"user_input": {"arg": tensor(name)}} for name in "qkv"]
    values = {name: meta() for name in "qkvey"}
    calls = [
        call(f"torch.ops.aten.{op}.default", *map(tensor, "qkv"), out=[]),
        call(f"torch.ops.aten.{op}.default", *map(tensor, "qkv"), out="e"),
        call("torch.ops.aten.relu.default", tensor("q")),
    ]
    path = save(tmp_path / "a.pt2", program(calls, values, operands))
    assert "defect" not in printed(path, *device, *training)


@pytest.mark.parametrize("execution", ["graph", "eager", "compiled"])
def test_extremes_along_the_axis_that_a_number_is_taken_to_have(execution):
    torch = pytest.importorskip("torch")

    class Extreme(torch.nn.Module):
        def forward(self, x):
            return x.max(0), x.amin(-1), x.unfold(0, 1, 1).movedim(0, -1)

    exported = torch.export.export(Extreme(), (torch.ones(()),))
    report = analyze(exported, device="h200", execution=execution, training=True)
    assert report.total().vector_flops == 1 + 1


def test_a_batch_norm_of_nothing():
    torch = pytest.importorskip("torch")

    class Norm(torch.nn.Module):
        def forward(self, x, mean, var):
            return torch.nn.functional.batch_norm(x, mean, var, training=True)

    exported = torch.export.export(Norm(), (torch.ones(0),) * 3)
    assert analyze(exported, device="h200", execution="compiled").total().vector_flops == 0


def test_a_training_step_over_what_a_branch_returns(tmp_path):
    torch = pytest.importorskip("torch")

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x + 1, (x,))
            return self.linear(y.view(8).add_(1).view(2, 4))

    exported = torch.export.export(Branches(), (torch.randn(2, 4),))
    torch.export.save(exported, tmp_path / "branches.pt2")
    report = analyze(tmp_path / "branches.pt2", training=True)
    assert report.coverage.unknown == 0
    assert report.total().matrix_flops == 2 * (2 * 2 * 4 * 4)
    assert report.backward is not None
    # The layer behind the branch and the one in it: two products each, but the program's input wants no gradient.
    assert report.backward.cost.matrix_flops == (2 + 1) * (2 * 2 * 4 * 4)


def test_an_in_place_operator_without_a_tensor_operand(tmp_path):
    values = {"x": meta(4), "y": meta(4) | {"requires_grad": True}}
    nodes = [call("torch.ops.aten.add_.Tensor", {"as_int": 3}, {"as_int": 4})]
    assert "defect" not in printed(save(tmp_path / "a.pt2", program(nodes, values)), "--training")
