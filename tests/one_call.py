"""A program of one call: `program_of("aten.relu.default", g(4, 64))` is a training step of it, for `g` wants a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops import Training
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import TensorType
from tests.support import t

if TYPE_CHECKING:
    from graphflops.passes.program import PricedProgram


def g(*shape: int, **fields: Any) -> TensorType:
    """An operand that wants a gradient."""
    return t(*shape, requires_grad=True, **fields)


def program_of(op: str, *args: Any, outputs: int = 1, **kwargs: Any) -> PricedProgram:
    """Tensors are inputs by their place or name, `x0` or `x_bias`; results are `y0`, `y1`."""
    given: dict[str, TensorType] = {}

    def referred(name: str, value: Any) -> Any:
        if isinstance(value, TensorType):
            given[name] = value
            return Ref(name)
        if isinstance(value, tuple):
            return tuple(referred(f"{name}_{place}", item) for place, item in enumerate(value))
        return value

    refs = tuple(referred(f"x{place}", value) for place, value in enumerate(args))
    named = tuple((name, referred(f"x_{name}", value)) for name, value in kwargs.items())
    results = tuple(f"y{place}" for place in range(outputs))
    node = Node("y", op, refs, named, outputs=results)
    graph = Graph((node,), given, tuple(Input(name, "user") for name in given), (Output(Ref("y0")),))
    wanted = tuple(name for name, value in given.items() if value.requires_grad)
    training = Training(grad_inputs=wanted, optimizer="none") if wanted else None
    return price(graph, bind(graph, {}, {}), facts_of, training=training)
