"""An input axis is named by its own size, a symbol by its own name: `input[2]` at 64 is `2*h` with h at 32, everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from graphflops import analyze, compare, fits
from graphflops.cli import main
from graphflops.derived.resize import sweep
from graphflops.dims import evaluate, floor_div, symbol
from graphflops.dims.solving import common, sizes_taken, solution
from graphflops.errors import ModelError
from graphflops.report import Named, Report
from graphflops.tensor import FLOAT32, TensorType
from tests.compare.test_sizes import product

torch = pytest.importorskip("torch")
H = symbol("h")
# Conv2d(3, 16, 3, stride 2, padding 1) on 3 x 64 x 32: 32 * 16 places, 3 * 9 multiply-adds for each of 16 channels.
FLOPS_AT_64 = 2 * (32 * 16) * (3 * 9) * 16


def exported(path: Path, size: int, axis, least: int = 2) -> Path:
    """A convolution of an image whose height is `axis` of a size h of at least 2, and up to 64."""
    module = torch.nn.Conv2d(3, 16, 3, 2, 1)
    h = torch.export.Dim("h", min=least, max=64)
    image = (torch.randn(1, 3, size, 32),)
    torch.export.save(torch.export.export(module.eval(), image, dynamic_shapes=({2: axis(h)},)), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The height of the image is 2*h, exported at 32."""
    return exported(tmp_path_factory.mktemp("derived") / "sw.pt2", 32, lambda h: 2 * h)


def run(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="graphflops")
    assert done.exit_code == code, done.output
    return done.output


def test_the_axis_is_shown_at_its_own_size(model: Path) -> None:
    report = analyze(model, dims={"input[2]": 64})
    assert report.total().matrix_flops == FLOPS_AT_64
    (name,) = report.symbols
    assert (report.sizes, report.values) == ({"input[2]": 64}, {name: 32})
    assert f"input[2] = 64  2·{name} with {name} = 32, given (4..128 in steps of 2)" in run(
        "analyze", model, "--dim", "input[2]=64"
    )
    again = Report.from_json(report.to_json())
    assert again.sizes == {"input[2]": 64}
    assert "size input[2] (2*" in run("textconv", model)
    assert ") = 32\n" in run("textconv", model)


@pytest.mark.parametrize("option", ["--dim", "--sweep"])
@pytest.mark.parametrize("size", [33, 2, 130])
def test_a_size_that_the_axis_cannot_have(model: Path, option: str, size: int) -> None:
    said = run("analyze", model, option, f"input[2]={size}", code=1)
    (name,) = analyze(model).symbols
    assert f"input[2] is 2·{name}: give an even size of 4 to 128" in said


def test_a_sweep(model: Path, tmp_path: Path) -> None:
    points = sweep(analyze(model), {"input[2]": (32, 64)})
    assert [point.cost["matrix_flops"] for point in points] == [FLOPS_AT_64 // 2, FLOPS_AT_64]
    saved = tmp_path / "report.json"
    analyze(model).save(saved)
    assert analyze(saved, dims={"input[2]": 64}).total().matrix_flops == FLOPS_AT_64
    with pytest.raises(ModelError, match="give an even size of 4 to 128"):
        analyze(saved, dims={"input[2]": 63})


def test_the_largest_size_that_fits(model: Path) -> None:
    found = fits(model, memory="4GB", vary="input[2]")
    assert (found.verdicts[0].largest, found.verdicts[0].is_bounded, found.step) == (128, True, 2)


def test_a_budget_holds_the_axis(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    run("check", "--init", "sw.pt2")
    text = Path("graphflops.toml").read_text()
    assert 'dims = {"input[2]" = 32}' in text
    assert 'matrix_flops = "244 kFLOP"' in text  # 221,184 and 10 % more
    run("check")


def test_items_of_an_axis() -> None:
    """Rows of an image are those of the image in every sample, whatever its channels."""
    x = Named("x", TensorType((2, 8, 8 * symbol("s1"), 32), FLOAT32))
    report = product("s1", 4, axis="x[2]")
    from dataclasses import replace

    report = replace(report, inputs=(x,))
    assert report.per("x[2]").items == 2 * 32
    assert report.per("x[0]").items == 2


def test_a_label_of_the_axis(model: Path) -> None:
    given = ("--name", "height=input[2]", "--format", "json")
    found = json.loads(run("analyze", model, *given, "--dim", "height=64"))
    assert found["totals"]["matrix_flops"] == FLOPS_AT_64
    report = analyze(model, names={"height": "input[2]"})
    assert report.sizes == {"height": 32}
    assert sweep(report, {"height": (64,)})[0].cost["matrix_flops"] == FLOPS_AT_64


@pytest.mark.parametrize("axis", [lambda h: 4 * h, lambda h: 3 * h, lambda h: 2 * h])
def test_programs_whose_axes_are_other_multiples_are_one_size(tmp_path: Path, model: Path, axis) -> None:
    other = exported(tmp_path / "other.pt2", 48, axis)
    found = compare(model, other, dims={"input[2]": 96})
    assert found.same
    (size,) = compare(model, other).sizes
    assert (size.stated, size.at(size.value or 0)) == ("input[2]", 48 if axis(2) == 6 else 32)


def test_an_export_of_it_keeps_the_work(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    module, h = torch.nn.Conv2d(3, 16, 3, 2, 1).eval(), torch.export.Dim("h", min=2, max=64)
    shapes = ({2: 2 * h},)
    program = torch.export.export(module, (torch.randn(1, 3, 32, 32),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "m.pt2")
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "m.onnx")
    found = run("diff", tmp_path / "m.pt2", tmp_path / "m.onnx")
    assert "the export keeps the work: FLOPs 221.2 k in both (0)" in found
    assert "compared at input[2] = 32" in found


class Halves(torch.nn.Module):
    def forward(self, a, b):
        return a[::2] + b


def halves(path: Path, rows: int) -> Path:
    """Adds every second row to those of another input, half as many, rounded up."""
    inputs = torch.randn(rows, 4), torch.randn((rows + 1) // 2, 4)
    auto = torch.export.Dim.AUTO
    torch.export.save(torch.export.export(Halves(), inputs, dynamic_shapes=({0: auto}, {0: auto})), path)
    return path


def test_an_axis_that_operators_tie_to_half_of_another(tmp_path: Path) -> None:
    path = halves(tmp_path / "half.pt2", 10)
    at_20 = analyze(path, dims={"a[0]": 20})
    assert at_20.total().vector_flops == 10 * 4
    assert at_20.inputs[1].type.shape[0] == 10
    # b[0] = (a[0] + 1)//2 is 8 for 15 and 16; a[0] was even, and stays so
    assert analyze(path, dims={"b[0]": 8}).sizes["a[0]"] == 16
    (said,) = [one.message for one in at_20.diagnostics if one.code == "GF112"]
    assert said == "operators require equal sizes, from which follows b[0] = (a[0] + 1)//2"


AXES = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(-1, 5)).map(lambda line: line[0] * H + line[1]),
    st.tuples(st.integers(1, 5), st.integers(2, 9), st.integers(-1, 5)).map(
        lambda line: floor_div(line[0] * H + line[2], line[1])
    ),
    st.tuples(st.integers(1, 9), st.integers(2, 9)).map(lambda line: line[0] * floor_div(H, line[1])),
)


@settings(max_examples=60, deadline=None)
@given(AXES, st.integers(1, 20), st.integers(21, 90), st.integers(0, 300), st.integers(0, 90))
def test_solutions_are_those_that_trying_all_finds(axis, low: int, high: int, size: int, like: int) -> None:
    all_ = [h for h in range(low, high + 1) if evaluate(axis, {"h": h}) == size]
    found = solution(axis, size, low, high, like)
    assert found in all_ if all_ else found is None
    assert all_ == [] or (found or 0) % len(all_) == like % len(all_)
    taken = sizes_taken(axis, low, high)
    assert taken is not None
    assert {evaluate(axis, {"h": h}) for h in range(low, high + 1)} - {-1} <= {*taken}


@given(*[st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(1, 9)) for _ in range(2)])
def test_what_two_ranges_have_in_common(one, other) -> None:
    assert [*common(range(*one), range(*other))] == sorted({*range(*one)} & {*range(*other)})


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 8), st.integers(-1, 3), st.integers(4, 30))
def test_setting_an_axis_is_exporting_at_that_size(slope: int, offset: int, h: int) -> None:
    """An affine axis, against torch's export of another image."""
    import tempfile

    size = slope * h + offset
    with tempfile.TemporaryDirectory() as folder:
        path = exported(Path(folder) / "a.pt2", slope * 31 + offset, lambda h: slope * h + offset, 4)
        fixed = torch.export.export(torch.nn.Conv2d(3, 16, 3, 2, 1), (torch.randn(1, 3, size, 32),))
        ours, theirs = analyze(path, dims={"input[2]": size}).total(), analyze(fixed).total()
    assert ours == theirs


@settings(max_examples=5, deadline=None)
@given(st.integers(3, 40))
def test_setting_half_an_axis_is_exporting_at_that_size(rows: int) -> None:
    """A floor-divided axis, against torch's export of that many rows of either input."""
    import tempfile

    even = rows + rows % 2
    with tempfile.TemporaryDirectory() as folder:
        path = halves(Path(folder) / "a.pt2", 10)
        fixed = analyze(halves(Path(folder) / "b.pt2", even), dims={"a[0]": even}).total()
        assert analyze(path, dims={"b[0]": even // 2}).total() == fixed
        assert analyze(path, inputs={"a": (even, 4), "b": (even // 2, 4)}).total() == fixed


class Layer(torch.nn.Module):
    """Attention over a cache and the new tokens."""

    def forward(self, x, k, v, mask):
        k, v = torch.cat([k, x], 2), torch.cat([v, x], 2)
        return torch.nn.functional.scaled_dot_product_attention(x, k, v, attn_mask=mask)


class Decoder(torch.nn.Module):
    def __init__(self, layers: int, masked: bool) -> None:
        super().__init__()
        self.layers, self.masked = torch.nn.ModuleList([Layer() for _ in range(layers)]), masked

    def forward(self, x, past):
        length, mask = past[0][0].shape[2] + x.shape[2], None
        if self.masked:
            mask = torch.arange(length)[None, :] <= torch.arange(length)[-x.shape[2] :, None]
        for layer, (k, v) in zip(self.layers, past, strict=True):
            x = layer(x, k, v, mask)
        return x


def decoder(path: Path, *, masked: bool, layers: int = 3) -> Path:
    """Each cache has an open length of its own in the export."""
    auto = {2: torch.export.Dim.AUTO}
    given = torch.randn(1, 2, 3, 8), [tuple(torch.randn(2, 1, 2, 7, 8)) for _ in range(layers)]
    shapes = auto, [(auto, auto)] * layers
    torch.export.save(torch.export.export(Decoder(layers, masked), given, dynamic_shapes=shapes), path)
    return path


def test_the_caches_of_all_layers_are_one_size(tmp_path: Path) -> None:
    """Operators require them to be equal: one name, no sum of terms, and one size given is given to all."""
    path = decoder(tmp_path / "m.pt2", masked=True)
    report = analyze(path)
    assert len(report.symbols) == 2
    assert "past_*_*[2]" in run("analyze", path).splitlines()[2]
    # three layers, two products of 2 heads of 3 x (100 + 3) pairs of 8
    flops = 3 * 2 * 2 * (2 * 3 * (100 + 3) * 8)
    for name in ("past_0_0[2]", "past_2_1[2]", "past_*[2]"):
        assert analyze(path, dims={name: 100, "x[2]": 3}).total().matrix_flops == flops


def test_caches_that_may_differ_are_given_and_said_together(tmp_path: Path) -> None:
    path = decoder(tmp_path / "m.pt2", masked=False)
    report = analyze(path)
    assert len(report.symbols) == 1 + 3
    page = run("analyze", path)
    assert "past_*_0[2] = 7  3 sizes, from the export (at least 2)" in page
    assert "Σ past_0-2_0[2]" in page
    flops = 3 * 2 * 2 * (2 * 3 * (100 + 3) * 8)
    assert sweep(report, {"past_*[2]": (100,)})[0].cost["matrix_flops"] == flops
    assert "past_*[9]: no such size; the program has x[2], past_*_*[2]" in run(
        "analyze", path, "--dim", "past_*[9]=3", code=1
    )


def test_the_page_takes_sizes_of_the_axis(model: Path, tmp_path: Path) -> None:
    from tests.render.test_html import data_of

    (size,) = data_of(analyze(model).save(tmp_path / "p.html") or (tmp_path / "p.html").read_text())["sizes"]
    (name,) = analyze(model).symbols
    assert (size["shown"], size["scale"], size["symbols"]) == ("input[2]", [2, 0], [{name: [1, 0]}])
    assert (size["values"], size["low"], size["high"]) == ([16], 4, 128)
