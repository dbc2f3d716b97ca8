"""Kernels of operators on lists of tensors, which optimizers and FSDP call: each kernel processes chunks of many tensors."""

from collections.abc import Iterator, Sequence

from graphflops.base.record import Record
from graphflops.graph import Ref
from graphflops.kernels.call import ConcreteCall
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import Chunks, Kernel

# Elements that a thread block processes, and blocks of one kernel.
_CHUNK, _MOST_BLOCKS = limits("aten_2", "foreach", "chunk most_blocks")
# Most tensors per kernel if it reads or writes one, two, ... lists; and if each tensor has a scalar of its own.
_MOST_TENSORS = limits("aten_2", "foreach", "one two three four five")
(_MOST_WITH_SCALARS,) = limits("aten_2", "foreach", "with_scalars")
MOST_ELEMENTS = 2**40  # more than any device holds: the kernels of such calls are not listed one by one
# Arithmetic that takes longer than the traffic.
_VARIANTS = {"div": "division", "addcdiv": "quotient", "sqrt": "root"}


class Pass(Record, frozen=True):
    """One operator over lists."""

    tensors: int  # number of lists that a kernel reads or writes
    read: float  # bytes read per element
    written: float
    variant: str = ""  # arithmetic that takes longer than the traffic
    has_scalars: bool = False  # whether each tensor has a scalar of its own


def foreach(call: ConcreteCall) -> list[Kernel]:
    """The kernels of a call on lists. Results are one more list, unless the call is in-place."""
    arguments = call.call.node.args
    given = [[one for one in each if isinstance(one, Ref)] for each in arguments if isinstance(each, tuple)]
    lists = [each for each in given if each]
    group = [tensor for each in lists[:1] for ref in each if (tensor := call.named(ref.name)) is not None]
    elements = sum(x.numel for x in group)
    if not elements:
        return []
    read, written = (size / elements for size in call.cost.moved)
    word = call.operator.word
    single = word.removeprefix("_foreach_").rstrip("_")
    variant = "fused" if word.startswith("_fused") else _VARIANTS.get(single, "")
    tensors = min(len(lists) + (not call.operator.mutates), len(_MOST_TENSORS))
    passed = Pass(tensors, read, written, variant, has_scalars=len(lists) < len(given))
    dtype = group[0].dtype
    if elements > MOST_ELEMENTS:
        return [Kernel("optimizer", dtype, 0, 0, *call.cost.moved, variant=passed.variant)]
    return together(dtype, [x.numel for x in group], passed)


def together(dtype: str, group: Sequence[int], passed: Pass) -> list[Kernel]:
    """The kernels of one operator on tensors with these numbers of elements."""
    kernels = []
    for chunks, elements, largest in _packed(group, passed):
        moved = round(passed.read * elements), round(passed.written * elements)
        kernels.append(Kernel("optimizer", dtype, 0, 0, *moved, Chunks(chunks, largest), passed.variant))
    return kernels


def _packed(group: Sequence[int], passed: Pass) -> Iterator[tuple[int, int, int]]:
    """For each kernel, filled with as many chunks as its arguments hold: its chunks, elements, and longest chunk."""
    most = _MOST_TENSORS[passed.tensors - 1]
    if passed.has_scalars:
        most = min(most, _MOST_WITH_SCALARS)
    chunks = elements = largest = tensors = 0
    for size in filter(None, group):
        tensors += 1
        left = size
        while left:
            taken = min(left, (_MOST_BLOCKS - chunks) * _CHUNK)
            chunks, elements = chunks - (-taken // _CHUNK), elements + taken
            largest, left = max(largest, min(left, _CHUNK)), left - taken
            if chunks == _MOST_BLOCKS or tensors == most:
                yield chunks, elements, largest
                chunks = elements = largest = 0
                tensors = 1 if left else 0
    if chunks:
        yield chunks, elements, largest
