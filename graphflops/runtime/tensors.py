"""Stored weights and constants as tensors of torch, or random tensors in their place."""

import io
import math
import warnings
from functools import partial
from typing import Any

import torch

from graphflops.errors import FileError, ModelError, first_line, shown
from graphflops.graph import Graph, Input, Stored
from graphflops.report import Report
from graphflops.runtime.input_plans import LARGEST, random_values
from graphflops.tensor import DType, TensorType
from graphflops.view import View

SPREAD = 0.02  # standard deviation of random weights: small enough for sums to stay finite in half precision


def dtype_of(dtype: DType) -> torch.dtype:
    """Torch's element type of that name. Raises ModelError if this torch has none."""
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise ModelError(f"this torch has no element type {shown(dtype.name)}")
    return found


class Weights:
    """Values of a program's parameters, buffers and constants on one device.

    random: use random numbers instead of the stored ones. keep: True keeps them on the device between runs, so that a run
    waits for no copy from the host; otherwise each is on the device from its first to its last use in a run.
    """

    def __init__(self, graph: Graph, device: torch.device, random: bool = False, keep: bool = False) -> None:
        self.graph, self.device, self.random, self.keep = graph, device, random, keep
        self._kept: dict[tuple[Graph, str], torch.Tensor] = {}
        self._checkpoint: dict[str, Any] | None = None

    def of(self, graph: Graph, entry: Input) -> torch.Tensor:
        """The value of an input of the program or of a nested graph. It is a copy if the program may write to it.

        Raises FileError if the file does not store it as numbers, and ModelError if a size is unknown.
        """
        if not self.keep:
            return self._made(graph, entry)
        if (graph, entry.name) not in self._kept:
            self._kept[graph, entry.name] = self._made(graph, entry)
        kept = self._kept[graph, entry.name]
        return kept.clone() if entry.role == "buffer" else kept

    def _made(self, graph: Graph, entry: Input) -> torch.Tensor:
        typed = graph.types.get(entry.name)
        if not isinstance(typed, TensorType):
            raise ModelError(f"input {shown(entry.name)} is not a tensor: {shown(str(typed), 80)}")
        if self.random:
            return random_weight(typed, self.device)
        stored = graph.contents(entry.name) if graph.contents is not None else None
        if stored is not None:
            what = shown(entry.target or entry.name)
            if stored.shape != typed.shape or stored.dtype is not typed.dtype:
                held = f"{stored.dtype}[{', '.join(map(str, stored.shape))}]"
                raise FileError(f"{what} is {typed} in the program, and {shown(held)} where it is stored")
            try:
                return tensor_of(stored).to(self.device, copy=entry.role != "parameter")
            except (TypeError, ValueError, OverflowError) as error:
                form = f"a form that torch does not accept: {first_line(error, 120)}"
                raise FileError(f"{what} is stored in {form}") from None
        # torch before 2.9 wrote tensors in checkpoints, which torch reads without running code (`weights_only`).
        if self._checkpoint is None:
            self._checkpoint = {}
            for data in getattr(self.graph.contents, "checkpoints", list)():
                try:
                    loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
                except Exception as error:  # noqa: BLE001 reading an untrusted file may raise anything
                    raise FileError(
                        f"{shown(self.graph.origin.path)}: its weights are a pickle of other objects, which is not opened "
                        f"({first_line(error, 120)}): use --random-weights"
                    ) from None
                if isinstance(loaded, dict):
                    self._checkpoint.update(loaded)
        found = self._checkpoint.get(entry.target)
        if isinstance(found, torch.Tensor) and not found.is_meta:
            return found.detach().to(self.device, copy=entry.role != "parameter")
        name = shown(entry.target or entry.name)
        raise FileError(f"{name} is not stored in the program: use --random-weights")


def tensor_of(stored: Stored) -> torch.Tensor:
    """A stored tensor as torch's, which shares its memory."""
    dtype = dtype_of(stored.dtype)
    if 0 in stored.shape or not stored.memory:
        return torch.empty(stored.shape, dtype=dtype)
    with warnings.catch_warnings():
        # torch warns if memory is read-only; nothing here writes to it.
        warnings.simplefilter("ignore", UserWarning)
        whole = len(stored.memory) // dtype.itemsize * dtype.itemsize
        flat = torch.frombuffer(stored.memory, dtype=torch.uint8, count=whole)
    return flat.view(dtype).as_strided(stored.shape, stored.strides, stored.offset)


def random_weight(typed: TensorType, device: torch.device) -> torch.Tensor:
    """Values like those of a new layer: matrices near zero, vectors near one, integers zero.

    Raises ModelError if a size is unknown.
    """
    shape = tuple([size for size in typed.shape if isinstance(size, int)])
    if len(shape) < len(typed.shape):
        unknown = [shown(str(size)) for size in typed.shape if not isinstance(size, int)]
        raise ModelError(f"sizes are unknown: give {', '.join(unknown)} by --dim")
    if math.prod(shape) > LARGEST:
        raise ModelError(f"a tensor of {shown(str(typed))} does not fit in memory")
    dtype = dtype_of(typed.dtype)
    if typed.dtype.kind == "bool":
        return torch.ones(shape, dtype=dtype, device=device)
    if not typed.dtype.is_floating:
        return torch.zeros(shape, dtype=dtype, device=device)
    if dtype.itemsize < 2:
        return torch.empty(shape, device=device).normal_(std=SPREAD).to(dtype)
    filled = torch.empty(shape, dtype=dtype, device=device).normal_(std=SPREAD)
    return filled if len(shape) > 1 else filled.abs_().add_(1)


def random_inputs(report: Report, view: View, device: torch.device, seed: int = 0) -> dict[str, Any]:
    """One random tensor for each input of the program, as `random_values` says."""
    generator = torch.Generator().manual_seed(seed)
    normal, integers = (partial(make, generator=generator) for make in (torch.randn, torch.randint))
    made = random_values(report, view, normal, torch.ones, integers)
    return {name: numbers.to(dtype_of(dtype)).to(device) for name, dtype, numbers in made}
