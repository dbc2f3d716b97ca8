"""Records a whole step of one rank: builds what a factory returns on tensors without data, over pretended devices."""

import contextlib
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphflops.capturing.gpu_functions import OnCpu
from graphflops.capturing.pretended import OPTIMIZERS, HostMemory, devices, groups, known_numbers, pretended
from graphflops.capturing.recorder import Recorder
from graphflops.errors import GraphflopsError, ModelError, OptionError, innermost, said_by
from graphflops.exporters import uncollected
from graphflops.exporters.meshes import at_mesh, samples
from graphflops.exporters.recorded import graph_of
from graphflops.exporters.step_file import RecordedStep, write
from graphflops.graph import Graph, Origin

Mesh = Mapping[str, int]
_NAMES = ("module", "inputs", "optimizer", "loss")
_READS = "it reads numbers from its data, which a recording does not have: leave .item() and printing out"
# By words of an error message: the advice to the user.
_ADVICE = {
    "DataDependent": _READS,
    "_local_scalar_dense": _READS,
    "FlexAttention": "flex_attention is not recorded: let the factory use scaled_dot_product_attention",
    "_pack_padded_sequence": "packed sequences are not recorded: let the factory give padded ones",
    "shape_env must not be None": "jagged tensors are not recorded: let the factory pad them",
    "_set_forward_pass_work_handle": "join of DDP is not recorded: leave it out, since all ranks have as many inputs here",
    "PipeliningMetadataError": "no rank tells another its shapes here: give PipelineStage input_args and output_args",
    "UnsupportedOperatorException: c10d": "this torch has no collectives without data: record with a later one",
}


def record(
    factory: Callable[..., Any], *, mesh: Mesh | None = None, rank: int = 0, open_axes: Sequence[str] = (),
    file: str | Path | None = None,
) -> Graph:  # fmt: skip
    """Records one eager step of one rank of a mesh; nothing is computed, and no second process runs.

    factory: returns (module, inputs), (module, inputs, optimizer) or (module, inputs, optimizer, loss), or a dict of these
        names; or a function, the step itself. It is called with `mesh`, a DeviceMesh, if it has a parameter of that name.
        inputs: a tensor, a tuple, or a dict of named ones. loss: of what the module returns. Without loss and optimizer the
        step is an inference.
    mesh: devices by axis, the outermost first, `{"dp": 8, "tp": 4}`; None for one device. rank: the recorded one.
    open_axes: axes whose sizes are left open in the file, so that it can be analyzed on other meshes; the step is recorded
        on smaller ones too, 3 in all for one axis, 5 for two. Only for rank 0.
    file: where the step is saved for `analyze`.
    Raises ModelError, in one line, if the step cannot be recorded; OptionError for an invalid mesh.
    """
    axes = dict(mesh or {})
    _check_mesh(axes, rank, open_axes)
    meshes = samples(axes, open_axes) if open_axes else [axes]
    sizes = axes
    try:
        steps = []
        for sizes in meshes:
            steps.append(_recorded(factory, sizes, rank))
    except (GraphflopsError, OSError):
        raise
    except (Exception, SystemExit) as error:
        line, place = said_by(error), innermost(error.__traceback__, beside=("torch", "graphflops"))
        at = "" if sizes == axes else f" on the mesh {sizes}, which open axes need"
        advice = next((f": {what}" for word, what in _ADVICE.items() if word in line), "")
        raise ModelError(f"the step cannot be recorded{at}: {line} ({place}){advice}") from error
    if open_axes:
        at_mesh(steps, meshes[-1])  # refuses the step if no formula gives one of its numbers
    step = steps[0]
    if file is not None:
        write(steps, file)
    return graph_of(step, Origin("" if file is None else str(file), "recorded", step.producer))


def _check_mesh(axes: Mesh, rank: int, open_axes: Sequence[str]) -> None:
    sizes = axes.values()
    if any(not isinstance(size, int) or size < 1 for size in sizes) or not 0 <= rank < prod(sizes):
        text = "a mesh is the number of devices by axis, such as dp=8,tp=4, and a rank one of them"
        raise OptionError(text)
    if not axes.keys() >= {*open_axes} or (rank and open_axes):
        raise OptionError("open axes are axes of the mesh, as rank 0 sees them")


def _recorded(factory: Callable[..., Any], axes: Mesh, rank: int) -> RecordedStep:
    # A collection would free memory at random calls.
    with devices(axes, rank) as mesh, pretended() as fake, uncollected():
        wants_mesh = "mesh" in inspect.signature(factory).parameters
        with known_numbers():
            made = factory(mesh=mesh) if wants_mesh else factory()
        step, given = _step(made)
        followed = _Followed()
        first = Recorder(fake, keeps=False)
        with followed.hooks(first), first:
            step()  # a first step creates the states of optimizers, and what wrappers create lazily
        recorder = Recorder(fake)
        followed.register(recorder, given)
        gc.collect()
        with contextlib.ExitStack() as stack:
            for told in (followed.hooks, _moved, _saved, _naming_shards):
                stack.enter_context(told(recorder))
            stack.enter_context(recorder)
            step()
        followed.find_gradients()
        with unset_fake_temporarily():
            there = groups(mesh) if axes else []
        return recorder.step(rank, [*axes.items()], there)


def _step(given: Any) -> tuple[Callable[[], Any], list[tuple[str, torch.Tensor]]]:
    """A function that runs the step that a factory returned, and the step's inputs by name."""
    if callable(given) and not isinstance(given, torch.nn.Module):
        return given, []
    parts: dict[str, Any] = given if isinstance(given, dict) else {}
    if isinstance(given, tuple) and len(given) <= len(_NAMES):
        parts = dict(zip(_NAMES, given, strict=False))
    if not {"module", "inputs"} <= parts.keys() or not parts.keys() <= {*_NAMES}:
        text = (
            f"the factory returned a {type(given).__name__}, not (module, inputs, optimizer, loss) or a step"
        )
        raise ModelError(text)
    module, inputs, optimizer, loss = (parts.get(name) for name in _NAMES)
    assert callable(module)
    args: tuple[Any, ...] = inputs if isinstance(inputs, tuple) else (inputs,)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (args, {})

    def step() -> None:
        with torch.set_grad_enabled(optimizer is not None or loss is not None):
            result = module(*args, **kwargs)
        if loss is not None or optimizer is not None:
            _loss(result, loss).backward()  # no name holds the loss any longer
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    named = [(f"inputs[{place}]", one) for place, one in enumerate(args)] + [*kwargs.items()]
    return step, [(name, one) for name, one in named if isinstance(one, torch.Tensor)]


def _loss(result: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    value = loss(result) if loss is not None else getattr(result, "loss", result)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        text = "the module returns no loss: let the factory return a function of its result as the fourth"
        raise ModelError(text)
    return value


class _Followed:
    """The modules and optimizers of a step, found when the step runs them."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.roots: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.foreach_devices = ["cpu"]  # where optimizers use foreach kernels; [] for parameters on the host

    @contextlib.contextmanager
    def hooks(self, recorder: Recorder) -> Iterator[None]:
        self.recorder = recorder
        recorder.after_backward = self.find_gradients
        modules = torch.nn.modules.module
        with contextlib.ExitStack() as handles:
            handles.enter_context(modules.register_module_forward_pre_hook(self.enter))
            handles.enter_context(modules.register_module_forward_hook(self.leave, always_call=True))
            handles.enter_context(OPTIMIZERS.register_optimizer_step_pre_hook(self.update))
            handles.enter_context(OPTIMIZERS.register_optimizer_step_post_hook(self.updated))
            name = "_get_foreach_kernels_supported_devices"
            handles.enter_context(mock.patch.object(OPTIMIZERS, name, return_value=self.foreach_devices))
            yield

    def enter(self, module: torch.nn.Module, _: Any) -> None:
        """Notes that a module begins. An outermost module that is new becomes a root and names the modules in it."""
        around = self.recorder.around
        if not around and id(module) not in self.names:
            self.roots.append(module)
            self.name(len(self.roots) - 1)
        path = self.names.get(id(module), around[-1][0] if around else "")
        around.append((path, type(module).__name__))

    def name(self, place: int) -> None:
        """Names the modules in a root. In roots after the first, names begin with the root's class."""
        root = self.roots[place]
        prefix = f"{type(root).__name__}_{place}." if place else ""
        self.names |= {id(one): plain(prefix + name).rstrip(".") for name, one in root.named_modules()}

    def leave(self, *_: Any) -> None:
        self.recorder.around.pop()

    def update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        self.find_gradients()
        self.recorder.is_updating = True
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self.foreach_devices[:] = [] if any(map(self.recorder.is_on_host, parameters)) else ["cpu"]

    def updated(self, *_: Any) -> None:
        self.recorder.is_updating = False

    def register(self, recorder: Recorder, inputs: list[tuple[str, torch.Tensor]]) -> None:
        for place, root in enumerate(self.roots):
            self.name(place)  # again, because the first step may have made modules
            shards = {}  # by id of a parameter that is gathered now: the shard that `fully_shard` keeps
            offloaded = []
            for module in root.modules():
                state = getattr(module, "_get_fsdp_state", lambda: None)()
                group = getattr(state, "_fsdp_param_group", None)
                for parameter in group.fsdp_params if group is not None else ():
                    if parameter.offload_to_cpu:
                        offloaded.append(parameter)
                    if (whole := getattr(parameter, "_unsharded_param", None)) is not None:
                        shards[id(whole)] = parameter.sharded_param
            for module in root.modules():
                path = self.names[id(module)]
                for name, parameter in module._parameters.items():
                    target = f"{path}.{name}".lstrip(".")
                    recorder.before(shards.get(id(parameter), parameter), "parameter", target)
                    if id(parameter) in shards:
                        recorder.before(parameter, "constant", target)
                for name, buffer in module._buffers.items():
                    recorder.before(buffer, "buffer", f"{path}.{name}".lstrip("."))
            for parameter in offloaded:
                recorder.on_host(parameter.sharded_param, is_pinned=parameter.pin_memory)
        targets = {id(tensor): plain(name) for root in self.roots for name, tensor in root.named_parameters()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for name, state in optimizer.state.get(parameter, {}).items():
                        on_host = name == "step" and not (group.get("fused") or group.get("capturable"))
                        target = f"{targets.get(id(parameter), 'parameter')}.{name}"
                        recorder.before(state, "state", target, on_host=on_host)
                        if not on_host and recorder.is_on_host(parameter):
                            recorder.on_host(state, is_pinned=False)
        for name, tensor in inputs:
            recorder.before(tensor, "user", name)

    def find_gradients(self) -> None:
        for root in self.roots:
            for name, parameter in root.named_parameters():
                self.recorder.is_gradient(parameter.grad, plain(name))


def plain(name: str) -> str:
    """A module's path without the wrappers that torch leaves out of names of parameters too."""
    wrappers = ("_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module")
    return ".".join(part for part in name.split(".") if part not in wrappers)


@contextlib.contextmanager
def _moved(recorder: Recorder) -> Iterator[None]:
    """Tells a recorder of memory that changes without a dispatched call: resized storages, and tensors kept on the host.

    `save_on_cpu` is made to copy what it saves, and to copy it back: on a CPU, torch copies nothing.
    """
    resize = torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        recorder.resize(storage, size)
        return result

    def pack(tensor: torch.Tensor, is_pinned: bool) -> torch.Tensor:
        kept = tensor.detach().to(torch.device("cpu"), copy=True)
        recorder.on_host(kept, is_pinned=is_pinned)
        return kept

    def unpack(kept: torch.Tensor, is_pinned: bool) -> torch.Tensor:
        return kept.to(torch.device("cpu"), copy=True, non_blocking=is_pinned)

    def hooked(hooks: Any, pin_memory: bool = False, *_: Any, **__: Any) -> None:
        both = (partial(each, is_pinned=pin_memory) for each in (pack, unpack))
        torch.autograd.graph.saved_tensors_hooks.__init__(hooks, *both)

    offloads = mock.patch.object(torch.autograd.graph.save_on_cpu, "__init__", hooked)
    with mock.patch.object(torch.UntypedStorage, "resize_", resized), offloads:
        yield


@contextlib.contextmanager
def _saved(recorder: Recorder) -> Iterator[None]:
    """Tells a recorder how often hooks run on tensors saved for backward, and which tensors are copied to the host.

    torch turns a mode off while it handles a call. Hooks and the backward run within such calls, so they enter it again.
    """
    begin, engine = torch.autograd.graph.saved_tensors_hooks.__init__, torch.autograd._engine_run_backward
    mode = HostMemory(recorder)

    def counted(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(saved: Any) -> Any:
            recorder.hooked += 1
            with OnCpu(), mode:
                return hook(saved)

        return run

    def hooked(hooks: Any, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        begin(hooks, counted(pack), counted(unpack))

    around = mock.patch.object(torch.autograd, "_engine_run_backward", mode.around(engine))
    with around, mock.patch.object(torch.autograd.graph.saved_tensors_hooks, "__init__", hooked), mode:
        yield


@contextlib.contextmanager
def _naming_shards(recorder: Recorder) -> Iterator[None]:
    """Tells a recorder for which module FSDP gathers parameters, which it prefetches, or reduces gradients."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(group: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.around.append((plain(group._module_fqn or ""), ""))
            recorder.offloads = function.__name__ == "post_backward" and group.fsdp_params[0].offload_to_cpu
            try:
                return function(group, *args, **kwargs)
            finally:
                recorder.offloads = False
                recorder.around.pop()

        return called

    with contextlib.ExitStack() as stack:
        for name in ("unshard", "wait_for_unshard", "post_backward"):
            stack.enter_context(mock.patch.object(FSDPParamGroup, name, named(getattr(FSDPParamGroup, name))))
        yield
