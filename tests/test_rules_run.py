"""The message about a rule that no test runs."""

from __future__ import annotations

from tests.rules_run import Name, unrun

NAMES = {
    "rule aten.mm": Name("rule", ("aten.mm", "aten.bmm"), "graphflops.rules.matmul"),
    "backward aten.gelu": Name("backward", ("aten.gelu",), "graphflops.rules.pointwise"),
}


def test_a_rule_that_did_not_run_is_named_with_its_operators_and_its_file() -> None:
    assert unrun(NAMES, {"backward aten.gelu"}, {}) == [
        "rule of aten.mm, aten.bmm (graphflops/rules/matmul.py)"
    ]


def test_a_reason_stands_for_a_test() -> None:
    assert unrun(NAMES, {"rule aten.mm"}, {"backward aten.gelu": "needs a GPU"}) == []


def test_a_reason_that_is_not_true_any_more_is_a_problem() -> None:
    problems = unrun(NAMES, set(NAMES), {"rule aten.mm": "needs a GPU", "rule aten.gone": "needs a GPU"})
    assert [problem.partition(" ran,")[0] for problem in problems] == ["rule aten.gone", "rule aten.mm"]
