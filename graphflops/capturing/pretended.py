"""Pretended devices, and tensors without data, on which a whole step of one rank runs in one process."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import combinations
from math import prod
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.parallel import distributed as ddp

from graphflops.capturing.gpu_functions import gpu_autocast, gpu_functions
from graphflops.capturing.streams import streams
from graphflops.errors import OptionError
from graphflops.exporters.step_file import RecordedGroup

OPTIMIZERS = import_module("torch.optim.optimizer")  # torch.optim deletes the attribute
FOREACH = import_module("torch.utils._foreach_utils")


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
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(axes.values()))
    try:
        mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        yield mesh
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def pretended() -> Iterator[FakeTensorMode]:
    """Tensors without data, and what torch does on a GPU where it does otherwise on a CPU."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with contextlib.ExitStack() as stack:
        for place, name in ((ddp, "_verify_param_shape_across_processes"), (ddp, "_sync_module_states")):
            stack.enter_context(mock.patch.object(place, name, _nothing))
        stack.enter_context(mock.patch.object(ddp.DistributedDataParallel, "_pre_forward", _summing))
        stack.enter_context(mock.patch.object(ddp.DistributedDataParallel, "_check_comm_hook", _nothing))
        stack.enter_context(mock.patch.object(dist, "all_reduce", _with_future(dist.all_reduce)))
        # It reads data of ranks.
        stack.enter_context(mock.patch.object(dist.Reducer, "_rebuild_buckets", _nothing))
        stack.enter_context(mock.patch.object(dist, "Reducer", _with_buckets))
        supported = "_get_foreach_kernels_supported_devices"
        stack.enter_context(mock.patch.object(OPTIMIZERS, supported, return_value=["cpu"]))
        for module in (OPTIMIZERS, FOREACH):
            module._foreach_supported_types.append(FakeTensor)  # what parameters without data are
            stack.callback(module._foreach_supported_types.remove, FakeTensor)
        for place, name in _with_real_tensors():
            stack.enter_context(mock.patch.object(place, name, _outside(getattr(place, name))))
        # Converting a module swaps its parameters, which torch refuses where weak references exist, as here.
        stack.enter_context(mock.patch.object(torch.utils, "weakref", mock.Mock(getweakrefs=lambda _: [])))
        stack.enter_context(gpu_functions())
        stack.enter_context(gpu_autocast())
        stack.enter_context(streams())
        stack.enter_context(fake)
        yield fake


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
    """The collective, whose work has a future with its tensor, which hooks of DDP read: a pretended one has none."""

    def called(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = function(tensor, *args, **kwargs)
        future: torch.futures.Future[list[Any]] = torch.futures.Future()
        future.set_result([tensor])
        return work and mock.Mock(wait=work.wait, is_completed=work.is_completed, get_future=lambda: future)

    return called


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what ranks tell one another."""


def _with_real_tensors() -> list[tuple[Any, str]]:
    """Methods of meshes that compute with tensors of ranks, and of DTensor, which finds whole shapes on its own."""
    if not dist.is_available():
        return []
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
    """The function, outside of the mode of tensors without data."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return called


def groups(mesh: Any) -> list[RecordedGroup]:
    """The groups that the rank is in, each with the axes of the mesh that it lies along."""
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
