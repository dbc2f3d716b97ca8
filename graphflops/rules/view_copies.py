"""The spellings of views that copy what they show: `view_copy`, `expand_copy` and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, copied
from graphflops.dims import differ
from graphflops.rules import parts, views
from graphflops.rules.derived import Derived
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.rules.shapes import tensors_of
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

KIND = "view"


def copied_out(seen: Estimate) -> Estimate:
    """What a view shows, copied."""
    return copied(*tensors_of(seen.out))


_VIEWS: dict[str, Callable[..., Estimate]] = {
    "view_copy": views.view,
    "view_copy.dtype": views.view_dtype,
    "_reshape_copy": views.view,
    "_reshape_alias_copy": views.reshape_alias,
    "alias_copy": views.alias,
    "detach_copy": views.detach,
    "_fw_primal_copy": views.alias,
    "_make_dual_copy": views.alias,
    "as_strided_copy": views.as_strided,
    "diagonal_copy": parts.diagonal,
    "expand_copy": views.expand,
    "narrow_copy": parts.narrow,
    "permute_copy": views.permute,
    "select_copy": parts.select,
    "slice_copy": parts.slice_,
    "split_copy": parts.split,
    "split_with_sizes_copy": parts.split_with_sizes,
    "squeeze_copy": views.squeeze,
    "t_copy": views.transpose_matrix,
    "transpose_copy": views.transpose,
    "unbind_copy": parts.unbind,
    "unfold_copy": views.unfold,
    "unsqueeze_copy": views.unsqueeze,
    "view_as_complex_copy": views.view_as_complex,
    "view_as_real_copy": views.view_as_real,
}
for _name, _view in _VIEWS.items():
    rule(f"aten.{_name}")(Derived(_view, copied_out))


def copied_back(call: ForwardCall) -> Estimate:
    """The gradient of a result that holds elements once each, written back to where they were."""
    x = next(value for value in call.arguments.values() if isinstance(value, TensorType))
    (out,) = tensors_of(call.estimate.out)
    gradient, is_cast = x.like(), out.dtype != x.dtype
    part = x.like(dtype=out.dtype) if is_cast else gradient
    read = part if differ(out.numel, x.numel) else out.like()
    return Estimate((gradient,), vector_flops=x.numel if is_cast else 0, reads=(read,))


_WHOLE = ("view", "_reshape", "_reshape_alias", "alias", "permute", "squeeze", "t", "transpose", "unsqueeze")
backward(*(f"aten.{name}_copy" for name in (*_WHOLE, "view_as_complex", "view_as_real")))(copied_back)
