"""FLOPs of a token by convention, and the utilisation of a measured step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops import Training, analyze, mfu
from graphflops.cli import main
from graphflops.devices import device
from graphflops.errors import ModelError
from graphflops.render.derived import per_item

ROOT = Path(__file__).parents[1]
DECODER = ROOT / "samples" / "gqa_transformer.pt2"
# samples/make.py: 4 blocks of width 64 with 4 query heads of 16, one key head, a gated layer of 192; 256 tokens.
BLOCK = 64 * 64 + 64 * 32 + 64 * 64 + 3 * 64 * 192
N = 4 * BLOCK + 64 * 256
LENGTH, BATCH = 16, 2
ATTENTION = 4 * (2 * 2 * LENGTH * 64)  # of a token: two products with all keys, in each block
PEAK = 67e12  # of an H200 in float32


def test_a_token_of_a_decoder() -> None:
    found = analyze(DECODER).per("ids[1]")
    assert (found.items, found.active_parameters, found.parameters) == (LENGTH * BATCH, N, N)
    assert found.forward.dense == found.forward.active == found.forward.total == 2 * N + ATTENTION
    seen = (LENGTH + 1) / 2 / LENGTH  # of the pairs, below a diagonal that is seen too
    assert found.forward.visible == 2 * N + ATTENTION * seen
    assert found.training.active == 3 * (2 * N + ATTENTION)


def test_a_sample_is_all_of_its_tokens() -> None:
    report = analyze(DECODER)
    assert report.per("ids[0]").forward.dense == LENGTH * report.per("ids[1]").forward.dense


def test_gradients_count_as_they_run() -> None:
    step = analyze(DECODER, training=True).per("ids[1]").training
    assert step.dense == 6 * N + 3.5 * ATTENTION  # fused: the scores are computed again
    assert step.active == 6 * N + 3 * ATTENTION


@pytest.mark.parametrize("option", [{"accumulate": 4}, {"optimizer": "muon"}])
def test_micro_steps_and_optimizers_add_nothing_to_a_token(option: dict[str, object]) -> None:
    step = analyze(DECODER, training=Training(**option)).per("ids[1]")  # type: ignore[arg-type]
    assert step == analyze(DECODER, training=True).per("ids[1]")


def test_utilisation() -> None:
    needed = LENGTH * BATCH * (6 * N + 3 * ATTENTION)
    assert device("h200").matrix["float32"] == PEAK
    plain = analyze(DECODER, training=True)
    assert mfu(plain, 0.001, "h200") == pytest.approx(needed / 0.001 / PEAK)
    assert mfu(plain, 0.001, "h200", devices=8) == pytest.approx(needed / 0.001 / PEAK / 8)
    hidden = LENGTH * BATCH * 3 * ATTENTION * (1 - (LENGTH + 1) / 2 / LENGTH)
    assert mfu(plain, 0.001, "h200", visible=True) == pytest.approx((needed - hidden) / 0.001 / PEAK)
    assert mfu(analyze(DECODER), 0.001, "h200") == pytest.approx(needed / 3 / 0.001 / PEAK)


def test_what_is_computed_again_is_no_work_of_the_model() -> None:
    plain = mfu(analyze(DECODER, training=True), 0.001, "h200")
    assert mfu(analyze(DECODER, training=Training(recompute=("blocks.*",))), 0.001, "h200") == plain


def test_a_step_has_all_of_its_micro_steps() -> None:
    plain = mfu(analyze(DECODER, training=True), 0.001, "h200")
    assert mfu(analyze(DECODER, training=Training(accumulate=4)), 0.004, "h200") == plain


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"no input has this axis; there are ids\[0\], ids\[1\]"):
        analyze(DECODER).per("ids[2]")


def test_a_table_of_it_and_its_json() -> None:
    arguments = ["analyze", str(DECODER), "--per", "ids[1]"]
    table = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"}).stdout
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80
    rows = json.loads(CliRunner().invoke(main, [*arguments, "--format", "json"]).stdout)
    assert rows[0] == {
        "per entry of ids[1]": "dense",
        "forward": 2 * N + ATTENTION,
        "training": 3 * (2 * N + ATTENTION),
        "what is counted": "matrix FLOPs, those that masks hide too",
    }


def test_time_of_a_token_on_a_device() -> None:
    step = analyze(DECODER, device="h200", training=Training(accumulate=2))
    assert step.totals.time is not None
    assert step.step_time is not None
    found = step.per("ids[1]")
    assert found.seconds == pytest.approx(step.totals.time.seconds / (BATCH * LENGTH))
    assert found.step_seconds == pytest.approx(step.step_time.seconds / (2 * BATCH * LENGTH))
    assert analyze(DECODER).per("ids[1]").seconds is None
    arguments = ["analyze", str(DECODER), "--per", "ids[1]", "--device", "h200"]
    table = CliRunner().invoke(main, arguments).stdout
    assert any(line.split()[:1] == ["time"] and "µs" in line for line in table.splitlines())
    rows = json.loads(CliRunner().invoke(main, [*arguments, "--training", "--format", "json"]).stdout)
    (seconds,) = (row for row in rows if row["per entry of ids[1]"] == "seconds")
    assert 0 < seconds["forward"] < seconds["training"]


def test_a_price_takes_a_device() -> None:
    result = CliRunner().invoke(main, ["analyze", str(DECODER), "--price-per-hour", "3"])
    assert result.exit_code == 2
    assert "name a device with --device" in result.stderr


def test_options_of_other_tables_are_refused() -> None:
    for other in (["--top", "3"], ["--price-per-hour", "3"], ["--sweep", "ids[1]=2,4"], ["--strict"]):
        result = CliRunner().invoke(main, ["analyze", str(DECODER), "--per", "ids[1]", *other])
        assert (result.exit_code, other[0] in result.stderr) == (2, True)


def test_a_convolution_multiplies_an_image_by_a_weight_often() -> None:
    """A weight counts as often as it multiplies, in `active` and `total` alike; N counts it once."""
    report = analyze(ROOT / "samples" / "convnet.pt2")
    (image,) = report.inputs
    found = report.per(f"{image.name}[0]")
    assert found.forward.active == found.forward.total == found.forward.dense
    assert found.active_parameters == found.parameters <= report.parameters


def test_calls_of_unknown_cost_may_add_to_every_figure() -> None:
    report = analyze(DECODER)
    report = replace(report, coverage=replace(report.coverage, unknown=2))
    rows = {str(row[0]): row[1] for row in per_item(report.per("ids[1]"), exact=False).rows}
    assert rows.pop("unknown") == "2"
    assert rows.pop("items") == "32"
    assert all(str(figure).startswith(">= ") for figure in rows.values())


def test_an_onnx_file_counts_as_the_program_that_it_is_of() -> None:
    of_torch = analyze(DECODER, inputs={"ids": (BATCH, LENGTH)}).per("ids[1]")
    of_onnx = analyze(DECODER.with_suffix(".onnx"), inputs={"ids": (BATCH, LENGTH)}).per("ids[1]")
    assert of_onnx.forward == of_torch.forward
    assert of_onnx.active_parameters == N


def test_matrices_of_recurrent_layers_are_parameters() -> None:
    found = analyze(ROOT / "samples" / "lstm.pt2").per("x[1]")
    lstm = 2 * (128 * 16 + 128 * 32) + 2 * (
        128 * 64 + 128 * 32
    )  # two layers in both directions, 4 gates of 32
    assert found.parameters == lstm + 4 * 64
    assert found.active_parameters == round(lstm + 4 * 64 / 10)  # the head reads one step of ten


def test_a_weight_that_is_computed_from_stored_tensors_is_a_parameter() -> None:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(48, 32))
            self.scale = torch.nn.Parameter(torch.ones(48, 1))

        def forward(self, x: object) -> object:
            return torch.nn.functional.linear(x, self.weight * self.scale)

    found = analyze(torch.export.export(Scaled(), (torch.ones(5, 32),))).per("x[0]")
    assert found.parameters == found.active_parameters == 48 * 32
    assert found.forward.active == found.forward.dense == 2 * 48 * 32
