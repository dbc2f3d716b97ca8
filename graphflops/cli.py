"""The command line: parse, call, print.

Exit codes: 0 fine; 1 an error, said in one line on stderr; 2 wrong usage; 3 `--strict` and a node is unknown;
130 interrupted. Nothing but click is imported until a command runs: `--help` must not wait.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphflops import __version__
from graphflops.errors import FileError, GraphflopsError, ModelError, RuleError, shown
from graphflops.render import FORMATS, SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from graphflops.render import Format
    from graphflops.report import Grouping, Report

_TRACEBACK = "GRAPHFLOPS_TRACEBACK"  # environment variable: an internal error is raised as it is
_PIPE_WIDTH = 120  # columns of a table that goes to no terminal
_UNBOUNDED = 10_000  # columns of a list of names that goes to no terminal: a program may look for the names
_LARGEST_REPORT = 2**30  # bytes of a saved report; one of a 70B model has 4 million
_LARGEST_SIZE = 2**48  # elements along one axis

Command = TypeVar("Command", bound="Callable[..., Any]")


class OneLine(click.ClickException):
    """An error as the user sees it: one line, whatever names are in it."""

    def show(self, file: Any = None) -> None:
        """Print the line on stderr."""
        click.echo(f"graphflops: error: {shown(self.message, 2000)}", err=True, file=file)


class Commands(click.Group):
    """The group of commands, and the one place where errors are caught."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. It makes much and drops little: looking for garbage would only take time."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click's own way out; it is quiet about a closed pipe
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        except GraphflopsError as error:
            raise OneLine(str(error)) from error
        except RecursionError as error:
            raise OneLine("the model is nested too deeply to be read") from error
        except MemoryError as error:
            raise OneLine("the model does not fit in memory") from error
        except OSError as error:
            raise OneLine(_reason(error)) from error
        except Exception as error:
            if os.environ.get(_TRACEBACK):
                raise
            where = _innermost(error.__traceback__)
            hint = f"a defect of graphflops; set {_TRACEBACK}=1 to see where, and report it"
            raise OneLine(f"{type(error).__name__}: {error} ({where}): {hint}") from error
        finally:
            if collecting:
                gc.enable()


class Size(click.ParamType):  # type: ignore[type-arg]
    """A size by name: `s27=4096` becomes `("s27", 4096)`."""

    name = "NAME=N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse one."""
        name, found, number = str(value).rpartition("=")
        if not found or not name.strip():
            self.fail(f"{shown(value)!r} is not NAME=N, such as s27=4096 or ids[1]=4096", param, ctx)
        return name.strip(), self.size(number, param, ctx)

    def size(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number of elements."""
        digits = text.strip().replace("_", "")
        if not (
            digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= _LARGEST_SIZE
        ):
            self.fail(f"{shown(text)!r} is no size: an integer from 0 to {_LARGEST_SIZE}", param, ctx)
        return int(digits)


class Shape(Size):
    """A shape by input name: `ids=2,512` becomes `("ids", (2, 512))`."""

    name = "NAME=N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one."""
        name, found, sizes = str(value).rpartition("=")
        if not found or not name.strip():
            self.fail(f"{shown(value)!r} is not NAME=N,N, such as ids=2,512", param, ctx)
        return name.strip(), tuple(self.size(size, param, ctx) for size in sizes.split(","))


def _named(ctx: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a mapping; a name given twice is a mistake."""
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if mapping.setdefault(name, value) != value:
            raise click.BadParameter(f"{shown(name)} is given twice, as two different sizes", ctx, param)
    return mapping


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_output = _options(
    click.option(
        "--format", "form", type=click.Choice(FORMATS), help="Default: by the suffix of --output, else table."
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write here, whole or not at all.",
    ),
)
_rules = click.option(
    "--rules",
    "rule_files",
    type=click.Path(exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE.py",
    help="Run this Python file of yours first: it registers rules with @graphflops.rule.",
)
_model_name = click.option(
    "--model", "model_name", metavar="NAME", help="Which program of an archive that holds several."
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="graphflops", message="%(prog)s %(version)s")
def main() -> None:
    """What a model costs, from its exported file, before anyone runs it.

    \b
    graphflops analyze model.pt2
    graphflops analyze model.pt2 --dim s27=4096 --format json --output report.json
    """


@main.command(short_help="What a model costs, in total and by module.")
@click.argument("model", type=click.Path())
@click.option(
    "--dim",
    "dims",
    type=Size(),
    multiple=True,
    callback=_named,
    help="Size by symbol (s27=4096) or axis (ids[1]=4096).",
)
@click.option(
    "--input",
    "inputs",
    type=Shape(),
    multiple=True,
    callback=_named,
    help="Whole shape of an input: ids=2,512.",
)
@click.option(
    "--by", type=click.Choice(("op", "module", "source")), help="One table only: by operator, module or line."
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Levels of the module tree. Default: about a screen.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Lines of a table, or under one module.")
@_output
@click.option("--training", is_flag=True, help="Price the backward pass and an AdamW step too.")
@click.option("--strict", is_flag=True, help="Exit with 3 if the cost of any node is unknown.")
@_model_name
@_rules
@click.pass_context
def analyze(
    ctx: click.Context,
    model: str,
    dims: dict[str, int],
    inputs: dict[str, tuple[int, ...]],
    by: Grouping | None,
    depth: int | None,
    top: int | None,
    form: Format | None,
    output: str | None,
    training: bool,
    strict: bool,
    model_name: str | None,
    rule_files: tuple[str, ...],
) -> None:
    """FLOPs, bytes, memory and parameters of MODEL: a .pt2 of torch.export.save, or a saved JSON report.

    Nothing in the file is run and no weight is loaded. A size that the file leaves open is taken at the value
    it was exported with, unless --dim or --input gives another.

    \b
    graphflops analyze lm.pt2 --input ids=1,4096 --depth 3
    graphflops analyze lm.pt2 --by op --top 10
    graphflops analyze lm.pt2 --strict --output report.json
    """
    form = _form(form, output)
    if form == "json" and (by or depth is not None or top):
        raise click.UsageError("--by, --depth and --top are not for JSON, which is always the whole report")
    if depth is not None and (by in ("op", "source") or (form == "csv" and by is None)):
        raise click.UsageError("--depth is for the module tree: leave it out or say --by module")
    report = _report(
        model, dims=dims, inputs=inputs, training=training, model_name=model_name, rule_files=rule_files
    )
    from graphflops.render import render

    _write(render(report, form, by=by, depth=depth, top=top, **_screen(output)), output)
    if strict and report.coverage.unknown:
        from graphflops.render.summary import unknown

        click.echo(f"graphflops: strict: {unknown(report)}", err=True)
        ctx.exit(3)


@main.command(short_help="Export a module to a .pt2 or to a report.")
@click.argument("factory", metavar="PKG.MOD:FACTORY")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    required=True,
    metavar="FILE",
    help="Ends in .pt2 or .json.",
)
@click.option("--training", is_flag=True, help="In a report, price the backward pass and an AdamW step too.")
@_rules
def capture(factory: str, output: str, training: bool, rule_files: tuple[str, ...]) -> None:
    """Export the module that FACTORY returns: to a .pt2, or straight to a report (.json).

    FACTORY is your function, without parameters. It returns (module, args), (module, args, kwargs) or
    (module, args, kwargs, dynamic_shapes), or a dict of these names. The module may be on fake or meta
    tensors. Needs torch.

    \b
    graphflops capture mypackage.model:example --output model.pt2
    """
    kind = os.path.splitext(output)[1]
    if kind not in (".pt2", ".json"):
        raise click.UsageError("--output must end in .pt2 (the program) or .json (its report)")
    gc.enable()  # torch and the user's model make garbage enough
    program = _captured(factory)
    if kind == ".pt2":
        import torch

        with _whole(output) as path:
            torch.export.save(program, path)
        return
    _import_rules(rule_files)
    from graphflops.analysis import analyze
    from graphflops.render import render

    _write(render(analyze(program, training=training), "json"), output)


@main.command(short_help="Which operators are priced, and by which rule.")
@click.argument("model", type=click.Path(), required=False)
@_output
@_model_name
@_rules
def rules(
    model: str | None,
    form: Format | None,
    output: str | None,
    model_name: str | None,
    rule_files: tuple[str, ...],
) -> None:
    """All operators that have a rule; with MODEL, each operator of the model and what prices it.

    \b
    graphflops rules model.pt2
    graphflops rules --format csv
    """
    from graphflops.render import listing
    from graphflops.render import rules as tables

    form = _form(form, output)
    if model is None:
        _import_rules(rule_files)
        heads, rows = tables.registered()
    else:
        heads, rows = tables.used(_report(model, model_name=model_name, rule_files=rule_files))
    _write(listing(heads, rows, form, **_screen(output, _UNBOUNDED)), output)


# What commands share


def _form(form: Format | None, output: str | None) -> Format:
    """The format asked for, else the one that the file's suffix stands for."""
    return form or SUFFIXES.get(os.path.splitext(output or "")[1].lower(), "table")


def _report(
    model: str, *, rule_files: tuple[str, ...] = (), model_name: str | None = None, **options: Any
) -> Report:
    """The report of a model, or the saved one that the file is."""
    if _is_report(model):
        if rule_files or model_name is not None or any(options.values()):
            raise click.UsageError(
                "MODEL is a saved report, which is as it was analysed: give the model itself"
            )
        return _saved(model)
    _import_rules(rule_files)
    from graphflops.analysis import analyze

    with Progress() as progress:
        return analyze(model, model_name=model_name, progress=progress, **options)


def _is_report(path: str) -> bool:
    """Whether the file is JSON."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(64).lstrip().startswith(b"{")


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


def _import_rules(files: Sequence[str]) -> None:
    """Run the user's own rule files."""
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
            raise RuleError(f"{shown(path)}: {said} ({_innermost(error.__traceback__)})") from error


def _captured(factory: str) -> Any:
    """The program that torch exports of what the user's factory returns."""
    import importlib

    place, _, name = factory.partition(":")
    if not place or not name:
        raise click.UsageError(f"{shown(factory)} is not PKG.MOD:FACTORY, such as mypackage.model:example")
    try:
        from graphflops.exporters import live
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModelError("capture needs torch: pip install 'graphflops[torch]'") from None
    sys.path.insert(0, os.getcwd())
    try:
        function = importlib.import_module(place)
        for part in name.split("."):
            function = getattr(function, part)
        given = function()  # type: ignore[operator]
    except Exception as error:
        raise ModelError(f"{shown(factory)}: {_said(error)} ({_innermost(error.__traceback__)})") from error
    names = ("module", "args", "kwargs", "dynamic_shapes")
    parts = (
        given
        if isinstance(given, dict)
        else dict(zip(names, given, strict=False))
        if isinstance(given, tuple)
        else {}
    )
    if not {"module", "args"} <= parts.keys() or not parts.keys() <= {*names}:
        raise ModelError(
            f"{shown(factory)} returned a {type(given).__name__}, not (module, args, kwargs, dynamic_shapes)"
        )
    try:
        return live.capture(**parts)
    except Exception as error:
        raise ModelError(f"{shown(factory)}: torch cannot export it: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """What an exception of someone else's code says, in its first line."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _innermost(trace: TracebackType | None) -> str:
    """The line where an exception was raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        "?" if trace is None else f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    )


def _reason(error: OSError) -> str:
    said = error.strerror or str(error) or type(error).__name__
    return (
        f"{shown(os.fsdecode(error.filename))}: {said}" if isinstance(error.filename, (str, bytes)) else said
    )


def _screen(output: str | None, otherwise: int = _PIPE_WIDTH) -> dict[str, Any]:
    """How wide the reader's screen is, and whether it has colours."""
    if output is not None or not sys.stdout.isatty():
        return {"width": otherwise, "color": False}
    import shutil

    colorful = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return {"width": shutil.get_terminal_size().columns, "color": colorful}


@contextlib.contextmanager
def _whole(output: str) -> Iterator[str]:
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


def _write(text: str, output: str | None) -> None:
    if output is not None and output != "-":
        with _whole(output) as path, open(path, "w", encoding="utf-8", newline="") as file:
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


if __name__ == "__main__":
    main(prog_name="graphflops")
