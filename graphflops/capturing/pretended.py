"""Fake devices and fake tensors, on which a whole step of one rank runs in one process."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from math import prod
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.parallel import distributed as ddp

from graphflops.capturing.gpu_functions import Around, OnCpu, gpu_autocast, gpu_functions
from graphflops.capturing.recorder import Recorder
from graphflops.capturing.streams import streams
from graphflops.errors import ModelError, OptionError
from graphflops.exporters.step_file import RecordedGroup

OPTIMIZERS = import_module("torch.optim.optimizer")  # not an attribute: torch.optim deletes it
FOREACH = import_module("torch.utils._foreach_utils")
_KNOWN = 1024  # elements of a vector whose numbers are kept


@contextlib.contextmanager
def devices(axes: Mapping[str, int], rank: int) -> Iterator[Any]:
    """Within this context there is a fake process group; gives its mesh, or None if there are no axes."""
    if not axes:
        yield None
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise OptionError("torch.distributed is initialized here: record in a process of its own")
    # Registers results of collectives on fake tensors; later releases of torch know them without it.
    with contextlib.suppress(ImportError):
        import_module("torch.distributed._tools.fake_collectives")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(axes.values()))
    try:
        mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        yield mesh
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def pretended() -> Iterator[FakeTensorMode]:
    """Within this context, tensors have no data, and torch does what it would do on a GPU."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with contextlib.ExitStack() as stack:
        for place, name, function in _instead():
            stack.enter_context(mock.patch.object(place, name, function))
        for module in (OPTIMIZERS, FOREACH):
            module._foreach_supported_types.append(FakeTensor)  # the type of parameters here
            stack.callback(module._foreach_supported_types.remove, FakeTensor)
        for around in (_uncompiled(fake), gpu_functions(), gpu_autocast(), streams(), fake):
            stack.enter_context(around)
        yield fake


def _instead() -> Iterator[tuple[Any, str, Any]]:
    """Replacements of functions that need data, other ranks or a GPU: each owner, the function's name, the replacement."""
    yield from (
        (ddp, "_verify_param_shape_across_processes", _nothing),
        (ddp, "_sync_module_states", _nothing),
        (ddp.DistributedDataParallel, "__init__", _of_any_device),
        (ddp.DistributedDataParallel, "_pre_forward", _summing),
        (ddp.DistributedDataParallel, "_check_comm_hook", _nothing),
        (ddp.DistributedDataParallel, "_passing_sync_batchnorm_handle", _nothing),
        (torch.nn.SyncBatchNorm, "forward", _over_ranks),
        (torch.cuda, "get_rng_state", lambda *_: None),
        (torch.cuda, "set_rng_state", _nothing),
        (dist, "all_reduce", _with_future(dist.all_reduce)),
        (dist, "all_gather_object", _told_by_all),
        (dist, "broadcast_object_list", _nothing),
        # On one GPU, DataParallel runs the module itself, as it does if it finds no device.
        (import_module("torch.nn.parallel.data_parallel"), "_get_available_device_type", _nothing),
        (dist.Reducer, "_rebuild_buckets", _nothing),  # it reads data of ranks
        (dist, "Reducer", _with_buckets),
        # Converting a module swaps its parameters, which torch refuses if weak references to them exist, as here.
        (torch.utils, "weakref", mock.Mock(getweakrefs=lambda _: [])),
        # It draws again until all numbers are in bounds, and so reads them: the tensor stays as it is.
        (torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
    )
    yield from _of_fsdp()
    yield from ((place, name, _outside(getattr(place, name))) for place, name in _with_real_tensors())
    name = "_get_capturable_supported_devices"  # each optimizer's module imports it by name
    for path, module in [*sys.modules.items()]:
        if path.startswith("torch.optim.") and hasattr(module, name):
            yield module, name, lambda **_: ["cpu"]


def _of_fsdp() -> Iterator[tuple[Any, str, Any]]:
    """The same for `fully_shard` and `FullyShardedDataParallel`."""
    parts = ("_fully_shard._fsdp_param", "_flat_param", "_init_utils", "fully_sharded_data_parallel")
    shards, flat, set_up, whole = (import_module(f"torch.distributed.fsdp.{name}") for name in parts)
    if hasattr(shards, "_chunk_with_empty"):
        yield shards, "_chunk_with_empty", _Chunks
    yield flat.FlatParamHandle, "_all_gather_flat_param", _gathered
    yield whole, "_init_device_handle", _on_any_device
    name = "_get_device_from_device_id"
    yield set_up, name, lambda device, *_: None if device is None else torch.device("cpu")
    yield set_up, "_check_module_states_for_sync_module_states", _nothing
    yield set_up, "_sync_module_params_and_buffers", _nothing


@contextlib.contextmanager
def _uncompiled(fake: FakeTensorMode) -> Iterator[None]:
    """Within this context, nothing is compiled; `fake.is_compiled` says whether something would have been."""
    fake.is_compiled = False

    def as_given(model: Any = None, *_: Any, **__: Any) -> Any:
        """Replaces `torch.compile`; a call with options alone returns a decorator."""
        fake.is_compiled = True
        return as_given if model is None else model

    def as_it_is(compiler: Any) -> None:
        """Replaces the compiler of functions that were compiled before, such as when their module was imported."""
        fake.is_compiled |= compiler not in (None, False)

    with contextlib.ExitStack() as stack:
        for place in (torch, torch.nn.Module):
            stack.enter_context(mock.patch.object(place, "compile", as_given))
        if (dynamo := sys.modules.get("torch._dynamo.eval_frame")) is not None:
            stack.enter_context(mock.patch.object(dynamo, "_callback_from_stance", as_it_is))
        yield


@contextlib.contextmanager
def known_numbers() -> Iterator[None]:
    """Within this context, short vectors keep their numbers: models read their layers' rates from `linspace`."""
    with mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _KNOWN), _KnownNumbers():
        yield


class _KnownNumbers(Around):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.linspace, torch.arange) and made.numel() <= _KNOWN:
            with unset_fake_temporarily():
                made.constant = func(*args, **{**(kwargs or {}), "device": "cpu"})
        return made


def _on_any_device(state: Any, *_: Any) -> Any:
    """Lets `FullyShardedDataParallel` run on the CPU, which it refuses."""
    from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle

    state._device_handle = _FSDPDeviceHandle(torch.device("cpu"))
    return state


def _gathered(handle: Any, whole: torch.Tensor) -> torch.Tensor:
    """Gathers a parameter of `FullyShardedDataParallel` into one tensor, as on a GPU."""
    if handle._offload_params:
        raise ModelError("CPUOffload is not recorded: take fully_shard with CPUOffloadPolicy, which is")
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name
    gather(whole, handle.flat_param.data, handle.process_group)
    return whole


class _Chunks(Sequence[Any]):
    """The chunks of a parameter that `fully_shard` makes for all ranks. Each is made on access: a rank uses only one."""

    def __init__(self, tensor: Any, num_chunks: int, dim: int) -> None:
        self.tensor, self.parts, self.dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self.parts

    def __getitem__(self, place: Any) -> Any:
        whole = self.tensor.shape[self.dim]
        most = -(-whole // self.parts)
        size = min(most, whole - place * most)
        return self.tensor.narrow(self.dim, place * most, size) if size > 0 else self.tensor.new_empty(0)


def _of_any_device(
    model: Any, module: Any, device_ids: Any = None, output_device: Any = None, *more: Any,
    _init: Any = ddp.DistributedDataParallel.__init__, **kwargs: Any,
) -> None:  # fmt: skip
    """Makes a DDP without the devices that the program names: DDP would refuse them if they are not GPUs."""
    _init(model, module, None, None, *more, **kwargs)


def _over_ranks(module: Any, x: Any) -> Any:
    """The forward of `SyncBatchNorm`, which refuses devices that are not GPUs."""
    group = module.process_group or dist.group.WORLD
    if not (module.training and dist.is_initialized() and group.size() > 1):
        return torch.nn.modules.batchnorm._BatchNorm.forward(module, x)
    if module.track_running_stats:
        module.num_batches_tracked.add_(1)
    running, settings = (module.running_mean, module.running_var), (module.eps, module.momentum or 0.0)
    own = torch.nn.modules.batchnorm.sync_batch_norm
    return own.apply(x, module.weight, module.bias, *running, *settings, group, group.size())


def _summing(
    model: Any, *args: Any, _pre_forward: Any = ddp.DistributedDataParallel._pre_forward, **kwargs: Any
) -> Any:
    """Gives DDP a hook that averages gradients as its default does, which would read a tensor from a fake future."""

    def averaged(group: Any, bucket: Any) -> Any:
        gradients = bucket.buffer().div_(group.size())
        dist.all_reduce(gradients, group=group)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(gradients)
        return future

    if not model._comm_hooks:
        model.register_comm_hook(model.process_group, averaged)
    return _pre_forward(model, *args, **kwargs)


def _with_buckets(
    parameters: list[Any], _indices: Any, _limits: Any, group: Any, sparse: Any, most: int, *more: Any,
    _reducer: Any = dist.Reducer,
) -> Any:  # fmt: skip
    """Gives DDP the buckets that it has from the second step on, if gradients come in reverse order of parameters."""
    if more and more[0]:  # if parameters may be unused, DDP keeps the buckets of the first step
        return _reducer(parameters, _indices, _limits, group, sparse, most, *more)
    by_bucket = more[6] if len(more) > 6 else ()
    sizes = by_bucket or [*more[3:4], most]
    found, limits = dist._compute_bucket_assignment_by_size(parameters[::-1], sizes, sparse[::-1])
    buckets = [[len(parameters) - 1 - place for place in bucket] for bucket in found]
    return _reducer(parameters, buckets, limits, group, sparse, most, *more)


def _with_future(function: Callable[..., Any]) -> Callable[..., Any]:
    """The collective, whose work has a future, because DDP's hooks read it: work of a fake process group has none."""

    def called(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = function(tensor, *args, **kwargs)
        future: torch.futures.Future[list[Any]] = torch.futures.Future()
        future.set_result([tensor])
        return work and mock.Mock(wait=work.wait, is_completed=work.is_completed, get_future=lambda: future)

    return called


def _told_by_all(objects: list[Any], own: Any, *_: Any, **__: Any) -> None:
    """Replaces `all_gather_object`: all ranks are taken to have the same object."""
    objects[:] = [own] * len(objects)


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces functions that are not needed here, such as those that compare the ranks' modules."""


def _with_real_tensors() -> list[tuple[Any, str]]:
    """Methods that must run outside of the fake mode: DeviceMesh reads tensors of ranks, DTensor has its own fake mode."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    names: dict[Any, str] = {
        import_module("torch.distributed.fsdp._fully_shard._fully_shard"): "_get_post_forward_mesh_info",
        DeviceMesh: "__init__ __getitem__ _flatten _unflatten _concatenate _get_all_submeshes get_all_groups",
        ShardingPropagator: "_propagate_tensor_meta_non_cached",
    }
    every = [(kind, name) for kind, methods in names.items() for name in methods.split()]
    return [(kind, name) for kind, name in every if inspect.isfunction(kind.__dict__.get(name))]


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run outside of the fake mode; `cuda` among its arguments becomes `cpu`."""

    def called(*args: Any, **kwargs: Any) -> Any:
        given = {name: _device_type(value) for name, value in kwargs.items()}
        with unset_fake_temporarily():
            return function(*map(_device_type, args), **given)

    return called


def _device_type(value: Any) -> Any:
    return "cpu" if isinstance(value, str) and value == "cuda" else value


def groups(mesh: Any) -> list[RecordedGroup]:
    """The rank's process groups, each with the axes of the mesh that it spans."""
    axes = mesh.mesh_dim_names
    along: dict[tuple[int, ...], str] = {}
    place = mesh.get_coordinate()
    for length in range(1, len(axes) + 1):
        for chosen in combinations(range(len(axes)), length):
            index = tuple(slice(None) if axis in chosen else at for axis, at in enumerate(place))
            ranks = tuple(sorted(mesh.mesh[index].flatten().tolist()))
            along.setdefault(ranks, "+".join(axes[axis] for axis in chosen))
    found = {}
    for group in dist.distributed_c10d._world.pg_map:
        ranks, name = tuple(dist.get_process_group_ranks(group)), group.group_name
        if dist.get_rank() in ranks:
            found[name] = RecordedGroup(name, along.get(tuple(sorted(ranks)), ""), [*ranks])
    return [*found.values()]


_MOVING = (torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to)


class HostMemory(Around):
    """Tells a recorder which tensors a step copies to the host, by `.cpu()` or `.to("cpu")`, or makes in pinned memory.

    The device is called `cpu` here as well. So `.to("cpu")` means the host only if the program names a GPU somewhere, and
    `.to(x.device)` means it only where `fully_shard` offloads gradients.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder, self.is_busy = recorder, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _MOVING and not self.is_busy:  # the mode may be on the stack twice
            with mock.patch.object(self, "is_busy", True):
                return self.moved(func, args, given)
        made = func(*args, **given)
        if given.get("pin_memory") and "empty" in getattr(func, "__name__", ""):
            self.recorder.on_host(made, is_pinned=True)
        return made

    def moved(self, func: Any, args: Any, given: Any) -> Any:
        places = [one for one in (*args[1:], *given.values()) if isinstance(one, (str, torch.device))]
        is_away, is_async = self.recorder.is_on_host(args[0]), bool(given.get("non_blocking"))
        is_named = OnCpu.names_gpu and "cpu" in places[:1] and isinstance(places[0], str)
        is_named |= self.recorder.offloads and bool(places)
        if func is torch.Tensor.cpu or is_named:
            if is_away:
                return args[0]
            dtype = func(*args, **given).dtype
            copied = args[0].to("cpu", dtype, copy=True, non_blocking=is_async)  # else a CPU copies nothing
            self.recorder.on_host(copied, is_pinned=is_async)
            return copied
        if is_away and (places or func is torch.Tensor.cuda):
            return args[0].to("cpu", copy=True, non_blocking=is_async)
        return func(*args, **given)
