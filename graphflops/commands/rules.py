"""`graphflops rules`: which operators are priced."""

from __future__ import annotations

import click

from graphflops.commands import files, options


@click.command(cls=options.Command)
@click.argument("model", type=click.Path(), required=False)
@options.output_of("Listing")
@options.of_the_file
def rules(
    model: str | None, output: files.Output, model_name: str | None, rule_files: tuple[str, ...]
) -> None:
    """All operators that have a rule; with MODEL, each operator of the model and the rule that prices it.

    \b
    graphflops rules model.pt2
    graphflops rules --format csv
    """
    from graphflops.loading import import_rules
    from graphflops.render import derived

    if model is None:
        import_rules(rule_files)
        listing = derived.registered()
    else:
        listing = derived.used(files.report_of(model, model_name=model_name, rule_files=rule_files))
    output.of("Listing").write(listing)
