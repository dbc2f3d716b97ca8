"""The checks of an audit: each a function under a stable code, its docstring the explanation that users read."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from graphflops.dims import Dim
    from graphflops.findings import Severity
    from graphflops.onnx_audit.model import Model

Kind = Literal["correctness", "safety", "cost"]


class Found(NamedTuple):
    """What a check found at one place.

    at: the call, as a NodeProto or an `audit.model.Call`; None for the whole model.
    flops, bytes: what it costs in one run. severity: where it is not the check's own.
    """

    message: str
    at: Any = None
    flops: Dim | None = 0
    bytes: Dim | None = 0
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    severity: of what it finds, unless it says otherwise. fix: what to do about it, one sentence.
    reads: "file" for one that looks at the file as it is, "graph" for one that needs it to be a program.
    """

    code: str
    name: str
    kind: Kind
    severity: Severity
    fix: str
    reads: Literal["file", "graph"]
    run: Callable[[Model], Iterable[Found]]

    @property
    def explanation(self) -> str:
        """What it looks for, and why that matters; paragraphs are lines."""
        paragraphs = inspect.cleandoc(self.run.__doc__ or "").split("\n\n")
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    @property
    def summary(self) -> str:
        """The first sentence of the explanation."""
        sentence = re.match(r".*?[.](?=\s|$)", self.explanation, re.DOTALL)
        return self.explanation if sentence is None else sentence[0]


CHECKS: dict[str, Check] = {}  # complete once `catalogue` is imported


def check(
    code: str, name: str, severity: Severity, *, fix: str, reads: Literal["file", "graph"] = "graph"
) -> Callable[[Callable[[Model], Iterable[Found]]], Callable[[Model], Iterable[Found]]]:
    """Register a check. GF20x and GF21x are about correctness, GF22x and GF23x about safety, GF24x to GF26x about cost."""
    number = int(code[2:])
    kind: Kind = "correctness" if number < 220 else "safety" if number < 240 else "cost"

    def register(function: Callable[[Model], Iterable[Found]]) -> Callable[[Model], Iterable[Found]]:
        assert code not in CHECKS, code
        CHECKS[code] = Check(code, name, kind, severity, fix, reads, function)
        return function

    return register
