"""Pages that are generated before each build, under docs/reference: commands, audit codes, schemas and rules.

Their text is that of the program: click's help, the docstrings of checks and rules, the JSON Schemas.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphflops.base.docstrings import docstring
from graphflops.base.files import whole
from graphflops.cli import COMMANDS, main
from graphflops.onnx_audit.audit import checks
from graphflops.rules import known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from sphinx.application import Sphinx

    from graphflops.rules import Rule

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


def write_pages(_app: Sphinx) -> None:
    """Writes the generated pages that are not as they should be: two builds at a time do not disturb each other."""
    rules = dict(rule_pages())
    pages = {
        "command-line.md": command_line(),
        "codes.md": codes(),
        "schemas.md": schemas(),
        "rules/index.md": rule_index([*rules]),
        **{f"rules/{name}.md": text for name, text in rules.items()},
    }
    for path in FOLDER.rglob("*.md"):
        if path.relative_to(FOLDER).as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(str(path)) as part:
                Path(part).write_text(text, encoding="utf-8")


def command_line() -> str:
    """Usage, description and options of each command."""
    parts = ["# Command line\n", "What `graphflops COMMAND --help` prints, for every command.\n"]
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        parts += [f"## {name}\n", *_command(name, command)]
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"graphflops {name}", max_content_width=100)
    yield f"```text\n{command.get_usage(context)}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0] == "\b":  # click keeps the lines of such a paragraph
            yield "```text\n" + "\n".join(lines[1:]) + "\n```\n"
        else:
            yield _prose(" ".join(lines)) + "\n"
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| `{_cell(name)}` | {_prose(_cell(what))} |" for name, what in filter(None, records) if what]
    yield "\n".join(["| option | |", "| --- | --- |", *rows]) + "\n"


def codes() -> str:
    """Every check of an audit."""
    parts = [
        "# Audit codes\n",
        "What `graphflops audit` looks for. A code never changes its meaning. Codes that begin with `GF1` are",
        "[diagnostics of an analysis](../report.md#diagnostics), those with `GF3` findings of a [budget](../budgets.md).\n",
    ]
    for code, check in checks().items():
        parts += [
            f"## {code} {check.name}\n",
            f"{check.kind}, {check.severity}\n",
            f"{_prose(check.explanation)}\n",
            f"Fix: {_prose(check.fix)}\n",
        ]
    return "\n".join(parts)


def schemas() -> str:
    """The JSON Schemas, whole."""
    parts = [
        "# JSON Schemas\n",
        "The fields are described in [the JSON report](../report.md) and [diff](../diff.md).\n",
    ]
    for path in sorted((ROOT / "docs").glob("*.schema.json")):
        title = json.loads(path.read_text("utf-8")).get("title", path.stem)
        parts += [f"## {title}\n", f"```json\n{path.read_text('utf-8').rstrip()}\n```\n"]
    return "\n".join(parts)


def rule_pages() -> Iterator[tuple[str, str]]:
    """A page for each family of rules: the module's docstring, then each rule with its operators and its code."""
    homes: dict[str, dict[Any, list[Rule]]] = defaultdict(lambda: defaultdict(list))
    for rule in known():
        homes[rule.home][rule.function].append(rule)
    for home, functions in sorted(homes.items()):
        name = home.removeprefix("graphflops.rules.")
        module = importlib.import_module(home)
        parts = [f"# Rules: {name}\n", _prose(inspect.getdoc(module) or "") + "\n"]
        for function, rules in functions.items():
            parts += _rule(function, rules)
        parts += _shared(module, set(functions))
        yield name, "\n".join(parts)


def _rule(function: Any, rules: list[Rule]) -> Iterator[str]:
    yield f"## {rules[0].key}\n"
    if len(rules) > 1:
        yield "Also " + ", ".join(f"`{rule.key}`" for rule in rules[1:]) + ".\n"
    yield _prose(docstring(function)) + "\n"
    if inspect.isfunction(function):  # else an object that is called, made from a line of a table
        yield _code(function)


def _shared(module: ModuleType, rules: set[Any]) -> Iterator[str]:
    """The formulas that the rules of a file call."""
    functions = [
        function
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and function not in rules
    ]
    if functions:
        yield "## Functions that the rules call\n"
        yield from map(_code, functions)


def _code(function: Callable[..., Any]) -> str:
    return f"```python\n{inspect.cleandoc(inspect.getsource(function))}\n```\n"


def rule_index(names: list[str]) -> str:
    """The families, with how many operators each prices."""
    counts: dict[str, int] = defaultdict(int)
    for rule in known():
        counts[rule.home.removeprefix("graphflops.rules.")] += 1
    rows = [f"| [{name}]({name}.md) | {counts[name]} |" for name in names]
    tree = "\n".join([":::{toctree}", ":hidden:", "", *names, ":::"])
    head = "# Rules\n\nOne page for each file of rules: what an operator costs, in words and as the code that computes it.\n"
    return "\n".join([head, "| family | operators |", "| --- | ---: |", *rows, "", tree, ""])


def _prose(text: str) -> str:
    """Text of a docstring as Markdown: stars, brackets and angles are signs there, not markup."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        for sign in "\\*<[_$":
            parts[place] = parts[place].replace(sign, "\\" + sign)
    return "`".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
