"""Plans of programs of several calls: what products, convolutions and losses of one program share and add."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest
import torch
from torch import nn

import graphflops
from graphflops import Training
from graphflops.analysis import as_graph
from graphflops.devices import HOPPER
from graphflops.inductor import library_calls
from graphflops.inductor.library_calls import convolution_of, is_turned
from graphflops.inductor.lowering import Extern, Loop, Op
from graphflops.inductor.plan import Plan, Plans
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.inductor.one_call import kept_of, kind_of, plan_of
from tests.one_call import g, program_of
from tests.support import t


def planned(module: nn.Module, *args: torch.Tensor, training: bool) -> Plan:
    graph = as_graph(graphflops.capture(module, args))
    step = Training(optimizer="none") if training else None
    program = price(graph, bind(graph, {}, {}), facts_of, training=step)
    return Plans(program, HOPPER).plan(program.main, training=training)


class Tied(nn.Module):
    """A table of words that the head shares, or does not."""

    def __init__(self, shares: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(128, 64), nn.Linear(64, 128, bias=False)
        if shares:
            self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x))


@pytest.mark.parametrize("shares", [False, True])
def test_the_product_of_a_shared_weight_adds_the_other_gradient(shares: bool) -> None:
    plan = planned(Tied(shares), torch.zeros(4, 16, dtype=torch.int64), training=True)
    assert plan.backward is not None
    members = [op for kernel in plan.backward.kernels for op in kernel.members]
    products = [op for op in members if isinstance(op, Extern)]
    assert len(products) == 2  # gradients of the rows and of the weight
    assert sorted(len(op.reads) for op in products) == [2, 3 if shares else 2]


class Columns(nn.Module):
    """Two linear layers of a transposed operand, which each has to have in rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: Any) -> Any:
        y = x.transpose(1, 2)
        return self.first(y) + self.second(y)


@pytest.mark.parametrize(("training", "copies"), [(False, 2), (True, 1)])
def test_the_partitioner_copies_an_operand_once(training: bool, copies: int) -> None:
    plan = planned(Columns(), torch.zeros(4, 32, 24), training=training)
    moving = [op for op in plan.joint.ops if isinstance(op, Loop) and op.moved]
    assert len([op for op in moving if op.reads == ("x",) and not op.is_gradient]) == copies


class Image(nn.Module):
    """A convolution of an image, or of what a function makes of it."""

    def __init__(self, size: int, before: nn.Module) -> None:
        super().__init__()
        self.before, self.conv = before, nn.Conv2d(96, 128, size, bias=False)

    def forward(self, x: Any) -> Any:
        return self.conv(self.before(x))


@pytest.mark.parametrize(
    ("size", "before", "are_last", "copied"),
    [
        (3, nn.Identity(), False, [2 * 96 * 16 * 16, 128 * 96 * 3 * 3]),
        (1, nn.Identity(), False, [2 * 96 * 16 * 16]),  # a weight of one pixel lies either way
        (3, nn.Identity(), True, []),
        (3, nn.ReLU(), False, [128 * 96 * 3 * 3]),  # what is computed is written as it has to lie
    ],
)
def test_what_lies_with_its_channels_last_is_not_copied(
    size: int, before: nn.Module, are_last: bool, copied: list[int]
) -> None:
    order = torch.channels_last if are_last else torch.contiguous_format
    module, image = Image(size, before), torch.zeros(2, 96, 16, 16)
    plan = planned(module.to(memory_format=order), image.to(memory_format=order), training=False)
    ops = plan.joint.ops[len([*before.children()]) :]
    made_by = [op for op in ops if type(op) is Loop and op.outputs[0] not in plan.execution.values]
    assert [op.elements for op in made_by] == copied


def test_weights_of_one_channel_are_not_copied() -> None:
    """A depthwise convolution beside one that has images lie with their channels last."""
    image, full, depthwise = 2 * 96 * 16 * 16, 96 * 96 * 3 * 3, nn.Conv2d(96, 96, 3, bias=False, groups=96)
    module = nn.Sequential(nn.Conv2d(96, 96, 3, bias=False), depthwise)
    plan = planned(module, torch.zeros(2, 96, 16, 16), training=False)
    assert [op.elements for op in plan.joint.ops if type(op) is Loop] == [image, full]


@pytest.mark.parametrize(
    ("channels", "is_copied", "expected"),
    [(1, False, False), (1, True, True), (2, False, True), (2, True, True)],
)
def test_an_image_of_one_channel_is_turned_by_its_weight(
    channels: int, is_copied: bool, expected: bool
) -> None:
    plan = plan_of("aten.conv2d.default", t(2, channels, 16, 16), t(96, channels, 3, 3))
    (call,) = plan.execution.calls
    assert is_turned(convolution_of(call, plan.execution.values), is_copied=is_copied) is expected


@pytest.mark.parametrize(
    ("is_last", "image", "workspace"),
    [
        (False, (2, 1, 16, 16), 100),
        (
            True,
            (2, 1, 16, 16),
            100 + 11,
        ),  # the image counts as turned, but the kernel is the one of eager execution
        (False, (2, 2, 16, 16), 100),
        (True, (2, 12, 16, 16), 7),  # its own
        (True, (2, 1, 16), 100),  # a sequence lies as it does
    ],
)
def test_workspace_of_the_gradients_of_a_convolution(
    monkeypatch: pytest.MonkeyPatch, is_last: bool, image: tuple[int, ...], workspace: int
) -> None:
    """7 bytes that compiled convolutions take in any case, or the 100 of eager execution, with the 11 of a turned gradient.

    What cuDNN takes with channels last is 0 in float32 with filters that are aligned.
    """
    monkeypatch.setattr(library_calls.kernels, "backward_bytes", lambda _call, _layouts: 100)
    weight = (96, image[1], *(3,) * (len(image) - 2))
    main = program_of(f"aten.conv{len(image) - 2}d.default", g(*image), g(*weight)).main
    added = []
    low = Space(
        joint=Space(channels_last=is_last, platform=HOPPER),
        values=main.values,
        execution=Space(layouts=None),
        elements=len,
        nbytes=lambda _: 11,
        add_back=lambda *_, **more: added.append(more["workspace"]),
    )
    gradient = Space(estimate=Space(workspace=7))
    fresh, operands = {0: "gx", 1: "gw"}, ("x0", "x1")
    of = Space(call=main.calls[0], operands=operands, incoming=("g",), fresh=fresh, gradient=gradient)
    library_calls.convolution_gradient(low, of)  # type: ignore[arg-type]
    assert added == [workspace]


LABELS = t(10, dtype="int64")


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("cross_entropy_loss", (t(10, 8), LABELS), [(80, 10), (10, 1)]),
        ("cross_entropy_loss", (t(10, 8), t(10, 8)), [(80, 10), (80, 1)]),  # shares of each class
        ("nll_loss", (t(10, 8), LABELS), [(10, 1)]),
        ("mse_loss", (t(10, 8), t(10, 8)), [(80, 1)]),
    ],
)
def test_what_losses_reduce(name: str, operands: Any, expected: Any) -> None:
    ops: list[Op] = plan_of(f"aten.{name}.default", *operands).joint.ops
    assert [(op.elements, kept_of(op)) for op in ops] == expected


@pytest.mark.parametrize(
    ("shape", "size", "kind"),
    [
        ((2, 8, 4, 4), (1, 1), "reduction"),
        ((2, 8, 4, 4), (2, 1), "pointwise"),
        ((2, 8, 4, 4), (1, 2), "pointwise"),
        ((2, 8, 16), (1,), "reduction"),
        ((2, 8, 16), (2,), "pointwise"),
        ((8, 16), (1,), "reduction"),  # channels and positions of one sequence
        ((8, 16), (2,), "pointwise"),
    ],
)
def test_a_pooling_that_leaves_one_position_is_a_mean(
    shape: tuple[int, ...], size: tuple[int, ...], kind: str
) -> None:
    (op,) = plan_of(f"aten.adaptive_avg_pool{len(size)}d.default", t(*shape), size).joint.ops
    assert kind_of(op) == kind


def test_a_row_of_ones_and_zeros_is_computed_where_it_is_read() -> None:
    (op,) = plan_of("aten.one_hot.default", t(10, dtype="int64"), 8).joint.ops
    assert (kind_of(op), op.elements, op.recomputable) == ("pointwise", 80, True)


@pytest.mark.parametrize(("padding", "padded"), [(1, [4 * 2 * 8 * 8 * 8]), (0, [])])
def test_windows_are_taken_again_from_a_padded_image(padding: int, padded: list[int]) -> None:
    """Images of 6 x 6 with a border of one are 8 x 8."""
    given = t(2, 8, 6, 6), (3, 3), (1, 1), (padding, padding), (1, 1)
    joint = plan_of("aten.im2col.default", *given).joint
    *images, windows = joint.ops
    assert [(joint.bytes(image.outputs[0]), image.recomputable) for image in images] == [
        (size, False) for size in padded
    ]
    assert windows.recomputable


@pytest.mark.parametrize(
    ("op", "dtype", "converted"),
    [
        ("embedding.default", "float32", 0),
        ("embedding.default", "bfloat16", 1),
        ("index.Tensor", "bfloat16", 0),
    ],
)
def test_sums_into_a_table_are_part_of_what_computes_them(op: str, dtype: str, converted: int) -> None:
    """Nothing that reads the table is: the sums are complete when the kernel is over. An embedding's are in float32."""
    indices = t(4, 5, dtype="int64")
    plan = plan_of(f"aten.{op}", g(100, 64, dtype=dtype), (indices,) if op == "index.Tensor" else indices)
    assert plan.backward is not None
    kernels = [[op.role == "adding" for op in kernel.members] for kernel in plan.backward.kernels]
    assert kernels == [[False], [True], *[[False]] * converted]


class Halves(nn.Module):
    """What two tensors make, read by its two halves: by slices of it, or by a split."""

    def __init__(self, slices: bool) -> None:
        super().__init__()
        self.slices = slices

    def forward(self, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        x = a * b + c * d + e
        first, second = (x[:, :8], x[:, 8:]) if self.slices else x.split(8, 1)
        return torch.cat([second, first], 1)


@pytest.mark.parametrize("slices", [False, True])
def test_what_two_slices_read_is_stored_where_it_is_computed_from_five(slices: bool) -> None:
    operands = [torch.zeros(4, 16) for _ in range(5)]
    plan = planned(Halves(slices), *operands, training=False)
    computed = [op.node for kernel in plan.forward.kernels for each in kernel.members for op in each.computes]
    assert ("add_1" in computed) is not slices


class Cached(nn.Module):
    """A query of keys into which those of a new token are written."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, keys: Any, new: Any, query: Any, place: Any) -> Any:
        if self.way == "slice":
            keys[:, :, -1:] = new
        elif self.way == "index_copy":
            keys.index_copy_(2, place, new)
        else:
            keys[:, :, place] = new
        return query @ keys.transpose(-1, -2)


@pytest.mark.parametrize("way", ["slice", "index_copy", "index"])
def test_a_part_of_what_is_given_is_written_where_it_lies(way: str) -> None:
    """Beside the keys only the 2 x 4 x 1 x 256 scores in float32 have memory."""
    tokens = torch.zeros(2, 4, 1, 32)
    given = torch.zeros(2, 4, 256, 32), tokens, tokens, torch.tensor([3])
    report = graphflops.analyze(graphflops.capture(Cached(way), given), device="h100", execution="compiled")
    inputs = sum(int(x.type.nbytes) for x in report.inputs)
    assert int(report.totals.peak_bytes) - inputs == 4 * 2 * 4 * 256


def test_what_is_added_by_index_is_computed_by_the_kernel_that_adds_it() -> None:
    plan = plan_of("aten.index_add.default", g(100, 64), 0, t(20, dtype="int64"), g(20, 64))
    assert [op.role == "adding" for op in plan.joint.ops if not op.is_gradient] == [False, True]
    assert [(kind_of(op), op.elements) for op in plan.joint.ops if op.is_gradient] == [("pointwise", 20 * 64)]
    whole = plan_of(
        "aten.index_add.default", *[t(9, 4, dtype="int64"), 0, t(2, dtype="int64"), t(2, 4, dtype="int64")]
    )
    assert [kind_of(op) for op in whole.joint.ops] == [
        "extern"
    ]  # Triton adds no integers of 64 bits in memory


def test_gradients_of_bags_are_added_by_aten() -> None:
    indices, offsets = t(6, dtype="int64"), t(3, dtype="int64")
    plan = plan_of("aten.embedding_bag.default", g(10, 8), indices, offsets, outputs=4)
    assert [kind_of(op) for op in plan.joint.ops if op.is_gradient] == ["extern"]
