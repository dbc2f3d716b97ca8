"""The step of an optimizer: against torch.optim, whose live tensors are watched, and against numbers by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphflops.passes.optimizer import Parameter, trained_inputs, update
from graphflops.tensor import BFLOAT16, FLOAT32, TensorType
from graphflops.training import Training
from tests.one_call import g
from tests.support import t
from tests.time.test_launches_by_hand import node, program

# In this order a large parameter follows a large one, and there are two element types.
SHAPES = [(40, 30), (50, 70), (64,), (16, 8, 3, 3), (300,), (20, 60)]
DTYPES = [torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, **how: torch.optim.SGD(parameters, momentum=0.9, **how),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}
HOW = {"foreach": {"foreach": True}, "single": {"foreach": False}, "fused": {"fused": True}}


class Watch(TorchDispatchMode):
    """The most bytes of tensors made by operators that are alive together; tensors of one row or number are left out."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.live, self.peak, self.seen = least, 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            x.untyped_storage()._cdata
            for x in torch.utils._pytree.tree_leaves(args)
            if isinstance(x, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or tensor.nbytes < self.least:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in given or storage._cdata in self.seen:
                continue
            self.seen.add(storage._cdata)
            self.live += tensor.nbytes
            weakref.finalize(tensor, self.free, storage._cdata, tensor.nbytes)
        self.peak = max(self.peak, self.live)
        return result

    def free(self, key, nbytes):
        self.seen.discard(key)
        self.live -= nbytes


def parameters(shapes=SHAPES, dtypes=DTYPES):
    made = [
        torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def types(tensors):
    named = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}
    return [Parameter(f"p{i}", TensorType(tuple(x.shape), named[x.dtype])) for i, x in enumerate(tensors)]


def watched(optimizer, least):
    optimizer.step()  # the first step makes the state
    gc.collect()
    with Watch(least) as watch:
        optimizer.step()
    return watch.peak


def total(buffers):
    return sum(buffer.bytes for buffer in buffers)


@pytest.mark.parametrize("how", ["foreach", "single", "fused"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_and_temporaries_are_those_of_torch(name, how):
    if (name, how) == ("adafactor", "fused"):
        pytest.skip("torch has no fused Adafactor")
    tensors = parameters()
    optimizer = OPTIMIZERS[name](tensors, lr=1e-3, **HOW[how])
    peak = watched(optimizer, 1000)
    found = update(Training(optimizer=name, implementation=how), types(tensors))
    kept = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    on_device = [x for x in kept if x.numel() > 1 or (how == "fused" and x.numel() == 1)]
    assert total(found.state) == sum(x.nbytes for x in on_device)
    assert total(buffer for buffer in found.temporaries if buffer.bytes >= 1000) == peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_updates_matrices_and_adamw_the_rest(dtype):
    matrices = parameters([(64, 96), (96, 80)], [dtype] * 2)
    peak = watched(torch.optim.Muon(matrices), 1000)
    found = update(Training(optimizer="muon"), types(matrices))
    assert total(found.temporaries) == peak
    assert total(found.state) == sum(x.nbytes for x in matrices)
    rest = update(Training(optimizer="muon"), types(parameters([(7,)], [dtype])))
    assert rest == update(Training(optimizer="adamw"), types(parameters([(7,)], [dtype])))


def test_the_work_of_muon_is_that_of_its_products():
    found = update(Training(optimizer="muon"), types(parameters([(8, 4)], [torch.bfloat16]))).cost
    assert found.matrix_flops == 5 * (2 * 4 * 8 * 4 + 2 * 4 * 4 * 4 + 2 * 4 * 4 * 8)


@pytest.mark.parametrize(
    ("name", "flops", "read", "written"),
    [("none", 0, 0, 0), ("sgd", 2, 2, 1), ("momentum", 4, 3, 2), ("adam", 12, 4, 3), ("adamw", 13, 4, 3)],
)
def test_work_and_traffic(name, flops, read, written):
    found = update(Training(optimizer=name), types(parameters([(10, 10)], [torch.float32]))).cost
    assert found.vector_flops == 100 * flops
    assert (found.read_bytes, found.written_bytes) == (400 * read, 400 * written)


def test_adafactor_keeps_a_row_and_a_column():
    found = update(Training(optimizer="adafactor"), types(parameters([(6, 5, 4)], [torch.float32])))
    assert [buffer.bytes for buffer in found.state] == [6 * 5 * 4, 6 * 4 * 4]
    assert found.cost.matrix_flops == 2 * 6 * 5 * 4


def test_foreach_adafactor_has_the_mean_of_each_matrix_beside_the_updates():
    """Of a convolution, a mean for each pair of channels; of a matrix, one number. As measured of ResNet-50 on an H200."""
    training = Training(optimizer="adafactor", implementation="foreach")
    found = update(training, types(parameters([(6, 5, 3, 3), (7, 2)], [torch.float32, torch.float32])))
    assert sum(buffer.bytes for buffer in found.temporaries) == 4 * (6 * 5 * 3 * 3 + 7 * 2) + 4 * (6 * 5 + 1)


@pytest.mark.parametrize(
    ("name", "roots"), [("sgd", 0), ("momentum", 0), ("adam", 1), ("adamw", 1), ("adafactor", 1)]
)
def test_roots_of_second_moments(name, roots):
    found = update(Training(optimizer=name), types(parameters([(10, 10)], [torch.float32]))).cost
    assert found.transcendentals == 100 * roots


def test_work_and_traffic_of_adafactor():
    """Of a matrix of 6 x 5 the moments are a column of 6 and a row of 5, whose product is read for each element."""
    found = update(Training(optimizer="adafactor"), types(parameters([(6, 5)], [torch.float32]))).cost
    size, moments = 4 * 30, 4 * (6 + 5)
    assert (found.vector_flops, found.matrix_flops) == (13 * 30, 2 * 30)
    assert (found.read_bytes, found.written_bytes) == (2 * size + moments, size + moments)


def test_work_and_traffic_of_muon():
    """Five steps in bfloat16, each of a Gram matrix of 4 x 4, its square, and a product with the iterate of 4 x 8."""
    found = update(Training(optimizer="muon"), types(parameters([(8, 4)], [torch.float32]))).cost
    gram, iterate, size = 16, 32, 4 * 32
    assert found.vector_flops == 12 * 32 + 5 * (gram + iterate)
    assert found.read_bytes == 3 * size + 5 * 2 * (2 * iterate + 2 * gram)
    assert found.written_bytes == 2 * size + 5 * 2 * (iterate + 2 * gram)
    assert found.transcendentals == 0


def test_parameters_that_a_step_trains() -> None:
    """Those that want a gradient and that a call with one reads: here neither a frozen one nor one that is not used."""
    given = {"x": g(4, 8), "w": g(8, 6), "frozen": t(8, 6), "unused": g(8, 6)}
    calls = (
        node("a", "mm.default", "x", "w"),
        node("b", "mm.default", "x", "frozen"),
        node("y", "add.Tensor", "a", "b"),
    )
    priced = program(*calls, given=given, parameters=("w", "frozen", "unused"))
    assert trained_inputs(priced) == ["w"]
