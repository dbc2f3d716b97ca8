"""Small files that expand to very much are refused in one line, and long texts are read in linear time."""

from __future__ import annotations

import itertools
import time
import zipfile

import pytest

from graphflops.analysis import analyze
from graphflops.errors import FileError
from graphflops.exporters import load
from graphflops.exporters.onnx_sizes import Sizes
from graphflops.exporters.sources import OnnxPlaces, Sources
from graphflops.exporters.types import Types, with_aliases
from graphflops.graph import Input, Node, Ref
from graphflops.render import render
from graphflops.tensor import FLOAT32, INT64, TensorType
from tests.exporters.build import call, meta, program, save, size, tensor
from tests.exporters.onnx_files import model, node, value
from tests.support import t

LONG = 400_000  # characters; what looks at each pair of them takes minutes
AGAIN = '<domain: "d", opset_import: ["": 21, "d": 1]>'
HEAD = f"g (bool c, float[4] x) => (y) {{ y = d.F0(c, x) }} {AGAIN}"


def functions(*bodies):
    return f"{HEAD} " + f" {AGAIN} ".join(bodies)


def test_graphs_handed_down_by_reference(refused):
    """Each function hands on a branch that runs the one it was given twice: 2**25 calls."""
    calls = [
        f"F{i} <body> (c, x) => (y) {{ y = d.F{i + 1} <body = g{i} () => (r) {{ "
        f"r = If(c) <then_branch: graph = @body, else_branch: graph = @body> }}> (c, x) }}"
        for i in range(25)
    ]
    first = "F0 (c, x) => (y) { y = d.G0 <body = b () => (r) { r = Relu(x) }> (c, x) }"
    rest = [call.replace("F", "G") for call in calls]
    last = "G25 <body: graph> (c, x) => (y) { y = If(c) <then_branch: graph = @body, else_branch: graph = @body> }"
    assert (
        refused(functions(first, *rest, last))
        == "functions that call one another have more than 100,000 calls"
    )


def test_nested_calls_of_functions_count(refused):
    inner = " ".join(f"t{i} = Relu(x)" for i in range(1000))
    branch = f"then_branch = a () => (t9) {{ {inner} }}, else_branch = b () => (r) {{ r = Neg(x) }}"
    body = f"F1 (c, x) => (y) {{ y = If(c) <{branch}> }}"
    calls = " ".join(f"v{i} = d.F1(c, x)" for i in range(200))
    text = functions(f"F0 (c, x) => (v0) {{ {calls} }}", body)
    assert refused(text) == "functions that call one another have more than 100,000 calls"


def test_operands_of_functions_count(refused):
    formals = ", ".join(f"a{i}" for i in range(5000))
    calls = " ".join(f"v{i} = d.F1(x)" for i in range(300))
    text = functions(f"F0 (c, x) => (v0) {{ {calls} }}", f"F1 ({formals}) => (b) {{ b = Relu(a0) }}")
    assert refused(text) == "functions that call one another have more than 1,000,000 operands"


def test_names_that_multiply_down_calls(refused):
    long = "a" * 100_000
    calls = " ".join(f"v{i} = d.F1(x)" for i in range(1000))
    text = functions(f"F0 (c, x) => (v0) {{ {calls} }}", f"F1 (x) => (b) {{ {long} = Relu(x) b = Relu(x) }}")
    assert refused(text) == "names inside functions have more than 67,108,864 characters"


def test_sizes_whose_names_clean_alike():
    sizes = Sizes()
    names = {str(sizes.read("a" + " " * i + "b")) for i in range(1, 3001)}
    assert len(names) == 3000
    assert sizes._taken["a_b"] == 3001  # the number behind the next one is looked up, not searched for


@pytest.mark.parametrize("depth, modules", [(64, 64), (65, 0)])
def test_modules_of_a_name_with_very_many_slashes(depth, modules):
    places = OnnxPlaces()
    places.of(node("Relu", ["x"], ["y"], name="/a" * depth + "/Relu"))
    assert len(places.modules) == modules


def test_modules_of_a_very_long_name():
    places = OnnxPlaces()
    assert places.of(node("Relu", ["x"], ["y"], name="/" + "a" * LONG + "/Relu"))[0] == ("", "", "")
    assert not places.modules


@pytest.mark.parametrize("text", ["'" + "\\'" * LONG, '"' + '\\"' * LONG, "'\\"])
def test_lists_of_strings_that_do_not_end(text):
    call = node("Relu", ["x"], ["y"])
    for key in ("name_scopes", "class_hierarchy"):
        entry = call.metadata_props.add()
        entry.key, entry.value = f"pkg.torch.onnx.{key}", text
    assert OnnxPlaces().of(call)[0] == ("", "", "")


def test_a_very_long_path_in_a_stack_trace():
    for path in ("a/" * LONG, "/" * LONG, "site-packages" * (LONG // 13), "site-packages/" * (LONG // 14)):
        line = Sources().line(f'File "{path}b.py", line 7')
        assert line.endswith("b.py:7")


@pytest.mark.parametrize(
    "path, shown",
    [
        ("/usr/lib/python3/dist-packages/pkg/a.py", "pkg/a.py"),
        ("site-packages/pkg/a.py", "pkg/a.py"),
        ("/x/site-packages/y/site-packages/pkg/a.py", "pkg/a.py"),
        ("mysite-packages/a.py", "mysite-packages/a.py"),
        ("/home/me/a.py", "a.py"),
    ],
)
def test_directories_of_the_exporting_machine_are_left_out(path, shown):
    assert Sources().line(f'File "{path}", line 7') == f"{shown}:7"


def test_a_program_of_many_calls_of_a_function_is_read(write):
    calls = " ".join(f"v{i} = d.F1(x)" for i in range(1000))
    report = analyze(write(functions(f"F0 (c, x) => (v0) {{ {calls} }}", "F1 (x) => (y) { y = Relu(x) }")))
    assert report.coverage.counted == 1000


def test_a_program_of_quotes_and_bare_numbers(tmp_path):
    """Bare NaN is looked for outside strings; one that does not end is a single string, not one from each quote on."""
    for text in (b'{"a": NaN, "' + b'\\"' * LONG, b'{"a": NaN, ' + b'"\\' * LONG):
        with pytest.raises(FileError, match="is not JSON"):
            load(save(tmp_path / "a.pt2", text))


def test_more_calls_than_are_read(tmp_path, write, monkeypatch):
    monkeypatch.setattr("graphflops.exporters._MOST_CALLS", 2)
    names = ["x", "a", "b", "y"]
    pairs = list(itertools.pairwise(names))
    calls = [call("torch.ops.aten.relu.default", tensor(a), out=b) for a, b in pairs]
    archive = save(tmp_path / "a.pt2", program(calls, dict.fromkeys(names, meta(4, 8))))
    for path in (archive, write("g (float[4] x) => (y) { a = Relu(x) b = Relu(a) y = Relu(b) }")):
        with pytest.raises(FileError, match="has more than 2 calls"):
            load(path)


def test_a_call_without_an_operator(refused):
    made = model([node("", ["x"], ["y"])], [value("x")], [value("y")])
    assert refused(made) == "a call names no operator: the file is damaged"


def test_calls_of_one_name(tmp_path):
    """Looking for a free number from 1 on each time takes 2 * 10**8 steps."""
    names = ["x", *(f"v{i}" for i in range(20_000)), "y"]
    nodes = [
        call("torch.ops.aten.relu.default", tensor(operand), out=result, name="same")
        for operand, result in itertools.pairwise(names)
    ]
    found = load(save(tmp_path / "a.pt2", program(nodes, dict.fromkeys(names, meta(4, 8)))))
    assert [entry.name for entry in found.nodes[:3]] == ["same", "same_1", "same_2"]
    assert found.nodes[-1].name == "same_20000"


def test_twenty_thousand_tied_weights():
    """All of one type: comparing each unused weight with each used one takes 4 * 10**8 comparisons."""
    many = range(20_000)
    unused = [Input(f"a{i}", "parameter", f"m{i}.weight") for i in many]
    used = [Input(f"b{i}", "parameter", f"body.b{i}") for i in many]
    nodes = [Node(f"n{i}", "aten.mm.default", (Ref(f"b{i}"),), module=f"m{i}") for i in many]
    types = {entry.name: t(8, 8) for entry in (*unused, *used)}
    found = with_aliases((*unused, *used), nodes, types)
    assert [entry.alias_of for entry in found] == [*[""] * 20_000, *(f"m{i}.weight" for i in many)]


def test_twenty_thousand_symbols():
    many = range(20_000)
    inputs = [Input(f"x{i}", "user") for i in many]
    types = {f"x{i}": t(f"s{i}", 8) for i in many}
    known = Types()
    for typed in types.values():
        known.once(typed)
    symbols = known.symbols({}, inputs, types)
    assert [entry.where for entry in symbols.values()] == [(f"x{i}[0]",) for i in many]


def test_the_names_of_very_many_sizes(tmp_path):
    """Finding all names again for each of n sizes would take 36 times as long for 6 n; it takes about 6 times as long."""

    def seconds(count: int) -> float:
        sizes = {f"x{i}": meta(size(f"s{i}"), 8) for i in range(count)}
        inputs = [{"user_input": {"arg": tensor(name)}} for name in sizes]
        calls = [call("torch.ops.aten.relu.default", tensor("x0"))]
        path = save(tmp_path / f"{count}.pt2", program(calls, {**sizes, "y": meta(size("s0"), 8)}, inputs))
        start = time.process_time()
        report = analyze(path)
        text = render(report, "table") + render(report, "html")
        assert f"{count:,} sizes" in text
        return time.process_time() - start

    seconds(100)  # imports
    assert seconds(6_000) < 18 * seconds(1_000)


def test_types_of_different_contents_do_not_collide():
    """20,000 calls on the contents of one shape: comparing each with all before takes 2 * 10**8 comparisons."""
    contents = [TensorType((2,), INT64, value=(i, i + 1)) for i in range(1_000)]
    filled = [TensorType((9, 9), FLOAT32, uniform=i / 7) for i in range(1_000)]
    assert len({hash(found) for found in (*contents, *filled)}) == 2_000


def test_a_small_zip_bomb(tmp_path):
    """Packed more than 200 times, and more than 4 MB."""
    path = save(tmp_path / "a.pt2", b" " * 5_000_000, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FileError, match="zip bomb"):
        load(path)
