"""Closed forms of what devices send, against exported programs with collectives, forward and backward.

The shapes are those of a layer of an 8B decoder (width 4096, feed-forward 14336, 8 of 32 heads of keys and values) and of a
mixture of experts (width 4096, 2 of 8 experts), in bfloat16.
"""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.training import Training
from tests.links import closed_forms as layouts
from tests.process_group import first_of

WIDTH, FORWARD, KEYS, TOKENS, LAYERS, N = 4096, 14336, 2 * 8 * 128, 1024, 2, 4
HIDDEN = TOKENS * WIDTH * 2  # bytes


def sent(build: Any, training: Training | None = None) -> tuple[int, int]:
    """Bytes that the program of a layer's function sends, forward and backward."""
    with first_of(N) as (torch, exchange):

        class Layers(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ModuleList(build(torch, exchange) for _ in range(LAYERS))

            def forward(self, x: Any) -> Any:
                for layer in self.layers:
                    x = layer(x)
                return x

        with torch.device("meta"):
            model = Layers().to(torch.bfloat16)
            x = torch.empty(TOKENS // N if build in SHARDED else TOKENS, WIDTH, dtype=torch.bfloat16)
        exported = torch.export.export(model, (x,))
    dims = {"group_0": N} if build is tensor else {}  # sums do not tell how many devices take part
    report = analyze(exported, dims=dims, training=training or Training(optimizer="none", grad_inputs=("x",)))
    assert report.backward is not None
    return report.value(report.totals.cost.link_bytes), report.value(report.backward.cost.link_bytes)


def tensor(torch: Any, exchange: Any) -> Any:
    """Attention and feed-forward by columns, then by rows, whose partial sums are added up."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Linear(WIDTH, WIDTH // N, bias=False)
            self.out = torch.nn.Linear(WIDTH // N, WIDTH, bias=False)
            self.up = torch.nn.Linear(WIDTH, FORWARD // N, bias=False)
            self.down = torch.nn.Linear(FORWARD // N, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            x = x + exchange.all_reduce(self.out(self.value(x)), "sum", "0")
            return x + exchange.all_reduce(self.down(self.up(x).relu()), "sum", "0")

    return Layer()


def sequence(torch: Any, exchange: Any) -> Any:
    """The same between hidden states in shards by token."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Linear(WIDTH, WIDTH // N, bias=False)
            self.out = torch.nn.Linear(WIDTH // N, WIDTH, bias=False)
            self.up = torch.nn.Linear(WIDTH, FORWARD // N, bias=False)
            self.down = torch.nn.Linear(FORWARD // N, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.out(self.value(exchange.all_gather_tensor(x, 0, "0")))
            x = x + exchange.reduce_scatter_tensor(y, "sum", 0, "0")
            y = self.down(self.up(exchange.all_gather_tensor(x, 0, "0")).relu())
            return x + exchange.reduce_scatter_tensor(y, "sum", 0, "0")

    return Layer()


def shards(torch: Any, exchange: Any) -> Any:
    """Parameters in shards, gathered where they are used."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Parameter(torch.empty(FORWARD // N, WIDTH))
            self.down = torch.nn.Parameter(torch.empty(WIDTH // N, FORWARD))

        def forward(self, x: Any) -> Any:
            linear = torch.nn.functional.linear
            y = linear(x, exchange.all_gather_tensor(self.up, 0, "0")).relu()
            return x + linear(y, exchange.all_gather_tensor(self.down, 0, "0"))

    return Layer()


def experts(torch: Any, exchange: Any) -> Any:
    """Each token goes to two experts, as many to each device, and back."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(WIDTH, FORWARD, bias=False)
            self.down = torch.nn.Linear(FORWARD, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            splits = [2 * TOKENS // N] * N
            there = exchange.all_to_all_single(torch.cat([x, x]), splits, splits, "0")
            back = exchange.all_to_all_single(self.down(self.up(there).relu()), splits, splits, "0")
            return x + back[:TOKENS] + back[TOKENS:]

    return Layer()


def context(torch: Any, exchange: Any) -> Any:
    """Tokens in shards; keys and values of all are gathered."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.key_value = torch.nn.Linear(WIDTH, KEYS, bias=False)

        def forward(self, x: Any) -> Any:
            both = exchange.all_gather_tensor(self.key_value(x), 0, "0").view(-1, 2, 8, 128)
            key, value = (part.repeat_interleave(4, 1).transpose(0, 1)[None] for part in both.unbind(1))
            query = self.query(x).view(-1, 32, 128).transpose(0, 1)[None]
            found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            return x + found[0].transpose(0, 1).reshape(-1, WIDTH)

    return Layer()


SHARDED = {sequence, context}
PARAMETERS = LAYERS * 2 * FORWARD * WIDTH * 2  # bytes of the weights of `shards`


@pytest.mark.parametrize(
    ("build", "closed", "products"),
    [
        (tensor, layouts.tensor_parallel(HIDDEN, LAYERS, N), (2 * LAYERS * 2 * 3 * HIDDEN // 4,) * 2),
        (sequence, layouts.sequence_parallel(HIDDEN, LAYERS, N), (2 * LAYERS * 2 * 3 * HIDDEN // 4,) * 2),
        (shards, layouts.fully_sharded(PARAMETERS, N, gathers_again=False), (3 * PARAMETERS // 4,) * 2),
        (experts, layouts.expert_parallel(HIDDEN, 2, LAYERS, N), (2 * LAYERS * 3 * 2 * HIDDEN // 4,) * 2),
        (
            context,
            layouts.context_parallel(TOKENS // N * KEYS * 2, LAYERS, N),
            (LAYERS * 3 * (TOKENS // N) * KEYS * 2,) * 2,
        ),
    ],
)
def test_programs_send_what_the_closed_forms_say(build, closed, products):
    assert (layouts.sent(closed.forward), layouts.sent(closed.backward)) == products
    assert sent(build) == products


def test_shards_that_were_freed_are_gathered_again():
    step = Training(optimizer="none", recompute=("layers.*",), grad_inputs=("x",))
    closed = layouts.fully_sharded(PARAMETERS, N)
    assert sent(shards, step) == (layouts.sent(closed.forward), layouts.sent(closed.backward))
    assert layouts.sent(closed.backward) == 2 * 3 * PARAMETERS // 4


def test_gradients_are_summed():
    # ring: each device sends its part of the sum, and its sum of a part, n - 1 times each
    closed = layouts.data_parallel(8 * 10**9 * 2, 8)
    assert (layouts.sent(closed.forward), layouts.sent(closed.backward)) == (0, 2 * 7 * 2 * 10**9)
    in_float32 = layouts.fully_sharded(16 * 10**9, 64, gradients=32 * 10**9)
    assert layouts.sent(in_float32.backward) == 63 * (16 + 32) * 10**9 // 64
