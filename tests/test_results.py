"""What results have in common: text, files by suffix, small reprs, and what notebooks show."""

from __future__ import annotations

import html.parser
import subprocess
import sys
from pathlib import Path

import pytest

from graphflops import analyze, audit, check, compare, fits, load
from graphflops.derived.resize import Sweep
from graphflops.errors import OptionError
from graphflops.render import render

SAMPLES = Path(__file__).parents[1] / "samples"
CONVNET = SAMPLES / "convnet.pt2"
TRANSFORMER = SAMPLES / "gqa_transformer.pt2"
KEPT = {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


def results() -> list[object]:
    report = analyze(TRANSFORMER)
    return [
        report,
        compare(CONVNET, TRANSFORMER),
        audit(SAMPLES / "gqa_transformer.onnx"),
        check([CONVNET, TRANSFORMER], {"matrix_flops": "1 kFLOP"}),
        Sweep.of(report, {"ids[1]": (16, 32)}),
        fits(TRANSFORMER, memory="1GB", training=True),
    ]


def test_a_repr_is_one_short_line() -> None:
    for result in (*results(), load(TRANSFORMER)):
        text = repr(result)
        assert text.startswith(f"<{type(result).__name__} ")
        assert len(text) < 250
        assert "\n" not in text
    assert repr(analyze(CONVNET)) == "<Report convnet.pt2: 2.261 M FLOPs, 4,626 parameters, 13 calls>"


def test_a_notebook_shows_what_its_conversion_keeps() -> None:
    """No script, no style and no line break, which would end a block of HTML in the Markdown that nbconvert writes."""

    class Tags(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            assert tag in KEPT
            assert {name for name, _ in attrs} <= {"align"}  # type: ignore[attr-defined]

    for result in results():
        piece = result._repr_html_()  # type: ignore[attr-defined]
        Tags().feed(piece)
        assert "\n" not in piece
        assert result._repr_markdown_()  # type: ignore[attr-defined]


def test_what_is_found_stands_in_the_notebook() -> None:
    _, comparison, audited, checked, *_ = results()
    assert "convnet.pt2 → gqa_transformer.pt2" in comparison._repr_html_()  # type: ignore[attr-defined]
    assert "GF221 external-data-missing" in audited._repr_html_()  # type: ignore[attr-defined]
    assert "GF301 over-limit" in checked._repr_html_()  # type: ignore[attr-defined]


def test_a_suffix_says_the_format(tmp_path: Path) -> None:
    report = analyze(CONVNET)
    report.save(tmp_path / "a.json")
    assert analyze(tmp_path / "a.json") == report
    for suffix, form in (
        (".html", "html"),
        (".csv", "csv"),
        (".md", "markdown"),
        (".dot", "dot"),
        (".txt", "table"),
    ):
        report.save(str(tmp_path / f"a{suffix}"))
        assert (tmp_path / f"a{suffix}").read_text(encoding="utf-8") == render(report, form)
    report.save(tmp_path / "a.profile", "speedscope")
    assert "speedscope" in (tmp_path / "a.profile").read_text(encoding="utf-8")
    report.save(tmp_path / "by_op.csv", by="op")
    assert (tmp_path / "by_op.csv").read_text(encoding="utf-8").startswith("op,calls")
    with pytest.raises(
        OptionError, match=r"a\.png: \.png is the suffix of no format for a report: use \.json"
    ):
        report.save(tmp_path / "a.png")
    audit(SAMPLES / "convnet.onnx").save(tmp_path / "a.sarif")
    with pytest.raises(OptionError, match=r"\.html is the suffix of no format for findings"):
        audit(SAMPLES / "convnet.onnx").save(tmp_path / "a.html")


def test_a_summary_is_the_text_of_the_command_line() -> None:
    report = analyze(CONVNET)
    assert report.summary(top=2, width=80) == render(report, "table", top=2, width=80)
    assert "1 error in 1 of 1 model" not in check(CONVNET, {"matrix_flops": "1 G"}).summary()


def test_a_data_frame_has_a_line_for_each_call() -> None:
    pandas = pytest.importorskip("pandas")
    report = analyze(TRANSFORMER)
    frame = report.to_dataframe()
    assert len(frame) == len(report.rows)
    assert frame["matrix_flops"].sum() == report.value(report.total().matrix_flops)
    assert isinstance(report.to_dataframe(by="module", depth=1), pandas.DataFrame)


def test_pandas_is_imported_when_a_frame_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys, graphflops; graphflops.analyze({str(CONVNET)!r}); assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match="pip install pandas"):
        analyze(CONVNET).to_dataframe()


def test_a_module_is_exported_by_itself() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(8, 4)
    x = torch.zeros(2, 8)
    products = 2 * 2 * 8 * 4  # FLOPs of (2, 8) @ (8, 4)
    for report in (analyze(module, (x,)), analyze(module, x), analyze(module, kwargs={"input": x})):
        assert report.total().matrix_flops == products
    symbolic = analyze(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    assert symbolic.value(symbolic.total().matrix_flops) == products
    assert analyze(module, (x,), training=True).step() is not None


def test_a_module_needs_inputs_and_nothing_else_takes_them() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(OptionError, match="Linear is a module: give example inputs"):
        analyze(torch.nn.Linear(8, 4))
    with pytest.raises(OptionError, match="leave them out"):
        analyze(CONVNET, (torch.zeros(2),))


def test_every_result_has_a_notebook_page_and_a_repr() -> None:
    import graphflops.derived.overview
    import graphflops.fitting.fits
    import graphflops.planning.plan
    import graphflops.runtime.validation
    import graphflops.serving.plan
    import graphflops.statements.statement
    import graphflops.versions.revisions
    from graphflops.base.rendered import Rendered
    from graphflops.render import summary
    from graphflops.render.formats import DOCUMENTS
    from graphflops.render.html import fragment

    named = {kind.__name__ for kind in Rendered.__subclasses__()}
    assert named == summary._ABOUT.keys()
    assert named - {"Audit", "Checked"} == fragment._OF.keys() | DOCUMENTS.keys() - {"Answer", "Listing"}
    assert graphflops.__version__
