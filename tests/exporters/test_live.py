"""Programs in memory: the same graph as their saved file gives, and capture of models of any size."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from graphflops.analysis import analyze  # noqa: E402
from graphflops.dims import symbol  # noqa: E402
from graphflops.exporters import load  # noqa: E402
from graphflops.exporters.live import capture, from_exported_program  # noqa: E402
from graphflops.graph import Graph, Opaque, Ref  # noqa: E402
from graphflops.tensor import BFLOAT16, TensorType  # noqa: E402
from tests.exporters.live_modules import fake, meta, real  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")

Dim = torch.export.Dim
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def told(graph: Graph) -> dict[str, Any]:
    """All that a graph says, origin apart, in a form that compares and prints."""
    return {
        "inputs": [(entry.role, entry.target, entry.alias_of) for entry in graph.inputs],
        "types": {
            name: (type(value).__name__, str(value), requires_grad(value))
            for name, value in graph.types.items()
        },
        "nodes": [
            (
                *(entry.name, entry.op, entry.outputs, entry.module, entry.module_type, entry.source),
                *(told_argument(entry.args), told_argument(entry.kwargs)),
            )
            for entry in graph.nodes
        ],
        "outputs": [(entry.role, entry.target, told_argument(entry.value)) for entry in graph.outputs],
        "symbols": dict(graph.symbols),
        "modules": dict(graph.modules),
        "name": graph.name,
    }


def told_argument(argument: Any) -> Any:
    if isinstance(argument, Graph):
        return told(argument)
    if isinstance(argument, tuple):
        return [told_argument(item) for item in argument]
    return type(argument).__name__, str(argument)


def requires_grad(value: object) -> bool:
    return isinstance(value, TensorType) and value.requires_grad


class GroupedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(32, 32),
            nn.Linear(32, 8),
            nn.Linear(32, 8),
            nn.Linear(32, 32),
        )

    def forward(self, x: Any) -> Any:
        q, k, v = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Function(nn.Module):
    """A module around a function of its inputs, with a layer at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.fc = nn.Linear(4, 4)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def branches(module: Any, x: Any, p: Any) -> Any:
    y = torch.cond(p, lambda x: module.fc(x), lambda x: module.fc(x).relu(), (x,))
    with torch.no_grad():
        y = module.fc(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y, module.fc(y), x.shape[0]


def loop(module: Any, x: Any, n: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, x: i < n.sum(), lambda i, x: (i + 1, x @ x), (n[0], x))


def scanned(module: Any, x: Any, xs: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: (c + x, c * x), x, xs, dim=0)


def mapped(module: Any, x: Any, y: Any) -> Any:
    from torch._higher_order_ops.map import map as torch_map

    return torch_map(lambda x, y: x @ y, x, y)


def hinted(module: Any, x: Any) -> Any:
    from torch._higher_order_ops.hints_wrap import hints_wrapper

    return hints_wrapper(lambda x, y: (x @ y,), (x, x), {}, hints={"outer": True})


def checkpointed(module: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: module.fc(x).relu(), x, use_reentrant=False)


def data_dependent(module: Any, x: Any) -> Any:
    n, u = x.nonzero().shape[0], x[0].item()
    torch._check(u >= 0)
    torch._check(u < 100)
    return x.new_ones(n, 3) * 2, x.new_zeros(u + 1), x.float() * (x.shape[0] / 3), x[x > 1], torch.unique(x)


def many_results(module: Any, x: Any, m: Any) -> Any:
    a, _, c = x.split([1, 1, 2], 1)
    u, (values, _) = x.unbind(0), x.flatten(2).sort(-1)
    copy = x.clone()
    copy[m] = 0.0
    singular = torch.linalg.svd(x.flatten(1))[1]
    wide = x.to(torch.float64, memory_format=torch.channels_last)
    picked = x[:, None, [0, 1]]
    return (
        a + c,
        u[0],
        values,
        copy,
        singular,
        wide,
        picked,
        torch.complex(x, x) * (1 + 2j),
        x * float("inf"),
        x.topk(2)[1],
    )


def joint() -> Any:
    from torch.export.experimental import _export_forward_backward

    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)
            )

        def forward(self, x: Any, y: Any) -> Any:
            return functional.cross_entropy(self.net(x), y)

    return _export_forward_backward(torch.export.export(Training(), (image, torch.tensor([0, 1]))))


x, square = torch.randn(3, 4), torch.randn(4, 4)
image = torch.randn(2, 4, 6, 6)
PROGRAMS: dict[str, Callable[[], Any]] = {
    "convnet": lambda: torch.export.export(
        nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 4, 2, 2)
        ).train(),
        (image,),
    ),
    "attention": lambda: torch.export.export(
        nn.Sequential(GroupedAttention(), GroupedAttention()),
        (torch.randn(2, 6, 32),),
        dynamic_shapes=({0: Dim("batch"), 1: Dim("time", min=2, max=64)},),
    ),
    "attention_strict": lambda: torch.export.export(
        nn.Sequential(GroupedAttention()), (torch.randn(2, 6, 32),), strict=True
    ),
    "attention_core": lambda: torch.export.export(
        GroupedAttention(), (torch.randn(2, 6, 32),), dynamic_shapes=({0: Dim("batch")},)
    ).run_decompositions(),
    "lstm": lambda: torch.export.export(nn.LSTM(4, 5, 2, bidirectional=True), (torch.randn(3, 2, 4),)),
    "branches": lambda: torch.export.export(
        Function(branches), (x, torch.tensor(True)), dynamic_shapes=(({0: Dim("batch")}, None),)
    ),
    "while_loop": lambda: torch.export.export(Function(loop), (square, torch.tensor([3]))),
    "scan": lambda: torch.export.export(
        Function(scanned), (x[0], x), dynamic_shapes=((None, {0: Dim("time")}),)
    ),
    "map": lambda: torch.export.export(Function(mapped), (torch.randn(5, 4, 4), square)),
    "hints": lambda: torch.export.export(Function(hinted), (square,)),
    "checkpoint": lambda: torch.export.export(Function(checkpointed), (x,)),
    "data_dependent": lambda: torch.export.export(
        Function(data_dependent), (torch.tensor([1, 2, 3]),), dynamic_shapes=(({0: Dim("length", min=2)},),)
    ),
    "many_results": lambda: torch.export.export(Function(many_results), (image, image > 0)),
    "joint": joint,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_graph_as_the_saved_file(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]()
    torch.export.save(program, tmp_path / "a.pt2")
    live, saved = from_exported_program(program), load(tmp_path / "a.pt2")
    assert live.origin.producer == saved.origin.producer
    assert told(live) == told(saved)
    assert live.nodes
    assert len(live.nx) == len(live.inputs) + len(live.nodes)


def test_constant_and_keyword_inputs(tmp_path: Path) -> None:
    class Inputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = torch.ones(3)
            self.register_buffer("seen", torch.zeros(3).expand(4, 3))

        def forward(self, a: Any, n: int, word: str, none: None, *, pair: Any, scale: int) -> Any:
            self.seen.add(1)
            return {
                "y": a * n + self.constant + pair["u"] + torch.tensor([1.0, 2.0, 3.0]),
                "n": n,
            }, torch.zeros(scale)

    kwargs = {"pair": {"u": torch.randn(3)}, "scale": 5}
    shapes = {"a": None, "n": None, "word": None, "none": None, "pair": {"u": None}, "scale": Dim.DYNAMIC}
    program = torch.export.export(Inputs(), (torch.randn(3), 2, "w", None), kwargs, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "a.pt2")
    live = from_exported_program(program)
    assert told(live) == told(load(tmp_path / "a.pt2"))
    by_name = {entry.name: entry for entry in live.inputs}
    assert (by_name["b_seen"].role, by_name["c_constant"].role, by_name["pair_u"].role) == (
        "buffer",
        "constant",
        "user",
    )
    assert (live.types["n"], live.types["word"], live.types["none"]) == (2, "w", None)
    assert live.types["b_seen"].stored == 3  # type: ignore[union-attr]
    (scale,) = live.symbols.values()
    assert (scale.hint, scale.where) == (5, ("scale",))


def test_parameters_and_where_they_are_used() -> None:
    graph = from_exported_program(PROGRAMS["attention"]())
    weight = graph.types["p_0_q_weight"]
    assert (str(weight), requires_grad(weight)) == ("float32[32, 32]", True)
    call = next(entry for entry in graph.nodes if entry.name == "linear")
    assert (call.op, call.module, call.module_type) == (
        "aten.linear.default",
        "0.q",
        "torch.nn.modules.linear.Linear",
    )
    assert call.source.startswith("test_live.py:")


def test_joint_graph() -> None:
    graph = from_exported_program(joint())
    roles = [entry.role for entry in graph.outputs]
    assert (roles.count("loss"), roles.count("gradient")) == (1, 6)
    backward = next(entry for entry in graph.nodes if entry.op == "aten.convolution_backward.default")
    assert (backward.module, graph.phases[backward.name]) == ("net.0", "backward")
    assert {
        entry.module for entry in graph.nodes if entry.op in ("aten.addmm.default", "aten.mm.default")
    } == {"net.4"}


def test_a_program_that_torch_cannot_save(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Flex(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu")
            return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    with torch.no_grad():
        program = torch.export.export(Flex(), tuple(torch.randn(1, heads, 256, 16) for heads in (8, 2, 2)))
    with pytest.raises(Exception, match=r"[Ss]erializ|TreeSpec|Unsupported"):
        torch.export.save(program, tmp_path / "a.pt2")
    graph = from_exported_program(program)
    flex = next(entry for entry in graph.nodes if entry.op == "higher_order.flex_attention")
    assert flex.args[:3] == (Ref("q"), Ref("k"), Ref("v"))
    score, block_mask = flex.args[3:5]
    assert isinstance(score, Graph)
    assert isinstance(block_mask, tuple)
    assert block_mask[:2] == (256, 256)
    inner = block_mask[-1]
    assert isinstance(inner, Graph)
    assert [entry.op for entry in inner.nodes] == ["aten.ge.Tensor"]
    assert str(graph.types[flex.outputs[0] or ""]) == "float32[1, 8, 256, 16]"


def test_scalars_carried_by_a_loop() -> None:
    def count(module: Any, x: Any) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x @ x), (0, x))

    graph = from_exported_program(torch.export.export(Function(count), (square,)))
    (node,) = (entry for entry in graph.nodes if entry.op == "higher_order.while_loop")
    assert isinstance(node.args[2], tuple)
    assert node.args[2][0] == 0


@pytest.mark.parametrize("strict", [False, True])
def test_what_a_loop_carries_is_no_longer_what_it_begins_with(strict: bool) -> None:
    """The first turn adds 1 to 0 and 0 to 2; the file rightly records neither 1 nor 2, nor which number comes out."""

    def count(module: Any, x: Any) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda i, j, x: i < 5, lambda i, j, x: (i + 1, j + i, x @ x), (0, 2, x))

    report = analyze(torch.export.export(Function(count), (square,), strict=strict))
    assert report.diagnostics == ()
    (product,) = (row for row in report.rows if "matmul" in row.node)
    n = square.shape[0]
    assert product.cost.matrix_flops == 2 * n**3 * symbol("while_loop_trips_0")


# Capture


@pytest.mark.parametrize("make", [real, meta, fake])
@pytest.mark.parametrize("strict", [False, True])
def test_capture(make: Callable[[], Any], strict: bool, tmp_path: Path) -> None:
    if strict and make is meta and TORCH < (2, 13):
        pytest.skip("dynamo of this torch runs constants of a meta model on the CPU")
    ids = torch.zeros(2, 5, dtype=torch.int64)
    shapes = {"ids": {0: Dim("batch"), 1: Dim("time")}}
    program = capture(make(), (), {"ids": ids}, dynamic_shapes=shapes, strict=strict)
    graph = from_exported_program(program)
    weights = [entry for entry in graph.inputs if entry.role == "parameter"]
    assert sum(not entry.alias_of for entry in weights) == 1
    assert [found.where for found in graph.symbols.values()] == [("ids[0]",), ("ids[1]",)]
    torch.export.save(program, tmp_path / "a.pt2")
    assert told(load(tmp_path / "a.pt2")) == told(graph)


def test_capture_of_a_huge_model() -> None:
    with torch.device("meta"):
        model = nn.Sequential(
            *(nn.Linear(100_000, 100_000, bias=False, dtype=torch.bfloat16) for _ in range(7))
        )
    graph = from_exported_program(capture(model, (torch.zeros(2, 100_000, dtype=torch.bfloat16),)))
    assert [entry.op for entry in graph.nodes] == ["aten.linear.default"] * 7
    assert graph.types["p_0_weight"].dtype is BFLOAT16  # type: ignore[union-attr]
    assert sum(graph.types[e.name].nbytes for e in graph.inputs if e.role == "parameter") == 14 * 10**10  # type: ignore


def test_what_is_passed_along_unread() -> None:
    @torch.library.custom_op("graphflops_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return x.clone()

    @scaled.register_fake
    def _(x: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_like(x)

    function = Function(
        lambda module, x: torch.ops.graphflops_tests.scaled(x, torch.device("cuda:1"), torch.bfloat16)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (node,) = from_exported_program(torch.export.export(function, (x,))).nodes
    assert node.op == "graphflops_tests.scaled.default"
    assert node.args[1:] == (Opaque("cuda:1"), BFLOAT16)
