"""Records how long eager execution holds each result: it runs a module, and the program exported from it, without data.

Calls of the program are matched to calls of the module's run by module, operator and sizes. A result lives until that run
frees its memory. A call without a match, such as for an attention mask or for repeating heads, runs only in the export.
"""

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from operator import getitem
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from graphflops.base.aligned import matching_blocks
from graphflops.exporters.pt2 import COMPUTING, RECORD_FORMAT
from graphflops.graph import EagerRun
from graphflops.ops import operator
from graphflops.tensor import grouped

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_LARGEST_VALUE = 2**20  # elements of a result that is computed
_TOKEN = 3  # the assumed value of integers in inputs without data: hardly a padding, first or last token
# A tensor literal in the code: an export keeps it as a constant, and copies that where eager execution does not.
_EAGERLY = {"aten.lift_fresh_copy.default": "aten.lift_fresh.default"}


class Made(NamedTuple):
    """One call. key: calls with equal keys match. memory: numbers of its results' storages. node: the program's node."""

    key: tuple[object, ...]
    memory: tuple[int, ...]
    node: str


class Followed(TorchDispatchMode):  # type: ignore[misc]
    """Follows the calls of one run. An attention counts as one call, whatever operators it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Made] = []
        self.freed: dict[int, int] = {}  # by number of a storage: the last call before it was freed
        # By attention: in the module's run what it hides ("none", "causal", "" if it has a mask), in the program's its name.
        self.attentions: list[str] = []
        self.module, self.node = "", ""
        self.is_inside = False  # calls inside of an attention are parts of one
        # By address of a storage's object: a weak reference, and its number.
        self.numbers: dict[int, tuple[Any, int]] = {}
        self.count = 0
        self.values = WeakTensorKeyDictionary()  # results that depend on no data, as computed on the CPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and any(map(has_data, tree_leaves((args, kwargs)))):
            raise RuntimeError("a run without data would write to a tensor that has some")
        given = args, kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0] in self.values:
            with _disable_current_modes():
                return self.values[args[0]].item()
        results = _run_without_data(func, *given)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.evaluate(func, given, results, writes=func._schema.is_mutable, is_random=is_random)
        if not self.is_inside:
            self.note(_EAGERLY.get(str(func), str(func)), results)
        return results

    def give_integers(self, inputs: Any, given: Any) -> None:
        """Keep values of integer inputs, because libraries ask whether they are padding: those of `given`, else _TOKEN."""
        for tensor, own in zip(tree_leaves(inputs), tree_leaves(given), strict=True):
            is_whole = isinstance(tensor, torch.Tensor) and own.dtype == torch.int64
            if is_whole and own.numel() <= _LARGEST_VALUE:
                with _disable_current_modes():
                    known = own.cpu() if has_data(own) else torch.full(own.shape, _TOKEN, device="cpu")
                self.values[tensor] = known

    def evaluate(
        self, func: Any, given: tuple[Any, Any], result: Any, *, writes: bool = False, is_random: bool = False
    ) -> None:
        """Compute a small result that depends on no data, such as a mask of ones: models read its numbers."""
        tensors = _tensors(given)
        is_known = not is_random and all(tensor in self.values or has_data(tensor) for tensor in tensors)
        if writes and not is_known:
            self.values.clear()  # any of them may be a view of the memory that is written
        is_small = isinstance(result, torch.Tensor) and result.numel() <= _LARGEST_VALUE
        if not (is_known and is_small):
            return
        with _disable_current_modes(), torch.device("cpu"):
            args, kwargs = tree_map(self.known, given)
            if not tensors:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            self.values[result] = func(*args, **kwargs)

    def known(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return self.values.get(given, given)
        return torch.device("cpu") if isinstance(given, torch.device) else given

    def note(self, spelling: str, results: Any, *, has_sizes: bool = True) -> None:
        """Keep a call that has run. Its key has the operator's canonical name: an export may use another spelling."""
        tensors = _tensors(results)
        sizes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors) if has_sizes else ()
        memory = tuple(self.number(tensor) for tensor in tensors)
        op = operator(spelling)
        key = self.module, op.name, op.mutates, op.shares_memory, sizes
        self.calls.append(Made(key, memory, self.node))

    def number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        known = self.numbers.get(id(storage))
        if known is not None and known[0]() is storage:
            return known[1]
        self.count += 1
        number = self.count
        self.numbers[id(storage)] = weakref.ref(storage, lambda _: self.let_go(number)), number
        return number

    def let_go(self, number: int) -> None:
        self.freed[number] = len(self.calls) - 1


def _tensors(given: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def _run_without_data(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call, on bfloat16 where torch's meta function refuses the float32 that the kernel accepts."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        narrow, wide = torch.bfloat16, torch.float32
        if not any(tensor.dtype == wide for tensor in _tensors((args, kwargs))):
            raise
        with _disable_current_modes():
            args, kwargs = _as_type(wide, narrow, (args, kwargs))
            return _as_type(narrow, wide, func(*args, **kwargs))


def _as_type(before: torch.dtype, after: torch.dtype, given: Any) -> Any:
    """The arguments, with tensors of type `before` replaced by ones of type `after` with the same strides."""

    def changed(x: Any) -> Any:
        return torch.empty_like(x, dtype=after) if x.dtype == before else x

    return tree_map_only(torch.Tensor, changed, given)


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Tells a run which of its calls are attentions, and evaluates indexing: torch turns lists of indices into tensors."""

    def __init__(self, run: Followed) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__:
            results = func(*args, **kwargs)
            self.run.evaluate(func, (args, kwargs), results)
            return results
        if func is not _ATTENTION:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        hidden = "causal" if given.get("is_causal") else "none"
        self.run.attentions.append("" if given.get("attn_mask") is not None else hidden)
        with mock.patch.object(self.run, "is_inside", True):
            results = func(*args, **kwargs)
        self.run.note("attention", results, has_sizes=False)
        return results


@contextlib.contextmanager
def naming_modules(run: Followed, root: torch.nn.Module) -> Iterator[None]:
    """Within this context, tells a run which module is running."""
    names = {id(module): name for name, module in root.named_modules()}
    around: list[str] = []

    def enter(module: Any, _: Any) -> None:
        around.append(run.module)
        run.module = names.get(id(module), run.module)

    def leave(module: Any, args: Any, result: Any) -> None:
        run.module = around.pop()

    hooks = torch.nn.modules.module
    before = hooks.register_module_forward_pre_hook(enter)
    with before, hooks.register_module_forward_hook(leave, always_call=True):
        yield


def has_data(value: Any) -> bool:
    """True for a tensor that is neither fake nor on the meta device."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.is_meta


_MOST_EQUAL_PAIRS = 4_000_000  # pairs of calls with equal keys; matching that many takes a second
_FOREVER = 2**62  # a call after the last: for memory that is never freed


class _Program(fx.Interpreter):  # type: ignore[misc]
    """Runs a program, and tells a `Followed` which call of the program is running, and in which module."""

    def __init__(self, module: fx.GraphModule, run: Followed) -> None:
        super().__init__(module)
        self.run_of_it = run
        self.memory: dict[str, int] = {}  # by name of a value: the number of its storage

    def run_node(self, n: fx.Node) -> Any:
        run = self.run_of_it
        paths = [path for path, _ in (n.meta.get("nn_module_stack") or {}).values()]
        run.module, run.node = (paths[-1] if paths else "").partition("@")[0], _name(n)
        if n.target is torch.ops.aten.scaled_dot_product_attention.default:
            with mock.patch.object(run, "is_inside", True):
                result = super().run_node(n)
            run.attentions.append(n.name)
            run.note("attention", result, has_sizes=False)
        else:
            result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor):
            self.memory[n.name] = run.number(result)
        return result


def _name(node: fx.Node) -> str:
    """The name of a node's value; of the first, if an operator or a nested graph returns several."""
    first = next(iter(node.users), node)
    is_several = first.target is getitem and not isinstance(node.meta.get("val"), torch.Tensor)
    return str(first.name if is_several else node.name)


def recorded(
    module: torch.nn.Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    program: torch.export.ExportedProgram,
) -> EagerRun | None:
    """How long an eager run of a module holds its program's values; None if it needs data. No kernel runs on `inputs`."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    # The device of most weights: libraries put single ones on the CPU in any case.
    devices = [weight.device for weight in weights.values()] or [torch.device("cpu")]
    device = max(devices, key=devices.count)
    fake = next((weight.fake_mode for weight in weights.values() if isinstance(weight, FakeTensor)), None)
    mode = fake or FakeTensorMode(allow_non_fake_inputs=True)

    def without_data(tensor: Any) -> Any:
        return mode.from_tensor(tensor) if has_data(tensor) else tensor

    eager, exported = Followed(), Followed()
    try:
        with torch.no_grad(), torch.device("meta") if device.type == "meta" else mode:
            args, kwargs = tree_map_only(torch.Tensor, lambda x: torch.empty_like(x, device=device), inputs)
            eager.give_integers((args, kwargs), inputs)
            with naming_modules(eager, module), eager, Functions(eager):
                held = {name: without_data(weight) for name, weight in weights.items()}
                results = torch.func.functional_call(module, held, args, kwargs)
            interpreter = _Program(program.graph_module, exported)
            users, stored = iter(tree_leaves((args, kwargs))), {**program.constants, **program.state_dict}
            specs = program.graph_signature.input_specs
            given = [next(users) if x.kind.name == "USER_INPUT" else stored[x.target] for x in specs]
            flat = [*map(without_data, given)]
            with exported:
                outputs = interpreter.run(*flat)
    except Exception:  # noqa: BLE001 - a module that asks for its data leaves no record; the lines of its code are read
        return None
    record = _matched(program, eager, exported, interpreter.memory)
    del results, outputs  # until here, what both runs return must not be freed
    return record


def _matched(
    program: torch.export.ExportedProgram, eager: Followed, exported: Followed, memory: Mapping[str, int]
) -> EagerRun | None:
    # `there`: by index of a call of the program's run, that of the same call in the eager run.
    ours, theirs = ([call.key for call in run.calls] for run in (exported, eager))
    blocks = matching_blocks(ours, theirs, _MOST_EQUAL_PAIRS)
    there = {a + i: b + i for a, b, size in blocks for i in range(size)}
    values = [*memory]
    place_of_node = {name: place for place, name in enumerate(values)}
    # By storage of the program's run: the first matched call that makes it, and the index of the result.
    maker: dict[int, tuple[int, int]] = {}
    calls_of = grouped((call.node, index) for index, call in enumerate(exported.calls))
    for index, call in enumerate(exported.calls):
        for result, number in enumerate(call.memory):
            if maker.setdefault(number, (index, result))[0] not in there and index in there:
                maker[number] = index, result
    places = _places(eager, exported, there, place_of_node)
    until = []
    for name in values:
        index, result = maker.get(memory[name], (-1, 0))
        own = calls_of.get(name, [index])  # without a dispatched call (`detach_`), that of its memory
        if own != [-1] and not any(call in there for call in own):
            until.append(-1)
            continue
        if index not in there:  # the memory of an input, or a view of memory that only the export makes
            until.append(len(values) - 1 if index < 0 else place_of_node[name])
            continue
        number = eager.calls[there[index]].memory[result]
        freed = eager.freed.get(number, _FOREVER)
        until.append(max(place_of_node[name], places[freed] if freed < len(places) else len(values) - 1))
    _keep_for_readers(program, until, place_of_node)
    attentions: dict[str, Any] = {}
    if len(eager.attentions) == len(exported.attentions):
        pairs = zip(exported.attentions, eager.attentions, strict=True)
        attentions = {name: hidden for name, hidden in pairs if hidden}
    producer = f"torch {torch.__version__.partition('+')[0]}"
    return EagerRun(RECORD_FORMAT, producer, tuple(values), tuple(until), attentions)


def _keep_for_readers(
    program: torch.export.ExportedProgram, until: list[int], place_of_node: Mapping[str, int]
) -> None:
    """Extends lifetimes to the last call that reads a value, although eager code may make it anew there (a layer's mask).
    A product without a match is computed in another way by eager execution, and stands for that.
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
    """For each call of the eager run, the place of the latest value of the program that exists by then; -1 before the first.
    A value without a call (`type_as` to the same type) counts as made with the one before: its operand may be freed soon.
    """
    called = {call.node for call in exported.calls}
    before_next = {-1: -1}  # by place of a value: the last place before the next call's value
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
