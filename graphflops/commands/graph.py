"""`graphflops graph`: the structure of a model with its costs."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, options
from graphflops.render import formats

# Options that `ask` takes.
_ASKED = (
    *("level", "depth", "by", "tolerance", "only", "first", "last", "uses", "needs"),
    *("path", "narrow", "stages", "unused"),
)


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option(
    "--level",
    type=click.Choice(("module", "call")),
    default="module",
    help="A node for each module, or call.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    metavar="N",
    help="Levels of modules. Default: as deep as a page holds.",
)
@click.option("--only", metavar="PATTERN", help="These modules only: 'layers.3', 'encoder.*.attention'.")
@click.option(
    "--by",
    type=click.Choice(("flops", "bytes", "time", "memory")),
    default="flops",
    help="Colour, and balance of stages.",
)
@click.option("--from", "first", metavar="NAME", help="With --to: what lies between, and what it costs.")
@click.option("--to", "last", metavar="NAME", help="A module, a call, a weight or an input.")
@click.option("--uses", metavar="WEIGHT", help="What depends on this weight, input or call.")
@click.option("--needs", metavar="MODULE", help="What this module depends on.")
@click.option(
    "--critical-path",
    "path",
    type=click.Choice(("flops", "time", "bytes")),
    help="The longest chain of calls, by this cost.",
)
@click.option(
    "--bottlenecks", "narrow", is_flag=True, help="What everything passes through, the fewest bytes first."
)
@click.option(
    "--cuts",
    "stages",
    type=click.IntRange(1, 4096),
    metavar="K",
    help="K stages of equal cost, the fewest bytes across.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1000),
    default=5.0,
    metavar="PERCENT",
    help="By which a stage may pass an equal share. Default: 5.",
)
@click.option(
    "--unused", is_flag=True, help="Weights and inputs that nothing reads, calls that no result depends on."
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Lines of the table.")
@options.output_of("Answer")
@options.sizes
@options.assume
@options.masks
@options.execution
@options.device
@options.of_the_file
def graph(model: str, form: str | None, output: str | None, top: int | None, **given: Any) -> None:
    """The structure of MODEL with its costs: as a table, a drawing, or a file for other programs; and questions to it.

    \b
    graphflops graph lm.pt2 --output lm.dot
    graphflops graph lm.pt2 --format mermaid --depth 1
    graphflops graph lm.pt2 --from embedding --to head
    graphflops graph lm.pt2 --critical-path flops
    graphflops graph lm.pt2 --cuts 4
    """
    form = formats.chosen("Answer", form, output)
    formats.refuse("Answer", form, {"top": top})
    from graphflops.structure.answer import ask

    asked = {name: given.pop(name) for name in _ASKED}
    answer = ask(files.report_of(model, **given), **asked)
    files.write(formats.render(answer, form, top=top, **files.screen(output)), output)
