"""A sample of the sweep over torch's own operator samples: one of each operator. The whole is tests/oracle/op_db.py."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize("shard", range(4))
def test_one_sample_of_every_operator_of_torch(shard, capsys):
    from tests.oracle import op_db

    code = op_db.main(["--most", "1", "--shard", f"{shard}/4"])
    printed = capsys.readouterr().out
    assert " 0 wrong;" in printed, printed
    assert code == 0
