"""Everything graphflops raises on purpose, in one tree below `GraphflopsError`.

Each message is one line that says what is wrong, where, and, where we know it, what to do. Only the command line catches
`GraphflopsError`; the analysis loop catches `ShapeError` to add which node it was.
"""

import os
import re
from collections.abc import Container, Sequence
from types import TracebackType

ZERO_WIDTH = "\u200b"  # a space of no width: it breaks a mention or a command and cannot be seen


class GraphflopsError(Exception):
    """Base of all errors that graphflops raises on purpose."""


class FileError(GraphflopsError):
    """The file cannot be read as what it claims to be."""


class ModelError(GraphflopsError):
    """The model contradicts itself, or what was asked of it."""


class OptionError(GraphflopsError, ValueError):
    """An option does not go with the input or with another option; the command line calls it wrong usage."""


class LimitError(GraphflopsError):
    """The analysis takes more time, memory or work than it may; raised with which of them, and the limit."""


class DimError(GraphflopsError, ValueError):
    """A size expression is malformed, unsafe or too large."""


class NoValueError(DimError, ZeroDivisionError):
    """A size expression divides by zero at the sizes put in."""


class ShapeError(GraphflopsError):
    """Operands whose shapes provably do not fit together; raised by a rule with both values."""


class RunError(GraphflopsError):
    """A call of a program that is being run cannot run; raised with which call it is, and torch's own words."""


class RuleError(GraphflopsError):
    """A rule, or its registration, is wrong."""


class NoRuleError(RuleError):
    """A call runs an operator that no rule prices; raised with the operator's name."""

    def __init__(self, op: str) -> None:
        super().__init__(f"no rule for operator {shown(op)}: its cost is not in the totals")


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raises OptionError, which lists the choices, for an argument that is none of them."""
    if value not in choices:
        raise OptionError(f"{name}: no {shown(repr(value), 60)}; there are {', '.join(map(str, choices))}")


def shown(name: str, limit: int = 120) -> str:
    """A name from a file as it can be printed: control characters escaped, long ones cut in the middle."""
    printable = name
    if not name.isprintable():
        printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return elided(printable, limit)


def first_line(error: BaseException, limit: int = 300) -> str:
    """The first line of an exception's message, with the next if it ends in a colon; the class if there is no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return shown(" ".join(lines[: 1 + lines[0].endswith(":")]), limit)


def said_by(error: BaseException) -> str:
    """The message of an exception of ours; of others their class and the first line of their message."""
    if isinstance(error, GraphflopsError):
        return str(error)
    name = type(error).__name__
    return f"{name}: {first_line(error)}" if str(error).strip() else name


def raised(error: BaseException) -> str:
    """What `said_by` says, and the line that raised the exception."""
    return f"{said_by(error)} ({innermost(error.__traceback__)})"


def elided(text: str, width: int) -> str:
    """The text in at most `width` characters, the middle left out where it is longer."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}" if width > 0 else ""


def inert_in_logs(text: str) -> str:
    """Text in which a job of GitHub Actions finds no workflow command (`::error`, `##[group]`), whatever names are in it."""
    if not os.environ.get("GITHUB_ACTIONS"):
        return text
    inert = re.sub(r"^(\s*:)(?=:)", f"\\1{ZERO_WIDTH}", text, flags=re.MULTILINE)
    return inert.replace("##[", f"##{ZERO_WIDTH}[")


def innermost(trace: TracebackType | None, package: str = "", beside: Container[str] = ()) -> str:
    """The line that raised an exception, `model.py:17`: in a package, if given; in packages `beside` only if in no other."""
    place = other = "?"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        folders = name.split(os.sep)[:-1]
        # Python's own machinery of imports says nothing.
        if not name.startswith("<frozen") and (not package or package in folders):
            other = f"{os.path.basename(name)}:{trace.tb_lineno}"
            place = place if any(each in beside for each in folders) else other
        trace = trace.tb_next
    return other if place == "?" else place
