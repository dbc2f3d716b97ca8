"""Formulas of elementwise gradients against torch: numbers, kernels that autograd launches, and what they allocate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.inductor_prims
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from graphflops.execution.composed_gradients import GRADIENTS
from graphflops.rules.elementwise import WORK, Formula
from graphflops.rules.formula import Launch, launches

ROOT_PI = math.sqrt(math.pi)
NUMBERS = {
    "ln2": math.log(2),
    "ln10": math.log(10),
    "pi": math.pi,
    "infinity": math.inf,
    "epsilon": 1e-7,
    "degree": math.pi / 180,
    "radian": 180 / math.pi,
    "two_by_root_pi": 2 / ROOT_PI,
    "half_root_pi": ROOT_PI / 2,
    "root_half": math.sqrt(0.5),
    "root_two_pi": math.sqrt(2 * math.pi),
    "by_root_two_pi": 1 / math.sqrt(2 * math.pi),
    "root_two_by_pi": math.sqrt(2 / math.pi),
    "cubic": 0.044715,
    "three_cubic": 3 * 0.044715,
    "value": 1,
    "slope": 0.01,
    "beta": 1,
    "threshold": 20,
    "alpha": 1.0,
    "by_alpha": 1.0,
    "scale": 1.0,
    "low": -0.5,
    "high": 0.5,
}
SELU = {"scale": 1.0507009873554805, "alpha": 1.0507009873554805 * 1.6732632423543772}
ATTRIBUTES = {"selu": SELU, "hardtanh": {"low": -1.0, "high": 1.0}, "threshold": {"low": 0.3}}
# Functions of torch that have another name or form than their row.
CALLS: dict[str, Callable[..., Any]] = {
    "where": lambda condition, a, b: torch.where(condition, a, b),
    "masked_fill": lambda a, mask, _: a.masked_fill(mask, 0.0),
    "polygamma": lambda a: torch.polygamma(1, a),
    "threshold": lambda a: functional.threshold(a, 0.3, 0.0),
    "scaled_softplus": functional.softplus,
    "log_sigmoid": functional.logsigmoid,
    "gelu_tanh": lambda a: functional.gelu(a, approximate="tanh"),
    "frexp": lambda a: torch.frexp(a)[0],
    "prelu": torch.ops.aten._prelu_kernel,
    "fma": torch.ops.prims.fma,
}
# No function, no gradient in torch, random numbers or several results.
COMPOSED = {"ndtr", *GRADIENTS}  # of several calls in torch: tests/test_dispatched_calls.py
LEFT_OUT = {"heaviside", "rrelu", "rrelu_with_noise", "glu", "fake_quantize", "standard_gamma"}
CONSTANT = {"floor", "ceil", "trunc", "round", "sign", "sgn", "floor_divide"}  # whose gradient is zero
NO_FUNCTION = {
    "logical_or_": torch.logical_or,
    "logical_not_": torch.logical_not,
    "masked_fill": torch.masked_fill,
}
MASK = {"where": 0, "masked_fill": 1}  # the operand that holds truth values


def function(name: str) -> Callable[..., Any]:
    found = [space for space in (torch, torch.special, functional) if hasattr(space, name)]
    return CALLS.get(name) or getattr(found[0], name)


def evaluated(text: str, given: dict[str, Any], name: str) -> torch.Tensor:
    """The value of a formula, computed by torch."""
    *statements, last = text.split("; ")
    names = {
        **{each: function(each) for each in WORK if hasattr(torch, each) or hasattr(torch.special, each)}
    }
    names |= {
        "where": lambda condition, a, b: torch.where(torch.as_tensor(condition), a, b),
        "polygamma": lambda a: torch.polygamma(2 if name == "polygamma" else 1, a),
        "masked_fill": torch.masked_fill,
        "masked_fill_": torch.masked_fill,
        "logical_or_": torch.logical_or,
        "logical_and_": torch.logical_and,
        "logical_not_": torch.logical_not,
        "pow": torch.pow,
        "exp2": (lambda out: given["scale_of_mantissa"]) if name == "frexp" else torch.exp2,
    }
    names |= {**NUMBERS, **ATTRIBUTES.get(name, {}), **given}
    for statement in statements:
        left, _, right = statement.partition(" = ")
        names[left] = eval(chained(right), names)
    return eval(chained(last), names)


def chained(text: str) -> str:
    """Chains of comparisons as torch takes them."""
    for sign in ("<", "<="):
        for low, high in (("low", "high"), ("-3", "3")):
            text = text.replace(f"{low} {sign} a {sign} {high}", f"({low} {sign} a) & (a {sign} {high})")
    return text


CASES = [
    (name, place)
    for name, work in WORK.items()
    for place, formula in enumerate(work.formulas)
    if formula is not None and name not in LEFT_OUT | CONSTANT and MASK.get(name) != place
    if (name, place) not in {("copysign", 1), ("masked_fill", 2)}
]


class Allocations(TorchDispatchMode):
    """The calls of autograd that compute something, and the bytes of tensors that they make."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.nbytes: list[int] = []
        self.seen: set[int] = set()

    def __torch_dispatch__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = called(*args, **(kwargs or {}))
        is_view = any(
            x.alias_info is not None and not x.alias_info.is_write for x in called._schema.arguments
        )
        name = called._schema.name.removeprefix("aten::")
        if not is_view and name not in ("detach", "empty_like"):
            self.launched.append(name)
        for tensor in out if isinstance(out, tuple) else (out,):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.seen and not is_view and not name.endswith("_"):
                self.nbytes.append(storage.nbytes())
        return out


def operands_of(name: str) -> list[torch.Tensor]:
    made = [
        torch.rand(8, 16, generator=torch.Generator().manual_seed(place)) + 0.1
        for place in range(WORK[name].operands)
    ]
    made = [x * 0.8 for x in made] if name != "acosh" else [x + 1 for x in made]
    return [x > 0.5 if place == MASK.get(name) else x for place, x in enumerate(made)]


@pytest.mark.parametrize(("name", "place"), CASES)
def test_formulas_are_the_gradients_of_torch(name: str, place: int) -> None:
    operands = [x.double() if x.is_floating_point() else x for x in operands_of(name)]
    operands[place].requires_grad_()
    out = function(name)(*operands)
    g = torch.linspace(0.5, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    (expected,) = torch.autograd.grad(out, operands[place], g)
    given = {**dict(zip("abc", [x.detach() for x in operands], strict=False)), "g": g, "out": out.detach()}
    if name == "frexp":
        given["scale_of_mantissa"] = operands[0].detach() / out.detach()
    formula = WORK[name].formulas[place]
    assert formula is not None
    for text in filter(None, (formula.text, formula.launched)):
        torch.testing.assert_close(evaluated(text, given, name), expected, rtol=1e-6, atol=1e-9)


def allocated(formula: Formula) -> int:
    """Bytes that the kernels of a formula allocate, for 8 x 16 elements of four bytes."""
    found = launches(formula.launched or formula.text)
    sizes = [
        8 * 16 if launch.is_mask else 8 * 16 * 4
        for launch in found
        if launch.leaves and not launch.is_in_place
    ]
    return sum(sizes) + 4 * sum(not launch.leaves for launch in found)


@pytest.mark.parametrize(("name", "place"), [case for case in CASES if case[0] not in COMPOSED])
def test_launches_and_allocations_are_those_of_torch(name: str, place: int) -> None:
    operands = operands_of(name)
    operands[place].requires_grad_()
    out = function(name)(*operands)
    with Allocations() as found:
        torch.autograd.grad(out, operands[place], torch.ones_like(out))
    formula = WORK[name].formulas[place]
    assert formula is not None
    found.launched.remove("ones_like")
    ours = ["one"] if formula.is_fused else list(launches(formula.launched or formula.text))
    assert len(ours) == len(found.launched), (found.launched, ours)
    if not formula.is_fused:
        joined = 8 * 16 if (name, place) == ("clamp", 0) else 0  # two masks; in place where no mode looks on
        assert allocated(formula) + joined == sum(found.nbytes) - out.nbytes, (found.nbytes, ours)


@pytest.mark.parametrize("name", sorted(CONSTANT - {"floor_divide", "sgn"}))
def test_gradients_that_are_zero_are_written_once(name: str) -> None:
    x = torch.rand(8, 16, requires_grad=True)
    with Allocations() as found:
        torch.autograd.grad(function(name)(x), x, torch.ones(8, 16))
    assert found.launched[-1] == "zeros_like"
    assert launches("0") == (Launch("fill", leaves=frozenset("g")),)


@pytest.mark.parametrize(
    ("formula", "numbers", "functions"),
    [
        (
            "where(b == 0, 0, g * (b * pow(a, b - 1)))",
            {"b": 3},
            "pow mul mul",
        ),  # an exponent that is known to be no zero
        ("where(b == 0, 0, g * (b * pow(a, b - 1)))", {"b": 0}, "fill"),
        ("where(logical_and(a >= b, a <= c), g, 0)", {"b": 0.0, "c": None}, "ge fill where"),  # one bound
        ("where(logical_and(a >= b, a <= c), g, 0)", {"b": None, "c": None}, ""),
        ("g * (1 - c)", {"c": 0.5}, "mul"),
    ],
)
def test_numbers_take_no_kernels(formula: str, numbers: dict[str, object], functions: str) -> None:
    found = launches(formula, tuple(numbers.items()))
    assert " ".join(launch.function for launch in found) == functions
