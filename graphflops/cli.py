"""The command line: which commands there are, and the one place where errors are caught.

Exit codes: 0 fine; 1 an error of the model or the machine; 2 wrong usage; 3 a threshold is passed or `--strict` fails; 130
interrupted; 143 terminated. 1 and 2 are said in one line on stderr. A command's module is imported when it runs, and only
click before that: `--help` must not wait.
"""

import atexit
import gc
import os
from typing import Any, TypeVar

import click

from graphflops.base.lazy import imported
from graphflops.base.limits import cleanly_terminated
from graphflops.errors import GraphflopsError, OptionError, inert_in_logs, raised, shown
from graphflops.version import __version__

_Command = TypeVar("_Command", bound=click.Command)
_TRACEBACK = "GRAPHFLOPS_TRACEBACK"  # environment variable: an internal error is raised as it is
# Each command by name, in the order of `--help`: the module of `graphflops.commands` that has it, and what it is for.
COMMANDS = {
    "analyze": ("analyze", "What a model costs, in total and by module."),
    "audit": ("audit", "What is wrong, unsafe or wasteful in a model."),
    "capture": ("capture", "Export a module to a .pt2 or to a report."),
    "check": ("audit", "Whether models keep to their budget."),
    "demo": ("capture", "Write small models to try the commands on."),
    "diff": ("diff", "What changed between two models, reports or revisions."),
    "fits": ("devices", "Whether a model fits on a device, and what would make it fit."),
    "graph": ("analyze", "The structure of a model: drawn, asked, cut."),
    "history": ("diff", "What a model cost at each commit that changed it."),
    "plan": ("devices", "Layouts of a training step over many devices, each priced."),
    "profile": ("validate", "Measure this machine, for predictions of time on it."),
    "rules": ("analyze", "Which operators are priced, and by which rule."),
    "serve": ("devices", "How a decoder serves on a device: its steps, and the requests that fit."),
    "scan": ("scan", "Every model of a fleet in one table."),
    "statement": ("devices", "What a training run cost, for laws and model cards."),
    "textconv": ("diff", "A model's cost as text, for git diff."),
    "validate": ("validate", "Run a model and prove its counts."),
}


class OneLine(click.ClickException):
    """An error as the user sees it: one line, whatever names are in it."""

    def show(self, file: Any = None) -> None:
        click.echo(inert_in_logs(f"graphflops: error: {shown(self.message, 2000)}"), err=True, file=file)


class Misused(OneLine):
    """Wrong usage."""

    exit_code = 2


def _with_help(command: _Command) -> _Command:
    """A command with its docstring as its help, where `python -OO` has left that out."""
    if command.help is None and command.callback is not None:
        from graphflops.base.docstrings import docstring

        command.help = docstring(command.callback)
    return command


class Commands(click.Group):
    """The group of commands, each imported when it is run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named, or an error that names those that are spelled alike."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        alike = get_close_matches(name.lower(), COMMANDS, n=2)
        if not alike and os.path.exists(name):
            alike = [f"analyze {shown(name)}"]
        advice = f"did you mean {' or '.join(alike)}?" if alike else f"there are {', '.join(COMMANDS)}"
        raise click.UsageError(f"no such command {shown(name)!r}: {advice}", ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = imported(f"graphflops.commands.{COMMANDS[cmd_name][0]}:{cmd_name}")
        return _with_help(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, for which no command is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run as a process of its own, without garbage collection: almost everything allocated lives until the end.
        The collection when Python ends would take a tenth of an analysis: `freeze` spares it.
        """
        gc.disable()
        atexit.register(gc.freeze)
        return super().__call__(*args, **keywords)

    def make_context(self, *args: Any, **keywords: Any) -> click.Context:
        """As click does; an option that there is not is said in one line here too."""
        try:
            return super().make_context(*args, **keywords)
        except (click.NoSuchOption, click.BadOptionUsage) as error:
            raise _misused(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with cleanly_terminated():
                return super().invoke(ctx)
        except click.UsageError as error:
            raise _misused(error) from error
        except OptionError as error:
            raise Misused(str(error)) from error
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
            hint = f"a defect of graphflops; set {_TRACEBACK}=1 to see where, and report it"
            raise OneLine(f"{raised(error)}: {hint}") from error


@_with_help
@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="graphflops", message="%(prog)s %(version)s")
def main() -> None:
    """What a model costs, from its exported file, before anyone runs it.

    \b
    graphflops analyze model.pt2
    graphflops analyze model.pt2 --dim s27=4096 --format json --output report.json
    """


def _misused(error: click.UsageError) -> Misused:
    context = None if type(error) is click.UsageError else error.ctx  # our own errors say what to do
    where = "" if context is None else f" (see {context.command_path} --help)"
    return Misused(f"{error.format_message().rstrip('.')}{where}")


def _reason(error: OSError) -> str:
    said, file = error.strerror or str(error) or type(error).__name__, error.filename
    return f"{shown(os.fsdecode(file))}: {said}" if isinstance(file, (str, bytes)) else said


if __name__ == "__main__":
    main(prog_name="graphflops")
