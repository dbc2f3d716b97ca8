"""One budget for the whole analysis: what is too much ends in one line that names it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import signal
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops.analysis import analyze
from graphflops.base.limits import MOST, Limits, left, limited, next_analysis, spend
from graphflops.cli import main
from graphflops.errors import LimitError
from tests.exporters.build import call, meta, program, save, tensor

ROOT = Path(__file__).parents[1]
SAMPLE = str(ROOT / "samples" / "gqa_transformer.pt2")


def test_nothing_is_limited_outside() -> None:
    spend("calls", 2**60)
    assert left() is None


@pytest.mark.parametrize("kind", MOST)
def test_each_kind_of_work(kind):
    def work() -> None:
        spend(kind, 7)
        next_analysis()
        spend(kind, 7)
        spend(kind, 1)

    message = rf"^the analysis takes more than 7 {kind} \(at the start\)"
    with pytest.raises(LimitError, match=message), limited(Limits(work={kind: 7})):
        work()


def relus(path: Path, calls: int) -> Path:
    """A program of so many calls, one after the other."""
    names = ["x", *(f"a{i}" for i in range(calls))]
    nodes = [call("torch.ops.aten.relu.default", tensor(a), out=b) for a, b in itertools.pairwise(names)]
    outputs = [{"user_output": {"arg": tensor(names[-1])}}]
    return save(path, program(nodes, {name: meta(4) for name in names}, outputs=outputs))


def test_calls_and_rows_of_a_program(tmp_path):
    path = relus(tmp_path / "m.pt2", 5)
    with limited(Limits(work={**MOST, "calls": 5, "rows": 5})):
        analyze(path)
    for kind in ("calls", "rows"):
        with pytest.raises(LimitError, match=f"more than 4 {kind}"), limited(Limits(work={**MOST, kind: 4})):
            analyze(path)


def test_bytes_of_an_archive(tmp_path):
    with (
        pytest.raises(LimitError, match="more than 1,000 bytes decoded"),
        limited(Limits(work={**MOST, "bytes decoded": 1000})),
    ):
        analyze(relus(tmp_path / "m.pt2", 50))


def test_the_deadline_interrupts_a_loop_that_catches_every_error():
    start = time.monotonic()

    def loop() -> None:
        while time.monotonic() < start + 5:
            with contextlib.suppress(Exception):
                sum(range(1000))

    message = r"^the analysis takes more than 0.05 s, the --time-limit \(at "
    with pytest.raises(LimitError, match=message), limited(Limits(seconds=0.05)):
        loop()
    assert time.monotonic() < start + 4
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("work", ["pow(3, 10**9)", "re.match('(a*)*$', 'a' * 40 + 'b')"])
def test_the_deadline_interrupts_functions_in_c(work):
    """Numbers of a billion digits, and an expression that backtracks 2**40 times."""
    import re  # noqa: F401 - used by the text that is run

    start = time.process_time()
    with pytest.raises(LimitError, match=r"0\.2 s"), limited(Limits(seconds=0.2)):
        eval(work)
    assert time.process_time() < start + 5


def test_commands_say_it_in_one_line():
    for command in (
        ["analyze", SAMPLE],
        ["check", SAMPLE, "--budget", "none.toml"],
        ["diff", SAMPLE, SAMPLE],
    ):
        result = CliRunner().invoke(main, [*command, "--time-limit", "0.000001"])
        assert result.exit_code == 1
        assert result.stderr.startswith(
            "graphflops: error: the analysis takes more than 1e-06 s, the --time-limit"
        )
        assert result.stderr.count("\n") == 1


def test_text_for_a_diff_says_it_and_ends_well(monkeypatch):
    def hang(*_: object, **__: object) -> None:
        while True:
            sum(range(1000))

    monkeypatch.setattr("graphflops.commands.files.report_of", hang)
    result = CliRunner().invoke(main, ["textconv", SAMPLE, "--time-limit", "0.2"])
    assert (result.exit_code, result.stdout[:14]) == (0, "not analyzed: ")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of address space there")
def test_memory():
    """2 GB do not fit into 1 GB of address space."""
    message = "more than 1,000,000,000 bytes of address space, the --memory-limit"
    with pytest.raises(LimitError, match=message), limited(Limits(memory=10**9)):
        bytearray(2 * 10**9)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of address space there")
def test_a_file_that_memory_does_not_suffice_to_open():
    message = "more than 1,000,000,000 bytes of address space, the --memory-limit"
    with pytest.raises(LimitError, match=message), limited(Limits(memory=10**9)):
        raise OSError(errno.ENOMEM, "Cannot allocate memory", "models")
    with pytest.raises(FileNotFoundError), limited(Limits(memory=10**9)):
        raise FileNotFoundError(errno.ENOENT, "No such file", "models")


def test_wrong_amounts_are_wrong_usage():
    for given in (["--memory-limit", "much"], ["--time-limit", "0"], ["--time-limit", "nan"]):
        assert CliRunner().invoke(main, ["analyze", SAMPLE, *given]).exit_code == 2


@pytest.mark.parametrize(
    "command", ["analyze --memory-limit", "fits --memory", "validate --memory-limit", "scan --memory"]
)
def test_a_number_of_bytes_without_a_unit_is_wrong_usage(command):
    name, option = command.split()
    done = CliRunner().invoke(main, [name, SAMPLE, option, "8"])
    assert done.exit_code == 2
    assert f"'{option}'" in done.stderr or f"{option}:" in done.stderr
    assert '\'8\' has no unit: write "512 MiB" or "1.5 GB"' in done.stderr
