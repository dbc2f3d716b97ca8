"""Reports built by hand: what renderers are tested on."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Cost
from graphflops.dims import Dim, symbol
from graphflops.graph import Origin
from graphflops.report import Coverage, Diagnostic, Named, Report, Row, SymbolInfo, Totals
from graphflops.tensor import BFLOAT16, TensorType

BATCH, TIME = symbol("s23"), symbol("s27")
HIDDEN, VOCABULARY = 64, 1000
HINTS = {
    "s23": SymbolInfo(3, "hint", 1, 1024, ("ids[0]",)),
    "s27": SymbolInfo(7, "hint", 2, 512, ("ids[1]",)),
}


def made(rows: list[Row], **fields: object) -> Report:
    """A report of these rows, totals and coverage added up from them."""
    states = [row.state for row in rows]
    unknown: dict[str, int] = {}
    for row in rows:
        if row.state == "unknown":
            unknown[row.op] = unknown.get(row.op, 0) + 1
    base = Report(
        origin=Origin("models/lm.pt2", "pt2", "torch 2.13.0", "ab" * 32),
        symbols=HINTS,
        totals=Totals(Cost.sum(row.cost for row in rows), 4096 * BATCH * TIME, rows[-1].node),
        parameters=0,
        parameter_bytes=0,
        buffer_bytes=0,
        coverage=Coverage(states.count("counted"), states.count("free"), states.count("unknown"), unknown),
        rows=tuple(rows),
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def linear(node: str, module: str, wide: int, out: int, **fields: object) -> Row:
    """A matrix product on `BATCH * TIME` tokens."""
    tokens = BATCH * TIME
    x, y = TensorType((BATCH, TIME, wide), BFLOAT16), TensorType((BATCH, TIME, out), BFLOAT16)
    weight = 2 * wide * out
    row = Row(
        *(node, "aten.linear.default", module, "torch.nn.modules.linear.Linear", "model.py:17", "counted"),
        cost=Cost(
            2 * tokens * wide * out, read_bytes=2 * tokens * wide + weight, written_bytes=2 * tokens * out
        ),
        inputs=(Named(f"{node}_in", x),),
        outputs=(Named(node, y),),
        matrix_dtype="bfloat16",
    )
    return row._replace(**fields)  # type: ignore[arg-type]


def plain(node: str, op: str, module: str, kind: str, **fields: object) -> Row:
    """An element-wise call on `BATCH * TIME * HIDDEN` elements."""
    size = BATCH * TIME * HIDDEN
    cost = Cost(vector_flops=size, transcendentals=size, read_bytes=2 * size, written_bytes=2 * size)
    return Row(node, op, module, kind, "model.py:21", "counted", cost=cost)._replace(**fields)  # type: ignore[arg-type]


def decoder(layers: int = 12, **fields: object) -> Report:
    """A decoder of equal layers with causal attention in a free batch and length, 18 % of it masked."""
    rows = [plain("embedding", "aten.embedding.default", "embed", "torch.nn.modules.sparse.Embedding")]
    parameters = {"embed": VOCABULARY * HIDDEN}
    modules = {
        "": "model.Decoder",
        "embed": "torch.nn.modules.sparse.Embedding",
        "blocks": "torch.nn.ModuleList",
    }
    for layer in range(layers):
        path = f"blocks.{layer}"
        scores: Dim = 4 * BATCH * TIME * TIME * HIDDEN
        attention = Cost(
            scores, 0, BATCH * TIME * TIME, scores // 4, 6 * BATCH * TIME * HIDDEN, 2 * BATCH * TIME * HIDDEN
        )
        rows += [
            linear(f"linear_{4 * layer}", f"{path}.attn.qkv", HIDDEN, 3 * HIDDEN),
            Row(
                f"view_{layer}", "aten.view.default", f"{path}.attn", "model.Attention", "model.py:18", "free"
            ),
            Row(
                *(
                    f"sdpa_{layer}",
                    "aten.scaled_dot_product_attention.default",
                    f"{path}.attn",
                    "model.Attention",
                ),
                *("model.py:19", "counted"),
                cost=attention,
                matrix_dtype="bfloat16",
            ),
            linear(f"linear_{4 * layer + 1}", f"{path}.mlp.up", HIDDEN, 4 * HIDDEN),
            plain(
                f"gelu_{layer}", "aten.gelu.default", f"{path}.mlp.act", "torch.nn.modules.activation.GELU"
            ),
            linear(f"linear_{4 * layer + 2}", f"{path}.mlp.down", 4 * HIDDEN, HIDDEN),
            plain(f"add_{layer}", "aten.add.Tensor", path, "model.Block"),
        ]
        sizes = {"attn.qkv": 3 * HIDDEN * HIDDEN, "mlp.up": 4 * HIDDEN**2, "mlp.down": 4 * HIDDEN**2}
        parameters |= {f"{path}.{name}": count for name, count in sizes.items()}
        modules |= {path: "model.Block", f"{path}.attn": "model.Attention", f"{path}.mlp": "model.MLP"}
    rows.append(
        linear("linear_head", "", HIDDEN, VOCABULARY, module_type="model.Decoder", source="model.py:40")
    )
    count = sum(parameters.values())
    return replace(
        made(
            rows,
            parameters=count,
            parameter_bytes=2 * count,
            parameter_dtypes={"float16": 2 * count},
            modules=modules,
            parameter_modules=parameters,
        ),
        **fields,  # type: ignore[arg-type]
    )


def bound(report: Report) -> Report:
    """The report as `--dim s23=3 --dim s27=7` gives it: no symbol left in any quantity."""

    def number(dim: Dim) -> Dim:
        return report.value(dim) if not isinstance(dim, int) else dim  # type: ignore[return-value]

    def settled(cost: Cost) -> Cost:
        return Cost(*(number(getattr(cost, name)) for name in Cost.__struct_fields__))

    given = {name: replace(info, given_by="user") for name, info in report.symbols.items()}
    rows = tuple(row._replace(cost=settled(row.cost)) for row in report.rows)
    totals = Totals(settled(report.totals.cost), number(report.totals.peak_bytes), report.totals.peak_node)
    return replace(report, symbols=given, rows=rows, totals=totals)


def unset(report: Report) -> Report:
    """The report of a program whose file has no example sizes."""
    return replace(
        report, symbols={name: replace(i, value=None, given_by=None) for name, i in report.symbols.items()}
    )


def assumed(report: Report) -> Report:
    """The same at sizes that are assumed, with one beside them that only data can tell."""
    symbols = {name: replace(info, given_by="assumption") for name, info in report.symbols.items()}
    return replace(report, symbols={**symbols, "u0": SymbolInfo(9, "assumption", 0, 9)})


def with_unknown(report: Report) -> Report:
    """The report with three calls that no rule prices."""
    rows = list(report.rows)
    rows[2:2] = [
        Row(f"fused_{i}", op, "blocks.0.attn", "model.Attention", "model.py:18", "unknown")
        for i, op in enumerate(("my.fused.default", "my.fused.default", "my.other.default"))
    ]
    found = Diagnostic("GF101", "unknown-operator", "fused_0", "no rule for operator my.fused.default")
    cover = replace(report.coverage, unknown=3, unknown_ops={"my.fused.default": 2, "my.other.default": 1})
    return replace(report, rows=tuple(rows), coverage=cover, diagnostics=(found,))


def training(report: Report) -> Report:
    """The report of a training step: every call's gradient costs twice the call."""
    rows = tuple(row._replace(backward=row.cost * 2) for row in report.rows)
    backward = Totals(report.totals.cost * 2, 9000 * BATCH * TIME, report.rows[0].node)
    optimizer = Totals(Cost(vector_flops=12 * report.parameters, read_bytes=8 * report.parameters))
    return replace(report, rows=rows, backward=backward, optimizer=optimizer)


def joint(report: Report) -> Report:
    """The report of a joint graph: what follows the loss is the gradients."""
    rows = [r._replace(node=f"{r.node}_grad", cost=r.cost * 2, phase="backward") for r in report.rows]
    return made([*report.rows, *rows], **{name: getattr(report, name) for name in ("parameters", "modules")})


HOSTILE = "\x1b[31mred\x1b[0m [red]m[/red] <b>a|b</b> `c` *d* _e_\nf\r\t\x9b2J\u202egnp\x00@all =1+2 [x](http://evil.example)"


def hostile() -> Report:
    """Every name in the file is an attack."""
    sizes = {HOSTILE: SymbolInfo(4, "hint", 2, None, (HOSTILE,))}
    size = symbol(HOSTILE[:150])
    row = Row(
        *(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, "counted"),
        cost=Cost(2 * size * size),
        matrix_dtype=HOSTILE,
    )
    attack = row._replace(node="=cmd|'/c calc'!A0", op="@SUM(1)", module="+a", source="-1", module_type="=b")
    return made(
        [row, attack, row._replace(state="unknown", cost=Cost())],
        origin=Origin(f"dir/{HOSTILE}", HOSTILE, HOSTILE, HOSTILE),
        symbols=sizes,
        modules={"": HOSTILE, HOSTILE: HOSTILE},
        parameter_modules={HOSTILE: 12},
        diagnostics=(Diagnostic("GF102", HOSTILE, HOSTILE, HOSTILE),),
    )
