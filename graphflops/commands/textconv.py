"""`graphflops textconv`: what git shows in a diff in place of a model."""

from __future__ import annotations

import click

from graphflops.commands import files, options
from graphflops.errors import GraphflopsError, shown
from graphflops.limits import LimitPassed


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path())
def textconv(model: str) -> None:
    """The cost of MODEL as stable text, for `git diff` and `git log -p`: exact, a line a module and operator.

    A file that is no model is said to be none, in one line and with exit code 0: git would show no diff at all.

    \b
    echo '*.onnx diff=graphflops' >> .gitattributes
    git config diff.graphflops.textconv 'graphflops textconv'
    git config diff.graphflops.cachetextconv true
    """
    files.write(_text(model), None)


def _text(model: str) -> str:
    from graphflops.render.textconv import textconv as text
    from graphflops.revisions import file_here

    try:
        with file_here(model) as file:
            return text(files.report_of(file, quiet=True))
    except (GraphflopsError, RecursionError, MemoryError, LimitPassed) as error:
        return f"not analyzed: {shown(str(error).removeprefix(f'{shown(model)}: '), 500)}\n"
