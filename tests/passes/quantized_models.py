"""Small models of five architectures in ONNX, which onnxruntime quantizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

HEADS = 4


class Maker:
    """Collects the calls of a model; calling it adds one."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.random = np.random.default_rng(0)

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def stores(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c_{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.stores(self.random.standard_normal(shape) / 10)

    def sizes(self, *sizes: int) -> str:
        return self.stores(sizes, np.int64)

    def conv(
        self, x: str, c: int, k: int, *, window: int = 3, groups: int = 1, activates: bool = True
    ) -> str:
        weight = self.weight(k, c // groups, window, window)
        y = self("Conv", x, weight, self.weight(k), pads=[window // 2] * 4, group=groups)
        return self("Relu", y) if activates else y

    def linear(self, x: str, inner: int, features: int) -> str:
        return self("Add", self("MatMul", x, self.weight(inner, features)), self.weight(features))

    def norm(self, x: str, d: int) -> str:
        return self("LayerNormalization", x, self.weight(d), self.weight(d), axis=-1)

    def attention(self, x: str, d: int, s: int, mask: str = "") -> str:
        def heads(order: list[int]) -> str:
            split = self("Reshape", self.linear(x, d, d), self.sizes(-1, s, HEADS, d // HEADS))
            return self("Transpose", split, perm=order)

        scores = self("MatMul", heads([0, 2, 1, 3]), heads([0, 2, 3, 1]))
        scores = self("Mul", scores, self.stores(0.25))
        scores = self("Add", scores, mask) if mask else scores
        y = self("MatMul", self("Softmax", scores, axis=-1), heads([0, 2, 1, 3]))
        y = self("Reshape", self("Transpose", y, perm=[0, 2, 1, 3]), self.sizes(-1, s, d))
        return self.linear(y, d, d)

    def save(self, path: str, shape: list[int], result: str) -> list[int]:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return shape


def convnet(path: str) -> list[int]:
    """Residual blocks of depthwise convolutions."""
    m = Maker()
    x = m.conv("x", 3, 32)
    for _ in range(2):
        y = m.conv(m.conv(x, 32, 64, window=1), 64, 64, groups=64)
        x = m("Relu", m("Add", x, m.conv(y, 64, 32, window=1, activates=False)))
    x = m("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = m("Flatten", m("GlobalAveragePool", m.conv(x, 32, 128)))
    return m.save(path, [2, 3, 32, 32], m("Gemm", x, m.weight(10, 128), m.weight(10), transB=1))


def encoder(path: str, s: int = 32, d: int = 64) -> list[int]:
    """A transformer with norms after its layers and a spelled-out GELU."""
    m = Maker()
    x = "x"
    for _ in range(2):
        x = m.norm(m("Add", x, m.attention(x, d, s)), d)
        y = m.linear(x, d, 4 * d)
        erf = m("Erf", m("Div", y, m.stores(2**0.5)))
        y = m("Mul", m("Mul", y, m("Add", erf, m.stores(1.0))), m.stores(0.5))
        x = m.norm(m("Add", x, m.linear(y, 4 * d, d)), d)
    rows = m("Reshape", x, m.sizes(-1, d))
    return m.save(path, [2, s, d], m("Gemm", rows, m.weight(d, 16), m.weight(16)))


def decoder(path: str, s: int = 32, d: int = 64) -> list[int]:
    """A causal transformer with gated layers and a vocabulary."""
    m = Maker()
    mask, x = m.stores(np.triu(np.full((s, s), -1e4), 1)), "x"
    for _ in range(2):
        x = m("Add", x, m.attention(m.norm(x, d), d, s, mask))
        y = m.norm(x, d)
        gate, up = m.linear(y, d, 2 * d), m.linear(y, d, 2 * d)
        y = m("Mul", m("Mul", gate, m("Sigmoid", gate)), up)
        x = m("Add", x, m.linear(y, 2 * d, d))
    return m.save(path, [1, s, d], m("MatMul", m.norm(x, d), m.weight(d, 512)))


def mixer(path: str, p: int = 32, d: int = 48) -> list[int]:
    """Layers over positions, then over channels."""
    m = Maker()
    x = m.linear("x", 24, d)
    for _ in range(2):
        y = m("Transpose", x, perm=[0, 2, 1])
        y = m.linear(m("Relu", m.linear(y, p, 2 * p)), 2 * p, p)
        x = m("Add", x, m("Transpose", y, perm=[0, 2, 1]))
        x = m("Add", x, m.linear(m("Relu", m.linear(x, d, 4 * d)), 4 * d, d))
    y = m("ReduceMean", x, axes=[1], keepdims=0)
    return m.save(path, [4, p, 24], m("Gemm", y, m.weight(d, 10), m.weight(10)))


def unet(path: str) -> list[int]:
    """Down by pooling, up by resizing, joined with what was before."""
    m = Maker()
    a = m.conv(m.conv("x", 3, 16), 16, 16)
    c = m.conv(m("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 16, 32)
    z = m.conv(m("AveragePool", c, kernel_shape=[2, 2], strides=[2, 2]), 32, 64)
    for before, channels in ((c, 32), (a, 16)):
        up = m("Resize", z, "", m.stores([1, 1, 2, 2]), mode="nearest")
        z = m.conv(m("Concat", up, before, axis=1), 3 * channels, channels)
    return m.save(path, [1, 3, 32, 32], m("Sigmoid", m.conv(z, 16, 2, window=1, activates=False)))


MODELS = (convnet, encoder, decoder, mixer, unet)


class _Random(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: list[int]) -> None:
        self.batches = iter([{"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}])

    def get_next(self) -> Any:
        return next(self.batches, None)


def quantized(
    make: Any, folder: Any, form: str, *, activations: str = "QUInt8", per_channel: bool = False
) -> str:
    """Path of the model in the form `QDQ` or `QOperator`, its weights int8."""
    whole, path = str(folder / "float.onnx"), str(folder / f"{form}.onnx")
    quantize_static(
        *(whole, path, _Random(make(whole))),
        quant_format=QuantFormat[form],
        per_channel=per_channel,
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
    )
    return path
