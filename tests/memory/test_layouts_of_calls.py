"""How the result of one call lies, by how its operand does: as on torch's device `meta`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import FLOAT64, DType, TensorType
from tests.support import t

SHAPE = (4, 3, 2, 6)
ORDERS = {"in order": (0, 1, 2, 3), "channels last": (0, 3, 1, 2), "turned": (3, 1, 0, 2)}
X, LIKE = Ref("x"), t(*SHAPE)


def i(*shape: int) -> TensorType:
    return t(*shape, dtype="int64")


CALLS: list[tuple[Any, ...]] = [
    # views
    *[("unbind.int", X, 1), ("split.Tensor", X, 2, 3), ("chunk", X, 2, 3), ("narrow", X, 1, 0, 2)],
    *[("unsqueeze", X, 2), ("unsqueeze", X, -1), ("squeeze", X), ("expand", X, (5, *SHAPE))],
    *[("transpose.int", X, 1, 3), ("transpose.int", X, -1, 0), ("permute", X, (2, 0, 3, 1))],
    *[("swapaxes", X, 0, 1), ("select.int", X, 1, 1), ("select.int", X, -1, 1)],
    *[("slice.Tensor", X, 3, 0, 6, 2), ("slice.Tensor", X, 1, 1, 3, 1), ("slice.Tensor", X, 0, -2, 4, 1)],
    *[("reshape", X, (12, 12)), ("reshape", X, (4, 3, 12)), ("reshape", X, (2, 2, 3, 2, 6))],
    *[("reshape", X, (4, -1)), ("flatten.using_ints", X, 2, 3), ("flatten.using_ints", X, 0, 1)],
    *[("unflatten.int", X, 3, (2, 3)), ("unflatten.int", X, 0, (2, 2)), ("unfold", X, 3, 2, 1)],
    *[("movedim.int", X, 0, 2), ("movedim.int", X, -1, 1), ("unfold", X, 0, 2, 2)],
    *[("diagonal", X, 0, 1, 2), ("diagonal", X, 1, 3, 0), ("diagonal", X)],
    *[("permute_copy", X, (2, 0, 3, 1)), ("slice_copy.Tensor", X, 3, 0, 6, 2), ("diagonal_copy", X)],
    # copies, and elements of one or several tensors
    *[("flip", X, (1,)), ("zeros_like", X), ("empty_like", X), ("rand_like", X), ("sort", X, 1)],
    *[("clone", X), ("contiguous", X), ("to.dtype", X, FLOAT64), ("native_dropout", X, 0.1, True)],
    *[("mul.Tensor", X, X), ("mul.Tensor", X, t(6)), ("mul.Tensor", X, LIKE), ("mul.Tensor", LIKE, X)],
    *[("add.Tensor", X, t(2, 6)), ("lerp.Scalar", X, X, 0.5), ("eq.Tensor", X, X), ("relu", X)],
    *[("hardtanh", X), ("silu", X), ("prelu", X, t(3)), ("glu", X, -1), ("bernoulli", X)],
    ("where.self", t(*SHAPE, dtype="bool"), X, X),
    *[("cat", (X, X), 1), ("cat", (X, LIKE), 1), ("stack", (X, X), -1), ("roll", X, (1,), (1,))],
    *[("constant_pad_nd", X, (1, 1)), ("tril", X), ("repeat", X, (1, 2, 1, 1)), ("pixel_shuffle", X, 1)],
    # reductions, scans, gathers and scatters
    *[("sum.dim_IntList", X, (1,), True), ("sum.dim_IntList", X, (1,)), ("mean.dim", X, (2, 3), True)],
    *[("mean.dim", X, (0,)), ("amax", X, (1,)), ("max.dim", X, 1), ("argmax", X, 1)],
    *[("norm.ScalarOpt_dim", X, 2, (1,), True), ("var_mean.correction", X, (1,))],
    *[("cumsum", X, 1), ("topk", X, 1, 1), ("index_select", X, 1, i(2)), ("gather", X, 1, i(4, 2, 2, 6))],
    ("scatter.value", X, 1, i(4, 2, 2, 6), 0.0),
    # products, norms, softmax and images
    *[("matmul", X, t(6, 5)), ("matmul", X, t(4, 3, 6, 5)), ("linear", X, t(5, 6))],
    *[("softmax.int", X, -1), ("softmax.int", X, 1), ("_log_softmax", X, 1, False)],
    ("native_layer_norm", X, (6,), t(6), t(6), 1e-5),
    *[("max_pool2d_with_indices", X, (2, 2), (2, 2)), ("avg_pool2d", X, (2, 2))],
    *[("_adaptive_avg_pool2d", X, (2, 2)), ("upsample_nearest2d.vec", X, None, (2.0, 2.0))],
    ("upsample_bilinear2d.vec", X, None, False, (2.0, 2.0)),
]


def laid(order: tuple[int, ...]) -> list[int]:
    """The shape of a tensor in row-major order whose axes in this order are those of the operand."""
    return [SHAPE[order.index(axis)] for axis in range(len(SHAPE))]


def by_torch(op: str, args: tuple[Any, ...], order: tuple[int, ...]) -> list[tuple[int, ...]]:
    x = torch.empty(laid(order), device="meta").permute(order)

    def made(value: Any) -> Any:
        if isinstance(value, TensorType):
            return torch.empty(value.shape, dtype=getattr(torch, value.dtype.name), device="meta")
        if isinstance(value, DType):
            return getattr(torch, value.name)
        if isinstance(value, tuple) and not isinstance(value, Ref):
            return [made(item) for item in value]
        return x if isinstance(value, Ref) else value

    _, name, overload = op.split(".")
    results = getattr(getattr(torch.ops.aten, name), overload)(*map(made, args))
    return [x.stride() for x in tree_leaves(results)]


def by_us(op: str, args: tuple[Any, ...], order: tuple[int, ...], outputs: int) -> list[tuple[int, ...]]:
    given = {"given": t(*laid(order))}

    def referred(value: Any) -> Any:
        if isinstance(value, TensorType):
            given[f"a{len(given)}"] = value
            return Ref(f"a{len(given) - 1}")
        return tuple(map(referred, value)) if type(value) is tuple else value

    turned = Node("turned", "aten.permute.default", (Ref("given"), order), outputs=("x",))
    names = tuple(f"y{place}" for place in range(outputs))
    node = Node("y", op, tuple(map(referred, args)), outputs=names)
    inputs = tuple(Input(name, "user") for name in given)
    graph = Graph((turned, node), given, inputs, (Output(Ref("y0")),))
    program = price(graph, bind(graph, {}, {}), facts_of)
    layouts = Runs((), HOPPER, is_eager=False).of(program.main).layouts
    return [tuple(layouts.of(name)) for name in names]  # type: ignore[misc]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}-{call[2:]}")
def test_results_lie_as_those_of_torch(call: tuple[Any, ...], order: str) -> None:
    name, *args = call
    op = f"aten.{name if '.' in name else f'{name}.default'}"
    expected = by_torch(op, tuple(args), ORDERS[order])
    assert by_us(op, tuple(args), ORDERS[order], len(expected)) == expected
