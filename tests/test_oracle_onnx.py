"""ONNX's own conformance cases, and models exported, fused and quantised; by hand, with options: tests/oracle/onnx_*.py."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from graphflops.analysis import analyze
from graphflops.dims import Expr, symbol
from tests.children import finished

SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.mark.parametrize("shard", range(4))
def test_every_case_of_onnx_has_the_types_that_it_expects(shard, capsys):
    from tests.oracle import onnx_nodes

    code = onnx_nodes.main(["--shard", f"{shard}/4"])
    printed = capsys.readouterr().out
    assert printed.endswith(" 0 wrong\n"), printed
    assert code == 0


def test_every_size_of_an_exported_model_is_that_of_its_run():
    for needed in ("torch", "onnxruntime", "onnxscript"):
        pytest.importorskip(needed)
    models = "programs/padded_same,programs/lstm_and_gru"
    options = ["--only", models, "--forms", "dynamo,torchscript,static QOperator", "--jobs", "1"]
    code = "import sys; from tests.oracle.onnx_exports import main; sys.exit(main())"
    done = finished(code, *options)  # apart: it silences whole libraries
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert summary.startswith("all: 8 graphs, 0 not made")
    for part in ("100.00 % resolved", "100.00 % static", "0 wrong; totals:", "0 deviate by name, 0 wrong"):
        assert part in summary, summary


@pytest.mark.parametrize("name", ["convnet", "gqa_transformer"])
def test_sizes_of_a_sample_follow_from_its_inputs_alone(name, tmp_path):
    model = onnx.load(SAMPLES / f"{name}.onnx", load_external_data=False)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.ClearField("type")
    onnx.save(model, tmp_path / "bare.onnx")
    ours, theirs = analyze(tmp_path / "bare.onnx"), analyze(SAMPLES / f"{name}.pt2")
    assert ours.diagnostics == ()
    given = {symbol_ for symbol_, info in ours.symbols.items() if info.where}
    sizes = [size for row in ours.rows for value in row.outputs for size in value.type.shape]
    assert {name for size in sizes if isinstance(size, Expr) for name in size.symbols} == given
    by_place = {place: name for name, info in ours.symbols.items() for place in info.where}
    renamed = {name: symbol(by_place[info.where[0]]) for name, info in theirs.symbols.items()}
    flops = theirs.total().matrix_flops
    assert ours.total().matrix_flops == (flops.substitute(renamed) if isinstance(flops, Expr) else flops)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited in Linux's way")
def test_models_changed_at_random_are_analyzed_or_refused_in_one_line(capsys):
    pytest.importorskip("onnxruntime")
    from tests.oracle import onnx_fuzz

    code = onnx_fuzz.main(["--models", "250", "--seconds", "60"])
    printed = capsys.readouterr().out
    assert printed.endswith(" 0 wrong in 0 ways\n"), printed
    assert code == 0
