"""The checks of an audit: each a function under a stable code, its docstring the explanation that users read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from graphflops.base.docstrings import docstring
from graphflops.dims import Dim
from graphflops.onnx_audit.model import Model
from graphflops.report.findings import RuleInfo, Severity

Run = Callable[[Model], Iterable["Observation"]]

Kind = Literal["correctness", "safety", "cost", "time"]
Reads = Literal["file", "graph", "report"]


class Edit(NamedTuple):
    """One change of the file, a part of a fix. Values are named as in the program."""

    # instead: what uses `value`, and the program where it returns it, uses `other`, which holds the same.
    # operand: the call that makes `value` takes `other` as its first operand; numbers: the order of axes that it then puts.
    # stored: `value` is computed once and stored. scalar, vector: it is this int64, or these, stored as well.
    # dropped: `value`, which nothing uses, is removed with what makes it. functions: so are functions that nothing calls.
    # undeclared: the file no longer states the type of `value`. sized: it states the size numbers[1] for axis numbers[0].
    # folded: the batch norm that makes `value` becomes part of the convolution before it.
    # attention: one Attention of `operands`, whose scores it multiplies by `scale`, makes `value`.
    kind: (
        Literal["instead", "operand", "stored", "scalar", "vector", "dropped"]
        | Literal["functions", "undeclared", "sized", "folded", "attention"]
    )
    value: str = ""
    other: str = ""
    numbers: tuple[int, ...] = ()
    operands: tuple[str, ...] = ()
    scale: float = 1.0


class Observation(NamedTuple):
    """One problem that a check found."""

    message: str
    at: Any = None  # the call it is about, as a NodeProto or a `view.Call`; None for the whole model
    flops: Dim | None = 0  # what it costs in one run, like the bytes
    bytes: Dim | None = 0
    severity: Severity | None = None  # None for the check's own severity
    edits: tuple[Edit, ...] = ()  # what fixes it, all of them or none; () where only a person can
    exact: bool = True  # whether results stay the same bit for bit
    stored: int = 0  # bytes of stored tensors
    is_small: bool = False  # it is told although it costs next to nothing


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    code: str
    name: str
    kind: Kind
    severity: Severity  # of its observations that state none of their own
    advice: str  # what the user should do, one sentence; "" where the last paragraph of the docstring says it
    # "file" for a check of the file's content, "graph" for one of a valid program, "report" for one of times.
    reads: Reads
    run: Callable[[Any], Iterable[Any]]

    @property
    def paragraphs(self) -> list[str]:
        """The docstring, one line for each paragraph."""
        return [" ".join(paragraph.split()) for paragraph in docstring(self.run).split("\n\n")]

    @property
    def explanation(self) -> str:
        """What the check looks for and why that matters, one line for each paragraph."""
        return "\n\n".join(text for text in self.paragraphs if not text.startswith(_FIX))

    @property
    def fix(self) -> str:
        """What the user should do, one sentence."""
        return self.advice or self.paragraphs[-1].removeprefix(_FIX).removesuffix(".")

    @property
    def summary(self) -> str:
        """The first sentence of the explanation."""
        sentence = re.match(r".*?[.](?=\s|$)", self.explanation, re.DOTALL)
        return self.explanation if sentence is None else sentence[0]

    @property
    def info(self) -> RuleInfo:
        """What holds for all findings of the check."""
        text = f"{self.explanation}\n\nFix: {self.fix}."
        return RuleInfo(self.name, self.summary, text, self.severity)


_FIX = "Fix: "
CHECKS: dict[str, Check] = {}  # complete once `audit.checks` was called


def check(
    code: str, name: str, severity: Severity, *, reads: Reads = "graph", kind: Kind | None = None
) -> Callable[[Run], Run]:
    """Register a check, whose docstring ends in what to do. A fact that an analysis reports too has the analysis' code.

    kind: by default GF20x and GF21x are about correctness, GF22x and GF23x about safety, GF24x to GF26x about cost.
    """
    number = int(code[2:])
    by_number: Kind = "correctness" if number < 220 else "safety" if number < 240 else "cost"

    def register(function: Run) -> Run:
        assert code not in CHECKS, code
        CHECKS[code] = Check(code, name, kind or by_number, severity, "", reads, function)
        return function

    return register
