"""What calls do to scores and to the operands of products, in ATen's spelling and in ONNX's: the words of the pattern."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.dims import Dim
    from graphflops.view import Call

Role = Literal[
    "product",
    "softmax",
    "layout",
    "cast",
    "dropout",
    "scale",
    "bias",
    "choice",
    "cap",
    "join",
    "part",
    "power",
    "sum",
]

# By operator without overload or version; in-place ones by their functional name.
_ROLES: dict[Role, str] = {
    "product": "matmul bmm mm baddbmm einsum MatMul FusedMatMul Einsum Gemm MatMulInteger QLinearMatMul TransposeMatMul",
    "softmax": "softmax _softmax _safe_softmax special_softmax Softmax _scaled_masked_softmax _masked_softmax",
    "layout": "view reshape _unsafe_view _reshape_copy view_copy expand expand_as expand_copy permute permute_copy"
    " transpose t transpose_copy clone contiguous squeeze unsqueeze squeeze_copy unsqueeze_copy alias detach lift_fresh_copy"
    " repeat repeat_interleave flatten unflatten movedim moveaxis swapaxes Reshape Transpose Expand Tile Squeeze Unsqueeze"
    " Identity Flatten",
    "cast": "to _to_copy type_as type float half bfloat16 double convert_element_type Cast CastLike DequantizeLinear"
    " QuantizeLinear DynamicQuantizeLinear _to",
    "dropout": "dropout native_dropout feature_dropout alpha_dropout Dropout bernoulli",
    "scale": "mul div multiply divide true_divide Mul Div neg Neg pow sqrt Sqrt",
    "bias": "add sub add_relu Add Sub Sum maximum Max minimum Min clamp clamp_min Clip BiasAdd rsub",
    "choice": "where masked_fill masked_scatter Where nan_to_num",
    "cap": "tanh Tanh",
    "join": "cat concat concatenate Concat",
    "part": "slice narrow Slice split split_with_sizes Split getitem",
    "power": "exp Exp exp2",
    "sum": "sum ReduceSum",
}
ROLES: dict[str, Role] = {name: role for role, names in _ROLES.items() for name in names.split()}


def role_of(call: Call) -> Role | None:
    """What a call does, if it is something that attention is spelled with."""
    return role(call.node.op) if call.row.state != "unknown" else None


def base_of(call: Call) -> str:
    """The operator's own name: `matmul` of `aten.matmul.default`, `MatMul` of `onnx.MatMul.13`."""
    return _base(call.node.op)


@lru_cache(maxsize=1024)
def role(op: str) -> Role | None:
    """The same by the operator's full name."""
    return ROLES.get(_base(op))


@lru_cache(maxsize=1024)
def _base(op: str) -> str:
    parts = op.split(".")
    name = (
        parts[1]
        if parts[0] in ("aten", "prims", "quantized_decomposed")
        else parts[-2]
        if len(parts) > 1
        else op
    )
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name


class Product(NamedTuple):
    """A matrix product: the operand that gives the rows, the one that gives the columns, and the axis that is summed over,
    in each counted from the end.
    """

    left: str
    right: str
    left_axis: int = -1
    right_axis: int = -2


def product_of(call: Call) -> Product | None:
    """The product that a call is; None where it is none, or sums over more than one axis."""
    base, names = base_of(call), call.uses
    if base in ("einsum", "Einsum"):
        return _einsum(call, names)
    if base == "baddbmm":
        names = names[1:]
    elif base == "QLinearMatMul":
        names = (call.operand(0), call.operand(3))
    if len(names) < 2:
        return None
    turned = [bool(call.attribute(name, 0)) for name in ("transA", "transB")]
    return Product(names[0], names[1], -2 if turned[0] else -1, -1 if turned[1] else -2)


def axis_of(call: Call, rank: int) -> int | None:
    """The axis that a softmax goes along, counted from the front."""
    base = base_of(call)
    if base == "Softmax":
        version = int(call.node.op.rpartition(".")[2])
        axis = call.attribute("axis", -1 if version >= 13 else 1)
    else:
        given = [argument for argument in call.given[1:] if not isinstance(argument, Ref)]
        axis = call.attribute("dim", given[0] if given else None)
    return axis % rank if isinstance(axis, int) and rank else None


def keeps_last(call: Call, shape: Sequence[Dim], keys: Dim) -> bool:
    """Whether the axis of the keys is the last still after a call that may change the order of axes.

    Axes of length one behind it do not count: decompositions of `einsum` put them wherever they please.
    """
    order = _order(call, len(shape))
    if order is None:
        return bool(shape)
    long = [axis for axis in order if keys == 1 or shape[axis] != 1]
    return bool(long) and long[-1] == max(long)


def last_of(shape: Sequence[Dim], keys: Dim) -> Dim:
    """The size of the axis that would be that of the keys: the last, but for axes of length one."""
    return shape[-1] if keys == 1 else next((size for size in reversed(shape) if size != 1), 1)


def _order(call: Call, rank: int) -> list[int] | None:
    """By axis of the result, the operand's; None where the call keeps their order."""
    base = base_of(call)
    given = [argument for argument in call.given[1:] if not isinstance(argument, Ref)]
    if base in ("Transpose", "t"):
        return list(call.attribute("perm") or range(rank)[::-1])
    if base in ("permute", "permute_copy"):
        order = call.attribute("dims", given[0] if given else None)
        return [axis % rank for axis in order] if isinstance(order, tuple) and len(order) == rank else []
    if base in ("transpose", "transpose_copy", "swapaxes", "movedim", "moveaxis"):
        axes = [
            axis % rank for axis in given or [value for _, value in call.node.kwargs] if isinstance(axis, int)
        ]
        if len(axes) != 2:
            return []
        order = list(range(rank))
        if base.startswith("move"):
            order.insert(axes[1], order.pop(axes[0]))
        else:
            order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
        return order
    return None


def _einsum(call: Call, names: Sequence[str]) -> Product | None:
    equation = call.attribute("equation", call.given[0] if call.given else "")
    if not isinstance(equation, str) or len(names) != 2 or "->" not in equation:
        return None
    terms, _, result = equation.replace(" ", "").partition("->")
    a, _, b = terms.partition(",")
    summed = (set(a) & set(b)) - set(result) - {"."}
    if not result or len(summed) != 1 or (result[-1] in a) == (result[-1] in b):
        return None
    (letter,) = summed
    places = a.index(letter) - len(a), b.index(letter) - len(b)
    if result[-1] in b:
        return Product(names[0], names[1], *places)
    return Product(names[1], names[0], *reversed(places))
