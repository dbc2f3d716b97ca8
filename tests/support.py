"""Short spellings for tests: `t(4, 64)` is a float32 tensor type, `price(op, ...)` runs the operator's rule."""

from __future__ import annotations

from typing import Any

from graphflops.cost import Estimate
from graphflops.dims import Dim, symbol
from graphflops.ops.operator import orders
from graphflops.passes.price_call import _trimmed as trimmed
from graphflops.rules import find
from graphflops.tensor import FLOAT32, DType, TensorType, dtype_named


def t(*shape: Dim | str, dtype: DType | str = FLOAT32, **fields: Any) -> TensorType:
    """A tensor type; a size given as a string is a symbol."""
    sizes = tuple(symbol(size) if isinstance(size, str) else size for size in shape)
    return TensorType(sizes, dtype_named(dtype) if isinstance(dtype, str) else dtype, **fields)


def price(op: str, *args: Any, outputs: tuple[bool, ...] = (), **kwargs: Any) -> Estimate:
    """What the rule of `op` says of a call with these operands; with `outputs`, of which those results are used."""
    found = find(op)
    assert found is not None, f"no rule for {op}"
    if outputs and "outputs" in found.signature.keywords:
        kwargs["outputs"] = outputs
    by_place = not (op.startswith(("onnx.", "ai.onnx.", "com.", "higher_order.")))
    spelled = op if orders(op) or not by_place else f"{op}.default"
    estimate = found.call(found.bound(spelled, args, kwargs.items(), by_place=by_place))
    return trimmed(estimate, outputs) if outputs else estimate


def shapes(estimate: Estimate) -> list[tuple[Dim, ...]]:
    """Shapes of the results that are tensors."""
    return [value.shape for value in estimate.out if isinstance(value, TensorType)]
