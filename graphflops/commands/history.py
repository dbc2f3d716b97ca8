"""`graphflops history`: what a model cost at each commit that changed it."""

from __future__ import annotations

from typing import Any

import click

from graphflops.commands import files, options
from graphflops.errors import shown


@click.command(cls=options.PathsCommand)
@click.argument("sides", nargs=-1, metavar="[OLD..NEW] -- MODEL")
@options.whole("--last", "At most the last N commits. Default: 50.", most=10_000, default=50)
@options.sizes
@options.assume
@options.output_of("History")
@options.of_the_file
@click.pass_context
def history(
    ctx: click.Context, /, sides: tuple[str, ...], last: int, output: files.Output, **given: Any
) -> None:
    """What MODEL cost at each commit that changed it, the oldest first; a renamed file is followed.

    Nothing is checked out. Without a range: all commits up to HEAD.

    \b
    graphflops history main~20..HEAD -- model.onnx
    graphflops history model.pt2 --output history.html
    """
    from graphflops.loading import analyze, import_rules
    from graphflops.versions.revisions import history as found
    from graphflops.versions.revisions import range_of

    output = output.of("History")
    behind = ctx.meta.get(options.PATHS)
    paths, ranges = (behind, sides) if behind else (sides[-1:], sides[:-1])
    if len(paths) != 1 or len(ranges) > 1:
        raise click.UsageError("name one MODEL, and before -- at most one range OLD..NEW")
    span = range_of(ranges[0]) if ranges else None
    if ranges and span is None:
        raise click.UsageError(f"{shown(ranges[0])} is no range OLD..NEW")
    import_rules(given.pop("rule_files"))
    output.write(found(paths[0], span, last, lambda file: analyze(file, **given)))
