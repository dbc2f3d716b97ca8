"""Contents of the inputs of programs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from graphflops.exporters.live import capture, from_exported_program  # noqa: E402
from graphflops.graph import Graph  # noqa: E402
from tests.exporters.live_modules import fake, meta  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable


class Holder(nn.Module):
    """A parameter, a view of it, a buffer that is half of something, and constants, one of them in a nested graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.turned = nn.Parameter(self.weight.detach().t())
        self.register_buffer("odd", torch.arange(10, dtype=torch.int16)[1::2])

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            moved = x * torch.tensor([3.0, 5.0, 7.0])
        return moved @ self.weight.t() @ self.turned.t() + self.odd.sum()


def held(graph: Graph, name: str) -> torch.Tensor | None:
    """The contents of an input by the name that it has outside, read as they are said to lie."""
    (entry,) = (entry for entry in graph.inputs if entry.target == name)
    assert graph.contents is not None
    stored = graph.contents(entry.name)
    if stored is None:
        return None
    flat = torch.frombuffer(bytearray(stored.memory), dtype=getattr(torch, stored.dtype.name))
    return flat.as_strided(stored.shape, stored.strides, stored.offset)


def test_contents() -> None:
    module = Holder()
    graph = from_exported_program(torch.export.export(module, (torch.zeros(4, 3),)))
    for name in ("weight", "turned", "odd"):
        found = held(graph, name)
        assert found is not None
        assert torch.equal(found, module.get_parameter(name) if name != "odd" else module.odd)
    (constant,) = (entry for entry in graph.inputs if entry.role == "constant")
    found = held(graph, constant.target)
    assert found is not None
    assert found.tolist() == [3, 5, 7]
    assert graph.contents is not None
    assert graph.contents("x") is None
    memories = [graph.contents(entry.name) for entry in graph.inputs if entry.role == "parameter"]
    assert memories[0] is not None
    assert memories[1] is not None
    assert memories[0].memory is memories[1].memory


@pytest.mark.parametrize("make", [meta, fake])
def test_contents_that_are_not_there(make: Callable[[], Any]) -> None:
    graph = from_exported_program(capture(make(), (torch.zeros(2, 5, dtype=torch.int64),)))
    assert held(graph, "embedding.weight") is None


def test_contents_of_constants_in_traced_functions() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from graphflops.exporters.live import from_graph_module

    table = torch.tensor([2, 4, 8])
    graph = from_graph_module(make_fx(lambda x: x + table)(torch.zeros(3, dtype=torch.int64)), "f")
    (constant,) = (entry for entry in graph.inputs if entry.role == "constant")
    found = held(graph, constant.target)
    assert found is not None
    assert found.tolist() == [2, 4, 8]
