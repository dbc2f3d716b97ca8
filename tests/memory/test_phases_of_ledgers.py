"""Ledgers of two linear layers, phase by phase: what is held from when to when, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops import Training
from graphflops.devices import device as device_named
from graphflops.dims import symbol
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.loading import analyze
from graphflops.memory.allocator import Allocator
from graphflops.memory.ledger import at_sizes, evaluated, ledger, on_device, peak_moment
from graphflops.report import Held, Report, Timeline
from tests.support import t

X, Y, Z = 4 * 256 * 64, 4 * 256 * 128, 4 * 256 * 32  # bytes of operand and results
W, V, B, C = 4 * 128 * 64, 4 * 32 * 128, 4 * 32, 4 * 100  # of weights, bias and a buffer that nothing reads
BLAS, LT = 32 * 2**20, 2**20  # of the workspaces of libraries


def layers(training: Training | bool = False, device: str | None = "h200", **more: Any) -> Report:
    """A relu, a linear layer without a bias and one with."""
    trained: dict[str, Any] = {"requires_grad": True}
    types = {"x": t(256, 64), "r": t(256, 64), "y": t(256, 128, **trained), "z": t(256, 32, **trained)}
    types |= {"w": t(128, 64, **trained), "v": t(32, 128, **trained), "b": t(32, **trained), "c": t(100)}
    inputs = (
        Input("x", "user"),
        Input("w", "parameter", "first.weight"),
        Input("v", "parameter", "second.weight"),
        Input("b", "parameter", "second.bias"),
        Input("c", "buffer", "c"),
    )
    nodes = (
        Node("r", "aten.relu.default", (Ref("x"),), outputs=("r",)),
        Node("y", "aten.linear.default", (Ref("r"), Ref("w")), outputs=("y",)),
        Node("z", "aten.linear.default", (Ref("y"), Ref("v"), Ref("b")), outputs=("z",)),
    )
    graph = Graph(nodes, types, inputs, (Output(Ref("z")),))
    return analyze(graph, device=device, training=training, **more)


LASTING = [
    ("first.weight", "weight", W),
    ("second.weight", "weight", V),
    ("second.bias", "weight", B),
    ("c", "buffer", C),
]


def lasting(last: int) -> list[Any]:
    return [(name, kind, 0, last, size) for name, kind, size in LASTING]


def test_what_inference_holds() -> None:
    """The library of products gets its workspace at the first, and that of products with a bias at the first of these."""
    (entry,) = layers().memory_use
    assert [tuple(held) for held in entry.timeline.held] == [
        *lasting(2),
        ("cuBLAS", "library", 1, 2, BLAS),
        ("cuBLASLt", "library", 2, 2, LT),
        ("r", "value", 0, 1, X),
        ("y", "value", 1, 2, Y),
        ("x", "input", 0, 2, X),
        ("z", "value", 2, 2, Z),
    ]
    assert entry.requested_peak == W + V + B + C + BLAS + LT + 2 * X + Y  # at the first product
    assert (entry.weights, entry.buffers, entry.inputs) == (W + V + B, C, X)
    assert (entry.activations, entry.workspaces) == (X + Y, BLAS + LT)
    assert (entry.gradients, entry.optimizer, entry.temporaries) == (0, 0, 0)
    assert (entry.phase, entry.execution, entry.peak_node) == ("inference", "eager", "y")
    assert entry.device_total == entry.reserved_peak + entry.context  # type: ignore[operator]


def test_without_a_device_there_is_neither_context_nor_workspace() -> None:
    (entry,) = layers(device=None, execution="eager").memory_use
    assert (entry.device, entry.context, entry.workspaces, entry.device_total) == ("", None, None, None)
    assert entry.requested_peak == W + V + B + C + 2 * X + Y
    # 8 blocks: one of the bias, of 512 bytes, where 128 are asked for, and one of the buffer, where 400 are.
    assert entry.allocated_peak == entry.requested_peak + (512 - B) + (512 - C)


@pytest.mark.parametrize(
    ("optimizer", "state", "temporaries"),
    [
        ("sgd", [], []),
        ("adam", [W, W, V, V, B, B], [W, V, B]),
        # Sums of rows and columns of matrices, and all squares of a bias.
        ("adafactor", [4 * 128, 4 * 64, 4 * 32, 4 * 128, B], [W, V]),
    ],
)
def test_what_a_training_step_holds(optimizer: Any, state: list[int], temporaries: list[int]) -> None:
    """The gradients, the last call first, and the update after them; the backward has a thread of its own."""
    inference, entry = layers(Training(optimizer=optimizer)).memory_use
    assert inference.phase == "inference"
    assert (entry.timeline.rows, entry.timeline.gradients_from) == ((0, 1, 2, 2, 2, 1, -1), 3)
    found = [tuple(held) for held in entry.timeline.held]
    kept = [held for held in found if held[1] == "optimizer"]
    assert sorted(size for *_, size in kept) == sorted(state)
    assert {(first, last) for _, _, first, last, _ in kept} <= {(0, 6)}
    made = [held for held in found if held[1] == "temporary"]
    assert [(first, last, size) for _, _, first, last, size in made] == [(6, 6, size) for size in temporaries]
    names = ["first.weight", "second.weight", "second.bias"]
    assert [name for name, *_ in made] == names[: len(temporaries)]
    assert [held for held in found if held[1] not in ("optimizer", "temporary")] == [
        *lasting(6),
        ("cuBLAS", "library", 1, 6, BLAS),
        ("cuBLAS", "library", 3, 6, BLAS),
        ("cuBLASLt", "library", 2, 6, LT),
        ("z", "workspace", 3, 3, Z),  # the gradient of a sum is one number, which a product cannot read
        ("z", "workspace", 4, 4, Z),
        ("y", "value", 1, 4, Y),
        ("y", "gradient", 3, 5, Y),
        ("r", "value", 0, 5, X),
        ("z", "value", 2, 5, Z),
        ("x", "input", 0, 6, X),
        ("second.weight", "gradient", 4, 6, V),
        ("second.bias", "gradient", 4, 6, B),
        ("first.weight", "gradient", 5, 6, W),
    ]
    always = W + V + B + C + sum(state) + 2 * BLAS + LT
    assert entry.requested_peak == always + 2 * X + Y + Z + Y + Z + V + B
    assert (entry.gradients, entry.optimizer, entry.temporaries) == (Y + V + B, sum(state), Z)


def test_an_update_whose_temporaries_are_larger_than_all_activations() -> None:
    """One number of a matrix of 4 MiB is read: the peak is that of the update."""
    trained: dict[str, Any] = {"requires_grad": True}
    types = {"w": t(1024, 1024, **trained), "y": t(1024, 1, **trained)}
    node = Node("y", "aten.slice.Tensor", (Ref("w"), 1, 0, 1), outputs=("y",))
    graph = Graph((node,), types, (Input("w", "parameter", "w"),), (Output(Ref("y")),))
    _, entry = analyze(graph, device="h200", training=Training(optimizer="adam")).memory_use
    assert entry.requested_peak == (1 + 2 + 1 + 1) * 2**22  # weight, state, gradient and temporary
    assert (entry.peak_node, entry.temporaries, entry.gradients) == ("", 2**22, 2**22)


def test_a_program_without_calls_has_its_weights_in_memory() -> None:
    graph = Graph((), {"w": t(256)}, (Input("w", "parameter", "w"),), (Output(Ref("w")),))
    (entry,) = analyze(graph, device="h200").memory_use
    assert [tuple(held) for held in entry.timeline.held] == [("w", "weight", 0, 0, 1024)]
    assert (entry.timeline.rows, entry.requested_peak) == ((-1,), 1024)


@pytest.mark.parametrize(("is_training", "phase"), [(False, "inference"), (True, "training")])
def test_a_recorded_step_is_one_phase(is_training: bool, phase: str) -> None:
    held = (Held("w", "weight", 0, 1, 1000), Held("a", "value", 0, 0, 30), Held("b", "value", 0, 1, 20))
    program: Any = Space(
        graph=Space(step=Space(is_training=is_training)),
        main=Space(inlined=Space(calls=()), rows=[Space(node="first"), Space(node="second")]),
        values={},
    )
    memory: Any = Space(inference=Timeline((0, 1), held, None))
    (entry,) = ledger(program, memory, "eager", None)
    assert (entry.phase, entry.requested_peak, entry.peak_node) == (phase, 1050, "first")
    assert (entry.weights, entry.activations) == (1000, 50)


def test_on_another_device_there_are_its_context_and_workspaces() -> None:
    (entry,) = layers().memory_use
    other = device_named("a100")
    found = on_device(entry, other)
    assert other.blas_workspace_bytes
    less = BLAS - other.blas_workspace_bytes
    assert less != 0
    assert (found.device, found.context) == (other.name, other.context_bytes)
    assert found.workspaces == BLAS + LT - less
    assert found.requested_peak == entry.requested_peak - less
    assert (found.allocated_peak, found.reserved_peak, found.device_total) == (None, None, None)
    before, after = entry.timeline.held, found.timeline.held
    assert [(a.name, a.bytes - b.bytes) for a, b in zip(before, after, strict=True) if a != b] == [
        ("cuBLAS", less)
    ]
    (without,) = layers(device=None, execution="eager").memory_use
    assert on_device(without, other).workspaces == 0


def test_moments_of_open_sizes() -> None:
    """A size without a value is 4096; one that has a value stays."""
    n, m = symbol("n"), symbol("m")
    held = (Held("a", "value", 0, 0, n), Held("b", "value", 1, 1, 4095), Held("c", "value", 2, 2, m * 2))
    line = Timeline((0, 1, 2), held, None)
    assert evaluated(line, {"m": 3}) == [None, 4095, 6]
    assert peak_moment(line, {}) == 2
    assert peak_moment(line, {"m": 3}) == 0
    assert peak_moment(line, {"n": 5, "m": 3}) == 1


def test_what_the_allocator_takes_is_added_to_a_formula() -> None:
    """Of 100 n bytes at n = 3 it takes 512 and reserves 2 MiB: 212 and 2 MiB - 300 more than are requested."""
    n = symbol("n")
    (entry,) = layers().memory_use
    line = Timeline((0,), (Held("a", "value", 0, 0, 100 * n),), None)
    entry = replace(entry, timeline=line, requested_peak=100 * n, context=7)
    found = at_sizes(entry, {"n": 3}, Allocator(), layers().rows)
    assert found.requested_peak == 100 * n
    assert (found.allocated_peak, found.reserved_peak) == (100 * n + 212, 100 * n + 2**21 - 300)
    assert found.device_total == 100 * n + 2**21 - 300 + 7
    assert at_sizes(entry, {}, Allocator(), layers().rows).allocated_peak is None
    assert at_sizes(entry, {"n": -1}, Allocator(), layers().rows).allocated_peak is None
    nothing = at_sizes(entry, {"n": 0}, Allocator(), layers().rows)
    assert (nothing.allocated_peak, nothing.reserved_peak) == (100 * n, 100 * n)
