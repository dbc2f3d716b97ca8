"""What eager execution holds, as a run of the module recorded it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from graphflops import analyze
from tests.test_cli import ok

torch = pytest.importorskip("torch")

UNIT = 1024 * 4  # bytes of one tensor of these modules

SOURCE = """
import torch

class Deletes(torch.nn.Module):
    def forward(self, x):
        a = x + 1
        b = a * 2
        del a
        c = b.exp()
        return torch.cat([c, b])

class Keeps(torch.nn.Module):
    def forward(self, x):
        made = {}
        for step in range(3):
            made.setdefault("first", x + step)
            made[step] = made["first"] * step
        total = x.sin()
        return total.cos() + 1

class Masked(torch.nn.Module):
    def forward(self, x):
        length, mask = x.shape[2], None
        if torch.compiler.is_exporting():
            mask = torch.arange(length)[None, :] <= torch.arange(length)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask, is_causal=mask is None)

class AsksOfOnes(torch.nn.Module):
    def forward(self, x):
        if not torch.compiler.is_exporting() and not torch.ones(2, 64, device=x.device).bool().all():
            return x
        return x.sin().cos()

class Masks(torch.nn.Module):
    def forward(self, x):
        mask = None
        for _ in range(2):
            if mask is None or not torch.compiler.is_exporting():
                mask = torch.arange(x.shape[0]) > 5
            x = x * mask
        return x

class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))
        self.own = torch.zeros(1)

    def forward(self, x):
        self.runs.add_(1)
        return x + self.runs

class CountsItself(Counts):
    def forward(self, x):
        self.own.add_(1)
        return x + self.own

class SpellsOut(torch.nn.Module):
    def forward(self, x):
        empty = torch.tensor([])
        joined = torch.cat([empty, x + 1])
        return joined.sin() + 1

class Normalizes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1024, device="meta"))

    def forward(self, x):
        y = x + 1
        y = self.normal(y)
        return y.sin() + 1

    def normal(self, y):
        return (y * self.weight).type_as(y)

@torch.library.custom_op("held_models::exported", mutates_args=())
def exported(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@exported.register_fake
def _(x):
    return torch.empty_like(x)

class Replaces(torch.nn.Module):
    def forward(self, x):
        y = exported(x) if torch.compiler.is_exporting() else x * 2
        y.add_(1)
        return y[:512].sin() + y[512:]

class Repeats(torch.nn.Module):
    def forward(self, q, k):
        k = k + 1
        keep = torch.zeros(k.shape[2])
        if torch.compiler.is_exporting():
            keys = k[:, :, None].expand(1, 2, 2, 64, 8).reshape(1, 4, 64, 8)
        else:
            q, keys = q.reshape(1, 2, 2, 8), k
        return torch.nn.functional.scaled_dot_product_attention(q, keys, keys, keep[None, None, None])

class AsksOfTokens(torch.nn.Module):
    def forward(self, tokens, x):
        if not torch.compiler.is_exporting() and 0 in tokens[:, [-1, 0]]:
            return x
        x = x.sin()
        return x.cos()

class HasOneOnTheCpu(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.a = torch.nn.Parameter(torch.zeros(32, 32, device="meta"))
        self.b = torch.nn.Parameter(torch.zeros(32, 32, device="meta"))

    def forward(self, x):
        x = x @ self.a
        return x @ self.b

class MasksInABlock(torch.nn.Module):
    def forward(self, x):
        mask = torch.arange(x.shape[0]) > 5
        x = x * mask
        if not torch.compiler.is_exporting():
            mask = None
        x = x.sin()
        with torch.no_grad():
            if mask is None:
                mask = torch.arange(x.shape[0]) > 5
            hidden = mask.float()
        return hidden + x

class SolvesOtherwise(torch.nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting():
            y = x @ x
        else:
            y = torch.linalg.solve(x, x)
        return torch.zeros_like(y)

class Copies(torch.nn.Module):
    def forward(self, x):
        return x.clone().exp().sin()

class MasksAWindow(torch.nn.Module):
    def forward(self, x):
        at = torch.arange(x.shape[2])
        mask = (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - 8)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)

class Multiplies(torch.nn.Module):
    def forward(self, x):
        return (x @ x).sin()

def repeats(): return Repeats(), (torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, 64, 8))
def asks_of_tokens(): return AsksOfTokens(), (torch.ones(1, 1024, dtype=torch.int64), torch.zeros(1024))
def one_on_the_cpu(): return HasOneOnTheCpu(), (torch.zeros(32, 32, device="meta"),)
def masks_in_a_block(): return MasksInABlock(), (torch.zeros(1024),)
def solves_otherwise(): return SolvesOtherwise(), (torch.zeros(32, 32),)
def copies(): return Copies(), (torch.zeros(1024),)
def window(): return MasksAWindow(), (torch.zeros(1, 2, 64, 8),)
def multiplies(): return Multiplies(), (torch.zeros(32, 32),)
def asks(): return AsksOfOnes(), (torch.zeros(1024),)
def masks(): return Masks(), (torch.zeros(1024),)
def normalizes(): return Normalizes(), (torch.zeros(1024, device="meta"),)
def replaces(): return Replaces(), (torch.zeros(1024),)
def spells_out(): return SpellsOut(), (torch.zeros(1024),)
def counts(): return Counts(), (torch.zeros(1024),)
def counts_itself(): return CountsItself(), (torch.zeros(1024),)
def deletes(): return Deletes(), (torch.zeros(1024),)
def keeps(): return Keeps(), (torch.zeros(1024),)
def masked(): return Masked(), (torch.zeros(1, 2, 64, 8),)
"""


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that captures one of the modules above, and returns the path of its file."""
    import sys

    (tmp_path / "held_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "held_models", raising=False)

    def capture(name: str) -> Path:
        path = tmp_path / f"{name}.pt2"
        assert ok("capture", f"held_models:{name}", "-o", str(path)) == ""
        return path

    return capture


def codes(report: Any) -> list[str]:
    return [entry.code for entry in report.diagnostics if entry.code in ("GF128", "GF129")]


@pytest.mark.parametrize(
    "name, units",
    [
        ("deletes", 4),  # b, c and their join of two; a is gone
        ("keeps", 7),  # the sum that a dictionary keeps of three, three products, sin, cos and the last sum
        ("asks", 2),  # a sine and its cosine: what it asks of ones hangs on no input, and is answered
        # a sine and its cosine: what it asks of ones in the example's tokens is answered; the example has two units of them
        ("asks_of_tokens", 2 + 2),
        (
            "one_on_the_cpu",
            2,
        ),  # a product and another; a parameter that is made on the CPU is no sign of where it runs
        ("solves_otherwise", 2),  # what stands for the solution, and zeros
        ("spells_out", 3),  # the join, which keeps its name, sin and the sum
        (
            "normalizes",
            3,
        ),  # the product, which has the type already and takes the sum's name, its sine, and the last sum
    ],
)
def test_peaks(captured: Any, name: str, units: int) -> None:
    report = analyze(captured(name), execution="eager")
    assert report.totals.peak_bytes == units * UNIT + UNIT  # and the input
    assert codes(report) == ["GF129"]


def test_heads_that_only_an_export_repeats(captured: Any) -> None:
    """Eager execution passes two rows for each of two heads; 64 keys of 8 numbers, whose heads an export repeats."""
    report = analyze(captured("repeats"), execution="eager")
    query, mask = 4 * 8 * 4, 64 * 4
    assert report.totals.peak_bytes == 2 * UNIT + 2 * query + mask  # keys and their sum, the result
    assert codes(report) == ["GF129"]


def test_torch_compile_repeats_heads_as_an_export_does(captured: Any) -> None:
    """One kernel writes the sum of the keys for each of four heads."""
    report = analyze(captured("repeats"), execution="compiled")
    query, mask = 4 * 8 * 4, 64 * 4
    assert (
        report.totals.peak_bytes == UNIT + 2 * UNIT + 2 * query + mask
    )  # keys, those of four heads, the result


@pytest.mark.parametrize("name", ["masks", "masks_in_a_block"])
def test_a_value_that_an_export_reads_again_is_held(captured: Any, name: str) -> None:
    """Eager execution makes the second mask anew."""
    assert codes(analyze(captured(name), execution="eager")) == ["GF129"]


def test_a_call_that_only_an_export_makes(captured: Any) -> None:
    report = analyze(captured("replaces"), execution="eager")
    # half as long as x: a sine, and a sum of it and the other half of what is written in place
    assert report.totals.peak_bytes == UNIT + UNIT + 2 * UNIT // 2
    assert codes(report) == ["GF129"]


def test_a_mask_that_only_an_export_makes(captured: Any) -> None:
    report = analyze(captured("masked"), execution="eager")
    assert {held.name for held in report.memory.held if held.kind != "input"} == {
        "scaled_dot_product_attention"
    }
    assert codes(report) == ["GF129"]


def test_torch_loads_the_file(captured: Any) -> None:
    x = torch.arange(1024.0)
    assert torch.equal(
        torch.export.load(captured("deletes")).module()(x), torch.cat([(2 * x + 2).exp(), 2 * x + 2])
    )


@pytest.mark.parametrize(
    "name, record, first",
    [
        ("counts", ["GF129"], 1),
        ("counts_itself", [], 2),
    ],  # to a tensor that is no buffer torch.export writes itself
)
def test_nothing_is_computed(captured: Any, name: str, record: list[str], first: int) -> None:
    path = captured(name)
    assert codes(analyze(path, execution="eager")) == record
    assert torch.export.load(path).module()(torch.zeros(1024))[0] == first


def changed(path: Path, change: Any) -> Path:
    """A copy of a file with another record."""
    copy = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry, change(data) if "graphflops_eager_" in entry.filename else data)
    return copy


def with_field(**fields: Any) -> Any:
    return lambda data: json.dumps({**json.loads(data), **fields}).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: b"[" * 100_000,
        lambda data: data[:-1],
        with_field(format=2),
        with_field(until=[]),
        with_field(until=["a"]),
        with_field(values=[], until=[0]),
        with_field(values=["add", "add", "mul", "exp"]),
        with_field(values=["mul", "add", "exp", "cat"]),
        with_field(values=["x", "mul", "exp", "cat"]),
        with_field(until=[0, 1, 2, 3]),  # a sum is freed before it is doubled
        with_field(until=[9, 9, 9, 9]),
        with_field(until=[-2, 3, 3, 3]),
        with_field(until=[2**70, 3, 3, 3]),
        with_field(attentions={"mul": "causal"}),
        with_field(attentions={"mul": "all"}),
    ],
)
def test_a_record_that_contradicts_its_program_is_ignored(captured: Any, change: Any) -> None:
    path = captured("deletes")
    report = analyze(changed(path, change), execution="eager")
    assert codes(report) == ["GF128"]
    assert report.totals.peak_bytes == 6 * UNIT  # lines of code do not show that a is deleted


def test_a_product_that_a_later_call_reads_was_made(captured: Any) -> None:
    report = analyze(changed(captured("multiplies"), with_field(until=[-1, 1])), execution="eager")
    assert codes(report) == ["GF128"]
    assert report.totals.peak_bytes == 3 * UNIT  # the input, the product and its sine


def test_a_copy_that_the_code_makes_is_made_whatever_a_record_says(captured: Any) -> None:
    report = analyze(changed(captured("copies"), with_field(until=[-1, 1, 2])), execution="eager")
    assert report.totals.peak_bytes == 3 * UNIT  # the input, its copy or the sine, and the exponential


def test_a_mask_that_hides_more_is_made_whatever_a_record_says(captured: Any) -> None:
    path = captured("window")
    with zipfile.ZipFile(path) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("graphflops_eager_model.json")]
        *left_out, attention = json.loads(archive.read(member))["values"]
    forged = with_field(until=[-1] * len(left_out) + [len(left_out)], attentions={attention: "causal"})
    report = analyze(changed(path, forged), execution="eager")
    assert {left_out[-1], attention} <= {held.name for held in report.memory.held}


def test_the_documented_form(captured: Any) -> None:
    with zipfile.ZipFile(captured("deletes")) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("graphflops_eager_model.json")]
        record = json.loads(archive.read(member))
    assert record["format"] == 1
    assert record["values"] == ["add", "mul", "exp", "cat"]
    assert record["until"] == [1, 3, 3, 3]  # `del a` runs after the product is made
    assert record["attentions"] == {}
