"""Each finding about time, on a program made for it: what it says to save is what the corrected program takes less."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from graphflops import analyze
from graphflops.cli import main

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HALF = torch.bfloat16


class Program(nn.Module):
    """A function as a module, with weights of these shapes."""

    def __init__(self, run: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = HALF) -> None:
        super().__init__()
        self.run = run
        weights = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
        self.weights = nn.ParameterList(weights)

    def forward(self, *inputs: Any) -> Any:
        return self.run(*inputs, *self.weights)


def exported(folder: Path, module: Any, *inputs: Any) -> str:
    path = str(folder / f"{len(list(folder.iterdir()))}.pt2")
    torch.export.save(torch.export.export(module, inputs), path)
    return path


def finding(path: str, code: str, execution: str = "graph") -> dict[str, Any]:
    arguments = ["audit", path, "--device", "h200", "--execution", execution, "--format", "json"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    (model,) = json.loads(result.stdout)["models"]
    (found,) = [one for one in model["findings"] if one["code"] == code]
    return dict(found)


def saved(message: str) -> float:
    amount = re.search(r"([\d.e+]+) (ms|µs) of .* could be saved", message)
    assert amount is not None, message
    return float(amount[1]) * {"ms": 1e-3, "µs": 1e-6}[amount[2]]


def seconds(path: str, execution: Any = "graph") -> float:
    time = analyze(path, device="h200", execution=execution).totals.time
    assert time is not None
    return time.seconds


def zeros(*shape: int, dtype: Any = HALF) -> Any:
    """On the device meta, for an export stores its inputs as examples."""
    return torch.zeros(*shape, dtype=dtype, device="meta")


def linear(x: Any, weight: Any) -> Any:
    return functional.linear(x, weight)


def wide(x: Any, weight: Any, second: Any) -> Any:
    """The second product in float32."""
    return functional.linear(functional.linear(x, weight).float(), second.float())


def narrow(x: Any, weight: Any, second: Any) -> Any:
    return functional.linear(functional.linear(x, weight), second)


def spelled(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def fused(q: Any, k: Any, v: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v)


def repeated(q: Any, k: Any, v: Any) -> Any:
    return fused(q, k.repeat_interleave(8, 1), v.repeat_interleave(8, 1))


def shared(q: Any, k: Any, v: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def twice(x: Any, weight: Any) -> Any:
    return torch.sin(functional.linear(x, weight)) + torch.cos(functional.linear(x, weight))


def once(x: Any, weight: Any) -> Any:
    y = functional.linear(x, weight)
    return torch.sin(y) + torch.cos(y)


HEADS = [zeros(8, 16, 2048, 64)] * 3
GROUPS = [zeros(16, 64, 64, 64), zeros(16, 8, 4096, 64), zeros(16, 8, 4096, 64)]
ROWS = zeros(8192, 2048)
CASES = {
    "GF270": ((Program(linear, (50_257, 2048)), [ROWS]), (Program(linear, (50_264, 2048)), [ROWS])),
    "GF271": ((Program(spelled), HEADS), (Program(fused), HEADS)),
    "GF272": (
        (Program(wide, (8192, 2048), (512, 8192)), [ROWS]),
        (Program(narrow, (8192, 2048), (512, 8192)), [ROWS]),
    ),
    "GF273": ((Program(repeated), GROUPS), (Program(shared), GROUPS)),
    "GF276": ((Program(twice, (4096, 2048)), [ROWS]), (Program(once, (4096, 2048)), [ROWS])),
}


@pytest.mark.parametrize("code", CASES)
def test_what_could_be_saved_is_what_the_correction_saves(code: str, tmp_path: Path) -> None:
    (bad, given), (good, given_too) = CASES[code]
    path, corrected = exported(tmp_path, bad, *given), exported(tmp_path, good, *given_too)
    found = finding(path, code)
    assert found["fix"]
    assert saved(found["message"]) == pytest.approx(seconds(path) - seconds(corrected), rel=0.35)


@pytest.mark.filterwarnings("ignore:No complete tensor")  # of weights that are not on the CPU
def test_a_layout_is_converted(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Conv2d(256, 256, 3, padding=1, bias=False) for _ in range(4)]).to("meta", HALF)
    image = zeros(32, 256, 56, 56)
    path = exported(tmp_path, model, image)
    lasting = model.to(memory_format=torch.channels_last)
    corrected = exported(tmp_path, lasting, image.to(memory_format=torch.channels_last))
    found = finding(path, "GF274")
    assert "(4 calls)" in found["message"]
    assert "channels_last" in found["fix"]
    assert saved(found["message"]) == pytest.approx(seconds(path) - seconds(corrected), rel=0.5)


def test_a_gpu_that_waits(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)]).to("meta", HALF)
    path = exported(tmp_path, model, zeros(8, 64))
    found = finding(path, "GF275", "eager")
    assert saved(found["message"]) == pytest.approx(seconds(path, "eager") - seconds(path), rel=0.01)


def test_a_mask_that_no_fused_kernel_takes_is_said_with_its_time(tmp_path: Path) -> None:
    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.transpose(-1, -2))

    path = exported(tmp_path, Program(masked), *HEADS, zeros(2048, 2048))
    report = analyze(path, device="h200")
    (message,) = [one.message for one in report.diagnostics if one.code == "GF122"]
    times = re.search(
        r"1 attention runs unfused .* and about ([\d.]+) x the time of a fused kernel: ", message
    )
    assert times is not None, message
    own = sum(row.time.seconds for row in report.rows if row.time and "attention" in row.op)
    plain = analyze(exported(tmp_path, Program(fused), *HEADS), device="h200")
    kernel = sum(row.time.seconds for row in plain.rows if row.time and "attention" in row.op)
    assert float(times[1]) == pytest.approx(own / kernel, rel=0.2)
    assert "contiguous() on the mask" in message


def product(a: Any, b: Any) -> Any:
    return a @ b


def found_codes(path: str, execution: str = "graph") -> dict[str, str]:
    arguments = ["audit", path, "--device", "h200", "--execution", execution, "--format", "json"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    (model,) = json.loads(result.stdout)["models"]
    return {one["code"]: one["message"] for one in model["findings"]}


def test_a_product_of_matrix_and_vector_is_not_unaligned(tmp_path: Path) -> None:
    path = exported(tmp_path, Program(product), zeros(64, 4096, 16), zeros(64, 16, 1))
    assert "GF270" not in found_codes(path)


def test_only_sizes_that_are_no_multiple_of_8_are_named(tmp_path: Path) -> None:
    path = exported(tmp_path, Program(product), zeros(64, 2048, 512), zeros(64, 512, 2045))
    even = exported(tmp_path, Program(product), zeros(64, 2048, 512), zeros(64, 512, 2048))
    found = finding(path, "GF270")
    assert found["message"].startswith("a product of n = 2,045, no multiple of 8: ")
    assert found["seconds"] == pytest.approx(seconds(path) - seconds(even), rel=0.35)


def test_a_product_that_the_cpu_launches_slower_than_it_runs_is_not_unaligned(tmp_path: Path) -> None:
    path = exported(tmp_path, Program(linear, (130, 126)), zeros(8, 126))
    assert {"GF270", "GF275"} & {*found_codes(path, "eager")} == {"GF275"}
