"""How tensors lie: predicted for chains of layout operators, against PyTorch's own tensors."""

from __future__ import annotations

import random

import pytest
import torch

from graphflops.devices import HOPPER
from graphflops.dims import symbol
from graphflops.execution.layouts import Layouts
from graphflops.execution.strides import regrouped
from graphflops.loading import analyze
from graphflops.passes.memory import CallByCall


class Chain(torch.nn.Module):
    """Layout operators one after another, chosen at random; the results of all are returned."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        choose = random.Random(self.seed)
        found = []
        for _ in range(6):
            x = step(choose, x)
            found.append(x)
        return found


def step(choose: random.Random, x: torch.Tensor) -> torch.Tensor:
    """One layout operator that fits the tensor."""
    axes = list(range(x.dim()))
    way = choose.randrange(8)
    if way == 0:
        return x.transpose(*choose.sample(axes, 2)) if len(axes) > 1 else x.unsqueeze(0)
    if way == 1:
        return x.permute(choose.sample(axes, len(axes)))
    if way == 2 and x.shape[0] > 1:
        return x[: x.shape[0] - 1]
    if way == 3 and len(axes) > 2:
        return x.select(choose.choice(axes), 0)
    if way == 4 and len(axes) > 1:
        return x.flatten(len(axes) - 2)
    if way == 5:
        return x.unsqueeze(choose.choice(axes))
    if way == 6:
        return x.contiguous()
    return x * 2


@pytest.mark.parametrize("seed", range(40))
def test_layouts_are_those_of_tensors(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 3, 2, 6)
    module = Chain(seed)
    found: dict[str, Layouts] = {}
    remember_layouts(monkeypatch, found)
    program = torch.export.export(module, (x,))
    analyze(program)
    layouts = found["main"]
    for tensor, spec in zip(module(x), program.graph_signature.output_specs, strict=True):
        strides = layouts.of(spec.arg.name)
        assert all(
            size == 1 or own == real
            for size, own, real in zip(tensor.shape, strides, tensor.stride(), strict=True)
        ), (spec.arg.name, strides, tensor.stride())


def remember_layouts(monkeypatch: pytest.MonkeyPatch, found: dict[str, Layouts]) -> None:
    """Keep the layouts of the graph that is analyzed next."""
    owners = CallByCall.owners

    def spied(self: CallByCall) -> dict[str, str]:
        found["main"] = Layouts(self.calls, self.values, HOPPER)
        return owners(self)

    monkeypatch.setattr(CallByCall, "owners", spied)


class AttentionTail(torch.nn.Module):
    """What follows an attention: its result is laid out as its query, so that `reshape` after `transpose` copies nothing."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        query = q.view(2, 16, 4, 8).transpose(1, 2) if self.packed else q.view(2, 4, 16, 8)
        out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        return out.transpose(1, 2).reshape(2, 16, 32)


@pytest.mark.parametrize(("packed", "copies"), [(True, 0), (False, 1)])
def test_the_result_of_an_attention_lies_as_its_query(packed: bool, copies: int) -> None:
    q = torch.randn(2, 16, 32, dtype=torch.bfloat16)
    program = torch.export.export(AttentionTail(packed), (q,))
    peaks = [analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")]
    assert peaks[1] - peaks[0] == copies * q.nbytes


def test_in_single_precision_the_result_has_its_heads_inside_of_rows() -> None:
    """Float32 runs as efficient attention, whose result does not lie as its query."""
    q = torch.randn(2, 16, 32)
    program = torch.export.export(AttentionTail(packed=False), (q,))
    peaks = [analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")]
    assert peaks[1] == peaks[0]


def test_an_open_axis_is_split_and_merged_by_the_sizes_that_go_into_it() -> None:
    batch = symbol("s")
    by_heads, heads = (12 * batch, 197, 64), (batch, 12, 197, 64)
    assert regrouped(by_heads, (64, 768 * batch, 1), heads) == (768, 64, 768 * batch, 1)
    assert regrouped(heads, (768, 64, 768 * batch, 1), by_heads) == (64, 768 * batch, 1)
    assert (
        regrouped((batch, 12, 64), (12 * 64 * 5, 64, 1), (12 * batch, 64)) is None
    )  # gaps between batch entries


def test_a_tensor_without_elements_is_regrouped_without_a_copy() -> None:
    batch = symbol("batch")
    assert regrouped((12, 0, batch), (1, batch, 12), (0, batch)) == (batch, 1)


def test_a_conversion_lies_as_its_operand_not_as_the_tensor_whose_type_it_takes() -> None:
    """`type_as` reads only the element type of its second operand, here of more axes than the result has."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
            return x.t().type_as(like).reshape(-1)

    x, like = torch.randn(64, 32), torch.randn(1, 2, 3, dtype=torch.float64)
    program = torch.export.export(Net(), (x, like))
    inputs, converted = x.nbytes + like.nbytes, 64 * 32 * 8
    assert analyze(program, execution="eager").totals.peak_bytes == inputs + 2 * converted
