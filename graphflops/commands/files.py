"""Reads reports for commands, and writes their output to a screen or a file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from graphflops.base.files import whole
from graphflops.base.record import Record
from graphflops.errors import inert_in_logs
from graphflops.render import formats

if TYPE_CHECKING:
    from tqdm import tqdm

    from graphflops.graph import Graph
    from graphflops.report import Report

OF_THE_FILE = ("rule_files", "verify", "model_name")  # options of how a file is read
_UNBOUNDED = 1_000_000  # columns of a text that goes to no terminal


def report_of(
    model: str | Graph, *, rule_files: tuple[str, ...] = (), quiet: bool = False, verify: bool = False,
    model_name: str | None = None, **options: Any,
) -> Report:  # fmt: skip
    """The report of a model, or the saved report that the file is.

    quiet: no progress bar. verify: check first that the program read from the file is well formed.
    """
    from graphflops.loading import analyze, import_rules, is_report

    if (rule_files or verify) and is_report(model):
        what = "MODEL is a saved report, which takes no --rules and no --verify"
        raise click.UsageError(f"{what}: give the model itself")
    import_rules(rule_files)
    with Progress() as progress:
        if verify:
            from graphflops.exporters import load
            from graphflops.verify import verify as require_well_formed

            model = load(model, model_name) if isinstance(model, str) else model
            require_well_formed(model)
            model_name = None
        return analyze(model, model_name=model_name, progress=None if quiet else progress, **options)


def screen(output: str | None) -> dict[str, Any]:
    """How wide the reader's screen is, and whether it has colours; off a terminal, COLUMNS or as wide as is needed."""
    if output is not None or not sys.stdout.isatty():
        given = os.environ.get("COLUMNS", "")
        has_width = given.isdecimal() and len(given) < 10 and int(given) > 0
        return {"width": int(given) if has_width else _UNBOUNDED, "color": False}
    import shutil

    colorful = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return {"width": shutil.get_terminal_size().columns, "color": colorful}


def write(text: str | bytes, output: str | None) -> None:
    """Text or bytes to a file, or to stdout where none is named."""
    if output is not None and output != "-":
        with whole(output) as part, open(part, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return
    if isinstance(text, bytes):
        if sys.stdout.isatty():
            raise click.UsageError("this format is binary: name a file with --output")
        click.echo(text, nl=False)
        return
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        from graphflops.render.text import plain_ascii

        text = plain_ascii(text)
    if not _is_file(sys.stdout):
        text = inert_in_logs(text)
    click.echo(text, nl=False, color=True)  # escapes are in it only where they are wanted


def end(problems: Iterable[str], code: int, kind: str = "error") -> None:
    """Says each problem that is not "", and exits with the code where there is one."""
    told = [problem for problem in problems if problem]
    for problem in told:
        click.echo(f"graphflops: {kind}: {problem}", err=True)
    if told:
        raise Exit(code)


def _is_file(stream: IO[str]) -> bool:
    """True if the stream goes into a file, and not to a terminal or the log of a job."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


class Output(Record, frozen=True):
    """Where a result goes, and in which format."""

    form: str | None
    path: str | None

    def of(self, kind: str, **options: object) -> Output:
        """The same with the format of results of this class; OptionError for options that the format does not take."""
        form = formats.chosen(kind, self.form, self.path)
        formats.refuse(kind, form, options)
        return Output(form, self.path)

    @property
    def is_exact(self) -> bool:
        """Whether programs read it, not people."""
        return self.form in ("json", "csv")

    def text(self, value: object, **options: object) -> str | bytes:
        return formats.render(value, self.form or "", **options, **screen(self.path))

    def write(self, value: object, **options: object) -> None:
        write(self.text(value, **options), self.path)


class Progress:
    """A bar on stderr for work that takes longer than a second, on a terminal only. It is wiped when the work is done."""

    def __init__(self, doing: str = "analyzing", unit: str = "it") -> None:
        self.doing, self.unit = doing, unit
        self.bar: tqdm[Any] | None = None
        self.start = monotonic()
        self.shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """What is done now. note: to be said beside it."""
        if not self.shown or (self.bar is None and monotonic() - self.start < 1):
            return
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(desc=self.doing, total=total, unit=self.unit, leave=False, dynamic_ncols=True)
        self.bar.total = total
        if note:
            self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(done - self.bar.n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.close()
