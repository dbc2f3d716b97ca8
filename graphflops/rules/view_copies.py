"""The spellings of views that copy what they show: `view_copy`, `expand_copy` and the like."""

from __future__ import annotations

from graphflops.cost import Estimate, copied
from graphflops.dims import differ
from graphflops.rules import parts, views  # noqa: F401 - the rules of views, which are found by name
from graphflops.rules.registry import ForwardCall, backward, find, rule
from graphflops.rules.shapes import tensors_of
from graphflops.tensor import PartType, TensorType

KIND = "view"


def copied_out(seen: Estimate) -> Estimate:
    """What a view shows, copied."""
    return copied(*tensors_of(seen.out))


_COPIES = """view_copy view_copy.dtype _reshape_alias_copy alias_copy detach_copy _fw_primal_copy _make_dual_copy
as_strided_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy
squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_as_complex_copy view_as_real_copy"""
rule("aten._reshape_copy").derived(views.view, copied_out)
for _name in _COPIES.split():
    _view = find(f"aten.{_name.replace('_copy', '')}")
    assert _view is not None
    rule(f"aten.{_name}").derived(_view.function, copied_out)


def copied_back(call: ForwardCall) -> Estimate:
    """The gradient of a result that holds elements once each, written back to where they were."""
    x = next(value for value in call.arguments.values() if isinstance(value, TensorType))
    (out,) = tensors_of(call.estimate.out)
    gradient, is_cast = x.like(), out.dtype != x.dtype
    part = PartType(x.shape, out.dtype) if is_cast else gradient
    read = part if differ(out.numel, x.numel) else out.like()
    return Estimate((gradient,), vector_flops=x.numel if is_cast else 0, reads=(read,))


_WHOLE = ("view", "_reshape", "_reshape_alias", "alias", "permute", "squeeze", "t", "transpose", "unsqueeze")
backward(*(f"aten.{name}_copy" for name in (*_WHOLE, "view_as_complex", "view_as_real")))(copied_back)
