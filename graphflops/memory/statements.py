"""What the lines of code in an export say: their modules, the variables that they assign, the operators that they spell.

Only the text of the lines is read, with regular expressions; no source file is opened and nothing is evaluated.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from graphflops.exporters.sources import module_path
from graphflops.ops import operator
from graphflops.tensor import DType

if TYPE_CHECKING:
    from graphflops.graph import Node

_LINE = re.compile(
    r'^[ \t]*File "([^"\n]{1,4096})", line (\d+), in (\S{1,256})\n[ \t]*([^\n]{0,4096})', re.MULTILINE
)
# `a, b = ...`, `x += ...`, `outputs: Output = ...`; comparisons and keywords do not match.
_ASSIGNMENT = re.compile(
    r"([A-Za-z_][\w.]*(?:\[[^\]=]*\])?(?:\s*,\s*[*A-Za-z_][\w.]*)*),?\s*(?::[^=]+)?(?:[-+*/@|&]|//)?=(?!=)"
)
_STATEMENT_WORDS = ("return", "if", "elif", "for", "while", "with", "assert", "del", "raise", "yield")
_FIRST_ARGUMENT = re.compile(r"[^=(]*=\s*[\w.]+(?:\[\w+\])?\(\s*(?:\w+\s*=\s*)?(\w+)\s*[,)]")
# What stands before a statement on its line.
_CONDITION = re.compile(r"^(?:for|while|if|elif|else|with)\b.*?:\s+(?=[A-Za-z_]\w*\s*=(?!=))")
_CALLEE = re.compile(r"[^=]*=\s*([\w.]+)\(")
_METHOD = re.compile(r"([A-Za-z_]\w*)\.\w+\([^()]*\)?$")
_EXPRESSION = re.compile(r"([A-Za-z_]\w*)\..*\)(?:\.\w+)?$")
_KEYWORD = re.compile(r"\w+=[^=\s][^,]*,(?:$| *\w+=)")  # arguments of a call, on a line of their own
_BRACKETS = re.compile(r"\([^()]*\)")
_MOST_NESTED = 8  # brackets inside of one another, on a line of code
_FIELD = re.compile(r"\)(?:\.values|\[0\])\)?$")
_MODULE = re.compile(r"self\.\w+\([^()]*\)$")
_MASK_OF_DICTIONARY = re.compile(r"create_\w*masks?\(\*\*(\w+)")
_COLLECTING = re.compile(r"\w+, (?!last_)\w*att\w* = \w*(?:layer|block)\w*\(")
_NO_VARIABLES = ("self", "torch", "nn", "F")
_WEIGHTS = re.compile(r"attn|attention|prob|weight")
_FURTHER_ARGUMENTS = re.compile(r"[^=(]*=\s*[\w.]+\(\s*\w+((?:\s*,\s*[A-Za-z_]\w*)+)\s*\)$")
JOINED = re.compile(r"(?:cat|concat|stack|hstack|vstack)\(\s*(\w)")
# By kind of operator; a view has many names (`x.T`), so any attribute counts.
_SYMBOLS = {
    "elementwise": ("+", "-", "*", "/"),
    "comparison": ("=", "<", ">"),
    "logic": ("&", "|", "~", "^"),
    "product": ("@",),
    "view": ("[", "."),
    "gather": ("[",),
    "cast": (".to(", ".float(", ".half(", ".bfloat16(", ".double(", ".type", ".long(", ".int(", ".bool("),
}
# Kinds of modules whose result takes the place of their operand.
PASSED_THROUGH = frozenset({"softmax", "dropout"})
BATCHED_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})  # of two tensors that were computed
_NUMBERED = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a module's path that is a number
_MOST_FRAMES = 200  # of one call: deeper code is cut


class CodeLine(NamedTuple):
    """One line of a call stack: the module whose forward it is part of, and its text."""

    file: str
    function: str
    number: int
    text: str
    module: str


@lru_cache(maxsize=4096)
def code_lines(python_stack: str, module_stack: str) -> tuple[CodeLine, ...]:
    """The lines of a call stack as an export records it, outermost first.

    Each forward in a stack is that of the next module; further ones are inherited by the last.
    """
    found = [_module(entry) for entry in module_stack.split(";")]
    modules = [path for path in found if path is not None] or [""]
    depth, last = -1, len(modules) - 1
    lines: list[CodeLine] = []
    for file, number, function, text in _frames(python_stack):
        depth += function == "forward" and depth < last
        lines.append(CodeLine(file, function, number, text, modules[max(0, depth)]))
    return tuple(lines)


@lru_cache(maxsize=4096)
def _module(entry: str) -> str | None:
    """The path of a module as an entry of a stack records it; None for an entry without one."""
    return module_path(entry.split(",")[1]) if entry.count(",") > 1 else None


@lru_cache(maxsize=1024)
def _frames(python_stack: str) -> list[tuple[str, int, str, str]]:
    """File, line, function and text of each line of a stack; equal layers share the stack."""
    found = _LINE.findall(python_stack)[:_MOST_FRAMES]
    return [(file, int(number), function, text.strip()) for file, number, function, text in found]


@lru_cache(maxsize=4096)
def first_argument(text: str) -> str:
    """The variable that a statement gives to a call first: "x" of `y = self.block(x, mask)`; "" for none."""
    match = _FIRST_ARGUMENT.match(text)
    return match[1] if match else ""


@lru_cache(maxsize=4096)
def further_arguments(text: str) -> tuple[str, ...]:
    """The variables that a statement gives to a call beside the first: `("outputs",)` of `x = self.blocks(x, outputs)`."""
    match = _FURTHER_ARGUMENTS.match(text)
    return tuple(name.strip() for name in match[1].split(",")[1:]) if match else ()


@lru_cache(maxsize=4096)
def assigned_names(text: str) -> tuple[str, ...]:
    """The variables that a statement assigns: `("q", "k")` of `q, k = ...`; () where it assigns none."""
    text = _CONDITION.sub("", text)
    if text.startswith(_STATEMENT_WORDS) and not re.match(r"\w+\s*=", text):
        return ()
    if "," in text and _KEYWORD.match(_outside_brackets(text)):
        return ()
    match = _ASSIGNMENT.match(text)
    return tuple(name.strip().lstrip("*") for name in match[1].split(",")) if match else ()


def _outside_brackets(text: str) -> str:
    """A line without what stands in round brackets."""
    for _ in range(_MOST_NESTED):
        text = _BRACKETS.sub("", text)
    return text


@lru_cache(maxsize=4096)
def receiver(text: str) -> str:
    """The variable whose method a line calls, where the line is the first of an expression of several: `x.view(...)`.

    Of a module's result (`self.query(x)`), the module: the variable's name begins with its own (`query_layer`).
    """
    if _MODULE.match(text):
        return text.partition("(")[0]
    match = _METHOD.match(text)
    return match[1] if match and match[1] not in _NO_VARIABLES else ""


@lru_cache(maxsize=4096)
def chained_name(text: str, name: str) -> tuple[str, ...]:
    """The variable that an expression in lines of its own is taken to be assigned to: the one that it begins with.

    name: the variable that a chain of methods, one a line, began with.
    """
    if name and text.startswith("."):
        return (name,)
    match = _EXPRESSION.match(text)
    is_whole = match is not None and text.count("(") == text.count(")")
    return (match[1],) if match and is_whole and match[1] not in _NO_VARIABLES else ()


@lru_cache(maxsize=4096)
def takes_first(text: str) -> bool:
    """Whether a statement takes the first of several results: `x.max(dim=1).values`."""
    return _FIELD.search(text) is not None


def is_module_of(key: str, name: str) -> bool:
    """Whether `key` is the module whose result the variable `name` is named for."""
    return key.startswith("self.") and name.startswith(key[len("self.") :])


@lru_cache(maxsize=4096)
def calls_variable(text: str) -> bool:
    """Whether a statement calls what a variable holds, as that of a loop over modules does."""
    match = _CALLEE.match(text)
    return match is not None and "." not in match[1]


@lru_cache(maxsize=4096)
def dictionary_of_mask(text: str) -> str:
    """The dictionary of the arguments that a mask is made from; "" where a line makes none from one."""
    match = _MASK_OF_DICTIONARY.search(text)
    return match[1] if match else ""


def is_weights(name: str) -> bool:
    """Whether a variable is named as attention weights are."""
    return bool(_WEIGHTS.search(name))


@lru_cache(maxsize=4096)
def collects_results(text: str) -> bool:
    """Whether a statement of a loop takes the attention weights of each layer beside its result: a list gets all of both."""
    return _COLLECTING.match(text) is not None


def joins(node: Node) -> bool:
    """Whether a call joins tensors."""
    return node.operator.name in ("cat", "stack")


def has_dtype(node: Node) -> bool:
    """Whether a softmax converts its operand first."""
    return node.operator.kind == "softmax" and any(
        isinstance(argument, DType) for argument in node.arguments().values()
    )


def is_spelled(node: Node, text: str) -> bool:
    """Whether a line of code names the operator of a call, or has its symbol."""
    return _is_spelled(node.op, text)


@lru_cache(maxsize=4096)
def _is_spelled(op: str, text: str) -> bool:
    found = operator(op)
    return found.word.strip("_") in text or any(symbol in text for symbol in _SYMBOLS.get(found.kind, ()))


def is_next_turn(caller: CodeLine, before: str, now: CodeLine) -> bool:
    """Whether a line that calls another module than before is a loop's next turn, not a further call in one statement.

    `x = layer(x)` calls one module a turn, and so does `x = self.layers[i](x)`; `self.drop(self.norm(x))` calls two. Layers
    of a list are numbered: other numbers are parts of names (`self.conv_1a`).
    """
    if before == now.module:
        return False
    callee = _CALLEE.match(caller.text)
    if callee and not callee[1].startswith("self."):
        return True
    return is_alike(before, now.module)


def is_alike(module: str, other: str) -> bool:
    """Whether two modules are the same, or have the same place in two parts of a list."""
    return _NUMBERED.sub("#", module) == _NUMBERED.sub("#", other)
