"""The export check keeps the work on healthy exports and catches faults; on more models: tests/oracle/export_checks.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops.cli import main
from graphflops.comparison.models import compare
from tests.compare.faults import FAULTS

SAMPLES = Path(__file__).parents[2] / "samples"
CASES = [(model, fault) for model, faults in FAULTS.items() for fault in faults]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """The `.pt2` and the exports of a model, made once."""
    for needed in ("torch", "onnxruntime", "onnxscript"):
        pytest.importorskip(needed)
    from tests.oracle.export_models import export

    made = {}

    def files(name, *kinds):
        if (name, kinds) not in made:
            made[name, kinds] = export(name, tmp_path_factory.mktemp(name), *kinds)
        return made[name, kinds]

    return files


def statuses(comparison):
    return {entry.kind: entry.status for entry in comparison.ledger}


def names(comparison, kind):
    return next((entry.names for entry in comparison.ledger if entry.kind == kind), ())


def test_a_folded_batch_norm_is_explained():
    comparison = compare(SAMPLES / "convnet.pt2", SAMPLES / "convnet.onnx")
    assert comparison.same
    assert names(comparison, "batch_norms_folded") == ("norm",)


def test_a_weight_that_only_a_branch_reads_is_there(tmp_path):
    """samples/cond.pt2 with its linear layers as ONNX writes them: the branches read weights of the graph around them."""
    onnx = pytest.importorskip("onnx")
    shapes = {"large.0": (128, 32), "large.2": (32, 128), "small": (32, 32)}
    weights = [
        onnx.helper.make_tensor(f"{name}.{kind}", 1, dims, bytes(4 * math.prod(dims)), raw=True)
        for name, shape in shapes.items()
        for kind, dims in (("weight", shape), ("bias", shape[:1]))
    ]
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info

    def linear(x, name, y):
        return node("Gemm", [x, f"{name}.weight", f"{name}.bias"], [y], name=name, transB=1)

    def branch(name, calls):
        return onnx.helper.make_graph(calls, name, [], [onnx.ValueInfoProto(name=calls[-1].output[0])])

    large = [linear("x", "large.0", "a"), node("Relu", ["a"], ["b"]), linear("b", "large.2", "c")]
    branches = {
        "then_branch": branch("large", large),
        "else_branch": branch("small", [linear("x", "small", "d")]),
    }
    zero = onnx.helper.make_tensor("zero", 1, (), [0.0])
    calls = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["holds"]),
        node("If", ["holds"], ["y"], **branches),
    ]
    graph = onnx.helper.make_graph(
        calls, "g", [value("x", 1, (4, 32))], [value("y", 1, (4, 32))], [*weights, zero]
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "cond.onnx")
    comparison = compare(SAMPLES / "cond.pt2", tmp_path / "cond.onnx")
    assert comparison.same, comparison.ledger


def test_unfused_attention_and_copied_heads_cost_more():
    comparison = compare(SAMPLES / "gqa_transformer.pt2", SAMPLES / "gqa_transformer.onnx")
    found = statuses(comparison)
    assert comparison.same
    assert (found["attention_unfused"], found["heads_expanded"]) == ("costs_more", "costs_more")
    assert names(comparison, "heads_expanded") == tuple(f"blocks.{layer}.attention" for layer in range(4))


@pytest.mark.parametrize("kind", ["dynamo", "torchscript", "quantized"])
def test_a_healthy_export_keeps_the_work(exports, kind):
    files = exports("resnet")
    comparison = compare(files["pt2"], files[kind])
    assert comparison.same, comparison.ledger
    assert (
        len(names(comparison, "batch_norms_folded")) == 10
    )  # bn1, two in each of 4 blocks, one of a shortcut
    assert bool(names(comparison, "weights_quantized")) == (kind == "quantized")


@pytest.mark.parametrize(("model", "fault"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_a_fault_is_caught(exports, model, fault, tmp_path):
    import onnx

    kinds = () if model == "resnet" else ("dynamo",)
    files = exports(model, *kinds)
    damaged = onnx.load(files["dynamo"])
    fault(damaged)
    onnx.save(damaged, tmp_path / "damaged.onnx")
    comparison = compare(files["pt2"], tmp_path / "damaged.onnx")
    assert not comparison.same
    assert "unexplained" in statuses(comparison).values()


def test_batch_norms_that_were_never_trained_fold_without_a_bias(tmp_path, monkeypatch):
    from tests.oracle import export_models

    monkeypatch.setattr(export_models, "made", lambda name: export_models.MODELS[name].make().eval())
    files = export_models.export("resnet", tmp_path, "dynamo")
    comparison = compare(files["pt2"], files["dynamo"])
    assert comparison.same, comparison.ledger
    assert len(names(comparison, "shifts_left_out")) == 10  # their shifts are zeros


def test_biases_of_zeros_may_be_left_out(tmp_path, monkeypatch):
    from tests.oracle import export_models

    monkeypatch.setattr(export_models, "made", lambda name: export_models.MODELS[name].make().eval())
    files = export_models.export("encoder", tmp_path, "dynamo")
    comparison = compare(files["pt2"], files["dynamo"])
    assert comparison.same, comparison.ledger
    left = names(comparison, "zeros_left_out")  # torch makes these biases of zeros, and no others
    assert left
    assert all(name.endswith("self_attn_out_proj_bias") for name in left)


def test_the_first_screen_is_a_verdict_and_at_most_six_lines(exports):
    files = exports("resnet")
    arguments = ["diff", str(files["pt2"]), str(files["quantized"]), "--exit-code"]
    brief = CliRunner().invoke(main, arguments)
    lines = brief.stdout.splitlines()
    assert brief.exit_code == 0
    assert "the export keeps the work" in lines[0]
    assert len([line for line in lines if line.startswith(("  explained", "  costs", "  not", "  and"))]) <= 6
    full = CliRunner().invoke(main, [*arguments, "-v"]).stdout
    assert "layer2.1.bn2" in full
    assert "layer2.1.bn2" not in brief.stdout


def test_the_exit_code_of_a_fault_is_3(exports, tmp_path):
    import onnx

    from tests.compare.faults import dropped_bias

    files = exports("resnet")
    damaged = onnx.load(files["dynamo"])
    dropped_bias(damaged)
    onnx.save(damaged, tmp_path / "damaged.onnx")
    found = CliRunner().invoke(
        main, ["diff", str(files["pt2"]), str(tmp_path / "damaged.onnx"), "--exit-code"]
    )
    assert found.exit_code == 3
    assert "the export does not keep the work" in found.stdout
    assert "not explained: 1 trained parameter missing (fc_bias)" in found.stdout
