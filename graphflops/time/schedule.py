"""The CPU's time for a call, and the times of kernels added up: one after the other, or as the CPU can launch them.

In eager execution a call takes Python, the dispatcher, autograd, and the launches. The host section of a device's profile
has the seconds of one call by the operator or its kind. A program of small kernels runs at the speed of the CPU.

Collectives run beside other kernels: NCCL has a stream of its own. PyTorch's functional collectives return at once, and the
stream of the other kernels waits when a result is first read, other than by a view. An export writes the wait down right
after the call; one that stands further down was written by the user, and waits there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from graphflops.graph import Phase
from graphflops.kernels.kernel import Kernel, Recurrence
from graphflops.kernels.products import is_resident
from graphflops.ops import Op
from graphflops.tensor import TensorType

Costs = Mapping[str, float]

_UNCALLED = frozenset({"size", "sequence", "control"})


def waits(operator: Op, operands: Iterable[object]) -> bool:
    """Whether the CPU waits for the GPU: it reads a number, or how many elements the result has."""
    indices = [*operands][1:] if operator.name in ("index", "index_put") else []
    is_mask = any(isinstance(each, TensorType) and each.dtype.name == "bool" for each in indices)
    return operator.has("is_read_by_cpu") or is_mask


def start_seconds(costs: Costs, stacks: Iterable[str]) -> float:
    """CPU time of a forward outside of its calls. stacks: of modules; some libraries wrap the forwards of their models."""
    entries = {entry for stack in set(stacks) for entry in stack.split(";") if entry}
    libraries = {library(entry) for entry in entries}
    return costs["forward.start"] + sum(costs.get(f"forward.start.{name}", 0.0) for name in sorted(libraries))


def library(entry: str) -> str:
    """The library that the class of a module is from, of an entry of a stack of modules."""
    return entry.rpartition(",")[2].partition(".")[0]


def forward_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], *, records: bool) -> float:
    """CPU time of a call. records: whether autograd keeps it."""
    if operator.kind in _UNCALLED:
        return operator.has("is_read_by_cpu") * costs["forward.call"]
    idle = "forward.skipped" if operator.kind in ("dropout", "cast") else "forward.without_kernel"
    own = _launching(costs, "forward", operator, kernels) if kernels else costs[idle]
    return own + records * costs["forward.recording"]


def recorded_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], tensors: int) -> float:
    """CPU time of a call of a recorded step, which may be a part of what Python called, or autograd's own.

    tensors: how many it reads.
    """
    if operator.kind in _UNCALLED:
        return operator.has("is_read_by_cpu") * costs["forward.call"]
    if operator.copies_for:
        return costs["recorded.sharding"] + tensors * costs["recorded.sharding.tensor"]
    if operator.is_exchange:
        return _launching(costs, "forward", operator, kernels)
    if not kernels:
        return costs["recorded.detach" if operator.name == "detach" else "recorded.without_kernel"]
    lists = tensors if operator.kind == "foreach" else 0
    return _launching(costs, "recorded", operator, kernels) + lists * costs["optimizer.tensor"]


def phase_seconds(costs: Costs, phase: Phase, parameters: int) -> float:
    """CPU time of a phase of a recorded step outside of its calls: of autograd's engine, of an optimizer's Python."""
    if phase == "forward":  # that of the first one is the program's start
        return 0.0
    return costs[f"recorded.{phase}.start"] + parameters * costs[f"recorded.{phase}.parameter"]


def entering_seconds(costs: Costs, modules: Sequence[str]) -> float:
    """CPU time of entering modules. modules: the library of each."""
    return sum([costs.get(f"forward.module.{name}", costs["forward.module"]) for name in modules])


def backward_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], parameters: int) -> float:
    """CPU time of the gradients of a call, some of which are those of parameters. kernels: with sums of gradients."""
    own = _launching(costs, "backward", operator, kernels) if kernels else costs["backward.without_kernel"]
    return own + parameters * costs["backward.parameter"]


def _launching(costs: Costs, phase: str, operator: Op, kernels: Sequence[Kernel]) -> float:
    """Of a call that launches kernels: by operator, as it is spelled or by its name, else by kind, else as any call."""
    if recurrent := recurrent_seconds(costs, kernels):
        return recurrent
    if operator.kind == "attention" and all(kernel.family != "attention" for kernel in kernels):
        inside = f"{phase}.inside"  # unfused, by one operator that calls the others
        return len(kernels) * costs.get(inside, costs["forward.inside"])
    names = [f"{phase}.{name}" for name in (operator.word, operator.name, operator.kind, "call")]
    own = next(costs[name] for name in names if name in costs)
    if operator.kind == "foreach":  # one call of the dispatcher, whatever the number of kernels
        return own
    return own + (sum(kernel.launches for kernel in kernels) - 1) * costs[f"{phase}.further_kernel"]


def recurrent_seconds(costs: Costs, kernels: Sequence[Kernel]) -> float:
    """CPU time of recurrent layers: of the call, of each layer and direction, and of each step unless one kernel has all."""
    seconds = 0.0
    for kernel in kernels:
        if isinstance(sizes := kernel.sizes, Recurrence):
            layers = sizes.layers * sizes.directions
            steps = 0 if is_resident(sizes, kernel.dtype) else sizes.steps * layers
            call, layer, step = (costs[f"recurrent.{part}"] for part in ("call", "layer", "step"))
            seconds += call + layers * layer + steps * step
    return seconds


# How fast a collective and another kernel run while both do, of their speed alone: they share multiprocessors and memory.
# Fitted to 24 pairs of a collective and products or copies on two H200.
_EXCHANGE_SPEED, _KERNEL_SPEED = 0.6, 0.8
_HANDOVER = 6e-6  # seconds until a stream goes on after an event of another
_TAIL = 50e-6  # seconds before the end of a product in which its last tiles leave multiprocessors
_SHORT = 0.2  # of a product's time is the longest tail
_NOTHING = 1e-12  # seconds


def kernels_end(kernels: float, exchange: float) -> float:
    """When kernels of so many seconds end beside an exchange that begins with them."""
    return kernels + (1 - _KERNEL_SPEED) * min(kernels / _KERNEL_SPEED, exchange / _EXCHANGE_SPEED)


def exchange_ends(exchange: float, kernels: float) -> float:
    """When an exchange of so many seconds ends beside kernels that begin with it."""
    return exchange + (1 - _EXCHANGE_SPEED) * min(kernels / _KERNEL_SPEED, exchange / _EXCHANGE_SPEED)


def beside(kernels: float, exchange: float) -> float:
    """Seconds of kernels and of a collective that may all run beside them."""
    return max(kernels_end(kernels, exchange), exchange_ends(exchange, kernels))


class Running(Struct):
    """A collective: from when it may run, and seconds of it that are left."""

    ticket: int
    ready: float
    left: float
    alone: float = 0.0  # seconds in which no other kernel ran
    lasted: float = 0.0  # of one that has ended, seconds since it could run
    ahead: float = 0.0  # seconds before the kernels launched so far have run at which it could


class Link(Struct):
    """The stream of collectives: one runs after the other."""

    queue: list[Running] = []
    now: float = 0.0  # until when it is known what ran
    has_begun: bool = False  # the first of the queue runs
    ends: dict[int, float] = {}  # by ticket, of what is done
    finished: dict[int, Running] = {}
    idle: float = 0.0  # when the last one ended
    alone: float = 0.0  # seconds in which a collective ran and no other kernel did

    def start(self, ticket: int, at: float, seconds: float) -> None:
        """Queue a collective that may run once the kernels before it have."""
        self.queue.append(Running(ticket, at, seconds))

    def start_ahead(self, ticket: int, at: float, now: float, seconds: float) -> float:
        """Queue one that may run from a moment on. Return how much longer kernels take that end by now, beside it."""
        begin, is_first = max(at, self.idle), not self.queue
        lasts = min(max(now - begin, 0.0), seconds / _EXCHANGE_SPEED) if is_first else 0.0
        delay = lasts * (1 - _KERNEL_SPEED)
        self.queue.append(Running(ticket, begin, seconds, ahead=now + delay - begin))
        if lasts > 0:
            self.has_begun, self.now = True, now + delay
            self._advance(lasts * _EXCHANGE_SPEED, begin + lasts)
        return delay

    def beside(self, at: float, seconds: float, *, fills: bool) -> float:
        """When another kernel ends that starts at a moment. fills: whether it holds all multiprocessors, as products do."""
        if not self.queue:
            return at + seconds
        self._run_alone(at)
        if fills and not self._is_before(at):
            return self._blocked(at, seconds)
        left = seconds
        while left > 0 and self.queue:
            first = self.queue[0]
            if self.has_begun:
                lasts = min(left / _KERNEL_SPEED, first.left / _EXCHANGE_SPEED)
                at, left = at + lasts, left - lasts * _KERNEL_SPEED
                if self._advance(lasts * _EXCHANGE_SPEED, at) and fills:
                    return self._blocked(at, left)
            else:
                lasts = min(left, max(first.ready - at, 0.0))
                at, left = at + lasts, left - lasts
                self.has_begun = at >= first.ready
        self.now = at + max(left, 0.0)
        return self.now

    def end(self, ticket: int) -> float:
        """When a collective ends for which other kernels wait."""
        while ticket not in self.ends:
            first = self.queue[0]
            begin = self.now if self.has_begun else max(self.now, first.ready)
            self.now = begin + first.left
            self._is_alone(first, first.left)
            self._advance(first.left, self.now)
        return self.ends.pop(ticket)

    def _is_before(self, at: float) -> bool:
        """Whether a collective runs at a moment, or gets multiprocessors before a product that starts then."""
        self.has_begun = bool(self.queue) and (self.has_begun or self.queue[0].ready + _HANDOVER <= at)
        return self.has_begun

    def _blocked(self, at: float, seconds: float) -> float:
        """When a kernel ends that holds all multiprocessors: a collective begins only beside its last tiles."""
        self.now = at + seconds - min(_TAIL, _SHORT * seconds)
        self._run_alone(at + seconds, is_beside=True)
        return at + seconds

    def _is_alone(self, first: Running, seconds: float) -> None:
        self.alone += seconds
        first.alone += seconds

    def _run_alone(self, until: float, *, is_beside: bool = False) -> None:
        """Run the queue as if no other kernel ran. is_beside: whether one does, and only leaves it room."""
        while self.queue and self.now < until:
            first = self.queue[0]
            if not self.has_begun and first.ready + _HANDOVER > until:
                break
            self.now = self.now if self.has_begun else max(self.now, first.ready)
            self.has_begun = True
            lasts = min(first.left, until - self.now)
            self.now += lasts
            if not is_beside:
                self._is_alone(first, lasts)
            self._advance(lasts, self.now)
        self.now = max(self.now, until)

    def _advance(self, seconds: float, at: float) -> bool:
        """Take so many seconds off the first collective. True if it ends then, and the next one is ready."""
        first = self.queue[0]
        first.left -= seconds
        if first.left >= _NOTHING:
            return False
        first.lasted = at - first.ready
        self.ends[first.ticket], self.finished[first.ticket], self.idle = at, first, at
        self.queue.pop(0)
        self.has_begun = False
        if self.queue:
            self.queue[0].ready = max(self.queue[0].ready, at)
        return True


class Clock(Struct):
    """When the CPU has launched everything so far, and when the GPU has done it."""

    is_eager: bool  # kernels wait for the CPU to launch them
    gap: float  # seconds between two kernels of a graph
    slowness: float = 1.0  # of the CPU, by the one that the costs of calls are of
    is_cpu: bool = False  # the CPU runs the kernels itself
    host: float = 0.0
    gpu: float = 0.0
    released: float = 0.0  # when a collective was last awaited, until when one that runs ahead does not begin
    link: Link = field(default_factory=Link)  # the collectives that are not awaited yet
    copies: dict[int, float] = {}  # by ticket, when copies over the bus beside kernels end
    bus: dict[str, float] = {}  # by direction, when it is free

    @property
    def now(self) -> float:
        """When all that was launched has run, and in eager execution the CPU has launched it."""
        return max(self.host, self.gpu) if self.is_eager else self.gpu

    def run(self, host_seconds: float, kernels: Sequence[float], *, waits: bool = False) -> float:
        """Run one call; by how much it takes longer. kernels: seconds of each. waits: the CPU goes on after the GPU."""
        (took,) = self.run_all([(host_seconds, kernels, waits)])
        return took

    def run_all(self, calls: Iterable[tuple[float, Sequence[float], bool]]) -> list[float]:
        """The same for calls one after the other."""
        took: list[float] = []
        if self.is_cpu:  # measured kernels hold what the CPU does to start them
            return [max(sum(each), seconds * self.is_eager) * self.slowness for seconds, each, _ in calls]
        host, gpu, gap, slowness = self.host, self.gpu, self.gap, self.slowness
        if not self.is_eager:
            for _, kernels, _ in calls:
                before = gpu
                gpu += sum([seconds + gap for seconds in kernels])
                took.append(gpu - before)
            self.gpu = gpu
            return took
        for host_seconds, kernels, waits in calls:
            before = host if host > gpu else gpu  # not `max`: this runs three times a launch
            host_seconds *= slowness
            if kernels:
                share = host_seconds / len(kernels)
                for seconds in kernels:
                    host += share
                    gpu = (gpu if gpu > host else host) + seconds
            else:
                host += host_seconds
            if waits and gpu > host:
                host = gpu
            took.append((host if host > gpu else gpu) - before)
        self.host, self.gpu = host, gpu
        return took

    def run_beside(self, host_seconds: float, kernels: Sequence[float], *, fills: bool, waits: bool) -> float:
        """The same while collectives run. fills: whether a kernel holds all multiprocessors, as a product does."""
        before = self.now
        host_seconds *= self.slowness * self.is_eager
        for seconds in kernels:
            self.host += host_seconds / len(kernels)
            self.gpu = self.link.beside(self.now, seconds, fills=fills) + (0 if self.is_eager else self.gap)
        if not kernels:
            self.host += host_seconds
        if waits:
            self.host = max(self.host, self.gpu)
        return self.now - before

    def start(self, ticket: int, seconds: float, *, is_ahead: bool = False) -> float:
        """Start a collective once all kernels before have run, and return 0: it runs beside what follows.

        is_ahead: whether it waits for no kernel, only for the CPU: then return by how much the kernels before take longer.
        """
        if not is_ahead:
            self.link.start(ticket, self.now, seconds)
            return 0.0
        begin = max(self.host * self.is_eager, self.released)
        delay = self.link.start_ahead(ticket, begin, self.now, seconds)
        self.gpu += delay
        return delay

    def copy(self, ticket: int, seconds: float, way: str) -> float:
        """The same of a copy over the bus, one way, which slows no kernel."""
        self.copies[ticket] = self.bus[way] = max(self.now, self.bus.get(way, 0.0)) + seconds
        return 0.0

    def wait(self, ticket: int) -> float:
        """Let the other kernels wait for one of them, and return by how much the program takes longer."""
        before = self.now
        self.gpu = max(self.gpu, self.copies.pop(ticket) if ticket in self.copies else self.link.end(ticket))
        self.released = self.gpu
        return max(before, self.gpu) - before
