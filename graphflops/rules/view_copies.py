"""The spellings of views that copy what they show: `view_copy`, `expand_copy` and the like."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from graphflops.cost import Estimate
from graphflops.rules import parts, views
from graphflops.rules.registry import rule
from graphflops.tensor import TensorType

P = ParamSpec("P")


def copied(*seen: TensorType) -> Estimate:
    """Each tensor read as it is stored and written out in full."""
    return Estimate(tuple(x.like() for x in seen), reads=seen)


def copying(view_rule: Callable[P, Estimate]) -> Callable[P, Estimate]:
    """The rule of a view that is copied out: one read and one write of what the view shows."""

    @wraps(view_rule)
    def rule_of_copy(*args: P.args, **kwargs: P.kwargs) -> Estimate:
        return copied(*(x for x in view_rule(*args, **kwargs).out if isinstance(x, TensorType)))

    return rule_of_copy


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
    rule(f"aten.{_name}")(copying(_view))
