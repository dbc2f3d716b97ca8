"""A program's kernels in the order in which they are launched, with the CPU's time for each call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import eq

from msgspec import Struct

from graphflops.attention.kernel import attention_kernel
from graphflops.base.lazy import imported
from graphflops.base.record import replace
from graphflops.cost import free
from graphflops.execution.composed_gradients import kernel_calls
from graphflops.execution.gradient_layouts import GradientLayouts
from graphflops.execution.layouts import Layouts, attention_problem
from graphflops.execution.runs import Runs
from graphflops.execution.strides import channels_last, row_major
from graphflops.graph import Node, Step
from graphflops.kernels.buffers import saved_input_bytes
from graphflops.kernels.call import ConcreteCall, OpenSizeError, Sizes, Tensor
from graphflops.kernels.kernel import IMAGE_RANK, AttentionKernel, Exchange, Kernel
from graphflops.kernels.lower import forward_kernels, inside_operator
from graphflops.kernels.moved import HostCopy, copy, elementwise, host_copy, pointwise
from graphflops.kernels.rowwise import loss_kernels
from graphflops.passes.gradients import gradient_checkpoints
from graphflops.passes.program import PricedCall, PricedGraph, PricedProgram
from graphflops.tensor import TensorType
from graphflops.time import schedule
from graphflops.time.exchanges import Exchanges, Launches, awaited_later

_NOTHING = (free(), free(alias=False))  # of calls without results: they run no kernel at any sizes
_NAMED: tuple[AttentionKernel, ...] = ("flash", "efficient", "cudnn")  # kernels with operators of their own


class _Site(Struct, frozen=True, eq=False):
    """What decides a call's launches beside sizes. It is found once, for the first of equal calls."""

    call: PricedCall
    layouts: Layouts
    entering: float  # CPU seconds for entering modules
    outer: Node | None  # the composite that makes the call
    is_inside: bool  # whether it belongs to a module that is one operator
    is_late: bool  # whether it is a collective that is waited for later
    is_on_host: bool  # whether the CPU runs it, such as the counting of an optimizer's steps
    moved: HostCopy | None  # the copy from or to the host that it makes


_Sites = list[tuple[PricedCall, _Site]]


class Launcher:
    """Lowers a program's calls at given sizes; equal calls are lowered once. costs: CPU seconds by kind of call."""

    def __init__(
        self, program: PricedProgram, values: Mapping[str, int], runs: Runs, costs: schedule.Costs
    ) -> None:
        self.program, self.runs, self.costs = program, runs, costs
        self.sizes = Sizes(values)
        self.parameters = {entry.name for entry in program.graph.inputs if entry.role == "parameter"}
        self.records = False  # whether autograd records the calls
        self.sites: dict[tuple[PricedGraph, bool], _Sites] = {}
        self.kinds: dict[tuple[object, ...], _Site] = {}
        self.known: dict[tuple[Layouts, bool, bool, bool, bool, int | None], tuple[Kernel, ...] | None] = {}
        self.tensors: dict[Layouts, dict[str, Tensor | None]] = {}  # of all calls, by name
        self.called: dict[_Site, Launches] = {}  # what equal calls launch in the forward
        self.joined: dict[tuple[Kernel, ...], tuple[Kernel, ...]] = {}

    def at(self, values: Mapping[str, int]) -> None:
        self.sizes = Sizes(values)
        self.known, self.tensors, self.called = {}, {}, {}

    def forward(self, *, records: bool) -> list[Launches]:
        """The launches of the forward, with nested graphs behind the call that runs them. records: if a backward follows."""
        self.records = records
        stacks = [call.node.module_stack for call in self.program.main.inlined.calls]
        start = Launches(-1, (), schedule.start_seconds(self.costs, stacks))
        return [start, *self._forward(self.program.main.inlined, 0, 1)]

    def backward(self) -> list[Launches]:
        """The launches of the gradients, last call first, with sums of the gradients of values that several calls use."""
        self.records = True
        loss = loss_kernels(self.program, self.sizes, stores_gradients=False)
        start = Launches(-1, loss, self.costs["backward.start"])
        return [start, *self._backward(self.program.main.inlined, 0, 1)]

    def _forward(self, graph: PricedGraph, first: int, times: int) -> Iterator[Launches]:
        key = (graph, self.records)
        if key not in self.sites:
            self.sites[key] = self._sites(graph, self.runs.of(graph, records=self.records).calls)
        yield from self._run(graph, self.sites[key], first, times)

    def _sites(self, graph: PricedGraph, calls: Sequence[PricedCall]) -> _Sites:
        run = around = self.runs.of(graph, records=self.records)
        inside = frozenset[str]()  # calls that one operator of torch.nn replaces if nothing wants a gradient
        if not self.records and (fast := self.runs.of(graph, has_fast_paths=True)) is not run:
            left = {call.node.name for call in fast.calls}
            inside = frozenset(call.node.name for call in run.calls if call.node.name not in left)
            around = fast
        late = awaited_later(calls) if graph.graph.has_exchanges else ()
        step = graph.graph.step or Step((), ())
        counters, away = step.counters, step.hosted()
        entered, sites = "", []
        for call in calls:
            stack, name, entering = call.node.module_stack, call.node.name, 0.0
            if stack and stack != entered:
                entering = schedule.entering_seconds(self.costs, _entered(entered, stack))
                entered = stack
            layouts, outer = (run if name in inside else around).layouts, run.expanded.outer.get(name)
            form: object = layouts.forms.of(call)
            if not call.node.outputs and call.estimate in _NOTHING:  # checks: each layer has several
                form = (call.node.op, *map(type, map(layouts.values.get, call.uses)))
            composite = outer and (outer.operator.name, outer.outputs[0] == call.node.outputs[0])
            # Whether it only reads and writes an optimizer's counters, or what is in host memory.
            is_on_host = bool(counters) and not counters.isdisjoint(call.tensors(layouts.values)[:1])
            is_on_host = is_on_host and {*filter(None, call.node.outputs)} <= counters
            moved = host_copy(call, away, step.aside) if away else None
            is_on_host |= moved is None and bool(away) and call.node.is_in(away)
            where = (name in inside, name in late, is_on_host, moved)
            key = (layouts, self.records, name if form is None else form, entering, composite, *where)
            site = self.kinds.get(key)
            if site is None:
                site = self.kinds[key] = _Site(call, layouts, entering, outer, *where)
            sites.append((call, site))
        return sites

    def _run(self, graph: PricedGraph, sites: _Sites, first: int, times: int) -> Iterator[Launches]:
        exchanges, step = Exchanges(), graph.graph.step
        is_followed = graph.graph.has_exchanges
        for call, site in sites:
            row = first + call.row
            if call.estimate.unknown:
                yield Launches(row, None, 0.0, times)
                continue
            called = self.called.get(site)
            if called is None:
                called = self.called[site] = self._called(site)
            kernels = called.kernels
            if step is not None and call.row and step.phases[call.row] != step.phases[call.row - 1]:
                start = schedule.phase_seconds(self.costs, step.phases[call.row], len(self.parameters))
                yield Launches(-1, (), start)
            if is_followed or exchanges.pending:
                is_gradient = step is not None and step.phases[call.row] == "backward"
                is_view = not kernels and call.estimate.alias
                yield from exchanges.waited(call, is_view=is_view, is_gradient=is_gradient)
            host = called.host_seconds + (0.0 if step is None else self._dispatched(step, call.row))
            launch = Launches(row, kernels, host, times, called.waits)
            is_beside = site.moved is not None and site.moved.order == "beside"
            if kernels and (is_beside or kernels[-1].family == "collective"):
                yield from exchanges.started(launch, call.node.outputs, call.node.group)
            else:
                yield launch
            if call.estimate.regions:
                for inner, place, turns in self._nested(call, row, times):
                    yield from self._forward(inner, place, turns)
        yield from exchanges.ends(exchanges.pending)

    def _called(self, site: _Site) -> Launches:
        """What equal calls launch in the forward, without the dispatches around a recorded call."""
        call, layouts = site.call, site.layouts
        operator = call.node.operator
        values = map(layouts.values.get, call.uses)
        operands = [value for value in values if isinstance(value, TensorType)]
        kernels = self._lowered(call, layouts, is_backward=False)
        if site.is_on_host:  # CPU times are known only for scalars
            is_long = any(value.shape for value in operands)
            kernels = None if kernels and is_long else ()
        if site.moved is not None:
            kernels = (site.moved.kernel(layouts.typed(call.uses[0])),)
        if self.records and kernels and saved_input_bytes(call, layouts.values) != 0:
            written = self.sizes.tensor(layouts.typed(call.uses[0]))
            kernels = (copy(written), *kernels)  # the copy is saved for backward
        host = self._host_inside(call, site.outer, "forward", kernels)
        if host is None:
            if self.program.graph.step is not None:
                host = schedule.recorded_seconds(self.costs, operator, kernels or (), len(operands))
            else:
                kept = self.records and call.gradient is not None
                host = schedule.forward_seconds(self.costs, operator, kernels or (), records=kept)
            if not (operands or any(isinstance(value, TensorType) for value in call.estimate.out)):
                host = 0.0  # Python's arithmetic
            if operator.is_exchange and call.estimate.alias:
                host = self.costs["forward.plain_collective"]
        host += site.entering
        if site.is_inside:
            kernels = None if kernels is None else inside_operator(call, kernels)
            host = len(kernels or ()) * self.costs["forward.inside"]
        if site.is_late:  # without the wrapper tensor, which waits when it is first read
            host = self.costs["forward.plain_collective"]
        if site.is_on_host:
            host = len(operands) * self.costs["optimizer.tensor"]
        # A mask with one number to write needs no wait: it becomes other calls.
        is_read = schedule.waits(operator, operands) and kernel_calls(call, layouts.values) is None
        is_waiting = is_read or (site.moved is not None and site.moved.order == "waits")
        return Launches(-1, kernels, host, waits=not site.is_on_host and is_waiting)

    def _host_inside(
        self, call: PricedCall, outer: Node | None, phase: str, kernels: Sequence[Kernel] | None
    ) -> float | None:
        """CPU time of a call in a composite, whose cost the call that makes its result has; None for other calls."""
        if outer is None:
            return None
        is_last = call.node.outputs[0] == outer.outputs[0]
        cost = self.costs.get(f"{phase}.{outer.operator.name}")
        if cost is None:
            if outer.operator.kind != "attention" and (is_last or phase == "backward"):
                return None
            return len(kernels or ()) * self.costs.get(f"{phase}.inside", self.costs["forward.inside"])
        further = self.costs[f"{phase}.further_kernel"]
        return len(kernels or ()) * further + (cost - further) * is_last

    def _backward(self, graph: PricedGraph, first: int, times: int) -> Iterator[Launches]:
        run = self.runs.of(graph, records=True)
        calls, layouts = run.calls, run.layouts
        seeds = {*graph.graph.seeds}
        lie = GradientLayouts(layouts, seeds, {*seeds} if graph is self.program.summed else set())
        again = {found.last: found for found in gradient_checkpoints(calls, run.recomputed)}
        for index in range(len(calls) - 1, -1, -1):
            call = calls[index]
            row = first + call.row
            if index in again:
                sites = self._sites(graph, calls[again[index].first : again[index].end])
                yield from self._run(graph, sites, first, times)
            for inner, place, turns in reversed(list(self._nested(call, row, times))):
                yield from self._backward(inner, place, turns)
            if call.gradient is None:
                continue
            kernels = self._lowered(call, layouts, is_backward=True, is_repeated=lie.is_repeated(call))
            copies, (turned, summed) = list[Kernel](), lie.follow(call)
            if turned is not None:
                out = self.sizes.known(layouts.typed(call.node.outputs[0] or ""), turned)
                copies = [] if out is None else [copy(out)]
            launched = (*copies, *(kernels or ()), *self._sums(call, summed, layouts))
            read = dict(enumerate(call.tensors(layouts.values)))
            launched = self.joined.setdefault(launched, launched)  # equal ones are timed once
            own = self._host_inside(call, run.expanded.outer.get(call.node.name), "backward", launched)
            parameters = sum(read.get(place) in self.parameters for place, _ in call.gradient.gradients)
            host = schedule.backward_seconds(self.costs, call.node.operator, launched, parameters)
            host = host if own is None else own
            yield Launches(row, None if kernels is None else launched, host, times)

    def _sums(self, call: PricedCall, names: Sequence[str], layouts: Layouts) -> list[Kernel]:
        """Additions of second and further gradients of values; none if a size is open.

        The gradient of a mean is a quotient of a broadcast view: it is in row-major order, whatever the value's strides.
        """
        sums: list[Kernel] = []
        for name in names:
            if (x := self.sizes.known(layouts.typed(name), layouts.of(name))) is not None:
                traffic = 2 * x.full_bytes, x.full_bytes, x.numel
                of_mean = pointwise(x, [x, replace(x, strides=row_major(x.shape))], *traffic)
                sums.append(of_mean if call.node.operator.name == "mean" else elementwise(x, *traffic))
        return sums

    def _dispatched(self, step: Step, row: int) -> float:
        if not step.wrapped:
            return 0.0
        dispatched = step.wrapped[row] * self.costs["recorded.subclass"]
        return dispatched + step.hooked[row] * self.costs["recorded.hook"]

    def _nested(self, call: PricedCall, row: int, times: int) -> Iterator[tuple[PricedGraph, int, int]]:
        """The graphs that run inside a call, with the place of their first row and the number of runs."""
        place = row + 1
        for run, turns in call.estimate.regions:
            if not isinstance(run, PricedGraph):
                continue
            try:
                count = times * self.sizes(turns)
            except OpenSizeError:
                count = 0
            if count:
                yield run.inlined, place, count
            place += len(run.rows)

    def _attention_kernel(self, call: PricedCall, layouts: Layouts) -> AttentionKernel | None:
        """The kernel that an attention's operator names, or else the kernel that PyTorch chooses; None for other calls."""
        operator = call.node.operator
        word = operator.word.removesuffix("_backward")
        named = next((name for name in _NAMED if word == f"_scaled_dot_product_{name}_attention"), None)
        if named is not None and self.program.graph.step is None:  # in a recorded step the device chooses
            return named
        # Only operators that `ops/` lists choose a kernel.
        is_own = operator.kind == "attention" and bool(operator.parameters)
        if not is_own or operator.is_onnx or operator.has_score_function:
            return None
        problem = attention_problem(call, layouts, self.records)
        if problem is None:
            return None
        if named is not None:  # the operators of a recorded step have no flag for shared heads
            problem = replace(problem, is_grouped=True)
        return attention_kernel(problem, layouts.platform).kernel

    def _lowered(
        self,
        call: PricedCall,
        layouts: Layouts,
        *,
        is_backward: bool,
        is_turned: bool = False,
        is_repeated: bool = False,
    ) -> tuple[Kernel, ...] | None:
        """The kernels of one call in one phase; None if a size is open.

        is_turned: whether its images are channels last. is_repeated: whether its result's gradient repeats one number.
        """
        form = layouts.forms.of(call)
        records = self.records and call.node.operator.kind == "attention"  # others have the same kernels
        key = (layouts, records, is_backward, is_turned, is_repeated, form)
        if form is not None and key in self.known:
            return self.known[key]
        is_copy = layouts.is_copy(next(filter(None, call.node.outputs), None))
        kernel = self._attention_kernel(call, layouts)
        strides, known = layouts.known, self.tensors.setdefault(layouts, {})
        if is_turned:
            typed = {name: layouts.typed(name) for name in call.tensors(layouts.values)}
            images = {name: x.shape for name, x in typed.items() if x.rank == IMAGE_RANK}
            order, known = channels_last(IMAGE_RANK), {}
            strides = {name: row_major(shape, order) for name, shape in images.items()}
        concrete = ConcreteCall(
            call, layouts.values, strides, self.sizes, is_copy, kernel, known, is_repeated
        )
        lower: Callable[[ConcreteCall], list[Kernel]] = forward_kernels
        if is_backward or "_backward" in call.node.operator.word:  # no inference imports this
            lower = imported(f"graphflops.kernels.gradients:{'backward' if is_backward else 'call'}_kernels")
        kernels: tuple[Kernel, ...] | None = None
        with suppress(OpenSizeError):
            kernels = tuple([kernel for kernel in lower(concrete) if kernel.is_launched])
        if kernels and call.node.operator.is_exchange:
            kernels = self._placed(call, kernels)
        if form is not None:
            self.known[key] = kernels
        return kernels

    def _placed(self, call: PricedCall, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """A collective's kernels with the distance between its ranks, if the program's mesh is known."""
        step = self.program.graph.step
        mesh = None if step is None else step.mesh
        group = None if mesh is None else mesh.groups.get(call.node.group)
        *copies, last = kernels
        if group is None or len(group.ranks) < 2 or not isinstance(last.sizes, Exchange):
            return kernels
        stride = max(1, abs(group.ranks[1] - group.ranks[0]))
        return (*copies, replace(last, sizes=replace(last.sizes, stride=stride)))


def _entered(before: str, now: str) -> list[str]:
    """The libraries of the modules that a call is in but the call before it was not."""
    new = now.split(";")
    shared = [*map(eq, before.split(";"), new), False].index(False)
    return [schedule.library(entry) for entry in new[shared:]]
