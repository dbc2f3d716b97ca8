"""Reads an `ExportedProgram` in memory, with the same result as from its saved file; and exports modules.

This is the only reader that imports torch, from 2.6 on. It walks the fx graph itself rather than torch's
serializer, so programs that torch cannot save (flex attention with a block mask, scalars carried by a loop)
are read as well.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from graphflops.errors import ModelError
from graphflops.exporters.live_graph import Program, Scope, bound_of
from graphflops.exporters.sources import with_modules
from graphflops.exporters.types import guards_of, with_parts
from graphflops.graph import Graph, Input, InputRole, Origin, Output, OutputRole

_DEFERS = "prefer_deferred_runtime_asserts_over_guards"
_INPUT_ROLES: dict[str, InputRole] = {
    "USER_INPUT": "user", "PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant",
    "CUSTOM_OBJ": "object", "TOKEN": "token",
}  # fmt: skip
_OUTPUT_ROLES: dict[str, OutputRole] = {
    "USER_OUTPUT": "user", "LOSS_OUTPUT": "loss", "TOKEN": "token",
    "GRADIENT_TO_PARAMETER": "gradient", "GRADIENT_TO_USER_INPUT": "gradient",
    "BUFFER_MUTATION": "mutation", "PARAMETER_MUTATION": "mutation", "USER_INPUT_MUTATION": "mutation",
}  # fmt: skip


def capture(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    strict: bool = False,
    joint: bool = False,
    runtime_asserts: bool = False,
) -> torch.export.ExportedProgram:
    """Exports a module with `torch.export`. Its tensors may be real, fake, or on the meta device.

    args, kwargs: example inputs. dynamic_shapes: as `torch.export.export` takes it.
    joint: export forward and backward as one program of core operators. The loss is the module's result if that is one
        number, else the sum of its results.
    runtime_asserts: conditions on open axes that torch cannot prove become checks in the program, not errors (torch 2.8 on).
    If the parameters are fake, or on the meta device, the inputs are made so too.
    """
    if joint:
        from torch.export.experimental import _export_forward_backward

        with _returning_a_loss(module):
            program = capture(module, args, kwargs, dynamic_shapes, strict, runtime_asserts=runtime_asserts)
        return _export_forward_backward(program)
    inputs = (tuple(args), dict(kwargs or {}))
    tensors = (*module.parameters(), *module.buffers(), *torch.utils._pytree.tree_leaves(inputs))
    mode = next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)
    with contextlib.ExitStack() as stack:
        if mode is not None:
            inputs = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, inputs)
            stack.enter_context(mode)
        elif any(weight.is_meta for weight in (*module.parameters(), *module.buffers())):
            inputs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), inputs)
            stack.enter_context(torch.device("meta"))  # constants that the module makes join its parameters
        given: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "strict": strict}
        if runtime_asserts and _DEFERS in inspect.signature(torch.export.export).parameters:
            given[_DEFERS] = True
        return torch.export.export(module, inputs[0], inputs[1], **given)


@contextlib.contextmanager
def _returning_a_loss(module: torch.nn.Module) -> Iterator[None]:
    own = module.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves(own(*args, **kwargs))
        results = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        if not results:
            raise ModelError("joint: no result of the module depends on a parameter that wants a gradient")
        if len(results) == 1 and results[0].dim() == 0:
            return results[0]
        return torch.stack([result.sum().float() for result in results]).sum()

    with mock.patch.object(module, "forward", forward):
        yield


def from_exported_program(exported: torch.export.ExportedProgram) -> Graph:
    """The program as a Graph."""
    program = Program()
    signature = exported.graph_signature
    scope = Scope(program, exported.graph_module)
    placeholders = {node.name: node for node in exported.graph_module.graph.find_nodes(op="placeholder")}
    shared = _shared_weights(exported)
    entries = [(x.arg.name, _INPUT_ROLES[x.kind.name], x.target or "") for x in signature.input_specs]
    inputs = tuple([Input(*entry, shared.get(entry[2], "")) for entry in entries])
    for entry in inputs:
        scope.type_input(entry, placeholders[entry.name])
    nodes = scope.nodes()
    pairs = zip(signature.output_specs, scope.results(), strict=True)
    outputs = tuple([Output(x, _OUTPUT_ROLES[spec.kind.name], spec.target or "") for spec, x in pairs])
    nodes, inputs = with_parts(nodes, (*inputs, *scope.constants), outputs, scope.types)
    ranges = {str(x): (bound_of(r.lower), bound_of(r.upper)) for x, r in exported.range_constraints.items()}
    types, tensors = program.types, {**exported.constants, **exported.state_dict}
    held = {spec.arg.name: tensors.get(spec.target) for spec in signature.input_specs if spec.target}
    return Graph(
        nodes=with_modules(nodes, inputs, outputs),
        types=scope.types,
        inputs=inputs,
        outputs=outputs,
        symbols=types.symbols(ranges, inputs, scope.types),
        modules=program.sources.modules,
        origin=Origin(format="live", producer=f"torch {torch.__version__.partition('+')[0]}"),
        contents=program.contents({**held, **scope.tensors}),
        orders=types.orders,
        guards=guards_of(getattr(exported, "_guards_code", ()), inputs),  # from torch 2.9 on
    )


def from_graph_module(module: fx.GraphModule, name: str) -> Graph:
    """A traced function as a Graph. Tensors that it holds become inputs, after its own."""
    return Scope(Program(), module).region(name)


def _shared_weights(program: torch.export.ExportedProgram) -> dict[str, str]:
    """For each parameter or buffer that shares memory with an earlier one, the name of the earlier one."""
    first: dict[Any, str] = {}
    shared: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        weight = program.state_dict.get(spec.target) if spec.target else None
        if not isinstance(weight, torch.Tensor) or weight.layout is not torch.strided:
            continue
        try:
            storage_id = weight.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            continue  # a tensor subclass without memory of its own
        key = (storage_id, weight.dtype, tuple(weight.shape), weight.stride(), weight.storage_offset())
        earlier = first.setdefault(key, spec.target)
        if earlier != spec.target:
            shared[spec.target] = earlier
    return shared
