"""Measuring this machine: the command, the file that it writes, and errors that say what to do."""

from __future__ import annotations

import statistics
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import graphflops
from graphflops.cli import main
from graphflops.commands.validate import profile as command
from graphflops.devices import Host, device
from graphflops.kernels.kernel import Kernel, Product
from graphflops.runtime.profile import host, make
from graphflops.runtime.profile.host import host_benchmarks, scaled_host
from graphflops.runtime.profile.trial import CpuClock, CudaClock, spread
from graphflops.time.predict import modelled, predict
from graphflops.time.schedule import Clock as Schedule


@pytest.fixture(params=["torch", "onnxruntime"])
def written(request, tmp_path, monkeypatch):
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
    trials = make._trials
    small = [lambda kernel: kernel.flops < 1e7, lambda kernel: kernel.read_bytes < 1e6]
    monkeypatch.setattr(
        make,
        "_trials",
        lambda clock: [one for one in trials(clock) if all(test(one.kernel) for test in small)][:40],
    )
    monkeypatch.setattr(make, "host_benchmarks", partial(host_benchmarks, rounds=1))
    path = tmp_path / "mine.json"
    done = CliRunner().invoke(
        command,
        ["--device", "cpu", "--runtime", request.param, "--output", str(path)],
        catch_exceptions=False,
    )
    return path, done


def test_a_profile_of_this_cpu_can_be_used(written):
    path, done = written
    assert done.exit_code == 0
    assert "FLOP/s" in done.output
    assert path.stat().st_size < 120_000
    known = device(str(path))
    assert known.kind == "cpu"
    assert known.bandwidth > 1e7
    assert known.matrix["float32"] > 1e6
    sizes = Product(64, 64, 64)
    kernel = Kernel("matmul", "float32", 2 * 64**3, 0, 2 * 4 * 64**2, 4 * 64**2, sizes)
    assert 1e-8 < predict(kernel, known).seconds < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda", "--runtime", "onnxruntime", "--output", "x.json"], "measures the CPU"),
        (["--device", "cpu", "--base", "h200", "--output", "x.json"], "only with --host-only"),
        (["--device", "cpu", "--host-only", "--output", "x.json"], "name the one to complete by --base"),
        (["--device", "cpu", "--output", "x.txt"], "a profile is a .json file"),
        (["--device", "cpu"], "Missing option '-o' / '--output'"),
    ],
)
def test_wrong_usage_is_said(arguments, message):
    done = CliRunner().invoke(main, ["profile", *arguments])
    assert done.exit_code == 2
    assert message in done.output


def test_a_machine_without_a_gpu_is_one_line(capsys, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--output", str(tmp_path / "x.json")])
    assert ended.value.code == 1
    assert "torch finds no GPU on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (
            1e9,
            "The CUDA Graph is empty\n (in capture_end)",
            "failed, most of them with: The CUDA Graph is empty",
        ),
        (0.0, None, "0 of 1,016 kernels were measured in 0 s, no product and no elementwise kernel"),
    ],
)
def test_no_profile_is_written_where_too_little_was_measured(limit, error, message, tmp_path, monkeypatch):
    def seconds(clock, trial):
        if error and trial.kernel.family != "fft":
            raise RuntimeError(error)
        return trial.kernel.read_bytes * 1e-10

    monkeypatch.setattr(make, "_LIMIT", limit)
    monkeypatch.setattr(make, "_seconds", seconds)
    monkeypatch.setattr(make, "host_benchmarks", lambda kind: dict(device("h200").host.benchmarks))
    path = tmp_path / "mine.json"
    done = CliRunner().invoke(main, ["profile", "--device", "cpu", "--output", str(path)])
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not path.exists()


@pytest.mark.parametrize("used, said", [(45.0, True), (4.0, False)])
def test_a_profile_says_how_busy_the_machine_was(used, said, tmp_path, monkeypatch):
    readings = iter([(10.0, 100.0), (10.0 + used, 200.0)])
    monkeypatch.setattr(host, "_processor_seconds", lambda: next(readings))
    monkeypatch.setattr(make, "host_benchmarks", lambda kind: dict(device("h200").host.benchmarks))
    path = str(tmp_path / "mine.json")
    given = ["profile", "--device", "cpu", "--host-only", "--base", "h200", "--output", path]
    done = CliRunner().invoke(main, given)
    assert f"others     {used:.0f} % of the CPU\n" in done.output
    assert device(path).busy == {"cpu": used / 100}
    told = "was measured while other processes took 45 % of its CPU: times may be predicted too long"
    for use in (["analyze"], ["fits"], ["diff", "samples/lstm.pt2"]):
        answer = CliRunner().invoke(main, [*use, "samples/convnet.pt2", "--device", path])
        assert (told in answer.output) is said, use
    assert (told in done.output) is said


def test_other_processes_are_what_this_one_is_not():
    shares = host.Others().shares()
    assert all(0 <= share <= 1 for share in shares.values())
    assert "gpu" not in shares


@pytest.mark.parametrize("told, share", [("37\n", 0.37), ("[N/A]\n", None), (FileNotFoundError(), None)])
def test_other_work_on_a_gpu_is_asked_of_its_tool(told, share, monkeypatch):
    def run(command, **options):
        assert command[-1] == "GPU-1"
        if isinstance(told, Exception):
            raise told
        return SimpleNamespace(stdout=told)

    monkeypatch.setattr(host.subprocess, "run", run)
    monkeypatch.setattr(host, "_WAIT", 0)
    assert host.Others("GPU-1").shares().get("gpu") == share


@pytest.mark.parametrize("once, rounds", [(1e-3, 5), (0.2, 3), (7.0, 1)])
def test_a_kernel_that_is_long_on_a_cpu_has_few_rounds(once, rounds, monkeypatch):
    turns = []
    monkeypatch.setattr(CpuClock, "_once", lambda self, calls, count: turns.append(count) or once)
    CpuClock().seconds([lambda: None])
    assert len(turns) == 1 + rounds  # the first tells how long a call is


def test_points_are_spread_over_the_whole_box():
    points = spread(256, (1, 2**16), (4, 2**10))
    assert {min(7, int(m).bit_length() // 2) for m, _ in points} >= {1, 4, 7}
    assert all(1 <= m <= 2**16 and 4 <= n <= 2**10 for m, n in points)


def test_a_clock_counts_seconds():
    import time

    assert CpuClock().seconds([lambda: time.sleep(0.01)]) == pytest.approx(0.01, rel=0.5)


def test_costs_of_a_host_scale_with_its_micro_benchmarks():
    reference = Host({"forward.call": 10e-6}, {"add": 4e-6, "linear": 10e-6, "view": 1e-6})
    slower = scaled_host(reference, {"add": 8e-6, "linear": 15e-6, "view": 5e-6})
    assert slower.seconds["forward.call"] == pytest.approx(20e-6)  # ratios 2, 1.5 and 5: the median
    assert slower.slower < reference.slower


def test_only_the_host_of_a_base_profile_is_measured(tmp_path, monkeypatch):
    known = device("h200").host
    twice = {name: 2 * seconds for name, seconds in known.benchmarks.items()}
    monkeypatch.setattr(make, "host_benchmarks", lambda kind: twice)
    path = tmp_path / "mine.json"
    given = ["--device", "cpu", "--host-only", "--base", "h200", "--output", str(path)]
    done = CliRunner().invoke(command, given, catch_exceptions=False)
    assert "host       2.00 x" in done.output
    mine = device(str(path))
    assert mine.host.seconds["forward.call"] == pytest.approx(2 * known.seconds["forward.call"], rel=1e-3)
    assert mine.calibration == device("h200").calibration
    assert path.stat().st_size < 120_000


def test_every_micro_benchmark_of_the_reference_is_measured():
    measured = host_benchmarks("cpu", rounds=1)
    assert device("h200").host.benchmarks.keys() <= measured.keys()
    assert all(0 < seconds < 60 for seconds in measured.values())


@pytest.mark.parametrize("name", ["h200", "l4"])
def test_every_measured_kernel_has_a_model(name):
    clock = SimpleNamespace(device="cuda", runtime="torch", sets=lambda cold_bytes: 1)
    known = device(name)
    kernels = [trial.kernel for trial in make._trials(clock)]
    assert len(kernels) > 1000
    assert all(0 < modelled(kernel, known) < 10 for kernel in kernels)


def test_a_gpu_that_was_measured_before_keeps_points_that_predict_better(monkeypatch):
    known = device("h200")
    chance = Random(0)
    trials = [Kernel("copy", "float32", 0, 0, 4 * size, 4 * size) for size in range(10**6, 9 * 10**6, 10**5)]
    noise = [(kernel, modelled(kernel, known) * chance.choice((0.3, 3.0))) for kernel in trials]
    slower = [(kernel, modelled(kernel, known) * 2) for kernel in trials]
    of = partial(make._calibrations, known=known, software="torch", has_constants=True)
    assert list(of(noise)) == []
    (kept,) = of(slower)
    assert kept.error[1] < 0.05


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4070"])
def test_the_command_on_a_gpu_with_a_stand_in_for_its_kernels(gpu, tmp_path, monkeypatch):
    import torch

    about = SimpleNamespace(
        name=gpu, total_memory=2**34, multi_processor_count=46, L2_cache_size=2**25, major=8, minor=9
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    monkeypatch.setattr(make, "CudaClock", lambda: SimpleNamespace(device="cuda", runtime="torch", sets=len))
    reference = device("h200")
    monkeypatch.setattr(make, "_seconds", lambda clock, trial: 1.3 * modelled(trial.kernel, reference))
    monkeypatch.setattr(make, "host_benchmarks", lambda kind: dict(reference.host.benchmarks))
    path = tmp_path / "mine.json"
    done = CliRunner().invoke(command, ["--device", "cuda", "--output", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "host       1.00 x" in done.output
    assert path.stat().st_size < 120_000
    mine = device(str(path))
    assert mine.calibration
    assert mine.host.seconds["forward.call"] == pytest.approx(reference.host.seconds["forward.call"])
    ratios = []
    for model in ("gqa_transformer", "convnet", "lstm"):
        seconds = partial(_seconds_of, f"samples/{model}.pt2")
        assert seconds(str(path), "graph") < seconds(str(path), "eager")
        ratios.append(seconds(str(path), "graph") / seconds("h200", "graph"))
    assert statistics.mean(ratios) == pytest.approx(1.3, rel=0.35)


def _seconds_of(model, on, execution):
    return graphflops.analyze(model, device=on, execution=execution).totals.time.seconds


@pytest.mark.parametrize("reserved, given_back", [(2**33, 1), (2**30, 0)])
def test_memory_of_measured_graphs_is_given_back_before_it_fills_the_gpu(reserved, given_back, monkeypatch):
    import torch

    emptied = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    CudaClock._give_back(SimpleNamespace(memory_bytes=2**34))
    assert len(emptied) == given_back


def test_operands_that_are_used_in_turn_do_not_fit_in_the_cache():
    clock = CpuClock()
    clock.l2_bytes = 2**20
    assert clock.sets(2**19) == 6  # three times the cache
    assert clock.sets(2**23) == 1
    assert clock.sets(1) == 24  # no more than that are made
    assert clock.sets(0) == 1


def test_a_cpu_goes_on_when_a_call_is_done():
    clock = Schedule(is_eager=True, gap=0.0, is_cpu=True)
    assert clock.run(1e-6, (4e-6, 4e-6)) == pytest.approx(8e-6)  # which holds what Python does
    assert clock.run(2e-6, ()) == pytest.approx(2e-6)
    slow = Schedule(is_eager=True, gap=0.0, slowness=1.5, is_cpu=True)
    assert slow.run(1e-6, (4e-6, 4e-6)) == pytest.approx(12e-6)
