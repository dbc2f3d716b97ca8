"""The passes of an analysis in their order: bind -> price -> attention -> sizes -> memory -> time -> report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from graphflops.base.record import Record, replace
from graphflops.errors import DimError, ModelError, OptionError, require_choice, shown
from graphflops.graph import Graph, Step
from graphflops.passes import attention
from graphflops.passes.bind import bind
from graphflops.passes.memory import memory_use
from graphflops.passes.price import FindFact, price
from graphflops.passes.program import NO_TIME, CallByCall, MemoryUse, Peak, PricedProgram, ProgramTime
from graphflops.passes.report import report, step_memory
from graphflops.passes.sizes import labels_of, with_sizes
from graphflops.report import Execution, Report, Timeline

if TYPE_CHECKING:
    from graphflops.attention.user_masks import Stated
    from graphflops.devices import Device, Platform
    from graphflops.dims import Dim
    from graphflops.execution.runs import Runs
    from graphflops.memory.on_gpu import OnGpu
    from graphflops.report.timeline import PhaseTime
    from graphflops.training import Training


class Asked(Record, frozen=True):
    """The options of `graphflops.analyze`, and which parts of the analysis are wanted."""

    dims: Mapping[str, int] | None = None
    # Whole shapes; the shapes of a static program are derived again from them.
    inputs: Mapping[str, Sequence[int]] | None = None
    masks: Mapping[str, str] | None = None
    names: Mapping[str, str] | None = None
    execution: Execution | None = None
    device: str | None = None
    network: str | None = None
    torch: str | None = None
    training: bool | Training = False
    assume: bool = True
    times: bool = True  # whether times on a device are found
    memory: bool = True  # whether peaks are found where no device is named
    # Whether conversions of quantized values are part of neighbouring calls, which they never are in `eager` and in
    # training; None: as in runtimes, unless one of PyTorch's executions is named, where each call runs by itself.
    fused: bool | None = None
    progress: Callable[[int, int], None] | None = None


def analyze(model: object, *, model_name: str | None = None, **options: Any) -> Report:
    """What `graphflops.analyze` computes, of the path of a `.pt2` or `.onnx` file, a `Graph`, or an `ExportedProgram`.

    options: fields of `Asked`.
    Raises FileError (not readable), ModelError (sizes contradict the program), DimError (formulas grow too large).
    """
    asked = Asked(**options)
    try:
        return _report(*_priced_program(as_graph(model, model_name), asked), asked)
    except DimError as error:  # in a sum over calls; each call's own sizes were small enough
        place = shown(str(model)) if isinstance(model, (str, PathLike)) else "the program"
        raise DimError(f"{place}: {error}: give sizes with --dim") from error


class Priced(Record, frozen=True):
    """An inference on a device, read and priced once for all sizes."""

    program: PricedProgram
    again: Callable[..., PricedProgram]
    asked: Asked
    device: str
    execution: Execution

    def report(self) -> Report:
        return _report(self.program, self.again, replace(self.asked, execution=self.execution, times=False))

    def times(self, *, replayed: bool = False) -> Callable[[Mapping[str, int]], PhaseTime]:
        """Its times by the values of its symbols. replayed: whether a CUDA graph holds the kernels of any execution."""
        from graphflops.devices import complete, device, platform_of
        from graphflops.time.program_time import forward_times

        profile = complete(device(self.device))
        runs = _runs(self.program, self.execution, platform_of(profile))
        return forward_times(self.program, profile, self.execution, runs, replayed=replayed)


def priced(
    model: object, device: str, execution: Execution | None = None, *, model_name: str | None = None, **options: Any
) -> Priced:  # fmt: skip
    """An inference on a device, of which a report and times at any sizes can be asked. Options and errors of `analyze`."""
    asked = Asked(execution=execution, device=device, **options)
    program, again = _priced_program(as_graph(model, model_name), asked)
    return Priced(program, again, asked, device, _device(program, asked)[1])


def _priced_program(recorded: Graph, asked: Asked) -> tuple[PricedProgram, Callable[..., PricedProgram]]:
    """The program with its attentions and its sizes, and what prices it again, as `fused` or not."""
    if recorded.step is not None and (asked.training or asked.execution not in (None, "eager")):
        text = "a recorded step has its own optimizer and runs eagerly: leave --training and --execution out"
        raise OptionError(text)
    graph, step = recorded, None
    if asked.training is not False:
        if recorded.phases:
            text = "the program holds its gradients already: leave --training out, or give the one exported without them"
            raise ModelError(text)
        from graphflops.passes.trained_program import trained_program
        from graphflops.training import training_of

        step = training_of(asked.training)
        graph = trained_program(recorded, step)
    if graph.has_exchanges:
        from graphflops.passes.equal_sizes import with_groups

        graph = with_groups(graph)  # a size for each group of devices whose size the program does not tell
    stated: Mapping[str, Stated] = {}
    if asked.masks:
        from graphflops.attention.user_masks import parsed

        stated = parsed(asked.masks, graph)
    labels = labels_of(graph, asked.names or {})
    places = {label: place for place, label in reversed([*labels.items()])}  # its symbol, which comes first
    sizes = {places.get(name, name): value for name, value in (asked.dims or {}).items()}
    priced = partial(_priced, graph, sizes, asked, step)
    is_fused = asked.fused
    if is_fused is None:
        is_fused = asked.execution is None or graph.origin.format == "onnx"
    program = attention.find_attentions(priced(fused=is_fused and asked.execution != "eager"), stated)
    return with_sizes(program, labels), priced


def _report(program: PricedProgram, priced: Callable[..., PricedProgram], asked: Asked) -> Report:
    """The report of a program, with memory and time where a device or an execution is named. priced: as `fused` or not."""
    if program.fused:
        from graphflops.passes import quantized

        quantized.say_unfused(program, priced(fused=False))
    profile, chosen = _device(program, asked)
    if program.graph.step is not None:
        return _step_report(program, program.graph.step, profile, asked)
    if not (asked.device or asked.execution):
        no_peaks = MemoryUse(Peak(), Timeline(), Peak() if program.training else None)
        return report(program, memory_use(program) if asked.memory else no_peaks, chosen)
    from graphflops.devices import platform_of
    from graphflops.memory.ledger import ledger

    is_torch = program.graph.origin.format != "onnx"
    rules = _memory_rules(chosen, is_torch_on_device=is_torch and profile is not None)
    runs = _runs(program, chosen, platform_of(profile, asked.torch))
    if chosen == "compiled":
        from graphflops.memory.compiled import compiled_memory_use

        held = compiled_memory_use(program, runs)  # type: ignore[arg-type]  # they are plans
    else:
        held = memory_use(program, CallByCall if rules is None else partial(rules, runs=runs))
    runs.say_assumed(program, held)
    unfused: Mapping[str, Sequence[Dim]] = {}
    if program.attentions and rules is not None:
        from graphflops.memory.on_gpu import say_unfused, with_kernels

        program, unfused = with_kernels(program, runs)
    time = _time(program, profile, chosen, runs, asked)
    for reason, scores in unfused.items():
        say_unfused(program, reason, scores, time.slowdowns)
    entries = ledger(program, held, chosen, profile)
    return report(program, held, chosen, entries, runs.platform.torch if is_torch else "", time)


def _step_report(program: PricedProgram, step: Step, profile: Device | None, asked: Asked) -> Report:
    """The report of a recorded step: memory is as recorded, and runs eagerly on every device."""
    from graphflops.devices import platform_of
    from graphflops.memory.ledger import ledger

    time, kernels = NO_TIME, ""
    if profile is None:
        held = step_memory(program, step)
    else:
        from graphflops.kernels.buffers import forward_bytes

        runs = _runs(program, "eager", platform_of(profile, asked.torch))
        layouts = runs.of(program.main).layouts
        for call in layouts.wrong:
            text = "the strides of a view are not those that its operator gives"
            program.notes.say("GF127", call.node.name, text)
        away = step.hosted()
        sizes = [0 if call.node.is_in(away) else forward_bytes(call, layouts) for call in program.main.calls]
        held = step_memory(program, step, sizes)
        time = _time(program, profile, "eager", runs, asked)
        kernels = runs.platform.torch if asked.times else ""
    return report(program, held, "eager", ledger(program, held, "eager", profile), kernels, time)


def _device(program: PricedProgram, asked: Asked) -> tuple[Device | None, Execution]:
    """The profile of the device, None if none is named, and how the program runs there; notes say what the profile lacks."""
    name, execution, network = asked.device, asked.execution, asked.network
    is_onnx = program.graph.origin.format == "onnx"
    nowhere = "is of a device: name one with --device"
    if network is not None and (name is None or not program.graph.has_exchanges):
        lacks = nowhere if name is None else "the program has no collectives"
        raise OptionError(f"--network {shown(network)}: {lacks}")
    if asked.torch is not None and (is_onnx or not (name or execution)):
        lacks = "the program is not PyTorch's" if name or execution else nowhere
        raise OptionError(f"--torch {shown(asked.torch)}: {lacks}")
    if name is None:
        return None, execution or "graph"
    from graphflops.devices import complete, device, disturbance, substitution

    profile = device(name)
    runs_whole = profile.kind == "tpu" or is_onnx or program.fused
    chosen = execution or ("graph" if runs_whole else "eager")
    if lacking := substitution(profile, has_launches=chosen != "graph"):
        program.notes.say("GF123", "", lacking)
    if disturbed := disturbance(profile):
        program.notes.say("GF124", "", disturbed)
    profile = complete(profile)
    if network is not None:
        from graphflops.links import network_of

        profile = structs.replace(profile, node=network_of(profile, network).node)
    return profile, chosen


def _time(
    program: PricedProgram, profile: Device | None, execution: Execution, runs: Runs, asked: Asked
) -> ProgramTime:
    """The times of a program on a device; a network is assumed for its collectives where none is given."""
    if profile is None or not asked.times:
        return NO_TIME
    from graphflops.time.program_time import program_time

    time = program_time(program, profile, execution, runs)
    is_assumed = time.network and asked.network is None
    return replace(time, network=f"{time.network} (assumed, set it with --network)") if is_assumed else time


def _runs(program: PricedProgram, execution: Execution, platform: Platform) -> Runs:
    if execution == "compiled":
        from graphflops.inductor.plan import Plans

        return Plans(program, platform)
    from graphflops.execution.runs import Runs

    return Runs(program.attentions, platform, is_eager=execution == "eager")


def _memory_rules(execution: Execution, is_torch_on_device: bool) -> type[OnGpu] | None:
    """What an execution on a GPU allocates and when it frees it; None for values alone, whatever runs the graph."""
    if execution == "graph" and not is_torch_on_device:
        return None
    from graphflops.memory.on_gpu import Eager, GraphOnGpu, OnGpu

    rules: Mapping[str, type[OnGpu]] = {"graph": GraphOnGpu, "compiled": OnGpu, "eager": Eager}
    require_choice("execution", execution, [*rules])
    return rules[execution]


def _priced(
    graph: Graph, dims: Mapping[str, int], asked: Asked, training: Training | None, *, fused: bool = False
) -> PricedProgram:
    """The program bound and priced, again where operators require equal sizes; of two such symbols, one may be given."""
    final = partial(price, facts=_facts_of, training=training, progress=asked.progress, fused=fused)
    bound = partial(bind, inputs=asked.inputs or {}, assume=asked.assume)
    binding = bound(graph, dims)
    is_partial = bool(binding.given and graph.declared is not None and graph.symbols.keys() - binding.given)
    first = price(graph, bind(graph, {}, {}), _facts_of) if is_partial else final(graph, binding)
    equal = first.equalities
    if equal and binding.given and graph.declared is None:  # a number in the place of a symbol tells less
        equal = price(graph, bind(graph, {}, {}), _facts_of).equalities
    merged = None
    if equal:
        from graphflops.passes.equal_sizes import merge_equal

        merged = merge_equal(graph, equal, dims, binding.given, bound)
    return final(*(merged or (graph, binding))) if merged or is_partial else first


def _facts_of(graph: Graph) -> FindFact:
    visible = attention.facts_of(graph)
    if not graph.has_exchanges:
        return visible
    from graphflops.passes import equal_sizes

    devices = equal_sizes.facts_of(graph)
    return lambda *call: visible(*call) or devices(*call)


def as_graph(model: object, model_name: str | None = None) -> Graph:
    """The graph of whatever `analyze` accepts."""
    if isinstance(model, Graph):
        return model
    if isinstance(model, (str, Path)):
        from graphflops.exporters import load

        return load(model, model_name)
    if hasattr(model, "graph_module") and hasattr(model, "graph_signature"):
        from graphflops.exporters.live import from_exported_program

        return from_exported_program(model)
    raise ModelError(f"cannot analyze a {type(model).__name__}: give a path, an ExportedProgram or a Graph")
