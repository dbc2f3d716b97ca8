"""Alignment of modules and calls, and what is said of each, on reports made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops.comparison.compare import compared
from graphflops.comparison.result import Comparison, Fact
from graphflops.cost import Cost
from graphflops.dims import symbol
from graphflops.graph import Origin
from graphflops.render import render
from graphflops.render.diff.tables import totals
from graphflops.render.diff.texts import cause_words, within
from graphflops.render.diff.words import headlines
from graphflops.report import Named, Report, Row
from graphflops.tensor import FLOAT32, TensorType
from tests.render.reports import HOSTILE, decoder, hostile, linear, made, plain, training, unset, with_unknown


def sequence(*names: str, **fields: object) -> Report:
    """A program that calls `relu`s and products in a list; `fc8` is a product of width 8."""
    rows = []
    parameters = {}
    for index, name in enumerate(names):
        path = f"net.{index}"
        width = int(name.removeprefix("fc")) if name.startswith("fc") else 0
        if width:
            rows.append(linear(f"linear_{index}", path, width, width))
            parameters[path] = width * width
        else:
            rows.append(plain(f"{name}_{index}", f"aten.{name}.default", path, f"nn.{name.title()}"))
    return made(rows, parameters=sum(parameters.values()), parameter_modules=parameters, **fields)


def listed(comparison: Comparison) -> list[tuple[str, str | None, str | None]]:
    return [(fold.first.status, fold.before_path, fold.path) for fold in comparison.folded]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("fc8 relu fc9", "fc8 relu fc9", []),
        ("fc8 relu fc9", "fc8 relu relu fc9", [("new", None, "net.2")]),
        ("fc8 fc9", "fc7 fc8 fc9", [("new", None, "net.0")]),
        ("fc7 fc8 fc9", "fc8 fc9", [("gone", "net.0", None)]),
        ("fc8 relu fc9", "fc8 gelu fc9", [("changed", "net.1", "net.1")]),
        ("fc6 fc7 fc8 fc9", "fc7 fc8 fc9 fc6", [("moved", "net.0", "net.3")]),
        ("fc6 fc7 fc8 fc9", "fc6 fc7 fc5 fc9", [("changed", "net.2", "net.2")]),
        ("fc8 fc8 fc8 fc8", "fc8 fc8", [("gone", "net.2-3", None)]),
        ("fc8 fc8 fc8 fc8", "fc9 fc9 fc9 fc9", [("changed", "net.0-3", "net.0-3")]),
    ],
)
def test_lists_are_aligned_as_sequences(
    old: str, new: str, expected: list[tuple[str, str | None, str | None]]
) -> None:
    assert sorted(listed(compared(sequence(*old.split()), sequence(*new.split()))), key=str) == sorted(
        expected, key=str
    )


def test_a_long_list_is_aligned_by_number() -> None:
    old = sequence(*["fc8"] * 600, "fc9")
    new = sequence("fc7", *["fc6"] * 599, "fc9")
    assert listed(compared(old, new)) == [
        ("changed", "net.1-599", "net.1-599"),
        ("changed", "net.0", "net.0"),
    ]


def test_numbers_alone_are_no_change() -> None:
    comparison = compared(sequence("fc8", "fc9"), sequence("fc7", "fc8", "fc9"))
    assert comparison.renumbered == (("net.0", "net.1"), ("net.1", "net.2"))


def renamed(report: Report, old: str, new: str) -> Report:
    """The same program, a part of its module paths replaced."""
    return replace(
        report,
        rows=tuple(
            row._replace(module=row.module.replace(old, new), node=f"n_{row.node}") for row in report.rows
        ),
        modules={path.replace(old, new): kind for path, kind in report.modules.items()},
        parameter_modules={path.replace(old, new): n for path, n in report.parameter_modules.items()},
    )


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("blocks", "layers", [("moved", "blocks", "layers")]),
        ("mlp.up", "mlp.wide", [("moved", "blocks.0-11.mlp.up", "blocks.0-11.mlp.wide")]),
        ("blocks.3.attn", "blocks.3.attention", [("moved", "blocks.3.attn", "blocks.3.attention")]),
        ("embed", "tokens.embed", [("moved", "embed", "tokens.embed")]),
    ],
)
def test_renamed_and_moved_modules_are_one_entry(old: str, new: str, expected: list[object]) -> None:
    comparison = compared(decoder(), renamed(decoder(), old, new))
    assert listed(comparison) == expected
    assert all(not figure.differs for figure in comparison.totals["forward"].values())


def test_what_moved_into_another_module_is_found() -> None:
    old = made(
        [linear("a", "encoder.proj", 8, 9), linear("b", "decoder.out", 9, 8)],
        parameter_modules={"encoder.proj": 72, "decoder.out": 72},
    )
    new = renamed(old, "encoder.proj", "decoder.proj")
    assert listed(compared(old, new)) == [("moved", "encoder.proj", "decoder.proj")]


def test_lists_of_unrelated_networks_are_no_pairs() -> None:
    def network(kind: str, *paths: str) -> Report:
        rows = [linear(path, path, 8 + len(path), 8) for path in paths]
        lists = {path.split(".")[0]: "torch.nn.Sequential" for path in paths}
        parts = {path.rpartition(".")[0]: kind for path in paths}
        return made(rows, modules={**parts, **lists})

    # as many lists on both sides, of parts that share nothing
    old = network("my.BasicBlock", "layer1.0.conv1", "layer2.0.conv1")
    new = network("my.InvertedResidual", "stage2.0.branch", "stage3.0.branch")
    assert {entry[0] for entry in listed(compared(old, new))} == {"gone", "new"}
    # lists elsewhere of which only the numbers are equal
    old = made(
        [plain("a", "aten.relu.default", f"block.down.{n}", f"nn.{kind}") for n, kind in enumerate("AB")]
    )
    new = made(
        [plain("a", "aten.silu.default", f"classifier.{n}", f"nn.{kind}") for n, kind in enumerate("CD")]
    )
    assert {entry[0] for entry in listed(compared(old, new))} == {"gone", "new"}


def wrapped(report: Report, wrapper: str) -> Report:
    """The report of the model as `m` of a module of some type; "" where the file records no types."""
    rows = [row._replace(module=f"m.{row.module}".rstrip(".")) for row in report.rows]
    modules = {f"m.{path}" if path else "m": kind for path, kind in report.modules.items()}
    held = {f"m.{path}": count for path, count in report.parameter_modules.items()}
    modules = {path: kind if wrapper else "" for path, kind in modules.items()}
    rows = rows if wrapper else [row._replace(module_type="") for row in rows]
    return replace(report, rows=tuple(rows), modules={"": wrapper, **modules}, parameter_modules=held)


@pytest.mark.parametrize("wrapper", ["my.Wrapper", ""])
def test_a_wrapper_around_the_model_moves_nothing(wrapper: str) -> None:
    model = decoder()
    for old, new, paths in (
        (model, wrapped(model, wrapper), ("", "m")),
        (wrapped(model, wrapper), model, ("m", "")),
    ):
        comparison = compared(old, new)
        assert (comparison.same, listed(comparison), comparison.renumbered) == (True, [], (paths,))


def test_an_exporter_may_order_branches_anew() -> None:
    """Nothing moves in the export of a query and a key that are computed in the other order."""
    old = made([linear("q", "q", 8, 8), linear("k", "k", 8, 8)], parameter_modules={"q": 64, "k": 64})
    new = replace(old, rows=old.rows[::-1])
    onnx = replace(new, origin=replace(new.origin, format="onnx"))
    assert [status for status, *_ in listed(compared(old, new))] == ["moved"]
    assert listed(compared(old, onnx)) == []


def test_names_of_nodes_and_lines_are_no_difference() -> None:
    old = decoder()
    rows = (
        row._replace(node=f"x_{row.node}", source=f"other.py:{index}") for index, row in enumerate(old.rows)
    )
    assert compared(old, replace(old, rows=tuple(rows))).same


def test_views_are_no_difference() -> None:
    old = decoder()
    view = Row("view", "aten.view.default", "blocks.0.attn", "model.Attention", "model.py:18", "free")
    assert compared(old, replace(old, rows=(view, *old.rows))).same


def test_unknown_is_said_first_and_totals_are_lower_bounds() -> None:
    comparison = compared(decoder(), with_unknown(decoder()))
    first, second, *others = [*headlines(comparison), *map(cause_words, comparison.causes)]
    assert first.startswith("coverage: of unknown cost now: my.fused.default (+2), my.other.default (+1)")
    assert "→ >= " in second or ">= " in second
    assert "blocks.0.attn (Attention)" in others[-1]
    assert "3 calls of unknown cost more" in others[-1]
    assert [(entry.op, entry.before, entry.after) for entry in comparison.unknown] == [
        ("my.fused.default", 0, 2),
        ("my.other.default", 0, 1),
    ]
    back = headlines(compared(with_unknown(decoder()), decoder()))
    assert back[0].startswith("coverage: no longer of unknown cost: my.fused.default (-2)")
    # of one side only the least is known, though the known parts are equal
    flops = second.partition("FLOPs ")[2].partition(" →")[0]
    assert f"FLOPs {flops} → >= {flops} (0, 0.0 %)" in second
    assert f"FLOPs >= {flops} → {flops} (0, 0.0 %)" in back[1]


def test_only_what_no_call_adds_to_is_exact_beside_unknown_calls() -> None:
    lines = totals(compared(decoder(), with_unknown(decoder())), "forward", 0).entries
    exact = [line.cells[0] for line in lines if not line.cells[2].startswith(">= ")]
    assert exact == ["parameters", "parameter memory"]


def test_unknown_on_one_side_only_is_never_zero() -> None:
    fused = Row("f", "my.fused.default", "fc", "Fused", "m.py:1", "unknown")
    comparison = compared(made([linear("a", "fc", 8, 8)]), made([fused]))
    (change,) = comparison.modules
    assert (change.before_unknown, change.after_unknown) == (0, 1)
    assert "of unknown cost" in cause_words(comparison.causes[0])


def test_source_lines_are_followed() -> None:
    old = decoder()
    rows = (row._replace(source=row.source.replace(":17", ":20").replace(":21", ":24")) for row in old.rows)
    wider = [row._replace(cost=row.cost * 2) if row.source.endswith(":20") else row for row in rows]
    comparison = compared(old, replace(old, rows=tuple(wider), totals=made(wider).totals))
    assert [(group.before, group.after) for group in comparison.sources] == [("model.py:17", "model.py:20")]
    assert comparison.unchanged_sources == 3  # :19, :21 now :24, :40


def test_operators_before_and_after() -> None:
    comparison = compared(sequence("fc8", "relu", "relu"), sequence("fc8", "gelu", "relu"))
    assert [(g.before, g.after, g.before_calls, g.after_calls) for g in comparison.ops] == [
        ("aten.relu.default", "aten.relu.default", 2, 1),
        (None, "aten.gelu.default", 0, 1),
    ]
    assert comparison.unchanged_ops == 1


def test_an_operator_in_anothers_place_is_one_changed_call() -> None:
    block = {"kind": "model.Block"}
    rows = [plain("a", "aten.silu.default", "mlp", **block), plain("b", "aten.mul.Tensor", "mlp", **block)]
    comparison = compared(made(rows), made([plain("c", "aten.gelu.default", "mlp", **block), rows[1]]))
    (change,) = comparison.modules
    assert change.facts == (Fact("operator", "aten.silu.default", "aten.gelu.default"),)
    assert [(pair.before.op, pair.after.op) for pair in change.calls if pair.before and pair.after] == [
        ("aten.silu.default", "aten.gelu.default")
    ]


def test_equal_entries_share_a_line_and_their_sum() -> None:
    old, new = decoder(layers=3), decoder(layers=3)
    rows = [row._replace(cost=row.cost * 2) if row.module.endswith("mlp.up") else row for row in new.rows]
    comparison = compared(old, replace(new, rows=tuple(rows), totals=made(rows).totals))
    (fold,) = comparison.folded
    assert (fold.path, len(fold.members)) == ("blocks.0-2.mlp.up", 3)
    assert fold.figures["matrix_flops"].delta == 3 * 2 * (3 * 7) * 64 * 256  # 3 x 7 tokens, 64 -> 256
    assert len(comparison.modules) == 3


def test_exports_are_checked_by_matrix_work() -> None:
    spelled = [
        row._replace(op=f"onnx.{row.op}", cost=replace(row.cost, vector_flops=5, read_bytes=7))
        for row in decoder().rows
    ]
    onnx = replace(
        decoder(), rows=tuple(spelled), origin=Origin("lm.onnx", "onnx"), totals=made(spelled).totals
    )
    comparison = compared(decoder(), onnx)
    assert comparison.export
    assert comparison.same
    assert comparison.modules == ()
    assert "the export keeps the work" in headlines(comparison)[0]
    # the same number by a formula that is not the same for every size
    figure = comparison.totals["forward"]["matrix_flops"]
    other = {"matrix_flops": replace(figure, after=figure.after + symbol("ids[0]") - 2)}
    said = replace(comparison, totals={"forward": {**comparison.totals["forward"], **other}})
    assert headlines(said)[0].endswith("in both (0) at these sizes, by another formula")
    lost = [row._replace(cost=Cost()) if row.module == "blocks.0.mlp.up" else row for row in spelled]
    comparison = compared(decoder(), replace(onnx, rows=tuple(lost), totals=made(lost).totals))
    assert listed(comparison) == [("changed", "blocks.0.mlp.up", "blocks.0.mlp.up")]
    assert not comparison.same


def test_a_file_without_modules_compares_in_total() -> None:
    flat = [row._replace(module="", module_type="") for row in decoder().rows]
    comparison = compared(decoder(), replace(decoder(), rows=tuple(flat), origin=Origin("lm.onnx", "onnx")))
    assert comparison.modules == ()
    assert [remark.name for remark in comparison.remarks] == ["no-modules"]


def test_training_in_both_is_compared() -> None:
    comparison = compared(training(decoder(layers=2)), training(decoder(layers=3)))
    (change,) = comparison.modules
    forward, backward = change.figures["matrix_flops"], change.backward["matrix_flops"]
    assert backward.delta == 2 * (forward.delta or 0)
    assert comparison.totals["step"]["matrix_flops"].delta == 3 * (forward.delta or 0)


def test_sizes_without_values_compare_as_formulas() -> None:
    comparison = compared(unset(decoder(layers=1)), unset(decoder(layers=2)))
    figure = comparison.totals["forward"]["matrix_flops"]
    tokens = symbol("ids[0]") * symbol("ids[1]")
    assert figure.delta is None
    assert (
        figure.formula == 2 * tokens * (64 * 192 + 64 * 256 + 256 * 64) + 4 * tokens * symbol("ids[1]") * 64
    )
    assert "[new] blocks.1" in cause_words(comparison.causes[0])


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_hostile_names_stay_text(form: str) -> None:
    changed = hostile()
    changed = replace(
        changed, rows=(changed.rows[0]._replace(cost=Cost(7), module=f"{HOSTILE}.x"), *changed.rows[1:])
    )
    for by in (None, "op", "source") if form != "json" else (None,):
        text = render(compared(hostile(), changed), form, by=by)  # type: ignore[arg-type]
        assert "\x1b" not in text
        assert "\u202e" not in text
        if form == "markdown":
            assert "<b>" not in text
            assert "@all" not in text
        if form == "csv":
            assert not any(
                cell.startswith(("=", "@", "+a")) for line in text.splitlines() for cell in line.split(",")
            )


def test_a_comment_keeps_to_its_limit() -> None:
    lines = ["first", *(f"line {n}" for n in range(100))]
    text = within(lines, 200)
    assert len(text) <= 200
    kept = text.count("line ")
    assert text.endswith(f"… {100 - kept:,} more lines left out\n")
    assert within(lines, None) == "\n".join(lines) + "\n"


def test_markdown_of_a_large_change_fits_a_comment() -> None:
    wide = decoder(layers=300)
    names = [f"blocks.{n}.{'x' * 100}{n}" for n in range(len(wide.rows))]
    rows = [
        row._replace(module=name, cost=Cost(n))
        for n, (row, name) in enumerate(zip(wide.rows, names, strict=True))
    ]
    text = render(compared(decoder(layers=300), replace(wide, rows=tuple(rows))), "markdown", top=100_000)
    assert len(text) <= 65_536
    assert "more lines left out" in text


def test_a_deep_path_is_no_problem() -> None:
    deep = ".".join(["m"] * 50_000)
    old, new = made([linear("a", deep, 8, 8)]), made([linear("a", deep, 8, 9)])
    assert len(compared(old, new).modules) == 1


def test_the_parts_of_what_was_split_are_one_entry() -> None:
    one = made([linear("a", "attn.qkv", 64, 192)], parameter_modules={"attn.qkv": 64 * 192})
    three = made(
        [linear(f"l_{name}", f"attn.{name}", 64, 64) for name in "qkv"],
        parameter_modules={f"attn.{name}": 64 * 64 for name in "qkv"},
    )
    comparison = compared(one, three)
    assert sorted(listed(comparison), key=str) == [("gone", "attn.qkv", None), ("new", None, "attn.{q,k,v}")]
    assert comparison.totals["forward"]["matrix_flops"].delta == 0
    assert [fold.figures["parameters"].delta for fold in comparison.folded if fold.path] == [3 * 64 * 64]


def test_where_a_change_begins_is_told_from_what_follows() -> None:
    def conv(node: str, module: str, size: tuple[int, int]) -> Row:
        x, y = (Named("t", TensorType((1, 8, edge, edge), FLOAT32)) for edge in size)
        cost = Cost(2 * 8 * 8 * 9 * size[1] ** 2)
        return Row(
            node,
            "aten.conv2d.default",
            module,
            "Conv2d",
            "m.py:1",
            "counted",
            cost=cost,
            inputs=(x,),
            outputs=(y,),
        )

    old = made([conv("a", "stem", (32, 16)), conv("b", "body", (16, 16))])
    new = made([conv("a", "stem", (32, 32)), conv("b", "body", (32, 32))])
    text = "\n".join(map(cause_words, compared(old, new).causes))
    assert text == "stem (Conv2d): same input, result [1, 8, 16, 16] → [1, 8, 32, 32]; then in body"


def test_many_equal_calls_are_no_problem() -> None:
    rows = [plain(f"n{index}", "aten.add.Tensor", "", "M") for index in range(2000)]
    mixed = [row._replace(cost=row.cost * 2) if index % 2 else row for index, row in enumerate(rows)]
    (change,) = compared(made(rows), made(mixed)).modules
    assert len(change.calls) == 1000
