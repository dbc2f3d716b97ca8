"""What forged ONNX files cost: onnxruntime runs the products that each forger says, or refuses the file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.fuzz.forge_onnx import CASES, SIZES, Case, name_of

runtime = pytest.importorskip("onnxruntime")
EVERY = [case for cases in CASES.values() for case in cases]
# Which onnxruntime 1.32 does not load: another reader may, and takes the larger of two readings then.
REFUSED = {
    "absent target",
    "attribute twice",
    "external and here",
    "external behind a cast",
    "external length",
    "external of fewer",
    "external offset twice",
    "external target",
    "four bits",
    "function twice",
    "more than needed",
    "other kind",
    "short target",
}
PRODUCTS = ("MatMul", "MatMulInteger")


def executed(data: bytes, n: int, folder: Path) -> int | None:
    """The FLOPs of the products that onnxruntime runs, by its profile; None where it refuses the file."""
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.disable_prepacking", "1"
    )  # the profile leaves packed weights out
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.ones((n, n), np.float32)})
    except Exception:  # noqa: BLE001 it raises a class of its own for each reason
        return None
    events = json.loads(Path(session.end_profiling()).read_text())
    return sum(flops(event["args"]) for event in events if event["name"].endswith("_kernel_time"))


def flops(call: dict[str, Any]) -> int:
    if call["op_name"] not in PRODUCTS:
        return 0
    (m, k), (_, columns) = [next(iter(typed.values())) for typed in call["input_type_shape"][:2]]
    return 2 * m * k * columns


@pytest.mark.parametrize("case", EVERY, ids=name_of)
def test_what_onnxruntime_runs(case: Case, tmp_path: Path) -> None:
    n = SIZES[0]
    seen = set()
    for seed in range(3):
        made = case(Random(seed), n)
        ran = executed(made.data, n, tmp_path)
        seen.add(ran)
        assert ran in (made.real, None)
    assert (None in seen) == (name_of(case) in REFUSED)
