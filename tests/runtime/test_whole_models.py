"""Whole models of hundreds of stored tensors run and agree call by call, in each form of file that torch writes."""

from __future__ import annotations

import resource
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch._export.serde.serialize import serialize

import graphflops
from graphflops.analysis import as_graph
from graphflops.cli import main
from tests.runtime.whole_models import MODELS

pytestmark = pytest.mark.usefixtures("copied_children")
IN_OLD_FORM = ("encoder", "unet", "seq2seq")  # without and with buffers, and with a tied table


@pytest.fixture
def _few_files() -> Iterator[None]:
    """As many files as the process that runs a file may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_few_files")
@pytest.mark.filterwarnings("ignore:The tensor attributes")  # which torch says of every nn.LSTM
@pytest.mark.parametrize("name", MODELS)
def test_every_call_of_a_whole_model_agrees(name: str, tmp_path: Path) -> None:
    program = exported(name)
    assert len(program.state_dict) + len(program.constants) == MODELS[name][2]
    files = [tmp_path / "new.pt2"]
    torch.export.save(program, files[0])
    if name in IN_OLD_FORM:
        files.append(saved_as_before_2_9(program, tmp_path / "old.pt2"))
    for path in files:
        found = graphflops.validate(as_graph(path), repeats=0)
        assert found.holds
        assert found.verdicts["equal"] + found.verdicts["explained"] == len(found.nodes)


class Sum(torch.nn.Module):
    """More parameters than files that the process may open, added one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = torch.nn.ParameterList(torch.rand(2) for _ in range(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for term in self.terms:
            x = x + term
        return x


def test_a_file_of_many_tensors_is_validated_in_a_process_of_its_own(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Sum(), (torch.zeros(2),)), tmp_path / "sum.pt2")
    result = CliRunner().invoke(main, ["validate", str(tmp_path / "sum.pt2"), "--repeats", "0"])
    assert result.exit_code == 0, result.stderr
    assert "300 equal" in result.output


def exported(name: str) -> torch.export.ExportedProgram:
    make, given, _ = MODELS[name]
    torch.manual_seed(0)
    return torch.export.export(make().eval(), given)


def saved_as_before_2_9(program: torch.export.ExportedProgram, path: Path) -> Path:
    """The file that torch 2.5 to 2.8 wrote of a program: its weights in one checkpoint."""
    made = serialize(program)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("serialized_exported_program.json", made.exported_program)
        file.writestr("serialized_state_dict.pt", made.state_dict)
        file.writestr("serialized_constants.pt", made.constants)
        file.writestr("serialized_example_inputs.pt", made.example_inputs)
        file.writestr("version", "8.8")
    return path
