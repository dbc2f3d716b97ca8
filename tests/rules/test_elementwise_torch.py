"""Result types of elementwise operators against torch on the meta device: promotion and broadcasting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from graphflops.rules.registry import known
from graphflops.tensor import DTYPES, TensorType
from tests.support import price

SHAPES = (((2, 1, 4), (3, 1), (2, 3, 4)), ((2, 3), (), (2, 3)), ((), (2, 3), ()))
NUMBERS = (2, 2.5, 1.5j)
DTYPES_TRIED = ("int64", "float16", "float32", "complex64")
OPTIONAL = ("Optional[Tensor]", "Optional[number]")
VALUES = {"bool": False, "int": 1, "SymInt": 1, "float": 0.5, "Optional[str]": "floor"}

MODULES = frozenset(f"graphflops.rules.{name}" for name in ("pointwise", "activation", "special"))
OPERATORS = sorted({".".join(rule.key.split(".")[:2]) for rule in known() if rule.home in MODULES})
# Types, or mixtures of them, that only meta kernels let through or that computing kernels promote otherwise.
REFUSED = {
    "aten.ldexp": {"int64"},
    "aten.threshold_backward": {"int64", "float32", "complex64"},
    "aten.logaddexp": {"int64"},
    "aten.logaddexp2": {"int64"},
    "aten.mish_backward": {"int64"},
    "aten.log_sigmoid_backward": {"int64", "float16", "complex64"},
}
MENDED = ("aten.hardtanh_backward", "aten.infinitely_differentiable_gelu_backward")


@pytest.mark.parametrize(
    "name", [name for name in OPERATORS if name.startswith("aten.") and "glu" not in name]
)
def test_result_types_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    if name in MENDED and torch.__version__ < "2.13":
        pytest.skip("meta kernels of this torch promote integers otherwise")
    packet = getattr(torch.ops.aten, name.removeprefix("aten."), None)
    for overload in packet.overloads() if packet else ():
        operator = getattr(packet, overload)
        if is_functional(operator._schema):
            for arguments, keywords in calls(torch, operator._schema, REFUSED.get(name, set())):
                compare(f"{name}.{overload}", operator, arguments, keywords)


def is_functional(schema: Any) -> bool:
    """Whether tensors go in, one comes out, and nothing is written in place."""
    given = any("Tensor" in str(argument.type) for argument in schema.arguments)
    writes = any(x.alias_info is not None and x.alias_info.is_write for x in schema.arguments)
    return given and not writes and [str(result.type) for result in schema.returns] == ["Tensor"]


def calls(torch: Any, schema: Any, refused: set[str]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments for the schema: shapes, element types and numbers in all combinations."""
    needed = [x for x in schema.arguments if not x.has_default_value() or str(x.type) in OPTIONAL]
    tensors = [x.name for x in needed if "Tensor" in str(x.type)]
    numbers = NUMBERS if any("number" in str(x.type) for x in needed) else (2,)
    dtypes = [dtype for dtype in DTYPES_TRIED if dtype not in refused]
    for shapes, chosen, number in itertools.product(
        SHAPES, itertools.product(dtypes, repeat=min(len(tensors), 2)), numbers
    ):
        made = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            for shape, dtype in zip(shapes, (*chosen, chosen[-1]), strict=False)
        ]
        values = VALUES | {"number": number, "Optional[number]": number}
        given = {x.name: values.get(str(x.type)) for x in needed} | dict(zip(tensors, made, strict=False))
        keywords = {x.name: given.pop(x.name) for x in needed if x.kwarg_only}
        yield list(given.values()), keywords


def compare(op: str, operator: Any, arguments: list[Any], keywords: dict[str, Any]) -> None:
    """Derived against real result, where torch takes these types at all."""
    try:
        expected = operator(*arguments, **keywords)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
        return
    keywords = {name: value for name, value in keywords.items() if name != "generator"}
    (out,) = price(op, *map(typed, arguments), **{name: typed(x) for name, x in keywords.items()}).out
    assert TensorType(out.shape, out.dtype) == typed(expected), [str(typed(x)) for x in arguments]


def typed(value: Any) -> Any:
    """The type of a tensor; anything else is itself."""
    if not hasattr(value, "dtype"):
        return value
    return TensorType(tuple(value.shape), DTYPES[str(value.dtype).removeprefix("torch.")])
