"""What exporters do to a program that changes no work is no fault: one small module for each of these."""

from __future__ import annotations

from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402

from graphflops.comparison.models import compare  # noqa: E402
from tests.oracle.export_models import quiet  # noqa: E402
from tests.torch_tables import onnx_export  # noqa: E402


class Named(nn.Sequential):
    """Modules whose names are no identifiers, with a norm that is folded, so that only names tell the weight."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)]
        super().__init__(
            OrderedDict({"block-0": nn.Sequential(OrderedDict(zip(("Conv", "Norm"), layers, strict=True)))})
        )


class Positions(nn.Module):
    """A table cut to the length, which is open: in ONNX the cut depends on the shape of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.out = nn.Linear(8, 3)
        self.register_buffer("index", torch.arange(16)[None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.table(self.index[:, : x.shape[1]]))


class Angles(nn.Module):
    """A product of sizes and constants alone."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.rand(1, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return self.out(x * (places @ self.frequencies).cos())


class Token(nn.Module):
    """A parameter that is repeated for a batch that is fixed: the exporter stores it repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 1, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1))


class Unused(nn.Module):
    """A product on which no result depends, as a pooler whose result the caller drops."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.pooler = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.pooler(x[:, 0])
        return self.out(x)


class Split(nn.Module):
    """Results of a split, which an export that was not optimized keeps in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(8, 12)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).split(6, -1)
        return self.out(a * b)


class Twins(nn.Module):
    """Two norms of one value that were never trained: the exporter keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.a, self.b = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.first(x)) + self.b(self.second(x))


class Cell(nn.Module):
    """A recurrent cell from a state of zeros: in ONNX its first step has a product of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 6)
        for step in range(2):
            state = self.cell(x[:, step], state)
        return state


class Decay(nn.Module):
    """One value that is computed from a parameter twice."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.maximum(-self.decay.exp()) * x.cos().maximum(-self.decay.exp()))


class Part(nn.Module):
    """A table without its first row: the exporter stores what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(1, 6, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.table[:, 1:])


class Layers(nn.Module):
    """Layers with norms that were never trained: a file that records no module has them all in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x)).tanh()
        return x


class Response(nn.Module):
    """A scale and a shift of zeros with axes of one, as ConvNeXt has them: the exporter keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.zeros(1, 1, 8)) for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.scale * x.square() + self.shift + x)


class Gains(nn.Module):
    """Two scales of one module that begin at the same number, as LayerScale does: the exporter keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((8,), 1e-5)) for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.first * x.square() + self.second * x.tanh())


SEQUENCE, OPEN = (2, 5, 8), {1: Dim("length", min=2, max=16)}
CASES = {
    "names": (Named, (2, 3, 6, 6), None, {"shifts_left_out": ("block-0.Norm",)}),
    "positions": (Positions, SEQUENCE, OPEN, {}),
    "angles": (Angles, SEQUENCE, OPEN, {}),
    "token": (Token, SEQUENCE, None, {}),
    "unused": (Unused, SEQUENCE, None, {"unused_left_out": ("linear",)}),
    "split": (Split, SEQUENCE, {0: Dim("batch", min=2, max=16)}, {}),
    "twins": (Twins, SEQUENCE, None, {"zeros_left_out": ("second_weight", "second_bias")}),
    "response": (Response, SEQUENCE, None, {"weights_shared": ("scale", "shift")}),
    "gains": (Gains, SEQUENCE, None, {"weights_shared": ("first", "second")}),
    "cell": (Cell, SEQUENCE, {0: Dim("batch", min=2, max=16)}, {}),
    "decay": (Decay, SEQUENCE, None, {}),
    "part": (Part, SEQUENCE, None, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_no_alarm(name, tmp_path):
    make, shape, axes, said = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    with quiet(), torch.no_grad():
        program = torch.export.export(model, (torch.rand(shape),), dynamic_shapes=axes and (axes,))
        torch.export.save(program, tmp_path / "a.pt2")
        onnx_export(program, None, tmp_path / "a.onnx", dynamo=True, optimize=name != "split")
    found = compare(tmp_path / "a.pt2", tmp_path / "a.onnx")
    assert found.same, found.ledger
    told = {entry.kind: entry.names for entry in found.ledger}
    assert {kind: told.get(kind) for kind in said} == said


def optimized(source, path):
    """What onnxruntime makes of a file: its modules are lost."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    runtime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def test_an_optimized_export_keeps_the_work_and_faults_in_it_are_found(tmp_path):
    import onnx

    from tests.compare.faults import dropped_bias

    torch.manual_seed(0)
    model = Layers().eval()
    with quiet(), torch.no_grad():
        program = torch.export.export(model, (torch.rand(SEQUENCE),))
        torch.export.save(program, tmp_path / "a.pt2")
        onnx_export(program, None, tmp_path / "a.onnx", dynamo=True)
    optimized(tmp_path / "a.onnx", tmp_path / "b.onnx")
    found = compare(tmp_path / "a.pt2", tmp_path / "b.onnx")
    assert found.same, found.ledger
    damaged = onnx.load(tmp_path / "b.onnx")
    dropped_bias(damaged)
    onnx.save(damaged, tmp_path / "c.onnx")
    assert not compare(tmp_path / "a.pt2", tmp_path / "c.onnx").same


class Around(nn.Module):
    """A module that only calls another one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_export_of_a_module_around_the_program_has_the_same_parameters(depth, tmp_path):
    import onnx

    from tests.compare.faults import dropped_bias

    torch.manual_seed(0)
    model, around = Layers().eval(), Layers().eval()
    around.load_state_dict(model.state_dict())
    for _ in range(depth):
        around = Around(around)
    with quiet(), torch.no_grad():
        for name, module in (("inner", model), ("outer", around)):
            program = torch.export.export(module, (torch.rand(SEQUENCE),))
            torch.export.save(program, tmp_path / f"{name}.pt2")
            onnx_export(program, None, tmp_path / f"{name}.onnx", dynamo=True)
    optimized(tmp_path / "outer.onnx", tmp_path / "optimized.onnx")
    damaged = onnx.load(tmp_path / "optimized.onnx")
    dropped_bias(damaged)
    onnx.save(damaged, tmp_path / "damaged.onnx")
    plain = compare(tmp_path / "inner.pt2", tmp_path / "inner.onnx")
    assert plain.same
    for old, new in (("inner.pt2", "outer.onnx"), ("outer.pt2", "inner.onnx")):
        found = compare(tmp_path / old, tmp_path / new)
        assert found.same, found.ledger
        assert [entry.kind for entry in found.ledger] == [entry.kind for entry in plain.ledger]
        assert [change.path for change in found.modules] == [change.path for change in plain.modules]
    assert compare(tmp_path / "inner.pt2", tmp_path / "optimized.onnx").same
    assert not compare(tmp_path / "inner.pt2", tmp_path / "damaged.onnx").same
