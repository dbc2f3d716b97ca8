"""How many files of the package one has to read to follow a model to its report.

A file counts where one of its functions runs between the call of `analyze` and the report, rules included; what only
runs when a module is imported does not count.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import graphflops
folder = graphflops.__path__[0] + "/"
files = set()
def called(frame, event, _):
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(folder) or name in files:
        return
    caller = frame
    while caller is not None:
        if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(folder):
            return
        caller = caller.f_back
    files.add(name)
analyze = graphflops.analyze
sys.setprofile(called)
analyze(sys.argv[1])
sys.setprofile(None)
print(json.dumps(sorted(name.removeprefix(folder) for name in files)))
"""


@pytest.mark.parametrize(("model", "most"), [("gqa_transformer.pt2", 54), ("gqa_transformer.onnx", 68)])
def test_few_files_run_from_a_model_to_its_report(model, most):
    command = [sys.executable, "-c", SCRIPT, f"samples/{model}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    files = json.loads(done.stdout)
    assert len(files) <= most, files
