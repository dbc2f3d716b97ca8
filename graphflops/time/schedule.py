"""The CPU's time for a call, and the sum of kernel times: one after the other, or as fast as the CPU launches them.

The host section of a device's profile has the CPU's seconds of a call by operator or kind: Python, the dispatcher, autograd
and the launches. A program of small kernels runs at the speed of the CPU.

Collectives run beside other kernels, in one stream for each group of devices.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from graphflops.base.record import field
from graphflops.graph import Phase
from graphflops.kernels.kernel import Kernel, Recurrence, Transfer
from graphflops.kernels.products import is_resident
from graphflops.ops import Op
from graphflops.tensor import TensorType

Costs = Mapping[str, float]

_UNCALLED = frozenset({"size", "sequence", "control"})


def waits(operator: Op, operands: Iterable[object]) -> bool:
    """Whether the CPU waits for the GPU: to read a number, or to learn how many elements the result has."""
    indices = [*operands][1:] if operator.name in ("index", "index_put") else []
    is_mask = any(isinstance(each, TensorType) and each.dtype.name == "bool" for each in indices)
    return operator.has("is_read_by_cpu") or is_mask


def start_seconds(costs: Costs, stacks: Iterable[str]) -> float:
    """CPU time of a forward outside of its calls. stacks: module stacks; some libraries wrap their models' forwards."""
    entries = {*";".join({*stacks}).split(";")} - {""}
    libraries = set(map(library, entries))
    return costs["forward.start"] + sum(costs.get(f"forward.start.{name}", 0.0) for name in sorted(libraries))


def library(entry: str) -> str:
    """The library of a module's class. entry: the module's entry in a module stack."""
    return entry.rpartition(",")[2].partition(".")[0]


def forward_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], *, records: bool) -> float:
    """CPU time of a call. records: whether autograd records it."""
    if operator.kind in _UNCALLED:
        return operator.has("is_read_by_cpu") * costs["forward.call"]
    idle = "forward.skipped" if operator.kind in ("dropout", "cast") else "forward.without_kernel"
    own = _launching(costs, "forward", operator, kernels) if kernels else costs[idle]
    return own + records * costs["forward.recording"]


def recorded_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], tensors: int) -> float:
    """CPU time of a call in a recorded step, by Python or autograd. tensors: the number of tensors that it reads."""
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
    """CPU time of a recorded step's phase outside of its calls: autograd's engine, or the optimizer's Python code."""
    if phase == "forward":  # the start of the program has the time of the first one
        return 0.0
    return costs[f"recorded.{phase}.start"] + parameters * costs[f"recorded.{phase}.parameter"]


def entering_seconds(costs: Costs, modules: Sequence[str]) -> float:
    """CPU time for entering modules. modules: the library of each module."""
    return sum([costs.get(f"forward.module.{name}", costs["forward.module"]) for name in modules])


def backward_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], parameters: int) -> float:
    """CPU time of a call's gradients, of which `parameters` are gradients of parameters. kernels: with sums of gradients."""
    own = _launching(costs, "backward", operator, kernels) if kernels else costs["backward.without_kernel"]
    return own + parameters * costs["backward.parameter"]


def _launching(costs: Costs, phase: str, operator: Op, kernels: Sequence[Kernel]) -> float:
    """The time of a call that launches kernels: by its operator's spelling, name or kind, or else that of any call."""
    if recurrent := recurrent_seconds(costs, kernels):
        return recurrent
    names = [f"{phase}.{name}" for name in (operator.word, operator.name, operator.kind, "call")]
    own = next(costs[name] for name in names if name in costs)
    if operator.kind == "foreach":  # one call of the dispatcher for any number of kernels
        return own
    return own + (sum(kernel.launches for kernel in kernels) - 1) * costs[f"{phase}.further_kernel"]


def recurrent_seconds(costs: Costs, kernels: Sequence[Kernel]) -> float:
    """CPU time of recurrent layers: of the call, each layer and direction, and each step unless one kernel has all."""
    seconds = 0.0
    for kernel in kernels:
        if isinstance(sizes := kernel.sizes, Recurrence):
            layers = sizes.layers * sizes.directions
            steps = 0 if is_resident(sizes, kernel.dtype) else sizes.steps * layers
            call, layer, step = (costs[f"recurrent.{part}"] for part in ("call", "layer", "step"))
            seconds += call + layers * layer + steps * step
    return seconds


# The speed of a collective and of another kernel while both run, relative to running alone: they share multiprocessors and
# memory. Fitted to 24 pairs of a collective and products or copies on two H200.
_EXCHANGE_SPEED, _KERNEL_SPEED = 0.6, 0.8


def kernels_end(kernels: float, exchange: float) -> float:
    """When kernels of `kernels` seconds end if an exchange starts with them."""
    return kernels + (1 - _KERNEL_SPEED) * min(kernels / _KERNEL_SPEED, exchange / _EXCHANGE_SPEED)


def exchange_ends(exchange: float, kernels: float) -> float:
    """When an exchange of `exchange` seconds ends if kernels start with it."""
    return exchange + (1 - _EXCHANGE_SPEED) * min(kernels / _KERNEL_SPEED, exchange / _EXCHANGE_SPEED)


def beside(kernels: float, exchange: float) -> float:
    """Seconds of kernels and a collective that start together."""
    return max(kernels_end(kernels, exchange), exchange_ends(exchange, kernels))


class Running(Struct):
    """A collective that is queued or runs: when it may start, and its remaining seconds."""

    ticket: int
    ready: float
    left: float
    alone: float = 0.0  # seconds in which no other kernel ran
    lasted: float = 0.0  # once it has ended: seconds since it could start
    stream: str = ""


class Link(Struct):
    """The streams of collectives, one for each group of devices; collectives of one stream run one after the other."""

    queues: dict[str, list[Running]] = {}  # by stream; none is empty
    now: float = 0.0  # the moment up to which the streams have run
    finished: dict[int, Running] = {}  # by ticket
    idle: dict[str, float] = {}  # by stream, when its last collective ended
    alone: float = 0.0  # seconds in which a collective ran and no other kernel did

    def start(self, ticket: int, at: float, seconds: float, stream: str = "") -> None:
        """Queue a collective that may run once the kernels before it have run."""
        self.queues.setdefault(stream, []).append(Running(ticket, at, seconds, stream=stream))

    def start_ahead(self, one: Running, now: float) -> float:
        """Queue a collective that may run as soon as it is ready; return by how much it delays kernels that end by `now`."""
        one.ready = max(one.ready, self.idle.get(one.stream, 0.0))
        self.queues.setdefault(one.stream, []).append(one)
        if self.queues[one.stream][0] is not one or one.ready >= now:
            return 0.0
        delay = (self._run(one, one.ready, now, _EXCHANGE_SPEED) - one.ready) * (1 - _KERNEL_SPEED)
        self.now = now + delay
        return delay

    def beside(self, at: float, seconds: float) -> float:
        """When a kernel that starts at `at` ends. It is slower while the first collectives of the streams run."""
        self.run(at)
        first = [queue[0] for queue in self.queues.values()]
        starts = [(min(max(one.ready - at, 0.0), seconds), one.left) for one in first]
        ends = at + max([wait + kernels_end(seconds - wait, left) for wait, left in starts], default=seconds)
        self.run(ends, _EXCHANGE_SPEED)
        return ends

    def end(self, ticket: int) -> float:
        """When a collective ends that other kernels wait for."""
        while ticket not in self.finished:
            self.run(min(max(self.now, queue[0].ready) + queue[0].left for queue in self.queues.values()))
        return self.finished[ticket].ready + self.finished[ticket].lasted

    def run(self, until: float, speed: float = 1.0) -> None:
        """Run all streams up to a moment. speed: less than 1 while other kernels run."""
        alone = 0.0
        for stream in [*self.queues]:
            at, ran = self.now, 0.0
            while stream in self.queues and (begin := max(at, self.queues[stream][0].ready)) < until:
                one = self.queues[stream][0]
                at = self._run(one, begin, until, speed)
                if speed == 1.0:
                    one.alone, ran = one.alone + at - begin, ran + at - begin
            alone = max(alone, ran)
        self.alone += alone
        self.now = max(self.now, until)

    def _run(self, one: Running, begin: float, until: float, speed: float) -> float:
        """Run the first collective of a stream; return when it stops. If it ends, the stream continues with the next."""
        ends = begin + one.left / speed
        if ends > until:
            one.left -= (until - begin) * speed
            return until
        one.lasted = ends - one.ready
        self.finished[one.ticket], self.idle[one.stream] = one, ends
        _, *queue = self.queues.pop(one.stream)
        if queue:
            queue[0].ready = max(queue[0].ready, ends)
            self.queues[one.stream] = queue
        return ends


class Clock(Struct):
    """When the CPU has launched everything so far, and when the GPU has run it."""

    is_eager: bool  # whether kernels wait for the CPU to launch them
    gap: float  # seconds between two kernels of a graph
    slowness: float = 1.0  # of the CPU, relative to the CPU that the calls' costs were measured on
    is_cpu: bool = False  # whether the CPU runs the kernels itself
    host: float = 0.0
    gpu: float = 0.0
    # By stream, when a collective was last waited for: one that runs ahead does not start before.
    released: dict[str, float] = {}
    link: Link = field(default_factory=Link)  # the collectives that have not been waited for
    ahead: float = 0.0  # seconds by which the last one could start before the launches so far have run
    copies: dict[int, float] = {}  # by ticket, when a copy over the bus ends
    bus: dict[Transfer, float] = {}  # by direction, when the bus is free

    @property
    def now(self) -> float:
        """When all launches so far have run and, in eager execution, the CPU has made them."""
        return max(self.host, self.gpu) if self.is_eager else self.gpu

    def run(self, host_seconds: float, kernels: Sequence[float], *, waits: bool = False) -> float:
        """Run one call; return how much longer the program takes. kernels: seconds of each kernel.

        waits: whether the CPU waits for the GPU.
        """
        if self.is_cpu:  # measured kernel times include what the CPU does to start them
            return max(sum(kernels), host_seconds * self.is_eager) * self.slowness
        host, gpu, queues, gap = self.host, self.gpu, self.link.queues, 0.0
        if self.is_eager:
            host_seconds *= self.slowness
        else:
            host_seconds, gap = 0.0, self.gap
        before = host if host > gpu else gpu  # not `max`: this runs three times a launch
        if kernels:
            share = host_seconds / len(kernels)
            for seconds in kernels:
                host += share
                start = gpu if gpu > host else host
                alone = start + (seconds + gap)
                gpu = self.link.beside(start, seconds) + gap if queues else alone
        else:
            host += host_seconds
        if waits and gpu > host:
            host = gpu
        self.host, self.gpu = host, gpu
        return (host if host > gpu else gpu) - before

    def start(
        self, ticket: int, seconds: float, stream: str = "", *, is_ahead: bool = False, after: float = 0.0
    ) -> float:
        """Start a collective, behind no kernel if it is ahead; return the delay. after: CPU seconds after the start."""
        before = begin = self.now
        if is_ahead:
            begin = max(self.host * self.is_eager, self.released.get(stream, 0.0))
            one = Running(ticket, begin, seconds, stream=stream)
            self.gpu += self.link.start_ahead(one, before)
            begin = one.ready
        else:
            self.link.start(ticket, begin, seconds, stream)
        self.host += after * self.slowness * self.is_eager
        self.ahead = self.now - begin
        return self.now - before

    def copy(self, ticket: int, seconds: float, way: Transfer) -> float:
        """Start a copy over the bus in one direction, which slows no kernel. Return the delay, 0."""
        self.copies[ticket] = self.bus[way] = max(self.now, self.bus.get(way, 0.0)) + seconds
        return 0.0

    def wait(self, ticket: int) -> float:
        """Let the other kernels wait for a collective or copy, and return how much longer the program takes."""
        before = self.now
        if ticket in self.copies:
            self.gpu = max(self.gpu, self.copies.pop(ticket))
        else:
            self.gpu = max(self.gpu, self.link.end(ticket))
            self.released[self.link.finished[ticket].stream] = self.gpu
        return max(before, self.gpu) - before
