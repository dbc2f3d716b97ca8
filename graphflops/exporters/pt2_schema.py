"""The JSON of a `.pt2` as msgspec types: the part of PyTorch's export schema (major 5 to 8) that is read.

msgspec skips fields that say nothing about cost without building anything. A union is written as an object with one key;
here it is a struct whose fields are all optional, exactly one of them set. Descriptions of tensors and nested graphs stay
raw text: a large model repeats a few dozen of them thousands of times, and each is decoded once.
"""

import re
from typing import Annotated, TypeVar, Union

import msgspec
from msgspec import Raw, Struct

from graphflops.errors import FileError, shown

# Not `from __future__ import annotations`: msgspec would have to compile the text of each annotation.
OLDEST_MAJOR = 5
NEWEST_MAJOR = 8

Decoded = TypeVar("Decoded")

# A string without a closing quote matches to the end of the text, so that the search stays linear.
_BARE_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|-?Infinity|NaN', re.DOTALL)

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # torch's integers have 64 bits
Float = Union[float, str]  # newer releases write infinities and NaN as strings, because JSON has neither


class NotJsonError(FileError):
    """A text is not JSON, or has a bare NaN or Infinity."""


class Scalar(Struct, gc=False):
    """A union: exactly one field is set. A number is the name of its value, a literal, or a symbolic expression."""

    as_none: object = None
    as_name: str | None = None
    as_int: int | None = None
    as_float: Float | None = None
    as_bool: bool | None = None
    as_string: str | None = None
    as_expr: "SymExpr | None" = None


class SymExpr(Struct, gc=False):
    """A symbolic expression with an example value. The oldest files write it as `2*s0`, all others as sympy's `srepr`."""

    expr_str: str
    hint: Scalar | None = None


class TensorMeta(Struct, gc=False):
    """Recorded type of a tensor."""

    dtype: int
    sizes: list[Scalar]
    requires_grad: bool = False
    strides: list[Scalar] = []  # msgspec makes a new list each time
    storage_offset: Scalar | None = None
    layout: int = 7


class Named(Struct, gc=False):
    """A reference to a tensor, a token, or an object of a user-defined class."""

    name: str
    class_fqn: str = ""


class Device(Struct, gc=False):
    """A device, `cuda:1`."""

    type: str
    index: int | None = None


class Complex(Struct, gc=False):
    """A complex literal."""

    real: Float
    imag: Float


class GraphArgument(Struct, gc=False):
    """A nested graph that is an argument of a higher-order operator."""

    name: str
    graph: Raw


class Argument(Struct, gc=False):
    """A union: exactly one field is set."""

    as_tensor: Named | None = None
    as_int: Int | None = None
    as_ints: list[Int] | None = None
    as_sym_int: Scalar | None = None
    as_sym_ints: list[Scalar] | None = None
    as_none: object = None
    as_bool: bool | None = None
    as_float: Float | None = None
    as_tensors: list[Named] | None = None
    as_scalar_type: int | None = None
    as_string: str | None = None
    as_device: Device | None = None
    as_optional_tensors: "list[Argument] | None" = None
    as_optional_tensor: "Argument | None" = None
    as_graph: GraphArgument | None = None
    as_floats: list[Float] | None = None
    as_bools: list[bool] | None = None
    as_strings: list[str] | None = None
    as_sym_bool: Scalar | None = None
    as_sym_bools: list[Scalar] | None = None
    as_sym_float: Scalar | None = None
    as_sym_floats: list[Scalar] | None = None
    as_memory_format: int | None = None
    as_layout: int | None = None
    as_custom_obj: Named | None = None
    as_operator: str | None = None
    as_complex: Complex | None = None
    as_nested_tensors: list[list[Named]] | None = None
    as_int_lists: list[list[Int]] | None = None
    as_float_lists: list[list[Float]] | None = None
    as_string_to_argument: "dict[str, Argument] | None" = None


class NamedArgument(Struct, gc=False):
    """An operand and its name in the operator's schema; kind: 1 positional, 2 keyword, None in old files."""

    name: str
    arg: Argument
    kind: int | None = None


class Metadata(Struct, gc=False):
    """The module stack and stack trace of a call."""

    nn_module_stack: str = ""
    stack_trace: str = ""


class Node(Struct, gc=False):
    """One call."""

    target: str
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: Metadata
    name: str | None = None
    # For an operator with nested graphs: whether it returns a single tensor, not a list.
    is_hop_single_tensor_return: bool | None = None


class Graph(Struct, gc=False):
    """A program, or a graph nested in one."""

    inputs: list[Argument]
    outputs: list[Argument]
    # Each entry is the text of a `Node`. Entries are decoded one at a time: all at once takes twice the memory and time.
    nodes: list[Raw]
    tensor_values: dict[str, Raw]
    sym_int_values: dict[str, Scalar]
    sym_bool_values: dict[str, Scalar] = {}
    sym_float_values: dict[str, Scalar] = {}
    is_single_tensor_return: bool = False  # returns a single tensor, not a list


class ArgumentSpec(Struct, gc=False):
    """An input that the caller passes, or an output that the caller gets."""

    arg: Argument


class Spec(Struct, gc=False):
    """A tensor, token or object that is an input or output. One name is set: of what it is, or what it belongs to."""

    arg: Named
    parameter_name: str | None = None
    buffer_name: str | None = None
    persistent: bool = True  # of a buffer
    tensor_constant_name: str | None = None
    custom_obj_name: str | None = None
    user_input_name: str | None = None


class LiteralSpec(Struct, gc=False):
    """A user input that the export fixed to one value."""

    name: str
    value: Scalar


class InputSpec(Struct, gc=False):
    """A union: the role of one input."""

    parameter: Spec | None = None
    buffer: Spec | None = None
    user_input: ArgumentSpec | None = None
    tensor_constant: Spec | None = None
    custom_obj: Spec | None = None
    token: Spec | None = None
    constant_input: LiteralSpec | None = None


class OutputSpec(Struct, gc=False):
    """A union: the role of one output."""

    user_output: ArgumentSpec | None = None
    loss_output: Spec | None = None
    buffer_mutation: Spec | None = None
    gradient_to_parameter: Spec | None = None
    gradient_to_user_input: Spec | None = None
    user_input_mutation: Spec | None = None
    parameter_mutation: Spec | None = None
    token: Spec | None = None


class Signature(Struct, gc=False):
    """Roles of the program's inputs and outputs."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


class GraphModule(Struct, gc=False):
    """The program and its signature."""

    graph: Graph
    signature: Signature


class Range(Struct, gc=False):
    """Inclusive range of a symbol; None means unbounded."""

    min_val: int | None = None
    max_val: int | None = None


class SchemaVersion(Struct, gc=False):
    """Version of the schema; a change of `major` breaks readers."""

    major: int


class Versioned(Struct, gc=False):
    """The part of a file that states its schema version."""

    schema_version: SchemaVersion


class ExportedProgram(Versioned, gc=False):
    """The whole JSON member."""

    graph_module: GraphModule
    range_constraints: dict[str, Range]
    torch_version: str = ""
    guards_code: list[str] | None = None


class Payload(Struct, gc=False):
    """Where a weight or constant is stored. Tensors that share memory have the same `path_name`."""

    path_name: str
    use_pickle: bool = False
    is_param: bool | None = None
    tensor_meta: TensorMeta | None = None


class PayloadConfig(Struct, gc=False):
    """The `*_weights_config.json` or `*_constants_config.json` member, by qualified name."""

    config: dict[str, Payload]


def decode(data: bytes, kind: type[Decoded], where: str) -> Decoded:
    """Decodes JSON to a typed value; raises FileError, with the path inside the JSON, if it does not fit."""
    try:
        return decode_part(msgspec.json.Decoder(kind), data, where)
    except RecursionError:
        raise FileError(f"{where} nests too deep") from None
    except NotJsonError:
        if b"NaN" not in data and b"Infinity" not in data:
            raise
        # Older releases wrote NaN and Infinity without quotes.
        quoted = _BARE_NUMBER.sub(lambda x: x[0] if x[0][:1] == b'"' else b'"' + x[0] + b'"', data)
        if quoted == data:
            raise
    return decode(quoted, kind, where)


def decode_part(decoder: msgspec.json.Decoder[Decoded], text: bytes | Raw, where: str) -> Decoded:
    """Decodes a part of a member that was kept as text; raises FileError, with the path inside it, if it does not fit."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise FileError(f"{where} does not follow the export schema: {shown(str(error), 300)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJsonError(f"{where} is not JSON: {shown(str(error), 200)}") from None
