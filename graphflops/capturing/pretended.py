"""Pretended devices, and tensors without data, on which a whole step of one rank runs in one process."""

from __future__ import annotations

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

OPTIMIZERS = import_module("torch.optim.optimizer")  # torch.optim deletes the attribute
FOREACH = import_module("torch.utils._foreach_utils")
_KNOWN = 1024  # numbers of a vector


@contextlib.contextmanager
def devices(axes: Mapping[str, int], rank: int) -> Iterator[Any]:
    """The mesh of a process group that only pretends; None without axes."""
    if not axes:
        yield None
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise OptionError("torch.distributed is initialized here: record in a process of its own")
    # Results of collectives without data, which later releases know by themselves.
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
    """Tensors without data, and what torch does on a GPU where it differs from a CPU."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with contextlib.ExitStack() as stack:
        for place, name, function in _instead():
            stack.enter_context(mock.patch.object(place, name, function))
        for module in (OPTIMIZERS, FOREACH):
            module._foreach_supported_types.append(FakeTensor)  # what parameters without data are
            stack.callback(module._foreach_supported_types.remove, FakeTensor)
        for around in (_uncompiled(fake), gpu_functions(), gpu_autocast(), streams(), fake):
            stack.enter_context(around)
        yield fake


def _instead() -> Iterator[tuple[Any, str, Any]]:
    """Functions that need data, other ranks or a GPU, by where they are, with what does as well."""
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
        # On one GPU it is the module.
        (import_module("torch.nn.parallel.data_parallel"), "_get_available_device_type", _nothing),
        (dist.Reducer, "_rebuild_buckets", _nothing),  # which reads data of ranks
        (dist, "Reducer", _with_buckets),
        # Converting a module swaps its parameters, which torch refuses if weak references to them exist, as here.
        (torch.utils, "weakref", mock.Mock(getweakrefs=lambda _: [])),
        # It draws again until no number is out of bounds, which it reads: the tensor stays as it is.
        (torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
    )
    yield from _of_fsdp()
    yield from ((place, name, _outside(getattr(place, name))) for place, name in _with_real_tensors())
    name = "_get_capturable_supported_devices"  # which each optimizer has from their common module
    for path, module in [*sys.modules.items()]:
        if path.startswith("torch.optim.") and hasattr(module, name):
            yield module, name, lambda **_: ["cpu"]


def _of_fsdp() -> Iterator[tuple[Any, str, Any]]:
    """The same of both ways to shard parameters."""
    parts = ("_fully_shard._fsdp_param", "_flat_param", "_init_utils", "fully_sharded_data_parallel")
    shards, flat, set_up, whole = (import_module(f"torch.distributed.fsdp.{name}") for name in parts)
    if hasattr(shards, "_chunk_with_empty"):
        yield shards, "_chunk_with_empty", _Chunks
    yield flat.FlatParamHandle, "_all_gather_flat_param", _gathered
    yield whole, "_init_device_handle", _on_any_device
    yield (
        set_up,
        "_get_device_from_device_id",
        lambda device, *_: None if device is None else torch.device("cpu"),
    )
    yield set_up, "_check_module_states_for_sync_module_states", _nothing
    yield set_up, "_sync_module_params_and_buffers", _nothing


@contextlib.contextmanager
def _uncompiled(fake: FakeTensorMode) -> Iterator[None]:
    """Within this context, nothing is compiled; `is_compiled` of the mode says whether something would be."""
    fake.is_compiled = False

    def as_given(model: Any = None, *_: Any, **__: Any) -> Any:
        """Replaces `torch.compile`, also when called with options only."""
        fake.is_compiled = True
        return as_given if model is None else model

    def as_it_is(compiler: Any) -> None:
        """Replaces the compiler of functions that were compiled before, as imported modules do."""
        fake.is_compiled |= compiler not in (None, False)

    with contextlib.ExitStack() as stack:
        for place in (torch, torch.nn.Module):
            stack.enter_context(mock.patch.object(place, "compile", as_given))
        if (dynamo := sys.modules.get("torch._dynamo.eval_frame")) is not None:
            stack.enter_context(mock.patch.object(dynamo, "_callback_from_stance", as_it_is))
        yield


class KnownNumbers(Around):
    """Keeps the numbers of short vectors while a factory builds: models read rates of their layers from `linspace`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.linspace, torch.arange) and made.numel() <= _KNOWN:
            with unset_fake_temporarily():
                made.constant = func(*args, **{**(kwargs or {}), "device": "cpu"})
        return made

    def __enter__(self) -> Any:
        self.limit = mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _KNOWN)
        self.limit.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.limit.stop()


def _on_any_device(state: Any, *_: Any) -> Any:
    """Gives `FullyShardedDataParallel` the CPU, which it refuses."""
    from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle

    state._device_handle = _FSDPDeviceHandle(torch.device("cpu"))
    return state


def _gathered(handle: Any, whole: torch.Tensor) -> torch.Tensor:
    """Gathers a parameter of `FullyShardedDataParallel` as on a GPU: into one tensor."""
    if handle._offload_params:
        raise ModelError("CPUOffload is not recorded: take fully_shard with CPUOffloadPolicy, which is")
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before
    gather(whole, handle.flat_param.data, handle.process_group)
    return whole


class _Chunks(Sequence[Any]):
    """The parts of a parameter that `fully_shard` cuts for all ranks, each made when it is asked for: a rank has one."""

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
    """Makes a DDP without the devices that it names, which must be GPUs."""
    _init(model, module, None, None, *more, **kwargs)


def _over_ranks(module: Any, x: Any) -> Any:
    """The forward of a batch norm of all ranks, on a device of any name."""
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
    """Gives DDP the sum of gradients that it has by default: the future of a pretended one has no tensor."""

    def averaged(group, bucket):  # type: ignore[no-untyped-def] # torch compares annotations, which are texts here
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
    """The buckets that DDP has from the second step on, if gradients come in the order of parameters, turned."""
    if more and more[0]:  # buckets of the first step stay where parameters may be unused
        return _reducer(parameters, _indices, _limits, group, sparse, most, *more)
    by_bucket = more[6] if len(more) > 6 else ()
    sizes = by_bucket or [*more[3:4], most]
    found, limits = dist._compute_bucket_assignment_by_size(parameters[::-1], sizes, sparse[::-1])
    buckets = [[len(parameters) - 1 - place for place in bucket] for bucket in found]
    return _reducer(parameters, buckets, limits, group, sparse, most, *more)


def _with_future(function: Callable[..., Any]) -> Callable[..., Any]:
    """The collective, with a future for its work, which hooks of DDP read: pretended work has none."""

    def called(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = function(tensor, *args, **kwargs)
        future: torch.futures.Future[list[Any]] = torch.futures.Future()
        future.set_result([tensor])
        return work and mock.Mock(wait=work.wait, is_completed=work.is_completed, get_future=lambda: future)

    return called


def _told_by_all(objects: list[Any], own: Any, *_: Any, **__: Any) -> None:
    """Takes all ranks to have the same object."""
    objects[:] = [own] * len(objects)


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces what ranks tell each other."""


def _with_real_tensors() -> list[tuple[Any, str]]:
    """Methods of meshes that compute with tensors of ranks, and of DTensor, which finds whole shapes on its own."""
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
    """The function, outside of the mode of tensors without data; a mesh of GPUs becomes one of CPUs."""

    def called(*args: Any, **kwargs: Any) -> Any:
        given = {name: _device_type(value) for name, value in kwargs.items()}
        with unset_fake_temporarily():
            return function(*map(_device_type, args), **given)

    return called


def _device_type(value: Any) -> Any:
    return "cpu" if isinstance(value, str) and value == "cuda" else value


def groups(mesh: Any) -> list[RecordedGroup]:
    """The groups that the rank is in, each with the axes of the mesh that it spans."""
    axes = mesh.mesh_dim_names
    along: dict[tuple[int, ...], str] = {}
    place = mesh.get_coordinate()
    for length in range(1, len(axes) + 1):
        for chosen in combinations(range(len(axes)), length):
            index = tuple(slice(None) if axis in chosen else at for axis, at in enumerate(place))
            along.setdefault(
                tuple(sorted(mesh.mesh[index].flatten().tolist())), "+".join(axes[axis] for axis in chosen)
            )
    found = {}
    for group in dist.distributed_c10d._world.pg_map:
        ranks = dist.get_process_group_ranks(group)
        if dist.get_rank() in ranks:
            found[group.group_name] = RecordedGroup(
                group.group_name, along.get(tuple(sorted(ranks)), ""), list(ranks)
            )
    return [*found.values()]


_MOVING = (torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to)


class HostMemory(Around):
    """Tells a recorder what a step itself copies to the host: `.cpu()`, `.to("cpu")`, and into memory that is pinned.

    Devices are the CPU here too: `.to("cpu")` means the host where something names a GPU, `.to(x.device)` never does, but
    where `fully_shard` takes gradients there.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder, self.is_busy = recorder, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _MOVING and not self.is_busy:  # it may be entered twice
            self.is_busy = True
            try:
                return self.moved(func, args, given)
            finally:
                self.is_busy = False
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
            copied = args[0].to("cpu", dtype, copy=True, non_blocking=is_async)  # torch copies none for a CPU
            self.recorder.on_host(copied, is_pinned=is_async)
            return copied
        if is_away and (places or func is torch.Tensor.cuda):
            return args[0].to("cpu", copy=True, non_blocking=is_async)
        return func(*args, **given)
