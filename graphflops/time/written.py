"""The kernels that inductor writes, with what decides how long they run: traffic, elements, and slow instructions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.inductor.layout_choice import image_and_weight
from graphflops.kernels.call import ConcreteCall, OpenSizeError
from graphflops.kernels.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphflops.inductor.fusing import Kernel as PlannedKernel
    from graphflops.inductor.joint_graph import Op
    from graphflops.inductor.plan import Plan
    from graphflops.kernels.call import Sizes
    from graphflops.passes.program import PricedCall

_LOOP = 2  # time of an element of a loop beside its loads, by that of a load
_INNER, _INNER_LOAD, _OUTER_LOAD = 5.5, 1.1, 2.2  # the same of an element that is reduced, and of its loads
_BRANCH = 3  # loads that the choice of an operand, as of a `cat`, takes as long as
_WINDOW, _GRADIENT_WINDOW = 5, 10  # loads that an element of a window of pooling takes as long as
_FUNCTION, _GRADIENT_OF_FUNCTION = 4, 7  # loads that a transcendental function takes as long as
_FEW_CHANNELS, _APART = (
    8,
    30,
)  # channels of an image; loads that writing an element of so few takes as long as
_RANDOM = 14  # loads that a random number takes as long as
_WIDE = 64  # elements of a row, above which threads add to different places
_ADDED = 5  # loads that an addition to memory takes as long as
# The same where few places are added to again and again, at most, and of one place: in float32, and in half precision.
_CONTENDED, _CONTENDED_HALF = (4_000, 1_000_000), (20_000, 45_000_000)
_FLOAT_BITS = 32
_COMPUTED = frozenset(
    {"elementwise", "comparison", "logic", "cast", "identity", "movement", "dropout", "random"}
)


class Written:
    """Kernels of a plan as a device runs them."""

    def __init__(self, plan: Plan, sizes: Sizes) -> None:
        self.plan, self.joint, self.sizes = plan, plan.joint, sizes
        self.calls = {call.node.name: call for call in plan.execution.calls}
        self.known: dict[tuple[int | str, bool], int] = {}

    def kernel(self, planned: PlannedKernel, computed_again: Mapping[str, Op]) -> Kernel | None:
        """A kernel that reads what others made, each buffer once, and stores what is read elsewhere; None for open sizes."""
        try:
            return self._kernel(planned, computed_again)
        except OpenSizeError:
            return None

    def _kernel(self, planned: PlannedKernel, computed_again: Mapping[str, Op]) -> Kernel:
        loads, read = self._reads(planned)
        part = {op.outputs[0]: op.part_bytes for op in planned.members if op.part_bytes != 0}
        sizes = self.joint.sizes
        written = sum(self.sizes(part.get(name) or sizes.get(name, 0)) for name in planned.outputs)
        elements = max(op.elements for op in planned.members)
        slow = sum(self._slow(op) * op.elements for op in planned.members)
        slow += sum(self._slow(op) for op in _inside(planned, computed_again)) * elements
        if any(_adds_to_memory(op, self.calls) for op in planned.members):
            written += read
        reductions = [op for op in planned.members if op.kept]
        if reductions:
            is_inner = all(op.is_inner for op in reductions)
            return reduction_kernel(elements, loads, read, written, slow=slow, is_inner=is_inner)
        return loop_kernel(elements, loads, read, written, slow=slow)

    def _reads(self, planned: PlannedKernel) -> tuple[int, int]:
        """How many loads a kernel has for each element, and how many bytes they read."""
        whole: set[str] = set()
        parts: dict[str, dict[str, int]] = {}
        outside = set(planned.reads)
        for op in planned.members:
            for name in outside.intersection(op.reads):
                if name in op.parts:
                    found = parts.setdefault(name, {})
                    found.update((part, self.sizes(size)) for part, size in op.parts[name].items())
                else:
                    whole.add(name)
        total = sum(self._bytes(name) for name in whole)
        total += sum(
            min(sum(read.values()), self._bytes(name)) for name, read in parts.items() if name not in whole
        )
        return len(whole) + sum(len(read) for read in parts.values()), total

    def _bytes(self, name: str) -> int:
        return self.sizes(self.joint.inputs.get(name) or self.joint.sizes.get(name, 0))

    def _slow(self, op: Op) -> int:
        """Loads that the slow instructions of an operator take as long as, for each element."""
        call = self.calls.get(op.node)
        if call is None or op.kind != "pointwise":
            return 0
        if op.is_random:
            return _RANDOM
        if op.moved and call.node.operator.kind == "convolution":
            return self._slow_copy(call, op)
        key = (self.plan.execution.forms.of(call) or op.node, op.is_gradient)
        if key not in self.known:
            layouts = self.plan.execution.layouts
            concrete = ConcreteCall(call, layouts.values, layouts.known, self.sizes)
            self.known[key] = _slow_gradient(concrete) if op.is_gradient else _slow_result(concrete)
        found = self.known[key]
        if op.is_gradient:
            return found if call.node.operator.kind != "gather" or _adds_to_memory(op, self.calls) else 0
        return found if op.outputs[0] in call.node.outputs else 0

    def _slow_copy(self, call: PricedCall, op: Op) -> int:
        """The same of the copy of an operand: few channels that become the innermost axis are written far apart."""
        found = image_and_weight(call, self.plan.execution.values)
        if found is None or op.elements != self.joint.number(found[0].numel):
            return 0
        return _APART if 1 < self.joint.number(found[0].shape[1]) < _FEW_CHANNELS else 0


def _inside(planned: PlannedKernel, computed_again: Mapping[str, Op]) -> Iterator[Op]:
    """The operators whose results are not stored that a kernel computes."""
    todo = [name for op in planned.members for name in op.computes]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        op = computed_again.get(name)
        if op is not None and name not in seen:
            seen.update(op.outputs)
            todo += op.reads
            yield op


def _adds_to_memory(op: Op, calls: Mapping[str, PricedCall]) -> bool:
    """Whether an operator adds rows to a table: the gradient of a gather."""
    call = calls.get(op.node)
    is_sum = op.is_gradient and op.is_alone and bool(op.reads)
    return call is not None and is_sum and call.node.operator.kind == "gather"


def _slow_result(concrete: ConcreteCall) -> int:
    kind, cost = concrete.operator.kind, concrete.cost
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    if kind == "movement" and len(concrete.operands) > 1:
        return _BRANCH * len(concrete.operands)
    if kind == "pooling":
        return _WINDOW * (cost.vector_flops // elements)
    if kind not in _COMPUTED:
        return 0
    return _FUNCTION * (cost.transcendentals // elements)


def _slow_gradient(concrete: ConcreteCall) -> int:
    """Of transcendental functions, of windows, and of additions to memory."""
    kind, cost, gradient = concrete.operator.kind, concrete.backward_cost, concrete.gradient
    if kind == "gather":
        return _slowness(concrete)
    if kind == "pooling":
        x = concrete.operands[0]
        is_global = concrete.out is None or prod(concrete.out.shape[2:]) == 1
        return 0 if is_global else _GRADIENT_WINDOW * max(1, concrete.cost.vector_flops // max(x.numel, 1))
    if kind not in _COMPUTED or gradient is None or not (gradient.operands or gradient.results):
        return 0
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    return _GRADIENT_OF_FUNCTION * (cost.transcendentals // elements)


def _slowness(concrete: ConcreteCall) -> int:
    """Loads that one addition to a row takes as long as: threads that add to one place wait for one another."""
    table = concrete.operands[0]
    if not table.rank or table.shape[-1] >= _WIDE:
        return _ADDED
    in_float = concrete.operator.is_embedding or table.bits >= _FLOAT_BITS
    most, one = _CONTENDED if in_float else _CONTENDED_HALF
    return max(_ADDED, min(most, one // max(table.numel, 1)))


def loop_kernel(elements: int, loads: int, read: int, written: int, *, slow: int = 0) -> Kernel:
    """A pointwise kernel. loads: of each element. slow: loads that its slow instructions take as long as."""
    return Kernel(
        "elementwise", "float32", 0, elements * (_LOOP + loads) + slow, read, written, variant="fused"
    )


def reduction_kernel(
    elements: int, loads: int, read: int, written: int, *, slow: int = 0, is_inner: bool = True
) -> Kernel:
    """A kernel that reduces rows; arguments are those of a pointwise one. is_inner: along the innermost axis."""
    each = _INNER + _INNER_LOAD * loads if is_inner else _OUTER_LOAD * loads
    variant = "fused" if is_inner else "fused.outer"
    return Kernel("reduction", "float32", 0, int(elements * each) + slow, read, written, variant=variant)
