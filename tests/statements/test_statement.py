"""The compute statement: FLOPs by convention and stage, hours, utilisation, energy, thresholds, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import Training, analyze, load, statement
from graphflops.attention.attention_use import causal_fraction
from graphflops.cli import main
from graphflops.devices import device
from graphflops.errors import ModelError, OptionError
from graphflops.render.statement import facts
from graphflops.report import Report
from graphflops.statements.statement import Stage, Statement, number_of_tokens

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
DECODER = SAMPLES / "gqa_transformer.pt2"
# samples/make.py: 4 blocks of width 64 with 4 query heads of 16, one key head, a gated layer of 192; 256 tokens; the
# embedding is the output projection.
MATRICES = 4 * (64 * 64 + 64 * 32 + 64 * 64 + 3 * 64 * 192)
N = MATRICES + 64 * 256  # parameters that a token is multiplied by
ALL = N + 4 * 2 * 64 + 64  # and the scales of the norms
LENGTH = 16
ATTENTION = 4 * (2 * 2 * LENGTH * 64)  # of a token: two products with all keys, in each block
SEEN = (LENGTH + 1) / 2 / LENGTH  # of the pairs, below a diagonal that is seen too
TRILLION = 10**12
SIMPLE = 6 * ALL * TRILLION  # 6ND of the sample and a trillion tokens


def of(stage: str, found: Statement) -> Any:
    return next(one.flops for one in found.stages if one.name == stage)


def test_conventions_of_a_token() -> None:
    found = statement(DECODER, "1T").flops
    assert found.model == TRILLION * (6 * N + 3 * ATTENTION * SEEN)
    assert found.executed == TRILLION * (
        6 * N + 3.5 * ATTENTION
    )  # one tile of 128 has all pairs; scores again
    assert found.six_nd == SIMPLE
    assert found.six_nd_attention == SIMPLE + TRILLION * 3 * ATTENTION


def test_kernels_skip_tiles_that_a_causal_mask_hides_whole() -> None:
    found = statement(DECODER, "1T", length=512).flops
    attention = ATTENTION * 512 // LENGTH
    assert found.model == TRILLION * (6 * N + 3 * attention * (513 / 2 / 512))
    assert found.executed == TRILLION * (
        6 * N + 3.5 * attention * 10 / 16
    )  # 4 x 4 tiles, of which 10 are run


def test_recomputation_is_executed_and_no_model_flops() -> None:
    plain, again = (
        statement(DECODER, "1T"),
        statement(DECODER, "1T", training=Training(recompute=("blocks.*",))),
    )
    assert again.flops.model == plain.flops.model
    # The last product of a block keeps nothing for its gradient: down to the projection of 192 to 64.
    assert again.flops.executed - plain.flops.executed == TRILLION * (
        2 * (MATRICES - 4 * 64 * 192) + ATTENTION
    )


def test_adapters_cost_four_of_a_frozen_parameter_and_six_of_their_own() -> None:
    found = statement(DECODER, "1T", training=Training(lora_rank=8, lora_modules=("q",)))
    assert [one.name for one in found.stages] == ["adapters"]
    adapters = 4 * 8 * (64 + 64)
    assert found.flops.six_nd == TRILLION * (4 * (ALL + adapters) + 2 * adapters)
    # The first block's query layer has nothing trained before it: its input wants no gradient, nor do key and value.
    assert (
        TRILLION * 3.9 * N
        < found.flops.model - TRILLION * 3 * ATTENTION * SEEN
        < TRILLION * (4 * N + 6 * adapters)
    )
    frozen = statement(
        DECODER, "1T", training=Training(lora_rank=8, lora_modules=("q",), recompute=("blocks.*",))
    )
    assert frozen.flops.model == found.flops.model < found.flops.executed < frozen.flops.executed


def test_stages_add_up_and_evaluation_does_not_count() -> None:
    stages = (
        "pre-training/long:500B:64", "fine-tuning:1B", "teacher:1B", "generation:2B:32", "evaluation:3B",
    )  # fmt: skip
    found = statement(DECODER, "1T", stages=stages, length=16, inference_tokens="9B")
    names = [
        "pre-training",
        "pre-training/long",
        "fine-tuning",
        "teacher",
        "generation",
        "evaluation",
        "inference",
    ]
    assert [one.name for one in found.stages] == names
    assert [one.length for one in found.stages] == [16, 64, 64, 64, 32, 32, 32]
    assert [one.counted for one in found.stages] == [True] * 5 + [False] * 2
    assert (
        found.flops.six_nd == SIMPLE + SIMPLE // 2 + 6 * ALL * 10**9 + 2 * ALL * 10**9 + 2 * ALL * 2 * 10**9
    )
    assert of("evaluation", found).six_nd == 2 * ALL * 3 * 10**9
    assert of("teacher", found).model == 10**9 * (2 * N + 4 * ATTENTION * (65 / 2 / 64))
    assert found.flops.model == sum(one.flops.model for one in found.stages[:5])


def test_updates_of_muon_are_executed_once_a_batch() -> None:
    plain = statement(DECODER, "1M", training=Training(optimizer="muon"))
    found = statement(DECODER, "1M", training=Training(optimizer="muon"), batch_tokens="300k")
    assert found.stages[0].updates == 4
    optimizer = analyze(DECODER, training=Training(optimizer="muon")).optimizer
    assert optimizer is not None
    assert found.flops.executed - plain.flops.executed == 4 * optimizer.cost.matrix_flops > 0
    assert any("--batch-tokens" in each for each in plain.assumptions)
    assert not any("--batch-tokens" in each for each in found.assumptions)


def test_utilisation_from_hours() -> None:
    peak = device("h100").matrix["float32"]
    found = statement(DECODER, "1T", hours=10, device="h100", devices=8)
    assert found.mfu == pytest.approx(found.flops.model / (10 * 3600 * 8 * peak))
    assert found.hfu == pytest.approx(found.flops.executed / (10 * 3600 * 8 * peak))
    assert (found.hours.low, found.hours.high, found.hours.basis) == (10, 10, "given")  # type: ignore[union-attr]
    assert found.energy_kwh is not None
    assert (found.energy_kwh.low, found.energy_kwh.high) == pytest.approx((80 * 0.7 * 0.7, 80 * 0.7 * 1.5))
    assert found.energy_kwh.basis == "predicted"
    assert any("energy is predicted" in each for each in found.assumptions)


def test_hours_are_predicted_without_any_given() -> None:
    found = statement(DECODER, "1T", device="h100", devices=8)
    step = analyze(DECODER, training=True, device="h100").step_time
    assert step is not None
    assert found.hours is not None
    assert found.hours.basis == "predicted"
    runs = TRILLION / 32 / 8 / 3600
    assert (found.hours.low, found.hours.high) == pytest.approx((step.low * runs, step.high * runs))
    assert found.mfu is None
    assert any("hours are predicted" in each for each in found.assumptions)
    four = Training(accumulate=4)  # micro-steps, each of 32 tokens
    step = analyze(DECODER, training=four, device="h100").step_time
    found = statement(DECODER, "1T", training=four, device="h100", devices=8)
    assert found.hours is not None
    assert step is not None
    assert (found.hours.low, found.hours.high) == pytest.approx((step.low * runs / 4, step.high * runs / 4))


def test_nothing_is_predicted_without_a_device() -> None:
    found = statement(DECODER, "1T", hours=10)
    assert (found.mfu, found.energy_kwh) == (None, None)
    assert statement(DECODER, "1T", kwh=5).energy_kwh.basis == "given"  # type: ignore[union-attr]
    assert statement(DECODER, "1T").hours is None


def test_a_device_without_a_power_limit_has_no_energy() -> None:
    found = statement(DECODER, "1T", hours=100, device="tpu-v5e", devices=8)
    assert (found.energy_kwh, found.mfu) == (None, None)  # nor is a peak for float32 published
    assert any("energy is not known" in each for each in found.assumptions)
    assert any("utilisation is not known" in each for each in found.assumptions)
    assert statement(
        DECODER, "1T", training=Training(precision="bf16"), hours=100, device="tpu-v5e", devices=8
    ).mfu


@pytest.mark.parametrize(
    "count, standings",
    [
        ("10000T", ["below", "below", "below", "below"]),  # 1.3e22
        ("79000T", ["between", "below", "below", "below"]),  # 9.91e22 model FLOPs, 1.02e23 executed
        ("8e9B", ["above", "above", "below", "below"]),  # 1.0e25
    ],
)
def test_thresholds(count: str, standings: list[str]) -> None:
    found = statement(DECODER, count)
    assert [one.standing for one in found.thresholds] == standings
    first = found.thresholds[0]
    assert first.share == found.flops.model / 1e23
    assert first.margin == 1e23 - found.flops.model
    assert f"{first.share:.3g} times the 1e23 FLOPs of Commission guidelines C(2025) 7719" in first.sentence


def test_each_threshold_has_a_source_and_a_day() -> None:
    for one in statement(DECODER, "1T", original=1e20).thresholds:
        assert one.threshold.source.startswith("https://")
        assert date.fromisoformat(one.threshold.read)
        assert one.threshold.in_force is None or date.fromisoformat(one.threshold.in_force)
        assert one.threshold.law in one.sentence


def test_a_modifier_stands_against_a_third_of_the_original() -> None:
    found = statement(DECODER, stages=["fine-tuning:1T"], original=3 * SIMPLE)
    by_name = {one.threshold.name: one for one in found.thresholds}
    third = by_name["EU: provider by modification"]
    assert third.flops == SIMPLE
    assert third.standing == "above"  # the model FLOPs are 6ND and attention, less the norms
    assert by_name["EU: systemic risk"].share == (3 * SIMPLE + found.flops.model) / 1e25
    unknown = {one.threshold.name: one for one in statement(DECODER, stages=["fine-tuning:1T"]).thresholds}
    assert [one.flops for name, one in unknown.items() if "modif" in name or "same" in name] == [
        1e23 / 3,
        1e25 / 3,
    ]
    assert unknown["EU: systemic risk"].standing == "not known"  # what the original took is not known


def test_unknown_work_makes_a_figure_at_least() -> None:
    graph = load(str(DECODER))
    nodes = [replace(node, op="mine.gate.default") if "silu" in node.op else node for node in graph.nodes]
    found = statement(replace(graph, nodes=tuple(nodes)), "1T")
    assert found.flops == statement(DECODER, "1T").flops
    assert found.at_least
    assert found.thresholds[0].standing == "not known"
    assert any("at least" in each and "mine.gate" in each for each in found.assumptions)
    assert found.summary().startswith("gqa_transformer.pt2: at least ")
    timed = statement(replace(graph, nodes=tuple(nodes)), "1T", device="h100")
    assert timed.hours is timed.energy_kwh is None  # who knows what the unknown calls take
    given = statement(replace(graph, nodes=tuple(nodes)), "1T", device="h100", hours=1e6)
    assert dict(facts(given))["MFU"].startswith("at least ")


@pytest.mark.parametrize(
    "text, count",
    [
        ("15T", 15 * 10**12),
        ("1.4 T", 14 * 10**11),
        ("800B", 8 * 10**11),
        ("2048 tokens", 2048),
        (5e9, 5 * 10**9),
    ],
)
def test_tokens(text: str | float, count: int) -> None:
    assert number_of_tokens(text) == count


@pytest.mark.parametrize(
    "text", ["15", "", "T", "15 Q", "-1T", "0T", "1e999T", "0.1 tokens", float("nan"), -3]
)
def test_tokens_refused(text: str | float) -> None:
    with pytest.raises(OptionError, match=r"has no unit|no number of tokens"):
        number_of_tokens(text)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--tokens", "15"], "'15' has no unit|15 has no unit: write 15T"),
        (["--tokens", "1T", "--hours", "0.1", "--device", "h100"], "imply an MFU of .*check the hours"),
        (["--tokens", "1T", "--stage", "tuning:1B"], "kinds are pre-training"),
        (["--tokens", "1T", "--stage", "fine-tuning"], "is not KIND:TOKENS"),
        (["--tokens", "1T", "--stage", "fine-tuning:1B:long"], "is not KIND:TOKENS"),
        (["--tokens", "1T", "--stage", "fine-tuning:1B:0"], "integers from 1 on"),
        (["--tokens", "1T", "--stage", "adapters:1B"], "need one another"),
        (["--lora", "8", "--stage", "fine-tuning:1B"], "need one another"),
        ([], "MODEL is not trained"),
        (["--stage", "teacher:1B"], "MODEL is not trained"),
        (["--stage", "fine-tuning:1B:16:gqa_transformer.pt2"], "MODEL is not trained"),
        (["--tokens", "1T", "--kwh", "-1"], "kwh is a number above zero"),
        (["--tokens", "1T", "--date", "23.11.2026"], "'23.11.2026' is no date"),
        (["--tokens", "1T", "--date", "20261123"], "'20261123' is no date"),
        (["--tokens", "1T", "--devices", "16"], "16 devices of which kind"),
        (["--tokens", "1T", "--carbon", "50"], "--carbon is of each kWh: give --kwh, or --device"),
        (
            ["--tokens", "1T", "--batch-tokens", "4T"],
            "--batch-tokens 4,000,000,000,000 is more than any stage",
        ),
        (["--tokens", "1T", "--stage", "fine-tuning/:1B"], "'fine-tuning/' is not KIND"),
        (
            ["--tokens", "1T", "--per", "ids[0]", "--length", "16"],
            "a length is of sequences, and ids.0. counts samples",
        ),
        (["--tokens", "1T", "--per", "rows[3]"], "no input has this axis"),
        (["--tokens", "1T", "--length", "16", "--dim", "ids[1]=32"], "is not the length of pre-training, 16"),
        (["--tokens", "1T", "--format", "spdx"], "--date and --supplier"),
        (["--tokens", "1T", "--device", "h1000"], "unknown device"),
        (["--tokens", "1T", "--stage", "teacher:1B:16:missing.pt2"], "missing.pt2"),
    ],
)
def test_contradictions_are_one_line(options: list[str], said: str) -> None:
    found = CliRunner().invoke(main, ["statement", str(DECODER), *options])
    assert found.exit_code in (1, 2)
    assert found.stdout == ""
    *usage, line = found.stderr.strip().splitlines()
    assert not any("Traceback" in each for each in usage)
    assert re.search(said, line), line


def test_a_stage_of_another_vocabulary_is_refused() -> None:
    other = ROOT / "tests/data/pt2/lm_dynamic-torch2.6.0.pt2"
    with pytest.raises(
        ModelError, match=r"has a vocabulary of 100, .* one of 256: a stage takes the tokens of"
    ):
        statement(DECODER, "1T", stages=[f"teacher:1B:16:{other}"])
    found = statement(
        DECODER, "1T", stages=[Stage("generation", 10**9, 16, load(str(other)))]
    )  # exchanged as text
    assert of("generation", found).six_nd == 2 * 10**9 * analyze(other).parameters


def test_a_program_without_tokens_says_what_to_count() -> None:
    with pytest.raises(ModelError, match=r"--per x\[0\]"):
        statement(SAMPLES / "convnet.pt2", "1B")
    images = statement(SAMPLES / "convnet.pt2", "1B", per="image[0]")
    assert images.flops.six_nd == 6 * images.used_parameters * 10**9
    assert images.stages[0].length is None


def test_a_program_with_its_gradients_is_refused() -> None:
    with pytest.raises(ModelError, match="holds its gradients already"):
        statement(SAMPLES / "training_step.pt2", "1B", per="image[0]")


def test_tiles_below_a_diagonal() -> None:
    assert causal_fraction(512, 512) == 10 / 16
    assert causal_fraction(100, 512) == 1 / 4  # one row of tiles
    assert causal_fraction(512, 100) == 1
    assert causal_fraction(640, 256) == (1 + 2 + 2 + 2 + 2) / 10
    assert causal_fraction(2**40, 2**40) == pytest.approx(0.5)  # in no time


def test_a_saved_report_is_of_one_way_of_running() -> None:
    trained = analyze(DECODER, training=True)
    assert statement(trained, "1T").flops == statement(DECODER, "1T").flops
    for report, options in (
        (analyze(DECODER), {}),
        (trained, {"inference_tokens": "1T"}),
        (trained, {"training": Training(lora_rank=8)}),
    ):
        with pytest.raises(ModelError, match="this stage of another: give the model itself"):
            statement(report, "1T", **options)  # type: ignore[arg-type]
    taught = statement(DECODER, "1T", stages=[Stage("teacher", 10**9, 16, analyze(DECODER))])
    assert of("teacher", taught) == of("evaluation", statement(DECODER, "1T", stages=["evaluation:1B:16"]))


def test_a_saved_file_does_not_tell_which_parameters_are_trained() -> None:
    step = Training(lora_rank=8)
    saved = Report.from_json(analyze(DECODER, training=step).to_json())
    with pytest.raises(ModelError, match="tells not which parameters are trained"):
        statement(saved, "1T", training=step)
    whole = Report.from_json(analyze(DECODER, training=True).to_json())
    assert statement(whole, "1T").flops == statement(DECODER, "1T").flops


def test_a_parameter_that_the_file_freezes_has_four() -> None:
    graph = load(str(DECODER))
    table = next(entry.name for entry in graph.inputs if entry.target == "embedding.weight")
    frozen = replace(graph, types={**graph.types, table: replace(graph.types[table], requires_grad=False)})
    assert statement(frozen, "1T").flops.six_nd == SIMPLE - 2 * 64 * 256 * TRILLION


def test_emissions_and_samples_are_told() -> None:
    found = statement(SAMPLES / "convnet.pt2", "1B", per="image[0]", kwh=120, carbon=50)
    assert found.co2_kg is not None
    assert (found.co2_kg.low, found.co2_kg.high, found.co2_kg.basis) == (6, 6, "given")
    text = found.summary()
    assert "CO2 equivalent in kg: 6 (given)" in text
    assert "per sample" in text
    assert "token" not in text.split("Assumed")[0]
    assert statement(DECODER, "1T", kwh=120).co2_kg is None
