"""The cost of one step of a torch.optim optimizer: its work, the state that it keeps, and its temporaries.

Work and traffic are what the update needs, however torch runs it: each operand is read once, each result is written once.
Temporaries and kernels depend on the implementation (torch/optim/adam.py, sgd.py, _adafactor.py, _muon.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from graphflops.base.record import Record
from graphflops.cost import Cost
from graphflops.dims import Dim, dim_max, dim_min, prod, total
from graphflops.passes.gradients import wants
from graphflops.passes.program import PricedProgram
from graphflops.rules.elementwise import WORK, Work
from graphflops.tensor import BFLOAT16, TensorType, grouped
from graphflops.training import Training

_STEP_BYTES = 4  # the step counter; a fused update keeps one per parameter on the device
_NEWTON_SCHULZ_STEPS = 5


class Parameter(NamedTuple):
    """A trained parameter under its name in the model."""

    name: str
    type: TensorType


class Buffer(Record, frozen=True):
    """A tensor that an update keeps or makes, by its parameter."""

    name: str
    bytes: Dim


class Update(Record, frozen=True):
    """One step of an optimizer."""

    cost: Cost
    state: tuple[Buffer, ...] = ()  # tensors kept on the device from step to step
    temporaries: tuple[Buffer, ...] = ()  # those that are live together when an update needs most


def update(training: Training, parameters: Sequence[Parameter]) -> Update:
    """The step of the optimizer over these parameters."""
    if training.optimizer == "none" or not parameters:
        return Update(Cost())
    if training.optimizer == "muon":  # torch's Muon updates matrices, AdamW what is left
        matrices = [parameter for parameter in parameters if parameter.type.rank == 2]
        others = [parameter for parameter in parameters if parameter.type.rank != 2]
        parts = [(_MUON, matrices, "single"), (_ADAMW, others, training.implementation)]
    else:
        parts = [(_ALGORITHMS[training.optimizer], list(parameters), training.implementation)]
    costs, state, temporaries = list[Cost](), list[Buffer](), list[Sequence[Buffer]]()
    for algorithm, some, implementation in parts:
        by_type = {value: algorithm.cost(value) for value in {value for _, value in some}}
        costs += [by_type[value] for _, value in some]
        state += [Buffer(name, size) for name, value in some for size in algorithm.state(value)]
        if implementation == "fused" and algorithm.counts_steps:
            state += [Buffer(name, _STEP_BYTES) for name, _ in some]
        made = algorithm.temporaries.get(implementation or "")
        if some and made is not None:
            temporaries.append(made.most(some))
    return Update(Cost.sum(costs), tuple(state), tuple(max(temporaries, key=known_bytes, default=())))


def trained(program: PricedProgram) -> list[Parameter]:
    """The parameters that a step computes gradients of; torch's optimizers skip the others."""
    types = dict(program.typed_inputs("parameter"))
    targets = {entry.name: entry.alias_of or entry.target for entry in program.graph.inputs}
    names = {targets[name] for name in trained_inputs(program)}
    return [Parameter(target, value) for target, value in types.items() if target in names]


def trained_inputs(program: PricedProgram) -> list[str]:
    """Names in the graph of the parameters that a step computes a gradient of."""
    main = program.main
    parameters = {entry.name: None for entry in program.graph.inputs if entry.role == "parameter"}
    reached: set[str] = set()
    for call in main.calls:
        if parameters.keys().isdisjoint(call.uses):
            continue
        operands = call.tensors(main.values)
        if call.gradient is not None:
            reached.update(operands[place] for place, _ in call.gradient.gradients)
        elif call.estimate.unknown:
            reached.update(operands)
    return [name for name in parameters if name in reached and wants(program.operands[name])]


class _Temporaries(Record, frozen=True):
    """The temporaries of an implementation, iteration by iteration of a loop over parameters of one element type."""

    # The key by which parameters share an iteration; None: each has its own.
    together: Callable[[TensorType], object] | None
    # Sizes for one parameter: live until those of the next iteration are made.
    lasting: Callable[[TensorType], Sequence[Dim]]
    brief: Callable[[TensorType], Sequence[Dim]] = lambda _: ()  # freed within the iteration

    def most(self, parameters: Sequence[Parameter]) -> list[Buffer]:
        """The temporaries that are live together when the loop needs most."""
        each = range(len(parameters))
        keys = each if self.together is None else [self.together(x.type) for x in parameters]
        moments, before = [], list[Buffer]()
        for turn in grouped(zip(keys, parameters, strict=True)).values():
            made = [Buffer(name, size) for name, value in turn for size in self.lasting(value)]
            brief = [Buffer(name, size) for name, value in turn for size in self.brief(value)]
            moments.append([*before, *made, *brief])
            before = made
        return max(moments, key=known_bytes)


class _Algorithm(Record, frozen=True):
    cost: Callable[[TensorType], Cost]  # for one parameter; so is the state
    state: Callable[[TensorType], Sequence[Dim]]
    # By implementation; one that is missing makes none.
    temporaries: Mapping[str, _Temporaries] = MappingProxyType({})
    counts_steps: bool = False  # whether a fused update keeps the number of steps on the device


def known_bytes(buffers: Iterable[Buffer]) -> int:
    """Bytes of the buffers whose sizes are known."""
    return sum(number for buffer in buffers if isinstance(number := buffer.bytes, int))


def _itself(parameter: TensorType) -> list[Dim]:
    return [parameter.nbytes]


def _elementwise(
    work: Work, states: int
) -> tuple[Callable[[TensorType], Cost], Callable[[TensorType], list[Dim]]]:
    """Work and states of an update that reads parameter, gradient and states, and writes parameter and states."""

    def cost(parameter: TensorType) -> Cost:
        elements, nbytes = prod(parameter.shape), parameter.nbytes
        return Cost(
            vector_flops=work.flops * elements,
            transcendentals=work.transcendentals * elements,
            read_bytes=(2 + states) * nbytes,
            written_bytes=(1 + states) * nbytes,
        )

    return cost, lambda parameter: [parameter.nbytes] * states


def _factored(parameter: TensorType) -> list[Dim]:
    """Adafactor's second moments: for a matrix the means along each of the last two axes, for a vector all elements."""
    if parameter.rank < 2:
        return [parameter.nbytes]
    *outer, rows, columns = parameter.shape
    return [parameter.like((*outer, rows, 1)).nbytes, parameter.like((*outer, 1, columns)).nbytes]


def _adafactor(parameter: TensorType) -> Cost:
    """The norms of parameter and update, the moments, the update; for a matrix the product of its two moments."""
    work, elements, state = WORK["adafactor"], prod(parameter.shape), total(_factored(parameter))
    return Cost(
        matrix_flops=2 * elements if parameter.rank > 1 else 0,
        vector_flops=work.flops * elements,
        transcendentals=work.transcendentals * elements,
        read_bytes=2 * parameter.nbytes + state,
        written_bytes=parameter.nbytes + state,
    )


def _estimates(parameter: TensorType) -> list[Dim]:
    """Adafactor's update; for a vector also its squared gradient."""
    return [parameter.nbytes] * (1 if parameter.rank > 1 else 2)


def _means(parameter: TensorType) -> list[Dim]:
    """The mean of each matrix in a stack, such as a convolution's weight, beside the update."""
    return [parameter.like((*parameter.shape[:-2], 1, 1)).nbytes] if parameter.rank > 1 else []


def _muon(parameter: TensorType) -> Cost:
    """Momentum, then Newton-Schulz steps in bfloat16: `a = x @ x.T`, `b = a + a @ a`, `x = x + b @ x`."""
    short, long = dim_min(*parameter.shape), dim_max(*parameter.shape)
    steps, gram, iterate = _NEWTON_SCHULZ_STEPS, short * short, short * long
    work, half = WORK["muon"], BFLOAT16.bits // 8
    return Cost(
        matrix_flops=steps * (2 * gram * long + 2 * gram * short + 2 * gram * long),
        vector_flops=work.flops * iterate + steps * (gram + iterate),
        read_bytes=3 * parameter.nbytes + steps * half * (2 * iterate + 2 * gram),
        written_bytes=2 * parameter.nbytes + steps * half * (iterate + 2 * gram),
    )


def _newton_schulz(parameter: TensorType) -> list[Dim]:
    """The update, two iterates and two Gram matrices in bfloat16."""
    half, short, long = BFLOAT16.bits // 8, dim_min(*parameter.shape), dim_max(*parameter.shape)
    return [parameter.nbytes, *(half * short * long,) * 2, *(half * short * short,) * 2]


# Roots of the second moments. Single: `denom = (v.sqrt() / correction).add_(eps)`, beside the last parameter's `denom`.
_ADAM_TEMPORARIES = {
    "foreach": _Temporaries(lambda value: value.dtype, _itself),
    "single": _Temporaries(None, _itself, _itself),
}
# Foreach: the updates of all matrices, then of all vectors.
_ADAFACTOR_TEMPORARIES = {
    "foreach": _Temporaries(lambda value: (value.dtype, value.rank > 1), _itself, _means),
    "single": _Temporaries(None, _estimates),
}
_ADAMW = _Algorithm(*_elementwise(WORK["adamw"], 2), _ADAM_TEMPORARIES, counts_steps=True)
_MUON = _Algorithm(_muon, _itself, {"single": _Temporaries(None, lambda _: (), _newton_schulz)})
_ALGORITHMS: Mapping[str, _Algorithm] = {
    "sgd": _Algorithm(*_elementwise(WORK["sgd"], 0)),
    "momentum": _Algorithm(*_elementwise(WORK["sgd"].more(WORK["momentum"].flops), 1)),
    "adam": _Algorithm(*_elementwise(WORK["adam"], 2), _ADAM_TEMPORARIES, counts_steps=True),
    "adamw": _ADAMW,
    "adafactor": _Algorithm(_adafactor, _factored, _ADAFACTOR_TEMPORARIES),
}
