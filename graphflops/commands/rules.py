"""`graphflops rules`: which operators are priced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphflops.commands import files, options

if TYPE_CHECKING:
    from graphflops.render import Format


_UNBOUNDED = 10_000  # columns of a list of names that goes to no terminal: a program may look for the names


@click.command(cls=options.Command)
@click.argument("model", type=click.Path(), required=False)
@options.output
@options.model_name
@options.rule_files
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
    from graphflops.loading import import_rules
    from graphflops.render import FORMATS, listing
    from graphflops.render import rules as tables

    form = files.form_of(form, output, FORMATS)
    if model is None:
        import_rules(rule_files)
        heads, rows = tables.registered()
    else:
        heads, rows = tables.used(files.report_of(model, model_name=model_name, rule_files=rule_files))
    files.write(listing(heads, rows, form, **files.screen(output, _UNBOUNDED)), output)
