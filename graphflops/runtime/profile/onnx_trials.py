"""Kernels of onnxruntime on the CPU to measure: models of one operator each."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from graphflops.kernels.kernel import Convolution, Family, Kernel, Product, Rows
from graphflops.runtime.profile.trial import Calls, CpuClock, Trial, spread

_WIDTH = 4  # bytes of a float32
_OPSET = 17
_LEAST = 10  # the smallest operators take at least a tenth of the session's call, whose cost is subtracted
_MOST_FLOPS = 2e10
_IMAGES = (
    (1, 64), (4, 32), (7, 64), (7, 512), (14, 32), (14, 256), (28, 128), (56, 64), (112, 32), (224, 16),
)  # fmt: skip
# Width of a filter, whether each channel has its own filter, and number of images.
_FILTERS = ((1, 0, 1), (3, 0, 1), (3, 1, 1), (3, 0, 4), (1, 0, 8), (5, 1, 4), (3, 0, 16))
_IN_A_ROW = 4  # convolutions in one model, because a session converts layouts only before and after them


class OnnxClock(CpuClock):
    """Times operators of onnxruntime on the CPU, without the cost of a session's call, which a program has only once."""

    version = onnxruntime.__version__
    runtime = "onnxruntime"

    def __init__(self) -> None:
        super().__init__()
        self.entering = super().seconds(_prepare("Relu", ((1,),), {}, False))

    def seconds(self, calls: Calls) -> float:
        """Shortest mean time of the operators of one model."""
        whole = super().seconds(calls)
        return max(whole - self.entering, whole / _LEAST)


# Operator, family, variant, inputs of the tensor's size, further inputs of a row's size, arithmetic per element, attributes.
_ROWWISE: tuple[tuple[str, Family, str, int, int, int, dict[str, Any]], ...] = (
    ("Relu", "elementwise", "", 1, 0, 1, {}),
    ("Add", "elementwise", "", 2, 0, 1, {}),
    ("Mul", "elementwise", "strided", 1, 1, 1, {}),
    ("Sigmoid", "elementwise", "", 1, 0, 4, {}),
    ("Erf", "elementwise", "", 1, 0, 8, {}),
    ("Softmax", "softmax", "", 1, 0, 5, {"axis": -1}),
    ("LayerNormalization", "normalization", "", 1, 2, 8, {"axis": -1}),
    ("ReduceMean", "reduction", "", 1, 0, 1, {"axes": [-1]}),
    ("Transpose", "copy", "strided", 1, 0, 0, {"perm": [1, 0]}),
)


def onnx_trials(clock: OnnxClock) -> Iterator[Trial]:
    """Products, convolutions and operators on rows, from small to as large as a few milliseconds allow."""
    for m, n, k in spread(60, (1, 4000), (4, 400), (4, 400)):
        yield from _product(Product(m, 16 * n, 16 * k, layout="nn"), clock)
    for batch, m, n in spread(20, (2, 64), (16, 512), (16, 512)):
        yield from _product(Product(m, n, 64, batch, layout="nn"), clock)
    for (side, channels), (width, is_depthwise, batch) in product(_IMAGES, _FILTERS):
        yield from _convolution(batch, channels, side, width, channels if is_depthwise else 1)
    for name, family, variant, whole, of_rows, work, attributes in _ROWWISE:
        for elements, columns in spread(12, (4096, 2**23), (32, 4096)):
            rows = max(1, elements // columns)
            shapes = ((rows, columns),) * whole + ((columns,),) * of_rows
            read, written = sum(map(prod, shapes)), rows if name == "ReduceMean" else rows * columns
            sizes = None if family == "elementwise" else Rows(rows, columns)
            moved = _WIDTH * read, _WIDTH * written
            kernel = Kernel(family, "float32", 0, work * rows * columns, *moved, sizes, variant=variant)
            yield Trial(kernel, partial(_prepare, name, shapes, attributes, False))


def _product(sizes: Product, clock: OnnxClock) -> Iterator[Trial]:
    lead = (sizes.batch,) if sizes.batch > 1 else ()
    shapes = ((*lead, sizes.m, sizes.k), (*lead, sizes.k, sizes.n))
    flops = 2 * sizes.batch * sizes.m * sizes.n * sizes.k
    if flops <= _MOST_FLOPS:
        read, written = sum(map(prod, shapes)), sizes.batch * sizes.m * sizes.n
        kernel = Kernel("matmul", "float32", flops, 0, _WIDTH * read, _WIDTH * written, sizes)
        sets = range(clock.sets(_WIDTH * prod(shapes[1])) if sizes.batch == 1 else 1)
        once = partial(_prepare, "MatMul", shapes, {}, sizes.batch == 1)
        # several sessions in turn, so that the weights are not in the cache
        yield Trial(kernel, lambda: [call for _ in sets for call in once()])


def _convolution(batch: int, channels: int, side: int, width: int, groups: int) -> Iterator[Trial]:
    shapes = ((batch, channels, side, side), (channels, channels // groups, width, width))
    flops = 2 * prod(shapes[0]) * channels // groups * width * width
    if flops <= _MOST_FLOPS:
        axes = (side, side), (side, side), (width, width)
        sizes = Convolution(batch, channels, channels, *axes, groups)
        read = sum(map(prod, shapes))
        kernel = Kernel("convolution", "float32", flops, 0, _WIDTH * read, _WIDTH * prod(shapes[0]), sizes)
        attributes = {"group": groups, "pads": [width // 2] * 4}
        yield Trial(kernel, partial(_prepare, "Conv", shapes, attributes, True, _IN_A_ROW), _IN_A_ROW)


def _prepare(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    attributes: dict[str, Any],
    is_weight: bool,
    turns: int = 1,
) -> Calls:
    """A session that runs one operator, `turns` times in a row. is_weight: whether the last input is a constant."""
    names = [f"x{index}" for index in range(len(shapes))]
    chance = np.random.default_rng(0)
    values = dict(zip(names, (chance.standard_normal(shape, np.float32) for shape in shapes), strict=True))
    pairs = pairwise([names[0], *[f"y{turn}" for turn in range(1, turns)], "y"])
    nodes = [helper.make_node(name, [before, *names[1:]], [after], **attributes) for before, after in pairs]
    inputs = [helper.make_tensor_value_info(key, TensorProto.FLOAT, values[key].shape) for key in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = []
    if is_weight:
        constants = [numpy_helper.from_array(values.pop(names[-1]), names[-1])]
        inputs.pop()
    graph = helper.make_graph(nodes, "trial", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [partial(session.run, None, values)]
