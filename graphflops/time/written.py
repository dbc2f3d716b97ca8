"""The kernels that inductor writes, as a device runs them: their loads, slow instructions and traffic."""

from math import prod

from graphflops.base.record import replace
from graphflops.graph import Ref
from graphflops.inductor.calls import places_of_interpolation
from graphflops.inductor.fusing import Kernel as PlannedKernel, split_lengths
from graphflops.inductor.lowering import Extern, Loop, Op, Reduction
from graphflops.inductor.plan import Plan
from graphflops.kernels.call import ConcreteCall, OpenSizeError, Sizes
from graphflops.kernels.choices import all_constants, limits
from graphflops.kernels.convolution import power_of_two, up
from graphflops.kernels.kernel import FLOAT_BYTES, HALF, SINGLE, Kernel, Rows
from graphflops.rules.resample import BILINEAR, taps_of

_PERSISTENT, _TURN = limits("inductor_2", "reduction", "persistent turn")
# Times of parts of a kernel, of functions by operator, and of additions to memory, in loads of an element each.
_TIME, _FUNCTION = all_constants("inductor_2", "written"), all_constants("inductor_2", "function")
_OF_GRADIENT, _ADDED = (all_constants("inductor_2", name) for name in ("function_gradient", "added"))
_ADDED_IN_HALF = all_constants("inductor_2", "added_in_half")
_OF_ROW = (HALF // 8, FLOAT_BYTES, 2 * FLOAT_BYTES)  # bytes of what a block loads once for its row
_DRAWN = ("dropout", "random")
_COMPUTED = ("elementwise", "comparison", "logic", "cast", "identity", "movement", "softmax", *_DRAWN)


class Written:
    """A plan's generated kernels, as a device runs them."""

    def __init__(self, plan: Plan, sizes: Sizes) -> None:
        self.plan, self.joint, self.sizes = plan, plan.joint, sizes
        self.calls = {call.node.name: call for call in plan.execution.calls}
        self.known: dict[tuple[int | str, bool], float] = {}

    def kernel(self, planned: PlannedKernel) -> Kernel | None:
        """A kernel that reads each outside buffer once, and stores what others read; None if a size is open."""
        loops, sizes = [op for op in planned.members if isinstance(op, Loop)], self.joint.sizes
        part = {op.outputs[0]: op.part_bytes for op in loops if op.part_bytes != 0}
        elements, adding = max(op.elements for op in loops), [op for op in loops if op.role == "adding"]
        reductions = [op for op in loops if isinstance(op, Reduction)]
        is_inner = bool(reductions) and all(op.is_inner for op in reductions)
        try:
            loads, read, is_flat = self._reads(planned)
            is_flat = is_flat and not any(op.moved or op.is_across for op in loops)
            # The tensor that it adds to is written by another kernel.
            summed = {name for op in adding for name in op.outputs}
            whole = [name for name in planned.outputs if name not in summed]
            written = sum(self.sizes(part.get(name) or sizes.get(name, 0)) for name in whole)
            written += sum(self._added(op) for op in adding)
            slow = sum(self._slow(op) * op.elements for op in loops)
            slow += sum(map(self._slow, self._inside(planned))) * elements
        except OpenSizeError:
            return None
        slow += _TIME["point"] * sum(op.elements for op in loops if self._is_apart(op))
        # One block for each row: neighbouring elements of a block are in different sectors.
        if any(map(self._is_split_scan, reductions)):
            slow += _TIME["point"] * elements * (loads + len(whole))
        if any(op.role == "moments" and not op.is_inner for op in reductions):
            slow += _TIME["outer_moment"] * elements
        kept = max([op.kept for op in reductions], default=0)
        rows = Rows(kept, -(-elements // kept), is_inner) if kept else None
        softmaxes = [op for op in reductions if self._is_softmax(op) and not op.is_gradient]
        joins = bool(softmaxes) or any(op.role == "moments" for op in reductions)
        if not is_flat and rows is None:
            slow += _TIME["places"] * elements
        found = written_kernel(elements, loads, read, written, slow, rows, joins)
        roles = {op.role if op.role.startswith("parts") else "" for op in reductions}
        return replace(found, variant=f"fused.{max(roles, key=len)}") if roles and "" not in roles else found

    def start(self, op: Extern) -> Kernel | None:
        """The copy of a matrix that a product adds to (`addmm`); a row is added by the product's own kernel."""
        is_row = isinstance(self.calls[op.node].node.arguments().get("bias"), Ref) and not op.is_gradient
        if op.role != "product and sum" or is_row:
            return None
        size, added = self._bytes(op.outputs[0]), self._bytes(op.reads[-1])
        return Kernel("elementwise", "float32", 0, 0, size, size) if added == size else None

    def _is_split_scan(self, op: Reduction) -> bool:
        """Whether several blocks share a row along an outer axis, as when there are few rows (`SplitScan` of inductor)."""
        if op.role != "scan" or op.is_inner or not op.kept:
            return False
        platform, length = self.plan.execution.layouts.platform, op.elements // op.kept
        return len(split_lengths(op.kept, length, platform, is_inner=False, of_moments=False)) > 1

    def _inside(self, planned: PlannedKernel) -> list[Loop]:
        """The operators that a kernel computes without storing their results."""
        inside: dict[str, Loop] = {}
        todo = [made for op in planned.members if isinstance(op, Loop) for made in op.computes]
        while todo:
            op = todo.pop()
            if op.outputs[0] not in inside:
                inside[op.outputs[0]] = op
                todo += op.computes
        return [*inside.values()]

    def _reads(self, planned: PlannedKernel) -> tuple[float, int, bool]:
        """A kernel's loads per element, the bytes that it reads, and whether it reads only whole tensors of its size."""
        whole: dict[str, Op] = {}
        parts: dict[str, dict[str, int]] = {}
        outside = set(planned.reads)
        for op in planned.members:
            for name in [read for read in op.reads if read in outside]:  # a sum of floats follows their order
                if name in op.parts:
                    read = parts.setdefault(name, {})
                    read.update((part, self.sizes(size)) for part, size in op.parts[name].items())
                else:
                    whole[name] = op
        total = sum(self._bytes(name) for name in whole)
        beside = [(name, read) for name, read in parts.items() if name not in whole]
        total += sum(min(sum(read.values()), self._bytes(name)) for name, read in beside)
        kept = [op.kept for op in planned.members if isinstance(op, Reduction) and op.is_inner]
        once = {count * width for count in kept for width in _OF_ROW}
        each = [(size, op.elements) for name, op in whole.items() if (size := self._bytes(name)) not in once]
        narrow = [size < elements for size, elements in each]
        loads = sum(_TIME["narrow"] if is_narrow else 1 for is_narrow in narrow)
        return loads + sum(map(len, parts.values())), total, not any(narrow) and not parts

    def _added(self, op: Op) -> int:
        """Bytes that an operator adds to. Its other parts are read, by what is computed inside of it."""
        sums = [self.sizes(part[name]) for part in op.parts.values() for name in op.outputs if name in part]
        return sum(sums) or FLOAT_BYTES * op.elements

    def _bytes(self, name: str) -> int:
        return self.sizes(self.joint.inputs.get(name) or self.joint.sizes.get(name, 0))

    def _is_apart(self, op: Loop) -> bool:
        """Whether neighbouring threads write to different sectors.

        A copy that transposes has no tiles if it reads what was written in place: inductor looks for the tensor's new name
        among the reads (`extract_normalized_read_writes` of torch/_inductor/tiling_utils.py).
        """
        return op.role == "apart" or (op.is_across and not self.joint.written.isdisjoint(op.reads))

    def _is_softmax(self, op: Loop) -> bool:
        return op.node in self.calls and self.calls[op.node].node.operator.kind == "softmax"

    def _slow(self, op: Loop) -> float:
        """The time of an operator's slow instructions, in loads per element."""
        call, is_softmax = self.calls.get(op.node), self._is_softmax(op)
        if call is None or (isinstance(op, Reduction) and (op.is_gradient or not is_softmax)):
            return 0
        if op.role == "join":
            return _TIME["part"] * len(call.uses)
        key = (self.plan.execution.forms.of(call) or op.node, op.is_gradient)
        if key not in self.known:
            layouts, is_last = self.plan.execution.layouts, self.joint.channels_last
            concrete = ConcreteCall(call, layouts.values, layouts.known, self.sizes)
            if op.is_gradient:
                self.known[key] = _slow_gradient(concrete)
            else:
                self.known[key] = _slow_result(concrete, _TIME["window_last" if is_last else "window"])
        found = self.known[key]
        if op.is_gradient:
            is_sum = call.node.operator.kind in ("gather", "resampling")
            return found if op.role == "adding" or not is_sum else 0
        return found if is_softmax or op.outputs[0] in call.node.outputs else 0


def _slow_result(concrete: ConcreteCall, window: float = _TIME["window"]) -> float:
    kind, cost = concrete.operator.kind, concrete.cost
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    if kind == "pooling":
        return window * (cost.vector_flops // elements)
    if concrete.operator.name == "grid_sample":
        mode = concrete.own.get("interpolation_mode") or BILINEAR
        return _TIME["point"] * max(1, taps_of(mode, concrete.operands[0].rank - 2))
    if kind == "resampling":  # a load for each further place
        return max(places_of_interpolation(concrete.call, concrete.operands[0].rank) - 1, 0)
    if kind not in _COMPUTED or _is_product(concrete):
        return 0
    functions = _function(concrete.operator.name) * (cost.transcendentals // elements)
    return functions + _TIME["random"] * (kind in _DRAWN)


def _function(name: str) -> float:
    """The time of an operator's function. Exponentials and roots are one instruction; most others are long (libdevice)."""
    return _FUNCTION.get(name.removesuffix("_backward"), _TIME["function"])


def _is_product(concrete: ConcreteCall) -> bool:
    """Whether a power is a few multiplications (`pow_recursive` of torch/_inductor/lowering.py)."""
    exponent = concrete.own.get("b") if concrete.operator.name == "pow" else None
    return isinstance(exponent, (int, float)) and float(exponent).is_integer()


def _slow_gradient(concrete: ConcreteCall) -> float:
    """The time of a gradient's transcendental functions, pooling windows, or additions to memory, in loads per element."""
    kind, cost, gradient = concrete.operator.kind, concrete.backward_cost, concrete.gradient
    if kind == "gather":  # threads that add to the same place wait for each other
        table = concrete.operands[0]
        if not table.rank or table.shape[-1] >= _ADDED["wide"]:
            return _ADDED["row"]
        few = _ADDED if concrete.operator.is_embedding or table.bits >= SINGLE else _ADDED_IN_HALF
        return max(_ADDED["row"], min(few["most"], few["one"] // max(table.numel, 1)))
    if kind == "resampling":
        return _ADDED["apart"] * places_of_interpolation(concrete.call, concrete.operands[0].rank)
    if kind == "pooling":
        x = concrete.operands[0]
        is_global = concrete.out is None or prod(concrete.out.shape[2:]) == 1
        windows = 0 if is_global else max(1, concrete.cost.vector_flops // max(x.numel, 1))
        return _TIME["window_gradient"] * windows
    if kind not in _COMPUTED or gradient is None or not (gradient.operands or gradient.results):
        return 0
    elements = max(concrete.out.numel if concrete.out else 1, 1)
    name = concrete.operator.name
    # Beside it there is an exponential at most.
    return _OF_GRADIENT.get(name, _function(name)) * min(cost.transcendentals // elements, 1)


def written_kernel(
    elements: int, loads: float, read: int, written: int, slow: float, rows: Rows | None, joins: bool = False
) -> Kernel:
    """A pointwise kernel, or one that reduces rows. loads: per element. slow: the time of slow instructions, in loads.

    A block holds a row in registers, whose number is a power of two. It loops over a longer row, and does so again for the
    results. Means with variances, and softmax (joins), also join the elements that the last turn of the loop lacks.
    """
    if rows is None:
        work = int(elements * (_TIME["loop"] + loads) + slow)
        return Kernel("elementwise", "float32", 0, work, read, written, variant="fused")
    each, variant = _TIME["outer_load"] * loads, "fused.outer"
    if rows.is_inner:
        each, variant, held = _TIME["inner"], "fused", rows.columns
        if held <= _PERSISTENT:
            held = power_of_two(held)
        else:
            each *= loads * (1 + _TIME["again"] * (written >= elements))
            held, each = (up(held, _TURN), each + _TIME["joined"]) if joins else (held, each)
        each *= held / rows.columns
    return Kernel("reduction", "float32", 0, int(elements * each + slow), read, written, rows, variant)
