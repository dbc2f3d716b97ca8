"""Time of layers over sequences: fused attention, and recurrent layers as cuDNN runs them.

A recurrent layer first multiplies all inputs at once. If the recurrent weight fits into a multiprocessor's registers, a
thread block then processes all steps of one sequence. Otherwise each step is a product and a pointwise kernel; layers and
directions run in parallel streams, as far as there are free multiprocessors. The backward processes the steps in reverse,
then sums the gradients of weights and biases. From layers on an H200 with torch 2.11.
"""

from math import ceil

from graphflops.devices import Device
from graphflops.kernels.choices import all_constants, limits
from graphflops.kernels.convolution import up
from graphflops.kernels.kernel import FLOAT_BYTES, Attention, Kernel, Product, Recurrence, bytes_of
from graphflops.kernels.products import RESIDENT_TYPES, is_resident, resident_weights
from graphflops.time import bandwidth
from graphflops.time.bandwidth import Rates, Times
from graphflops.time.predict_products import Predict

_QUERIES = 128  # queries of a thread block, and keys per tile
_KEY_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_STREAMED = 1.4  # speed of keys and values from the cache, relative to memory
_MANY_HEADS, _FEW_KEYS = 256, 2  # heads, and tiles of keys up to which a gradient has one block per head


def attention_seconds(
    sizes: Attention, element: float, moved: int, peak: float, rates: Rates, device: Device
) -> Times:
    """Seconds of an attention, of its arithmetic at the peak, and of its traffic at full bandwidth. element: its bytes."""
    cores = device.cores
    width = up(sizes.width, int(rates.get("step", 32)))
    # FLOPs per pair and element of the width: 5 products in the backward, 2 in the forward.
    products = 10 if sizes.phase == "backward" else 4
    pairs = sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.computed
    ideal = products * pairs * width / peak
    recent = 0 if sizes.queries == 1 else moved  # keys and values of earlier tokens are in memory
    traffic = bandwidth.seconds(moved, recent, rates["memory"], device)
    if sizes.queries == 1:
        # Heads that strides repeat are read from memory once, and from the cache for each repeat.
        streamed = 2 * sizes.batch * sizes.kv_heads * sizes.keys * sizes.computed * sizes.width * element
        faster = rates.get("streamed", _STREAMED) * rates["memory"]
        traffic = max(traffic, streamed / (faster * bandwidth.through(device)))
        arithmetic = _decoding(sizes, width, rates, cores)
    else:
        arithmetic = _prefill(sizes, products * width / peak, width, rates, cores)
    mix = rates["mix"]
    longest = (arithmetic**mix + traffic**mix) ** (1 / mix)
    # Kernels around a gradient: row sums of the result times its gradient; the query's gradient, converted from float32.
    around = sizes.batch * sizes.heads * sizes.queries * sizes.width * rates.get("around", 0.0)
    beside = bandwidth.seconds(around, around, rates["memory"], device)
    return rates["floor"] * 1e-6 + longest + beside, ideal, moved / device.bandwidth


def _prefill(sizes: Attention, each: float, width: int, rates: Rates, cores: int) -> float:
    """Blocks of queries that loop over tiles of keys, in waves; in a gradient, blocks of keys loop over tiles of queries.

    each: seconds of one pair at the peak of the whole device.
    """
    tall, wide = int(rates.get("queries", _QUERIES)), int(rates.get("keys", _QUERIES))
    blocks, tiles = ceil(sizes.queries / tall), ceil(sizes.keys / wide)
    if sizes.phase == "backward":
        blocks, tiles = tiles, blocks
    heads = sizes.batch * sizes.heads
    if "packed" in rates:  # queries of heads that share keys are in the same blocks
        together = sizes.batch * sizes.kv_heads
        packed = ceil(sizes.heads * sizes.queries / max(sizes.kv_heads, 1) / tall)
        if together * packed < heads * blocks:
            heads, blocks = together, packed
    tile = tall * wide * cores * each / (rates["matrix"] * (width / (width + rates["width"])))
    start = (rates["start"] + rates["block"] * width / _QUERIES) * 1e-6
    beside = rates.get("resident", 1.0)
    if "lock" in rates and heads >= _MANY_HEADS and blocks <= _FEW_KEYS:
        tiles, blocks = tiles * blocks, 1
    # Blocks that share a multiprocessor are slower than a block that has it alone.
    is_alone = heads * blocks <= cores
    slower = rates.get("alone", 1.0) if is_alone else beside
    mean = (tiles * sizes.computed * tile + start) * slower
    # Under a causal mask the block of the last queries, or of the first keys, takes twice the mean time.
    longest = mean if blocks == 1 else (tiles * min(1.0, 2 * sizes.computed) * tile + start) * slower
    if "lock" in rates and blocks > 1:  # blocks take turns to add to the gradients of the same queries
        turns = blocks * rates["lock"] * 1e-6
        mean, longest = max(mean, turns), max(longest, turns)
    rounds = 1 if is_alone else heads * blocks / (cores * beside)
    if is_alone or mean == longest:
        return ceil(rounds) * longest
    # The last round waits for its longest block.
    return min(ceil(rounds) * longest, max(longest, rounds * mean + longest / 2))


def _decoding(sizes: Attention, width: int, rates: Rates, cores: int) -> float:
    """Heads that share keys run together; if they leave half of the device idle, the keys are split, and a second kernel
    joins the parts. A kernel that does not split keys has a join that never pays off. Two blocks may share a multiprocessor.
    """
    group = max(sizes.heads // max(sizes.kv_heads, 1), 1)
    width = max(width, int(rates.get("narrowest", 0)))  # narrower heads are not faster
    blocks = sizes.batch * sizes.kv_heads * ceil(group * sizes.queries / _QUERIES)
    tiles = ceil(sizes.keys * sizes.computed / _QUERIES)
    found = float("inf")
    for split in _KEY_SPLITS if 2 * blocks <= cores else (1,):
        parts = min(split, tiles)
        each = rates["decoding_block"] * 1e-6 * width / _QUERIES
        serial = ceil(tiles / parts) * rates["decoding_tile"] * 1e-9 * width / _QUERIES
        joined = rates["join"] * 1e-6 if parts > 1 else 0.0
        pairs, alone = divmod(ceil(blocks * parts / cores), 2)
        found = min(found, (pairs * (1 + rates.get("beside", 1.0)) + alone) * (each + serial) + joined)
    return found


# For the forward and for the backward; `choices/` says what each constant is.
_STEPS = (all_constants("cudnn_9", "steps.forward"), all_constants("cudnn_9", "steps.backward"))
_RESIDENT = (all_constants("cudnn_9", "resident.forward"), all_constants("cudnn_9", "resident.backward"))
_EACH, _OF_BIASES = (all_constants("cudnn_9", name) for name in ("recurrent", "recurrent.bias_gradient"))
_IN_REGISTERS, _NARROW = limits("cudnn_9", "resident", "registers narrow")
_OF_UNITS, _TOGETHER = limits("cudnn_9", "resident", "matrix_units together")
_ALIGNED, _COPIES = limits("cudnn_9", "recurrent", "aligned copies")
_TILE_GATES, _TILE_ROWS = limits("cudnn_9", "recurrent", "tile_gates tile_rows")
_BIAS_GRADIENT = {gates: _OF_BIASES[cell] for cell, gates in (("rnn", 1), ("gru", 3), ("lstm", 4))}


def recurrence(sizes: Recurrence, dtype: str, device: Device, predict: Predict) -> float:
    """Seconds of all layers, or of their gradients. predict: the seconds of a product."""
    layers = _Layers(sizes, dtype, device, predict)
    found = layers.resident() if is_resident(sizes, dtype) else layers.by_steps()
    return found + (layers.gradients() if sizes.phase == "backward" else layers.inputs())


def on_cpu(sizes: Recurrence, dtype: str, device: Device, predict: Predict) -> float:
    """Seconds on a CPU: for each layer and direction the product of all inputs, then one product for each step."""
    layers = _Layers(sizes, dtype, device, predict)
    inputs = sum(layers.product(layers.rows, layers.gates, width) for width in layers.widths())
    step = layers.product(sizes.batch, layers.gates, sizes.hidden) * _STEPS[0]["half"]
    turns = 3 if sizes.phase == "backward" else 1  # two products for each gradient, and the steps again
    return turns * sizes.directions * (inputs + sizes.layers * sizes.steps * step)


class _Layers:
    """A stack of recurrent layers of one element type on a device."""

    def __init__(self, sizes: Recurrence, dtype: str, device: Device, predict: Predict) -> None:
        self.sizes, self.dtype, self.predict = sizes, dtype, predict
        self.cores, self.is_gpu = device.cores, device.kind == "gpu"
        self.gates, self.rows = sizes.gates * sizes.hidden, sizes.steps * sizes.batch
        self.width = bytes_of(dtype)
        self.is_backward = sizes.phase == "backward"

    def resident(self) -> float:
        """All layers and directions in turn, with one block for each sequence."""
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
        """The steps of the first layer, and of other layers and directions as far as they do not run in parallel with it."""
        sizes, known = self.sizes, _STEPS[self.is_backward]
        is_single = self.width >= FLOAT_BYTES
        n, k = (sizes.hidden, self.gates) if self.is_backward else (self.gates, sizes.hidden)
        alone = known["single" if is_single else "half"]
        if not is_single and sizes.hidden * self.width % _ALIGNED and sizes.batch > 1:
            alone *= _EACH["uneven"]
        product = self.product(sizes.batch, n, k) * alone
        cell = known["cell_single" if is_single and sizes.batch > 1 else "cell"]  # one row is not split
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
        """The gradients of operands, weights and biases, after the steps."""
        sizes, found = self.sizes, 0.0
        for width in self.widths():
            found += _EACH["input_gradient"] * self.product(self.rows, width, self.gates)
            of_inputs, of_hidden = (self.product(self.gates, n, self.rows) for n in (width, sizes.hidden))
            found += _EACH["weight_gradient"] * (of_inputs + of_hidden)
        return sizes.directions * found + self.rows * _BIAS_GRADIENT.get(sizes.gates, 0.0)

    def widths(self) -> list[int]:
        """The input width of each layer: a later layer reads the results of both directions."""
        sizes = self.sizes
        return [sizes.inputs, *[sizes.directions * sizes.hidden] * (sizes.layers - 1)]

    def product(self, m: int, n: int, k: int) -> float:
        """Seconds of a product. A GPU multiplies float32 as TF32, modelled as half the width and twice the length of k."""
        dtype, width = self.dtype, int(self.width)
        if dtype == "float32" and self.is_gpu:
            dtype, k, width = "bfloat16", 2 * k, width // 2
        moved = width * k * (m + n), width * m * n
        return self.predict(Kernel("matmul", dtype, 2 * m * n * k, 0, *moved, Product(m, n, k)))
