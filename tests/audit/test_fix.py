"""Each fix on a small model: which calls remain, that results stay, and what is never written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper, parser

from graphflops.cli import main
from graphflops.onnx_audit.audit import checks
from graphflops.onnx_fix import fix as module
from graphflops.onnx_fix.fix import Fixed, fixed
from graphflops.onnx_fix.sessions import STEPS, Steps, done

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


class Here(Steps):
    """The steps in this process, which the tests need not protect."""

    def asked(self, step: str, *arguments: Any) -> Any:
        return msgspec.json.decode(done(step, msgspec.json.encode(arguments)), type=STEPS[step][-1])


def saved(body: str, path: Path) -> Path:
    path.write_bytes(parser.parse_model(HEAD + body).SerializeToString())
    return path


def mended(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Fixed:
    monkeypatch.setattr(module, "Steps", Here)
    folder = path.parent / "trials"
    folder.mkdir(exist_ok=True)
    options = {"codes": set(checks()), "kept": list, **options}
    return fixed(str(path), str(folder), **options)


def calls(path: str) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


W = f"float[4,3] w = {{{', '.join(str(n / 7) for n in range(12))}}}"
A = "g (float[5,4] a) => (float[5,4] y)"
# What a person would leave of each model: the operators of its calls, by the code that is fixed.
FIXES = [
    ("GF242", f"g (float[5,3] a) => (float[5,4] y) <{W}> {{ t = Transpose(w) \n y = MatMul(a, t) }}", "MatMul"),
    (
        "GF242",
        f"g (float[5,3] a) => (float[5,3] y) <{W}> {{ t = Exp(w) \n u = Neg(t) \n v = ReduceSum<keepdims=0>(u)"
        "\n y = Add(a, v) }",
        "Add",
    ),
    ("GF243", f"{A} {{ t = Cast<to = 1>(a) \n y = Relu(t) }}", "Relu"),
    ("GF243", f"{A} {{ t = Relu(a) \n y = Cast<to = 1>(t) }}", "Relu"),  # the output takes the operand's place
    ("GF243", f"{A} <float o = {{1}}> {{ t = Mul(o, a) \n y = Relu(t) }}", "Relu"),
    (  # with the Pad goes what computes its amounts, and the Cast therein that does nothing either
        "GF243",
        "g (float[n,4] a) => (float[n,4] y) <int64[1] j = {1}, int64[1] f = {4}, int64[1] z = {0}> { s = Shape(a)"
        "\n c = Gather(s, j) \n d = Sub(c, f) \n k = Cast<to = 7>(d) \n p = Concat<axis = 0>(z, k, z, k)"
        "\n t = Pad(a, p) \n y = Relu(t) }",
        "Relu",
    ),
    ("GF244", f"{A} {{ t = Exp(a) \n u = Exp(a) \n y = Mul(t, u) }}", "Exp Mul"),
    ("GF244", f"{A} {{ s = Exp(a) \n t = Exp(a) \n u = Sin(s) \n v = Sin(t) \n y = Mul(u, v) }}", "Exp Sin Mul"),
    ("GF245", f"{A} {{ t = Transpose(a) \n u = Transpose(t) \n y = Relu(u) }}", "Relu"),
    (
        "GF245",
        "g (float[2,3,4] a) => (float[4,2,3] y) { t = Transpose<perm = [1, 2, 0]>(a)"
        "\n u = Transpose<perm = [1, 2, 0]>(t) \n y = Relu(u) }",
        "Transpose Relu",
    ),
    ("GF246", f"{A} {{ t = Cast<to = 11>(a) \n u = Cast<to = 1>(t) \n y = Relu(u) }}", "Relu"),
    (
        "GF246",
        "g (float[5] a) => (float16[5] y) { t = Cast<to = 11>(a) \n u = Cast<to = 10>(t) \n y = Relu(u) }",
        "Cast Relu",
    ),
    (
        "GF247",
        f"{A} <int64[2] s = {{2, 10}}, int64[2] r = {{5, 4}}> {{ t = Reshape(a, s) \n u = Reshape(t, r) \n y = Relu(u) }}",
        "Relu",
    ),
    (
        "GF247",
        f"{A} <int64[2] s = {{2, 10}}, int64[1] r = {{20}}> {{ t = Reshape(a, s) \n u = Reshape(t, r)"
        "\n v = ReduceSum(u) \n y = Add(a, v) }",
        "Reshape ReduceSum Add",
    ),
    (
        "GF248",
        "g (float[5,4] a, float[4] c) => (float[5,4] y) <int64[2] e = {5, 4}> { b = Exp(c) \n t = Expand(b, e)"
        "\n y = Add(a, t) }",
        "Exp Add",
    ),
    (
        "GF249",
        "g (float[n,6] a) => (float[m,3] y) <int64[1] j = {1}, int64[1] k = {2}, int64[1] o = {-1}, int64 z = {0}>"
        "{ s = Shape(a) \n c = Gather(s, j) \n h = Div(c, k) \n r = Concat<axis = 0>(o, h) \n y = Reshape(a, r) }",
        "Reshape",
    ),
    ("GF219", "g (float[5,4] a) => (float[m,4] y) { y = Relu(a) }", "Relu"),
    ("GF217", f"{A} {{ t = Exp(a) \n u = Neg(t) \n y = Relu(a) }}", "Relu"),
    (
        "GF250",
        "g (float[1,3,8,8] a) => (float[1,3,8,8] y) { p = MaxPool<kernel_shape = [1, 1]>(a)"
        "\n t = Transpose<perm = [0, 2, 3, 1]>(p) \n u = Relu(t) \n v = Transpose<perm = [0, 3, 1, 2]>(u) \n y = Exp(v) }",
        "MaxPool Relu Exp",
    ),
    (
        "GF253",
        f"{A} <float q = {{0.5}}, uint8 z = {{3}}> {{ t = QuantizeLinear(a, q, z) \n u = DequantizeLinear(t, q, z)"
        "\n v = QuantizeLinear(u, q, z) \n y = DequantizeLinear(v, q, z) }",
        "QuantizeLinear DequantizeLinear",
    ),
]  # fmt: skip


@pytest.mark.parametrize("code, body, left", FIXES)
def test_what_is_left_of_a_model(
    code: str, body: str, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(body, tmp_path / "model.onnx")
    found = mended(path, monkeypatch, codes={code})
    assert " ".join(calls(found.file)) == left
    assert {finding.code for finding in found.fixed} == {code}
    assert not found.undone
    assert (len(found.runs), found.difference) == (3, 0)
    assert code not in {finding.code for finding in found.after.findings}
    assert found.promised == found.saved


def test_equal_weights_are_stored_once_and_unused_ones_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    weights = [numpy_helper.from_array(part, name) for name, part in (("v", w), ("w", w), ("x", w + 1))]
    nodes = [helper.make_node("MatMul", ["a", "v"], ["b"]), helper.make_node("MatMul", ["b", "w"], ["y"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 40]) for name in "ay"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], weights)
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(
            graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]
        ).SerializeToString()
    )
    found = mended(path, monkeypatch)
    assert [tensor.name for tensor in onnx.load(found.file).graph.initializer] == ["v"]
    assert found.promised[-1] == found.saved[-1] == 2 * w.nbytes
    assert len({run.dims["n"] for run in found.runs}) == 3


def test_weights_stored_twice_as_wide_as_they_are_used_are_stored_narrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"g (float16[5,4] a) => (float16[5,3] y) <{W}> {{ t = Cast<to = 10>(w) \n y = MatMul(a, t) }}"
    path = saved(body, tmp_path / "model.onnx")
    assert not mended(
        path, monkeypatch
    ).fixed  # onnxruntime, which multiplies in float32 here, leaves the Cast out
    found = mended(path, monkeypatch, unsafe=True)
    (weight,) = onnx.load(found.file).graph.initializer
    assert weight.data_type == TensorProto.FLOAT16
    assert found.promised[-1] == found.saved[-1] == 12 * (4 - 2)


def test_functions_that_nothing_calls_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = '<domain: "own", opset_import: ["" : 21, "own" : 1]> {} (x) => (z) {{ z = {}(x) }}'
    pairs = (("Used", "own.Inner"), ("Idle", "Exp"), ("Inner", "Sin"))
    functions = " ".join(function.format(*pair) for pair in pairs)
    head = '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>'
    path = tmp_path / "model.onnx"
    text = f"{head} {A} {{ y = own.Used(a) }} {functions}"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    found = mended(path, monkeypatch)
    assert [finding.code for finding in found.fixed] == ["GF212"]
    assert sorted(f.name for f in onnx.load(found.file).functions) == ["Inner", "Used"]


def test_a_fix_holds_at_all_sizes_not_only_at_those_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At n = 8 the Slice would do nothing."""
    ints = "int64[1] s = {0}, int64[1] e = {8}, int64[1] x = {0}"
    body = f"g (float[n,4] a) => (float[m,4] y) <{ints}> {{ t = Slice(a, s, e, x) \n u = Cast<to = 1>(t) \n y = Relu(u) }}"
    found = mended(saved(body, tmp_path / "model.onnx"), monkeypatch, dims={"n": 8})
    assert calls(found.file) == ["Slice", "Relu"]
    assert [run.dims["n"] for run in found.runs] == [8, 8, 8]
    assert found.promised == found.saved == (0, 2 * 8 * 4 * 4, 0)  # the Cast reads and writes 8 x 4 floats


def test_only_what_is_selected_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"{A} <{W}> {{ t = Cast<to = 1>(a) \n u = Exp(t) \n v = Exp(t) \n d = Sin(a) \n y = Mul(u, v) }}"
    path = saved(body, tmp_path / "model.onnx")
    assert calls(mended(path, monkeypatch, codes={"GF244"}).file) == ["Cast", "Exp", "Sin", "Mul"]
    assert calls(mended(path, monkeypatch, codes={"GF217"}).file) == ["Cast", "Exp", "Exp", "Mul"]
    kept = mended(path, monkeypatch, kept=lambda found: [each for each in found if each.code != "GF243"])
    assert calls(kept.file) == ["Cast", "Exp", "Mul"]


def test_a_fix_that_changes_results_is_left_out_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"{A} {{ t = Cast<to = 1>(a) \n u = Exp(t) \n v = Exp(t) \n w = Sin(a) \n x = Mul(u, v) \n y = Add(w, x) }}"
    path = saved(body, tmp_path / "model.onnx")
    real = module.audit

    def wrong(path: str, **options: Any) -> Any:
        """The audit, whose fix of a repeated call takes the result of another."""
        found = real(path, **options)
        fixes = [
            each._replace(edits=tuple(edit._replace(other="w") for edit in each.edits))
            if each.finding.code == "GF244"
            else each
            for each in found.fixes
        ]
        return module.replace(found, fixes=tuple(fixes))

    monkeypatch.setattr(module, "audit", wrong)
    found = mended(path, monkeypatch)
    assert calls(found.file) == ["Exp", "Exp", "Sin", "Mul", "Add"]
    ((finding, why),) = found.undone
    assert finding.code == "GF244"
    assert "y differs by" in why


def test_batch_norms_are_folded_only_as_an_unsafe_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "scale": 8, "bias": 8, "mean": 8}
    arrays = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    arrays["variance"] = generator.random(8) + 0.5
    weights = [numpy_helper.from_array(part.astype(np.float32), name) for name, part in arrays.items()]
    conv = helper.make_node("Conv", ["a", "w"], ["c"], name="/stem/conv/Conv")
    norm = helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "variance"], ["y"])
    value = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", c, s, s])
        for n, c, s in (("a", 3, 8), ("y", 8, 6))
    ]
    graph = helper.make_graph([conv, norm], "g", value[:1], value[1:], weights)
    path = tmp_path / "model.onnx"
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    path.write_bytes(model.SerializeToString())
    assert not mended(path, monkeypatch).fixed
    found = mended(path, monkeypatch, unsafe=True)
    assert [node.name for node in onnx.load(found.file).graph.node] == ["/stem/conv/Conv"]
    assert 0 < found.difference < 1e-5


ATTENTION = """<ir_version: 11, opset_import: ["" : 23]>
g (float[b,8,16,8] q, float[b,2,16,8] k, float[b,16,2,8] v, float[1,1,16,16] m) => (float[b,8,16,8] y)
<float s = {0.125}, int64[1] two = {2}, int64[5] e = {1,1,4,1,1}, int64[4] r = {-1,8,16,8}> {
  k1 = Unsqueeze(k, two)  k2 = Expand(k1, e)  k3 = Reshape(k2, r)  kt = Transpose<perm=[0,1,3,2]>(k3)
  v0 = Transpose<perm=[0,2,1,3]>(v)  v1 = Unsqueeze(v0, two)  v2 = Expand(v1, e)  v3 = Reshape(v2, r)
  a = MatMul(q, kt)  n = Mul(a, s)  c = Add(n, m)  d = Softmax<axis=-1>(c)  y = MatMul(d, v3) }"""


def test_attention_is_one_call_that_reads_shared_keys_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    model = parser.parse_model(ATTENTION)
    path.write_bytes(model.SerializeToString())
    assert not mended(path, monkeypatch).fixed
    found = mended(path, monkeypatch, unsafe=True)
    assert calls(found.file) == ["Transpose", "Attention"]
    assert [finding.code for finding in found.fixed] == ["GF256", "GF257"]
    assert (found.undone, found.after.findings) == ((), ())
    assert found.promised == found.saved
    (use,) = found.after.report.attentions  # type: ignore[union-attr]
    assert (use.heads, use.kv_heads, use.is_fused) == (8, 2, True)
    model.opset_import[0].version, model.ir_version = 22, 10
    path.write_bytes(model.SerializeToString())
    assert not mended(path, monkeypatch, unsafe=True).fixed  # before opset 23 there is no such call


def test_keys_that_were_turned_twice_in_one_are_turned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "g (float[b,4,16,8] q, float[b,9,4,8] k, float[b,4,9,8] v) => (float[b,4,16,8] y)"
        "{ t = Transpose<perm=[0,2,3,1]>(k) a = MatMul(q, t) d = Softmax<axis=-1>(a) y = MatMul(d, v) }"
    )
    path = tmp_path / "model.onnx"
    model = parser.parse_model('<ir_version: 11, opset_import: ["" : 23]>' + body)
    path.write_bytes(model.SerializeToString())
    found = mended(path, monkeypatch, unsafe=True)
    turned, fused = onnx.load(found.file).graph.node
    assert [*turned.attribute[0].ints] == [0, 2, 1, 3]
    assert (fused.op_type, fused.attribute[0].f) == ("Attention", 1.0)
    assert found.promised == found.saved


# What the command writes, and what it does not


def run(*args: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, args)])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Steps", Here)


@pytest.fixture
def wasteful(tmp_path: Path) -> Path:
    return saved(f"{A} {{ t = Cast<to = 1>(a) \n y = Relu(t) }}", tmp_path / "model.onnx")


def test_what_is_missing_is_installed_by_the_python_that_runs(
    wasteful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphflops.commands.audit._EXTRA", ("no_such_package",))
    result = run(wasteful, "--diff")
    assert result.exit_code == 2
    assert f"{sys.executable} -m pip install 'graphflops[fix]'" in result.output
    assert "--fix" not in result.output


def test_the_command_in_child_processes(wasteful: Path) -> None:
    before = wasteful.read_bytes()
    result = run(wasteful, "--fix")
    assert result.exit_code == 0, result.output
    assert wasteful.read_bytes() == before
    assert calls(str(wasteful.with_suffix(".fixed.onnx"))) == ["Relu"]
    for said in (
        "1 finding fixed",
        "safe  GF243 does-nothing",
        "equal bit for bit",
        "promised 160 B",
        "saved 160 B",
    ):
        assert said in result.output
    again = run(wasteful, "--fix")
    assert (again.exit_code, again.stderr.count("\n")) == (1, 1)
    assert "exists: name another with --output" in again.stderr


def test_what_is_not_to_be_written_is_not(wasteful: Path, here: None) -> None:
    before = wasteful.read_bytes()
    for options in (["--dry-run"], ["--diff"], ["--fix", "--diff"], ["--fix", "--output", wasteful]):
        run(wasteful, *options)
        assert os.listdir(wasteful.parent) == ["model.onnx"]
        assert wasteful.read_bytes() == before
    assert run(wasteful, "--diff", "--exit-code").exit_code == 3
    assert run(wasteful, "--fix", "--in-place").exit_code == 0
    assert calls(str(wasteful)) == ["Relu"]
    assert os.listdir(wasteful.parent) == ["model.onnx"]
    assert run(wasteful, "--diff", "--exit-code").exit_code == 0


def test_findings_carry_that_a_fix_exists(wasteful: Path) -> None:
    (told,) = json.loads(run(wasteful, "--format", "sarif").stdout)["runs"][0]["results"]
    assert told["properties"]["applicability"] == "safe"
    assert told["message"]["text"].endswith(f"(`graphflops audit {wasteful} --select GF243 --fix`)")
    (finding,) = json.loads(run(wasteful, "--format", "json").stdout)["models"][0]["findings"]
    assert finding["applicability"] == "safe"
    assert f"`graphflops audit {wasteful} --fix` mends 1 finding\n" in run(wasteful).stdout


@pytest.mark.parametrize(
    "options", [["--in-place"], ["--fix", "--in-place", "--output", "x.onnx"], ["--fix", "--format", "json"]]
)
def test_wrong_usage(wasteful: Path, options: list[str]) -> None:
    assert run(wasteful, *options).exit_code == 2


HOSTILE = {
    "a call that no runtime has": f"{A} {{ t = Cast<to = 1>(a) \n y = com.microsoft.Unheard(t) }}",
    "an error": f"{A} {{ t = Cast<to = 1>(a) \n y = Relu(nothing) }}",
    "sizes that no machine has": "g (float[1] a) => (float[n] y) <int64[2] s = {16777216, 16777216}>"
    "{ t = Cast<to = 1>(a) \n u = Expand(t, s) \n y = ReduceSum(u) }",
    "an endless loop": "g (float[2] a) => (float[2] y) <bool c = {1}> { t = Cast<to = 1>(a) \n y = Loop(, c, t)"
    "<body = b (int64 i, bool d, float[2] s) => (bool d2, float[2] s2) { d2 = Identity(d) \n s2 = Sin(s) }> }",
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_one_line_and_nothing_is_written(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(HOSTILE[what], tmp_path / "model.onnx")
    monkeypatch.setattr(module.fixed, "__kwdefaults__", {**module.fixed.__kwdefaults__, "seconds": 4.0})
    result = run(path, "--fix", "--in-place")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
    assert result.stderr.startswith(f"graphflops: error: {path}: ")
    assert os.listdir(tmp_path) == ["model.onnx"]
    assert path.read_bytes() == parser.parse_model(HEAD + HOSTILE[what]).SerializeToString()


def test_data_outside_of_the_folder_is_not_read(wasteful: Path, here: None) -> None:
    model = onnx.load(wasteful)
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="../secret")
    model.graph.node.add(op_type="Add", input=["a", "w"], output=["z"])
    wasteful.write_bytes(model.SerializeToString())
    result = run(wasteful, "--fix", "--unproven")
    assert result.exit_code == 1
    assert "GF220" in result.stderr
    assert os.listdir(wasteful.parent) == ["model.onnx"]


def test_weights_in_files_stay_there(tmp_path: Path, here: None) -> None:
    w = np.arange(64, dtype=np.float32).reshape(8, 8)
    path = saved(
        "g (float[n,8] a) => (float[n,8] y) { t = Cast<to = 1>(a) \n y = MatMul(t, w) }",
        tmp_path / "model.onnx",
    )
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    held = (tmp_path / "model.data").read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = run(path, "--fix", "--output", elsewhere / "model.onnx")
    assert "must lie beside the model" in refused.stderr
    written = run(path, "--fix", "--output", tmp_path / "out.onnx")
    assert (written.exit_code, "left: nothing found" in written.output) == (0, True)
    (tensor,) = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
    assert {entry.key: entry.value for entry in tensor.external_data}["location"] == "model.data"
    assert (tmp_path / "model.data").read_bytes() == held
    os.unlink(tmp_path / "model.data")
    assert "without proof" in run(path, "--fix", "--in-place").stderr
    unproven = run(path, "--fix", "--in-place", "--unproven")
    assert (unproven.exit_code, "NOT PROVEN" in unproven.output) == (0, True)


KILLED = """
import os, shutil, signal, sys
from graphflops.base.files import copied
def slow(source, target, length=0):
    target.write(source.read(1000)); target.flush()
    os.kill(os.getpid(), signal.SIGKILL)
shutil.copyfileobj = slow
copied(*sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
def test_a_kill_while_writing_leaves_the_original_and_no_part(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "folder" / "model.onnx"
    old.parent.mkdir()
    new.write_bytes(bytes(10_000))
    old.write_bytes(b"as it was")
    killed = subprocess.run([sys.executable, "-c", KILLED, new, old], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (os.listdir(old.parent), old.read_bytes()) == (["model.onnx"], b"as it was")
