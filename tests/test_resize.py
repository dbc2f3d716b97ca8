"""A saved report evaluated at other sizes is what the model itself gives at these sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import analyze, check, compare
from graphflops.errors import ModelError, OptionError
from graphflops.report import Report

SAMPLES = Path(__file__).parents[1] / "samples"
TRANSFORMER = SAMPLES / "gqa_transformer.pt2"


def saved(tmp_path: Path, name: str, **options: object) -> Path:
    path = tmp_path / "report.json"
    analyze(SAMPLES / name, **options).save(path)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("name", ["gqa_transformer.pt2", "gqa_transformer.onnx"])
@pytest.mark.parametrize("sizes", [(1, 3), (5, 77), (2, 2048)])
def test_the_whole_report_is_that_of_the_model(tmp_path: Path, name: str, sizes: tuple[int, int]) -> None:
    dims = {"ids[0]": sizes[0], "ids[1]": sizes[1]}
    again = analyze(saved(tmp_path, name), dims=dims)
    assert Report.from_json(again.to_json()) == Report.from_json(analyze(SAMPLES / name, dims=dims).to_json())
    assert again.totals.peak_node


def test_a_shape_gives_sizes_too(tmp_path: Path) -> None:
    path = saved(tmp_path, "gqa_transformer.pt2")
    assert analyze(path, inputs={"ids": (3, 40)}) == analyze(path, dims={"ids[0]": 3, "ids[1]": 40})


def test_a_training_step(tmp_path: Path) -> None:
    path, dims = saved(tmp_path, "gqa_transformer.pt2", training=True), {"ids[0]": 3, "ids[1]": 40}
    again, model = analyze(path, dims=dims).step(), analyze(TRANSFORMER, dims=dims, training=True).step()
    assert again == model
    assert again is not None
    assert isinstance(again.peak_bytes, int)


def test_one_size_leaves_the_other_open(tmp_path: Path) -> None:
    again = analyze(saved(tmp_path, "gqa_transformer.onnx"), dims={"ids[0]": 3})
    assert (
        again.total().matrix_flops
        == analyze(SAMPLES / "gqa_transformer.onnx", dims={"ids[0]": 3}).total().matrix_flops
    )
    assert again.value(again.total().matrix_flops) == again.value(analyze(again).total().matrix_flops)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"ids[2]": 4}, r"ids has 2 axes"),
        ({"length": 4}, "no such size"),
        ({"u_7": 4}, "u_7"),
        ({"image[2]": 16}, "no such size"),
    ],
)
def test_what_a_report_does_not_hold_open_is_an_error(
    tmp_path: Path, dims: dict[str, int], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        analyze(saved(tmp_path, "gqa_transformer.pt2"), dims=dims)
    assert "\n" not in str(raised.value)


def test_a_fixed_axis_is_an_error_and_its_own_size_is_none(tmp_path: Path) -> None:
    path = saved(tmp_path, "convnet.pt2")
    shape = analyze(path).inputs[0].type.shape
    assert analyze(path, inputs={"image": shape}) == analyze(path)  # type: ignore[dict-item]
    with pytest.raises(ModelError, match=r"image\[0\] is \d+ in the report, which does not hold it open"):
        analyze(path, dims={"image[0]": 99})


def test_a_size_that_was_given_is_fixed(tmp_path: Path) -> None:
    (name, _) = next((n, i) for n, i in analyze(TRANSFORMER).symbols.items() if "ids[1]" in i.where)
    path = saved(tmp_path, "gqa_transformer.pt2", dims={name: 32})
    with pytest.raises(ModelError, match=f"{name} is 32 in the report, which does not hold it open"):
        analyze(path, dims={name: 64})
    with pytest.raises(ModelError, match=r"ids\[1\] is 32 in the report"):
        analyze(path, dims={"ids[1]": 64})


def test_a_size_outside_of_the_export_is_said(tmp_path: Path) -> None:
    again = analyze(saved(tmp_path, "gqa_transformer.pt2"), dims={"ids[1]": 5000})
    assert [diagnostic.code for diagnostic in again.diagnostics] == ["GF106"]


@pytest.mark.parametrize("options", [{"training": True}, {"model_name": "m"}, {"masks": {"m": "causal"}}])
def test_other_options_need_the_model(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="is a saved report, which takes no"):
        analyze(saved(tmp_path, "convnet.pt2"), **options)  # type: ignore[arg-type]


def test_comparisons_and_budgets_take_reports_at_sizes(tmp_path: Path) -> None:
    path, dims = saved(tmp_path, "gqa_transformer.pt2"), {"ids[0]": 1, "ids[1]": 8}
    assert compare(path, TRANSFORMER, dims=dims).same
    report = analyze(path, dims=dims)
    assert not check(report, {"matrix_flops": report.value(report.total().matrix_flops)}).broken


def test_predicted_times_hold_at_their_sizes_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, "gqa_transformer.pt2", device="h200", training=True)
    same = analyze(path)
    assert same.totals.time is not None
    assert same.step_time is not None
    other = analyze(path, dims={"ids[1]": 128})
    assert (other.device, other.totals.time, other.step_time) == ("", None, None)
    assert all(row.time is None and row.backward_time is None for row in other.rows)
    assert other.memory_use
