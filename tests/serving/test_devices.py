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
from graphflops.serving.tensor_parallel import Exchanges, on_each
from tests.serving.test_serve import HIDDEN, LAYERS, MLP, SHARED, TOKEN, VOCABULARY, programs

__all__ = ["programs"]
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


def test_a_plan_over_two_devices(programs: tuple[Path, Path]) -> None:
    given = {"device": "h100", "batch": [BATCH], "context": [CONTEXT]}
    one, two = (serve(programs[0], devices=count, price_per_hour=2.0, **given) for count in (1, 2))  # type: ignore[arg-type]
    assert two.cache.token_bytes == TOKEN // 2
    (cell,) = two.cells
    assert cell.each is not None
    assert cell.price(2.0) == pytest.approx(2 * 2.0 / 3600 / (BATCH / cell.each) * 1e6)
    network = network_of(complete(device("h100")))
    sums = (1 + 2 * LAYERS) * seconds("all_reduce", BATCH * HIDDEN * 2, 2, network).seconds
    assert cell.each > sums
    assert one.cells[0].step is not None
    assert any(note.startswith("2 devices share each layer") for note in two.notes)


def test_what_does_not_divide_stays_whole(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h100", devices=SHARED * 2, batch=[2], context=[64])
    assert plan.cache.token_bytes == TOKEN
    assert any("run whole on each device" in note for note in plan.notes)
    with pytest.raises(ModelError, match="nothing can be split over 7 devices"):
        serve(programs[0], device="h100", devices=7, batch=[2], context=[64])
    assert MLP % (SHARED * 2) == 0


def test_a_sum_of_unknown_size_takes_no_known_time() -> None:
    """What is known of the rest is a least time, and said to be."""
    network = network_of(complete(device("h100")))
    sums = Exchanges(2, network, None, (("all_reduce", 4096), ("all_reduce", symbol("found"))))
    assert sums.seconds_at({}) == (seconds("all_reduce", 4096, 2, network).seconds, False)
    assert sums.seconds_at({"found": 4096})[1]
