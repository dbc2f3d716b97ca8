"""The module tree: folding, depth, and that its parts add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops.cost import QUANTITIES, Cost
from graphflops.render.ledger import LINES, Ledger, Line, Tree
from graphflops.report import Report, Row
from tests.render.reports import bound, decoder, joint, linear, made, plain, training, unset, with_unknown


def lines(report: Report, depth: int | None = None, most: int | None = None) -> list[Line]:
    return Tree(report, Ledger(report)).lines(depth, most)


def labels(report: Report, depth: int | None = None, most: int | None = None) -> list[tuple[int, str]]:
    return [(line.level, line.label) for line in lines(report, depth, most)]


def test_equal_layers_share_a_line() -> None:
    assert labels(decoder(12), depth=2) == [
        *((0, "Decoder"), (1, "(itself)"), (1, "embed"), (1, "blocks (x12)"), (2, "attn"), (2, "mlp")),
    ]


def test_layers_that_differ_keep_their_numbers() -> None:
    report = decoder(6)
    rows = [
        row._replace(cost=row.cost * 2) if row.module.startswith("blocks.2.mlp") else row
        for row in report.rows
    ]
    report = replace(report, rows=tuple(rows))
    assert labels(report, depth=2) == [
        *((0, "Decoder"), (1, "(itself)"), (1, "embed"), (1, "blocks"), (2, "0-1, 3-5 (x5)"), (2, "2")),
    ]
    assert lines(report, depth=2)[-2].path == "blocks.0-1, 3-5"


def test_a_view_more_does_not_keep_layers_apart() -> None:
    report = decoder(3)
    view = report.rows[2]._replace(node="view_more")
    assert view.state == "free"
    assert "blocks (x3)" in [label for _, label in labels(replace(report, rows=(*report.rows, view)))]


def test_only_numbered_siblings_fold() -> None:
    rows = [linear(name, name, 8, 8) for name in ("query", "key", "0", "1")]
    assert labels(made(rows)) == [(0, "(program)"), (1, "query"), (1, "key"), (1, "0-1 (x2)")]


def test_equal_cost_is_not_enough_to_fold() -> None:
    """Modules of different types, or with different parts, would be misnamed by one line."""
    rows = [
        linear("a", "0", 8, 8),
        linear("b", "1", 8, 8, module_type="other.Linear"),
        linear("c", "2.inner", 8, 8),
    ]
    assert labels(made(rows)) == [(0, "(program)"), (1, "0"), (1, "1"), (1, "2.inner")]


def test_a_container_of_one_thing_shares_its_line() -> None:
    rows = [linear(f"l{i}", f"model.layers.{i}.0.proj", 8, 8) for i in range(4)]
    (root, line) = lines(made(rows))
    assert line.label == "model.layers (x4).0.proj"
    assert line.path == "model.layers.0-3.0.proj"
    assert line.group == root.group


@pytest.mark.parametrize(
    "make", [decoder, lambda: unset(decoder()), lambda: bound(decoder()), lambda: joint(decoder())]
)
def test_the_root_is_the_whole(make: object) -> None:
    report = make()  # type: ignore[operator]
    root = lines(report)[0]
    for name in QUANTITIES:
        ledger = Ledger(report)
        total = getattr(report.totals.cost, name)
        assert ledger.numbers.value(getattr(root.group.cost, name)) == ledger.numbers.value(total)
    assert root.group.calls == report.coverage.counted


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
@pytest.mark.parametrize("make", [decoder, lambda: training(decoder()), lambda: with_unknown(decoder())])
def test_the_lines_below_a_module_add_up_to_it(make: object, depth: int) -> None:
    report = make()  # type: ignore[operator]
    shown = lines(report, depth)
    for index, line in enumerate(shown):
        below = []
        for other in shown[index + 1 :]:
            if other.level <= line.level:
                break
            if other.level == line.level + 1:
                below.append(other)
        if below:
            ledger = Ledger(report)
            work = [ledger.numbers.value(part.group.cost.matrix_flops) for part in below]
            assert sum(work) == ledger.numbers.value(line.group.cost.matrix_flops)  # type: ignore[arg-type]
            assert sum(part.parameters for part in below) <= line.parameters


def test_parameters_without_calls_are_shown() -> None:
    """A module whose weights another one uses, such as the projection inside attention, still owns them."""
    report = made(
        [linear("l", "attn", 8, 8)], parameters=192, parameter_modules={"attn": 64, "attn.out_proj": 128}
    )
    assert [(line.label, line.parameters) for line in lines(report)] == [
        *(("(program)", 192), ("attn", 192), ("(itself)", 0), ("out_proj", 128)),
    ]


def test_as_deep_as_fits() -> None:
    rows = [
        plain(f"n{i}_{j}_{k}", "op", f"a{i}.b{j}.c{k}", "")
        for i in range(4)
        for j in range(5)
        for k in range(3)
    ]
    assert max(line.level for line in lines(made(rows))) == 2
    assert len(lines(made(rows))) == 1 + 4 + 4 * 5 <= LINES
    assert len(lines(made(rows), depth=3)) == 1 + 4 + 4 * 5 + 4 * 5 * 3
    assert len(lines(made(rows), depth=0)) == 1


def test_the_smallest_children_share_a_line() -> None:
    rows = [linear(f"l{i}", f"m{i}", 8, 8 * (1 + i % 3)) for i in range(40)]
    shown = lines(made(rows), 1, 5)
    assert [line.label for line in shown] == ["(program)", "m2", "m5", "m8", "m11", "m14", "… 35 more"]
    ledger = Ledger(made(rows))
    work = [ledger.numbers.value(line.group.cost.matrix_flops) for line in shown]
    assert sum(work[1:]) == work[0]  # type: ignore[arg-type]


def test_unknown_calls_show_where_they_are() -> None:
    shown = {line.path: line.group.unknown for line in lines(with_unknown(decoder(3)), depth=3)}
    assert shown[""] == shown["blocks"] == shown["blocks.0"] == shown["blocks.0.attn"] == 3
    assert shown["blocks.1-2"] == 0


def test_every_module_by_itself() -> None:
    report = decoder(3)
    found = {line.path: line.group for line in Tree(report, Ledger(report), idle=True).paths()}
    assert list(found)[:4] == ["", "embed", "blocks", "blocks.0"]
    assert found["blocks.0"] == found["blocks.2"]
    assert found[""].calls == report.coverage.nodes
    assert set(Tree(report, Ledger(report), idle=True).paths(1)) < set(
        Tree(report, Ledger(report), idle=True).paths()
    )


def test_a_path_of_ten_thousand_parts() -> None:
    deep = ".".join("a" * 10_000)
    report = made([at(deep), at(deep.replace("a", "b"))])
    assert lines(report)[0].group.calls == 2
    assert lines(report, depth=500)


def test_odd_paths() -> None:
    report = made([at(path) for path in ("", ".", "..", "a.", ".a", "9" * 5000, "²", "a")])
    assert lines(report, depth=9)[0].group.calls == 8


def at(module: str) -> Row:
    return linear("n", module, 8, 8)


def test_nothing_at_all() -> None:
    report = replace(made([linear("n", "", 8, 8)]), rows=())
    assert labels(report) == [(0, "(program)")]
    assert lines(report)[0].group.cost == Cost()
