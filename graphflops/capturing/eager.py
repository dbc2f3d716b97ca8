"""Records what eager execution holds: a module runs once on tensors without data, and so does the program made of it.

Both runs are followed call by call of the dispatcher. What the program makes is found again in the module's run, by module,
operator and sizes; when the memory of each is freed there is when Python let it go. What is not found again is made only
while exporting: attention masks, and heads repeated for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any

import torch
from torch import fx

from graphflops.base.aligned import matching_blocks
from graphflops.capturing.followed import Followed, Functions, has_data, inside, naming_modules
from graphflops.exporters.eager_record import COMPUTING, FORMAT, Record
from graphflops.ops import operator

_MOST_EQUAL_PAIRS = 4_000_000  # of calls of both runs: a second
_FOREVER = 2**62  # a call after the last: what is never freed


class _Program(fx.Interpreter):  # type: ignore[misc]
    """Runs a program, and tells a run which call of it, of which module, is running."""

    def __init__(self, module: fx.GraphModule, run: Followed) -> None:
        super().__init__(module)
        self.run_of_it = run
        self.memory: dict[str, int] = {}  # by value: the number of its storage

    def run_node(self, n: fx.Node) -> Any:
        run = self.run_of_it
        paths = [path for path, _ in (n.meta.get("nn_module_stack") or {}).values()]
        run.module, run.node = (paths[-1] if paths else "").partition("@")[0], _name(n)
        if n.target is torch.ops.aten.scaled_dot_product_attention.default:
            with inside(run):
                result = super().run_node(n)
            run.attentions.append(n.name)
            run.note("attention", result, has_sizes=False)
        else:
            result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor):
            self.memory[n.name] = run.number(result)
        return result


def _name(node: fx.Node) -> str:
    """The value of a node, the first one of several: of a graph that it runs, or of a tuple."""
    first = next(iter(node.users), node)
    is_several = first.target is getitem and not isinstance(node.meta.get("val"), torch.Tensor)
    return str(first.name if is_several else node.name)


def recorded(
    module: torch.nn.Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    program: torch.export.ExportedProgram,
) -> Record | None:
    """What one eager run of a module holds, in terms of its program; None where it does not run without data.

    inputs: positional and named ones. Nothing is computed, also where the module and its inputs are real.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    # Where most weights are; libraries make single ones on the CPU, whatever they are told.
    devices = [weight.device for weight in weights.values()] or [torch.device("cpu")]
    device = max(devices, key=devices.count)
    fake = next((weight.fake_mode for weight in weights.values() if isinstance(weight, FakeTensor)), None)
    mode = fake or FakeTensorMode(allow_non_fake_inputs=True)

    def without_data(tensor: Any) -> Any:
        return mode.from_tensor(tensor) if has_data(tensor) else tensor

    eager, exported = Followed(), Followed()
    try:
        with torch.no_grad(), torch.device("meta") if device.type == "meta" else mode:
            args, kwargs = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda x: torch.empty_like(x, device=device), inputs
            )
            eager.give_integers((args, kwargs), inputs)
            with naming_modules(eager, module), eager, Functions(eager):
                held = {name: without_data(weight) for name, weight in weights.items()}
                results = torch.func.functional_call(module, held, args, kwargs)
            interpreter = _Program(program.graph_module, exported)
            flat = [without_data(given) for given in _flat(program, args, kwargs)]
            with exported:
                outputs = interpreter.run(*flat)
    except Exception:  # noqa: BLE001 - a module that asks for its data leaves no record; the lines of its code are read
        return None
    record = _matched(program, eager, exported, interpreter.memory)
    del results, outputs  # which outlive both runs
    return record


def _flat(program: torch.export.ExportedProgram, args: Any, kwargs: Any) -> list[Any]:
    """The inputs of a program in their order."""
    given = iter(torch.utils._pytree.tree_leaves((args, kwargs)))
    held = {**program.constants, **program.state_dict}
    return [
        next(given) if spec.kind.name == "USER_INPUT" else held[spec.target]
        for spec in program.graph_signature.input_specs
    ]


def _matched(
    program: torch.export.ExportedProgram, eager: Followed, exported: Followed, memory: Mapping[str, int]
) -> Record | None:
    """The record of a program whose calls are found in an eager run."""
    # By place in `ours`: the place in `theirs` of the same call.
    blocks = matching_blocks(
        [call.key for call in exported.calls], [call.key for call in eager.calls], _MOST_EQUAL_PAIRS
    )
    there = {a + i: b + i for a, b, size in blocks for i in range(size)}
    values = [*memory]
    place_of_node = {name: place for place, name in enumerate(values)}
    # By storage of the program's run: the first call that gives it and is found again, and which result.
    maker: dict[int, tuple[int, int]] = {}
    calls_of: dict[str, list[int]] = {}
    for index, call in enumerate(exported.calls):
        calls_of.setdefault(call.node, []).append(index)
        for result, number in enumerate(call.memory):
            if maker.setdefault(number, (index, result))[0] not in there and index in there:
                maker[number] = index, result
    places = _places(eager, exported, there, place_of_node)
    until = []
    for name in values:
        index, result = maker.get(memory[name], (-1, 0))
        own = calls_of.get(name, [index])  # what is not dispatched gives its operand back: `detach_`
        if own != [-1] and not any(call in there for call in own):
            until.append(-1)
            continue
        if index not in there:  # an input, or a view of what exporting alone makes
            until.append(len(values) - 1 if index < 0 else place_of_node[name])
            continue
        number = eager.calls[there[index]].memory[result]
        freed = eager.freed.get(number, _FOREVER)
        until.append(max(place_of_node[name], places[freed] if freed < len(places) else len(values) - 1))
    _keep_for_readers(program, until, place_of_node)
    attentions: dict[str, Any] = {
        name: hidden
        for name, hidden in zip(exported.attentions, eager.attentions, strict=False)
        if hidden and len(eager.attentions) == len(exported.attentions)
    }
    return Record(FORMAT, f"torch {torch.__version__.partition('+')[0]}", values, until, attentions)


def _keep_for_readers(
    program: torch.export.ExportedProgram, until: list[int], place_of_node: Mapping[str, int]
) -> None:
    """Holds what a later call of the program reads: eager execution may make it anew there, as a mask of each layer.

    A product that it does not make, where it computes in another way, stands for what it makes instead.
    """
    for node in reversed(program.graph.nodes):
        own = place_of_node.get(_name(node), -1)
        if own < 0 or until[own] < 0:
            continue
        for read in node.all_input_nodes:
            place = place_of_node.get(_name(read), -1)
            if place >= 0 and (until[place] >= 0 or operator(str(read.target)).kind in COMPUTING):
                until[place] = max(until[place], own)


def _places(
    eager: Followed, exported: Followed, there: Mapping[int, int], place_of_node: Mapping[str, int]
) -> list[int]:
    """By call of the eager run: the latest value of the program that is made by then, -1 before the first.

    A value that no call makes, as `type_as` of the same type gives its operand back, is made as soon as the one before it:
    it reads an operand that is freed before the next call.
    """
    called = {call.node for call in exported.calls}
    before_next = {-1: -1}  # by place of a value: the last place before the next call's
    end = len(place_of_node) - 1
    for name, place in reversed([*place_of_node.items()]):
        before_next[place] = end
        end = place - 1 if name in called else end
    places, last = [], -1
    back = {theirs: ours for ours, theirs in there.items()}
    for index in range(len(eager.calls)):
        if index in back:
            last = max(last, place_of_node.get(exported.calls[back[index]].node, last))
        places.append(before_next[last])
    return places
