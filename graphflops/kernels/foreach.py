"""Kernels of operators on lists of tensors, as optimizers and FSDP call them: each works through chunks of many tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import Chunks, Kernel

if TYPE_CHECKING:
    from graphflops.kernels.call import ConcreteCall

# Elements that a thread block works through, and blocks of one kernel.
_CHUNK, _MOST_BLOCKS = limits("aten_2_11", "foreach", "chunk", "most_blocks")
# Tensors of one kernel where it works on one, two, ... of each parameter; and where it works on one with a factor for each.
_MOST_TENSORS = limits("aten_2_11", "foreach", "one", "two", "three", "four", "five")
(_MOST_WITH_SCALARS,) = limits("aten_2_11", "foreach", "with_scalars")
# Arithmetic that takes longer than the traffic.
_VARIANTS = {"div": "division", "addcdiv": "quotient", "sqrt": "root"}


class Pass(NamedTuple):
    """One operator over lists. read, written: bytes of an element of each. variant: arithmetic that takes longer.

    tensors: how many of each parameter a kernel works on. has_scalars: whether each parameter has a factor of its own.
    """

    tensors: int
    read: float
    written: float
    variant: str = ""
    has_scalars: bool = False


def foreach(call: ConcreteCall) -> list[Kernel]:
    """A call on lists: those of operands, and of results that are none of them."""
    results = call.results
    elements = sum(x.numel for x in results)
    if not elements:
        return []
    name = call.operator.name
    is_fused = name.startswith("_fused")
    lists = sum(isinstance(each, (tuple, list)) and _holds_tensors(each) for each in call.call.node.args)
    if not is_fused and not name.endswith("_"):
        lists += 1
    word = name.removeprefix("_foreach_").removesuffix("_")
    variant = "fused" if is_fused else _VARIANTS.get(word, "")
    cost = call.cost
    passed = Pass(
        min(max(lists, 1), len(_MOST_TENSORS)),
        cost.read_bytes / elements,
        cost.written_bytes / elements,
        variant,
        has_scalars=any(isinstance(each, (tuple, list)) and not _holds_tensors(each) for each in call.call.node.args),
    )
    return together(results[0].dtype, [x.numel for x in results], passed)


def together(dtype: str, group: Sequence[int], passed: Pass) -> list[Kernel]:
    """One pass over tensors of these numbers of elements."""
    kernels: list[Kernel] = []
    known: dict[_Packed, Kernel] = {}
    for packed, times in _packed(group, passed):
        if packed not in known:
            read, written = (round(size * packed.elements) for size in (passed.read, passed.written))
            sizes = Chunks(packed.chunks, packed.largest)
            known[packed] = Kernel("optimizer", dtype, 0, 0, read, written, sizes, variant=passed.variant)
        kernels += [known[packed]] * times
    return kernels
