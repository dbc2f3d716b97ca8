"""Calls that onnxruntime refuses, when it loads a model or runs it, cannot run here either; their neighbours run in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

from graphflops.analysis import analyze
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin

IMAGE = "float[1, 4, 8, 8] x, float[8, 4, 3, 3] w, float[4, 3, 3, 3] u, float[4] s, float[2, 3, 4] z"
MORE = "bool[8] c, int64[2] i, float[1, 4, 4] p"
HEADS = "float[2, 3, 8] q, float[2, 3, 4] k, float[2, 4, 2, 2] h, float[2, 4, 5, 2] e, float[2, 3, 3] d"
POOL = "kernel_shape = [2, 2]"
STEP = "q_num_heads = 4, kv_num_heads = 2"
# A call that runs, and others that differ in one thing, with what they store.
CASES = [
    (f"MaxPool<{POOL}, pads = [1, 1, 1, 1]>(x)", [f"MaxPool<{POOL}, pads = [2, 0, 0, 0]>(x)"], ""),
    (
        f"AveragePool<{POOL}, pads = [1, 0, 0, 1]>(x)",
        [f'AveragePool<{POOL}, pads = [0, 0, 0, 2], auto_pad = "VALID">(x)'],
        "",
    ),
    (f"LpPool<{POOL}>(x)", [f"LpPool<{POOL}, pads = [0, 0, 2, 2]>(x)"], ""),
    ('Conv<auto_pad = "SAME_UPPER">(x, w)', ['Conv<auto_pad = "SAME_UPPER", dilations = [2, 2]>(x, w)'], ""),
    ("ConvTranspose(x, u)", ["ConvTranspose(x, u, s)"], ""),
    (
        "ConvTranspose<output_shape = [10, 10]>(x, u)",
        [
            "ConvTranspose<output_shape = [10, 10], strides = [1]>(x, u)",
            "ConvTranspose<output_shape = [10, 10], dilations = [1, 1, 1]>(x, u)",
            "ConvTranspose<output_shape = [1, 3, 10, 10]>(x, u)",
        ],
        "",
    ),
    (
        "Unsqueeze(x, a)",
        ["Unsqueeze(x, b)", "Unsqueeze(x, f)"],
        "int64[2] a = {0, 1}, int64[2] b = {0, 0}, int64[2] f = {0, -6}",
    ),
    (
        "Slice(z, o, t, a)",
        ["Slice(z, o, t, b)", "Slice(z, o, t, f)", "Slice(z, o, j, a)"],
        "int64[2] o = {0, 0}, int64[2] t = {1, 1}, int64[1] j = {1}, "
        "int64[2] a = {0, 1}, int64[2] b = {0, 0}, int64[2] f = {0, -3}",
    ),
    (
        'Pad(z, o, "", a)',
        ['Pad(z, o, "", b)', 'Pad(z, o, "", f)'],
        "int64[4] o = {1, 1, 1, 1}, int64[2] a = {1, 2}, int64[2] b = {1, 1}, int64[2] f = {1, -2}",
    ),
    ('Resize<axes = [0, 2]>(z, "", f)', ['Resize<axes = [0, 0]>(z, "", f)'], "float[2] f = {1, 2}"),
    (
        "Gather<axis = 2>(z, a)",
        ["Gather<axis = 1>(z, a)", "Gather<axis = 2>(z, b)", "Gather<axis = 2>(z, f)"],
        "int64[1] a = {-4}, int64[1] b = {4}, int64[1] f = {-5}",
    ),
    (
        "GatherElements(z, a)",
        ["GatherElements(z, b)", "GatherElements(z, f)"],
        "int64[1, 1, 1] a = {1}, int64[1, 1, 1] b = {2}, int64[1, 1, 5] f = {0, 0, 0, 0, 0}",
    ),
    ("GatherND(z, a)", ["GatherND(z, b)"], "int64[1, 2] a = {1, 2}, int64[1, 2] b = {0, 3}"),
    (
        "ScatterElements(z, a, r)",
        ["ScatterElements(z, b, r)", "ScatterElements(z, a, v)"],
        "int64[1, 1, 1] a = {1}, int64[1, 1, 1] b = {2}, float[1, 1, 1] r = {0}, float[1, 1, 2] v = {0, 0}",
    ),
    (
        "ScatterND(z, a, r)",
        ["ScatterND(z, b, r)", "ScatterND(z, a, v)"],
        "int64[1, 2] a = {1, 2}, int64[1, 2] b = {0, 3}, float[1, 4] r = {0, 0, 0, 0}, float[1, 1] v = {0}",
    ),
    ("ReduceSum(z, a)", ["ReduceSum(z, b)"], "int64[1] a = {1}, int64[1, 1] b = {1}"),
    ("OneHot(i, a, v)", ["OneHot(i, a, f)"], "int64 a = {3}, float[2] v = {0, 1}, float[3] f = {0, 1, 2}"),
    ("CumSum(z, a)", ["CumSum(z, b)", "CumSum<reverse = 2>(z, a)"], "int64 a = {1}, int64[2] b = {1, 1}"),
    (
        "Col2Im(p, a, b)",
        ["Col2Im(p, b, b)", "Col2Im<strides = [1]>(p, a, b)", "Col2Im(p, a, f)"],
        "int64[2] a = {3, 3}, int64[2] b = {2, 2}, int64[2] f = {3, 2}",
    ),
    ("Compress<axis = 3>(x, c)", [], ""),
    (
        f"LinearAttention<{STEP}>(q, k, k, g, k, b)",
        [f"LinearAttention<{STEP}>(q, k, k, g, d, b)", f"LinearAttention<{STEP}>(q, k, k, g, k, k)"],
        "float[2, 2, 2, 2] g, float[2, 3, 1] b",
    ),
    (
        "Attention(h, e, e, a)",
        ["Attention(h, e, e, b)", "Attention(h, e, e, f)"],
        "float[2, 5] a, float[3, 5] b, float[2, 6] f",
    ),
]


def model_of(call: str, stored: str) -> onnx.ModelProto:
    """A model of one call; what is stored without numbers is an input too."""
    filled = ", ".join(each for each in stored.split(", ") if each)
    given, held = [IMAGE, MORE, HEADS], [filled] if "=" in filled else []
    if filled and not held:
        given.append(filled)
    results = "y, y2" if call.startswith("LinearAttention") else "y"
    head = f'<ir_version: 10, opset_import: ["": {24 if results == "y" else 27}]>'
    body = f"g ({', '.join(given)}) => ({results}) <{', '.join(held)}> {{ {results} = {call} }}"
    model = parser.parse_model(f"{head} {body}".replace("<>", ""))
    outputs = [helper.make_empty_tensor_value_info(each.name) for each in model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return model


def runs(model: onnx.ModelProto) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    feeds: dict[str, Any] = {}
    for each in model.graph.input:
        tensor = each.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        feeds[each.name] = np.ones(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    except Exception:  # noqa: BLE001 onnxruntime has an exception of its own for each kind of fault
        return False
    return True


@pytest.mark.parametrize(("call", "stored"), [(call, stored) for call, _, stored in CASES])
def test_calls_that_run(call: str, stored: str) -> None:
    model = model_of(call, stored)
    assert runs(model)
    report = analyze(Program(model).graph(Origin()))
    assert [said.message for said in report.diagnostics if said.code in ("GF104", "GF118")] == []


@pytest.mark.parametrize(("call", "stored"), [(call, stored) for _, wrong, stored in CASES for call in wrong])
def test_calls_that_no_runtime_runs(call: str, stored: str) -> None:
    model = model_of(call, stored)
    assert not runs(model)
    report = analyze(Program(model).graph(Origin()))
    assert report.diagnostics[0].code == "GF118"
    assert report.coverage.unknown == 1
