"""A report as JSON, safe to print: characters that a terminal could act on are escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphflops.base.json_form import Formula
from graphflops.dims import Dim, evaluate
from graphflops.report import Report

_ACTIVE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def json(report: Report) -> str:
    """The whole report, one object on one line."""
    return inert(report.to_json())


def quantity(dim: Dim | None, values: Mapping[str, int]) -> int | Formula | None:
    """A quantity for programs: a number, with its formula where it depends on a size; None where it is not known."""
    return dim if dim is None or isinstance(dim, int) else Formula(evaluate(dim, values), str(dim))


def inert(data: bytes) -> str:
    """JSON as a line of text: characters that a terminal could act on are escaped."""
    text = data.decode()
    if not text.isascii() or "\x7f" in text:
        text = _ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text + "\n"
