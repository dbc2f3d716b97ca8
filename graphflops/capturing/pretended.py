"""Pretended devices, and tensors without data, on which a whole step of one rank runs in one process."""

from __future__ import annotations

import contextlib
import inspect
from importlib import import_module
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.parallel import distributed as ddp
from torch.overrides import TorchFunctionMode

from graphflops.errors import OptionError
from graphflops.exporters.recorded import RecordedGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_HEADS_APART = 4  # axes of the operands of flash attention
OPTIMIZERS = import_module("torch.optim.optimizer")  # torch.optim deletes the attribute


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
        stack.enter_context(
            mock.patch.object(dist.Reducer, "_rebuild_buckets", _nothing)
        )  # reads data of ranks
        supported = "_get_foreach_kernels_supported_devices"
        stack.enter_context(mock.patch.object(OPTIMIZERS, supported, return_value=["cpu"]))
        for place, name in _with_real_tensors():
            stack.enter_context(mock.patch.object(place, name, _outside(getattr(place, name))))
        # Converting a module swaps its parameters, which torch refuses where weak references exist, as here.
        stack.enter_context(mock.patch.object(torch.utils, "weakref", mock.Mock(getweakrefs=lambda _: [])))
        stack.enter_context(_OnCpu())
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


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what ranks tell one another."""


def _with_real_tensors() -> list[tuple[Any, str]]:
    """Methods of meshes that compute with tensors of ranks."""
    if not dist.is_available():
        return []
    from torch.distributed.device_mesh import DeviceMesh

    names = (
        "__init__",
        "__getitem__",
        "_flatten",
        "_unflatten",
        "_concatenate",
        "_get_all_submeshes",
        "get_all_groups",
    )
    return [(DeviceMesh, name) for name in names if inspect.isfunction(DeviceMesh.__dict__.get(name))]


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, outside of the mode of tensors without data."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return called


class _OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Places on the CPU what a factory places on a GPU, and chooses flash attention where a GPU does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            name: _on_cpu(value) if name == "device" else value for name, value in (kwargs or {}).items()
        }
        if func is torch.Tensor.cuda:
            return args[0].to("cpu")
        if func is _ATTENTION and (taken := _flash(*args, **given)) is not None:
            return torch.ops.aten._scaled_dot_product_flash_attention.default(*taken[0], **taken[1])[0]
        return func(*(args if func is not torch.Tensor.to else map(_on_cpu, args)), **given)


def _flash(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:  # fmt: skip
    """The operands of flash attention; None where it does not take them."""
    is_short = query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] == value.shape[-1]
    if attn_mask is not None or not is_short or query.ndim != _HEADS_APART or query.shape[-1] % 8:
        return None
    return (query, key, value, dropout_p, is_causal), {"scale": scale}


def _on_cpu(value: Any) -> Any:
    is_device = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return torch.device("cpu") if is_device or type(value) is int else value


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
