"""Shapes and element types of views, copies, indexing and creation against torch on the meta device."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import Expr
from graphflops.tensor import DType, TensorType
from tests.rules.test_creation import MADE
from tests.rules.test_indexing import TOUCHED
from tests.rules.test_movement import COPIED, VIEWS
from tests.support import price

# Without a kernel for the meta device, or with one that needs the data.
NO_META = (
    "masked",
    "nonzero",
    "argwhere",
    "embedding_sparse",
    "embedding_renorm",
    "combinations",
    "set_",
    "_unsafe_masked",
)
# No operators that can be called by position alone, or on another device.
NOT_CALLED = (
    "to.device",
    "fill_diagonal_",
    "unflatten_dense",
    "tensor_split.tensor",
    "one_hot",
    "_cast",
    "scalar_tensor",
)


def is_known(value: Any) -> bool:
    """Whether no size is symbolic."""
    if isinstance(value, TensorType):
        return is_known(value.shape)
    return all(map(is_known, value)) if isinstance(value, tuple) else not isinstance(value, Expr)


BY_POSITION: list[tuple[Any, ...]] = [(op, operands, {}) for op, operands, *_ in (*VIEWS, *COPIED, *TOUCHED)]
BY_KEYWORD: list[tuple[Any, ...]] = [
    (op, operands, {"device": "meta", **keywords}) for op, operands, keywords, *_ in MADE
]
CASES = [
    (op, operands, keywords)
    for op, operands, keywords in (*BY_POSITION, *BY_KEYWORD)
    if is_known(operands) and not op.startswith((*NO_META, *NOT_CALLED))
]


@pytest.mark.parametrize(("op", "operands", "keywords"), CASES)
def test_results_are_those_of_torch(op: str, operands: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")

    def on_meta(value: Any) -> Any:
        if isinstance(value, TensorType):
            return torch.empty(value.shape, dtype=on_meta(value.dtype), device="meta")
        if isinstance(value, DType):
            return getattr(torch, value.name)
        return [on_meta(item) for item in value] if isinstance(value, tuple) else value

    base, _, overload = op.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    accepted = {argument.name for argument in operator._schema.arguments}
    placed = {name: on_meta(value) for name, value in keywords.items() if name in accepted}
    results = operator(*on_meta(operands), **placed)
    results = results if isinstance(results, (tuple, list)) else (results,)
    ours = price(f"aten.{op}", *operands, **{name: v for name, v in keywords.items() if name != "device"}).out
    assert [str(x) for x in ours] == [f"{str(x.dtype)[6:]}{list(x.shape)}" for x in results]
