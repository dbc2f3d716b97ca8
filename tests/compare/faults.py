"""Faults put into healthy exports, each a change of the ONNX file that keeps it readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable


def _node(model: Any, kind: str, at: int = 0) -> Any:
    return [node for node in model.graph.node if node.op_type == kind][at]


def _stored(model: Any, name: str) -> Any:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _replace(model: Any, name: str, values: Any) -> None:
    _stored(model, name).CopyFrom(numpy_helper.from_array(values, name))


def _values(model: Any, name: str) -> Any:
    return numpy_helper.to_array(_stored(model, name))


def _set(node: Any, name: str, value: Any) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def _bypass(model: Any, node: Any, operand: int = 0) -> None:
    """Remove a call: what used its result uses its operand."""
    result, source = node.output[0], node.input[operand]
    model.graph.node.remove(node)
    for other in model.graph.node:
        other.input[:] = [source if name == result else name for name in other.input]


def _conv(model: Any, weight: str) -> Any:
    return next(node for node in model.graph.node if node.op_type == "Conv" and weight in node.input)


def dropped_bias(model: Any) -> None:
    """The last product without its bias."""
    del _node(model, "Gemm", -1).input[2:]


def dropped_bias_of_a_folded_norm(model: Any) -> None:
    """A convolution into which a batch norm was folded, without the shift of that norm."""
    del _node(model, "Conv", 1).input[2:]


def dropped_added_bias(model: Any) -> None:
    """A bias that is added behind a product is lost."""
    adds = [
        node for node in model.graph.node if node.op_type == "Add" and any("bias" in n for n in node.input)
    ]
    _bypass(model, adds[0], next(i for i, name in enumerate(adds[0].input) if "bias" not in name))


def wrong_stride(model: Any) -> None:
    """Two convolutions side by side step by one where the program steps by two."""
    for layer in ("layer2.0.conv1", "layer2.0.downsample.0"):
        _set(_conv(model, f"{layer}.weight"), "strides", [1, 1])


def wrong_padding(model: Any) -> None:
    """The first convolution without its padding."""
    _set(_node(model, "Conv"), "pads", [0, 0, 0, 0])


def wrong_dilation(model: Any) -> None:
    """The first convolution with its taps apart."""
    _set(_node(model, "Conv"), "dilations", [2, 2])


def lost_pooling(model: Any) -> None:
    """No pooling behind the first convolution."""
    _bypass(model, _node(model, "MaxPool"))


def lost_layer(model: Any) -> None:
    """The second convolution of a block is not run."""
    _bypass(model, _conv(model, "layer1.1.conv2.weight"))


def layer_run_twice(model: Any) -> None:
    """A convolution runs on its own result once more."""
    first = _conv(model, "layer1.1.conv2.weight")
    again = onnx.NodeProto()
    again.CopyFrom(first)
    again.name, again.input[0], again.output[0] = (
        f"{first.name}_again",
        first.output[0],
        f"{first.output[0]}_2",
    )
    result = first.output[0]
    for other in model.graph.node:
        other.input[:] = [again.output[0] if name == result else name for name in other.input]
    model.graph.node.insert([*model.graph.node].index(first) + 1, again)


def wider_kernel(model: Any) -> None:
    """A kernel of five by five where the program has three by three."""
    name = "layer1.0.conv1.weight"
    _replace(model, name, np.ones((8, 8, 5, 5), np.float32))
    node = next(n for n in model.graph.node if name in n.input)
    _set(node, "kernel_shape", [5, 5])
    _set(node, "pads", [2, 2, 2, 2])


def groups_lost(model: Any) -> None:
    """A depthwise convolution made dense."""
    node = _conv(model, "stages.0.0.block.1.conv.weight")
    weight = _values(model, node.input[1])
    _replace(model, node.input[1], np.ones((weight.shape[0], weight.shape[0], *weight.shape[2:]), np.float32))
    _set(node, "group", 1)


def half_precision(model: Any) -> None:
    """A weight is stored in half precision and cast."""
    node = _node(model, "Gemm", -1)
    name = node.input[1]
    _replace(model, name, _values(model, name).astype(np.float16))
    model.graph.node.insert(0, onnx.helper.make_node("Cast", [name], ["cast_weight"], "cast_weight", to=1))
    node.input[1] = "cast_weight"


def product_in_half_precision(model: Any) -> None:
    """A product is computed in half precision."""
    node = _node(model, "Gemm", -1)
    for index, name in enumerate([*node.input]):
        cast = onnx.helper.make_node("Cast", [name], [f"{name}_half"], f"{node.name}_cast_{index}", to=10)
        model.graph.node.insert([*model.graph.node].index(node), cast)
        node.input[index] = f"{name}_half"
    result = node.output[0]
    node.output[0] = f"{result}_half"
    model.graph.node.append(onnx.helper.make_node("Cast", [node.output[0]], [result], "cast_back", to=1))


def input_in_half_precision(model: Any) -> None:
    """The input is of half precision, cast inside."""
    entry = model.graph.input[0]
    entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for other in model.graph.node:
        other.input[:] = ["single" if name == entry.name else name for name in other.input]
    model.graph.node.insert(0, onnx.helper.make_node("Cast", [entry.name], ["single"], "cast_input", to=1))


def transposed_weight(model: Any) -> None:
    """The weight of a product is stored the other way round."""
    name = _node(model, "Gemm", -1).input[1]
    _replace(model, name, np.ascontiguousarray(_values(model, name).T))


def transposed_weight_and_product(model: Any) -> None:
    """The same where the product runs nevertheless: it is told of the other orientation."""
    transposed_weight(model)
    _set(_node(model, "Gemm", -1), "transB", 0)


def smaller_table(model: Any) -> None:
    """An embedding lost rows of its table."""
    _replace(model, "embeddings.weight", _values(model, "embeddings.weight")[:40])


def lost_norm_weight(model: Any) -> None:
    """A layer norm without its shift."""
    node = _node(model, "LayerNormalization")
    del node.input[2:]


def attention_left_out(model: Any) -> None:
    """The softmax is applied to the values at once: the product of queries and keys is lost."""
    softmax = _node(model, "Softmax")
    product = next(n for n in model.graph.node if softmax.output[0] in n.input)
    _bypass(model, product, 1)


FAULTS: dict[str, tuple[Callable[[Any], None], ...]] = {
    "resnet": (
        dropped_bias,
        dropped_bias_of_a_folded_norm,
        wrong_stride,
        wrong_padding,
        wrong_dilation,
        lost_pooling,
        lost_layer,
        layer_run_twice,
        wider_kernel,
        half_precision,
        product_in_half_precision,
        input_in_half_precision,
        transposed_weight,
        transposed_weight_and_product,
    ),
    "bert": (
        dropped_added_bias,
        smaller_table,
        lost_norm_weight,
        attention_left_out,
    ),
    "mobilenet": (groups_lost,),
}
