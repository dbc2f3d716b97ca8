"""The output formats, one row each: which classes a format renders, by which function, and which options that takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import get_args

from graphflops.base.files import whole
from graphflops.base.lazy import imported
from graphflops.base.record import Record, field
from graphflops.errors import OptionError, require_choice, shown

# Set by the caller, not by the user: a format may ignore them.
CONTEXT = ("width", "color", "locate")
_SCREEN = ("width", "color")
_CUTS = ("by", "depth", "top")
UNLIMITED = 10_000  # columns of a screen on which nothing is shortened
_PLAIN = (".txt", ".log", ".out")  # suffixes of files that hold the text of a terminal

# The classes that formats render, as an error names them.
RENDERED = {
    "Report": "a report", "Sweep": "a sweep", "Overview": "several models", "History": "a history",
    "Comparison": "a comparison", "Findings": "findings", "Fits": "a verdict on memory",
    "Serving": "a plan of serving", "Validation": "a validation", "Listing": "a list", "Answer": "a graph",
    "Statement": "a compute statement", "Plan": "a plan of layouts", "Replication": "a plan of copies",
}  # fmt: skip


class Renderer(Record, frozen=True):
    """How a format renders one class."""

    function: str  # `module:function`, called with the object and the options
    options: tuple[str, ...] = ()  # keywords that it takes
    # Values of `by` for which there is a tree, so that `depth` means something.
    tree_with: tuple[str | None, ...] = (None, "module")


class Format(Record, frozen=True):
    """One output format."""

    name: str
    suffixes: tuple[str, ...]  # of files that are written in it unless --format says otherwise
    renderers: Mapping[str, Renderer] = field(default_factory=dict)  # by the name of the class rendered


# By the name of a class, the function that makes the document of one, which each of these formats writes.
DOCUMENTS = {
    "Sweep": "graphflops.render.derived:sweep_document",
    "Overview": "graphflops.render.derived:overview_document",
    "History": "graphflops.render.derived:history_document",
    "Fits": "graphflops.render.serving:fits_document",
    "Serving": "graphflops.render.serving:document",
    "Plan": "graphflops.render.plan:plan_document",
    "Replication": "graphflops.render.serving:replication_document",
    "Statement": "graphflops.render.statement:document",
    "Validation": "graphflops.render.validation:document",
    "Listing": "graphflops.render.document:of_listing",
    "Answer": "graphflops.render.graph:document",
}


def _documents(form: str, *options: str) -> dict[str, Renderer]:
    return dict.fromkeys(DOCUMENTS, _by(f"document:{form}", options))


def _by(place: str, options: tuple[str, ...] = (), **more: tuple[str | None, ...]) -> Renderer:
    return Renderer(f"graphflops.render.{place}", options, **more)


FORMATS = (
    Format("table", (), {
        **_documents("text", *_SCREEN),
        "Report": _by("table:table", (*_CUTS, "verbose", *_SCREEN)),
        "Comparison": _by("diff.texts:table", (*_CUTS, "verbose", *_SCREEN)),
        "Findings": _by("findings:table", ("top", "statistics", *_SCREEN)),
        "Validation": _by("document:text", ("top", "show_kernel", *_SCREEN)),
        "Answer": _by("document:text", ("top", *_SCREEN)),
    }),
    Format("json", (".json",), {
        **_documents("json"),
        "Report": _by("document:report_json"),
        "Comparison": _by("diff.json:json"),
        "Findings": _by("findings:json"),
        "Answer": _by("graph:node_link"),
    }),
    Format("csv", (".csv",), {
        **_documents("csv"),
        "Report": _by("document:report_csv", _CUTS, tree_with=("module",)),
        "Comparison": _by("diff.texts:csv", ("by", "top")),
    }),
    Format("markdown", (".md", ".markdown"), {
        **_documents("markdown"),
        "Report": _by("document:report_markdown", (*_CUTS, "verbose")),
        "Comparison": _by("diff.texts:markdown", (*_CUTS, "verbose", "limit")),
        "Findings": _by("findings:markdown", ("top", "limit")),
        "Validation": _by("document:markdown", ("top", "show_kernel")),
        "Answer": _by("document:markdown", ("top",)),
        "Statement": _by("statement:markdown"),
    }),
    Format("html", (".html", ".htm"), {
        "Report": _by("html.sweep:html"),
        "Sweep": _by("html.sweep:of_sweep"),
        "Comparison": _by("html.diff:html"),
        "History": _by("document:html"),
        "Serving": _by("html.sweep:serving"),
        "Answer": _by("graph:html"),
        "Statement": _by("document:html"),
        "Plan": _by("document:html"),
        "Replication": _by("document:html"),
        "Validation": _by("validation:html"),
    }),
    Format("sarif", (".sarif",), {"Findings": _by("sarif:sarif", ("locate",))}),
    Format("speedscope", (), {"Report": _by("viewers:speedscope")}),
    Format("memory-snapshot", (".pickle", ".pkl"), {"Report": _by("memory:snapshot")}),
    Format("llm-d-inference-sim", (), {"Serving": _by("serving:llm_d_inference_sim")}),
    Format("chrome-trace", (), {
        "Report": _by("viewers:chrome_trace"), "Plan": _by("plan:chrome_trace"),
    }),
    Format("chakra", (".et",), {
        "Report": _by("chakra:chakra"), "Plan": _by("plan:chakra", ("rank",)),
    }),
    Format("dot", (".dot", ".gv"), {
        "Report": _by("graph:dot_of_report", ("depth",)),
        "Answer": _by("graph:dot"),
    }),
    Format("svg", (".svg",), {"Answer": _by("graph:svg")}),
    Format("graphml", (".graphml",), {"Answer": _by("graph:graphml")}),
    Format("mermaid", (".mmd", ".mermaid"), {"Answer": _by("graph:mermaid")}),
    *(
        Format(name, (), {"Statement": _by(f"statement:{name}")})
        for name in ("cyclonedx", "spdx", "huggingface")
    ),
)  # fmt: skip


def names(kind: str) -> list[str]:
    """The formats that render this class, the default first."""
    return [form.name for form in FORMATS if kind in form.renderers]


def chosen(kind: str, form: str | None, output: str | os.PathLike[str] | None) -> str:
    """The format named, else of the output's suffix, else the default. OptionError for a suffix of no such format."""
    if form is not None:
        return form
    suffix = os.path.splitext(output or "")[1].lower()
    known = {suffix: one.name for one in FORMATS if kind in one.renderers for suffix in one.suffixes}
    if output is not None and suffix not in ("", *_PLAIN, *known):
        what = f"{suffix} is the suffix of no format for {RENDERED[kind]}"
        raise OptionError(f"{shown(os.fspath(output))}: {what}: use {', '.join(known)}, or --format")
    return known.get(suffix) or names(kind)[0]


def save(value: object, path: str | os.PathLike[str], form: str | None = None, **options: object) -> None:
    """Writes the object to a file, completely or not at all, in the named format or in that of the suffix."""
    text = render(value, chosen(type(value).__name__, form, path), **options)
    with whole(os.fspath(path)) as part, open(part, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def render(value: object, form: str, **options: object) -> str | bytes:
    """The object in a format. OptionError for an option that it does not take, and if it does not render the class."""
    kind = type(value).__name__
    refuse(kind, form, options)
    renderer = renderer_of(kind, form)
    taken = {n: option for n, option in options.items() if option is not None and n in renderer.options}
    text: str | bytes = imported(renderer.function)(value, **taken)
    return text


def renderer_of(kind: str, form: str) -> Renderer:
    """How the format renders the class; OptionError where it does not."""
    found = next((one.renderers[kind] for one in FORMATS if one.name == form and kind in one.renderers), None)
    if found is None:
        raise OptionError(f"{form} is no format for {RENDERED[kind]}; there are {', '.join(names(kind))}")
    return found


def refuse(kind: str, form: str, options: Mapping[str, object]) -> None:
    """Raises OptionError for what `render` would refuse: a command checks it before it analyzes a model."""
    renderer = renderer_of(kind, form)
    given = {name: option for name, option in options.items() if option is not None and option is not False}
    wrong = [_flag(name) for name in given if name not in (*renderer.options, *CONTEXT)]
    if wrong:
        takes = ", ".join(_flag(name) for name in renderer.options if name not in CONTEXT) or "none"
        noun = "an option" if len(wrong) == 1 else "options"
        what = f"--format {form} for {RENDERED[kind]}"
        raise OptionError(f"{', '.join(wrong)}: not {noun} of {what}, which takes {takes}")
    if "by" in given:
        from graphflops.report import Cut, Grouping  # not for `--help`

        require_choice("by", given["by"], get_args(Cut if kind == "Report" else Grouping))
    of_tree = [name for name in given if name == "depth" or (name == "verbose" and kind == "Report")]
    if of_tree and given.get("by") not in renderer.tree_with:
        raise OptionError(f"{_flag(of_tree[0])} is for the module tree: leave it out or say --by module")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
