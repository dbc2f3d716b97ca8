"""Records which rules the tests run. A run of all tests fails where a rule ran in none of them.

Operators registered on one function are one rule here. A rule of a family that a table makes is a function of its own.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

import pytest

from graphflops.rules import registry
from graphflops.rules.operands import Derived, Signature
from tests.rules.not_run import NOT_RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Set

WHAT_TO_DO = (
    "No test runs these rules. Add a case to the tests of their family (tests/rules/, tests/rules/onnx/), whose expected\n"
    "numbers a reader can check, or, where no test can, an entry to tests/rules/not_run.py that says why:"
)


@dataclass(frozen=True)
class Name:
    """A rule as it is reported: what is registered on one function."""

    table: str
    keys: tuple[str, ...]
    home: str

    def __str__(self) -> str:
        return f"{self.table} of {', '.join(self.keys)} ({self.home.replace('.', '/')}.py)"


def unrun(names: Mapping[str, Name], run: Set[str], reasons: Mapping[str, str]) -> list[str]:
    """A line for each rule that did not run and has no reason, and for each reason that is not true any more."""
    missing = set(names) - run - set(reasons)
    stale = [name for name in reasons if name not in names or name in run]
    return [
        *(str(names[name]) for name in sorted(missing)),
        *(f"{name} ran, or does not exist: take it out of tests/rules/not_run.py" for name in sorted(stale)),
    ]


class Recorded(Derived):
    """A rule's function that adds `name` to `run` when it is called."""

    def __init__(self, function: Callable[..., Any], name: str, run: set[str]) -> None:
        super().__init__(function)
        update_wrapper(self, function, updated=())
        self._function, self._name, self._run = function, name, run

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self._run.add(self._name)
        return self._function(*args, **kwargs)

    @property
    def signature(self) -> Signature:
        return Signature.of(self._function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class RulesRun:
    """A pytest plugin: records in every process, and collects from the processes of pytest-xdist."""

    def __init__(self) -> None:
        self.run: set[str] = set()
        self.names = dict(self._recorded())
        self.problems: list[str] = []

    def _recorded(self) -> Iterable[tuple[str, Name]]:
        """Put a recording function in the place of each rule's own; give its first operator and its name."""
        for _ in registry.known():
            pass
        for table, rules in (("rule", registry._rules), ("backward", registry._backwards)):
            keys: dict[int, list[str]] = defaultdict(list)
            for key in sorted(rules):
                keys[id(rules[key].function)].append(key)
            for same in keys.values():
                first = rules[same[0]]
                recorded = Recorded(first.function, f"{table} {same[0]}", self.run)
                rules.update({key: replace(rules[key], function=recorded) for key in same})
                yield f"{table} {same[0]}", Name(table, tuple(same), first.home)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.run.update(getattr(node, "workeroutput", {}).get("rules_run", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["rules_run"] = sorted(self.run)
        elif _all_tests(session):
            self.problems = unrun(self.names, self.run, NOT_RUN)
            if self.problems:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.problems:
            terminalreporter.section("rules that no test runs")
            terminalreporter.write_line(WHAT_TO_DO)
            for problem in self.problems:
                terminalreporter.write_line(f"  {problem}")


def _all_tests(session: pytest.Session) -> bool:
    """Whether all tests ran: the command names no path and no expression, torch is there, nothing ended the run early."""
    if importlib.util.find_spec("torch") is None:
        return False
    config = session.config
    choices = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "collectonly")
    chosen = any(getattr(config.option, name, None) for name in choices)
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not chosen
        and session.exitstatus in (0, 1)
        and not session.shouldfail
    )
