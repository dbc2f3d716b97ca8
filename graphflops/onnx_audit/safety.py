"""Whether the file can harm who loads it: files it reaches for, sizes it claims, code it carries or needs."""

from __future__ import annotations

import base64
import binascii
import ntpath
import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from graphflops.errors import shown
from graphflops.exporters.onnx_proto import DROPPED
from graphflops.exporters.onnx_values import EXTERNAL
from graphflops.onnx_audit.model import domain_of
from graphflops.onnx_audit.registry import Found, check
from graphflops.ops.onnx_versions import NEWEST
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.onnx_audit.model import Model

_ABSURD_BYTES = 2**40
_ABSURD_TRIPS = 10**8
_MOST = 20  # findings of one kind; the last says how many more there are
_RUNTIME_DOMAINS = frozenset({*NEWEST, "com.microsoft.nchwc", "com.ms.internal.nhwc", "com.ms.internal.nchw"})
_CODE_OPERATORS = frozenset({"PyOp", "PythonOp", "PythonOpGrad", "PyCustomOp", "ATen"})

_MAGIC = (
    (re.compile(rb"\x80[\x02-\x05][\x00-\xff]{2,}", re.DOTALL), "a pickle"),
    (re.compile(rb"\x7fELF"), "a compiled library"),
    (re.compile(rb"MZ[\x00-\xff]{58}[\x00-\xff]{4}", re.DOTALL), "a Windows program"),
    (re.compile(rb"PK\x03\x04"), "a zip archive"),
    (re.compile(rb"\xca\xfe\xba\xbe"), "compiled Java or macOS code"),
)
_SCRIPT = re.compile(
    r"(?<![\w.])(?:eval|exec|__import__|compile)\s*\(|\bos\.(?:system|popen)\s*\(|\bsubprocess\.\w+\s*\("
    r"|<script\b|^#!\s*/|\bimport\s+(?:os|sys|subprocess|socket|ctypes)\b|\bcurl\s+-|\bpowershell\b",
    re.IGNORECASE | re.MULTILINE,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]{24,}")
_TRACES = ("stack_trace", "name_scopes", "class_hierarchy", "fx_node", "namespace", "graph_signature")
_PRIVATE = re.compile(r"(?:/(?:home|Users|root)/|[A-Za-z]:\\Users\\)[^\s\"':,;)]+")


@check(
    "GF220",
    "external-outside-folder",
    "error",
    fix="do not load the file; if you trust who made it, store the data beside the model and name them relative to it",
    reads="file",
)
def external_outside_folder(model: Model) -> Iterator[Found]:
    """Tensor data are said to lie at an absolute path, above the model's folder, or behind a link that leads out of it.

    Loading such a model reads any file that the user can read, and may hand its bytes on as weights.
    """
    folder = os.path.realpath(model.path.parent)
    seen = set()
    for tensor, place in _external(model):
        location = place["location"]
        if location in seen:
            continue
        seen.add(location)
        reason = _escape(location, folder)
        if reason:
            yield Found(f"the data of {shown(tensor.name)} and maybe others are {reason}: {shown(location)}")


@check(
    "GF221",
    "external-data-missing",
    "warning",
    fix="put the data file beside the model: costs can be told without it, but nothing runs",
    reads="file",
)
def external_data_missing(model: Model) -> Iterator[Found]:
    """The file that should hold tensor data is not beside the model."""
    folder = os.path.realpath(model.path.parent)
    missing: dict[str, int] = {}
    for _, place in _external(model):
        location = place["location"]
        if not _escape(location, folder) and not os.path.exists(os.path.join(folder, location)):
            missing[location] = missing.get(location, 0) + 1
    for location, tensors in missing.items():
        yield Found(f"{shown(location or '(no name)')} is missing: {tensors} tensors have their data there")


@check(
    "GF222",
    "external-data-short",
    "error",
    fix="copy the data file again, or export anew: model and data do not belong together",
    reads="file",
)
def external_data_short(model: Model) -> Iterator[Found]:
    """A tensor's data are said to lie past the end of the file that holds them, at a place that is no number, or to overlap
    another tensor's in part.
    """
    folder = os.path.realpath(model.path.parent)
    ranges: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tensor, place in _external(model):
        location = place["location"]
        numbers = [place.get(key, "0") or "0" for key in ("offset", "length")]
        if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):
            yield Found(
                f"the data of {shown(tensor.name)} lie at {shown(' and '.join(numbers))}, which are no places"
            )
            continue
        offset, length = map(int, numbers)
        ranges[location].append((offset, offset + length, tensor.name))
    for location, places in ranges.items():
        if _escape(location, folder):
            continue
        try:
            size = os.stat(os.path.join(folder, location)).st_size
        except (OSError, ValueError):
            size = None
        places.sort()
        for (start, end, name), following in zip(places, (*places[1:], None), strict=True):
            if size is not None and end > size:
                yield Found(
                    f"the data of {shown(name)} end at byte {end} of {shown(location)}, which has {size}"
                )
            elif following and following[0] < end and following[:2] != (start, end):
                yield Found(
                    f"the data of {shown(name)} and {shown(following[2])} overlap in {shown(location)}"
                )


@check(
    "GF223",
    "absurd-size",
    "error",
    fix="do not load the file: it asks for more memory than any machine has",
)
def absurd_size(model: Model) -> Iterator[Found]:
    """A tensor of a tebibyte or more: stored in a few bytes of file, or computed at sizes that the file fixes.

    A file of a kilobyte can make a runtime allocate without end.
    """
    said = 0
    for name, typed in model.view.types.items():
        if isinstance(typed.nbytes, int) and typed.nbytes >= _ABSURD_BYTES:
            said += 1
            if said <= _MOST:
                yield Found(f"{shown(name)} is {typed}: {typed.nbytes:,} bytes", model.view.makers.get(name))


@check(
    "GF224",
    "custom-domain",
    "warning",
    fix="ask who made the file for the library, read it before you load it, or export without the operator",
    reads="file",
)
def custom_domain(model: Model) -> Iterator[Found]:
    """A call of an operator that neither ONNX, onnxruntime nor a function in the file defines: to run the model, a library
    with native code must be loaded. Its cost is unknown, and in no total.
    """
    functions = {(domain_of(f.domain), f.name) for f in model.proto.functions}
    kinds: dict[tuple[str, str], tuple[Any, int]] = {}
    for node in model.nodes:
        key = (domain_of(node.domain), node.op_type)
        if key[0] not in _RUNTIME_DOMAINS and key not in functions:
            kinds[key] = (node, kinds.get(key, (node, 0))[1] + 1)
    for (domain, kind), (node, times) in kinds.items():
        yield Found(f"{times} calls of {shown(kind)} of the domain {shown(domain)}", node)


@check(
    "GF225",
    "embedded-code",
    "error",
    fix="do not load the file before someone has looked at what it carries",
    reads="file",
)
def embedded_code(model: Model) -> Iterator[Found]:
    """Metadata, a documentation string or an attribute holds a pickle, a program, an archive or a script, as it is or in
    base64; or a call runs Python by its nature. ONNX needs none of these.
    """
    found = 0
    for (what, holder), text in _texts(model):
        kind = _code_in(text)
        if kind:
            found += 1
            if found <= _MOST:
                name = str(getattr(holder, "name", ""))
                of = f" of {shown(name)}" if name else ""
                yield Found(f"{shown(what)}{of} holds {kind}", holder if hasattr(holder, "op_type") else None)
    for node in model.nodes:
        if node.op_type in _CODE_OPERATORS and domain_of(node.domain):
            yield Found(
                f"a call of {shown(node.domain)}.{shown(node.op_type)} runs code that the file names", node
            )


@check(
    "GF226",
    "misleading-name",
    "warning",
    fix="rename the value: what a reader or a terminal shows of the name is not what it is",
    reads="file",
)
def misleading_name(model: Model) -> Iterator[Found]:
    """A name holds control characters, or such as change the direction of writing: it can hide in a listing, or act on a
    terminal.
    """
    names = {value.name for graph in model.graphs for value in (*graph.input, *graph.output)}
    names.update(tensor.name for graph in model.graphs for tensor in graph.initializer)
    for node in model.nodes:
        names.update((node.name, node.op_type, node.domain, *node.output))
    odd = sorted(
        name for name in map(str, names) if any(unicodedata.category(c) in ("Cc", "Cf") for c in name)
    )
    for name in odd[:_MOST]:
        yield Found(f"the name {shown(name)} has characters that do not show")


@check(
    "GF227",
    "endless-loop",
    "warning",
    fix="bound the number of turns by something that the caller controls",
)
def endless_loop(model: Model) -> Iterator[Found]:
    """A Loop of a hundred million turns or more, or one that neither a number of turns nor a condition ends."""
    for call in model.view.calls:
        if call.kind != "Loop":
            continue
        count, condition = call.operand(0), call.operand(1)
        typed = model.view.types.get(count)
        turns = typed.value if isinstance(typed, TensorType) else None
        while isinstance(turns, tuple) and len(turns) == 1:
            turns = turns[0]
        if isinstance(turns, int) and turns >= _ABSURD_TRIPS:
            yield Found(f"{shown(call.name)} may turn {turns:,} times", call)
        elif not count and not condition:
            yield Found(f"{shown(call.name)} has neither a number of turns nor a first condition", call)


@check(
    "GF228",
    "private-path",
    "note",
    fix="remove the metadata before you publish the file",
    reads="file",
)
def private_path(model: Model) -> Iterator[Found]:
    """Metadata or documentation hold paths of somebody's machine, as torch's exporter writes them in stack traces."""
    paths: dict[str, None] = {}
    for text in dict.fromkeys(text for _, text in _texts(model, traces=True) if isinstance(text, str)):
        paths.update(dict.fromkeys(_PRIVATE.findall(text)))
    if paths:
        first = next(iter(paths))
        more = f" and {len(paths) - 1} more paths" if len(paths) > 1 else ""
        yield Found(f"the file tells of {shown(first)}{more}")


def _external(model: Model) -> Iterator[tuple[Any, dict[str, str]]]:
    """Tensors whose data lie in other files, and where."""
    for tensor in model.tensors:
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        if DROPPED not in entries and (tensor.data_location == EXTERNAL or "location" in entries):
            entries.setdefault("location", "")
            yield tensor, entries


def _escape(location: str, folder: str) -> str:
    """Why a location is not in the folder; "" where it is."""
    if posixpath.isabs(location) or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:
        return "at an absolute path"
    if ".." in re.split(r"[/\\]", location):
        return "above the model's folder"
    if "://" in location or "\0" in location:
        return "at no path"
    target = os.path.realpath(os.path.join(folder, location))
    if target != folder and not target.startswith(os.path.join(folder, "")):
        return "behind a link that leads out of the model's folder"
    return ""


def _texts(model: Model, *, traces: bool = False) -> Iterator[tuple[tuple[str, Any], str | bytes]]:
    """Texts that no operator needs, each with what it is and what it belongs to; traces of exporters only if wanted."""
    proto = model.proto
    for holder in (proto, *model.graphs, *proto.functions, *model.nodes):
        if holder.doc_string:
            yield ("documentation", holder), holder.doc_string
        for entry in holder.metadata_props:
            if traces or not str(entry.key).endswith(_TRACES):
                yield (f"metadata {entry.key}", holder), entry.value
    for node in model.nodes:
        for attribute in node.attribute:
            for text in (attribute.s, *attribute.strings):
                if len(text) >= 8:
                    yield (f"attribute {attribute.name}", node), text


def _code_in(text: str | bytes) -> str:
    """What kind of code a text is; "" for none."""
    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    for magic, kind in _MAGIC:
        if magic.match(data):
            return kind
    string = text if isinstance(text, str) else text.decode(errors="replace")
    if _SCRIPT.search(string):
        return "a script"
    if _BASE64.fullmatch(string):
        try:
            inner = base64.b64decode("".join(string.split())[:96], validate=True)
        except (binascii.Error, ValueError):
            return ""
        for magic, kind in _MAGIC:
            if magic.match(inner):
                return f"{kind} in base64"
    return ""
