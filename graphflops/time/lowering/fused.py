"""Calls inside of an operator of torch.nn that stands for a whole module: what is left of their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphflops.passes.program import PricedCall
    from graphflops.time.kernel import Kernel


def inside_operator(call: PricedCall, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """The kernels of a call: nothing is copied, and a product adds its bias and applies the activation that follows it."""
    kind = call.node.operator.kind
    if kind == "elementwise" and len(call.uses) == 1:
        return ()
    left = [kernel for kernel in kernels if kernel.family == "matmul" or kind != "product"]
    return tuple([kernel for kernel in left if kernel.family != "copy"])
