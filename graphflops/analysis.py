"""The passes of an analysis in their order: bind -> price -> attention -> memory -> report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphflops.diagnostics import diagnostic
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph
from graphflops.passes.attention import facts_of, find_attentions, user_masks
from graphflops.passes.bind import bind
from graphflops.passes.equal_sizes import merged, renamed
from graphflops.passes.memory import memory_use
from graphflops.passes.price import price
from graphflops.passes.report import report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.passes.bind import Binding
    from graphflops.passes.program import PricedProgram
    from graphflops.report import Report


def analyze(
    model: object,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    masks: Mapping[str, str] | None = None,
    training: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Computes what a model costs: FLOPs, bytes, memory, parameters.

    model: path of a `.pt2` or `.onnx` file, a `Graph`, or a `torch.export.ExportedProgram`.
    model_name: which program of an archive that holds several.
    dims: sizes by symbol (`s27`), or by input axis (`ids[1]`).
    inputs: whole shapes by input name; a static program is propagated again from them.
    masks: by input name, the kind of a mask that the caller passes in: `causal`, `window:1024`, `prefix:128` or
        `density:0.3`; the last query stands at the position of the last key.
    training: count the backward pass and an AdamW step too.
    progress: called now and then with (calls done, calls in all).

    Raises FileError for what cannot be read, ModelError where sizes given contradict the program.
    """
    graph = as_graph(model, model_name)
    sizes = _Sizes(dims or {}, inputs or {})
    stated = user_masks(masks, graph)
    program = _priced(graph, sizes, training, progress)
    program = find_attentions(program, stated)
    memory = memory_use(program)
    return report(program, memory)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that the user gives: by symbol or input axis, and whole shapes by input."""

    dims: Mapping[str, int]
    inputs: Mapping[str, Sequence[int]]

    def bind(self, graph: Graph) -> Binding:
        return bind(graph, self.dims, self.inputs)


def _priced(
    graph: Graph, sizes: _Sizes, training: bool, progress: Callable[[int, int], None] | None
) -> PricedProgram:
    """The priced program; priced a second time where its operators require that some of its sizes are equal.

    Sizes given for some symbols only are left out the first time: one of two equal sizes may be given, the other not.
    """
    binding = sizes.bind(graph)
    open_sizes = graph.declared is not None and graph.symbols.keys() - binding.given.keys()
    is_probe = bool(binding.given and open_sizes)
    if is_probe:
        program = price(graph, bind(graph, {}, {}), facts=facts_of(graph))
    else:
        program = price(graph, binding, training=training, progress=progress, facts=facts_of(graph))
    merged_graph, found = merged(graph, program.equalities, binding.given)
    if found:
        renamed_sizes = _Sizes(renamed(sizes.dims, found, graph), sizes.inputs)
        binding = renamed_sizes.bind(merged_graph)
        equal = ", ".join(f"{shown(name)} = {size}" for name, size in found.items())
        binding.diagnostics.append(
            diagnostic("GF112", "", f"operators require equal sizes, from which follows {equal}")
        )
    elif not is_probe:
        return program
    return price(merged_graph, binding, training=training, progress=progress, facts=facts_of(merged_graph))


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
