"""What recorded steps send, against closed forms, forward and backward: layers of an 8B decoder and of a mixture of experts.

The decoder is that of docs/recorded.md at the sizes of Llama 3 8B, with two of its 32 layers.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from graphflops import analyze
from tests.capturing import steps
from tests.links import closed_forms as layouts

PAGE = Path(__file__).parents[2] / "docs" / "recorded.md"
WIDTH, FORWARD, WORDS, LAYERS, LENGTH, KEYS = 4096, 14336, 128_256, 2, 1024, 2 * 8 * 128
SHORT = 2  # bytes of bfloat16
LAYER = 2 * WIDTH * WIDTH + 2 * WIDTH * KEYS // 2 + 3 * WIDTH * FORWARD + 2 * WIDTH
OUTER = 2 * WORDS * WIDTH + WIDTH
HIDDEN = LENGTH * WIDTH * SHORT  # bytes of the tokens of a device
N, EXPERTS = 4, 8


def page() -> SimpleNamespace:
    """What the first example of the page defines."""
    found: dict[str, Any] = {}
    exec(PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0], found)
    return SimpleNamespace(**found)


def sent(factory: Any, within: str = "layers.", **mesh: int) -> tuple[int, int]:
    """Bytes that a step sends in modules whose path begins so, forward and backward."""
    exchanges = analyze(steps.recorded(factory, mesh)).exchanges
    assert {one.axis for one in exchanges} == mesh.keys()
    return tuple(  # type: ignore[return-value]
        sum(int(one.bytes) for one in exchanges if one.phase == phase and one.module.startswith(within))
        for phase in ("forward", "backward")
    )


def closed(exchanged: layouts.Exchanged) -> tuple[int, int]:
    return layouts.sent(exchanged.forward), layouts.sent(exchanged.backward)


def decoder() -> Any:
    return page().Decoder(WIDTH, FORWARD, LAYERS, WORDS).bfloat16()


def trained(model: Any) -> dict[str, Any]:
    return {"module": model, "inputs": torch.zeros(1, LENGTH, dtype=torch.long), "loss": torch.sum}


def data_parallel(mesh: Any) -> dict[str, Any]:
    return trained(torch.nn.parallel.DistributedDataParallel(decoder(), process_group=mesh.get_group("dp")))


def split(mesh: Any, *, along_sequence: bool) -> dict[str, Any]:
    """Tensor parallel as Megatron does it: one sum, or one gather and one scatter, around attention and feed-forward."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if along_sequence else Replicate()
    whole = PrepareModuleOutput(
        output_layouts=between, desired_output_layouts=Replicate(), use_local_output=False
    )
    part = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=between)
    products = {
        **dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel()),
        **dict.fromkeys(("o", "down"), RowwiseParallel(output_layouts=between)),
    }
    model = parallelize_module(decoder(), mesh["tp"], {"embedding": part})
    for layer in model.layers:
        for norm in ("before", "between"):
            if along_sequence:
                parallelize_module(layer, mesh["tp"], {norm: SequenceParallel(use_local_output=False)})
            parallelize_module(layer, mesh["tp"], {norm: whole})
        parallelize_module(layer, mesh["tp"], products)
    return trained(model)


def tensor_parallel(mesh: Any) -> dict[str, Any]:
    return split(mesh, along_sequence=False)


def sequence_parallel(mesh: Any) -> dict[str, Any]:
    return split(mesh, along_sequence=True)


class Experts(torch.nn.Module):
    """One of eight experts on each device; each token goes to two, as many to each device, and back."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.up = torch.nn.Linear(WIDTH, FORWARD, bias=False)
        self.down = torch.nn.Linear(FORWARD, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        there = all_to_all_single_autograd(torch.cat([x, x]), None, None, self.group)
        y = self.down(torch.nn.functional.silu(self.up(there)))
        back = all_to_all_single_autograd(y, None, None, self.group)
        return x + back[:LENGTH] + back[LENGTH:]


def expert_parallel(mesh: Any) -> dict[str, Any]:
    model = torch.nn.Sequential(*(Experts(mesh.get_group("ep")) for _ in range(LAYERS))).bfloat16()
    tokens = torch.zeros(LENGTH, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    return {"module": model, "inputs": tokens, "loss": torch.sum}


def context_parallel(mesh: Any) -> Any:
    from torch.distributed.tensor.experimental import context_parallel as split_context

    model, ids = decoder(), torch.zeros(1, LENGTH * N, dtype=torch.long)

    def step() -> None:
        with split_context(mesh["cp"], buffers=(ids,), buffer_seq_dims=(1,)):
            model(ids).sum().backward()

    return step


def test_gradients_are_summed() -> None:
    gradients = (LAYERS * LAYER + OUTER) * SHORT
    assert sent(data_parallel, "", dp=N) == closed(layouts.data_parallel(gradients, N))
    assert closed(layouts.data_parallel(gradients, N)) == (0, 2 * (N - 1) * gradients // N)


def test_parameters_in_shards() -> None:
    def example(mesh: Any) -> Any:
        return page().example(mesh, WIDTH, FORWARD, LAYERS, WORDS, LENGTH)

    layers, outer = LAYERS * LAYER, OUTER
    inner = closed(layouts.fully_sharded(SHORT * layers, N, gradients=4 * layers))
    root = closed(layouts.fully_sharded(SHORT * outer, N, gathers_again=False, gradients=4 * outer))
    assert sent(example, dp=N) == inner == ((N - 1) * 2 * layers // N, (N - 1) * (2 + 4) * layers // N)
    assert sent(example, "", dp=N) == tuple(map(sum, zip(inner, root, strict=True)))


@pytest.mark.parametrize("factory", [tensor_parallel, sequence_parallel])
def test_products_that_are_split(factory: Any) -> None:
    form = layouts.tensor_parallel if factory is tensor_parallel else layouts.sequence_parallel
    assert (
        sent(factory, tp=N)
        == closed(form(HIDDEN, LAYERS, N))
        == (2 * LAYERS * 2 * (N - 1) * HIDDEN // N,) * 2
    )


def test_tokens_go_to_their_experts() -> None:
    each = 2 * LAYERS * (EXPERTS - 1) * 2 * HIDDEN // EXPERTS
    assert sent(expert_parallel, "", ep=EXPERTS) == (each, each)
    assert closed(layouts.expert_parallel(HIDDEN, 2, LAYERS, EXPERTS)) == (each, each)


@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
def test_keys_and_values_are_gathered(rotation: str) -> None:
    """As torch does it: gathered again for the backward, where gradients in float32 go once around the ring.

    In a ring each of N devices passes on its block and those that come to it, N - 1 in all.
    """
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    keys_values = LENGTH * KEYS * SHORT
    ahead, _ = closed(layouts.context_parallel(keys_values, LAYERS, N))
    assert ahead == LAYERS * (N - 1) * keys_values
    assert closed(layouts.ring_attention(keys_values, LAYERS, N)) == (
        ahead,
        ahead + LAYERS * N * 2 * keys_values,
    )
    set_rotate_method(rotation)
    try:
        assert sent(context_parallel, cp=N) == (ahead, ahead + LAYERS * N * 2 * keys_values)
    finally:
        set_rotate_method("allgather")
