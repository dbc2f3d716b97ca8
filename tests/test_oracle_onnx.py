"""ONNX's own conformance cases and the sample models of its package; by hand, with options: tests/oracle/onnx_nodes.py."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("shard", range(4))
def test_every_case_of_onnx_has_the_types_that_it_expects(shard, capsys):
    from tests.oracle import onnx_nodes

    code = onnx_nodes.main(["--shard", f"{shard}/4"])
    printed = capsys.readouterr().out
    assert printed.endswith(" 0 wrong\n"), printed
    assert code == 0
