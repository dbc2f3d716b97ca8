"""Follows a run on tensors without data, call by call of the dispatcher."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from graphflops.ops import operator

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_LARGEST_VALUE = 2**20  # numbers of a result that is computed
_TOKEN = 3  # what integers in inputs without data are taken to be: of vocabularies, hardly padding, a beginning or an end
# A tensor that code spells out: in a program, a copy of what exporting keeps of it.
_EAGERLY = {"aten.lift_fresh_copy.default": "aten.lift_fresh.default"}


class Made(NamedTuple):
    """One call. key: what it is found again by; memory: numbers of the storages of its results; node: of the program."""

    key: tuple[object, ...]
    memory: tuple[int, ...]
    node: str


class Followed(TorchDispatchMode):  # type: ignore[misc]
    """Follows the calls of one run. An attention is one call, whatever it consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Made] = []
        self.freed: dict[int, int] = {}  # by number of a storage: the call after which nothing refers to it
        # What each hides without a mask: "none", "causal", or "" where it has a mask.
        self.attentions: list[str] = []
        self.module, self.node = "", ""
        self.is_inside = False
        # By address of a storage's object: a weak reference, its number.
        self.numbers: dict[int, tuple[Any, int]] = {}
        self.count = 0
        self.values = WeakTensorKeyDictionary()  # of results that hang on no data: the same on the CPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and any(map(has_data, torch.utils._pytree.tree_leaves((args, kwargs)))):
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
        """Knows the integers in inputs, `given` with data or taken to be tokens: libraries ask whether they are padding."""
        leaves = torch.utils._pytree.tree_leaves
        for tensor, own in zip(leaves(inputs), leaves(given), strict=True):
            is_whole = isinstance(tensor, torch.Tensor) and own.dtype == torch.int64
            if is_whole and own.numel() <= _LARGEST_VALUE:
                with _disable_current_modes():
                    known = own.cpu() if has_data(own) else torch.full(own.shape, _TOKEN, device="cpu")
                self.values[tensor] = known

    def evaluate(
        self, func: Any, given: tuple[Any, Any], result: Any, *, writes: bool = False, is_random: bool = False
    ) -> None:
        """Computes a small result that hangs on no number of inputs and weights, as a mask of ones: models ask for it."""
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        is_known = not is_random and all(tensor in self.values or has_data(tensor) for tensor in tensors)
        if writes and not is_known:
            self.values.clear()  # what is written to may be seen through any of them
        is_small = isinstance(result, torch.Tensor) and result.numel() <= _LARGEST_VALUE
        if not (is_known and is_small):
            return
        with _disable_current_modes(), torch.device("cpu"):
            args, kwargs = torch.utils._pytree.tree_map(self.known, given)
            if not tensors:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            self.values[result] = func(*args, **kwargs)

    def known(self, given: Any) -> Any:
        """What stands for an argument on the CPU: the values of a tensor."""
        if isinstance(given, torch.Tensor):
            return self.values.get(given, given)
        return torch.device("cpu") if isinstance(given, torch.device) else given

    def note(self, spelling: str, results: Any, *, has_sizes: bool = True) -> None:
        """A call is done. It is known by its operator, for a library may have its own while torch compiles."""
        tensors = [
            leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)
        ]
        sizes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors) if has_sizes else ()
        memory = tuple(self.number(tensor) for tensor in tensors)
        op = operator(spelling)
        key = self.module, op.name, op.mutates, op.shares_memory, sizes
        self.calls.append(Made(key, memory, self.node))

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage, which is followed from now on."""
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


def _run_without_data(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call gives on tensors without data.

    Some of torch's functions for these refuse float32, which the kernel takes; sizes and strides are those of bfloat16.
    """
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        narrow, wide = torch.bfloat16, torch.float32
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, torch.Tensor) and leaf.dtype == wide for leaf in leaves):
            raise
        with _disable_current_modes():
            args, kwargs = _as_type(wide, narrow, (args, kwargs))
            return _as_type(narrow, wide, func(*args, **kwargs))


def _as_type(before: torch.dtype, after: torch.dtype, given: Any) -> Any:
    """Tensors of another type than they are, as they lie in memory."""
    return torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda x: torch.empty_like(x, dtype=after) if x.dtype == before else x,
        given,
    )


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Tells a run which calls of it are attentions, and by which lists tensors are indexed: torch makes tensors of them."""

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
        given = (
            dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
            | kwargs
        )
        hidden = "causal" if given.get("is_causal") else "none"
        self.run.attentions.append("" if given.get("attn_mask") is not None else hidden)
        with inside(self.run):
            results = func(*args, **kwargs)
        self.run.note("attention", results, has_sizes=False)
        return results


@contextlib.contextmanager
def inside(run: Followed) -> Iterator[None]:
    """Notes no calls: they are parts of one."""
    run.is_inside = True
    try:
        yield
    finally:
        run.is_inside = False


@contextlib.contextmanager
def naming_modules(run: Followed, root: torch.nn.Module) -> Iterator[None]:
    """Tells a run which module it is in."""
    names = {id(module): name for name, module in root.named_modules()}
    around: list[str] = []

    def enter(module: Any, _: Any) -> None:
        around.append(run.module)
        run.module = names.get(id(module), run.module)

    def leave(module: Any, args: Any, result: Any) -> None:
        run.module = around.pop()

    hooks = torch.nn.modules.module
    handles = (
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def has_data(value: Any) -> bool:
    """True for a tensor that is neither fake nor on the meta device."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.is_meta
