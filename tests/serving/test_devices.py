"""A decoder over several devices: each has its part of the weights, heads and caches, and sums what the others have."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import analyze, serve
from graphflops.analysis import as_graph
from graphflops.devices import complete, device
from graphflops.dims import symbol
from graphflops.errors import ModelError
from graphflops.links import network_of, seconds
from graphflops.serving.engines import Exchanges, on_each
from tests.serving.test_serve import HEADS, HIDDEN, LAYERS, MLP, SHARED, TOKEN, VOCABULARY, programs

__all__ = ["programs"]
torch = pytest.importorskip("torch")
NORMS = 2 * HIDDEN * LAYERS + HIDDEN
BATCH, CONTEXT = 4, 1000


def test_each_device_has_its_part(programs: tuple[Path, Path]) -> None:
    network = network_of(complete(device("h100")))
    whole = as_graph(programs[0])
    part, exchanges = on_each(whole, 2, network)
    one, all_ = analyze(part), analyze(whole)
    matrices = all_.parameters - NORMS
    assert one.parameters == matrices // 2 + NORMS
    assert 2 * one.totals.cost.matrix_flops == all_.totals.cost.matrix_flops
    # A sum after the embedding, after the attention and the MLP of each layer; the logits of the last token are gathered.
    found = [(kind, one.value(nbytes)) for kind, nbytes in exchanges.operands]
    tokens = one.value(as_graph(part).types["ids"].shape[0])  # type: ignore[union-attr, arg-type]
    assert found[:-1] == [("all_reduce", tokens * HIDDEN * 2)] * (1 + 2 * LAYERS)
    assert found[-1] == ("all_gather", tokens * VOCABULARY // 2 * 2)


def test_heads_of_keys_that_are_fewer_than_the_devices_are_on_several(programs: tuple[Path, Path]) -> None:
    whole = as_graph(programs[0])
    part, exchanges = on_each(whole, HEADS, network_of(complete(device("h100"))))
    one, all_ = analyze(part), analyze(whole)
    keys = 2 * LAYERS * HIDDEN * SHARED * HIDDEN // HEADS  # and values
    others = all_.parameters - NORMS - keys
    assert one.parameters == others // HEADS + keys // SHARED + NORMS
    assert not exchanges.whole
    assert any(f"each of {SHARED} heads of keys and values is on 2" in note for note in exchanges.notes())
    plan = serve(programs[0], device="h100", devices=HEADS, batch=[2], context=[64])
    assert plan.cache.token_bytes == TOKEN // SHARED


def test_latents_are_on_every_device_and_their_heads_on_one_each() -> None:
    """MLA: keys are written beside a part that all heads share, which each device repeats for its own heads."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = ((64, 4 * 24), (16, 4 * 32), (4 * 16, 64))
            self.q, self.up, self.o = (torch.nn.Linear(*width, bias=False) for width in widths)

        def forward(self, x: torch.Tensor, latent: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
            q = self.q(x).view(3, 16, 4, 24).transpose(1, 2)
            both = self.up(latent).view(3, 16, 4, 32).transpose(1, 2)
            own, value = both.split([16, 16], dim=-1)
            key = both.new_empty(3, 4, 16, 24)
            key[..., :16] = own
            key[..., 16:] = turned.expand(-1, 4, -1, -1)
            y = torch.nn.functional.scaled_dot_product_attention(q, key, value)
            return self.o(y.transpose(1, 2).reshape(3, 16, 64))

    given = (torch.zeros(3, 16, 64), torch.zeros(3, 16, 16), torch.zeros(3, 1, 16, 8))
    whole = as_graph(torch.export.export(Attention(), given))
    part, exchanges = on_each(whole, 2, network_of(complete(device("h100"))))
    assert not exchanges.whole
    assert exchanges.operands == (("all_reduce", 3 * 16 * 64 * 4),)
    one, all_ = analyze(part), analyze(whole)
    assert one.parameters == all_.parameters // 2 == (64 * 96 + 16 * 128 + 64 * 64) // 2
    assert 2 * one.totals.cost.matrix_flops == all_.totals.cost.matrix_flops


def test_a_table_is_whole_where_logits_by_it_are() -> None:
    """As in BART: a buffer is added to the logits, which are products by the table of the embedding."""

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(96, 32)
            self.up, self.down = torch.nn.Linear(32, 64, bias=False), torch.nn.Linear(64, 32, bias=False)
            self.register_buffer("bias", torch.zeros(1, 96))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = self.down(self.up(self.table(ids)).relu())
            return torch.nn.functional.linear(hidden, self.table.weight) + self.bias

    whole = as_graph(torch.export.export(Decoder(), (torch.zeros(3, 16, dtype=torch.int64),)))
    part, exchanges = on_each(whole, 2, network_of(complete(device("h100"))))
    assert len(exchanges.whole) == 2  # the products of logits, and the embedding
    assert analyze(part).parameters == 96 * 32 + 2 * 32 * 64 // 2
    assert exchanges.operands == (("all_reduce", 3 * 16 * 32 * 4),)


def test_experts_are_added_up_over_devices_once_a_token() -> None:
    """Each of 3 tokens goes to 2 of 4 experts: what these make is weighted and added up for the token, then over devices."""

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Parameter(torch.zeros(4, 64, 128, dtype=torch.bfloat16))
            self.down = torch.nn.Parameter(torch.zeros(4, 128, 64, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor, ends: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            y = torch._grouped_mm(torch._grouped_mm(x, self.up, ends).relu(), self.down, ends)
            return x[:3] + (y * weights).view(3, 2, 64).sum(1)

    rows = torch.zeros(6, 64, dtype=torch.bfloat16, device="meta")
    ends = torch.zeros(4, dtype=torch.int32, device="meta")
    weights = torch.zeros(6, 1, dtype=torch.bfloat16, device="meta")
    whole = as_graph(torch.export.export(Experts().to("meta"), (rows, ends, weights)))
    part, exchanges = on_each(whole, 2, network_of(complete(device("h100"))))
    assert analyze(part).parameters == 2 * 4 * 64 * 128 // 2
    assert exchanges.operands == (("all_reduce", 3 * 64 * 2),)  # not 6 rows of 64 numbers of 2 bytes


def test_repeated_heads_are_on_the_devices_that_read_them() -> None:
    """Each of 4 devices repeats its head of keys for 2 heads of queries, where the whole repeats 2 heads for 4 each."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(64, heads * 8) for heads in (8, 2, 2))
            self.o = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
            k, v = (y[:, :, None].expand(-1, -1, 4, -1, -1).reshape(3, 8, 16, 8) for y in (k, v))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.o(y.transpose(1, 2).flatten(2))

    whole = as_graph(torch.export.export(Attention(), (torch.zeros(3, 16, 64),)))
    part, exchanges = on_each(whole, 4, network_of(complete(device("h100"))))
    rows = {row.op: row for row in analyze(part).rows}
    shapes = [named.type.shape for named in rows["aten.scaled_dot_product_attention.default"].inputs]
    assert shapes == [(3, 2, 16, 8)] * 3
    assert rows["aten.expand.default"].outputs[0].type.shape == (3, 1, 2, 16, 8)
    assert not exchanges.whole
    one, all_ = analyze(part).totals.cost, analyze(whole).totals.cost
    keys = 2 * 2 * 48 * 64 * 16  # FLOPs of the products of keys and values, of which a device has half
    assert one.matrix_flops == (all_.matrix_flops - keys) // 4 + keys // 2


def test_a_plan_over_two_devices(programs: tuple[Path, Path]) -> None:
    given = {"device": "h100", "batch": [BATCH], "context": [CONTEXT]}
    one, two = (serve(programs[0], devices=count, price_per_hour=2.0, **given) for count in (1, 2))  # type: ignore[arg-type]
    assert two.cache.token_bytes == TOKEN // 2
    (cell,) = two.cells
    assert cell.each is not None
    assert cell.price == pytest.approx(2 * 2.0 / 3600 / (BATCH / cell.each) * 1e6)
    network = network_of(complete(device("h100")))
    sums = (1 + 2 * LAYERS) * seconds("all_reduce", BATCH * HIDDEN * 2, 2, network).seconds
    assert cell.each > sums
    assert one.cells[0].step is not None
    assert any(note.startswith("2 devices share each layer") for note in two.notes)


def test_what_does_not_divide_stays_whole(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h100", devices=HEADS * 2, batch=[2], context=[64])
    assert plan.cache.token_bytes == TOKEN
    assert any("run whole on each device" in note for note in plan.notes)
    with pytest.raises(ModelError, match="nothing can be split over 7 devices"):
        serve(programs[0], device="h100", devices=7, batch=[2], context=[64])
    assert MLP % (HEADS * 2) == 0


def test_a_sum_of_unknown_size_takes_no_known_time() -> None:
    """What is known of the rest is a least time, and said to be."""
    network = network_of(complete(device("h100")))
    sums = Exchanges(2, network, None, (("all_reduce", 4096), ("all_reduce", symbol("found"))))
    assert sums.seconds_at({}) == (seconds("all_reduce", 4096, 2, network).seconds, False)
    assert sums.seconds_at({"found": 4096})[1]
