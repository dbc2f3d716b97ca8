"""A budget as it is read: what it may hold, and what is said where it is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphflops.budget import limits
from graphflops.errors import FileError
from graphflops.training import Training

WHOLE = """
models = ["models/**/*.onnx", "lm.pt2"]
baseline = "costs.json"

[[budget]]
matrix_flops = ["2 GFLOP", "+2 % or 1 MFLOP"]
parameters = 7_000_000
coverage = "100 %"
forbid = "aten.nonzero"
unknown = ["mylib.*"]

[[budget]]
models = "lm.pt2"
dims = {s1 = 8, "ids[0]" = 1}
inputs = {ids = [1, 128]}
training = true
peak_bytes = "512 MiB"
modules."blocks.*".macs = "1 GMAC"
"""


def test_a_whole_budget() -> None:
    budget = limits.parse(WHOLE.encode(), "here/graphflops.toml")
    assert budget.folder == "here"
    assert budget.baseline_path == "here/costs.json"
    every, lm = budget.budgets
    ((_, of_model),) = every.limits
    assert [(limit.quantity, limit.relative) for limit in of_model] == [
        ("matrix_flops", False),
        ("matrix_flops", True),
        ("parameters", False),
    ]
    assert of_model[0].most == 2 * 10**9
    assert every.coverage == 1
    assert (every.forbid, every.unknown) == (("aten.nonzero",), ("mylib.*",))
    assert every.relative
    assert every.applies("anything")
    assert not lm.relative
    assert lm.applies("lm.pt2")
    assert not lm.applies("models/lm.pt2")
    assert str(lm.sizes) == "ids[0]=1 s1=8 ids=1,128 training"
    (_, of_model), (pattern, (module,)) = lm.limits
    assert of_model[0].most == 512 * 2**20
    assert (pattern, module.quantity, module.most) == ("blocks.*", "macs", 10**9)


def test_without_what_is_relative() -> None:
    (budget,) = limits.parse(b'[[budget]]\nmacs = ["1 G", "+1 %"]\nmodules."a".macs = "+1 %"', "x").budgets
    assert budget.relative
    rest = budget.absolute()
    assert not rest.relative
    assert [limit.text for _, limits in rest.limits for limit in limits] == ["1 G"]


@pytest.mark.parametrize(
    "text, says",
    [
        ("[[budget]", "no TOML: "),
        (
            "a." * 100_000 + "b = 1",
            "no TOML: a key of more than 64 parts",
        ),  # each prefix of it would be stored
        ("[" + "a." * 100_000 + "b]", "no TOML: a key of more than 64 parts"),
        (f"[[budget]]\nmatrix_flops = {'9' * 5_000}", "no TOML: "),
        ("", "budget: holds no limits"),
        ("budgets = 1", "unknown field `budgets`; known are budget, models, baseline"),
        ("[[budget]]\nmatrix_flop = 1", "budget[0]: Object contains unknown field `matrix_flop`"),
        ("[[budget]]\n[[budget]]\nmacs = 'x'", "budget[1].macs: 'x' is no number of MACs: write"),
        ("[[budget]]\nmatrix_flops = ['1', '+x']", "budget[0].matrix_flops: 'x' is no number of FLOPs"),
        ("[[budget]]\nmatrix_flops = true", "budget[0].matrix_flops: Expected"),
        ("[[budget]]\ncoverage = '1'", "budget[0].coverage: '1' is no percentage"),
        ("[[budget]]\ndims = {s1 = 'x'}", "budget[0].dims[...]: Expected `int`"),
        (
            "[[budget]]\nmodules.'a.b'.macs = '1 B'",
            "budget[0].modules.\"a.b\".macs: '1 B' is no number of MACs",
        ),
        ("[[budget]]\nmodules.a.peak_bytes = 1", "unknown field `peak_bytes`; known are matrix_flops"),
        ("[[budget]]\nmodules.\"\\u001b\".macs = 'x'", 'modules."\\x1b".macs'),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(text: str, says: str) -> None:
    with pytest.raises(FileError) as error:
        limits.parse(text.encode(), "graphflops.toml")
    said = str(error.value)
    assert said.startswith("graphflops.toml: ")
    assert said.isprintable()
    assert says in said


def test_a_budget_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"graphflops.toml: no such budget$"):
        limits.read(str(tmp_path / "graphflops.toml"))


def test_models_by_pattern(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx", "deep/c.onnx", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "graphflops.toml").write_text('models = ["**/*.onnx"]\n[[budget]]\nmacs = 1')
    budget = limits.read(str(tmp_path / "graphflops.toml"))
    found = budget.files()
    assert [budget.name_of(path) for path in found] == ["a.onnx", "b.onnx", "deep/c.onnx"]
    (tmp_path / "graphflops.toml").write_text('models = "*.pt2"\n[[budget]]\nmacs = 1')
    with pytest.raises(FileError, match=r"no file matches \*\.pt2"):
        limits.read(str(tmp_path / "graphflops.toml")).files()


def test_a_budget_for_no_model_limits_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    file = tmp_path / "graphflops.toml"
    file.write_text('models = "*.onnx"\n[[budget]]\nmacs = 1\n[[budget]]\nmodels = "b.onnx"\nmacs = 1')
    with pytest.raises(FileError, match=r"budget\[1\]\.models: none of the models matches b\.onnx"):
        limits.read(str(file)).files()


STEP = 'optimizer = "sgd", recompute = ["layers.*"]'


def test_a_training_step_with_options() -> None:
    (entry,) = limits.parse(
        b"[[budget]]\nmatrix_flops = '1 GFLOP'\ntraining = {%s}" % STEP.encode(), "b.toml"
    ).budgets
    assert entry.sizes.training == Training(optimizer="sgd", recompute="layers.*")
    assert str(entry.sizes) == "training optimizer=sgd recompute=layers.*"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('optimizer = "lion"', "budget[0].training: optimizer: no 'lion'"),
        ("steps = 4", "budget[0].training.steps: no option of a training step: optimizer, implementation"),
        ("freeze = 1", "budget[0].training: freeze holds names of the model"),
    ],
)
def test_wrong_options_of_a_training_step(table: str, says: str) -> None:
    with pytest.raises(FileError, match=re.escape(says)):
        limits.parse(b"[[budget]]\nmatrix_flops = '1 GFLOP'\ntraining = {%s}" % table.encode(), "b.toml")


def test_the_default_step_is_that_of_true() -> None:
    (entry,) = limits.parse(b"[[budget]]\nmatrix_flops = '1 GFLOP'\ntraining = {}", "b.toml").budgets
    assert entry.sizes.training is True
