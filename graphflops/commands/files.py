"""What commands read and write: a report for a model, text for a screen or a file."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphflops.errors import FileError, GraphflopsError, RuleError, innermost, shown
from graphflops.render import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.graph import Graph
    from graphflops.render import ReportFormat
    from graphflops.report import Report

Form = TypeVar("Form", bound="ReportFormat")

_PIPE_WIDTH = 120  # columns of a table that goes to no terminal
_LARGEST_REPORT = 2**30  # bytes of a saved report; one of a 70B model has 4 million


def form_of(form: Form | None, output: str | None, forms: Sequence[Form]) -> Form:
    """The format asked for, else the one of these that the file's suffix stands for, else the first."""
    if form is not None:
        return form
    suffix = os.path.splitext(output or "")[1].lower()
    return next((known for known in forms if known == SUFFIXES.get(suffix)), forms[0])


def report_of(
    model: str | Graph,
    *,
    rule_files: tuple[str, ...] = (),
    model_name: str | None = None,
    quiet: bool = False,
    **options: Any,
) -> Report:
    """The report of a model or a program read, or the saved one that the file is. `quiet`: without a bar for progress."""
    if isinstance(model, str) and is_report(model):
        if rule_files or model_name is not None or any(options.values()):
            raise click.UsageError(
                "MODEL is a saved report, which is as it was analysed: give the model itself"
            )
        return _saved(model)
    import_rules(rule_files)
    from graphflops.analysis import analyze

    with Progress() as progress:
        return analyze(model, model_name=model_name, progress=None if quiet else progress, **options)


def is_report(path: str) -> bool:
    """Whether the file is JSON, but not the JSON of an ONNX model."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        head = file.read(512)
    if not head.lstrip().startswith(b"{"):
        return False
    from graphflops.exporters.onnx import kind_of

    return kind_of(head) != "json"


def _saved(path: str) -> Report:
    from graphflops.report import Report

    with open(path, "rb") as file:
        data = file.read(_LARGEST_REPORT + 1)
    if len(data) > _LARGEST_REPORT:
        raise FileError(f"{shown(path)}: larger than any report: {_LARGEST_REPORT:,} bytes at most")
    try:
        return Report.from_json(data)
    except GraphflopsError as error:
        raise FileError(f"{shown(path)}: {error}") from error


def import_rules(files: Sequence[str]) -> None:
    """Run the user's own rule files; RuleError says in which line one fails."""
    if not files:
        return
    import importlib.util

    for index, path in enumerate(files):
        name = f"graphflops_user_rules_{index}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise RuleError(f"{shown(path)}: not a Python file; --rules takes one that ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            said = str(error) if isinstance(error, GraphflopsError) else f"{type(error).__name__}: {error}"
            raise RuleError(f"{shown(path)}: {said} ({innermost(error.__traceback__)})") from error


def screen(output: str | None, otherwise: int = _PIPE_WIDTH) -> dict[str, Any]:
    """How wide the reader's screen is, and whether it has colours."""
    if output is not None or not sys.stdout.isatty():
        return {"width": otherwise, "color": False}
    import shutil

    colorful = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return {"width": shutil.get_terminal_size().columns, "color": colorful}


@contextlib.contextmanager
def whole(output: str) -> Iterator[str]:
    """A path to write to, which becomes `output` when all went well; a device or pipe is written as it is."""
    if os.path.exists(output) and not os.path.isfile(output):
        yield output
        return
    target = os.path.realpath(output)
    mode = os.stat(target).st_mode & 0o777 if os.path.exists(target) else None
    part = os.path.join(os.path.dirname(target), f".{os.urandom(6).hex()}{os.path.splitext(output)[1]}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        if mode is not None:
            os.chmod(part, mode)
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and error.filename in (None, part):
            raise FileError(f"{shown(output)}: cannot be written: {error.strerror or error}") from error
        raise


def write(text: str, output: str | None) -> None:
    """Text to a file, or to stdout where none is named."""
    if output is not None and output != "-":
        with whole(output) as path, open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        from graphflops.render.text import plain_ascii

        text = plain_ascii(text)
    click.echo(text, nl=False, color=True)  # escapes are in it only where they are wanted


class Progress:
    """A bar on stderr for work that takes longer than a second, on a terminal only."""

    def __init__(self) -> None:
        from time import monotonic

        self.clock = monotonic
        self.start = monotonic()
        self.shown = sys.stderr.isatty()
        self.bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if not self.shown or (self.bar is None and self.clock() - self.start < 1):
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("analyzing", total=total)
        self.bar.update(self.task, completed=done)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.stop()
