"""Options that several commands take, and how their values are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from graphflops.errors import OptionError, shown
from graphflops.render.formats import names

_SECONDS, _MEMORY = "graphflops.seconds", "graphflops.memory"  # where a context keeps the limits
_LARGEST_SIZE = 2**48  # elements along one axis

Function = TypeVar("Function", bound="Callable[..., Any]")


class Command(click.Command):
    """A command that reports OptionError as wrong usage; its help is the docstring of its function."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        if self.help is None and self.callback is not None:  # as `python -OO` leaves it
            from graphflops.base.docstrings import docstring

            self.help = docstring(self.callback)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OptionError as error:
            raise click.UsageError(str(error), ctx) from error


class LimitedCommand(Command):
    """A command that reads files of unknown origin: its time, memory and work are limited."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.params += [_time_limit(), _memory_limit()]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command within its limits."""
        from graphflops.base.limits import Limits, limited

        with limited(Limits(ctx.meta[_SECONDS], ctx.meta[_MEMORY])):
            return super().invoke(ctx)


def _time_limit() -> click.Option:
    def keep(ctx: click.Context, param: click.Parameter, seconds: float) -> None:
        if seconds != seconds:
            raise click.BadParameter("nan is no number of seconds", ctx, param)
        ctx.meta[_SECONDS] = seconds

    return click.Option(
        ["--time-limit"],
        type=click.FloatRange(min=0, min_open=True, max=10_000_000),
        default=3600.0,
        metavar="SECONDS",
        expose_value=False,
        callback=keep,
        help="Stop with an error after so long. Default: an hour.",
    )


def _memory_limit() -> click.Option:
    def keep(ctx: click.Context, param: click.Parameter, size: int | None) -> None:
        ctx.meta[_MEMORY] = size

    return click.Option(
        ["--memory-limit"],
        type=BytesOption(),
        expose_value=False,
        callback=keep,
        help="Stop with an error where the process takes more address space, such as 2GiB.",
    )


class BytesOption(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes with its unit: `1GB`, `512 MiB`."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse one."""
        from graphflops.budget.amounts import amount

        try:
            return amount(value, "B")
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeOption(click.ParamType):  # type: ignore[type-arg]
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


class ShapeOption(SizeOption):
    """Several sizes by name: `ids=2,512` becomes `("ids", (2, 512))`."""

    name = "NAME=N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one."""
        name, found, sizes = str(value).rpartition("=")
        if not found or not name.strip():
            self.fail(f"{shown(value)!r} is not NAME=N,N, such as ids=2,512", param, ctx)
        return name.strip(), tuple(self.size(size, param, ctx) for size in sizes.split(","))


class SizesOption(SizeOption):
    """Several sizes: `1,8,64`."""

    name = "N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse them; 0 is none."""
        if isinstance(value, tuple):
            return value
        sizes = tuple(self.size(size, param, ctx) for size in str(value).split(","))
        if 0 in sizes:
            self.fail("0 is no size to serve: give 1 and more", param, ctx)
        return sizes


class NameOption(click.ParamType):  # type: ignore[type-arg]
    """What to call a size: `batch=ids[0]` becomes `("batch", "ids[0]")`."""

    name = "NAME=AXIS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Parse one."""
        name, _, place = (part.strip() for part in str(value).partition("="))
        if not name.isidentifier() or not place:
            self.fail(f"{shown(value)!r} is not NAME=AXIS, such as batch=ids[0] or seq=s27", param, ctx)
        return name, place


class MaskOption(click.ParamType):  # type: ignore[type-arg]
    """What a mask lets through, by the name of an input: `attn_mask=causal` becomes `("attn_mask", "causal")`."""

    name = "NAME=KIND"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Parse one."""
        from graphflops.attention.user_masks import KINDS, parse
        from graphflops.errors import ModelError

        name, found, kind = str(value).rpartition("=")
        if not found or not name.strip():
            self.fail(
                f"{shown(value)!r} is not NAME=KIND, such as attn_mask=causal; kinds are {KINDS}", param, ctx
            )
        try:
            parse(kind)
        except ModelError as error:
            self.fail(str(error), param, ctx)
        return name.strip(), kind.strip()


def named(ctx: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a mapping; a name given twice is a mistake."""
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if mapping.setdefault(name, value) != value:
            raise click.BadParameter(f"{shown(name)} is given twice, as two different things", ctx, param)
    return mapping


def _together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(command: Function) -> Function:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


target = click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write here, whole or not at all."
)


def output_of(kind: str) -> Callable[[Function], Function]:
    """`--format`, one of those that render this class, and `--output`."""
    help_ = f"Default: by the suffix of --output, else {names(kind)[0]}."
    return _together(click.option("--format", "form", type=click.Choice(names(kind)), help=help_), target)


rule_files = click.option(
    "--rules",
    "rule_files",
    type=click.Path(exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE.py",
    help="Run this Python file of yours first: it registers rules with @graphflops.rule.",
)
model_name = click.option(
    "--model", "model_name", metavar="NAME", help="Which program of an archive that holds several."
)
of_the_file = _together(model_name, rule_files)

dims = click.option(
    "--dim",
    "dims",
    type=SizeOption(),
    multiple=True,
    callback=named,
    help="Size by symbol (s27=4096) or axis (ids[1]=4096).",
)
size_names = click.option(
    "--name",
    "names",
    type=NameOption(),
    multiple=True,
    callback=named,
    help="What to call an open size: batch=ids[0]. --dim and --sweep take the name too.",
)
assume = click.option(
    "--open",
    "assume",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Assume no value for sizes without an example: totals that depend on them are formulas.",
)
inputs = click.option(
    "--input",
    "inputs",
    type=ShapeOption(),
    multiple=True,
    callback=named,
    help="Whole shape of an input: ids=2,512.",
)
sizes = _together(dims, inputs, size_names)

masks = click.option(
    "--mask",
    "masks",
    type=MaskOption(),
    multiple=True,
    callback=named,
    help="What an input that is a mask lets through: causal, window:1024, prefix:128, density:0.3.",
)
verify = click.option(
    "--verify", is_flag=True, help="First check that the program, as read from the file, is well formed."
)
execution = click.option(
    "--execution",
    type=click.Choice(("eager", "graph", "compiled")),
    help="How the program runs, which decides its memory and time: call by call from Python, by a runtime or CUDA graph,"
    " or by torch.compile. Default: graph; with a GPU or CPU as --device, eager for a .pt2.",
)
device = click.option(
    "--device",
    metavar="NAME",
    help="Say what memory and time the program takes on this device: h200, or the path of a profile.",
)
network = click.option(
    "--network",
    metavar="LINKS",
    help="With --device, how nodes of devices are joined: 8x400Gbit for eight network links a node, 4:8x400Gbit where a node"
    " has four devices. Default: as such devices are sold.",
)
per = click.option(
    "--per",
    metavar="AXIS",
    help="FLOPs for each entry of an input axis only: --per ids[1] for a token, --per x[0] for an image.",
)
price = click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    metavar="PRICE",
    help="What an hour of the device costs: with --device, say what a million samples or tokens cost.",
)
_REQUESTS = (
    click.option(
        "--prefill", type=click.Path(), metavar="MODEL", help="The program of the tokens before the step."
    ),
    click.option("--context", type=SizesOption(), metavar="N,N", help="Tokens of each request: 1024,8192."),
    click.option(
        "--output-tokens",
        type=click.IntRange(min=1, max=2**30),
        metavar="N",
        help="That a request asks for: then prefills of new requests delay the steps of others.",
    ),
    click.option("--ttft", metavar="TIME", help="Find the most requests whose first token comes in 500ms."),
    click.option("--tpot", metavar="TIME", help="Find the most requests whose next token comes in 30ms."),
    click.option("--engine", metavar="NAME", help="Whose memory and caches are assumed: vllm."),
)
REQUESTS = ("prefill", "context", "output_tokens", "ttft", "tpot", "engine", "price_per_hour")


def requests(command: Function) -> Function:
    """The options of the requests that a decoder serves."""
    for option in reversed(_REQUESTS):
        command = option(command)
    return command


sweeps = click.option(
    "--sweep",
    "sweeps",
    type=ShapeOption(),
    multiple=True,
    callback=named,
    help="One table, a line for each of these sizes: s27=128,512,2048. Several vary together; a=b=128,512 are equal.",
)
