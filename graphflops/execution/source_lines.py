"""What an export's lines of code say: which names a statement binds and reads, and which operators it spells.

A line is parsed with `ast`, never evaluated; no source file is opened. What variables and functions are called decides
nothing. PyTorch's operators are recognised as attributes (`torch.cat(...)`, `x.softmax(-1)`) or by Python's symbols.

An export records the first line of each call. A line that opens a statement, whose brackets are closed on later lines,
shows what the statement binds; a piece, from the middle of a statement, shows nothing. What an export does not show of a
library is found by its files' paths; user code is priced as it stands.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product

from msgspec import Struct

from graphflops.base.record import replace
from graphflops.exporters.sources import module_path
from graphflops.graph import Node
from graphflops.ops import operator

_LINE = re.compile(
    r'^[ \t]*File "([^"\n]{1,4096})", line (\d+), in (\S{1,256})\n[ \t]*([^\n]{0,4096})', re.MULTILINE
)
_OF_EXPORT = "/torch/_dynamo/"  # the folder of Dynamo, which calls the module while it traces a strict export
_GENERATED = "<eval_with_key>"  # code of torch.fx, which deletes each variable after its last use
_MOST_FRAMES = 200  # of one call; deeper frames are ignored
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|#.*|[][(){}]")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_CONTINUING = (*".+-*/@%&|^<>=)]}", "if ", "else ", "and ", "or ", "for ")
_BINDING = re.compile(r"^[^][(){}=#'\"]*([])])\s*=(?!=)")  # the end of targets that began on earlier lines
# By the bracket that ends the targets: several names, or an element of what a variable holds.
_BOUND_ABOVE = {")": ("#0", "#1"), "]": ("#0[]",)}
# Words of the operators that Python's symbols call (`1 / x` multiplies a reciprocal).
_WORDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div", "mul"),
    ast.Pow: ("pow",),
    ast.MatMult: ("matmul",),
    ast.USub: ("neg",),
}
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "long", "int", "bool"})
_JOINS = ("cat", "stack")  # endings of the names of torch's functions that join tensors

_TRANSFORMERS = r"(?:^|[/\\])transformers[/\\](?:models[/\\]\w+[/\\]\w+|masking_utils|modeling_\w+)\.py$"
# By fact of a line of these files: a pattern for the line.
_FACTS = {
    # An attention mask that transformers builds only if it must. Whether padding hides anything depends on data, which an
    # export cannot inspect, so an export always builds it.
    "export-only mask": r"\b(?:\w*create_\w*masks?|mask_function|_update_causal_mask|_prepare_4d\w+)\(",
    # Such a mask that hides nothing; attention that is spelled out adds it.
    "mask of nothing": r"\bcreate_bidirectional_mask\(",
}


@lru_cache(maxsize=4096)
def has_fact(fact: str, file: str, text: str) -> bool:
    """Whether a fact holds for a line of a file."""
    is_library = "transformers" in file and re.search(_TRANSFORMERS, file)  # others compile no pattern
    return bool(is_library and re.search(_FACTS[fact], text))


class CodeLine(Struct, frozen=True):
    """One line of a call stack, and the module whose forward it belongs to."""

    file: str
    function: str
    number: int
    text: str
    module: str

    def is_beside(self, line: CodeLine) -> bool:
        """Whether both lines may belong to one run of a function."""
        return (self.module, self.function, self.file) == (line.module, line.function, line.file)


def shared(lines: Sequence[CodeLine], after: Sequence[CodeLine]) -> int:
    """How many of the running functions may run on at the next call. after: its lines."""
    for depth, (line, other) in enumerate(zip(lines, after, strict=False)):
        if line is not other and not line.is_beside(other):
            return depth
    return min(len(lines), len(after))


@lru_cache(maxsize=4096)
def code_lines(python_stack: str, module_stack: str) -> tuple[CodeLine, ...]:
    """The lines of a call stack as an export records it, outermost first.

    The forwards on a stack belong to its modules, in order; additional forwards are inherited ones of the last module.
    """
    modules = [path for path in map(_module, module_stack.split(";")) if path is not None] or [""]
    frames, forwards = _frames(python_stack)
    modules += modules[-1:] * max(forwards, default=0)
    own = zip(frames, forwards, strict=True)
    return tuple([_line(line, modules[count]) for line, count in own if not line[0].startswith(_GENERATED)])


@lru_cache(maxsize=16_384)
def _line(frame: tuple[str, str, int, str], module: str) -> CodeLine:
    """A frame's line in a module; equal lines are one object and are compared by identity."""
    return CodeLine(*frame, module)


@lru_cache(maxsize=4096)
def _module(entry: str) -> str | None:
    """The path of a module in an entry of a module stack; None if the entry is no module."""
    parts = entry.split(",")
    return module_path(parts[1]) if len(parts) > 2 else None


@lru_cache(maxsize=1024)
def _frames(python_stack: str) -> tuple[list[tuple[str, str, int, str]], list[int]]:
    """The file, function, number and text of each line of a stack, and how many forwards are around the line."""
    found = _LINE.findall(python_stack)[:_MOST_FRAMES]
    lines = [
        (file, function, int(number), text.strip())
        for file, number, function, text in found
        if _OF_EXPORT not in f"/{file}".replace("\\", "/")
    ]
    forwards = accumulate([function == "forward" for _, function, *_ in lines])
    return lines, [max(0, count - 1) for count in forwards]


class Statement(Struct, frozen=True):
    """One statement of a line; by default a piece, of which nothing is known."""

    is_piece: bool = True
    # The variables that it binds, one for each element of a tuple; `found[]` is any element of `found`, `#0` a name that
    # stands on an earlier line.
    targets: tuple[str, ...] = ()
    # The variables that it reads as tensors: not `outputs` in `outputs[0]`.
    names: frozenset[str] = frozenset()
    is_call: bool = False  # its value is that of one call
    returns: tuple[str, ...] | None = None  # the variables that a `return` of several results returns
    given: tuple[str, ...] = ()  # the operands of its first call that are variables, "" for others
    joins: str = ""  # the variable whose tensors it joins
    called: frozenset[str] = frozenset()  # words of operators, and of modules: `.conv` of `self.conv`
    runs_last: tuple[str, ...] = ()  # words of what it runs last, "" for what a variable holds
    times: int = 0  # how often the statement spells that
    # The variable of each `1 + x`: if it holds a tensor, the statement spells that once more.
    or_numbers: tuple[str, ...] = ()

    def role(self, op: str, child: str = "") -> tuple[bool, bool]:
        """Whether it calls an operator, or else the child module that the call belongs to; and whether it runs that last."""
        return _role(self.called, self.runs_last, "" if child else op, child)


@lru_cache(maxsize=4096)
def _role(called: frozenset[str], runs_last: tuple[str, ...], op: str, child: str) -> tuple[bool, bool]:
    if child:
        words = _module_words(child)
        is_spelled = not called.isdisjoint(words)
        return is_spelled, not {*words, *[""] * (not is_spelled)}.isdisjoint(runs_last)
    last, spelled = tuple(filter(None, runs_last)), operator(op)
    word = "to" if spelled.kind == "cast" else spelled.word.strip("_")
    return word in called, word.startswith(last)


def _module_words(path: str) -> tuple[str, str]:
    """How code calls a module: `conv`, or `layers.3` in a list; and the same as an attribute of the calling module."""
    before, _, name = path.rpartition(".")
    word = f"{before.rpartition('.')[2]}.{name}" if name.isdigit() else name
    return word, f".{word}"


@lru_cache(maxsize=4096)
def statements(text: str, own: str = "") -> tuple[Statement, ...]:
    """The statements of a line that run something, at least one. own: the variable that holds the module itself, `self`."""
    found = [_statement(tree, own) for tree in _simple(_parsed(text))]
    if found and (bound := _BINDING.match(text)):
        found[0] = replace(found[0], targets=_BOUND_ABOVE[bound[1]])
    return tuple(found) or (Statement(),)


def module_variable(text: str, path: str) -> str:
    """The variable that holds a module, on a line that calls its submodule at this path: `self` in `self.a(x)`."""
    words = path.split(".")
    return next((name for name, word in _attributes(text) if word in words), "")


@lru_cache(maxsize=512)
def _attributes(text: str) -> list[tuple[str, str]]:
    """The attributes of variables on a line, each as variable and word."""
    parts = [part for tree in _parsed(text) for part in _below(tree) if isinstance(part, ast.Attribute)]
    return [(part.value.id, part.attr) for part in parts if isinstance(part.value, ast.Name)]


def module_variables(nodes: Sequence[Node]) -> dict[str, str]:
    """By file: the variable that holds the module whose forward runs, as its calls of submodules show."""
    found: dict[str, str] = {}
    first: dict[tuple[str, int], Node] = {}  # calls on equal lines in as many modules show the same
    for node in nodes:
        first.setdefault((node.python_stack, node.module_stack.count(";")), node)
    for node in first.values():
        lines = code_lines(node.python_stack, node.module_stack)
        for line, inner in zip(lines, [*[line.module for line in lines[1:]], node.module], strict=False):
            if inner != line.module and line.file not in found:
                name = module_variable(line.text, inner.removeprefix(line.module).removeprefix("."))
                found.update({line.file: name} if name else {})
    return found


def opens(text: str) -> bool:
    """Whether a line opens a statement that ends on a later line: `x = self.act(`."""
    return bool(_closing(_BINDING.sub("", text))) or text.endswith("\\")


def closes(text: str) -> bool:
    """Whether a line begins by closing what an earlier line opened, and binds nothing: `) * self.gate(x)`."""
    return text.startswith((")", "]", "}")) and ";" not in text and not _BINDING.match(text)


def continues(line: CodeLine, before: CodeLine) -> bool:
    """Whether a piece continues the expression of an earlier piece: `.view(...)`, `+ self.b(x)`, the next operand."""
    is_open = before.text.endswith(",") or bool(_closing(before.text))
    return line.number > before.number and (is_open or line.text.startswith(_CONTINUING))


@lru_cache(maxsize=512)
def _parsed(text: str) -> list[ast.stmt]:
    """The statements of a line, with its brackets closed; none for a line from the middle of a statement."""
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


def _below(tree: ast.AST) -> list[ast.AST]:
    """What `ast.walk` yields, in a third of the time."""
    parts = [tree]
    for part in parts:
        for value in [getattr(part, name, None) for name in part._fields]:
            parts += [x for x in (value if isinstance(value, list) else (value,)) if isinstance(x, ast.AST)]
    return parts


def _closing(text: str) -> str | None:
    """The brackets that close those a line leaves open; None if it closes one that an earlier line opened."""
    waiting: list[str] = []
    for token in _TOKEN.findall(text):
        if token in _BRACKETS:
            waiting.append(_BRACKETS[token])
        elif token in _BRACKETS.values() and (not waiting or waiting.pop() != token):
            return None
    return "".join(reversed(waiting))


def _simple(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run something; the head of a loop or condition stands for a body on later lines.

    Statements that only bind or keep a value run nothing: `a = b`, `f = lambda x: x + 1`, `n = x.shape[0]`, `y.append(x)`.
    `y.append(f(x))` binds an element of `y`, as `y[i] = f(x)` does.
    """
    for tree in body:
        inner = getattr(tree, "body", None)
        if isinstance(inner, list) and not isinstance(inner[0], ast.Pass):
            yield from _simple(inner)
            continue
        match tree:
            case ast.Assign(
                _, ast.Name() | ast.Lambda() | ast.Attribute() | ast.Subscript(ast.Attribute(_, "shape"))
            ):
                pass
            case ast.Expr(ast.Call(ast.Attribute(of, "append"), [element])):
                if not isinstance(element, ast.Name):
                    yield ast.Assign([ast.Subscript(of, ast.Name("_"))], element)
            case _:
                yield tree


def _statement(tree: ast.stmt, own: str) -> Statement:
    """The facts of one statement. An expression without a target is a piece: it may be part of a longer expression."""
    value = next((part for name in ("value", "iter", "test") if (part := getattr(tree, name, None))), tree)
    if isinstance(tree, ast.AugAssign):
        value = ast.BinOp(tree.target, tree.op, tree.value)
    # `-1` is a number: it runs nothing.
    parts = [part for part in _below(value) if not isinstance(getattr(part, "operand", None), ast.Constant)]
    words = {part: _words(part, own) for part in parts}
    targets = _targets(tree) or tuple(part.target.id for part in parts if isinstance(part, ast.NamedExpr))
    turns = len(targets) if isinstance(value, ast.GeneratorExp) else 1  # one iteration for each target
    last: ast.AST = getattr(value, "elt", value) if len(targets) > 1 else value
    while isinstance(last, ast.Tuple) and last.elts:
        last = last.elts[-1]
    alike = [part for part in parts if words[part] == words[last] and part is not last]
    numbers = [part for part in alike if words[last] and not _computes(part)]
    subscripts = [part for part in parts if isinstance(part, ast.Subscript)]
    elements = [part.value for part in subscripts if isinstance(part.slice, ast.Constant)]
    returned = [part.id for part in getattr(value, "elts", ()) if isinstance(part, ast.Name)]
    joined = [part for part, spelled in words.items() if any(word.endswith(_JOINS) for word in spelled)]
    return Statement(
        is_piece=isinstance(tree, (ast.Expr, ast.For)) and not targets,
        targets=targets,
        names=frozenset(x.id for x in parts if isinstance(x, ast.Name) and x not in elements),
        is_call=isinstance(value, ast.Call),
        returns=tuple(returned) if isinstance(tree, ast.Return) else None,
        given=_given(_first_call(value)),
        joins=next((given for part in joined for given in _given(part)[:1] if given), ""),
        called=frozenset(word for spelled in words.values() for word in spelled if word),
        runs_last=words[last],
        times=turns * (1 + len(alike) - len(numbers)),
        or_numbers=tuple(
            next((below.id for below in _below(part) if isinstance(below, ast.Name)), "") for part in numbers
        ),
    )


def _targets(tree: ast.stmt) -> tuple[str, ...]:
    """The variables that a statement binds, as spelled: `x`, `self.cache`; `found[]` for any element of `found`."""
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


def _first_call(value: ast.AST) -> ast.Call | None:
    """The call that an expression begins with: `f(x)` in `f(x).view(...)[0]`."""
    found = None
    while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        found = value if isinstance(value, ast.Call) else found
        value = value.func if isinstance(value, ast.Call) else value.value
    return found


def _given(call: ast.AST | None) -> tuple[str, ...]:
    """A call's operands that are variables, "" for others and for operands on later lines; () if there is no call."""
    if not isinstance(call, ast.Call):
        return ()
    operands = [*call.args, *(keyword.value for keyword in call.keywords)]
    return tuple(x.id if isinstance(x, ast.Name) else "" for x in operands) or ("",)


def _words(value: ast.AST, own: str) -> tuple[str, ...]:
    """Words of the operators or the module that an expression runs last; "" for a variable's value, () if not known."""
    if isinstance(value, (ast.BinOp, ast.UnaryOp)):
        return _WORDS.get(type(value.op), ())
    match value:
        case ast.Call(ast.Attribute(of, word)):
            number = ""
        case ast.Call(ast.Subscript(ast.Attribute(of, word), ast.Constant(int(index)))):
            number = f".{index}"
        case ast.Call():
            return ("",)
        case _:
            return ()
    is_own = isinstance(of, ast.Name) and of.id == own
    return (f".{word}{number}" if is_own else "to" if word in _CASTS else word + number,)


def _computes(part: ast.AST) -> bool:
    """Whether an expression may run an operator: a call, or arithmetic with one; `i + 1` is assumed to be a number."""
    if not isinstance(part, (ast.BinOp, ast.UnaryOp)):
        return isinstance(part, ast.Call)
    has_number = any(isinstance(operand, ast.Constant) for operand in ast.iter_child_nodes(part))
    return not has_number or any(isinstance(below, ast.Call) for below in _below(part))
