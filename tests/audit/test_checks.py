"""Each check on a model that has what it looks for, and on one that nearly has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from graphflops.dims import symbol
from graphflops.onnx_audit.audit import audit, checks
from graphflops.onnx_audit.registry import File
from graphflops.report.findings import Finding
from graphflops.time_audit import SLOW_CHECKS

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def model(body: str, head: str = HEAD) -> Any:
    return parser.parse_model(head + body)


def findings(proto: Any, path: Path) -> list[Finding]:
    path.write_bytes(proto.SerializeToString())
    return list(audit(path).findings)


def found(body: str, tmp_path: Path, head: str = HEAD) -> list[tuple[str, str, str]]:
    """(code, severity, call) of every finding about a model written in ONNX's text."""
    got = findings(model(body, head), tmp_path / "model.onnx")
    return [(finding.code, finding.severity, finding.node) for finding in got]


# Names of calls are those of their first results.
GRAPHS = [
    # correctness
    ("g (float[2] a) => (float[2] y) { y = Add(a, b) }", "GF202", "error"),
    ("g (float[2] a) => (float[2] y, float[2] z) { y = Relu(a) }", "GF202", "error"),
    ("g (float[2] a) => (float[2] y) { y = Relu(a) \n y = Exp(a) }", "GF203", "error"),
    ("g (float[2] a) => (float[2] y) { y = Relu(a, a) }", "GF118", "error"),
    ("g (float[2] a) => (float[2] y) { y = Relu <slope = 1> (a) }", "GF204", "error"),
    ("g (float[2] a) => (float[2] y) { y = Relu <axis = 1> (a) }", "GF204", "error"),
    ("g (float[2] a) => (float[2] y) { y = Softmax <axis = 1.5> (a) }", "GF118", "error"),
    ("g (float[2] a) => (float[2] y) { b = Relu(c) \n c = Exp(a) \n y = Add(b, c) }", "GF205", "error"),
    ("g (float[2] a) => (float[2] y) { y = Rleu(a) }", "GF206", "error"),
    ("g (float[2] a) => (float[2] y) { y = SwiGLU(a) }", "GF206", "error"),  # since opset 28
    ("g (float[2] a) => (float[2] y) { y = com.microsoft.Gelu(a) }", "GF207", "error"),
    ("g (float[2,3] a, float[4,5] b) => (float[2,5] y) { y = MatMul(a, b) }", "GF118", "error"),
    ("g (float[2,3] a) => (float[7] y) <int64[1] s = {7}> { y = Reshape(a, s) }", "GF118", "error"),
    (
        'g (float[2] a) => (float[2] y) { y = Exp(a) } <domain: "own", opset_import: ["" : 21]> F (x) => (z) { z = Exp(x) }',
        "GF212",
        "note",
    ),
    ("g (float[n,6] a) => (int64[1] y) { s = Shape<start = 1>(a) \n y = Neg(s) }", "GF249", "note"),
    ("g (float[n,6] a) => (int64[1] y) { s = Shape<end = 1>(a) \n y = Neg(s) }", "", ""),
    ("g (float[2,3] a) => (float[2,3] y) <float[2,4] b> { b = Relu(a) \n y = Relu(b) }", "GF213", "warning"),
    ("g (float[2,3] a) => (float16[2,3] y) { y = Relu(a) }", "GF213", "warning"),
    ("g (float[2,3] a) => (float16[] y) { y = Relu(a) }", "GF213", "warning"),  # of any rank
    ("g (float[2] a) => (float[2] y) <float[3] w = {1, 2, 3}> { y = Relu(a) }", "GF215", "note"),
    ("g (float[2] a, float[2] b) => (float[2] y) { y = Relu(a) }", "GF216", "note"),
    ("g (float[2] a) => (float[2] y) { b = Exp(a) \n y = Relu(a) }", "GF217", "warning"),
    ("g (float[n,4] a, float[m,4] b) => (float[n,4] y) { y = Add(a, b) \n z = Concat <axis = 1> (a, b) }", "", ""),
    ("g (float[n,4] a, float[4] b) => (float[n,k] y) { y = Add(a, b) }", "GF219", "note"),
    # safety
    ("g (float[2] a) => (float[n] y) <int64[1] s = {1000000000000000}> { y = Expand(a, s) }", "", ""),
    ("g () => (float[n] y) <int64[1] s = {1000000000000000}> { y = ConstantOfShape(s) }", "GF223", "error"),
    # cost
    ("g (float[2] a) => (float[2] y) <float[2] w = {1, 2}> { b = Exp(w) \n y = Add(a, b) }", "GF242", "note"),
    ("g (float[2,3] a) => (float[2,3] y) { y = Cast <to = 1> (a) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) <int64[2] s = {2, 3}> { y = Expand(a, s) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) <int64[2] s = {2, 1}> { y = Expand(a, s) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) <int64[4] p = {0, 0, 0, 0}> { y = Pad(a, p) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) { y = Transpose <perm = [0, 1]> (a) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) <float one = {1}> { y = Mul(one, a) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) <float zero = {0}> { y = Sub(a, zero) }", "GF243", "warning"),
    ("g (float[2,3] a) => (float[2,3] y) { b = Exp(a) \n c = Exp(a) \n y = Add(b, c) }", "GF244", "warning"),
    ("g (float[2,3,4] a) => (float[2,3,4] y) { b = Transpose <perm = [1,2,0]> (a) "
     "\n y = Transpose <perm = [2,0,1]> (b) }", "GF245", "warning"),
    ("g (float16[2] a) => (float16[2] y) { b = Cast <to = 1> (a) \n y = Cast <to = 10> (b) }", "GF246", "warning"),
    ("g (int32[2] a) => (float[2] y) { b = Cast <to = 7> (a) \n y = Cast <to = 1> (b) }", "GF246", "warning"),
    ("g (float[6] a) => (float[3,2] y) <int64[2] s = {2, 3}, int64[2] t = {3, 2}> "
     "{ b = Reshape(a, s) \n y = Reshape(b, t) }", "GF247", "note"),
    ("g (float[1,3] a, float[2,3] b) => (float[2,3] y) <int64[2] s = {2, 3}> "
     "{ c = Expand(a, s) \n y = Add(c, b) }", "GF248", "note"),
    ("g (float[1,4,4,3] a) => (float[1,4,4,3] y) { b = Relu(a) \n c = Transpose <perm = [0,3,1,2]> (b) "
     "\n d = Relu(c) \n e = Sigmoid(d) \n y = Transpose <perm = [0,2,3,1]> (e) }", "GF250", "warning"),
    ("g (float16[4,8] a, float16[8,64] w, float16[64,8] v, float16[8,2] u) => (float16[4,2] y) "
     "{ b = MatMul(a, w) \n c = MatMul(b, v) \n d = Cast <to = 1> (c) \n e = Cast <to = 1> (u) "
     "\n f = MatMul(d, e) \n y = Cast <to = 10> (f) }", "GF251", "warning"),
    ("g (float[2] a) => (double[2] y) { b = Cast <to = 11> (a) \n y = Exp(b) }", "GF252", "warning"),
    ("g (uint8[2] a) => (uint8[2] y) <float s = {0.5}, uint8 z = {3}> "
     "{ b = DequantizeLinear(a, s, z) \n y = QuantizeLinear(b, s, z) }", "GF253", "warning"),
]  # fmt: skip


@pytest.mark.parametrize("body, code, severity", [case for case in GRAPHS if case[1]])
def test_a_check_finds_what_it_looks_for(body: str, code: str, severity: str, tmp_path: Path) -> None:
    assert (code, severity) in [(got, grave) for got, grave, _ in found(body, tmp_path)]


@pytest.mark.parametrize(
    "body",
    [
        # An initializer that is an input too is that input's default.
        "g (float[2] a, float[2] w = {1, 2}) => (float[2] y) { y = Add(a, w) }",
        # An inner graph sees what is around it.
        "g (bool c, float[2] a) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] u) { u = Relu(a) },"
        " else_branch = e () => (float[2] v) { v = Exp(a) }> }",
        # Rounding: float32 to float16 and back is not nothing.
        "g (float[2] a) => (float[2] y) { b = Cast <to = 10> (a) \n y = Cast <to = 1> (b) }",
        # bfloat16 does not hold float16, nor the other way round.
        "g (float16[2] a) => (float16[2] y) { b = Cast <to = 16> (a) \n y = Cast <to = 10> (b) }",
        # The transposed value is used elsewhere too.
        "g (float[2,3] a) => (float[3,2] b, float[2,3] y) { b = Transpose(a) \n y = Transpose(b) }",
        # Random numbers are not the same twice.
        "g (float[2] a) => (float[2] y) { b = RandomNormalLike(a) \n c = RandomNormalLike(a) \n y = Add(b, c) }",
        # An Expand that broadcasts, for a user that does not.
        "g (float[1,3] a) => (float[2,3] y) <int64[2] s = {2, 3}> { c = Expand(a, s) \n y = Softmax(c) }",
        # Softmax in float32 in a half-precision model.
        "g (float16[4,8] a, float16[8,8] w) => (float16[4,8] y) { b = MatMul(a, w) \n c = Cast <to = 1> (b) "
        "\n d = Softmax(c) \n y = Cast <to = 10> (d) }",
        # Another scale: requantization is work.
        "g (uint8[2] a) => (uint8[2] y) <float s = {0.5}, float t = {0.25}, uint8 z = {3}> "
        "{ b = DequantizeLinear(a, s, z) \n y = QuantizeLinear(b, t, z) }",
        # A reversing Slice keeps the shape and is work.
        "g (float[3] a) => (float[3] y) <int64[1] s = {-1}, int64[1] e = {-9}, int64[1] x = {0}, int64[1] r = {-1}> "
        "{ y = Slice(a, s, e, x, r) }",
        # 1 - x is no subtraction of zero, 1 / x no division by one.
        "g (float[3] a) => (float[3] y) <float one = {1}> { b = Sub(one, a) \n y = Div(one, b) }",
        # Adding a zero that broadcasts makes a larger tensor.
        "g (float[1] a) => (float[3] y) <float[3] zero = {0, 0, 0}> { y = Add(a, zero) }",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_finding(body: str, tmp_path: Path) -> None:
    assert found(body, tmp_path) == []


def test_costs_are_those_of_the_calls_that_could_go(tmp_path: Path) -> None:
    body = "g (float[2,3] a) => (float[2,3] y) { b = Exp(a) \n c = Transpose(b) \n y = Transpose(c) }"
    (finding,) = findings(model(body), tmp_path / "m.onnx")
    assert finding.code == "GF245"
    assert finding.bytes == 2 * (6 * 4 + 6 * 4)  # two calls, each reads and writes six floats
    body = "g (float[2,3] a) => (float[2,3] y) { b = Exp(a) \n c = Exp(a) \n y = Add(b, c) }"
    (finding,) = findings(model(body), tmp_path / "m.onnx")
    assert (finding.code, finding.bytes) == ("GF244", 6 * 4 + 6 * 4)
    body = "g (float[4,8] a, float[8,2] w) => (float[4,8] y) { b = MatMul(a, w) \n y = Relu(a) }"
    (finding,) = findings(model(body), tmp_path / "m.onnx")
    assert (finding.code, finding.flops) == ("GF217", 2 * 4 * 8 * 2)


def test_a_withdrawn_operator(tmp_path: Path) -> None:
    body = "g (float[1,1,2,2] a) => (float[1,1,4,4] y) <float[4] s = {1, 1, 2, 2}> { y = Upsample(a, s) }"
    assert ("GF208", "warning") in [(c, s) for c, s, _ in found(body, tmp_path)]


def test_a_version_from_the_future(tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["" : 999]>\n'
    got = found("g (float[2] a) => (float[2] y) { y = Relu(a) }", tmp_path, head)
    assert ("GF209", "warning", "") in got


def test_an_operator_of_onnxruntime_under_ai_onnx_is_a_warning(tmp_path: Path) -> None:
    body = "g (float[2,4] a, float[4] w) => (float[2,4] y) { y = SimplifiedLayerNormalization <axis = -1> (a, w) }"
    assert [(c, s) for c, s, _ in found(body, tmp_path)] == [("GF206", "warning")]


def test_a_circle(tmp_path: Path) -> None:
    body = "g (float[2] a) => (float[2] y) { b = Add(a, y) \n y = Relu(b) }"
    assert ("GF201", "error") in [(c, s) for c, s, _ in found(body, tmp_path)]


def test_names(tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { b = Relu(a) \n y = Exp(b) }")
    for node in proto.graph.node:
        node.name = "same"
    assert [f.code for f in findings(proto, tmp_path / "m.onnx")] == ["GF211"]
    proto.graph.node[0].name, proto.graph.node[1].name = "safe\u202egnp", "other\x1b[2J"
    assert [f.code for f in findings(proto, tmp_path / "m.onnx")] == ["GF226", "GF226"]
    assert all(f.message.isprintable() for f in findings(proto, tmp_path / "m.onnx"))


def test_an_initializer_declared_otherwise(tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) <float[2] w = {1, 2}> { y = Add(a, w) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    proto.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.DOUBLE, ["n"]))
    said = ["w is declared as float64, but is float32", "w is declared with the shape [3], but has [2]"]
    assert sorted(f.message for f in findings(proto, tmp_path / "m.onnx") if f.code == "GF214") == said


def test_data_of_another_length(tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { y = Add(a, w) }")
    proto.graph.initializer.append(TensorProto(name="w", dims=[2], data_type=1, raw_data=b"1234"))
    assert "GF210" in [f.code for f in findings(proto, tmp_path / "m.onnx")]


def test_a_function_that_hides_an_operator(tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { y = Relu(a) }")
    body = [helper.make_node("Exp", ["a"], ["y"])]
    proto.functions.append(helper.make_function("", "Relu", ["a"], ["y"], body, list(proto.opset_import)))
    assert [f.code for f in findings(proto, tmp_path / "m.onnx")] == ["GF130"]
    proto.functions[0].name = "Ours"
    assert "GF130" not in [f.code for f in findings(proto, tmp_path / "m.onnx")]


def test_sizes_that_must_be_equal(tmp_path: Path) -> None:
    body = "g (float[n,4] a, float[m,4] b) => (float[n,4] y) { c = Concat <axis = 1> (a, b) \n y = Relu(a) \n z = Relu(c) }"
    assert ("GF218", "note") in [(c, s) for c, s, _ in found(body, tmp_path)]


def external(location: str, **entries: int) -> Any:
    proto = model("g (float[2,3] a) => (float[2,3] y) { y = Add(a, w) }")
    tensor = TensorProto(name="w", dims=[2, 3], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **{k: str(v) for k, v in entries.items()}}.items():
        tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    return proto


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../secret",
        "a/../../b",
        "C:\\secret",
        "\\\\host\\share",
        "http://example.com/w",
        "x/..\\..\\y",
    ],
)
def test_data_outside_the_folder_are_an_error_and_not_opened(location: str, tmp_path: Path) -> None:
    got = findings(external(location), tmp_path / "m.onnx")
    assert [(f.code, f.severity) for f in got] == [("GF220", "error")]


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    assert [f.code for f in findings(external("w.bin"), folder / "m.onnx")] == ["GF220"]


def test_external_data_that_are_missing_short_or_overlap(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert [f.code for f in findings(external("w.bin", offset=8, length=24), path)] == ["GF221"]
    (tmp_path / "w.bin").write_bytes(bytes(31))
    assert [f.code for f in findings(external("w.bin", offset=8, length=24), path)] == ["GF222"]
    (tmp_path / "w.bin").write_bytes(bytes(32))
    assert findings(external("w.bin", offset=8, length=24), path) == []
    proto = external("w.bin", offset=0, length=24)
    second = proto.graph.initializer.add()
    second.CopyFrom(proto.graph.initializer[0])
    second.name = "v"
    second.external_data[1].value = "8"
    proto.graph.node[0].input[0] = "v"
    assert "overlap" in next(f.message for f in findings(proto, path) if f.code == "GF222")
    second.external_data[1].value = "-8"
    assert "not numbers" in next(f.message for f in findings(proto, path) if f.code == "GF222")


def test_an_operator_that_needs_a_library(tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21, "evil.corp" : 1]>\n'
    got = found("g (float[2] a) => (float[2] y) { y = evil.corp.Run(a) }", tmp_path, head)
    assert ("GF224", "warning") in [(c, s) for c, s, _ in got]
    assert ("GF101", "warning") in [(c, s) for c, s, _ in got]
    defined = head + "g (float[2] a) => (float[2] y) { y = evil.corp.Run(a) }\n"
    defined += '<domain: "evil.corp", opset_import: ["" : 21]> Run (x) => (z) { z = Relu(x) }'
    assert findings(parser.parse_model(defined), tmp_path / "m.onnx") == []


PICKLE = b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "import subprocess",
        "#!/bin/sh\nrm -rf /",
        "gASVGgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU",
    ],
)
def test_code_in_metadata(text: str, tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { y = Relu(a) }")
    proto.metadata_props.add(key="author", value=text)
    assert [(f.code, f.severity) for f in findings(proto, tmp_path / "m.onnx")] == [("GF225", "error")]


def test_a_pickle_in_an_attribute(tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { y = Relu(a) }")
    proto.graph.node[0].attribute.append(helper.make_attribute("payload", PICKLE))
    assert "GF225" in [f.code for f in findings(proto, tmp_path / "m.onnx")]


@pytest.mark.parametrize(
    "text",
    [
        "model.eval() at epoch 3",
        "Trained by me. Compiled with care.",
        "A" * 300,
        "https://example.com/import",
    ],
)
def test_words_that_are_no_code(text: str, tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { y = Relu(a) }")
    proto.doc_string = text
    assert findings(proto, tmp_path / "m.onnx") == []


def test_a_private_path(tmp_path: Path) -> None:
    proto = model("g (float[2] a) => (float[2] y) { y = Relu(a) }")
    proto.graph.node[0].metadata_props.add(
        key="pkg.torch.onnx.stack_trace", value='File "/home/alice/net.py", line 3, in forward'
    )
    (finding,) = findings(proto, tmp_path / "m.onnx")
    assert finding.code == "GF228"
    assert "/home/alice/net.py" in finding.message


def test_a_loop_without_end(tmp_path: Path) -> None:
    loop = (
        "g (float[2] a) => (float[2] y) <int64 n = {1000000000000000000}, bool c = {1}> { y = Loop (n, c, a) "
        "<body = b (int64 i, bool on, float[2] x) => (bool go, float[2] z) { go = Identity(on) \n z = Relu(x) }> }"
    )
    assert ("GF227", "warning", "y") not in found(loop.replace("1000000000000000000", "10"), tmp_path)
    assert "GF227" in [code for code, _, _ in found(loop, tmp_path)]


def stored(**tensors: np.ndarray) -> Any:
    proto = model("g (float[64,64] a) => (float[64,64] y) { b = MatMul(a, w) \n y = MatMul(b, v) }")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    return proto


def test_weights_that_are_the_same(tmp_path: Path) -> None:
    weights = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    (finding,) = findings(stored(w=weights, v=weights), tmp_path / "m.onnx")
    assert (finding.code, finding.stored, finding.severity) == ("GF240", 64 * 64 * 4, "note")
    assert findings(stored(w=weights, v=weights + 1), tmp_path / "m.onnx") == []


def test_a_large_unused_initializer(tmp_path: Path) -> None:
    weights = np.zeros((64, 64), dtype=np.float32)
    proto = stored(w=weights, v=weights + 1, u=np.ones((128, 256), dtype=np.float32))
    (finding,) = findings(proto, tmp_path / "m.onnx")
    assert (finding.code, finding.severity, finding.stored) == ("GF215", "warning", 128 * 256 * 4)


def test_a_batch_norm_after_its_convolution(tmp_path: Path) -> None:
    body = (
        "g (float[1,1,4,4] a) => (float[1,1,4,4] y) <float[1,1,1,1] w = {2}, float[1] s = {1}, float[1] b = {0},"
        " float[1] m = {0}, float[1] v = {1}> { c = Conv(a, w) \n y = BatchNormalization(c, s, b, m, v) }"
    )
    assert [(c, s) for c, s, _ in found(body, tmp_path)] == [("GF254", "note")]
    shared = body.replace("float[1,1,4,4] y)", "float[1,1,4,4] y, float[1,1,4,4] c)")
    assert found(shared, tmp_path) == []


def test_attention_of_several_calls_and_keys_copied_for_each_head() -> None:
    """The sample has four layers, in which 8 query heads share 2 heads of keys and values."""
    got = audit(Path(__file__).parents[2] / "samples" / "gqa_transformer.onnx").findings
    assert [f.message for f in got if f.code == "GF257"] == ["2 heads of keys and values are copied to 8"] * 4
    scores = [finding.bytes for finding in got if finding.code == "GF256"]
    batch, sequence = symbol("batch"), symbol("sequence")
    # 8 heads of float32 scores or probabilities, written or read six times between the products
    assert scores == [6 * 8 * 4 * batch * sequence * sequence] * 4


def test_fused_attention_of_grouped_heads_is_fine(tmp_path: Path) -> None:
    body = (
        "g (float[1,8,16,8] q, float[1,2,16,8] k, float[1,2,16,8] v) => (float[1,8,16,8] y)"
        " { y = Attention (q, k, v) }"
    )
    codes = [code for code, _, _ in found(body, tmp_path, '<ir_version: 11, opset_import: ["" : 23]>\n')]
    assert not {"GF256", "GF257"} & {*codes}


@pytest.mark.parametrize("size, severity", [(2**31, None), (2**31 - 2**20, "warning"), (2**30, "none")])
def test_a_file_too_large_for_protobuf(size: int, severity: str | None, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, size)  # a sparse file: it takes no room
    got = [found.severity for found in checks()["GF241"].run(File(path, onnx.ModelProto()))]
    assert got == ([] if severity == "none" else [severity])


def test_a_model_of_onnx_itself_has_no_grave_finding() -> None:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(folder.glob("*.onnx")):
        assert [f for f in audit(path).findings if f.severity == "error"] == []


def test_every_check_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| GF")]
    expected = [
        f"| {c.code} | `{c.name}` | {c.severity} | {c.summary} |" for c in (*checks().values(), *SLOW_CHECKS)
    ]
    assert sorted(rows) == expected


def test_every_check_has_a_case() -> None:
    cases = Path(__file__).read_text()
    assert [code for code in checks() if code not in cases] == []
