"""Time of recurrent layers as cuDNN runs them: one kernel for all steps where weights stay on chip, else two kernels a step.

A layer first multiplies all inputs at once. Where the recurrent weight fits into the registers of a multiprocessor, a thread
block then goes through all steps of one sequence. Else each step is a product and a pointwise kernel; the layers of a stack
and the two directions run beside one another in streams, as far as they leave multiprocessors. The gradients go through the
steps in reverse, then add up those of weights and biases. Read from 419 layers on an H200 with torch 2.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.kernels.kernel import Kernel, Product
from graphflops.tensor import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.devices import Device
    from graphflops.kernels.kernel import Recurrence


class Steps(NamedTuple):
    """Constants of two kernels a step.

    start: seconds before the first step. half, single: share of a product's time by element type, since the weight is in
    the cache from the step before. cell: seconds of the pointwise part with the gaps of both kernels, more for memsets in
    float32; its traffic runs at `bandwidth`. least, most: shares of a step's time that are not beside the layer before.
    """

    start: float
    half: float
    single: float
    cell: float
    cell_single: float
    bandwidth: float
    least: float
    most: float


class Resident(NamedTuple):
    """Constants of a kernel with its weights on chip: seconds to load it and of a step, each more for each weight."""

    start: float
    load: float
    load_weight: float
    step: float
    step_weight: float


_FORWARD = Steps(4.5e-6, 0.56, 0.73, 3.2e-6, 3.2e-6, 6.8e11, 0.34, 0.62)
_BACKWARD = Steps(3.3e-6, 0.63, 0.48, 3.1e-6, 9.5e-6, 3.45e11, 0.4, 0.98)
_FORWARD_RESIDENT = Resident(5.3e-6, 2.9e-6, 5.05e-10, 2.5e-7, 1.53e-11)
_BACKWARD_RESIDENT = Resident(12.7e-6, 2.5e-6, 6e-11, 4.9e-7, 2.03e-11)
_MOST_RESIDENT = {"forward": 160_000, "backward": 65_536}  # elements of a recurrent weight
_IN_REGISTERS = 65_536  # elements; what is beyond is read again in each step
_ROW_BYTES = 80e9  # bytes per second that a multiprocessor reads of it
_RESIDENT_TYPES = frozenset({"float32", "float16"})
_NARROW = 48  # hidden units up to which two sequences share a multiprocessor
_MATRIX_UNITS = (128, 8)  # a multiple of so many hidden units runs so many sequences together in float16
_ALIGNED = 16  # bytes
_UNEVEN = 1.5  # how much longer a step's product takes in half precision where rows are no multiple of these
_INPUTS = 1.43  # of the time of a product alone, which other streams share
_COPIES = (4, 0.86e-6)  # of the weights of a layer in bfloat16, which PyTorch does not keep in one piece
_WEIGHT_BYTES = 0.8e12  # per second
_WEIGHT_GRADIENT, _INPUT_GRADIENT = 0.58, 1.23  # of the time of products alone
_BIAS_GRADIENT = {1: 1.8e-9, 3: 13.7e-9, 4: 7.6e-9}  # seconds of each row, by gates
_STEP_TILE = (64, 8)  # gates and rows of a block


def seconds(sizes: Recurrence, dtype: str, device: Device, predict: Callable[[Kernel], float]) -> float:
    """Seconds of all layers, or of their gradients. predict: seconds of a product."""
    layers = _Layers(sizes, dtype, device, predict)
    found = layers.resident() if is_resident(sizes, dtype) else layers.by_steps()
    return found + (layers.gradients() if sizes.phase == "backward" else layers.inputs())


def on_cpu(sizes: Recurrence, dtype: str, device: Device, predict: Callable[[Kernel], float]) -> float:
    """Seconds on a CPU: of each layer and direction the product of all inputs, then step after step a product."""
    layers = _Layers(sizes, dtype, device, predict)
    inputs = sum(layers.product(layers.rows, layers.gates, width) for width in layers.widths())
    step = layers.product(sizes.batch, layers.gates, sizes.hidden) * _FORWARD.half
    turns = 3 if sizes.phase == "backward" else 1  # a gradient is two products for each, and the steps again
    return turns * sizes.directions * (inputs + sizes.layers * sizes.steps * step)


def is_resident(sizes: Recurrence, dtype: str) -> bool:
    """Whether the recurrent weight stays on chip, so that one kernel goes through all steps."""
    most = _MOST_RESIDENT["backward" if sizes.phase == "backward" else "forward"]
    return dtype in _RESIDENT_TYPES and sizes.gates * sizes.hidden**2 <= most


class _Layers:
    """A stack of recurrent layers in one element type on a device."""

    def __init__(
        self, sizes: Recurrence, dtype: str, device: Device, predict: Callable[[Kernel], float]
    ) -> None:
        self.sizes = sizes
        self.dtype = dtype
        self.cores = device.multiprocessors or 1
        self.is_gpu = device.kind == "gpu"
        self.predict = predict
        self.gates = sizes.gates * sizes.hidden
        self.rows = sizes.steps * sizes.batch
        self.width = DTYPES[dtype].bits / 8 if dtype in DTYPES else 4
        self.is_backward = sizes.phase == "backward"

    def resident(self) -> float:
        """All layers and directions in turn, each with a block for a sequence."""
        sizes, weights = self.sizes, self.gates * self.sizes.hidden
        known = _BACKWARD_RESIDENT if self.is_backward else _FORWARD_RESIDENT
        together = 2 if sizes.hidden <= _NARROW else 1
        if self.dtype == "float16" and sizes.hidden % _MATRIX_UNITS[0] == 0:
            together = _MATRIX_UNITS[1]
        waves = -(-sizes.batch // (self.cores * together))
        step = known.step + known.step_weight * weights
        if weights > _IN_REGISTERS:
            step = max(step, weights * self.width / _ROW_BYTES)
        each = waves * (known.load + known.load_weight * weights + sizes.steps * step)
        return known.start + sizes.layers * sizes.directions * each

    def by_steps(self) -> float:
        """The steps of the first layer, and of the others as far as these are not beside it, likewise of both directions."""
        sizes, known = self.sizes, _BACKWARD if self.is_backward else _FORWARD
        is_single = self.width >= DTYPES["float32"].bits / 8
        n, k = (sizes.hidden, self.gates) if self.is_backward else (self.gates, sizes.hidden)
        alone = known.single if is_single else known.half
        if not is_single and sizes.hidden * self.width % _ALIGNED and sizes.batch > 1:
            alone *= _UNEVEN
        product = self.product(sizes.batch, n, k) * alone
        cell = known.cell_single if is_single else known.cell
        step = product + cell + sizes.batch * self.gates * self.width / known.bandwidth
        blocks = -(-n // _STEP_TILE[0]) * -(-sizes.batch // _STEP_TILE[1])
        share = min(max(blocks / self.cores, known.least), known.most)
        in_turn = 1 + (sizes.layers - 1) * share if sizes.directions == 1 else sizes.layers * (1 + share)
        return known.start + sizes.steps * step * in_turn + self._copied_weights()

    def inputs(self) -> float:
        """The products of all inputs with the weights of each layer."""
        of_layers = [self.product(self.rows, self.gates, width) for width in self.widths()]
        share = 1.0 if is_resident(self.sizes, self.dtype) else _INPUTS
        return share * self.sizes.directions * sum(of_layers)

    def gradients(self) -> float:
        """Those of operands, weights and biases, after the steps."""
        sizes, found = self.sizes, 0.0
        for width in self.widths():
            found += _INPUT_GRADIENT * self.product(self.rows, width, self.gates)
            of_weights = self.product(self.gates, width, self.rows) + self.product(
                self.gates, sizes.hidden, self.rows
            )
            found += _WEIGHT_GRADIENT * of_weights
        return sizes.directions * found + self.rows * _BIAS_GRADIENT.get(sizes.gates, 0.0)

    def widths(self) -> list[int]:
        """Inputs of each layer: those of the further ones are the results of both directions."""
        sizes = self.sizes
        return [sizes.inputs, *[sizes.directions * sizes.hidden] * (sizes.layers - 1)]

    def _copied_weights(self) -> float:
        if self.dtype in _RESIDENT_TYPES or self.is_backward:
            return 0.0
        sizes = self.sizes
        weights = sum(self.gates * (width + sizes.hidden) for width in self.widths()) * sizes.directions
        count, each = _COPIES
        return count * each * sizes.layers * sizes.directions + weights * self.width / _WEIGHT_BYTES

    def product(self, m: int, n: int, k: int) -> float:
        """Seconds of a product; a GPU multiplies float32 as TF32, as fast as twice as many elements of half the width."""
        dtype, width = self.dtype, int(self.width)
        if dtype == "float32" and self.is_gpu:
            dtype, k, width = "bfloat16", 2 * k, width // 2
        moved = width * k * (m + n), width * m * n
        return self.predict(Kernel("matmul", dtype, 2 * m * n * k, 0, *moved, Product(m, n, k)))
