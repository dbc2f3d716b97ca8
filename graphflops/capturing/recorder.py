"""Records the calls that one eager step dispatches, those on local tensors inside of DTensors, with the memory they use."""

import contextlib
import math
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphflops.capturing.gpu_functions import at_most, gpu_results
from graphflops.exporters import step_file
from graphflops.graph import InputRole, Phase, Storage, StorageKind
from graphflops.ops import operator

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor)
_NO_CALLS = frozenset({"prim", "profiler"})  # namespaces of operators that do no work
_READ = torch.ops.aten._local_scalar_dense.default
_QUERIES = (torch.ops.aten.lift_fresh.default, torch.ops.aten._has_same_storage_numel.default)
_C10D = torch.ops.c10d
_SENDING = (_C10D.send.default, _C10D.barrier.default) if torch.distributed.is_available() else ()
_WAIT = torch.ops._c10d_functional.wait_tensor.default if torch.distributed.is_available() else None
_VIEW, _MEMORY = str(torch.ops.aten.as_strided.default), str(torch.ops.aten.empty.memory_format)
_MOVING = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)  # may copy between host and device
_TO_ONE = frozenset({"send", "receive", "send_and_receive"})  # between stages of a pipeline
_DEEPEST = 4  # tensor subclasses that wrap one another around a local tensor


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Follows the calls of one step on fake tensors. keeps: whether it records the calls."""

    def __init__(self, fake: Any, *, keeps: bool = True) -> None:
        super().__init__()
        self.fake, self.keeps = fake, keeps
        self.storages: list[Storage] = []
        self.values: list[step_file.RecordedValue] = []
        self.inputs: list[step_file.RecordedInput] = []
        self.calls: list[step_file.RecordedCall] = []
        self.operators: dict[str, int] = {}
        self.modules: dict[str, str] = {"": ""}  # types by path
        self.module_numbers: dict[str, int] = {"": 0}
        self.sources: dict[str, int] = {"": 0}
        # By address of a storage's object: a weak reference, and its number.
        self.numbers: dict[int, tuple[Any, int]] = {}
        self.known: dict[tuple[Any, ...], int] = {}  # by storage and layout: the last value written there
        self.base: dict[int, int] = {}  # by storage: its first value
        self.resized: set[int] = set()
        self.phase: Phase = "forward"
        self.is_updating = self.guesses = False
        self.updates: set[int] = set()  # calls of optimizers
        self.around: list[tuple[str, str]] = []  # modules that are running
        # Module, line and stream of each autograd node of the forward.
        self.made_at: dict[int, tuple[tuple[str, str], str, int]] = {}
        self.place: tuple[tuple[str, str], str, int] = ("", ""), "", 0
        self.away: dict[int, StorageKind] = {}  # by storage on the host: the kind it would have on a device
        self.offloads = False  # whether `fully_shard` is offloading gradients to the host
        self.wrapped = self.hooked = 0  # since the last call; see `RecordedCall`
        self.after_backward: Callable[[], None] = lambda: None

    # Calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _PLAIN for kind in types):
            self.wrapped += 1
            return NotImplemented  # the subclass then dispatches the call on its local tensors
        try:
            # A real wait returns its operand; the fake one would return new memory.
            results = args[0] if func is _WAIT else gpu_results(func, args, func(*args, **kwargs))
        except DataDependentOutputException:
            if func is not _READ:
                raise
            results = 1.0 if args[0].is_floating_point() else args[0].dtype is torch.bool or 1
            self.guesses |= self.phase_now() != "optimizer"  # optimizers only read their step count
        except DynamicOutputShapeException:
            results = at_most(func, args)
            if results is None:
                raise
            self.guesses = True
        is_noted = self.keeps and func.namespace not in _NO_CALLS and func not in _QUERIES
        # Calls such as `transpose_` only change how their operand views its memory: the next call that reads it shows that.
        if is_noted and torch.Tag.inplace_view not in func.tags:
            self.hooked += is_of_a_mode(sys._getframe(1))
            self.note(func, args, kwargs, results)
        return results

    def note(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        if not self.ours((args, kwargs, results)):
            return
        self.phase = self.phase_now()
        self.place = self.place_now()
        if func is _READ and self.phase == "backward" and torch._C._current_autograd_node() is None:
            self.on_host(args[0], is_pinned=False)  # DDP's map of the parameters that were used
        if self.away and func not in _MOVING:
            self.choose_device(*[self.ours(given) for given in ((args, kwargs), results)])
        given = [self.argument(value) for value in args]
        named = {name: self.argument(value) for name, value in kwargs.items()}
        flat = written(func, args, kwargs) or ([] if results is None else tree_leaves(results))
        made = [self.define(_layout(self.storage(x), x), x) if self.is_ours(x) else None for x in flat]
        self.add(str(func), given, named, made)

    def add(self, operator: str, args: list[Any], kwargs: dict[str, Any], results: list[int | None]) -> None:
        (path, kind), source, stream = self.place
        number = self.operators.setdefault(operator, len(self.operators))
        module = self.module_numbers.setdefault(path, len(self.module_numbers))
        self.modules[path] = self.modules.get(path) or kind
        line = self.sources.setdefault(source, len(self.sources))
        around = self.phase, stream, self.wrapped, self.hooked
        self.calls.append(step_file.RecordedCall(number, args, kwargs, results, module, line, *around))
        self.wrapped = self.hooked = 0
        if self.is_updating:
            self.updates.add(len(self.calls) - 1)

    def choose_device(self, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Decides whether a call runs on the host: if all its operands with axes are there. torch refuses operands in both
        memories; so if only some seem to be on the host, they were moved to the device unseen.
        """
        numbers = {self.storage(tensor) for tensor in [x for x in given if x.dim()] or given}
        there = numbers & self.away.keys()
        if there and there == numbers:
            for tensor in made:
                if self.storages[self.storage(tensor)].kind == "value":
                    self.on_host(tensor, is_pinned=False)
        elif any(tensor.dim() for tensor in given):
            for number in there:
                self.storages[number].kind = self.away.pop(number)

    def ours(self, given: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(given) if self.is_ours(leaf)]

    def is_ours(self, given: Any) -> bool:
        """Whether it is a tensor of this step."""
        return isinstance(given, torch.Tensor) and getattr(given, "fake_mode", None) is self.fake

    def phase_now(self) -> Phase:
        """The phase of a call. After a backward, calls outside of modules are the update: gradient norms, new weights."""
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        if self.phase == "backward":
            self.after_backward()
        if self.is_updating or (self.phase != "forward" and not self.around):
            return "optimizer"
        return "forward"

    def place_now(self) -> tuple[tuple[str, str], str, int]:
        """The module, the line and the stream of a call; for a gradient, those of its forward call."""
        if self.phase == "backward" and not self.around:
            node = torch._C._current_autograd_node()
            return self.place if node is None else self.made_at.get(node._sequence_nr(), self.place)
        stream = getattr(torch.cuda.current_stream(), "number", 0)
        found = self.around[-1] if self.around else ("", ""), line(), stream
        if self.phase == "forward":
            # A later call that makes no autograd node finds the same number, so the first one counts.
            self.made_at.setdefault(torch.autograd._get_sequence_nr() - 1, found)
        return found

    # Values

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"v": self.value(value)} if self.is_ours(value) else {"o": f"tensor of {value.dtype}"}
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"f": str(value)}
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        if isinstance(value, torch.dtype):
            return {"d": str(value).removeprefix("torch.")}
        return {"o": str(value)} if not isinstance(value, torch.ScriptObject) else _named(value)

    def value(self, tensor: torch.Tensor) -> int:
        """The value of a tensor. If no call made it, it is a view of a value in its memory, or existed before the step."""
        number = self.storage(tensor)
        key = _layout(number, tensor)
        if key not in self.known:
            named: dict[str, Any] = {}
            if number in self.base:
                view = [list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]
                args, operator = [{"v": self.base[number]}, *view], _VIEW
            elif number in self.resized:
                args, operator = [list(tensor.shape)], _MEMORY
                named = {"dtype": self.argument(tensor.dtype)}
            else:
                return self.input(tensor, "constant", "")
            made = self.define(key, tensor)
            self.phase = self.phase_now()
            self.add(operator, args, named, [made])
        return self.known[key]

    def define(self, key: tuple[Any, ...], tensor: torch.Tensor) -> int:
        number = key[0]
        dtype = str(tensor.dtype).removeprefix("torch.")
        sizes, strides = [*map(int, tensor.shape)], [*map(int, tensor.stride())]
        self.values.append(step_file.RecordedValue(number, int(key[1]), sizes, strides, dtype))
        self.known[key] = value = len(self.values) - 1
        self.base.setdefault(number, value)
        memory = self.storages[number]
        memory.name = memory.name or f"v{value}"
        return value

    def input(self, tensor: torch.Tensor, role: InputRole, target: str) -> int:
        """The value of a tensor that exists before the step. The tensor becomes an input when it is first seen."""
        number = self.storage(tensor)
        key = _layout(number, tensor)
        if key in self.known:
            return self.known[key]
        memory = self.storages[number]
        memory.first, memory.name = -1, memory.name or target
        if number not in self.base:
            memory.kind = step_file.KINDS[role]
        value = self.define(key, tensor)
        self.inputs.append(step_file.RecordedInput(value, role, target or f"v{value}"))
        return value

    # Memory

    def storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        known = self.numbers.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else self.follow(storage)

    def follow(self, storage: Any) -> int:
        number = len(self.storages)
        # New memory exists from the call that is being recorded on.
        self.storages.append(Storage("", "value", len(self.calls), -2, int(storage.nbytes())))
        self.numbers[id(storage)] = weakref.ref(storage, lambda _: self.let_go(number)), number
        return number

    def let_go(self, number: int) -> None:
        memory = self.storages[number]
        if memory.last == -2:
            memory.last = max(len(self.calls) - 1, memory.first)

    def resize(self, storage: Any, size: int) -> None:
        """Memory was freed, or allocated again, which gives it a new number."""
        known = self.numbers.pop(id(storage), None)
        if known is not None and known[0]() is storage:
            self.let_go(known[1])
        if size:
            self.resized.add(self.follow(storage))

    def before(
        self, tensor: torch.Tensor | None, role: InputRole, target: str, *, on_host: bool = False
    ) -> None:
        """Notes a tensor, or the local one inside it, that exists before the step. on_host: it takes no device memory."""
        for _ in range(_DEEPEST):
            inner = getattr(tensor, "_local_tensor", None)
            tensor = tensor if inner is None else inner
        if self.is_ours(tensor):
            self.input(tensor, role, target)
            if on_host:
                self.storages[self.storage(tensor)].bytes = 0

    def on_host(self, tensor: Any, *, is_pinned: bool) -> None:
        """Notes that a tensor, or the local one inside it, is in the host's memory."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if self.is_ours(tensor):
            number = self.storage(tensor)
            self.away.setdefault(number, self.storages[number].kind)
            self.storages[number].kind = "pinned" if is_pinned else "host"

    def is_on_host(self, tensor: Any) -> bool:
        tensor = getattr(tensor, "_local_tensor", tensor)
        return self.is_ours(tensor) and self.storage(tensor) in self.away

    def is_gradient(self, tensor: torch.Tensor | None, name: str) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if self.is_ours(tensor):
            memory = self.storages[self.storage(tensor)]
            if memory.kind == "value":
                memory.kind, memory.name = "gradient", name

    def step(
        self, rank: int, axes: list[tuple[str, int]], groups: list[step_file.RecordedGroup]
    ) -> step_file.RecordedStep:
        """The recorded step. Memory freed in the phase that allocated it is temporary, and so are gathered parameters."""
        # Calls between backwards (a pipeline's messages) belong to the backward unless an optimizer's update follows.
        operators, follows = [*self.operators], False
        for place, call in reversed([*enumerate(self.calls)]):
            if call.phase != "optimizer" or operator(operators[call.operator]).name in _TO_ONE:
                follows = True
            elif place in self.updates:
                follows = False
            if follows and call.phase == "optimizer":
                call.phase = "backward"
        turn, runs = 0, []
        for before, call in zip([None, *self.calls], self.calls, strict=False):
            turn += before is not None and before.phase != call.phase
            runs.append(turn)
        end = len(self.calls) - 1
        for number, memory in enumerate(self.storages):
            memory.last = end if memory.last == -2 else min(memory.last, end)
            memory.first = min(memory.first, end)
            if memory.kind == "value" and memory.first >= 0:
                is_brief = turn > 0 and runs[memory.first] == runs[memory.last]
                memory.kind = "temporary" if is_brief or number in self.resized else "value"
        producer = f"torch {torch.__version__.partition('+')[0]}"
        lists = [*self.operators], [*self.modules.items()], [*self.sources]
        made = self.storages, self.values, self.inputs
        said = self.guesses, self.fake.is_compiled
        head = step_file.FORMAT, producer, rank, axes, groups
        return step_file.RecordedStep(*head, *lists, *made, self.calls, *said)


def _layout(number: int, tensor: torch.Tensor) -> tuple[Any, ...]:
    return number, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that a call writes but does not return: they are its results. [] for a call that returns its results."""
    if func.namespace == "c10d":
        return tree_leaves(args[0]) if func not in _SENDING else [None]
    if func._schema.returns:
        return []
    arguments = func._schema.arguments
    given = {**dict(zip([argument.name for argument in arguments], args, strict=False)), **kwargs}
    named = [x.name for x in arguments if x.alias_info and x.alias_info.is_write]
    return [leaf for name in named for leaf in tree_leaves(given.get(name)) if leaf is not None]


def _named(value: Any) -> Any:
    from torch import distributed as dist

    with contextlib.suppress(Exception):
        return dist.ProcessGroup.unbox(value).group_name
    with contextlib.suppress(Exception):
        return dist.ReduceOp.RedOpType(value.op()).name.lower()
    return {"o": type(value).__name__}


_TORCH = os.path.dirname(torch.__file__) + os.sep
_STEP = "_recorded"  # the function that runs the step
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def is_of_a_mode(caller: FrameType | None) -> bool:
    """Whether the call was dispatched from the `__torch_dispatch__` of a mode, by the frames that called the recorder."""
    while caller is not None:
        if caller.f_code.co_name == "__torch_dispatch__":
            return isinstance(caller.f_locals.get("self"), TorchDispatchMode)
        if not caller.f_code.co_filename.startswith(_TORCH):
            return False
        caller = caller.f_back
    return False


def line() -> str:
    """The innermost line of code that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OURS, "<")):
            # relative to the installed packages or to the working folder
            _, found, rest = name.rpartition(f"site-packages{os.sep}")
            is_near = name.startswith(os.getcwd() + os.sep)
            return f"{rest if found else os.path.relpath(name) if is_near else name}:{frame.f_lineno}"
        if frame.f_code.co_name == _STEP and name.startswith(_OURS):
            return ""
        frame = frame.f_back
    return ""
