"""Reads ONNX files: binary, ONNX's own text, JSON and protobuf text. Weights are not read, external data is not opened."""

import hashlib
import importlib
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

from graphflops.base.limits import spend
from graphflops.errors import FileError, shown
from graphflops.exporters import in_one_line, onnx_proto, regular_file, require_few
from graphflops.exporters.archive import Pages, other_format
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Graph, Origin

_WHOLE_BYTES = 16 * 2**20  # a larger file is not read whole: most of it is weights
_MOST_TEXT = 512 * 2**20
_MOST_NESTED = 100  # braces in text; the parsers recurse

_SYNTAX = re.compile(rb"\s*<\s*(?:\w+\s*:|>)")
_PROTOTEXT = re.compile(rb"(?:\s*#[^\n]*\n)*\s*(?:ir_version|producer_name|opset_import|graph)\s*[:{]")
_JSON = re.compile(rb'\s*\{.*"(?:irVersion|ir_version|opsetImport|opset_import|graph)"\s*:', re.DOTALL)

_FIRST_FIELDS = (b"\x08", b"\x12", b"\x1a", b"\x3a", b"\x42")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def recognises(head: bytes) -> bool:
    """True if a file with these first bytes holds an ONNX model."""
    return bool(form_of(head))


def form_of(head: bytes) -> str:
    """The form of the ONNX model in a file with these first bytes; "" if there is no model."""
    if _SYNTAX.match(head):
        return "text"
    if _JSON.match(head):
        return "json"
    if _PROTOTEXT.match(head):
        return "prototext"
    # protobuf writes ir_version first; a file that was put together by hand may begin with another field.
    return "binary" if head[:1] in _FIRST_FIELDS and _CONTROL.search(head[:64]) else ""


def read(path: Path | str, model: str | None = None) -> Graph:
    """The program in an ONNX file, which holds only one, so `model` is ignored. Raises FileError for any other file."""
    return graph_of(*opened(path))


def opened(path: Path | str) -> tuple[Any, Origin]:
    """The ModelProto in a file, without weights, and its origin. Raises FileError, in one line, for any other file."""
    path = regular_file(path)
    with in_one_line(shown(str(path))):
        with path.open("rb") as file:
            head = file.read(512)
            form = form_of(head)
            if not form:
                wanted = "an ONNX model: give the file that torch.onnx.export wrote"
                raise FileError(other_format(head, wanted, "but not that of an ONNX model"))
            file.seek(0)
            size = path.stat().st_size
            if form != "binary" and size > _MOST_TEXT:
                raise FileError(f"{size} bytes of text: store the model as binary")
            if form != "binary":
                data = file.read()
            else:  # the part of the file that describes the program
                spend("bytes decoded", min(size, _WHOLE_BYTES))
                data = onnx_proto.without_weights(file.read() if size <= _WHOLE_BYTES else Pages(file, size))
        model = _decoded(data, form)
        if not model.HasField("graph"):
            raise FileError("holds no graph: it is not an ONNX model, or was cut off when it was copied")
        require_few(len(model.graph.node))
        names = map(onnx_proto.checked, (model.producer_name, model.producer_version))
        producer = " ".join(filter(None, names))
        return model, Origin(str(path), "onnx", shown(producer), hashlib.sha256(data).hexdigest())


def graph_of(model: Any, origin: Origin) -> Graph:
    """The program that a ModelProto holds. Raises FileError where its parts do not fit together."""
    with in_one_line(shown(origin.path)):
        return Program(model).graph(origin)


def _decoded(data: bytes, form: str) -> Any:
    if form == "binary":
        try:
            return onnx_proto.messages().ModelProto.FromString(data)
        except onnx_proto.decode_error():
            said = "is damaged, nests too deep, or is no ONNX model: export or copy it again"
            raise FileError(said) from None
    depths = accumulate(1 if bracket in b"{([" else -1 for bracket in re.findall(rb"[{}()\[\]]", data))
    if max(depths, default=0) > 4 * _MOST_NESTED:
        raise FileError("nests too deep")
    if form == "text":
        from onnx import parser

        try:
            return parser.parse_model(data.decode())
        except UnicodeDecodeError:
            raise FileError("is not UTF-8") from None
        # the parser raises any of these for malformed text
        except (parser.ParseError, IndexError, RuntimeError, ValueError) as error:
            said = error.args[0] if error.args else ""
            said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            raise FileError(f"is not ONNX's text: {shown(' '.join(said.split()), 300)}") from None
    module, option, what = _OF_PROTOBUF[form]
    library = importlib.import_module(f"google.protobuf.{module}")
    try:
        return library.Parse(data, onnx_proto.messages().ModelProto(), **{option: True})
    except library.ParseError as error:
        raise FileError(f"is not the {what} of an ONNX model: {shown(str(error), 300)}") from None


# By form: protobuf's module for it, that module's option to skip unknown fields, and the form's name.
_OF_PROTOBUF = {
    "json": ("json_format", "ignore_unknown_fields", "JSON"),
    "prototext": ("text_format", "allow_unknown_field", "text"),
}
