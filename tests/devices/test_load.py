"""Profiles of devices: found by name, read from a user's file, refused with one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graphflops.devices
from graphflops import analyze
from graphflops.devices import Device, complete, device, names, published
from graphflops.errors import FileError, OptionError

H200 = {"name": "mine", "aliases": [], "memory_bytes": 10, "bandwidth": 4.8e12, "matrix": {}, "sources": {}}


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "nvidia h200 sxm", "H200-SXM"])
def test_a_device_has_several_names(name):
    assert device(name).name == "NVIDIA H200 SXM"


def test_an_unknown_device_is_refused_with_those_that_are_known():
    with pytest.raises(OptionError, match=r"^h300: unknown device; known: h100, h200, a100, .*rtx4090"):
        device("h300")


def test_no_two_devices_share_a_name():
    found = [name.lower() for one in published() for name in {one.name, *one.aliases}]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("name", names())
def test_every_figure_has_a_source(name):
    known = device(name)
    plain = {"name", "kind", "aliases", "sources", "calibration", "rates"}
    figures = {
        field for field in Device.__struct_fields__ if getattr(known, field) not in (None, (), {}, "", 1.0)
    } - plain
    assert figures <= set(known.sources)
    assert all(source for source in known.sources.values())


@pytest.mark.parametrize("name", ["h100", "h200", "a100", "l4", "l40s", "mi300x", "rtx4090"])
def test_peaks_follow_from_lanes_and_clock(name):
    """A multiprocessor has 128 float32 lanes (an A100's 64), each of which multiplies and adds once a cycle."""
    known = device(name)
    lanes = 64 if name == "a100" else 128
    assert 2 * lanes * known.multiprocessors * known.clock_hz == pytest.approx(known.vector, rel=0.01)


def test_a_device_that_was_not_measured_has_the_constants_of_another():
    assert device("l4").rates_of == "h200"
    assert device("l4").rates == device("h200").rates


@pytest.mark.parametrize("name", names())
def test_a_profile_is_small(name):
    assert (Path(graphflops.devices.__path__[0]) / f"{name}.json").stat().st_size < 120_000
    assert all(len(one.points) <= 300 for one in device(name).calibration)


def test_a_profile_of_ones_own_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(H200))
    assert device(str(path)).bandwidth == 4.8e12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a profile of a device"),
        ("[]", "Expected `object`"),
        (json.dumps({**H200, "bandwidth": 0}), "bandwidth"),
        (json.dumps({**H200, "matrix": {"float32": -1}}), "matrix"),
        (json.dumps({**H200, "memory_bytes": "80 GB"}), "memory_bytes"),
        (" " * 1_000_001, "larger than any profile of a device: at most 1,000,000 bytes"),
    ],
)
def test_a_damaged_profile_is_one_line(tmp_path, text, message):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as error:
        device(str(path))
    assert "\n" not in str(error.value)


def test_a_profile_that_is_written_again_is_read_again(tmp_path):
    path = tmp_path / "mine.json"
    for size in (10, 20):
        path.write_text(json.dumps({**H200, "memory_bytes": size}))
        assert device(str(path)).memory_bytes == size


def test_a_profile_that_is_not_there_says_so(tmp_path):
    with pytest.raises(FileError, match=r"none.json: no such profile of a device$"):
        device(str(tmp_path / "none.json"))


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v6e"])
def test_the_driver_of_what_is_no_gpu_is_unknown_and_it_has_no_workspaces(name):
    assert (complete(device(name)).context_bytes, complete(device(name)).blas_workspace_bytes) == (None, 0)
    assert complete(device("l4")).context_bytes == device("h200").context_bytes


def test_a_profile_without_constants_of_a_model_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**H200, "rates": {"matmul": {"floor": 3.0}}}))
    with pytest.raises(FileError, match=r"rates\['matmul'\] has no epilogue"):
        device(str(path))


def test_what_the_profiles_hold_is_accepted_in_ones_own(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes((Path(graphflops.devices.__path__[0]) / "h200.json").read_bytes())
    assert device(str(path)) == device("h200")


def test_costs_of_the_host_that_a_profile_lacks_are_those_of_an_h200(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**H200, "host": {"seconds": {"forward.call": 1.0}}}))
    own, reference = complete(device(str(path))).host, device("h200").host
    assert own.seconds == {**reference.seconds, "forward.call": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"bandwidth": 1e300},
        {"bandwidth": 1e-300},
        {"memory_bytes": 10**40},
        {"multiprocessors": 2**40},
        {"matrix": {"float32": 0}},
        {"rates": {"copy": {"floor": 1e300}}},
        {"launch": {"graph_seconds": -1}},
        {"family_ratios": {"other": 1e300}},
        {"calibration": [{"points": []}]},
    ],
)
def test_absurd_figures_are_refused(wrong, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**H200, **wrong}))
    with pytest.raises(FileError, match="not a profile of a device"):
        device(str(path))


def test_a_nested_profile_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(FileError, match="not a profile of a device"):
        device(str(path))


def test_a_tpu_runs_whole_programs() -> None:
    report = analyze(Path(__file__).parents[2] / "samples" / "convnet.pt2", device="tpu-v5e")
    assert report.execution == "graph"


def test_a_device_of_which_no_program_was_measured_has_the_wider_interval() -> None:
    widths = {}
    for name in ("h200", "h100", "a100", "mi300x", "tpu-v5e"):
        time = analyze(Path(__file__).parents[2] / "samples" / "convnet.pt2", device=name, execution="graph")
        assert time.totals.time is not None
        widths[name] = time.totals.time.high / time.totals.time.seconds
    assert list(widths) == sorted(widths, key=widths.__getitem__)
    assert widths["mi300x"] > 2


def test_a_profile_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(b'{"name\x98": 1}')
    with pytest.raises(FileError, match="not a profile of a device"):
        device(str(path))
