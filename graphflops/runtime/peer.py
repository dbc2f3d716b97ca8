"""What torch's own FlopCounterMode counts for each call, with its known gaps by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, flop_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.runtime.execute import Step

_COMPLEX = "torch counts a complex multiply-add as a real one; it is eight operations"
_GROUPS = "torch counts the gradient of a grouped convolution's weight as if every channel met every other"
# Attention operators, which FlopCounterMode counts on some devices and not on others; query, key and value come first.
_ATTENTION = frozenset(
    {
        "aten.scaled_dot_product_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "aten._scaled_dot_product_fused_attention_overrideable.default",
    }
)


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Remembers which operators ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


class Peer:
    """FlopCounterMode around a whole run, a context manager, in which `run` runs each step, nested ones included."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.seen = Dispatched()
        self._attributed = 0
        self._known: dict[Any, int | None] = {}

    def __enter__(self) -> Peer:
        self.seen.__enter__()  # beneath the counter, which takes composite operators apart
        self.counter.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.counter.__exit__(*error)
        self.seen.__exit__(*error)

    def run(self, step: Step) -> tuple[Any, int, list[Any] | None]:
        """Run a step: what it returns, FLOPs counted in it but not in steps inside, and the operators that ran.

        None in their place says that the counter failed on it.
        """
        before, attributed, ran = self.counter.get_total_flops(), self._attributed, len(self.seen.ops)
        try:
            returned = step()
        except Exception as error:
            if not _of_the_counter(error):
                raise
            with _disable_current_modes():  # its formula fails, not the operator
                return step(), 0, None
        inside = self._attributed - attributed
        own = self.counter.get_total_flops() - before - inside
        self._attributed += own
        ops = self.seen.ops[ran:]
        if not step.nests:
            del self.seen.ops[ran:]
        return returned, own, ops

    def attention(self, step: Step) -> int | None:
        """Of an attention operator: what is counted where its products are spelled out, on no device; None for others."""
        if step.node.op not in _ATTENTION:
            return None
        q, k, v = step.args[:3] if len(step.args) > 2 else list(step.kwargs.values())[:3]
        key = (q.shape, k.shape, v.shape)
        if key not in self._known:
            meta = [torch.empty_like(x, device="meta") for x in (q, k, v)]
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                torch.nn.functional.scaled_dot_product_attention(*meta, enable_gqa=q.shape[-3] != k.shape[-3])
            self._known[key] = counter.get_total_flops()
        return self._known[key]


def _of_the_counter(error: Exception) -> bool:
    """Whether FlopCounterMode itself raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == flop_counter.__file__


def has_formula(ops: list[Any]) -> bool:
    """Whether FlopCounterMode has a formula for any of these operators."""
    return any(getattr(op, "_overloadpacket", op) in flop_registry for op in ops)


def gap(step: Step, ours: int, counted: int, ops: list[Any] | None) -> str:
    """Why FlopCounterMode counts something else than we do, where that is a known error of its; "" where it is not."""
    if ops is None:
        return "FlopCounterMode fails on it"
    if counted == 0 and not has_formula(ops):
        names = sorted({str(getattr(op, "_overloadpacket", op)) for op in ops} or {step.node.op})
        return f"FlopCounterMode has no formula for {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    if ours == 4 * counted and any(x.is_complex() for x in _tensors(step)):
        return _COMPLEX
    if step.node.op == "aten.convolution_backward.default" and counted == _without_groups(step, ours):
        return _GROUPS
    return ""


def _without_groups(step: Step, ours: int) -> int:
    """What a convolution's gradients come to where the weight's is counted once for each group."""
    given = [*step.args, *step.kwargs.values()]
    groups, (wants_input, wants_weight, _) = given[9], given[10]
    each = ours // (wants_input + wants_weight) if wants_input or wants_weight else 0
    counted: int = each * (wants_input + groups * wants_weight)
    return counted


def _tensors(step: Step) -> Iterator[torch.Tensor]:
    from graphflops.runtime.execute import leaves

    return (x for x in leaves((*step.args, *step.kwargs.values())) if isinstance(x, torch.Tensor))
