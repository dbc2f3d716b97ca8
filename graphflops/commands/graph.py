"""`graphflops graph`: the structure of a model with its costs."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, options

# Options that `ask` takes.
_ASKED = (
    *("level", "depth", "by", "tolerance", "only", "first", "last", "uses", "needs"),
    *("path", "narrow", "stages", "unused"),
)


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path(), metavar="MODEL")
@options.choice("--level", ("module", "call"), "A node for each module, or call.", default="module")
@options.whole("--depth", "Levels of modules. Default: as deep as a page holds.")
@options.valued("--only", "PATTERN", "These modules only: 'layers.3', 'encoder.*.attention'.")
@options.choice(
    "--by", ("flops", "bytes", "time", "memory"), "Colour, and balance of stages.", default="flops"
)
@options.valued("--from", "NAME", "With --to: what lies between, and what it costs.", "first")
@options.valued("--to", "NAME", "A module, a call, a weight or an input.", "last")
@options.valued("--uses", "WEIGHT", "What depends on this weight, input or call.")
@options.valued("--needs", "MODULE", "What this module depends on.")
@options.choice(
    "--critical-path", ("flops", "time", "bytes"), "The longest chain of calls, by this cost.", "path"
)
@options.flag("--bottlenecks", "What everything passes through, the fewest bytes first.", "narrow")
@options.whole(
    "--cuts", "K stages of equal cost, the fewest bytes across.", most=4096, keyword="stages", metavar="K"
)
@options.valued(
    "--tolerance",
    "PERCENT",
    "By which a stage may pass an equal share. Default: 5.",
    type=click.FloatRange(min=0, max=1000),
    default=5.0,
)
@options.flag("--unused", "Weights and inputs that nothing reads, calls that no result depends on.")
@options.whole("--top", "Lines of the table.")
@options.output_of("Answer")
@options.sizes
@options.assume
@options.masks
@options.execution
@options.device
@options.of_the_file
def graph(model: str, output: files.Output, top: int | None, **given: Any) -> None:
    """The structure of MODEL with its costs: as a table, a drawing, or a file for other programs; and questions to it.

    \b
    graphflops graph lm.pt2 --output lm.dot
    graphflops graph lm.pt2 --format mermaid --depth 1
    graphflops graph lm.pt2 --from embedding --to head
    graphflops graph lm.pt2 --critical-path flops
    graphflops graph lm.pt2 --cuts 4
    """
    output = output.of("Answer", top=top)
    from graphflops.structure.answer import ask

    asked = {name: given.pop(name) for name in _ASKED}
    output.write(ask(files.report_of(model, **given), **asked), top=top)
