"""What the lines of code of an export say: which names a statement binds and reads, and which operators it spells.

A line is parsed with `ast`, never evaluated; no source file is opened. What a name means decides nothing: variables and
functions may be called anything. PyTorch's own operators are known where a line calls them as attributes
(`torch.cat(...)`, `x.softmax(-1)`), or by Python's symbols.

An export records the first line of each call, which may be a part of its statement. A line that opens a statement, whose
brackets are closed on later lines, binds what it says. Of a piece, a line from the middle of a statement, nothing is known.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from graphflops.exporters.sources import module_path
from graphflops.graph import Node
from graphflops.ops import operator

_LINE = re.compile(
    r'^[ \t]*File "([^"\n]{1,4096})", line (\d+), in (\S{1,256})\n[ \t]*([^\n]{0,4096})', re.MULTILINE
)
# Calls the module while a strict export traces it.
_OF_EXPORT = re.compile(r"(?:^|[/\\])torch[/\\]_dynamo[/\\]")
_MOST_FRAMES = 200  # of one call: deeper code is cut
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|#.*|[][(){}]")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_CONTINUING = (*".+-*/@%&|^<>=)]}", "if ", "else ", "and ", "or ", "for ")
_LOOPS = ("for ", "while ")
_BINDING = re.compile(r"^[^][(){}=#'\"]*([])])\s*=(?!=)")  # the end of targets that stand on lines above
# By how they end: several names in brackets, or an element of what a variable holds.
_BOUND_ABOVE = {")": ("#0", "#1"), "]": ("#0[]",)}
# Words of the operators that Python's symbols call (`1 / x` multiplies a reciprocal), and the kinds of others.
_WORDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div", "mul"),
    ast.Pow: ("pow",),
    ast.MatMult: ("matmul",),
    ast.USub: ("neg",),
}
_KINDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.BinOp: ("elementwise", "logic"),
    ast.UnaryOp: ("elementwise", "logic"),
    ast.Compare: ("comparison",),
    ast.MatMult: ("product",),
    ast.Subscript: ("view", "gather"),
    ast.Attribute: ("view",),  # it has many names: `x.T`
}
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "long", "int", "bool"})
_JOINS = ("cat", "stack")  # how names of torch's functions end that join tensors


class CodeLine(Struct, frozen=True):
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
    modules = [path for path in map(_module, module_stack.split(";")) if path is not None] or [""]
    depth, last = -1, len(modules) - 1
    lines: list[CodeLine] = []
    for frame in _frames(python_stack):
        depth += depth < last and frame[1] == "forward"
        lines.append(_line(frame, modules[max(0, depth)]))
    return tuple(lines)


@lru_cache(maxsize=16_384)
def _line(frame: tuple[str, str, int, str], module: str) -> CodeLine:
    """A line of a frame in a module; equal ones are one object, and compared as such."""
    return CodeLine(*frame, module)


@lru_cache(maxsize=4096)
def _module(entry: str) -> str | None:
    """The path of a module of a stack; None for what is not one."""
    parts = entry.split(",")
    return module_path(parts[1]) if len(parts) > 2 else None


@lru_cache(maxsize=1024)
def _frames(python_stack: str) -> list[tuple[str, str, int, str]]:
    """File, function, number and text of each line of a stack; equal layers share the stack."""
    found = [entry for entry in _LINE.findall(python_stack)[:_MOST_FRAMES] if not _OF_EXPORT.search(entry[0])]
    return [(file, function, int(number), text.strip()) for file, number, function, text in found]


class Statement(Struct, frozen=True):
    """One statement of a line; by default a piece of one, of which nothing is known."""

    is_piece: bool = True
    is_open: bool = False  # operands stand on later lines
    # The variables that it binds, one for each element of a tuple; `found[]` for an element of one, `#0` where the name
    # stands on a line above.
    targets: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()  # the variables that it reads as tensors
    mentioned: frozenset[str] = frozenset()  # all that it reads
    numbered: frozenset[str] = frozenset()  # those of which it takes an element by number
    calls_variable: bool = False  # it calls first what a variable holds
    given: tuple[str, ...] = ()  # the variables that its first call gets, "" for other operands
    takes_first: bool = False  # of several results
    joins: bool = False  # it joins what a variable's list holds
    called: frozenset[str] = frozenset()  # words of operators, and of modules: `.conv` of `self.conv`
    kinds: frozenset[str] = frozenset()  # of operators that its symbols call
    runs_last: tuple[str, ...] = ()  # the word of what it runs last, "" for what a variable holds
    times: int = 0  # how often that is spelled
    aliases: tuple[tuple[str, str], ...] = ()  # of `a = b` after it
    returns: tuple[str, ...] = ()  # variables among several results that it returns

    def role(self, node: Node, child: str = "") -> tuple[bool, bool]:
        """Whether it spells an operator, or `child`, the module in its own that the call is part of, and runs that last."""
        if not child:
            return _role(self.called, self.kinds, self.runs_last, node.op)
        words = _module_words(child)
        return not self.called.isdisjoint(words), not {"", *words}.isdisjoint(self.runs_last)


@lru_cache(maxsize=4096)
def _role(
    called: frozenset[str], kinds: frozenset[str], runs_last: tuple[str, ...], op: str
) -> tuple[bool, bool]:
    last, spelled = tuple(filter(None, runs_last)), operator(op)
    word, is_cast = spelled.word.strip("_"), spelled.kind == "cast"
    is_spelled = word in called or spelled.kind in kinds or (is_cast and not _CASTS.isdisjoint(called))
    return is_spelled, word.startswith(last) or (is_cast and not _CASTS.isdisjoint(last))


@lru_cache(maxsize=4096)
def _module_words(path: str) -> tuple[str, str]:
    """How code calls a module: `conv`, or `layers.3` for one in a list; and as an attribute of the module that calls it."""
    before, _, name = path.rpartition(".")
    word = f"{before.rpartition('.')[2]}.{name}" if name.isdigit() else name
    return word, f".{word}"


@lru_cache(maxsize=4096)
def statements(text: str, own: str = "") -> tuple[Statement, ...]:
    """The statements of a line that run something, in their order; at least one.

    own: the variable that holds the module itself, `self`; what it calls as an attribute of that is no operator.
    """
    found: list[Statement] = []
    for tree in _simple(_parsed(text)):
        match tree:
            case ast.Assign([ast.Name(target)], ast.Name(source)):
                if found:
                    found[-1] = replace(found[-1], aliases=(*found[-1].aliases, (target, source)))
            case ast.Expr(ast.Call(ast.Attribute(of, "append"), [ast.Name()])) if found and not _is(of, own):
                pass  # it only keeps what it is given: `found.append(x)`
            case _:
                found.append(_statement(tree, own))
    if found and (bound := _BINDING.match(text)):
        found[0] = replace(found[0], targets=_BOUND_ABOVE[bound[1]])
    if found and opens(text):
        last = found[-1]
        given = last.given or ("",) * (last.calls_variable or bool(last.called))
        found[-1] = replace(last, is_open=True, given=given)
    return tuple(found) or (Statement(),)


@lru_cache(maxsize=4096)
def module_variable(text: str, path: str) -> str:
    """The variable that holds a module, where a line calls the one inside of it at a path: `self` of `self.a(x)`."""
    for part in (part for tree in _parsed(text) for part in ast.walk(tree)):
        match part:
            case ast.Attribute(ast.Name(name), word) if word in path.split("."):
                return name
    return ""


@lru_cache(maxsize=4096)
def runs_in_turns(text: str, own: str = "") -> bool:
    """Whether a line has several statements, or a loop with its body. own: as above."""
    found = statements(text, own)
    return len(found) > 1 or (text.startswith(_LOOPS) and not found[0].is_piece)


def opens(text: str) -> bool:
    """Whether a line opens a statement that goes on below: `x = self.act(`."""
    return bool(_closing(_BINDING.sub("", text))) or text.endswith("\\")


def closes(text: str) -> bool:
    """Whether a line begins with the end of what one above has opened, and binds nothing: `) * self.gate(x)`."""
    return text.startswith((")", "]", "}")) and ";" not in text and not _BINDING.match(text)


def continues(line: CodeLine, before: CodeLine) -> bool:
    """Whether a piece of a statement follows another of its expression: `.view(...)`, `+ self.b(x)`, the next operand."""
    is_open = before.text.endswith(",") or bool(_closing(before.text))
    return line.number > before.number and (is_open or line.text.startswith(_CONTINUING))


@lru_cache(maxsize=512)
def _parsed(text: str) -> list[ast.stmt]:
    """The statements of a line, brackets closed; none for a line from the middle of a statement."""
    text = _BINDING.sub("_ =", text)
    closing = _closing(text)
    if closing is None or (not closing and text.endswith(",")):
        return []
    for begin, end in (("elif ", "if "), ("else:", "if 1:")):
        text = end + text.removeprefix(begin) if text.startswith(begin) else text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operand, end in product(("", " 0"), ("", " pass", ": pass")):
            try:
                return ast.parse(text.removesuffix("\\") + operand + closing + end).body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return []


def _closing(text: str) -> str | None:
    """What closes the brackets that a line leaves open; None where it closes one that an earlier line has opened."""
    waiting: list[str] = []
    for token in _TOKEN.findall(text):
        if token in _BRACKETS:
            waiting.append(_BRACKETS[token])
        elif token in _BRACKETS.values() and (not waiting or waiting.pop() != token):
            return None
    return "".join(reversed(waiting))


def _simple(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements inside of others on their line; the head of a loop or condition whose body is on later lines."""
    for tree in body:
        inner = getattr(tree, "body", None)
        if isinstance(inner, list) and not isinstance(inner[0], ast.Pass):
            yield from _simple(inner)
        else:
            yield tree


def _is(value: ast.AST, name: str) -> bool:
    return isinstance(value, ast.Name) and value.id == name


def _statement(tree: ast.stmt, own: str) -> Statement:
    """The facts of one statement. What an expression makes by itself is not known: it may be part of a longer one."""
    value = next((part for name in ("value", "iter", "test") if (part := getattr(tree, name, None))), tree)
    if isinstance(tree, ast.AugAssign):
        value = ast.BinOp(tree.target, tree.op, tree.value)
    parts = [*ast.walk(value)]
    words = {part: _words(part, own) for part in parts}
    targets = _targets(tree) or tuple(part.target.id for part in parts if isinstance(part, ast.NamedExpr))
    first, is_last = _first_call(value), isinstance(tree, ast.Return)
    callee = None if first is None else first.func
    if isinstance(callee, ast.Subscript):
        callee = callee.value  # `self.layers` of `self.layers[i](x)`
    last = value
    while isinstance(last, ast.Tuple) and last.elts:
        last = last.elts[-1]
    # What it takes an element or a field of it does not read as a tensor.
    fields: set[ast.AST] = {part.value for part in parts if isinstance(part, ast.Subscript)}
    called = {part.func for part in parts if isinstance(part, ast.Call)}
    fields |= {part.value for part in parts if isinstance(part, ast.Attribute) and part not in called}
    return Statement(
        is_piece=isinstance(tree, (ast.Expr, ast.For)) and not targets,
        targets=targets,
        names=frozenset(part.id for part in parts if isinstance(part, ast.Name) and part not in fields),
        mentioned=frozenset(part.id for part in parts if isinstance(part, ast.Name)),
        numbered=frozenset(name for part in parts if (name := _numbered(part))),
        calls_variable=callee is not None and not isinstance(callee, ast.Attribute),
        given=_given(first),
        takes_first=_takes_first(value),
        joins=any(
            any(word.endswith(_JOINS) for word in spelled) and any(_given(part)[:1])
            for part, spelled in words.items()
        ),
        called=frozenset(word for spelled in words.values() for word in spelled if word),
        kinds=frozenset(kind for part in parts for kind in _KINDS.get(type(part), ())),
        runs_last=words[last],
        times=sum(words[part] == words[last] for part in parts if part is last or _computes(part)),
        returns=tuple(part.id for part in getattr(value, "elts", ()) if isinstance(part, ast.Name)) * is_last,
    )


def _targets(tree: ast.stmt) -> tuple[str, ...]:
    """The variables that a statement binds, as they are written: `x`, `self.cache`; `found[]` for any element of one."""
    if isinstance(tree, ast.Assign):
        target: ast.AST = tree.targets[0]
    elif isinstance(tree, ast.AugAssign) or (isinstance(tree, ast.AnnAssign) and tree.value is not None):
        target = tree.target
    else:
        return ()
    found = []
    for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
        match part.value if isinstance(part, ast.Starred) else part:
            case ast.Subscript(value, ast.Name() | ast.BinOp() | ast.Attribute()):
                found.append(f"{ast.unparse(value)}[]")
            case element:
                found.append(ast.unparse(element))
    return tuple(found)


def _numbered(part: ast.AST) -> str:
    """The variable of which an expression takes an element by number: `outputs` of `outputs[0]`."""
    match part:
        case ast.Subscript(ast.Name(name), ast.Constant(int())):
            return name
    return ""


def _first_call(value: ast.AST) -> ast.Call | None:
    """The call that an expression begins with: `f(x)` of `f(x).view(...)[0]`."""
    found = None
    while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        found = value if isinstance(value, ast.Call) else found
        value = value.func if isinstance(value, ast.Call) else value.value
    return found


def _given(call: ast.AST | None) -> tuple[str, ...]:
    """The variables among a call's operands, "" for others; () for no call."""
    match call:
        case ast.Call(_, args, keywords):
            operands = [*args, *(keyword.value for keyword in keywords)]
            return tuple(operand.id if isinstance(operand, ast.Name) else "" for operand in operands)
    return ()


def _takes_first(value: ast.AST) -> bool:
    """Whether an expression takes the first of several results: `x.max(dim=1).values`, `x.max(dim=1)[0]`."""
    match value:
        case ast.Subscript(ast.Call(), ast.Constant(0)) | ast.Attribute(ast.Call(), "values"):
            return True
    return False


def _words(value: ast.AST, own: str) -> tuple[str, ...]:
    """Words of what an expression runs last: of operators, or a module's; "" for what a variable holds; () if not known."""
    if isinstance(value, (ast.BinOp, ast.UnaryOp)):
        return _WORDS.get(type(value.op), ())
    if not isinstance(value, ast.Call):
        return ()
    match value.func:
        case ast.Attribute(of, word):
            number = ""
        case ast.Subscript(ast.Attribute(of, word), ast.Constant(int(index))):
            number = f".{index}"
        case _:
            return ("",)
    return (f".{word}{number}" if _is(of, own) else word + number,)


def _computes(part: ast.AST) -> bool:
    """Whether an expression may run an operator: a call, or arithmetic on one; `i + 1` is taken for a number."""
    if not isinstance(part, (ast.BinOp, ast.UnaryOp)):
        return isinstance(part, ast.Call)
    inner = [below for below in ast.walk(part) if below is not part]
    has_number = any(isinstance(below, ast.Constant) for below in inner)
    return not has_number or any(isinstance(below, ast.Call) for below in inner)
