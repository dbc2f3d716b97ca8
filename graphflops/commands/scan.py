"""`graphflops scan`: every model of a fleet in one table."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from graphflops.commands import files, options
from graphflops.errors import shown
from graphflops.render import formats

if TYPE_CHECKING:
    from graphflops.scan.run import Summary

_MEMORY = None if os.name == "nt" else "4GB"
_SUFFIXES = frozenset(suffix for one in formats.FORMATS for suffix in one.suffixes)
_FURTHER = ("calls", "modules", "findings")


@click.command()
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@options.valued(
    "-o", "FOLDER", "Add to this table, a folder of Parquet files. Or write a page: FILE.html.", "--output"
)
@options.whole("--jobs", "Number of processes. Default: one for each processor.")
@options.valued("--scheduler", "ADDRESS", "Run on this Dask cluster: tcp://host:8786.")
@options.dims
@options.valued("--bindings", "FILE.toml", "Several choices of sizes: a row for each.", type=click.Path())
@options.flag("--training", "Price the backward pass and an AdamW step too.")
@options.valued("--device", "NAME", "Predict time and memory on this device.", default="")
@options.seconds("--timeout", "Time that one file may take. Default: 60.", default=60.0, most=1e6)
@click.option(
    "--memory", type=options.BYTES, default=_MEMORY,
    help="Address space that one file may take. Default: 4GB, if the system can limit it.",
)  # fmt: skip
@options.choice("--rows", _FURTHER, "Write this table too, beside the output.", multiple=True)
@options.flag(
    "--no-cache", "Analyze files again that are in the table.", "cache", flag_value=False, default=True
)
@options.valued("--report", "FILE.html", "The table as a page.", type=click.Path(dir_okay=False))
@options.valued("--diff", "OLD", "Compare a table with the one named SOURCE.", "old", type=click.Path())
def scan(
    sources: tuple[str, ...], output: str | None, report: str | None, old: str | None, dims: dict[str, int],
    **given: Any,
) -> None:  # fmt: skip
    """Price every model of SOURCE into a table: a row for each file and binding.

    SOURCE is a folder, a file, a pattern, a list of paths (.txt, or - for stdin), or a URL that fsspec opens.
    A scan that was stopped continues where it was. A file that is in the table is not analyzed again.

    \b
    graphflops scan models/ --output results.parquet
    graphflops scan models/ --output results.html
    graphflops scan 'registry/**/*.onnx' --output results.parquet --scheduler tcp://head:8786
    graphflops scan --output results.parquet --report results.html
    graphflops scan --diff old.parquet new.parquet
    """
    if old is not None:
        if len(sources) != 1:
            raise click.UsageError("--diff takes two tables: --diff OLD NEW")
        from graphflops.scan.views import changes, text

        files.write(text(changes(old, sources[0]), **files.screen(None)), None)
        return
    if output is None:
        raise click.UsageError("name the table with --output")
    if os.path.splitext(output)[1].lower() in _SUFFIXES and not os.path.isdir(output):
        _as_page(sources, output, dims, is_all=report is None, **given)
        return
    if sources:
        _scanned(sources, output, dims, called=output, **given)
    elif report is None:
        raise click.UsageError("name SOURCE, or what to make of the table: --report, --diff")
    if report is not None:
        from graphflops.scan.views import page

        files.write(page(output), report)


def _as_page(
    sources: tuple[str, ...], output: str, dims: dict[str, int], *, is_all: bool, **given: Any
) -> None:
    """Scans into a page; the table goes. is_all: nothing else is to be made of it."""
    from graphflops.scan.views import page

    if not sources or not is_all or given["rows"]:
        what = "name a folder of tables with --output, and it with --report"
        raise click.UsageError(f"{shown(output)} is a page: {what}")
    if formats.chosen("Report", None, output) != "html":
        what = "a scan writes a folder of Parquet files, or a page: FILE.html"
        raise click.UsageError(f"{shown(output)}: {what}")
    with tempfile.TemporaryDirectory(prefix="graphflops-") as folder:
        _scanned(sources, folder, dims, called=output, **given)
        files.write(page(folder, output), output)


def _scanned(
    sources: tuple[str, ...], output: str, dims: dict[str, int], *, called: str, jobs: int | None,
    scheduler: str | None, bindings: str | None, rows: tuple[str, ...], cache: bool, **given: Any,
) -> None:  # fmt: skip
    from graphflops.budget.run import processors
    from graphflops.scan.jobs import Binding, Options, bindings_of, jobs as planned
    from graphflops.scan.run import scan as run

    if bindings is not None and dims:
        raise click.UsageError("--dim and --bindings both say the sizes: name one of them")
    chosen = [Binding(dims=dims)] if bindings is None else bindings_of(bindings)
    if given["device"]:
        from graphflops.devices import device

        device(given["device"])  # a name or profile that is wrong for all files is said once
    todo = planned(sources, chosen, Options(rows=tuple(sorted(rows)), **given))
    workers = min(jobs or processors(), len(todo))
    with files.Progress("scan", " files") as bar:

        def progress(summary: Summary, total: int) -> None:
            fine = summary.by_status.get("ok", 0) + summary.by_status.get("unknown-operators", 0)
            bar(summary.done, total, f"{sum(summary.by_status.values()) - fine:,} failed")

        where = scheduler or ""
        summary = run(todo, output, workers=workers, scheduler=where, cache=cache, progress=progress)
    states = ", ".join(f"{count:,} {status}" for status, count in sorted(summary.by_status.items()))
    skipped = f"{summary.skipped:,} were there already" if summary.skipped else ""
    told = "; ".join(filter(None, (states, skipped)))
    click.echo(f"{shown(called)}: {summary.done:,} rows ({told})", err=True)
    if summary.interrupted:
        raise Exit(130)
