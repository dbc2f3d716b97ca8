"""Time of recurrent layers as cuDNN runs them: one kernel for all steps where weights stay on chip, else two kernels a step.

A layer first multiplies all inputs at once. Where the recurrent weight fits into the registers of a multiprocessor, a thread
block then goes through all steps of one sequence. Else each step is a product and a pointwise kernel; the layers of a stack
and the two directions run beside one another in streams, as far as they leave multiprocessors. The gradients go through the
steps in reverse, then add up those of weights and biases. Read from layers on an H200 with torch 2.11.
"""

from __future__ import annotations

from graphflops.devices import Device
from graphflops.kernels.choices import all_constants, limits
from graphflops.kernels.kernel import FLOAT_BYTES, Kernel, Product, Recurrence
from graphflops.kernels.products import RESIDENT_TYPES, is_resident, resident_weights
from graphflops.tensor import DTYPES
from graphflops.time.predict_products import Predict

# Of the forward and of gradients; `choices/` says what each counts.
_STEPS = (all_constants("cudnn_9", "steps.forward"), all_constants("cudnn_9", "steps.backward"))
_RESIDENT = (all_constants("cudnn_9", "resident.forward"), all_constants("cudnn_9", "resident.backward"))
_EACH, _OF_BIASES = (all_constants("cudnn_9", name) for name in ("recurrent", "recurrent.bias_gradient"))
_IN_REGISTERS, _NARROW, _OF_UNITS, _TOGETHER = limits(
    *("cudnn_9", "resident", "registers", "narrow", "matrix_units", "together")
)
_ALIGNED, _COPIES, _TILE_GATES, _TILE_ROWS = limits(
    *("cudnn_9", "recurrent", "aligned", "copies", "tile_gates", "tile_rows")
)
_BIAS_GRADIENT = {gates: _OF_BIASES[cell] for cell, gates in (("rnn", 1), ("gru", 3), ("lstm", 4))}


def seconds(sizes: Recurrence, dtype: str, device: Device, predict: Predict) -> float:
    """Seconds of all layers, or of their gradients. predict: seconds of a product."""
    layers = _Layers(sizes, dtype, device, predict)
    found = layers.resident() if is_resident(sizes, dtype) else layers.by_steps()
    return found + (layers.gradients() if sizes.phase == "backward" else layers.inputs())


def on_cpu(sizes: Recurrence, dtype: str, device: Device, predict: Predict) -> float:
    """Seconds on a CPU: of each layer and direction the product of all inputs, then step after step a product."""
    layers = _Layers(sizes, dtype, device, predict)
    inputs = sum(layers.product(layers.rows, layers.gates, width) for width in layers.widths())
    step = layers.product(sizes.batch, layers.gates, sizes.hidden) * _STEPS[0]["half"]
    turns = 3 if sizes.phase == "backward" else 1  # a gradient is two products for each, and the steps again
    return turns * sizes.directions * (inputs + sizes.layers * sizes.steps * step)


class _Layers:
    """A stack of recurrent layers in one element type on a device."""

    def __init__(self, sizes: Recurrence, dtype: str, device: Device, predict: Predict) -> None:
        self.sizes, self.dtype, self.predict = sizes, dtype, predict
        self.cores, self.is_gpu = device.multiprocessors or 1, device.kind == "gpu"
        self.gates, self.rows = sizes.gates * sizes.hidden, sizes.steps * sizes.batch
        self.width = DTYPES[dtype].bits / 8 if dtype in DTYPES else 4
        self.is_backward = sizes.phase == "backward"

    def resident(self) -> float:
        """All layers and directions in turn, each with a block for a sequence."""
        sizes, weights = self.sizes, resident_weights(self.sizes)
        known = _RESIDENT[self.is_backward]
        together = 2 if sizes.hidden <= _NARROW else 1
        if self.dtype == "float16" and sizes.hidden % _OF_UNITS == 0:
            together = _TOGETHER
        waves = -(-sizes.batch // (self.cores * together))
        read_again = FLOAT_BYTES * max(0, weights - _IN_REGISTERS)
        step = known["step"] + known["step_weight"] * weights + read_again / _EACH["row_bytes"]
        each = waves * (known["load"] + known["load_weight"] * weights + sizes.steps * step)
        return known["start"] + sizes.layers * sizes.directions * each

    def by_steps(self) -> float:
        """The steps of the first layer, and of the others as far as these are not beside it, likewise of both directions."""
        sizes, known = self.sizes, _STEPS[self.is_backward]
        is_single = self.width >= DTYPES["float32"].bits / 8
        n, k = (sizes.hidden, self.gates) if self.is_backward else (self.gates, sizes.hidden)
        alone = known["single" if is_single else "half"]
        if not is_single and sizes.hidden * self.width % _ALIGNED and sizes.batch > 1:
            alone *= _EACH["uneven"]
        product = self.product(sizes.batch, n, k) * alone
        cell = known["cell_single" if is_single and sizes.batch > 1 else "cell"]  # a vector is not split
        step = product + cell + sizes.batch * self.gates * self.width / known["bandwidth"]
        blocks = -(-n // _TILE_GATES) * -(-sizes.batch // _TILE_ROWS)
        share = min(max(blocks / self.cores, known["least"]), known["most"])
        in_turn = 1 + (sizes.layers - 1) * share if sizes.directions == 1 else sizes.layers * (1 + share)
        found = known["start"] + sizes.steps * step * in_turn
        if self.dtype in RESIDENT_TYPES or self.is_backward:
            return found
        weights = sum(self.gates * (width + sizes.hidden) for width in self.widths()) * sizes.directions
        copies = _COPIES * sizes.layers * sizes.directions
        return found + (copies * _EACH["copy_seconds"] + weights * self.width / _EACH["copied_bytes"])

    def inputs(self) -> float:
        """The products of all inputs with the weights of each layer."""
        of_layers = [self.product(self.rows, self.gates, width) for width in self.widths()]
        share = 1.0 if is_resident(self.sizes, self.dtype) else _EACH["inputs"]
        return share * self.sizes.directions * sum(of_layers)

    def gradients(self) -> float:
        """Those of operands, weights and biases, after the steps."""
        sizes, found = self.sizes, 0.0
        for width in self.widths():
            found += _EACH["input_gradient"] * self.product(self.rows, width, self.gates)
            of_inputs, of_hidden = (self.product(self.gates, n, self.rows) for n in (width, sizes.hidden))
            found += _EACH["weight_gradient"] * (of_inputs + of_hidden)
        return sizes.directions * found + self.rows * _BIAS_GRADIENT.get(sizes.gates, 0.0)

    def widths(self) -> list[int]:
        """Inputs of each layer: those of the further ones are the results of both directions."""
        sizes = self.sizes
        return [sizes.inputs, *[sizes.directions * sizes.hidden] * (sizes.layers - 1)]

    def product(self, m: int, n: int, k: int) -> float:
        """Seconds of a product; a GPU multiplies float32 as TF32, as fast as twice as many elements of half the width."""
        dtype, width = self.dtype, int(self.width)
        if dtype == "float32" and self.is_gpu:
            dtype, k, width = "bfloat16", 2 * k, width // 2
        moved = width * k * (m + n), width * m * n
        return self.predict(Kernel("matmul", dtype, 2 * m * n * k, 0, *moved, Product(m, n, k)))
