"""Layouts over many devices: what is split, what parts cost, what a mesh needs, and what the command says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from graphflops import analyze, plan
from graphflops.cli import main
from graphflops.devices import complete, device
from graphflops.errors import ModelError
from graphflops.fitting.varied_size import SPARE
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.links import network_of
from graphflops.links.pipeline import Stage, pipeline
from graphflops.planning.blocks import Call, Recompute, Tally, choices
from graphflops.planning.layouts import Costs, Layout, Machine, stages
from graphflops.planning.parts import axis_of, regrouped
from graphflops.planning.plan import _Search
from graphflops.planning.prices import AFTER, BEFORE, LAYER, Part, Prices, reading
from graphflops.planning.split import folded, mixed, split
from graphflops.render import render
from graphflops.render.plan import schedule
from graphflops.tensor import BFLOAT16, TensorType
from tests.exporters.test_recorded import STEP, written
from tests.links.closed_forms import ring_attention, sent

SAMPLES = Path(__file__).parents[2] / "samples"
DECODER = SAMPLES / "gqa_transformer.pt2"  # 4 layers of 64, 8 heads of 8, 2 of keys and values, 1,000 words
LAYERS, WIDTH, WORDS = 4, 64, 1000
LENGTH = 16
KEYS, EACH = 2, 8


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


@pytest.mark.parametrize(
    ("before", "after", "axis", "found"),
    [
        ((2, 16, 64), (2, 16, 8, 8), 2, 2),  # heads are the leading factor
        ((2, 16, 8, 8), (2, 16, 64), 2, 2),
        ((2, 16, 8, 8), (2, 16, 64), 3, None),  # the width of a head is not
        ((2, 2, 4, 16, 8), (2, 8, 16, 8), 1, 1),  # keys of a group, repeated for its heads
        ((8, 16), (1, 8, 16), 0, 1),
    ],
)
def test_a_split_axis_goes_through_a_reshape(before: Any, after: Any, axis: int, found: int | None) -> None:
    assert regrouped(before, after, axis) == found


def test_layers_that_repeat_are_left_out() -> None:
    whole = analyze(DECODER)
    less = folded(whole)
    assert less.layers == LAYERS
    part = analyze(less.graph)
    assert (
        part.parameters == whole.parameters - (LAYERS - 2) * 34_944 // 1 or part.parameters < whole.parameters
    )
    each = whole.value(whole.totals.cost.matrix_flops) - part.value(part.totals.cost.matrix_flops)
    turn = [row for row in part.rows if less.turn[row.node] == 1]
    assert each == (LAYERS - 2) * sum(part.value(row.cost.matrix_flops) for row in turn)


def test_two_devices_have_half_of_the_products() -> None:
    graph = folded(analyze(DECODER)).graph
    whole, half = analyze(graph), analyze(split(graph, 2).graph)
    assert 2 * half.value(half.totals.cost.matrix_flops) == whole.value(whole.totals.cost.matrix_flops)
    assert not [one for one in half.diagnostics if one.code == "GF101"]


def test_fewer_key_heads_than_devices_leave_the_attention_whole() -> None:
    found = split(folded(analyze(DECODER)).graph, 4)
    assert any("does not divide" in why for why in found.refused.values())
    products = [one for one in found.exchanged if one.side == "out" and one.call != "embedding"]
    assert len(products) == 2  # the second products of the feed-forward of two layers


def test_gradients_sum_what_the_forward_gathers() -> None:
    report = analyze(DECODER)
    found = reading(folded(report), 2, {next(iter(report.symbols)): 4}, "h100").prices()
    layer = found.parts[LAYER]
    tokens = 4 * LENGTH * WIDTH * 2  # 4 samples in bfloat16
    assert (layer.gathered, layer.reduced) == ((tokens, tokens), (tokens, tokens))


CHAIN = [
    Call("product", Tally(10.0), 100, (), True, False),
    Call("gate", Tally(1.0), 400, ("product",), True, False),
    Call("view", Tally(0.0), None, ("gate",), False, False),
    Call("out", Tally(10.0), 100, ("view",), False, True),
]


def test_what_is_cheap_and_large_runs_again_first() -> None:
    none, cut, full = choices(CHAIN)
    assert (none.name, none.kept, none.done.seconds) == ("none", 100 + 400 + 100, 0)
    assert (cut.kept, cut.done.seconds) == (100 + 100, 1.0)
    assert (full.name, full.kept, full.done.seconds) == (
        "full",
        100,
        11.0,
    )  # what nobody reads is not computed again


def machine() -> Machine:
    profile = complete(device("h100"))
    return Machine(profile, network_of(profile))


def costs(layout: Layout, batches: int = 1, layers: int = 8, **part: Any) -> Costs:
    part = {"forward": 1.0, "backward": 2.0, **part}
    seconds = {name: Tally(part.pop(name, 0.0)) for name in ("forward", "backward", "weight")}
    layer = Part(**{**seconds, "kept": 1000, "transient": 1500, "parameters": 600, **part})
    prices = Prices((Part(), layer, Part()), 100, ())
    return Costs(layout, prices, Recompute("none", 1000), machine(), layers, batches)


def test_a_pipeline_waits_for_its_stages() -> None:
    step = costs(Layout(1, pipeline=4), batches=8).step()
    assert step.bubble == pytest.approx(3 * 2 * (1 + 2))  # 3 stages ahead, of 2 layers
    assert step.compute == pytest.approx(8 * 2 * 3)
    interleaved = costs(Layout(1, pipeline=4, virtual=2, schedule="interleaved"), batches=8).step()
    assert interleaved.bubble == pytest.approx(step.bubble / 2)


def test_a_step_has_what_no_kernel_hides_of_its_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum takes 20 s and a message 0.25 s; gradients are summed beside the last backward, of 16 s in eight layers."""
    taken = {"all_reduce": 20.0, "send": 0.25}
    monkeypatch.setattr(Machine, "takes", lambda self, kind, nbytes, group, *_: taken[kind] * (group > 1))
    step = costs(Layout(8, sharding="none"), batches=3).step()
    beside = 16 / 0.8  # seconds in which the sum runs at 0.6 of its speed, before it runs alone
    assert step.exposed == pytest.approx(beside + (20 - 0.6 * beside) - 16)
    assert step.seconds == pytest.approx(3 * 8 * 3 + step.exposed + step.update)
    piped = costs(Layout(1, pipeline=4), batches=8).step()
    assert piped.exposed == pytest.approx(2 * 3 * 0.25)  # forward and backward, to each of three stages


@pytest.mark.parametrize(("data", "tensor", "near"), [(8, 1, 8), (8, 2, 4), (2, 2, 2), (8, 8, 1), (8, 16, 1)])
def test_devices_of_a_node_that_have_the_same_weights(data: int, tensor: int, near: int) -> None:
    """Of eight, which those of a split layer share."""
    assert costs(Layout(data, tensor=tensor))._near == near


@pytest.mark.parametrize(
    ("given", "rank", "axis"), [(1, 3, 1), (-1, 3, 2), ((-2, 0), 3, 1), ((), 3, 2), (None, 3, 2), (0, 0, 0)]
)
def test_axes_are_counted_from_the_first(given: Any, rank: int, axis: int) -> None:
    assert axis_of(given, rank) == axis


def test_a_step_leaves_memory_unused() -> None:
    asked = SimpleNamespace(machine=machine())
    memory = asked.machine.device.memory_bytes - (asked.machine.device.context_bytes or 0)
    assert _Search.room.fget(asked) == int((1 - SPARE) * memory)  # type: ignore[attr-defined]


def test_a_stage_keeps_as_many_micro_batches_as_follow_it() -> None:
    memory = costs(Layout(1, pipeline=4, sharding="none"), batches=8).step().memory
    stage, passed = 2 * 1000, 0
    assert memory.activations + memory.temporaries == 3 * stage + 1000 + 1500 + passed
    assert memory.weights == 2 * 600 * 4
    assert memory.optimizer == 2 * 600 * 8


def test_sharded_weights_are_gathered_by_layer() -> None:
    memory = costs(Layout(8)).step().memory
    assert memory.weights == 8 * 600 * 4 // 8
    assert memory.gathered == 2 * 600 * 2 + 600 * (2 + 4)  # two layers in bfloat16, gradients of one


def test_experts_are_shared_by_the_devices_of_their_axis() -> None:
    memory = costs(Layout(8, expert=4, sharding="none"), experts=400).step().memory
    assert memory.weights == 8 * (200 + 400 // 4) * 4


def test_stages_with_ends_have_fewer_layers() -> None:
    assert (BEFORE, LAYER, AFTER) == (0, 1, 2)
    assert stages(10, 3, 0.0, 3.0, 6.0) == (4, 4, 2)


def test_gradients_of_weights_wait_for_the_bubble() -> None:
    whole = costs(Layout(1, pipeline=4), batches=8, weight=1.0).step()
    step = costs(Layout(1, pipeline=4, schedule="zero-bubble"), batches=8, weight=1.0).step()
    assert whole.bubble == pytest.approx(
        3 * 2 * (1 + 1 + 1)
    )  # forward, gradients of inputs, of weights, of 2 layers
    assert step.bubble == pytest.approx(3 * 2 * (1 + 1 - 1))
    found = pipeline(step.costs.stages(), 4, 8, "zero-bubble")
    assert found.seconds == pytest.approx(step.compute + step.bubble)


@pytest.mark.parametrize(
    ("schedule", "virtual"), [("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2), ("interleaved", 4)]
)
def test_stages_keep_what_their_schedule_keeps(schedule: Any, virtual: int) -> None:
    layout = Layout(1, pipeline=4, virtual=virtual, schedule=schedule)
    found = costs(layout, batches=8, layers=16, weight=1.0)
    given = [
        100 * (place > 0) for place in range(4 * virtual)
    ]  # what each stage but the first gets from another
    stages = [Stage(1.0, 1.0, 1.0, saved=4 * 1000 / virtual + size) for size in given]
    kept = pipeline(stages, 4, 8, schedule).saved
    for place in range(4):
        memory = found.memory(place)
        assert memory.activations + memory.temporaries == kept[place] + 1500 - 1000  # the layer that runs


def test_schedules_run_where_stages_are_not_alike() -> None:
    layout = Layout(1, pipeline=4, sharding="none")
    one = costs(layout, batches=8, layers=9)  # stages of 2, 2, 2 and 3 layers
    stages = [Stage(1.0 * layers, 2.0 * layers) for layers in (2, 2, 2, 3)]
    step = one.step(runs=True)
    assert step.compute + step.bubble == pytest.approx(pipeline(stages, 4, 8, "1f1b").seconds)
    assert step.seconds < one.step().seconds  # whose closed form takes all stages to be as slow as the last


def test_half_of_the_work_of_a_product_backwards_is_that_of_its_weight() -> None:
    report = analyze(DECODER)
    found = reading(folded(report), 1, {next(iter(report.symbols)): 4}, "h100")
    linear = [row for row in found.report.rows if ".linear." in row.op and found.turn(row.node) == 1]
    assert len(linear) == 4 + 2  # queries, keys, values and results, and a feed-forward
    assert found.parts()[2].weight.seconds == pytest.approx(
        sum(row.backward_time.seconds for row in linear) / 2
    )


def test_keys_and_values_go_around_a_ring() -> None:
    report = analyze(DECODER)
    batch, length = map(str, report.inputs[0].type.shape)
    found = reading(folded(report), 1, {batch: 4, length: LENGTH // 2}, "h100", context=2)
    (attended,) = found.parts()[2].attended
    alone = next(row for row in found.report.rows if "attention" in row.op)
    assert attended[0].seconds == pytest.approx(2 * alone.time.seconds)  # two blocks of keys
    assert attended[2] == 2 * (4 * LENGTH // 2) * (KEYS * EACH) * 2  # keys and values in bfloat16
    gradients = 2 * attended[2]  # in float32
    ring = ring_attention(attended[2], LAYERS, 2)
    assert sent(ring.forward) == LAYERS * (2 - 1) * attended[2]
    assert sent(ring.backward) == LAYERS * ((2 - 1) * attended[2] + 2 * gradients)


def test_what_needs_a_whole_sequence_is_named() -> None:
    report = analyze(DECODER)
    graph, length = report.program, str(report.inputs[0].type.shape[1])
    assert graph is not None
    assert mixed(graph, length) == ""
    (x,) = [node.outputs[0] for node in graph.nodes if node.operator.name == "embedding"]
    node = Node("sums", "aten.cumsum.default", (Ref(x), 1), (), ("sums",))
    types = {**graph.types, "sums": graph.types[x]}
    summed = replace(graph, nodes=(*graph.nodes, node), types=types)
    assert mixed(summed, length) == "sums: aten.cumsum.default needs the whole sequence"


def test_few_long_samples_are_shared() -> None:
    found = plan(DECODER, devices=8, device="h100", batch_tokens=2 * 16384, dims={"ids[1]": 16384})
    assert found.samples == 2
    assert {step.layout.context for step in found.steps} > {1}
    assert all(step.layout.data * step.layout.context <= 8 and step.layout.data <= 2 for step in found.steps)


@pytest.mark.parametrize(("chunks", "bars"), [(1, 8 * 2 * 4), (2, 8 * 2 * 4 * 2)])
def test_a_picture_has_a_bar_for_each_micro_batch_and_stage(chunks: int, bars: int) -> None:
    layout = Layout(1, pipeline=4, virtual=chunks, schedule="interleaved" if chunks > 1 else "1f1b")
    step = costs(layout, batches=8).step()
    assert schedule(step).count("<rect ") == bars


def test_the_best_comes_first_and_others_say_why() -> None:
    found = plan(DECODER, devices=4, device="h100", batch_tokens=4 * 4 * LENGTH, dims={"ids[1]": LENGTH})
    assert found.samples == 16
    assert [step.seconds for step in found.steps] == sorted(step.seconds for step in found.steps)
    assert found.why(found.steps[0]) == ""
    assert all(found.why(step).startswith("slower by") for step in found.steps[1:])
    meshes = [step.layout for step in found.steps] + [one.layout for one in found.refused]
    assert len({(one.data, one.tensor, one.pipeline) for one in meshes}) == len(meshes) == 6
    assert {one.data * one.tensor * one.pipeline for one in meshes} == {4}


def test_parts_of_a_step_add_up() -> None:
    for step in plan(DECODER, devices=8, device="h100").steps:
        parts = step.compute + step.again + step.exposed + step.bubble + step.update
        assert parts == pytest.approx(step.seconds)


def test_the_optimizer_waits_on_the_host() -> None:
    """8 layers of 600 parameters: 8 bytes each come over the bus for the update, 86 % of 64 GB/s, and go back."""
    here, there = (costs(Layout(1, sharding="none", hosted=hosted)).step() for hosted in (False, True))
    assert there.costs.state() == here.memory.optimizer == 8 * 8 * 600
    assert there.memory == replace(here.memory, optimizer=0)
    assert there.update - here.update == pytest.approx(2 * 8 * 8 * 600 / (0.86 * 64e9))
    assert there.seconds - there.update == pytest.approx(here.seconds - here.update)


def test_what_fits_without_its_optimizer_is_offered(tmp_path: Path) -> None:
    profile = json.loads((Path(__file__).parents[2] / "graphflops/devices/h100.json").read_text())

    def planned(room: float, **changes: object) -> Any:
        size = int(room / (1 - SPARE)) + (complete(device("h100")).context_bytes or 0) + 1
        own = {**profile, "name": "small", "aliases": [], "memory_bytes": size, **changes}
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.json"
        path.write_text(json.dumps(own))
        return plan(DECODER, devices=1, device=str(path), sharding=("none",), recompute=("none",))

    (alone,) = planned(10**9).steps
    assert (alone.bound, "longest part" in planned(10**9).summary()) == ("compute", True)
    assert " kernels" in planned(10**9).summary()  # most of their time is no arithmetic
    (one,) = planned(alone.memory.total - alone.memory.optimizer // 2).refused
    assert one.step.memory == alone.memory
    assert one.hosted.memory.total == alone.memory.total - alone.memory.optimizer
    assert one.hosted.seconds > alone.seconds
    (less,) = planned(alone.memory.total - alone.memory.optimizer - 2).refused
    assert less.hosted is None
    links = [profile["links"][0]]  # without the bus
    (unknown,) = planned(alone.memory.total - alone.memory.optimizer // 2, links=links).refused
    assert unknown.hosted is None
    found = planned(alone.memory.total - alone.memory.optimizer // 2)
    told = json.loads(render(found, "json"))["refused"][0]["hosted"]
    assert (told["seconds"], told["host_bytes"]) == (one.hosted.seconds, alone.memory.optimizer)
    assert found.summary().count("optimizer on the host") == 2  # above the tables, and in its row


def test_what_does_not_fit_says_how_much_it_needs(tmp_path: Path) -> None:
    profile = json.loads((Path(__file__).parents[2] / "graphflops/devices/h100.json").read_text())
    small = tmp_path / "small.json"
    small.write_text(json.dumps({**profile, "name": "small", "aliases": [], "memory_bytes": 700_000_000}))
    result = run(DECODER, "--devices", 2, "--device", small, "--dim", "ids[1]=4096")
    assert result.exit_code == 0, result.output
    assert "does not fit: " in result.output


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "html"])
def test_every_format_names_the_first_layout(form: str) -> None:
    result = run(DECODER, "--devices", 2, "--device", "h100", "--format", form)
    assert result.exit_code == 0, result.output
    assert "tp=2" in result.output or '"tensor":2' in result.output or "tensor" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--devices", 0), "--devices 0: give 1 to"),
        (("--devices", 4, "--batch-tokens", 3), "less than one sample of 16 tokens"),
        (("--devices", 4, "--network", "fast"), "--network"),
    ],
)
def test_a_wrong_request_is_one_line(arguments: tuple[Any, ...], said: str) -> None:
    result = run(DECODER, "--device", "h100", *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert len(result.output.strip().splitlines()) <= 4


def test_a_program_without_layers_has_no_pipeline() -> None:
    found = plan(SAMPLES / "convnet.pt2", devices=2, device="h100", loss="sum")
    assert {one.reason for one in found.refused if one.layout.pipeline == 2} == {"no repeated layers"}


def test_a_program_that_returns_its_loss_is_trained_by_it() -> None:
    """Results after it have no gradient, and no cross-entropy is added."""

    class Classes(torch.nn.Module):
        def __init__(self, results: int) -> None:
            super().__init__()
            self.layer, self.results = torch.nn.Linear(WIDTH, WORDS), results

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            scores = self.layer(x)
            return (torch.nn.functional.cross_entropy(scores, labels), scores)[: self.results]

    given = torch.randn(LENGTH, WIDTH), torch.zeros(LENGTH).long()
    one, two = (torch.export.export(Classes(results), given) for results in (1, 2))
    first = plan(one, devices=1, device="h100").steps[0]
    assert first == plan(one, devices=1, device="h100", loss="sum").steps[0]
    assert first.compute == plan(two, devices=1, device="h100").steps[0].compute
    assert first.compute < plan(two, devices=1, device="h100", loss="sum").steps[0].compute


def test_a_fixed_batch_is_the_micro_batch_of_each_device() -> None:
    program = torch.export.export(torch.nn.Linear(WIDTH, WORDS), (torch.randn(6, WIDTH),))
    found = plan(program, devices=2, device="h100")
    assert (found.samples, [one.reason for one in found.refused]) == (12, ["no repeated layers"])
    less = plan(program, devices=2, device="h100", batch_tokens=6).refused
    assert "a copy gets 3 samples: no multiple of the program's fixed batch of 6" in [
        one.reason for one in less
    ]


@pytest.mark.parametrize(("precision", "said"), [("bf16", "bfloat16"), ("fp32", "float32"), (None, "as in")])
def test_the_precision_of_products_is_said(precision: str | None, said: str) -> None:
    found = plan(SAMPLES / "convnet.pt2", devices=1, device="h100", loss="sum", precision=precision)
    assert f"products {said}" in found.notes[-1]


def test_a_saved_report_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    analyze(DECODER).save(saved)
    with pytest.raises(ModelError, match="a saved report cannot be split"):
        plan(saved, devices=2, device="h100")


@pytest.mark.parametrize(
    "command", [("plan", "--devices", 2), ("plan", "--devices", 2, "--serve"), ("serve",)]
)
def test_a_recorded_step_is_refused_in_one_line(command: tuple[Any, ...], tmp_path: Path) -> None:
    name, *options = map(str, command)
    file = str(written(tmp_path, STEP))
    result = CliRunner().invoke(main, [name, file, "--device", "h100", *options])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "a recorded step is laid out already: give the program of one device" in line


def test_experts_are_split_by_columns_and_rows() -> None:
    def grouped(name: str, rows: str, weight: str, out: str) -> Node:
        return Node(name, "aten._grouped_mm.default", (Ref(rows), Ref(weight), Ref("ends")), (), (out,))

    def swapped(name: str, weight: str) -> Node:
        return Node(name, "aten.transpose.int", (Ref(weight), -2, -1), (), (name,))

    shapes = {"x": (32, 16), "up": (4, 64, 16), "down": (4, 16, 64), "h": (32, 64), "y": (32, 16)}
    shapes |= {"up_t": (4, 16, 64), "down_t": (4, 64, 16)}
    graph = Graph(
        (
            swapped("up_t", "up"),
            grouped("a", "x", "up_t", "h"),
            swapped("down_t", "down"),
            grouped("b", "h", "down_t", "y"),
        ),
        {name: TensorType(shape, BFLOAT16) for name, shape in shapes.items()},
        (
            Input("x", "user"),
            Input("ends", "user"),
            Input("up", "parameter", "up"),
            Input("down", "parameter", "down"),
        ),
        (Output(Ref("y")),),
    )
    found = split(graph, 4)
    assert {name: part.axis for name, part in found.parts.items()} == {
        "up_t": 2, "up": 1, "h": 1, "down_t": 1, "down": 2,
    }  # fmt: skip
    assert [(one.call, one.side) for one in found.exchanged] == [("a", "in"), ("b", "out")]


def test_files_that_name_every_argument_are_laid_out() -> None:
    """Torch before 2.7 wrote no argument by position."""
    file = Path(__file__).parents[1] / "data" / "pt2" / "lm_dynamic-torch2.6.0.pt2"
    layouts = {
        (step.layout.tensor, step.layout.pipeline) for step in plan(file, devices=2, device="h100").steps
    }
    assert layouts == {(1, 1), (2, 1), (1, 2)}
