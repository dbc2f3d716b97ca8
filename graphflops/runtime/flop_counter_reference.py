"""Counts each call with torch's own FlopCounterMode, and explains its known errors."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from graphflops.runtime.execute import Step
from graphflops.tensor import flat

_COMPLEX = "torch counts a complex multiply-add as a real one; it takes eight operations"
_GROUPS = "torch counts the gradient of a grouped convolution's weight as if there were one group"


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Records the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


class FlopCounterReference:
    """A context manager that runs FlopCounterMode around a whole run; `run` runs each step, nested ones included."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.seen = Dispatched()
        self._attributed = 0
        self._known: dict[Any, int | None] = {}

    def __enter__(self) -> FlopCounterReference:
        self.seen.__enter__()  # entered before the counter, which decomposes composite operators
        self.counter.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.counter.__exit__(*error)
        self.seen.__exit__(*error)

    def run(self, step: Step) -> tuple[Any, int, list[Any] | None]:
        """Run a step: its result, the FLOPs counted in it without those of nested steps, and the operators that ran.

        The operators are None if the counter itself failed.
        """
        before, attributed, ran = self.counter.get_total_flops(), self._attributed, len(self.seen.ops)
        try:
            returned = step()
        except Exception as error:
            if not _of_the_counter(error):
                raise
            with _disable_current_modes():  # the counter's formula failed, not the operator
                return step(), 0, None
        inside = self._attributed - attributed
        own = self.counter.get_total_flops() - before - inside
        self._attributed += own
        ops = self.seen.ops[ran:]
        if not step.nests:
            del self.seen.ops[ran:]
        return returned, own, ops

    def attention(self, step: Step) -> int | None:
        """FLOPs of an attention operator's products, counted on the meta device; None for other operators.

        FlopCounterMode counts the operator itself on some devices only.
        """
        op = step.node.operator
        if op.name != "scaled_dot_product_attention":
            return None
        given = op.arguments(step.args, tuple(step.kwargs.items()))
        q, k, v = given["query"], given["key"], given["value"]
        key = (q.shape, k.shape, v.shape)
        if key not in self._known:
            meta = [torch.empty_like(x, device="meta") for x in (q, k, v)]
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                torch.nn.functional.scaled_dot_product_attention(*meta, enable_gqa=q.shape[-3] != k.shape[-3])
            self._known[key] = counter.get_total_flops()
        return self._known[key]


def _of_the_counter(error: Exception) -> bool:
    """True if FlopCounterMode itself raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == flop_counter.__file__


def gap(step: Step, ours: int, counted: int, ops: list[Any] | None) -> str:
    """The known error of FlopCounterMode that explains a difference between its count and ours; "" if there is none."""
    if ops is None:
        return "FlopCounterMode fails on it"
    if counted == 0 and not any(getattr(op, "_overloadpacket", op) in flop_registry for op in ops):
        names = sorted({str(getattr(op, "_overloadpacket", op)) for op in ops} or {step.node.op})
        return f"FlopCounterMode has no formula for {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    given = flat((*step.args, *step.kwargs.values()))
    if ours == 4 * counted and any(isinstance(x, torch.Tensor) and x.is_complex() for x in given):
        return _COMPLEX
    if step.node.operator.name == "convolution_backward" and counted == _without_groups(step, ours):
        return _GROUPS
    return ""


def _without_groups(step: Step, ours: int) -> int:
    """FLOPs of a convolution's gradients if the weight's gradient is counted once for each group."""
    given = step.node.operator.arguments(step.args, tuple(step.kwargs.items()))
    groups, (wants_input, wants_weight, _) = given["groups"], given["output_mask"]
    each = ours // (wants_input + wants_weight) if wants_input or wants_weight else 0
    counted: int = each * (wants_input + groups * wants_weight)
    return counted
