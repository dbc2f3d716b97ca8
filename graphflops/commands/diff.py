"""What changed: `graphflops diff` between two models, reports or revisions, `history` over commits, `textconv` for git."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from graphflops.base.limits import LimitPassed
from graphflops.commands import files, model_options, options
from graphflops.errors import FileError, GraphflopsError, shown
from graphflops.versions import revisions
from graphflops.versions.revisions import ModelFile

if TYPE_CHECKING:
    from graphflops.graph import Graph

_SEVERAL = ("table", "markdown")  # formats whose texts can be concatenated


Pair = tuple["ModelFile | Graph | None", "ModelFile | Graph | None", bool]  # and whether the user named it


@click.command(cls=options.PathsCommand)
@click.argument("sides", nargs=-1, metavar="OLD NEW [-- PATH...]")
@options.sizes
@options.assume
@options.cut(
    ("op", "module", "source"), by="Where: by operator, module or line. Default: module.",
    depth="Add up below N levels of modules.",
    verbose="Every total, and the modules too; of an export, every difference.", top="Lines of a table.",
)  # fmt: skip
@options.output_of("Comparison")
@model_options.training
@options.execution
@options.device
@options.flag("--exit-code", "Exit with 3 if anything differs.")
@options.of_the_program
def diff(
    sides: tuple[str, ...], paths: tuple[str, ...] | None, cut: dict[str, Any], output: files.Output,
    exit_code: bool, **given: Any,
) -> None:  # fmt: skip
    """What changed from OLD to NEW, by how much, and in which module.

    OLD and NEW are a .pt2, an .onnx, a saved JSON report, REVISION:PATH, or a library's model by name (timm:resnet50), which
    is captured. With git revisions, PATH says which models are meant; one is compared with the files of the checkout.

    \b
    graphflops diff old.pt2 new.pt2
    graphflops diff model.pt2 model.onnx             does the export keep the work?
    graphflops diff main..HEAD -- model.onnx
    graphflops diff main                             every model that differs from main
    """
    output = output.of("Comparison", **cut)
    pairs = _pairs(sides, paths)
    if output.form not in _SEVERAL and len(pairs) != 1:
        what = f"{len(pairs)} models differ"
        raise click.UsageError(f"{what}: name one behind --, or ask for table or markdown")
    from graphflops.comparison.models import compare

    texts: list[str | bytes] = []
    differs = False
    for old, new, named in pairs:
        if old is None or new is None:
            differs = True
            texts.append(_alone(old, new))
            continue
        with files.Progress() as progress:
            comparison = compare(old, new, progress=progress, **given)
        differs = differs or not comparison.same
        if named or not comparison.same:
            texts.append(output.text(comparison, **cut))
    text = texts[0] if len(texts) == 1 else "\n".join(map(str, texts)) or "no model differs\n"
    files.write(text, output.path)
    if exit_code and differs:
        raise Exit(3)


def _alone(old: ModelFile | Graph | None, new: ModelFile | Graph | None) -> str:
    there = old or new
    assert isinstance(there, ModelFile)
    return f"{shown(there.path)}: {'gone' if new is None else 'new'}, nothing to compare with\n"


def _pairs(sides: Sequence[str], paths: Sequence[str] | None) -> list[Pair]:
    if len(sides) > 2 or not (sides or paths):
        raise click.UsageError("name OLD and NEW, or revisions and, behind --, paths")
    if paths is None and len(sides) == 2:
        ours, theirs = (_named(text) for text in sides)
        if ours is not None and theirs is not None:
            return [(ours, theirs, True)]
        for one, text in ((ours, sides[1]), (theirs, sides[0])):
            if isinstance(one, ModelFile) and not one.commit:  # `main model.onnx`: that file at the revision
                at = ModelFile.at(one.path, text)
                return [(one, at, True) if one is ours else (at, one, True)]
        if ours is not None or theirs is not None:
            raise click.UsageError(f"{shown(sides[1] if theirs is None else sides[0])} is no file")
    if paths is None and len(sides) == 1 and os.path.isfile(sides[0]):
        return [(ModelFile.at(sides[0], "HEAD"), ModelFile(sides[0]), True)]
    return _between(sides, paths or ())


def _named(text: str) -> ModelFile | Graph | None:
    """The file that a path or REVISION:PATH names, or the program of a library's model; None for a revision."""
    found = model_options.model(text)
    return ModelFile.named(found) if isinstance(found, str) else found


def _between(sides: Sequence[str], paths: Sequence[str]) -> list[Pair]:
    """The models at two revisions, or at one and in the checkout: those named, and those in folders that differ."""
    span = revisions.range_of(sides[0]) if len(sides) == 1 else None
    names = [span.old, span.new] if span else [*sides] or ["HEAD"]
    commits = [revisions.resolved(name) for name in names]
    if span and span.merge_base:
        commits[0] = revisions.merge_base(*commits)
    then = commits[1] if len(commits) > 1 else None
    chosen = [path for path in paths if os.path.splitext(path)[1] in revisions.SUFFIXES]
    folders = [path for path in paths if path not in chosen]
    found = {pair: True for path in chosen for pair in _where(path, commits[0], then, names)}
    for path in folders:
        _where(path, commits[0], then, names)
    if folders or not paths:
        for sides_ in revisions.changed(commits[0], then, folders):
            found.setdefault(sides_, False)

    def side(path: str | None, index: int) -> ModelFile | None:
        if path is None:
            return None
        return ModelFile(path, commits[index], names[index]) if index < len(commits) else ModelFile(path)

    return [(side(old, 0), side(new, 1), named) for (old, new), named in found.items()]


def _where(path: str, old: str, new: str | None, names: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """The path on either side, None where it is not there, or under its other name; an error where it is on neither."""
    here = revisions.there(path, old), revisions.there(path, new)
    if not any(here):
        sides = f"{shown(names[0])} and {shown(names[1]) if len(names) > 1 else 'the checkout'}"
        raise FileError(f"{shown(path)}: nothing of that name in {sides}")
    if all(here):
        return [(path, path)]
    renamed = [pair for pair in revisions.changed(old, new, []) if path in pair and None not in pair]
    return renamed or [(path if here[0] else None, path if here[1] else None)]


@click.command(cls=options.PathsCommand)
@click.argument("sides", nargs=-1, metavar="[OLD..NEW] -- MODEL")
@options.whole("--last", "At most the last N commits. Default: 50.", most=10_000, default=50)
@options.sizes
@options.assume
@options.output_of("History")
@options.of_the_program
def history(
    sides: tuple[str, ...], paths: tuple[str, ...] | None, last: int, output: files.Output, **given: Any
) -> None:
    """What MODEL cost at each commit that changed it, the oldest first; a renamed file is followed.

    Nothing is checked out. Without a range: all commits up to HEAD.

    \b
    graphflops history main~20..HEAD -- model.onnx
    graphflops history model.pt2 --output history.html
    """
    from graphflops.loading import analyze

    output = output.of("History")
    behind, ranges = (paths, sides) if paths else (sides[-1:], sides[:-1])
    if len(behind) != 1 or len(ranges) > 1:
        raise click.UsageError("name one MODEL, and before -- at most one range OLD..NEW")
    span = revisions.range_of(ranges[0]) if ranges else None
    if ranges and span is None:
        raise click.UsageError(f"{shown(ranges[0])} is no range OLD..NEW")
    output.write(revisions.history(behind[0], span, last, lambda file: analyze(file, **given)))


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

        with revisions.file_here(model) as file:
            return text(files.report_of(file, quiet=True))
    except (GraphflopsError, RecursionError, MemoryError, LimitPassed) as error:
        return f"not analyzed: {shown(str(error).removeprefix(f'{shown(model)}: '), 500)}\n"
