"""`graphflops diff`: what changed between two models, reports or revisions."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from graphflops.commands import files, options
from graphflops.errors import FileError, shown
from graphflops.render import COMPARISON_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.compare import Comparison
    from graphflops.render import ComparisonFormat
    from graphflops.report import Grouping, Report

_WHOLE = {"json": "JSON", "html": "HTML"}
_PATHS = "graphflops.paths"  # where the arguments behind `--` are kept


class Command(click.Command):
    """A command that knows which of its arguments stood behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what is behind `--` apart."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_PATHS] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a file as it lies there, or, with a commit, at that revision.

    name: what the user calls the revision. whole: the path counts from the top of the repository, as in REVISION:PATH.
    """

    path: str
    commit: str = ""
    name: str = ""
    whole: bool = False

    @property
    def title(self) -> str:
        """What it is called, in git's spelling."""
        return f"{self.name}:{self.path}" if self.commit else self.path


Pair = tuple["Side | None", "Side | None", bool]  # and whether the user named it, or it was found to differ


@click.command(cls=Command)
@click.argument("sides", nargs=-1, metavar="OLD NEW [-- PATH...]")
@options.dims
@options.inputs
@click.option(
    "--by",
    type=click.Choice(("op", "module", "source")),
    help="Where: by operator, module or line. Default: module.",
)
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Add up below N levels of modules.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Lines of a table.")
@options.output_in(COMPARISON_FORMATS)
@click.option("--training", is_flag=True, help="Price the backward pass and an AdamW step too.")
@click.option("--exit-code", is_flag=True, help="Exit with 3 if anything differs.")
@options.model_name
@options.rule_files
@click.pass_context
def diff(
    ctx: click.Context,
    /,
    sides: tuple[str, ...],
    by: Grouping | None,
    depth: int | None,
    top: int | None,
    form: ComparisonFormat | None,
    output: str | None,
    exit_code: bool,
    **given: Any,
) -> None:
    """What changed from OLD to NEW, by how much, and in which module.

    OLD and NEW are a .pt2, an .onnx, a saved JSON report, or REVISION:PATH. With git revisions, PATH says
    which models are meant; one revision is compared with the files as they lie in the checkout.

    \b
    graphflops diff old.pt2 new.pt2
    graphflops diff model.pt2 model.onnx             does the export keep the work?
    graphflops diff main..HEAD -- model.onnx
    graphflops diff main                             every model that differs from main
    """
    form = files.form_of(form, output, COMPARISON_FORMATS)
    if form in _WHOLE and (by or depth is not None or top):
        raise click.UsageError(f"--by, --depth and --top are not for {_WHOLE[form]}, which has everything")
    if depth is not None and (form == "csv" or by in ("op", "source")):
        raise click.UsageError("--depth is for tables by module")
    pairs = _pairs(sides, ctx.meta.get(_PATHS))
    if form not in ("table", "markdown") and len(pairs) != 1:
        raise click.UsageError(
            f"{len(pairs)} models differ: name one behind --, or ask for a table or Markdown"
        )
    screen = files.screen(output)
    from graphflops.render.diff import render

    texts, differs = [], False
    for old, new, named in pairs:
        if old is None or new is None:
            there = old or new
            assert there is not None
            state = "gone" if new is None else "new"
            texts.append(f"{shown(there.path)}: {state}, nothing to compare with\n")
            differs = True
            continue
        comparison = _compared(old, new, **given)
        differs = differs or not comparison.same
        if named or not comparison.same:
            texts.append(render(comparison, form, by=by, depth=depth, top=top, **screen))
    files.write("\n".join(texts) if texts else "no model differs\n", output)
    if exit_code and differs:
        ctx.exit(3)


def _compared(old: Side, new: Side, **given: Any) -> Comparison:
    from graphflops.compare import compare

    return compare(*_reports((old, new), **given))


def _reports(
    sides: Sequence[Side],
    *,
    dims: dict[str, int],
    inputs: dict[str, tuple[int, ...]],
    model_name: str | None,
    rule_files: tuple[str, ...],
    training: bool,
) -> Iterator[Report]:
    """Both reports, each with its side's title; sizes are given to each program as it calls them."""
    from graphflops import revisions

    with ExitStack() as stack:
        paths = []
        for side in sides:
            if side.commit:
                opened = revisions.file_at(side.commit, side.path, whole=side.whole)
            else:
                opened = revisions.file_here(side.path)
            paths.append(stack.enter_context(opened))
        models: list[Any] = [*paths]
        sizes: list[dict[str, Any]] = [{"dims": dims, "inputs": inputs}] * 2
        if (dims or inputs) and not any(files.is_report(path) for path in paths):
            from graphflops.compare.given import dims_for, inputs_for
            from graphflops.exporters import load

            models = [load(path, model_name) for path in paths]
            each = zip(dims_for(models, dims), inputs_for(models, inputs), strict=True)
            sizes = [{"dims": bound, "inputs": shapes} for bound, shapes in each]
        for side, model, size in zip(sides, models, sizes, strict=True):
            report = files.report_of(
                model, rule_files=rule_files, model_name=model_name, training=training, **size
            )
            yield replace(report, origin=replace(report.origin, path=side.title))


def _pairs(sides: Sequence[str], paths: Sequence[str] | None) -> list[Pair]:
    """What is to be compared with what."""
    if len(sides) > 2:
        raise click.UsageError("name OLD and NEW, or revisions and, behind --, paths")
    if paths is None and len(sides) == 2:
        ours, theirs = (_side(text) for text in sides)
        if ours is not None and theirs is not None:
            return [(ours, theirs, True)]
        for one, text in ((ours, sides[1]), (theirs, sides[0])):
            if one is not None and not one.commit:  # `main model.onnx`: that file at the revision
                at = _at(one.path, text)
                return [(one, at, True) if one is ours else (at, one, True)]
        if ours is not None or theirs is not None:
            raise click.UsageError(f"{shown(sides[1] if theirs is None else sides[0])} is no file")
    if paths is None and len(sides) == 1 and os.path.isfile(sides[0]):
        return [(_at(sides[0], "HEAD"), Side(sides[0]), True)]
    if not sides and not paths:
        raise click.UsageError("name OLD and NEW, or revisions and, behind --, paths")
    return _between(sides, paths or ())


def _side(text: str) -> Side | None:
    """A file, or a blob of git; None for what can only be a revision."""
    if os.path.exists(text):
        return Side(text)
    revision, colon, path = text.partition(":")
    if colon and revision and path:
        from graphflops import revisions

        return Side(path, revisions.resolved(revision), revision, whole=not path.startswith("./"))
    if not colon and os.path.splitext(text)[1] in _suffixes():
        raise FileError(f"{shown(text)}: no such file")
    return None


def _suffixes() -> Sequence[str]:
    from graphflops import revisions

    return revisions.SUFFIXES


def _at(path: str, revision: str) -> Side:
    from graphflops import revisions

    return Side(path, revisions.resolved(revision), revision)


def _between(sides: Sequence[str], paths: Sequence[str]) -> list[Pair]:
    """The models at two revisions, or at one and in the checkout: those named, and those in folders that differ."""
    from graphflops import revisions

    span = revisions.range_of(sides[0]) if len(sides) == 1 else None
    names = [span.old, span.new] if span else [*sides] or ["HEAD"]
    commits = [revisions.resolved(name) for name in names]
    if span and span.merge_base:
        commits[0] = revisions.merge_base(*commits)
    chosen = [path for path in paths if os.path.splitext(path)[1] in _suffixes()]
    folders = [path for path in paths if path not in chosen]
    found: dict[tuple[str | None, str | None], bool] = {(path, path): True for path in chosen}
    if folders or not paths:
        for sides_ in revisions.changed(commits[0], commits[1] if len(commits) > 1 else None, folders):
            found.setdefault(sides_, False)

    def side(path: str | None, index: int) -> Side | None:
        if path is None:
            return None
        return Side(path, commits[index], names[index]) if index < len(commits) else Side(path)

    return [(side(old, 0), side(new, 1), named) for (old, new), named in found.items()]
