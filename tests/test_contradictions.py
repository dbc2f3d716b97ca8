"""Forged files: what contradicts itself fails every gate, and is named in every output."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from graphflops import analyze
from graphflops.cli import main
from tests.exporters.build import call, meta, program, save, size, tensor
from tests.exporters.onnx_files import model, node, value

SAMPLES = sorted((Path(__file__).parents[1] / "samples").glob("*.[po]*"))
LONG = {"name": "x", "kind": "value", "first": 0, "last": 99999, "bytes": 8}
SAMPLE = Path(__file__).parents[1] / "samples" / "gqa_transformer.pt2"


def run(*args: object) -> tuple[int, str]:
    """The exit code, and what is said on both streams."""
    result = CliRunner().invoke(main, [*map(str, args)])
    return result.exit_code, result.stdout + result.stderr


def forged_activation(path: Path) -> Path:
    """relu of 64 x 64 elements, recorded as 8 x 8, multiplied with itself: 2 * 8**3 FLOPs are counted, 2 * 64**3 run."""
    nodes = [
        call("torch.ops.aten.relu.default", tensor("x"), out="r"),
        call("torch.ops.aten.mm.default", tensor("r"), tensor("r")),
    ]
    values = {"x": meta(64, 64), "r": meta(8, 8), "y": meta(8, 8)}
    return save(path, program(nodes, values))


def forged_weights(path: Path) -> Path:
    """The last line of the table of weights, `lm_head`, tells one column more than the program."""
    with zipfile.ZipFile(SAMPLE) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("_weights_config.json"):
                config = json.loads(data)
                sizes = next(iter(config["config"].values()))["tensor_meta"]["sizes"]
                sizes[-1]["as_int"] += 1
                data = json.dumps(config).encode()
            new.writestr(info, data)
    return path


def forged_report(path: Path) -> Path:
    """A report with a tenth of its FLOPs in its totals."""
    report = json.loads(analyze(SAMPLE).to_json())
    flops = report["totals"]["matrix_flops"]
    report["totals"]["matrix_flops"] = 10 if isinstance(flops, int) else {"value": 10, "formula": "10"}
    path.write_text(json.dumps(report))
    return path


def report_as_model(path: Path) -> Path:
    path.write_bytes(analyze(SAMPLE).to_json())
    return path


def forged_element_type(path: Path) -> Path:
    """relu of float32, recorded as float16: half of the bytes, and products at twice the rate."""
    nodes = [
        call("torch.ops.aten.relu.default", tensor("x"), out="r"),
        call("torch.ops.aten.mm.default", tensor("r"), tensor("r")),
    ]
    half = {**meta(64, 64), "dtype": 6}
    return save(path, program(nodes, {"x": meta(64, 64), "r": half, "y": half}))


def hidden_operator(path: Path) -> Path:
    """A function of the file that adds up, named as the operator Relu, which onnxruntime runs."""
    opsets = [helper.make_opsetid("", 21)]
    ours = helper.make_function("", "Relu", ["a"], ["b"], [node("ReduceSum", ["a"], ["b"])], opsets)
    calls = [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "r"], ["y"])]
    made = model(calls, [value("x", (8, 8))], [value("y", "ab")], functions=[ours], opset_imports=opsets)
    path.write_bytes(made.SerializeToString())
    return path


def newer_operator(path: Path) -> Path:
    """A call of Gelu, which is an operator since opset 20."""
    opset = helper.make_opsetid("", 17)
    made = model(
        [node("Gelu", ["x"], ["y"])], [value("x", (8, 8))], [value("y", (8, 8))], opset_imports=[opset]
    )
    path.write_bytes(made.SerializeToString())
    return path


def declared_otherwise(path: Path) -> Path:
    """relu of 8 x 8, declared as 1 x 8: a reader who trusts the declaration counts an eighth of the product."""
    calls = [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "r"], ["y"])]
    made = model(calls, [value("x", (8, 8))], [value("y", (8, 8))])
    made.graph.value_info.append(value("r", (1, 8)))
    path.write_bytes(made.SerializeToString())
    return path


def declared_target(path: Path) -> Path:
    """x of 8 x 8 as 1 x 64 by declaration, 64 x 1 in the other file: 2 * 64 FLOPs are counted, 2 * 64 * 64 run."""
    target = TensorProto(name="s", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    target.external_data.add(key="location", value="s.bin")
    calls = [
        node("Reshape", ["x", "s"], ["r"], name="cut"),
        node("Transpose", ["r"], ["t"], perm=[1, 0]),
        node("MatMul", ["r", "t"], ["y"]),
    ]
    made = model(calls, [value("x", (8, 8))], [value("y", (1, 1))], [target])
    made.graph.value_info.append(value("r", (1, 64)))
    path.write_bytes(made.SerializeToString())
    return path


FORGED = {
    "GF103": (forged_element_type, "m.pt2", "derived float32[64,64], the file records float16[64,64]"),
    "GF130": (hidden_operator, "m.onnx", "is a function of the file and an operator of runtimes"),
    "GF131": (declared_target, "m.onnx", "the sizes of r are what the file declares"),
    "GF206": (newer_operator, "m.onnx", "opset 17 of ai.onnx has no operator Gelu"),
    "GF213": (declared_otherwise, "m.onnx", "out of date: r is float32[8, 8], declared as float32[1, 8]"),
    "GF102": (forged_activation, "m.pt2", "derived float32[64,64], the file records float32[8,8]"),
    "GF119": (forged_weights, "m.pt2", "in the table of stored weights"),
    "GF120": (forged_report, "m.json", "matrix_flops is not the sum of the rows"),
    "GF121": (report_as_model, "m.onnx", "holds a saved report"),
}


@pytest.mark.parametrize("code", FORGED)
def test_forged_files_are_named_everywhere(tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    forge, name, says = FORGED[code]
    forge(tmp_path / name)
    (tmp_path / "graphflops.toml").write_text('[[budget]]\nmatrix_flops = "1 EFLOP"\n')
    for command, exit_code in (
        (("analyze", name, "--strict"), 3),
        (("analyze", name, SAMPLE, "--strict"), 3),
        (("analyze", name), 0),
        *((("analyze", name, "--format", form), 0) for form in ("json", "markdown")),
        (("check", name), 3),
        *((("check", name, "--format", form), 3) for form in ("json", "sarif")),
        (("check", name, "--format", "markdown"), 3),
        (("diff", name, name), 0),
        (("diff", name, name, "--format", "markdown"), 0),
        (("diff", name, name, "--format", "json"), 0),
        (("diff", name, name, "--format", "html"), 0),
        (("textconv", name), 0),
        (("analyze", name, "--format", "html"), 0),
    ):
        found, text = run(*command)
        assert found == exit_code, text
        assert code in text, command
        assert says.replace("[", "").split(",")[0].split("32")[0] in text.replace("[", "").replace("\\", "")


def test_an_open_size_whose_example_an_operator_refuses(tmp_path):
    """x of 4 x s with s = 1 by example, multiplied with 8 x 8: 2 * 4 * 8 FLOPs are counted, 2 * 4 * 8 * 8 run."""
    values = {"x": meta(4, size("Symbol('s0')", 1)), "w": meta(8, 8), "y": meta(4, 8)}
    inputs = [{"user_input": {"arg": tensor(name)}} for name in ("x", "w")]
    nodes = [call("torch.ops.aten.mm.default", tensor("x"), tensor("w"))]
    forged = save(tmp_path / "m.pt2", program(nodes, values, inputs))
    found, text = run("analyze", forged, "--strict")
    assert found == 3, text
    assert "GF102 y: requires s0 = 8, which are 1 and 8 in the file" in text
    honest = program(nodes, {**values, "x": meta(4, size("Symbol('s0')", 8))}, inputs)
    assert run("analyze", save(tmp_path / "honest.pt2", honest), "--strict")[0] == 0


@pytest.mark.parametrize("example, code", [(1, 0), (3, 3), (8, 0)])
def test_an_open_size_whose_example_does_not_broadcast(tmp_path, example, code):
    """x of 4 x s is added to 4 x 8, which takes an s of 1 or 8."""
    values = {"x": meta(4, size("Symbol('s0')", example)), "w": meta(4, 8), "y": meta(4, 8)}
    inputs = [{"user_input": {"arg": tensor(name)}} for name in ("x", "w")]
    nodes = [call("torch.ops.aten.add.Tensor", tensor("x"), tensor("w"))]
    found, text = run("analyze", save(tmp_path / "m.pt2", program(nodes, values, inputs)), "--strict")
    assert found == code, text
    assert ("GF102 y: requires s0 = 8, which are 3 and 8 in the file" in text) == bool(code)


def test_amounts_of_a_report_that_cancel_one_another(tmp_path):
    """One row costs more than it does, another as much less than nothing: the sum is right."""
    report = json.loads(analyze(SAMPLE.with_name("cond.pt2")).to_json())
    first, second = report["rows"][:2]
    for row, more in ((first, 10**12), (second, -(10**12))):
        row["cost"]["read_bytes"] += more
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report))
    code, text = run("analyze", path)
    assert code == 1
    assert f"{second['node']}: read_bytes is negative" in text


@pytest.mark.parametrize("low, high", [(2.0, 1.0), (-1.0, 1.0), (0.5, 1.0), (0.0, 1e-9)])
def test_a_time_that_is_none_is_no_report(tmp_path, low, high):
    path = tmp_path / "r.json"
    report = json.loads(analyze(SAMPLES[0].with_name("convnet.onnx"), device="h200").to_json())
    timed = next(row for row in report["rows"] if row.get("time"))
    timed["time"] |= {"low": low, "high": high}
    path.write_text(json.dumps(report))
    code, text = run("analyze", path)
    assert code == 1
    assert f"{timed['node']}: the time is {timed['time']['seconds']} s, between {low} and {high} s" in text


@pytest.mark.parametrize(
    "name, says",
    [
        ("requested_peak", "requested_peak of inference is not the most that is held"),
        ("weights", "requested_peak of inference is not the sum of its parts"),
        *(
            (name, f"{name} of inference is not that of what is held")
            for name in ("allocated_peak", "reserved_peak")
        ),
        ("device_total", "device_total of inference is not that of what is held"),
    ],
)
def test_a_byte_more_on_the_device_is_said(tmp_path, name, says):
    path, sizes = tmp_path / "r.json", {"image[0]": 1, "image[2]": 32, "image[3]": 32}
    report = json.loads(analyze(SAMPLES[0].with_name("convnet.pt2"), dims=sizes, device="h100").to_json())
    for change, expected in ((0, ""), (1, says)):
        report["memory_use"][0][name] += change
        path.write_text(json.dumps(report))
        code, text = run("analyze", path, "--strict")
        assert code == (3 if change else 0), text
        assert expected in text
    report["memory_use"][0][name] = -1
    path.write_text(json.dumps(report))
    code, text = run("analyze", path)
    assert (code, f"memory_use: {name} is negative" in text) == (1, True)


@pytest.mark.parametrize("phase", ["totals", "backward"])
def test_a_byte_more_of_activations_is_said(tmp_path, phase):
    """Of a step the most is held in the backward, of an inference in the forward."""
    path, sizes = tmp_path / "r.json", {"image[0]": 1, "image[2]": 32, "image[3]": 32}
    found = analyze(SAMPLES[0].with_name("convnet.pt2"), dims=sizes, training=phase == "backward")
    report = json.loads(found.to_json())
    part = report["totals"] if phase == "totals" else report["totals"][phase]
    part["peak_bytes"] += 1
    path.write_text(json.dumps(report))
    code, text = run("analyze", path, "--strict")
    assert (code, "peak_bytes is not the most that is held" in text) == (3, True), text


@pytest.fixture(scope="module")
def step_on_a_device():
    return analyze(SAMPLE.with_name("lstm.pt2"), device="h200", training=True).to_json()


@pytest.mark.parametrize(
    "place, change, says",
    [
        (("optimizer", "vector_flops"), lambda flops: flops // 2, "optimizer: vector_flops is not"),
        (("optimizer", "written_bytes"), lambda size: 2 * size, "optimizer: written_bytes is not"),
        (("peak_bytes",), lambda size: size - 1, "peak_bytes is not the most that is held in inference"),
        (("peak_bytes",), lambda size: 2 * size, "peak_bytes of the forward are more than the step's"),
        (("time", "energy_joules"), lambda joules: joules / 2, "energy_joules are not those of one power"),
        (("time", "energy_joules"), lambda joules: 0.0, "energy_joules are not those of one power"),
        (("time", "communication"), lambda seconds: -1.0, "0.0 s of -1.0 s of communication are exposed"),
        (
            ("time", "matrix_utilization"),
            lambda part: -part,
            "totals: a utilization or the energy is negative",
        ),
        (("macs",), lambda macs: macs + 1, "totals.macs is not what follows from the rest"),
        (("step", "read_bytes"), lambda size: size // 2, "totals.step.read_bytes is not what follows"),
        (("step", "time", "energy_joules"), lambda joules: 0.0, "energy_joules are not those of one power"),
        (("time", "shares"), dict, ""),
        (
            ("time", "shares"),
            lambda parts: dict.fromkeys(parts, 1.1),
            "shares of the time are no parts of it",
        ),
    ],
)
def test_a_figure_of_a_saved_step_that_others_contradict(step_on_a_device, place, change, says, tmp_path):
    report = json.loads(step_on_a_device)
    part = report["totals"]
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = change(part[place[-1]])
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report))
    code, text = run("analyze", path, "--strict")
    assert (code != 0, says in text) == (bool(says), True), text


def test_a_number_of_a_formula_that_is_another_is_said(tmp_path: Path) -> None:
    """The formula of the FLOPs and the sizes stay, what they come to is ten times as much."""
    report = json.loads(analyze(SAMPLE).to_json())
    report["totals"]["matrix_flops"]["value"] *= 10
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report))
    code, text = run("analyze", path, "--strict")
    assert (code, "totals.matrix_flops.value is not what follows from the rest" in text) == (3, True), text


def test_a_negative_size_is_refused(tmp_path: Path) -> None:
    report = json.loads(analyze(SAMPLE.with_name("convnet.pt2")).to_json())
    report["rows"][0]["outputs"][0]["shape"][1] = -8
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report))
    code, text = run("analyze", path)
    assert (code, "a size of conv2d is negative" in text) == (1, True), text


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_honest_files_do_not_contradict_themselves(tmp_path, sample):
    if sample.suffix not in (".pt2", ".onnx"):
        return
    report = analyze(sample)
    saved = tmp_path / "r.json"
    saved.write_bytes(report.to_json())
    from graphflops.report.contradictions import contradicted

    assert contradicted(report) == contradicted(analyze(saved)) == ""


@pytest.mark.parametrize(
    "wrong",
    [{"rows": []}, {"rows": [99999]}, {"held": [LONG]}, {"gradients_from": -1}],
)
def test_a_timeline_of_moments_that_there_are_not_is_refused(
    wrong: dict[str, object], tmp_path: Path
) -> None:
    report = json.loads(analyze(SAMPLE, device="h200").to_json())
    report["memory_use"][0]["timeline"].update(wrong)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    code, text = run("analyze", path)
    assert code == 1
    assert "memory_use[0].timeline names moments or rows that there are not" in text
