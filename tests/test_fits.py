"""Whether a program fits on a device: verdicts, the largest size, and what takes less memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops import analyze
from graphflops.cli import main
from graphflops.fitting.fits import fits, repeated_modules
from graphflops.render import formats
from graphflops.render.document import text as table
from tests.render.reports import with_unknown

SAMPLES = Path(__file__).parents[1] / "samples"
DECODER = SAMPLES / "gqa_transformer.pt2"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["fits", *arguments])
    return done.exit_code, done.output


def test_a_small_model_fits_with_a_margin() -> None:
    found = fits(DECODER, device="h200")
    (verdict,) = found.verdicts
    assert found.fits
    assert verdict.needed == found.entry.device_total
    assert verdict.margin == verdict.memory - verdict.needed > 0
    assert repr(found).startswith("<Fits yes: gqa_transformer.pt2 runs on NVIDIA H200")


def test_the_exit_code_says_no() -> None:
    code, text = run(str(DECODER), "--memory", "700MB", "--training")
    assert code == 3
    assert text.startswith("no: gqa_transformer.pt2 needs ")
    code, text = run(str(DECODER), "--memory", "900MB", "--training")
    assert code == 0
    assert text.startswith("yes: ")


@pytest.mark.parametrize("memory", ["1GB", "2GB"])
def test_the_largest_size_fits_and_one_more_does_not(memory: str) -> None:
    found = fits(SAMPLES / "convnet.pt2", memory=memory, vary="image[0]", training=True)
    (verdict,) = found.verdicts
    assert verdict.largest
    assert not verdict.is_bounded
    batch = {"image": (verdict.largest, *analyze(SAMPLES / "convnet.pt2").inputs[0].type.shape[1:])}
    assert fits(SAMPLES / "convnet.pt2", memory=memory, inputs=batch, training=True).fits
    batch = {"image": (verdict.largest + 1, *batch["image"][1:])}
    assert not fits(SAMPLES / "convnet.pt2", memory=memory, inputs=batch, training=True).fits


def test_the_range_of_the_model_bounds_the_largest_size() -> None:
    (verdict,) = fits(DECODER, device="h200", vary="ids[0]").verdicts
    assert (verdict.largest, verdict.is_bounded) == (64, True)


def test_nothing_fits_in_less_than_the_driver_takes() -> None:
    code, text = run(str(DECODER), "--memory", "500MB", "--vary", "ids[0]")
    assert code == 3
    assert "at any ids[0]" in text


def test_all_devices_are_a_line_each() -> None:
    code, text = run(str(DECODER), "--all-devices")
    assert code == 0
    assert "NVIDIA H200" in text
    assert "NVIDIA L4" in text
    assert "TPU" not in text, "PyTorch's CUDA allocator does not run there"


def test_changes_that_take_less_are_named_with_their_figure() -> None:
    code, text = run(
        str(DECODER), "--memory", "1GB", "--training", "--dim", "ids[0]=64", "--dim", "ids[1]=1024"
    )
    assert code == 3
    assert "--accumulate 2 --dim 'ids[0]=32'" in text


def test_json_has_every_figure() -> None:
    code, text = run(str(DECODER), "--device", "h200", "--format", "json")
    data = json.loads(text)
    assert code == 0
    assert data["fits"] is True
    assert data["memory"]["device_total"] == data["devices"][0]["needed"]


def test_a_saved_report_with_a_device_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_bytes(analyze(DECODER, device="h200").to_json())
    assert run(str(path), "--memory", "2GB")[0] == 0
    path.write_bytes(analyze(DECODER).to_json())
    code, text = run(str(path), "--memory", "2GB")
    assert code == 2
    assert "save it with --device" in text


@pytest.mark.parametrize("given", [[], ["--memory", "much"], ["--all-devices", "--device", "h200"]])
def test_wrong_options_are_wrong_usage(given: list[str]) -> None:
    assert run(str(DECODER), *given)[0] == 2


def test_lists_of_equal_modules_are_what_is_recomputed() -> None:
    modules = {
        "": "M",
        "layers": "List",
        "layers.0": "B",
        "layers.1": "B",
        "layers.0.f.0": "L",
        "layers.0.f.1": "L",
    }
    assert repeated_modules(modules) == ["layers.*"]


def test_what_an_unknown_call_needs_is_not_taken_for_nothing() -> None:
    found = fits(DECODER, device="h200")
    found = replace(found, report=with_unknown(found.report))
    text = table(found)
    assert text.startswith(
        "yes, as far as is known: gqa_transformer.pt2 runs on NVIDIA H200 SXM (150.1 GB) in >= "
    )
    assert (
        "the memory that these need beside their operands is unknown: my.fused.default, my.other.default"
        in text
    )
    amounts = {line[2:21].strip(): line[21:].strip() for line in text.splitlines() if line.startswith("  ")}
    for entry in ("activations", "requested peak", "total on the device"):
        assert amounts[entry].startswith(">= ")
    assert not amounts["weights"].startswith(">= ")
    said = json.loads(formats.render(found, "json"))
    assert said["fits"]
    assert said["is_lower_bound"]
    assert said["unknown_operators"] == {"my.fused.default": 2, "my.other.default": 1}
    varied = fits(DECODER, device="h200", vary="ids[0]")
    varied = replace(varied, report=with_unknown(varied.report))
    (line,) = [line for line in table(varied).splitlines() if line.startswith("  activations")]
    assert line.split()[1] == ">="


def test_strict_takes_no_yes_that_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fits(DECODER, device="h200")
    for given, code in ((found, 0), (replace(found, report=with_unknown(found.report)), 3)):
        monkeypatch.setattr("graphflops.fitting.fits.fits", lambda *_, given=given, **__: given)
        done = CliRunner().invoke(main, ["fits", str(DECODER), "--device", "h200", "--strict"])
        assert done.exit_code == code
        assert CliRunner().invoke(main, ["fits", str(DECODER), "--device", "h200"]).exit_code == 0


def test_an_open_axis_beside_the_varied_one_keeps_its_value(tmp_path: Path) -> None:
    """Images of N x 3 x 32 x 32, of which the height is varied."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Conv2d(3, 4, 3, padding=1, device="meta")
    sizes = {"input": {0: torch.export.Dim("n", min=2)}}
    given = (torch.zeros(2, 3, 32, 32, device="meta"),)
    program = torch.export.export(module, given, dynamic_shapes=sizes)
    found = fits(program, memory="2GB", vary="input[2]")
    largest = found.verdicts[0].largest
    assert largest is not None
    assert largest > 32


def test_figures_of_another_device_are_said_to_be_so() -> None:
    code, text = run(str(DECODER), "--device", "a100")
    assert code == 0
    assert "the memory of the driver" in text
    assert "not known for NVIDIA A100 SXM 80 GB" in text
    assert "not known" not in run(str(DECODER), "--device", "h200")[1]


@pytest.mark.parametrize("more", [[], ["--memory", "1MB"], ["--training", "--memory", "1MB"]])
def test_the_memory_of_a_driver_that_is_not_known_is_not_taken_for_nothing(more: list[str]) -> None:
    _, text = run(str(DECODER), "--device", "tpu-v5e", "--format", "json", *more)
    said = json.loads(text)
    assert said["is_lower_bound"]
    assert (said["memory"]["context"], said["memory"]["device_total"]) == (None, None)
    assert "does not run PyTorch's CUDA kernels" in run(str(DECODER), "--device", "tpu-v5e", *more)[1]
