"""Finds the module and source line of a call in what exporters record: module stacks, stack traces, metadata, names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from graphflops.base.record import replace
from graphflops.graph import Argument, Graph, Input, Node, Output, Phase, Ref
from graphflops.ops import operator
from graphflops.tensor import flat

# How the module of a call of an ONNX file is known (see `onnx_modules`).
Evidence = Literal["recorded", "rewritten", "named", "none"]

_FRAME = re.compile(r'^[ \t]*File "([^"\n]+)", line (\d+)', re.MULTILINE)
# Files that are not the user's: torch (installed, or a checkout named `pytorch`), Python's library, generated code.
_FOREIGN = re.compile(
    r"(?:^|(?:^|/)(?:site|dist)-packages/|/pytorch/)(?:torch|functorch)/"
    r"|(?:^|/)lib/python\d+\.\d+/(?!(?:site|dist)-packages/)"
    r"|^<(?:eval_with_key|string|frozen)"
)
_PACKAGES = ("site-packages/", "dist-packages/")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")

_ROOT = re.compile(r"^L\['\w+'\]\.?")
_ITEM = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|(\d+))\]""")
_CALL_NUMBER = re.compile(r"@\d+(?=\.|$)")
_NO_STACK = "_empty_nn_module_stack_from_metadata_hook"
_EXPORT_ROOT = re.compile(r"^_export_root(?:\.|$)")

# ONNX: keys of metadata, and what the names of calls and tensors contain.
_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_TRACE = "pkg.torch.onnx.stack_trace"
_REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_READ = frozenset({_SCOPES, _CLASSES, _TRACE, _REWRITTEN})
_FOLDED = "pkg.onnxscript.optimizer.folded_from"

# Suffixes that onnxruntime's quantizer appends to names.
_QUANTIZED = re.compile(r"(?:_quantized|_scale|_zero_point|_DequantizeLinear\w*|_QuantizeLinear\w*)+$")

REPEATED = re.compile(r"_\d+$", re.ASCII)  # appended to the scope of later calls of a module

# A string without a closing quote matches to the end of the text, so that the search stays linear.
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|\"((?:[^\"\\]|\\.)*)(?:\"|\\?\Z)", re.DOTALL)
_LONGEST_SCOPE = 1000  # characters of the path in a call's name; a longer one is malicious
_DEEPEST_SCOPE = 64


class Sources:
    """Reads stack traces and module stacks; each distinct text is read once."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}  # type of every module read so far, by path
        self._texts: dict[str, str] = {}
        self.line = cache(_line)
        self.place = cache(self._place)

    def stack(self, recorded: str) -> str:
        """A module stack, one object for equal texts; "" if torch records that a call (an input's size) is in no module."""
        return "" if recorded.endswith(_NO_STACK) else self._texts.setdefault(recorded, recorded)

    def of(self, trace: str, stack: str) -> tuple[str, str, str, str, str]:
        """A call's module, the module's type, the line of code, and both texts, in the order of `Node`'s fields."""
        own = self.stack(stack)
        return *self.place(own), self.line(trace), self._texts.setdefault(trace, trace), own

    def _place(self, stack: str) -> tuple[str, str]:
        """Path and type of the innermost module of a stack: entries `key,path,type` separated by `;`."""
        path = kind = ""
        for entry in stack.split(";") if stack else ():
            _, _, described = entry.partition(",")
            recorded, _, kind = described.rpartition(",")
            path = module_path(recorded)
            self.modules.setdefault(path, kind)
        return path, kind


def _line(trace: str) -> str:
    """The innermost line of the user's own code, `model.py:17`, without folders of the exporting machine; "" if none."""
    for file, number in reversed(_FRAME.findall(trace)):
        path = file.replace("\\", "/")
        if _FOREIGN.search(path):
            continue
        for folder in _PACKAGES:  # the path starts at an installed package
            before, found, inner = path.rpartition(folder)
            if found and (not before or before.endswith("/")):
                path = inner
        path = path.rpartition("/")[2] if _ABSOLUTE.match(path) else path
        return f"{path}:{number}"
    return ""


def module_path(recorded: str) -> str:
    """`blocks.0.fc` from any of its spellings: `L['self'].blocks[0].fc`, or `blocks.0.fc@1` for a second call."""
    path = recorded
    if "[" in path:
        path = _ROOT.sub("", path)
        path = _ITEM.sub(lambda item: f".{item[1] or item[2] or item[3] or ''}", path).lstrip(".")
    if "@" in path:
        path = _CALL_NUMBER.sub("", path)
    return _EXPORT_ROOT.sub("", path) if path.startswith("_export_root") else path


class OnnxPlaces:
    """Reads the scopes of calls; each distinct text is read once."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}  # type of every module read, by path; "" where only that is known
        self._sources = Sources()
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._named = cache(self._by_name)

    def of(self, node: Any) -> tuple[tuple[str, str, str], Evidence]:
        """Path and type of a NodeProto's innermost module and its source line ("" if unknown); how the module is known."""
        entries = [(entry.key, entry.value) for entry in node.metadata_props[:] if entry.key in _READ]
        told = {key: value for key, value in entries if isinstance(value, str)}  # bytes are not UTF-8
        scopes, classes, rewritten = told.get(_SCOPES, ""), told.get(_CLASSES, ""), _REWRITTEN in told
        line = self._sources.line(told.get(_TRACE, ""))
        if scopes:
            if node.op_type in _PRODUCTS and "batch_norm" in classes:  # a norm may be folded into the product
                recorded = _quoted(classes)
                rewritten |= bool(recorded) and operator(recorded[-1]).name == "batch_norm"
            # Scopes and types are listed from the outermost module to the call itself.
            outer = (scopes.rpartition(", ")[0], classes.rpartition(", ")[0])
            if outer not in self._known:
                pairs = zip(_quoted(scopes)[:-1], _quoted(classes)[:-1], strict=False)
                inner = [(path, kind) for path, kind in pairs if _NO_STACK not in path]
                for path, kind in inner:
                    self.modules.setdefault(path, kind)
                self._known[outer] = inner[-1] if inner else ("", "")
            return (*self._known[outer], line), "rewritten" if rewritten else "recorded"
        return (self._named(node.name.rpartition("/")[0]), "", line), "named" if "/" in node.name else "none"

    def _by_name(self, scope: str) -> str:
        """The module in the scope of a call's name: `layers.0.attention` for `/layers.0/attention`."""
        parts = [part for part in scope.split("/") if part] if len(scope) <= _LONGEST_SCOPE else []
        path = ""
        for part in parts if len(parts) <= _DEEPEST_SCOPE else ():
            path = _below(path, part)
            self.modules.setdefault(path, "")
        return path


def _below(path: str, name: str) -> str:
    """The path of a module in another. TorchScript names an item of a list `layer1.0` even inside `layer1`."""
    parts, around = name.split("."), REPEATED.sub("", path)
    for end in range(len(parts) - 1, 0, -1):
        shared = ".".join(parts[:end])
        if any(f".{known}".endswith(f".{shared}") for known in (path, around)):
            return f"{path}.{'.'.join(parts[end:])}"
    return f"{path}.{name}" if path else name


def original_names(graph: Any) -> dict[str, str]:
    """By name of a stored tensor: the parameter that the exporter folded into it, if the file names exactly one."""
    found = {}
    for described in (*graph.value_info, *graph.initializer):
        for entry in described.metadata_props[:]:
            if entry.key == _FOLDED and isinstance(entry.value, str):
                names = _quoted(entry.value)
                if len(names) == 1:
                    found[described.name] = names[0]
    for tensor in graph.initializer if found else ():
        made = _QUANTIZED.search(tensor.name)
        if made is not None and tensor.name[: made.start()] in found:
            found[tensor.name] = found[tensor.name[: made.start()]] + made[0]
    return found


def unquantized(name: str) -> str:
    """The name of the tensor from which onnxruntime's quantizer made the tensor of this name."""
    return _QUANTIZED.sub("", name)


def _quoted(text: str) -> list[str]:
    if '"' not in text and "\\" not in text and text.startswith("['") and text.endswith("']"):
        return text[2:-2].split("', '")
    return [single or double for single, double in _QUOTED.findall(text)]


def with_modules(
    nodes: Sequence[Node], inputs: Iterable[Input], outputs: Sequence[Output]
) -> tuple[Node, ...]:
    """The calls with their modules, for a joint graph that records none; also the calls of nested graphs in arguments."""
    weights = (entry for entry in inputs if entry.role in ("parameter", "buffer") and entry.target)
    owners = {entry.name: entry.target.rpartition(".")[0] for entry in weights}
    if any(output.role == "gradient" for output in outputs) and not any(node.module for node in nodes):
        graph = Graph(tuple(nodes), {}, (), tuple(outputs))
        nodes = _in_modules(nodes, owners, _leads(graph), graph.phases)
    return _with_owners(nodes, owners)


def _in_modules(
    nodes: Iterable[Node], owners: Mapping[str, str], leads: Mapping[str, str], phases: Mapping[str, Phase]
) -> tuple[Node, ...]:
    """The calls, those without a module in that of a parameter, else of a call whose result they read. owners: modules of
    parameters. leads: modules by call that come before those of other calls. phases: of a joint graph.
    """
    owned = dict(owners)  # also of values computed from parameters alone
    produced: dict[str, tuple[int, bool, str]] = {}  # position in the program, True if forward, module
    placed = []
    for node in nodes:
        operands = node.reads()
        own = [owned[name] for name in operands if name in owned]
        known = [produced[name] for name in operands if name in produced and produced[name][2]]
        is_forward = phases.get(node.name, "forward") == "forward"
        if not is_forward:  # operands from the forward decide if there are any
            known = [entry for entry in known if entry[1]] or known
        found = own[0] if own else leads.get(node.name, max(known)[2] if known else "")
        module = node.module or found
        entry = (len(produced), is_forward, module)
        results = [name for name in node.outputs if name is not None]
        produced.update(dict.fromkeys(results, entry))
        if own and len(own) == len(operands):
            owned.update(dict.fromkeys(results, module))
        placed.append(node if module == node.module else replace(node, module=module))
    return tuple(placed)


def _leads(graph: Graph) -> dict[str, str]:
    """The modules of calls whose results serve only the gradients of one module's parameters, by call."""
    serves: dict[str, set[str]] = {}  # by value: modules that use it; "" for any other use
    for output in graph.outputs:
        module = output.target.rpartition(".")[0] if output.role == "gradient" else ""
        for _, name in output.uses():
            serves.setdefault(name, set()).add(module)
    leads = {}
    for node, operands in zip(reversed(graph.nodes), reversed(graph.operands), strict=True):
        modules = set().union(*(serves.get(name, set()) for name in node.outputs if name is not None))
        module = modules.pop() if len(modules) == 1 else ""
        if module:
            leads[node.name] = module
        for name in operands:
            serves.setdefault(name, set()).add(module)
    return leads


def _with_owners(nodes: Sequence[Node], owners: Mapping[str, str]) -> tuple[Node, ...]:
    found = []
    for node in nodes:
        if Graph in map(type, node.args):
            last = max(place for place, argument in enumerate(node.args) if isinstance(argument, Graph))
            operands = list(flat(node.args[last + 1 :]))
            args = [_placed(x, operands, owners) if isinstance(x, Graph) else x for x in node.args]
            node = replace(node, args=tuple(args))
        found.append(node)
    return tuple(found)


def _placed(graph: Graph, operands: Sequence[Argument], owners: Mapping[str, str]) -> Graph:
    if len(operands) != len(graph.inputs):
        return graph
    inner = {
        entry.name: owners[operand.name]
        for entry, operand in zip(graph.inputs, operands, strict=True)
        if isinstance(operand, Ref) and operand.name in owners
    }
    if not inner:
        return graph
    return replace(graph, nodes=_in_modules(_with_owners(graph.nodes, inner), inner, {}, {}))
