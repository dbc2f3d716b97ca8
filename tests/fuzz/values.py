"""Numbers and texts that documents are changed to."""

from __future__ import annotations

NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    64,
    2**31 - 1,
    2**31,
    2**40,
    -(2**40),
    2**62,
    2**63,
    10**40,
    0.5,
    -0.0,
    1e308,
    10**4000,
    -(10**100),
    True,
)
TEXTS = (
    *(
        "",
        "s0",
        "s27",
        "u0",
        "2*s0",
        "s0//2",
        "s0 - 4",
        "Mod(s0, 2)",
        "Max(1, s0)",
        "FloorDiv(16, s0)",
        "s0**9",
        "1/0",
    ),
    *(
        "torch.ops.aten.mm.default",
        "torch.ops.aten.cat.default",
        "torch.ops.higher_order.cond",
        "_operator.mul",
    ),
    *(
        "torch.ops.aten.sym_size.int",
        "torch.ops.aten.view.default",
        "torch.ops.aten.softmax.int",
        "math.floor",
    ),
    *(
        "\x1b[31mred\n",
        "a\u202eb",
        "\ud800",
        "<script>",
        "::error::x",
        "@everyone",
        "../../etc/passwd",
        "x" * 3000,
    ),
    *("__import__('os')", "(" * 300, "nan", "1e999", "2 GFLOP", "+2 %", "*", "**/*", "[", "9" * 400),
)
VALUES = (*NUMBERS, *TEXTS, None, [], {}, [[]], [1, 2, 3], {"value": 1, "formula": "s0"})
