"""`graphflops textconv`: what git shows in a diff in place of a model."""

from __future__ import annotations

import click

from graphflops.base.limits import LimitPassed
from graphflops.commands import files, options
from graphflops.errors import GraphflopsError, shown


@click.command(cls=options.LimitedCommand)
@click.argument("model", type=click.Path())
def textconv(model: str) -> None:
    """The cost of MODEL as stable text, for `git diff` and `git log -p`: exact, one line for each module and operator.

    For a file that is not a model, the text is one line that says so, with exit code 0: else git would show no diff.

    \b
    echo '*.onnx diff=graphflops' >> .gitattributes
    git config diff.graphflops.textconv 'graphflops textconv'
    git config diff.graphflops.cachetextconv true
    """
    files.write(_text(model), None)


def _text(model: str) -> str:
    try:  # the time is over for imports too
        from graphflops.render.viewers import textconv as text
        from graphflops.versions.revisions import file_here

        with file_here(model) as file:
            return text(files.report_of(file, quiet=True))
    except (GraphflopsError, RecursionError, MemoryError, LimitPassed) as error:
        return f"not analyzed: {shown(str(error).removeprefix(f'{shown(model)}: '), 500)}\n"
