"""Operators: one name for each, in all dialects.

`operator("aten.add_.Tensor")`, `operator("prims.add")` and `operator("onnx.Add.14")` have one canonical name, `add`, one
kind and one list of argument names. Analyses ask the operator; only this folder reads spellings.
"""

from graphflops.ops.operator import Op, operator
from graphflops.ops.table import Kind

__all__ = ["Kind", "Op", "operator"]
