"""Activation checkpointing: work as torch counts it, memory by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from graphflops import Training, analyze
from graphflops.errors import ModelError
from graphflops.exporters.live import from_exported_program
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.gradients import with_checkpoints
from graphflops.tensor import FLOAT32, TensorType

B, D, H, BLOCKS = 512, 16, 64, 4


class Block(torch.nn.Module):
    """Two products; the gradient of the second keeps its operand alone, so that it does not run again."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(D, H, bias=False)
        self.down = torch.nn.Linear(H, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


class Normed(Block):
    """Ends in a normalisation, whose gradient keeps statistics: everything runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(x))


class Net(torch.nn.Module):
    def __init__(self, kind: type[Block], checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(kind() for _ in range(BLOCKS))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.checkpointed:  # noqa: SIM108 - a line that names checkpoint is a checkpoint
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x


def exported(kind, checkpointed=False):
    return torch.export.export(Net(kind, checkpointed), (torch.randn(B, D),))


@pytest.mark.parametrize("kind", [Block, Normed])
def test_the_work_is_that_of_torch(kind):
    net, x = Net(kind, checkpointed=True), torch.randn(B, D)
    with FlopCounterMode(display=False) as counter:
        net(x).sum().backward()
    report = analyze(exported(kind), training=Training(recompute="blocks.*"))
    assert report.step().cost.matrix_flops == counter.get_total_flops()


def test_only_what_goes_in_is_kept():
    program = exported(Block)
    whole = analyze(program, training=True).backward
    again = analyze(program, training=Training(recompute="blocks.*")).backward
    # Both are largest at the last ReLU's gradient, but then only one of the blocks has what its ReLU made.
    assert whole.peak_bytes - again.peak_bytes == (BLOCKS - 1) * B * H * 4


def test_lines_that_call_checkpoint_are_found():
    marked = analyze(exported(Block, checkpointed=True), training=True)
    named = analyze(exported(Block), training=Training(recompute="blocks.*"))
    assert marked.step().cost == named.step().cost
    assert marked.step().peak_bytes == named.step().peak_bytes


def test_each_module_is_a_checkpoint_of_its_own():
    graph = with_checkpoints(from_exported_program(exported(Normed)), ("blocks.*",))
    assert len({*graph.recomputed.values()}) == BLOCKS
    whole = with_checkpoints(from_exported_program(exported(Normed)), ("blocks",))
    assert len({*whole.recomputed.values()}) == 1


class Pairs(Net):
    """A checkpoint of two modules and what is between them, then one of two alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.blocks
        x = checkpoint(lambda y: second(first(y).relu()), x, use_reentrant=False)
        return checkpoint(lambda y: fourth(third(y)), x, use_reentrant=False)


class Each(Net):
    """A checkpoint for each module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(lambda y, of=block: of(y), x, use_reentrant=False)
        return x


@pytest.mark.parametrize(("net", "count"), [(Pairs, 2), (Each, BLOCKS)])
def test_a_lambda_of_several_modules_is_one_checkpoint(net, count):
    program = torch.export.export(net(Block), (torch.randn(B, D),))
    graph = with_checkpoints(from_exported_program(program), ())
    assert len(graph.recomputed) == len(graph.nodes)
    assert len({*graph.recomputed.values()}) == count


def test_the_outermost_of_nested_modules_counts():
    graph = with_checkpoints(from_exported_program(exported(Normed)), ("blocks.*", "up"))
    assert len({*graph.recomputed.values()}) == BLOCKS


def test_a_pattern_without_a_module():
    with pytest.raises(ModelError, match="--recompute layers matches nothing; the model has blocks"):
        analyze(exported(Block), training=Training(recompute="layers"))


def region():
    """relu(x) @ w as a graph of its own."""
    nodes = (
        Node("relu", "aten.relu.default", (Ref("a"),), outputs=("relu",)),
        Node("mm", "aten.mm.default", (Ref("relu"), Ref("b")), outputs=("mm",)),
    )
    inputs = (Input("a", "user"), Input("b", "user"))
    return Graph(nodes, TYPES, inputs, (Output(Ref("mm")),), name="body")


X, W = TensorType((B, D), FLOAT32), TensorType((D, D), FLOAT32, requires_grad=True)
TYPES = {"x": X, "w": W, "a": X, "b": W, "relu": X, "mm": X, "y": X, "z": X}


def test_a_checkpointed_graph_is_put_in_place():
    op = "higher_order.tag_activation_checkpoint"
    nodes = tuple(
        Node(f"wrap_{out}", op, (region(), Ref(given), Ref("w")), outputs=(out,))
        for given, out in (("x", "y"), ("y", "z"))
    )
    graph = Graph(nodes, TYPES, (Input("x", "user"), Input("w", "parameter", "w")), (Output(Ref("z")),))
    report = analyze(graph, training=True)
    assert [row.node for row in report.rows] == ["wrap_y/relu", "wrap_y/mm", "wrap_z/relu", "wrap_z/mm"]
    mm = 2 * B * D * D
    assert report.totals.cost.matrix_flops == 2 * mm
    assert (
        report.backward.cost.matrix_flops == 3 * mm
    )  # x wants none; each product is the last of its checkpoint


def test_time_has_what_runs_again_and_every_micro_step():
    program = exported(Normed)

    def times(**options):
        report = analyze(program, training=Training(optimizer="none", **options), device="h200")
        return report.totals.time.seconds, report.backward.time.seconds, report.step().time.seconds

    forward, backward, step = times()
    again = times(recompute="blocks.*")
    assert again[0] == forward
    assert again[1] > backward + forward / 4
    assert times(accumulate=3)[2] == pytest.approx(3 * step)


def test_the_time_of_an_update_is_that_of_its_optimizer():
    program = exported(Normed)

    def seconds(optimizer: str, implementation: str | None = None):
        training = Training(optimizer=optimizer, implementation=implementation)
        return analyze(program, training=training, device="h200").optimizer.time

    assert seconds("none").seconds == 0
    fused, together, singly = (seconds("adamw", how).seconds for how in ("fused", "foreach", "single"))
    assert fused < together < singly
    assert seconds("sgd").seconds < together
    assert seconds("muon").is_lower_bound
