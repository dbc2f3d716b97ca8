"""ONNX models changed at random: whatever becomes of them, one line says what is wrong, or there is a report, and soon.

    python -m tests.oracle.onnx_fuzz [--minutes 5] [--seconds 2] [--seed N] [--keep FOLDER] [FILE.onnx ...]

Starts from samples/*.onnx, ONNX's conformance models and calls of onnxruntime's own operators. Each is changed a few times at random: sizes, attributes,
operators, operands, results, stored tensors, types, names, versions, single bytes; two models may be joined. Then it is
read from a file and analyzed. What is found, each once, by where it happened:

    crash   something else is raised than graphflops raises on purpose
    lines   an error is not one line, or a report cannot be printed or read back
    slow    it takes more than `--seconds` (2) of this process's time, and two milliseconds for each call
    memory  it takes more than a gigabyte
    sign    a size or a cost is negative

With `--keep` the model of each is stored there. Files given are tried as they are, which is how one is looked into. Prints
each failure and one summary line; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError, EncodeError

from graphflops import analyze
from graphflops.errors import GraphflopsError
from graphflops.ops.onnx_operands import versions
from graphflops.render import formats, render
from graphflops.report import Report
from tests.oracle import onnx_contrib, onnx_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


FORMS = formats.names("Listing")
EACH = 0.002  # seconds more for each call that the report lists
STUCK = 10  # times as long as is slow: given up
MOST_BYTES = 2**30
MOST_CHANGES = 6
SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 64, 1000, -1, -2, -7, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
INTEGERS = (*SIZES, -(2**31), -(2**62), -(2**63))
NUMBERS = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 3.7, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *(
        "",
        "N",
        "M",
        "batch",
        "2",
        "007",
        "-3",
        "N + 1",
        "4*h4",
        "N//2",
        "(N - M)//(M - N)",
        "N**M",
        "Min(N, 8)",
    ),
    *(
        "floor(N/2 - 1/2)",
        "N % 0",
        "1//0",
        "__import__('os')",
        "\x1b[31mred\n",
        "a\u202eb",
        "name with spaces",
    ),
    *("9" * 40, "N*" * 30 + "N", "(" * 200 + "N" + ")" * 200, "x" * 5000, "=1+1", "../../etc/passwd", "N;M"),
    *(
        "nearest",
        "linear",
        "SAME_UPPER",
        "SAME_LOWER",
        "VALID",
        "NOTSET",
        "bidirectional",
        "ij,jk->ik",
        "...,->",
    ),
    *(
        "i,i,i->",
        "ii->i",
        "a b->ba",
        "reflect",
        "constant",
        "max",
        "sum",
        "COL2IM",
        "Relu",
        "Tanh",
        "float",
        "none",
    ),
)
DOMAINS = ("", "", "", "ai.onnx", "ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training", "mine")
KINDS = [kind for kind in versions() if "." not in kind]


class Stuck(BaseException):
    """Raised by the timer; no rule's failure, so that nothing on the way catches it."""


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="models to be tried as they are")
    parser.add_argument("--minutes", type=float, default=5, help="how long to go on")
    parser.add_argument(
        "--models", type=int, default=0, help="how many models to try, however long that takes"
    )
    parser.add_argument("--seconds", type=int, default=2, help="what is slow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for models that fail")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGPROF, _stuck)
    found: dict[str, str] = {}
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        if options.files:
            tried: Iterator[tuple[str, bytes]] = ((str(path), path.read_bytes()) for path in options.files)
        else:
            tried = changed(options.seed, options.minutes * 60, options.models)
        for name, data in tried:
            path = Path(folder) / "model.onnx"
            path.write_bytes(data)
            verdict, said = judge(path, FORMS[verdicts.total() % len(FORMS)], options.seconds)
            verdicts[verdict] += 1
            if verdict in ("report", "refused") or said in found:
                continue
            found[said] = name
            print(f"{verdict} {name}: {said}", flush=True)
            if options.keep:
                options.keep.mkdir(exist_ok=True)
                (options.keep / f"{verdict}_{len(found)}.onnx").write_bytes(data)
    reports, refused = verdicts.pop("report", 0), verdicts.pop("refused", 0)
    print(
        f"onnx {onnx.__version__}, seed {options.seed}: {reports + refused + verdicts.total()} models, "
        f"{reports} analyzed, {refused} refused in one line, {verdicts.total()} wrong in {len(found)} ways"
    )
    return 1 if found else 0


def _stuck(*_: Any) -> None:
    raise Stuck


def judge(path: Path, form: str, slow: int) -> tuple[str, str]:
    """What became of one file, and where that was."""
    began = time.process_time()
    _limit(MOST_BYTES)
    signal.setitimer(signal.ITIMER_PROF, STUCK * slow)
    calls = 0
    try:
        report = analyze(path)
        calls = len(report.rows)
        wrong = _negative(report)
        if wrong:
            return "sign", wrong
        if Report.from_json(report.to_json()).to_json() != report.to_json():
            return "lines", "the report is another one when read back"
        render(report, form)
    except GraphflopsError as error:
        message = str(error)
        if "\n" in message or not message.isprintable() or len(message) > len(str(path)) + 1000:
            return "lines", f"{type(error).__name__} {_where(error)}"
        if "does not fit in memory" in message:
            return "memory", _where(error)
        verdict = "refused"
    except MemoryError as error:
        return "memory", _where(error)
    except Stuck as error:
        return "slow", _where(error)
    except Exception as error:
        return "crash", f"{type(error).__name__} {_where(error)}"
    else:
        verdict = "report"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _limit(resource.RLIM_INFINITY)
    if time.process_time() - began > slow + EACH * calls:
        return "slow", f"more than {slow + EACH * calls:.0f} seconds"
    return verdict, ""


def _limit(more: int) -> None:
    """Allow this process so much memory beyond what it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = more if more == resource.RLIM_INFINITY else has + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _where(error: BaseException) -> str:
    """The innermost lines of this project that an error came through."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/graphflops/" in frame.filename
    ]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-3:]))


def _negative(report: Report) -> str:
    """The operator of the first call with a size or cost that cannot be; "" where there is none."""
    for row in report.rows:
        sizes = [size for value in row.outputs for size in value.type.shape]
        costs = [getattr(row.cost, name) for name in row.cost.__slots__]
        if any(isinstance(number, int) and number < 0 for number in (*sizes, *costs)):
            return f"{row.op} gives a negative number"
    return ""


# Models to start from.


@lru_cache(maxsize=1)
def seeds() -> list[tuple[str, onnx.ModelProto]]:
    """Names and models of what is changed: the samples, and ONNX's own with small operands as constants."""
    samples = Path(__file__).parents[2] / "samples"
    found = [
        (path.name, onnx.load(path, load_external_data=False)) for path in sorted(samples.glob("*.onnx"))
    ]
    for case in onnx_nodes.cases(["node", "simple", "pytorch-converted", "pytorch-operator"]):
        found.append((case.name, case.model))
        found.append((f"{case.name} of constants", onnx_nodes.stripped(case)))
    for case in onnx_contrib.cases():
        model = onnx_contrib.model_of(case)
        found.append((f"{case.domain}.{case.op}", model))
        operands = [case.operands[int(value.name.removeprefix("in"))] for value in model.graph.input]
        whole = onnx_nodes.Case(case.op, model, operands, [])
        found.append((f"{case.domain}.{case.op} of constants", onnx_nodes.stripped(whole)))
    small = [(name, model) for name, model in found if model.ByteSize() < 400_000]
    print(f"{len(small)} models to start from", flush=True)
    return small


def changed(seed: int, seconds: float, most: int) -> Iterator[tuple[str, bytes]]:
    """Models changed at random, named after what they were, until the time is over."""
    chance = random.Random(seed)
    known = seeds()
    began, count = time.monotonic(), 0
    while (count < most) if most else (time.monotonic() - began < seconds):
        count += 1
        name, seed_model = chance.choice(known)
        model = _copy(seed_model)
        if chance.random() < 0.2:
            joined(model, chance.choice(known)[1], chance)
        for _ in range(chance.randint(1, MOST_CHANGES)):
            change = chance.choice(CHANGES)
            try:
                change(model, chance)
            except (IndexError, ValueError, TypeError, UnicodeError):
                continue  # nothing there to change, or no field has room for it
        try:
            data = model.SerializeToString()
        except (EncodeError, ValueError):
            continue
        if chance.random() < 0.05:
            data = garbled(data, chance)
        yield f"{name} #{count}", data


def garbled(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out or put in."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        out[at : at + chance.choice((0, 1, 1, 1, 20))] = chance.randbytes(chance.choice((0, 1, 1, 1, 5)))
    try:
        onnx.ModelProto.FromString(bytes(out))
    except DecodeError:
        return bytes(out) if chance.random() < 0.2 else data
    return bytes(out)


# Changes. Each takes a model, and changes one thing in it.


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and all that are nested in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def _graph(model: Any, chance: random.Random) -> Any:
    return chance.choice([*graphs(model.graph), *model.functions])


def _node(model: Any, chance: random.Random) -> Any:
    return chance.choice(_graph(model, chance).node)


def _attribute(model: Any, chance: random.Random) -> Any:
    return chance.choice(_node(model, chance).attribute)


def _tensor_type(model: Any, chance: random.Random) -> Any:
    graph = chance.choice(list(graphs(model.graph)))
    value = chance.choice([*graph.input, *graph.input, *graph.value_info, *graph.output])
    return value.type.tensor_type


def _names(graph: Any, calls: int | None = None) -> list[str]:
    """What values of a graph, or a function, are called: those that so many of its calls make among them."""
    named = [entry if isinstance(entry, str) else entry.name for entry in graph.input]
    stored = [tensor.name for tensor in getattr(graph, "initializer", ())]
    return [*named, *stored, *(name for node in graph.node[:calls] for name in node.output if name)]


def _known(graph: Any, at: int, chance: random.Random) -> list[str]:
    """What a call at that place can use; now and then what it cannot."""
    return _names(graph, None if chance.random() < 0.03 else at)


def _return(graph: Any, name: str) -> None:
    if isinstance(graph, onnx.FunctionProto):
        graph.output.append(name)
    else:
        graph.output.add().name = name


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def change_size(model: Any, chance: random.Random) -> None:
    """One axis of an input, or of a value whose type the file states."""
    dim = chance.choice(_tensor_type(model, chance).shape.dim)
    pick = chance.random()
    if pick < 0.5:
        dim.dim_value = chance.choice(SIZES)
    elif pick < 0.9:
        dim.dim_param = chance.choice(TEXTS)
    else:
        dim.Clear()


def change_rank(model: Any, chance: random.Random) -> None:
    """An axis more or less, or no shape at all."""
    typed = _tensor_type(model, chance)
    pick = chance.random()
    if pick < 0.4:
        typed.shape.dim.add().dim_value = chance.choice((1, 2, 3, 8))
    elif pick < 0.8:
        typed.shape.dim.pop(chance.randrange(len(typed.shape.dim)))
    else:
        typed.ClearField("shape")


def change_type(model: Any, chance: random.Random) -> None:
    """Another element type, or another kind of value."""
    graph = chance.choice(list(graphs(model.graph)))
    value = chance.choice([*graph.input, *graph.output])
    pick = chance.random()
    if pick < 0.6:
        value.type.tensor_type.elem_type = chance.choice((*range(29), 99))
    elif pick < 0.8:
        inner = _copy(value.type)
        held = value.type.sequence_type if pick < 0.7 else value.type.optional_type
        held.elem_type.CopyFrom(inner)
    else:
        (value.type.map_type if pick < 0.9 else value.type.sequence_type).SetInParent()


def change_attribute(model: Any, chance: random.Random) -> None:
    """The value of an attribute."""
    attribute = _attribute(model, chance)
    kind = attribute.type
    if kind == onnx.AttributeProto.INT:
        attribute.i = chance.choice(INTEGERS)
    elif kind == onnx.AttributeProto.INTS:
        pick = chance.random()
        if pick < 0.6:
            attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(INTEGERS)
        elif pick < 0.8:
            attribute.ints.append(chance.choice(INTEGERS))
        else:
            attribute.ints.pop()
    elif kind == onnx.AttributeProto.FLOAT:
        attribute.f = chance.choice(NUMBERS[:7])
    elif kind == onnx.AttributeProto.FLOATS:
        attribute.floats.append(chance.choice(NUMBERS[:7]))
    elif kind == onnx.AttributeProto.STRING:
        attribute.s = chance.choice(TEXTS).encode()
    elif kind == onnx.AttributeProto.STRINGS:
        attribute.strings.append(chance.choice(TEXTS).encode())
    elif kind == onnx.AttributeProto.TENSOR:
        _change_tensor(attribute.t, chance)


def change_kind_of_attribute(model: Any, chance: random.Random) -> None:
    """An attribute of the wrong type."""
    attribute = _attribute(model, chance)
    name = attribute.name
    value = chance.choice((chance.choice(INTEGERS), [1, 2], 0.5, [0.5], chance.choice(TEXTS), ["a", "b"]))
    attribute.CopyFrom(onnx.helper.make_attribute(name, value))


def drop_attribute(model: Any, chance: random.Random) -> None:
    """One attribute less."""
    node = _node(model, chance)
    node.attribute.pop(chance.randrange(len(node.attribute)))


def add_attribute(model: Any, chance: random.Random) -> None:
    """One attribute more: of another call, of the same name as another, or one that nobody knows."""
    node = _node(model, chance)
    attribute = _copy(_attribute(model, chance))  # which this call may be nested in
    node.attribute.add().CopyFrom(attribute)
    if chance.random() < 0.3:
        node.attribute[-1].name = chance.choice(TEXTS)
    elif chance.random() < 0.2:
        node.attribute[-1].ref_attr_name = chance.choice(("alpha", "axis", node.attribute[-1].name))


def change_operator(model: Any, chance: random.Random) -> None:
    """Another operator on the same operands."""
    node = _node(model, chance)
    pick = chance.random()
    if pick < 0.7:
        kind = chance.choice(list(versions()) if pick < 0.1 else KINDS)
        node.domain, _, node.op_type = kind.rpartition(".")
    elif pick < 0.9:
        node.domain = chance.choice(DOMAINS)
    else:
        node.op_type = chance.choice(TEXTS)


def change_operand(model: Any, chance: random.Random) -> None:
    """Another operand, one less, one more, or many more."""
    graph = _graph(model, chance)
    at = chance.randrange(len(graph.node))
    node, names = graph.node[at], [*_known(graph, at, chance), ""]
    pick = chance.random()
    if pick < 0.4:
        node.input[chance.randrange(len(node.input))] = chance.choice(names)
    elif pick < 0.6:
        node.input.append(chance.choice(names))
    elif pick < 0.8:
        node.input.pop(chance.randrange(len(node.input)))
    elif pick < 0.9:
        chosen = list(node.input)
        chance.shuffle(chosen)
        node.input[:] = chosen
    elif pick < 0.95:
        node.input[chance.randrange(len(node.input))] = chance.choice(TEXTS)
    else:
        node.input.extend([chance.choice(names)] * chance.choice((10, 300)))


def change_result(model: Any, chance: random.Random) -> None:
    """A result more, less, or of the name of another value."""
    graph = _graph(model, chance)
    node = chance.choice(graph.node)
    pick = chance.random()
    if pick < 0.3:
        node.output.append(f"more_{chance.randrange(1000)}")
    elif pick < 0.5:
        node.output.pop(chance.randrange(len(node.output)))
    elif pick < 0.7:
        other = chance.choice(["", *chance.choice(graph.node).output])
        node.output[chance.randrange(len(node.output))] = other
    else:
        _return(graph, chance.choice(_names(graph)))


def change_nodes(model: Any, chance: random.Random) -> None:
    """A call less, a call more, or another order."""
    graph = _graph(model, chance)
    pick = chance.random()
    at = chance.randrange(len(graph.node))
    if pick < 0.3:
        graph.node.pop(at)
    elif pick < 0.6:
        graph.node.add().CopyFrom(graph.node[at])
        for place, name in enumerate(graph.node[-1].output):
            graph.node[-1].output[place] = f"{name}_again" if name else ""
    elif pick < 0.8:
        graph.node.add().CopyFrom(graph.node[at])
    else:
        graph.node.sort(key=lambda _: chance.random())


def add_node(model: Any, chance: random.Random) -> None:
    """A call of any operator on any values, which a later change may put to use."""
    graph = _graph(model, chance)
    at = chance.randint(0, len(graph.node) - 1)
    operands = chance.choices(_known(graph, at, chance), k=chance.randint(1, 4))
    number = chance.randrange(10**6)
    new = onnx.helper.make_node(chance.choice(KINDS), operands, [f"new_{number}"])
    if chance.random() < 0.4:
        new.attribute.add().CopyFrom(_copy(_attribute(model, chance)))
    graph.node.insert(at, new)
    user = graph.node[chance.randint(at + 1, len(graph.node) - 1)]
    user.input[chance.randrange(len(user.input))] = f"new_{number}"


def repeat_node(model: Any, chance: random.Random) -> None:
    """A call fed with its own result many times over, or twice with it."""
    graph = _graph(model, chance)
    node = chance.choice(graph.node)
    last, twice = node.output[0], chance.random() < 0.3
    for turn in range(chance.choice((3, 20, 60))):
        new = graph.node.add()
        new.CopyFrom(node)
        new.input[0] = last
        if twice:
            new.input[:] = [last] * len(node.input)
        last = f"{node.output[0]}_{turn}"
        new.output[:] = [last, *(f"{name}_{turn}" for name in node.output[1:])]
    _return(graph, last)


def nest_node(model: Any, chance: random.Random) -> None:
    """A call put into the branches of an If, or into the body of a Loop."""
    graph = chance.choice(list(graphs(model.graph)))
    at = chance.randrange(len(graph.node))
    node = _copy(graph.node[at])
    value = onnx.ValueInfoProto(name=node.output[0])
    names = _known(graph, at, chance)
    if chance.random() < 0.5:
        body = onnx.helper.make_graph([node], "body", [], [value])
        new = onnx.helper.make_node(
            "If", [chance.choice(names)], [node.output[0]], then_branch=body, else_branch=body
        )
    else:
        carried = chance.choice(names)
        inputs = [onnx.ValueInfoProto(name=name) for name in ("turn", "goes_on", carried)]
        body = onnx.helper.make_graph([node], "body", inputs, [inputs[1], value, value])
        operands = [chance.choice(["", *names]), chance.choice(["", *names]), carried]
        new = onnx.helper.make_node(
            "Loop", operands, [node.output[0], f"stacked_{node.output[0]}"], body=body
        )
    graph.node.pop(at)
    graph.node.insert(at, new)


def make_constant(model: Any, chance: random.Random) -> None:
    """An input that becomes a stored tensor of small numbers."""
    value = chance.choice(model.graph.input)
    shape = chance.choice(((), (1,), (2,), (3,), (4,), (8,), (2, 2), (0,), (1, 64)))
    count = 1
    for size in shape:
        count *= size
    tensor = model.graph.initializer.add()
    code = chance.choice((onnx.TensorProto.INT64, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT))
    pool: Sequence[float] = INTEGERS if code == onnx.TensorProto.INT64 else NUMBERS
    tensor.CopyFrom(onnx.helper.make_tensor(value.name, code, shape, chance.choices(pool, k=count)))


def change_stored(model: Any, chance: random.Random) -> None:
    """A stored tensor's data, sizes or type."""
    _change_tensor(chance.choice(chance.choice(list(graphs(model.graph))).initializer), chance)


def _change_tensor(tensor: Any, chance: random.Random) -> None:
    pick = chance.random()
    if pick < 0.4:
        count = chance.choice((0, 1, 2, 3, 4, 8, 64))
        tensor.CopyFrom(
            onnx.helper.make_tensor(
                tensor.name, onnx.TensorProto.INT64, (count,), chance.choices(INTEGERS, k=count)
            )
        )
    elif pick < 0.6:
        tensor.data_type = chance.choice((*range(29), 99, -1))
    elif pick < 0.8:
        tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(SIZES)
    elif pick < 0.9:
        tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data) + 1)]
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, said in (("location", "/etc/passwd"), ("offset", "-1"), ("length", chance.choice(TEXTS))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, said


def change_version(model: Any, chance: random.Random) -> None:
    """Another opset or IR version."""
    if chance.random() < 0.2:
        model.ir_version = chance.choice(INTEGERS)
    else:
        chance.choice(model.opset_import).version = chance.choice((*range(1, 29), 0, -1, 2**31, 2**62))


def change_name(model: Any, chance: random.Random) -> None:
    """A value's name, everywhere, to one that is hard to print."""
    graph = _graph(model, chance)
    old, new = chance.choice(_names(graph)), chance.choice(TEXTS)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in (*graph.input, *graph.output, *getattr(graph, "initializer", ())):
        if not isinstance(value, str) and value.name == old:
            value.name = new


def make_function(model: Any, chance: random.Random) -> None:
    """The whole program as a function, called from one with the same interface."""
    body = model.graph
    function = model.functions.add(name=chance.choice(KINDS), domain=chance.choice(DOMAINS))
    function.input.extend(value.name for value in body.input)
    function.output.extend(value.name for value in body.output)
    function.node.extend(body.node)
    function.opset_import.extend(model.opset_import)
    del body.node[:]
    body.node.add(
        op_type=function.name,
        domain=function.domain,
        input=list(function.input),
        output=list(function.output),
    )


def joined(model: Any, other: Any, chance: random.Random) -> None:
    """Another model's calls behind this one's, some of their inputs taken from it."""
    own = _names(model.graph)
    second = onnx.compose.add_prefix_graph(other.graph, "second_")
    for value in second.input:
        taken = chance.choice(own) if own and chance.random() < 0.6 else None
        if taken is None:
            model.graph.input.add().CopyFrom(value)
            continue
        for node in second.node:
            node.input[:] = [taken if name == value.name else name for name in node.input]
    for part in ("node", "initializer", "sparse_initializer", "output", "value_info"):
        getattr(model.graph, part).extend(getattr(second, part))
    known = {entry.domain: entry for entry in model.opset_import}
    for entry in other.opset_import:
        if entry.domain not in known:
            model.opset_import.add().CopyFrom(entry)


CHANGES: tuple[Callable[[Any, random.Random], None], ...] = (
    *(change_size, change_size, change_rank, change_type, change_attribute, change_attribute),
    *(
        change_kind_of_attribute,
        drop_attribute,
        add_attribute,
        change_operator,
        change_operand,
        change_operand,
    ),
    *(change_result, change_nodes, add_node, add_node, repeat_node, nest_node, make_constant, make_constant),
    *(change_stored, change_stored, change_version, change_name, make_function),
)


if __name__ == "__main__":
    sys.exit(main())
