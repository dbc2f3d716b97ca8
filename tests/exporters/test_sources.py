"""Modules and source lines of calls, from what exporters record."""

from __future__ import annotations

import pytest

from graphflops.exporters.sources import Sources, module_path


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        (["models/gen.py", "torch/nn/modules/linear.py"], "models/gen.py:1"),
        (["/home/me/lab/model.py", "/usr/lib/python3/dist-packages/torch/nn/functional.py"], "model.py:1"),
        (["/home/me/model.py", "/v/lib/python3.11/site-packages/hf/llama.py"], "hf/llama.py:2"),
        (["/home/me/model.py", "<eval_with_key>.22", "<string>"], "model.py:1"),
        (["/home/me/model.py", "/usr/lib/python3.12/functools.py"], "model.py:1"),
        (["/home/me/torch/model.py"], "model.py:1"),
        (["C:\\work\\model.py", "C:\\v\\Lib\\site-packages\\torch\\nn\\x.py"], "model.py:1"),
        (["<stdin>"], "<stdin>:1"),
        (["torch/fx/passes/runtime_assert.py"], ""),
        ([], ""),
    ],
)
def test_source_lines(frames: list[str], line: str) -> None:
    trace = "".join(
        f'  File "{file}", line {index}, in forward\n    call()\n' for index, file in enumerate(frames, 1)
    )
    assert Sources().line(trace) == line


@pytest.mark.parametrize(
    ("recorded", "path"),
    [
        ("", ""),
        ("blocks.0.fc", "blocks.0.fc"),
        ("L['self']", ""),
        ("L['s'].blocks[0].n1", "blocks.0.n1"),
        ("L['self'].experts['left'].fc", "experts.left.fc"),
        ("fc@1", "fc"),
        ("a@2.fc@1", "a.fc"),
        ("_export_root.fc", "fc"),
    ],
)
def test_module_paths(recorded: str, path: str) -> None:
    assert module_path(recorded) == path


def test_module_stack() -> None:
    sources = Sources()
    hook = "_empty_nn_module_stack_from_metadata_hook"
    assert sources.stack(f"{hook},{hook},{hook}") == ""
    assert sources.place("L__self__,,__main__.Net;L__self__fc@1,fc,torch.nn.Linear") == (
        "fc",
        "torch.nn.Linear",
    )
    assert sources.modules == {"": "__main__.Net", "fc": "torch.nn.Linear"}
