"""Copies of a decoder on several devices: those of one device each, and those that share its layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from graphflops import fits, serve
from graphflops.cli import main
from graphflops.errors import OptionError
from graphflops.serving.plan import replicas
from tests.serving.test_serve import HEADS, programs

__all__ = ["programs"]
CONTEXT = 1000


def test_all_copies_make_what_one_makes_times_their_number(programs: tuple[Path, Path]) -> None:
    served = replicas(
        programs[0], devices=8, device="h100", context=[CONTEXT], tpot="1ms", price_per_hour=2.0
    )
    found = served.ways
    assert {(one.count, one.each) for one in found} == {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert [one.tokens_per_second for one in found] == sorted(
        (one.tokens_per_second for one in found), reverse=True
    )
    for one in found:
        plan = serve(
            programs[0], devices=one.each, device="h100", context=[CONTEXT], tpot="1ms", price_per_hour=2.0
        )
        ((_, load),) = plan.loads
        assert one.cell == load is not None
        assert one.requests == one.count * load.batch
        assert one.tokens_per_second == one.count * load.tokens_per_second  # type: ignore[operator]
        # the price of a token is that of all devices' hours
        assert load.price == pytest.approx(8 * 2.0 / 3600 / one.tokens_per_second * 1e6)
    (alone,) = [one for one in found if one.each == 2 * HEADS]
    assert alone.said.endswith("products run whole on each device")


def test_as_many_as_fit_without_limits(programs: tuple[Path, Path]) -> None:
    (one,) = replicas(programs[0], devices=1, device="h100", context=[CONTEXT]).ways
    ((_, most),) = serve(programs[0], device="h100", context=[CONTEXT], batch=[1]).requests
    assert one.requests == most


def test_what_does_not_serve_says_why(programs: tuple[Path, Path]) -> None:
    found = replicas(programs[0], devices=7, device="h100", context=[CONTEXT], tpot="1ns").ways
    assert {one.each: one.said for one in found}[1] == "no request keeps the limits"
    assert {one.each: one.said for one in found}[7].startswith("nothing can be split over 7 devices")
    with pytest.raises(OptionError, match="--devices 0"):
        replicas(programs[0], devices=0, device="h100")


def test_a_file_with_both_phases_fits_if_both_do(programs: tuple[Path, Path], tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    phases = dict(zip(("decode", "prefill"), map(torch.export.load, programs), strict=True))
    file = tmp_path / "both phases.pt2"
    package_pt2(file, exported_programs=phases)
    found, step, prompt = (fits(path, device="l4") for path in (file, *programs))
    assert [one.verdicts for one in found.phases.values()] == [step.verdicts, prompt.verdicts]
    assert found.verdicts[0].needed == max(step.verdicts[0].needed, prompt.verdicts[0].needed)
    assert found.requests == step.requests != ()
    told = CliRunner().invoke(main, ["fits", str(file), "--device", "l4"])
    assert (told.exit_code, told.output.count("  decode at "), told.output.count("  prefill at ")) == (
        0,
        1,
        1,
    )
    refused = CliRunner().invoke(main, ["fits", str(file), "--device", "l4", "--training"])
    assert (refused.exit_code, "choose one, as in --model decode" in refused.output) == (1, True)


def test_from_the_command_line(programs: tuple[Path, Path]) -> None:
    given = ["plan", str(programs[0]), "--devices", "2", "--device", "h100"]
    chosen = [*given, "--serve", "--context", str(CONTEXT), "--prefill", str(programs[1]), "--ttft", "1s"]
    done = CliRunner().invoke(main, [*chosen, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert '"said"' in done.stdout
    shown = CliRunner().invoke(main, [*chosen, "--price-per-hour", "2"]).stdout
    assert shown.startswith(f"{programs[0].name} on 2 x NVIDIA H100 SXM: at 1,000 tokens 2 x tp=1 makes ")
    assert "price of 1 M tokens" in shown
    assert "tokens/s (price of 1 M: " in shown.splitlines()[0]
    assert "prices are in the currency of --price-per-hour" in shown
    page = CliRunner().invoke(main, [*chosen, "--format", "html"]).stdout
    assert f"<h1>{programs[0].name}: copies</h1>" in page
    found = json.loads(done.stdout)
    assert [found[name] for name in ("schema", "device", "devices")] == [1, "NVIDIA H100 SXM", 2]
    assert {(one["replicas"], one["devices"]) for one in found["layouts"]} == {(2, 1), (1, 2)}
    assert found["notes"]
    refused = CliRunner().invoke(main, [*given, "--tpot", "1ms"])
    assert (refused.exit_code, "--tpot is of requests" in refused.output) == (2, True)
    refused = CliRunner().invoke(main, [*given, "--serve", "--loss", "sum"])
    assert (refused.exit_code, "--loss is of a training step" in refused.output) == (2, True)
