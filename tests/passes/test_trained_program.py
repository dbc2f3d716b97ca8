"""The program of a training step: frozen parts, gradients of inputs, adapters, precision, the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphflops import Training, analyze
from graphflops.base.patterns import modules_around
from graphflops.errors import ModelError

B, D, H, C = 8, 16, 64, 10


class Net(torch.nn.Module):
    """Two linear layers with a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(D, H, bias=False)
        self.norm = torch.nn.LayerNorm(H)
        self.last = torch.nn.Linear(H, C, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).relu())


class Tied(torch.nn.Module):
    """An embedding whose weight is that of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(C, D)
        self.head = torch.nn.Linear(D, C, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def step(module=None, inputs=None, **options):
    module = Net() if module is None else module
    inputs = (torch.randn(B, D),) if inputs is None else inputs
    return analyze(torch.export.export(module, inputs), training=Training(**options))


FIRST, LAST = 2 * B * D * H, 2 * B * H * C


@pytest.mark.parametrize(
    ("options", "flops"),
    [
        ({}, FIRST + 2 * LAST),  # the input wants no gradient
        ({"freeze": "first"}, 2 * LAST),
        ({"freeze": "first.weight"}, 2 * LAST),
        ({"freeze": ("first", "norm")}, LAST),
        ({"freeze": "last"}, FIRST + LAST),
        ({"grad_inputs": "x"}, 2 * FIRST + 2 * LAST),
        ({"grad_inputs": "x", "freeze": "**"}, FIRST + LAST),
    ],
)
def test_only_what_is_trained_has_a_gradient(options, flops):
    assert step(**options).backward.cost.matrix_flops == flops


def test_an_input_that_the_program_records_as_wanting_a_gradient_gets_one(tmp_path):
    program = torch.export.export(Net(), (torch.randn(B, D, requires_grad=True),))
    torch.export.save(program, tmp_path / "net.pt2")
    for model in (program, tmp_path / "net.pt2"):
        report = analyze(model, training=Training())
        assert report.backward.cost.matrix_flops == 2 * FIRST + 2 * LAST


def test_a_tied_weight_is_frozen_under_either_name():
    for name in ("embed", "head.weight"):
        report = step(Tied(), (torch.arange(4),), freeze=name)
        assert report.backward.cost.matrix_flops == 0
        assert report.optimizer.cost.vector_flops == 0


def test_an_adapter_is_two_products_and_alone_is_trained():
    report = step(lora_rank=4, lora_modules="last")
    assert report.parameters == D * H + 2 * H + H * C + 4 * (H + C)
    assert report.totals.cost.matrix_flops == FIRST + LAST + 2 * B * 4 * (H + C)
    # Of both factors the weight's gradient; of the second factor its operand's too. Nothing below wants one.
    assert report.backward.cost.matrix_flops == 2 * B * 4 * (H + C) + 2 * B * 4 * C
    assert report.optimizer.cost.vector_flops == 13 * 4 * (H + C)


def test_autocast_converts_products_and_their_operands():
    report = step(precision="bf16-mixed")
    casts = [row for row in report.rows if row.op == "aten._to_copy.default"]
    # x, the first weight, what the norm takes back to float32, its result, the last weight.
    assert [row.outputs[0].type.numel for row in casts] == [B * D, D * H, B * H, B * H, H * C]
    assert {row.matrix_dtype for row in report.rows if row.cost.matrix_flops != 0} == {"bfloat16"}
    assert report.parameter_bytes == 4 * (D * H + 2 * H + H * C)
    (norm,) = [row for row in report.rows if row.op == "aten.layer_norm.default"]
    assert norm.outputs[0].type.dtype.name == "float32"


def test_autocast_converts_inside_a_cross_entropy():
    """`cross_entropy_loss` of ATen asks `log_softmax` for the operand's type, and autocast `nll_loss` for float32."""

    class Classes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(D, 4096, bias=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layer(x), y)

    rows, wide = 64, 64 * 4096
    program = torch.export.export(Classes(), (torch.randn(rows, D), torch.zeros(rows).long()))
    report = analyze(program, device="h200", training=Training(precision="bf16-mixed"), execution="eager")
    assert [(row.op, row.outputs[0].type.dtype.name) for row in report.rows[-3:]] == [
        ("aten.log_softmax.int", "bfloat16"),
        ("aten._to_copy.default", "float32"),
        ("aten.nll_loss_nd.default", "float32"),
    ]
    # Logarithms, their copy, which nll_loss keeps, and its gradient; x in both types, y and the loss.
    assert report.step().peak_bytes == (2 + 4 + 4) * wide + (2 + 4) * rows * D + 8 * rows + 4


def test_a_smoothed_cross_entropy_is_one_call():
    class Smooth(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(x * self.scale, y, label_smoothing=0.1)

    program = torch.export.export(Smooth(), (torch.randn(4, 8), torch.zeros(4).long()))
    report = analyze(program, training=Training(precision="bf16-mixed"))
    assert report.rows[-1].op == "aten.cross_entropy_loss.default"


def test_a_weight_used_twice_is_converted_once():
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(D, D, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    report = step(Twice(), precision="bf16-mixed")
    casts = [row for row in report.rows if row.op == "aten._to_copy.default"]
    assert [row.outputs[0].type.shape for row in casts] == [(B, D), (D, D)]


def test_branches_that_share_a_weight_each_convert_it():
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(D, D, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.cond(x.sum() > 0, lambda x: self.layer(x) + 1, lambda x: self.layer(x), (x,))
            return self.layer(x)

    report = step(Branching(), precision="bf16-mixed")
    products = [row for row in report.rows if row.cost.matrix_flops != 0]
    assert [(row.matrix_dtype, row.cost.matrix_flops) for row in products] == [
        ("bfloat16", 2 * B * D * D)
    ] * 2
    weights = [
        row
        for row in report.rows
        if row.op == "aten._to_copy.default" and row.cost.written_bytes == 2 * D * D
    ]
    assert len(weights) == 2  # one in the branch that is counted, one outside


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2)])
def test_a_program_at_another_precision_is_the_same_as_exported_so(precision, width):
    dtype = {4: torch.float32, 2: torch.bfloat16}[width]
    for own in (torch.float32, torch.bfloat16):
        report = step(Net().to(own), (torch.randn(B, D, dtype=own),), precision=precision)
        exported = step(Net().to(dtype), (torch.randn(B, D, dtype=dtype),))
        assert report.parameter_bytes == width * (D * H + 2 * H + H * C)
        assert report.step() == exported.step()


def test_the_loss_has_a_float32_copy_of_the_logits():
    report = step(Net().bfloat16(), (torch.randn(B, D, dtype=torch.bfloat16),), loss="cross-entropy")
    copy, loss = report.rows[-2:]
    assert (copy.op, copy.outputs[0].type.dtype.name) == ("aten._to_copy.default", "float32")
    assert (loss.op, [named.type.shape for named in loss.inputs]) == (
        "aten.cross_entropy_loss.default",
        [(B, C), (B,)],
    )


def test_a_program_with_its_own_backward_is_not_trained_again():
    with pytest.raises(ModelError, match="holds its gradients already"):
        analyze(Path(__file__).parents[2] / "samples" / "training_step.pt2", training=True)


def test_a_loss_is_added_to_a_program_that_has_its_names():
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(D, C)

        def forward(self, labels: torch.Tensor, loss: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
            return self.layer(labels + loss + plain)

    program = torch.export.export(Named(), tuple(torch.randn(B, D) for _ in range(3)))
    report = analyze(program, training=Training(loss="cross-entropy"))
    assert len(report.inputs) == 4
    assert report.rows[-1].op == "aten.cross_entropy_loss.default"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"freeze": "encoder"}, "--freeze encoder matches nothing; the model has first.weight, norm.weight"),
        (
            {"lora_rank": 8, "lora_modules": "q_proj"},
            "--lora q_proj matches nothing; the model has first, last",
        ),
        ({"grad_inputs": "y"}, "--grad-input y: no such input; inputs are x"),
    ],
)
def test_what_is_not_in_the_model(options, problem):
    with pytest.raises(ModelError, match=problem):
        step(**options)


def test_an_integer_input_has_no_gradient():
    with pytest.raises(ModelError, match=r"--grad-input ids: an input of int64\[4\] has no gradient"):
        step(Tied(), (torch.arange(4),), grad_inputs="ids")


def test_micro_steps_add_up_and_keep_the_gradients_of_earlier_ones():
    module, inputs = torch.nn.Linear(D, C, bias=False), (torch.randn(B, D),)
    one, three = step(module, inputs), step(module, inputs, accumulate=3)
    product = 2 * B * D * C
    assert (one.step().cost.matrix_flops, three.step().cost.matrix_flops) == (2 * product, 6 * product)
    assert three.step().cost.vector_flops == one.step().cost.vector_flops == 13 * D * C
    # The weight's gradient of a micro-step is there beside the sum of the earlier ones.
    assert three.step().peak_bytes - one.step().peak_bytes == 4 * D * C


class Large(torch.nn.Module):
    """A head whose weight is that of a large embedding, in either order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5000, D)

    def forward(self, ids: torch.Tensor, others: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(ids)
        weight = self.embed.weight
        return torch.nn.functional.linear(x, weight) if others is None else x * self.embed(others)


def test_gradients_of_a_tied_weight_are_added_up():
    weight = 5000 * D * 4
    ids = torch.arange(2)

    def copies(inputs: tuple[torch.Tensor, ...], execution: str) -> int:
        program = torch.export.export(Large(), inputs)
        peak = analyze(program, training=Training(optimizer="none"), execution=execution).backward.peak_bytes
        return round(peak / weight, 1)

    # The product's gradient is a transposed view in PyTorch, to which nothing is added in place: there is a third tensor.
    assert copies((ids,), "eager") == 3.1  # with the result, 2 x 5000
    assert copies((ids,), "graph") == 2.1
    assert copies((ids, ids), "eager") == 2


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"lora_rank": 4}, "--lora"),
        ({"precision": "bf16"}, "--precision"),
        ({"loss": "cross-entropy"}, "--loss"),
    ],
)
def test_options_that_add_calls_need_a_program_of_torch(options, option):
    with pytest.raises(ModelError, match=rf"{option}.* takes a program of torch\.export"):
        analyze("samples/gqa_transformer.onnx", training=Training(**options))


def test_a_model_without_linear_layers():
    with pytest.raises(ModelError, match=r"--lora \*\* matches nothing; the model has no linear layers"):
        step(torch.nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 8, 8),), lora_rank=4)


def test_of_a_path_of_absurd_length_a_hundred_modules_around_are_known():
    assert modules_around("blocks.0.up") == ["blocks", "blocks.0"]
    assert len(modules_around("m." * 100_000 + "m")) == 100
