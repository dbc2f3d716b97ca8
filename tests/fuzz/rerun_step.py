"""What a recorded step really costs: torch runs its calls on tensors without data, and the file is written anew from that.

Shapes, element types, strides and which results share memory are torch's; of the file are the calls with their arguments,
what is there before them, groups, and how long memory is held beyond its last use.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphflops.capturing.gpu_functions import gpu_results
from graphflops.capturing.recorder import written

Json = dict[str, Any]
# Operators of process groups, by what their results are of their operands; devices: of the group.
_LIKE = ("all_reduce", "broadcast", "wait_tensor", "irecv", "isend")
_WAYS = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}


class Refused(Exception):
    """torch does not run a call."""


def rerun(step: Json) -> Json:
    """The step as torch runs it; raises Refused where torch does not."""
    return _Rerun(step).run()


class _Rerun:
    def __init__(self, step: Json) -> None:
        self.step, self.new = step, copy.deepcopy(step)
        self.tensors: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.new["storages"], self.storages = [], []
        self.groups = {name: len(ranks) for name, _, ranks in step["groups"]}

    def run(self) -> Json:
        memory: dict[int, Any] = {}
        for value, _, _ in self.step["inputs"]:
            number, offset, shape, strides, dtype = self.step["values"][value]
            kind = getattr(torch, dtype)
            if number not in memory:
                ends = [
                    (offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))
                    * kind.itemsize
                    for storage, offset, shape, strides, kind in self.inputs_of(number)
                ]
                size = max(self.step["storages"][number][4], *ends)
                memory[number] = torch.empty(size, dtype=torch.uint8, device="meta")
            tensor = torch.empty(0, dtype=kind, device="meta")
            tensor.set_(memory[number].untyped_storage(), offset, shape, strides)
            self.define(value, tensor, -1, is_input=True)
        for place, call in enumerate(self.step["calls"]):
            self.call(place, call)
        return self.new

    def inputs_of(self, number: int) -> list[Any]:
        values = [self.step["values"][entry[0]] for entry in self.step["inputs"]]
        return [[*value[:4], getattr(torch, value[4])] for value in values if value[0] == number]

    def call(self, place: int, call: list[Any]) -> None:
        name = self.step["operators"][call[0]]
        args, kwargs = self.argument(call[1]), self.argument(call[2])
        wanted = call[3]
        try:
            results = self.results(name, args, kwargs, wanted)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"call {place}, {name}: {error}".partition("\n")[0]) from error
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor, place)
        if len(results) != len(wanted):
            raise Refused(f"call {place}, {name}: {len(results)} results, {len(wanted)} are listed")
        for value, tensor in zip(wanted, results, strict=True):
            if value is not None:
                if not isinstance(tensor, torch.Tensor):
                    raise Refused(f"call {place}, {name}: a result is no tensor")
                self.define(value, tensor, place)
            elif (
                isinstance(tensor, torch.Tensor) and self.key(tensor) not in self.numbers
            ):  # it is made all the same
                self.storages.append(tensor.untyped_storage())
                self.numbers[self.key(tensor)] = len(self.new["storages"])
                self.new["storages"].append(
                    ["", "temporary", place, place, tensor.untyped_storage().nbytes()]
                )

    def results(self, name: str, args: Any, kwargs: Any, wanted: list[Any]) -> list[Any]:
        space, word, overload = name.split(".")
        func = getattr(getattr(getattr(torch.ops, space), word), overload)
        if space == "c10d":
            return self.written(word, func, args, kwargs)
        if space in ("_c10d_functional", "_c10d_functional_autograd"):
            return self.functional(word, args)
        given = {a.name for a in func._schema.arguments}
        if "device" in given:
            kwargs = {**kwargs, "device": torch.device("meta")}
        if word == "_local_scalar_dense":
            return [None] * len(wanted)
        results = gpu_results(func, args, func(*args, **kwargs))
        return written(func, args, kwargs) or ([] if results is None else tree_leaves(results))

    def written(self, word: str, func: Any, args: Any, kwargs: Any) -> list[Any]:
        """What an eager collective writes; sizes must be those of the group."""
        names = [a.name for a in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        group = next(
            (self.groups[one] for one in given.values() if isinstance(one, str) and one in self.groups), 0
        )
        tensors = [
            sum(x.numel() for x in tree_leaves(one) if isinstance(x, torch.Tensor)) for one in args[:2]
        ]
        out, into = (*tensors, 0)[:2]
        if "allgather" in word and out != into * group:
            raise Refused(f"{word}: {out} of {into} elements, {group} devices")
        if "reduce_scatter" in word and into != out * group:
            raise Refused(f"{word}: {out} of {into} elements, {group} devices")
        if word in ("alltoall_base_", "alltoall_") and not into:
            raise Refused(f"{word}: nothing is sent")
        return written(func, args, kwargs)

    def functional(self, word: str, args: Any) -> list[Any]:
        group = next((self.groups[one] for one in args if isinstance(one, str) and one in self.groups), 0)
        xs = args[0] if isinstance(args[0], list) else [args[0]]
        if "wait" in word:
            return xs
        if "all_gather" in word or "reduce_scatter" in word:
            size = next(one for one in args if isinstance(one, int) and not isinstance(one, bool))
            if size != group:
                raise Refused(f"{word}: {size} devices, {group} in the group")
        if "all_gather" in word:
            return [x.new_empty((x.shape[0] * group, *x.shape[1:])) for x in xs]
        if "reduce_scatter" in word:
            if any(x.shape[0] % group for x in xs):
                raise Refused(f"{word}: does not divide")
            return [x.new_empty((x.shape[0] // group, *x.shape[1:])) for x in xs]
        if "all_to_all" in word:
            rows = sum(args[1]) if args[1] else xs[0].shape[0]
            return [xs[0].new_empty((rows, *xs[0].shape[1:]))]
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in xs]

    def argument(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self.argument(one) for one in given]
        if not isinstance(given, dict):
            return given
        if len(given) == 1:
            ((kind, what),) = given.items()
            if kind == "v" and isinstance(what, int):
                return self.tensors[what]
            if kind == "d":
                return getattr(torch, what)
            if kind == "f":
                return float(what)
            if kind == "o":
                return self.opaque(what)
        return {name: self.argument(one) for name, one in given.items()}

    def opaque(self, what: str) -> Any:
        word = what.removeprefix("torch.")
        if word in _WAYS or word in ("strided",):
            return getattr(torch, word)
        if word.partition(":")[0] in ("cpu", "cuda"):
            return torch.device("meta")
        return what

    def define(self, value: int, tensor: Any, place: int, *, is_input: bool = False) -> None:
        self.tensors[value] = tensor
        self.hold(tensor, place, value, is_input=is_input)
        new = self.new["values"][value]
        new[0] = self.numbers[self.key(tensor)]
        new[1:] = [
            tensor.storage_offset(), list(tensor.shape), list(tensor.stride()), str(tensor.dtype).removeprefix("torch."),
        ]  # fmt: skip

    def key(self, tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata)

    def hold(self, tensor: Any, place: int, value: int | None = None, *, is_input: bool = False) -> None:
        """Memory is held when it is used, and as long as the file says of the values in it."""
        key = self.key(tensor)
        if key not in self.numbers:
            if value is None:
                return
            self.numbers[key] = len(self.new["storages"])
            self.storages.append(tensor.untyped_storage())  # so that its address stays its own
            name, kind, _, last, size = self.step["storages"][self.step["values"][value][0]]
            if kind in ("weight", "buffer", "optimizer", "input") and not is_input:
                kind = "value"
            size = size if is_input else tensor.untyped_storage().nbytes()
            self.new["storages"].append([name, kind, place, max(last, place), size])
            return
        entry = self.new["storages"][self.numbers[key]]
        last = place if value is None else self.step["storages"][self.step["values"][value][0]][3]
        entry[3] = max(entry[3], last, place)
