"""Options that several commands take, and how their values are written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import click

from graphflops.base.lazy import imported
from graphflops.commands import files
from graphflops.errors import ModelError, shown
from graphflops.render import formats

_LARGEST_SIZE = 2**48  # elements along one axis

Function = TypeVar("Function", bound="Callable[..., Any]")
Option = Callable[[Function], Function]


class LimitedCommand(click.Command):
    """A command that reads files of unknown origin: its time, memory and work are limited."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        seconds("--time-limit", "Stop with an error after this time. Default: an hour.", 3600.0)(self)
        large = "Stop with an error if the process takes more address space than this, such as 2GiB."
        click.option("--memory-limit", type=BYTES, help=large)(self)

    def invoke(self, ctx: click.Context) -> Any:
        from graphflops.base.limits import Limits, limited

        with limited(Limits(ctx.params.pop("time_limit"), ctx.params.pop("memory_limit"))):
            return super().invoke(ctx)


class PathsCommand(LimitedCommand):
    """A command that gets the paths behind `--` as `paths`, None without a `--`; options there are options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["paths"] = None
        if "--" in args:
            at = args.index("--")
            behind = args[at + 1 :]
            marked = [text if text.startswith("-") else f"{text}\0{n}" for n, text in enumerate(behind)]
            found, _, _ = self.make_parser(ctx).parse_args(marked)
            # Click's mark for none.
            paths = found["sides"] if isinstance(found["sides"], (list, tuple)) else ()
            places = [int(text.rpartition("\0")[2]) for text in paths]
            ctx.params["paths"] = tuple(behind[place] for place in places)
            args = args[:at] + [text for index, text in enumerate(behind) if index not in places]
        return super().parse_args(ctx, args)


class Written(click.ParamType):  # type: ignore[type-arg]
    """A value as a function reads it. name: how it is written. What the function refuses is wrong usage."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self.read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read one; a default is no text."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def refused(text: str, expected: str) -> NoReturn:
    """Raise what `Written` says of a text that is not what is expected."""
    raise ValueError(f"{shown(text)!r} is {expected}")


def _number(text: str) -> int:
    digits = text.strip().replace("_", "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= _LARGEST_SIZE):
        refused(text, f"no size: an integer from 0 to {_LARGEST_SIZE}")
    return int(digits)


def _parts(text: str, expected: str) -> tuple[str, str]:
    name, found, value = text.rpartition("=")
    if not found or not name.strip():
        refused(text, f"not {expected}")
    return name.strip(), value


def _size(text: str) -> tuple[str, int]:
    name, number = _parts(text, "NAME=N, such as s27=4096 or ids[1]=4096")
    return name, _number(number)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, sizes = _parts(text, "NAME=N,N, such as ids=2,512")
    return name, tuple(map(_number, sizes.split(",")))


def _served(text: str) -> tuple[int, ...]:
    sizes = tuple(map(_number, text.split(",")))
    if 0 in sizes:
        raise ValueError("0 is no size to serve: give 1 and more")
    return sizes


def _label(text: str) -> tuple[str, str]:
    name, _, place = (part.strip() for part in text.partition("="))
    if not name.isidentifier() or not place:
        refused(text, "not NAME=AXIS, such as batch=ids[0] or seq=s27")
    return name, place


def _mask(text: str) -> tuple[str, str]:
    from graphflops.attention.user_masks import KINDS, parse

    name, kind = _parts(text, f"NAME=KIND, such as attn_mask=causal; kinds are {KINDS}")
    try:
        parse(kind)
    except ModelError as error:
        raise ValueError(str(error)) from None
    return name, kind.strip()


BYTES = Written("SIZE", lambda text: int(imported("graphflops.budget.amounts:amount")(text, "B")))  # `1GB`
SIZES = Written("N,N", _served)  # `1,8,64`


def named(ctx: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a mapping; a name given twice is a mistake."""
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if mapping.setdefault(name, value) != value:
            raise click.BadParameter(f"{shown(name)} is given twice, as two different things", ctx, param)
    return mapping


def together(*options: Option[Any]) -> Option[Any]:
    """Several options as one."""

    def decorate(command: Function) -> Function:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def flag(name: str, text: str, *others: str, **more: Any) -> Option[Any]:
    """An option without a value. text: its help; others: its other names."""
    return click.option(name, *others, is_flag=True, help=text, **more)


def whole(
    name: str, text: str, least: int = 1, most: int | None = None, *, keyword: str = "",
    metavar: str | None = "N", **more: Any,
) -> Option[Any]:  # fmt: skip
    """An option for an integer within a range. keyword: of the command, where it has another name."""
    names = [name, *filter(None, [keyword])]
    return click.option(*names, type=click.IntRange(least, most), metavar=metavar, help=text, **more)


def seconds(name: str, text: str, default: float, most: float = 10_000_000, **more: Any) -> Option[Any]:
    """An option for a time that something may take."""

    def number(ctx: click.Context, param: click.Parameter, value: float) -> float:
        if value != value:
            raise click.BadParameter("nan is no number of seconds", ctx, param)
        return value

    kind = click.FloatRange(min=0, min_open=True, max=most)
    return valued(name, "SECONDS", text, type=kind, default=default, callback=number, **more)


def choice(name: str, among: Iterable[str], text: str | None, *others: str, **more: Any) -> Option[Any]:
    """An option for one of several words."""
    return click.option(name, *others, type=click.Choice(tuple(among)), help=text, **more)


def valued(name: str, metavar: str, text: str, *others: str, **more: Any) -> Option[Any]:
    """An option for a text, or for what its type reads from one."""
    return click.option(name, *others, metavar=metavar, help=text, **more)


def _pairs(name: str, keyword: str, written: str, read: Callable[[str], Any], text: str) -> Option[Any]:
    return click.option(name, keyword, type=Written(written, read), multiple=True, callback=named, help=text)


def gathered(name: str, read: Callable[[dict[str, Any]], Any], *options: Option[Any]) -> Option[Any]:
    """Options that a command gets as one keyword: `read` takes their values out of all that are given."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_one(*args: Any, **given: Any) -> Any:
            one = read(given)
            return command(*args, **{name: one}, **given)

        return together(*options)(with_one)  # type: ignore[no-any-return]

    return decorate


def cut(among: Iterable[str], **texts: str) -> Option[Any]:
    """Which part of a result is written: the command gets one `cut`, by the names that formats have for its parts.

    among: what `--by` takes. texts: the help of each option.
    """
    return gathered(
        "cut",
        lambda given: {name: None if (value := given.pop(name)) is False else value for name in texts},
        choice("--by", among, texts["by"]),
        whole("--depth", texts["depth"], least=0),
        flag("--verbose", texts["verbose"], "-v"),
        whole("--top", texts["top"]),
    )


def to_file(metavar: str, text: str, **more: Any) -> Option[Any]:
    """`--output`, the file that a command writes."""
    return valued("-o", metavar, text, "--output", type=click.Path(dir_okay=False), **more)


def output_of(kind: str) -> Option[Any]:
    """`--format`, one of those that render this class, and `--output`; the command gets a `files.Output`."""
    names = formats.names(kind)
    return gathered(
        "output",
        lambda given: files.Output(given.pop("form"), given.pop("output")),
        choice("--format", names, f"Default: by the suffix of --output, else {names[0]}.", "form"),
        to_file("FILE", "Write to this file, whole or not at all."),
    )


rule_files = valued(
    "--rules", "FILE.py", "Run this Python file first: it registers your rules with @graphflops.rule.",
    "rule_files", type=click.Path(exists=True, dir_okay=False), multiple=True,
)  # fmt: skip


def _after_rules(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_rules(*args: Any, rule_files: tuple[str, ...], **given: Any) -> Any:
        imported("graphflops.loading:import_rules")(rule_files)
        return command(*args, **given)

    return with_rules


rules_first = together(rule_files, _after_rules)  # the files run before the command, which does not get them
model_name = valued("--model", "NAME", "Which program of an archive that holds several.", "model_name")
of_the_file = together(model_name, rule_files)
of_the_program = together(model_name, rules_first)

dims = _pairs("--dim", "dims", "NAME=N", _size, "Size by symbol (s27=4096) or axis (ids[1]=4096).")
size_names = _pairs(
    "--name", "names", "NAME=AXIS", _label,
    "Name an open size: batch=ids[0]. --dim and --sweep take the name too.",
)  # fmt: skip
inputs = _pairs("--input", "inputs", "NAME=N,N", _shape, "Whole shape of an input: ids=2,512.")
sizes = together(dims, inputs, size_names)
sweeps = _pairs(
    "--sweep", "sweeps", "NAME=N,N", _shape,
    "One table, a line for each of these sizes: s27=128,512,2048. Several vary together; a=b=128,512 are equal.",
)  # fmt: skip
masks = _pairs(
    "--mask", "masks", "NAME=KIND", _mask,
    "What a mask among the inputs lets through: causal, window:1024, prefix:128, density:0.3.",
)  # fmt: skip
assume = flag(
    "--open", "Assume no value for sizes without an example: totals that depend on them are formulas.",
    "assume", flag_value=False, default=True,
)  # fmt: skip
verify = flag("--verify", "First check that the program, as read from the file, is well formed.")
execution = choice(
    "--execution", ("eager", "graph", "compiled"),
    "How the program runs, which decides its memory and time: call by call from Python, by a runtime or CUDA graph,"
    " or by torch.compile. Default: graph; with a GPU or CPU as --device, eager for a .pt2.",
)  # fmt: skip
device = valued(
    "--device", "NAME",
    "Predict memory and time on this device: h200, or the path of a profile.",
)  # fmt: skip
network = valued(
    "--network", "LINKS",
    "With --device, how nodes of devices are joined: 8x400Gbit for eight network links a node, 4:8x400Gbit if a node has"
    " four devices. Default: as such devices are sold.",
)  # fmt: skip
torch = valued(
    "--torch", "RELEASE",
    "With --device or --execution, the release of PyTorch whose kernels run: 2.10 to 2.14. Default: 2.11.",
)  # fmt: skip
per = valued(
    "--per", "AXIS",
    "FLOPs for each entry of an input axis only: --per ids[1] for a token, --per x[0] for an image.",
)  # fmt: skip
price = valued(
    "--price-per-hour", "PRICE",
    "Price of an hour of the device, in any currency; that of a million tokens or samples is in the same.",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
)  # fmt: skip
REQUESTS = ("prefill", "context", "output_tokens", "ttft", "tpot", "engine", "price_per_hour")
requests = together(  # of the requests that a decoder serves
    valued("--prefill", "MODEL", "The program of the tokens before the step.", type=click.Path()),
    valued("--context", "N,N", "Tokens of each request: 1024,8192.", type=SIZES),
    whole(
        "--output-tokens",
        "Tokens that a request asks for. Prefills of new requests then delay the steps of others.",
        most=2**30,
    ),
    valued("--ttft", "TIME", "Find the most requests whose first token comes in 500ms."),
    valued("--tpot", "TIME", "Find the most requests whose next token comes in 30ms."),
    valued("--engine", "NAME", "Engine whose memory and caches are assumed: vllm."),
)
