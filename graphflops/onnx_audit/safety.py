"""Dangers of loading the file: paths outside its folder, huge sizes, code that it contains or needs."""

import base64
import binascii
import ntpath
import os
import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from graphflops.errors import shown
from graphflops.exporters.onnx_proto import DROPPED, EXTERNAL
from graphflops.exporters.onnx_scope import domain_of
from graphflops.onnx_audit.registry import File, Model, Observation, check
from graphflops.ops.onnx_operands import NEWEST
from graphflops.tensor import flat, grouped

_ABSURD_BYTES = 2**40
_ABSURD_TRIPS = 10**8
_MOST = 20  # findings of one kind that are reported
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


@check("GF220", "external-outside-folder", "error", reads="file")
def external_outside_folder(model: Model) -> Iterator[Observation]:
    """The location of tensor data is an absolute path, above the model's folder, or a link that leads out of it.

    Such a model can read any file that the user can read, and use its bytes as weights.

    Fix: do not load the file; if you trust its author, store the data beside the model, with a path relative to it.
    """
    first: dict[str, str] = {}
    for tensor, place in external(model):
        first.setdefault(place["location"], tensor.name)
    for location, name in first.items():
        if reason := _escape(location, model.folder):
            data = f"the data of {shown(name)}, and maybe of others"
            yield Observation(f"{data}, are {reason}: {shown(location)}")


@check("GF221", "external-data-missing", "warning", reads="file")
def external_data_missing(model: Model) -> Iterator[Observation]:
    """The file with external tensor data is missing. Its name and place are those that the model states.

    Fix: put the data file beside the model: the analysis needs no data, but runtimes do.
    """
    for location, tensors in Counter(place["location"] for _, place in external(model)).items():
        if not _escape(location, model.folder) and not os.path.exists(os.path.join(model.folder, location)):
            should = f"it should hold the data of {tensors} tensors"
            yield Observation(f"{shown(location or '(no name)')} is missing: {should}")


@check("GF222", "external-data-short", "error", reads="file")
def external_data_short(model: Model) -> Iterator[Observation]:
    """The location of a tensor's data is past the end of the data file, is not a number, or partly overlaps another
    tensor's data.

    Fix: copy the data file again, or export again: model and data do not belong together.
    """
    ranges: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tensor, place in external(model):
        numbers = [place.get(key, "0") or "0" for key in ("offset", "length")]
        if all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):
            offset, length = map(int, numbers)
            ranges[place["location"]].append((offset, offset + length, tensor.name))
        else:
            stated = f"at {shown(' and '.join(numbers))}, which are not numbers"
            yield Observation(f"the data of {shown(tensor.name)} are {stated}")
    for location, places in ranges.items():
        if _escape(location, model.folder):
            continue
        try:
            size = os.stat(os.path.join(model.folder, location)).st_size
        except (OSError, ValueError):
            size = None
        places.sort()
        for (start, end, name), following in zip(places, (*places[1:], None), strict=True):
            data, where = f"the data of {shown(name)}", shown(location)
            if size is not None and end > size:
                yield Observation(f"{data} end at byte {end} of {where}, which has {size}")
            elif following and following[0] < end and following[:2] != (start, end):
                yield Observation(f"{data} and {shown(following[2])} overlap in {where}")


@check("GF223", "absurd-size", "error")
def absurd_size(model: Model) -> Iterator[Observation]:
    """A tensor of a tebibyte or more, at sizes that the file states.

    A file of a kilobyte can make a runtime allocate all memory of a machine.

    Fix: do not load the file: it needs more memory than any machine has.
    """
    types = model.view.types.items()
    huge = [pair for pair in types if isinstance(pair[1].nbytes, int) and pair[1].nbytes >= _ABSURD_BYTES]
    for name, typed in huge[:_MOST]:
        yield Observation(f"{shown(name)} is {typed}: {typed.nbytes:,} bytes", model.view.makers.get(name))


@check("GF224", "custom-domain", "warning", reads="file")
def custom_domain(model: Model) -> Iterator[Observation]:
    """A call of an operator that neither ONNX, onnxruntime nor a function in the file defines: to run the model, a library
    with native code must be loaded. Its cost is unknown, and not counted in any total.

    Fix: get the library from the file's author and review it before you load it, or export without the operator.
    """
    functions = {(domain_of(f.domain), f.name) for f in model.proto.functions}
    kinds = grouped(((domain_of(node.domain), str(node.op_type)), node) for node in model.nodes)
    for (domain, kind), nodes in kinds.items():
        if domain not in _RUNTIME_DOMAINS and (domain, kind) not in functions:
            calls = f"{len(nodes)} calls of {shown(kind)}"
            yield Observation(f"{calls} of the domain {shown(domain)}", nodes[0])


@check("GF225", "embedded-code", "error", reads="file")
def embedded_code(model: Model) -> Iterator[Observation]:
    """Metadata, a documentation string or an attribute holds a pickle, a program, an archive or a script, plain or in
    base64; or the operator of a call runs Python. ONNX needs none of these.

    Fix: do not load the file before someone has reviewed its content.
    """
    kinds = ((*place, kind) for place, text in _texts(model) if (kind := _code_in(text)))
    for what, holder, kind in islice(kinds, _MOST):
        name = str(getattr(holder, "name", ""))
        text = f"{shown(what)}{f' of {shown(name)}' if name else ''} holds {kind}"
        yield Observation(text, holder if hasattr(holder, "op_type") else None)
    for node in model.nodes:
        if node.op_type in _CODE_OPERATORS and domain_of(node.domain):
            called = f"{shown(node.domain)}.{shown(node.op_type)}"
            yield Observation(f"a call of {called} runs code named in the file", node)


@check("GF226", "misleading-name", "warning", reads="file")
def misleading_name(model: Model) -> Iterator[Observation]:
    """A name holds control characters, or characters that change the direction of text: it can hide in a listing, or
    control a terminal.

    Fix: rename the value: editors and terminals do not show its name as it is.
    """
    names: set[Any] = set()
    for graph in model.graphs:
        names.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    for node in model.nodes:
        names.update((node.name, node.op_type, node.domain, *node.output))
    odd = [name for name in map(str, names) if any(unicodedata.category(c) in ("Cc", "Cf") for c in name)]
    for name in sorted(odd)[:_MOST]:
        yield Observation(f"the name {shown(name)} has invisible characters")


@check("GF227", "endless-loop", "warning")
def endless_loop(model: Model) -> Iterator[Observation]:
    """A Loop of a hundred million iterations or more, or one without trip count and condition.

    Fix: limit the number of iterations by a value that the caller controls.
    """
    for call in model.calls("while_loop"):
        typed = model.typed(call.value("trips"))
        trips = next(flat((typed.value,)), None) if typed is not None and typed.numel == 1 else None
        if isinstance(trips, int) and trips >= _ABSURD_TRIPS:
            yield Observation(f"{shown(call.name)} may run {trips:,} iterations", call)
        elif call.argument("trips") is None and call.argument("condition") is None:
            yield Observation(f"{shown(call.name)} has neither a trip count nor a first condition", call)


@check("GF228", "private-path", "note", reads="file")
def private_path(model: Model) -> Iterator[Observation]:
    """Metadata or documentation hold paths of the author's machine, for example in the stack traces of torch's exporter.

    Fix: remove the metadata before you publish the file.
    """
    texts = dict.fromkeys(text for _, text in _texts(model, traces=True) if isinstance(text, str))
    paths = [*dict.fromkeys(path for text in texts for path in _PRIVATE.findall(text))]
    if paths:
        more = f" and {len(paths) - 1} more paths" if len(paths) > 1 else ""
        yield Observation(f"the file holds the path {shown(paths[0])}{more}")


def external(model: File) -> Iterator[tuple[Any, dict[str, str]]]:
    """Tensors with external data, each with the entries that locate them."""
    for tensor in model.tensors:
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        if DROPPED not in entries and (tensor.data_location == EXTERNAL or "location" in entries):
            entries.setdefault("location", "")
            yield tensor, entries


def _escape(location: str, folder: str) -> str:
    """Why a location is outside the folder; "" if it is inside."""
    if posixpath.isabs(location) or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:
        return "at an absolute path"
    if ".." in re.split(r"[/\\]", location):
        return "above the model's folder"
    if "://" in location or "\0" in location:
        return "at an invalid path"
    target = os.path.realpath(os.path.join(folder, location))
    if target != folder and not target.startswith(os.path.join(folder, "")):
        return "behind a link that leads out of the model's folder"
    return ""


def _texts(model: Model, *, traces: bool = False) -> Iterator[tuple[tuple[str, Any], str | bytes]]:
    """Texts of the file, each with its kind and its holder; stack traces of exporters only with `traces`."""
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
    """The kind of code in a text; "" for none."""
    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    string = text if isinstance(text, str) else text.decode(errors="replace")
    kinds = [kind for magic, kind in _MAGIC if magic.match(data)]
    if not kinds and _SCRIPT.search(string):
        return "a script"
    if not kinds and _BASE64.fullmatch(string):
        with suppress(binascii.Error, ValueError):
            inner = base64.b64decode("".join(string.split())[:96], validate=True)
            kinds = [f"{kind} in base64" for magic, kind in _MAGIC if magic.match(inner)]
    return kinds[0] if kinds else ""
