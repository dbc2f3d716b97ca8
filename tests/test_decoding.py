"""Prefill and decode with a cache of keys and values: what one step reads, writes, computes and holds, at any length.

One layer of width 64 for two sequences: four query heads of width 16, two of keys and values, float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from graphflops import analyze
from graphflops.derived.resize import sweep
from graphflops.dims import Expr, symbol

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from graphflops.report import Report, Row

BATCH, WIDTH, HEADS, SHARED, EACH = 2, 64, 4, 2, 16
PROJECTIONS = 2 * BATCH * WIDTH * (WIDTH + 2 * SHARED * EACH) + 2 * BATCH * WIDTH * WIDTH  # a token
WEIGHTS = (WIDTH * (WIDTH + 2 * SHARED * EACH) + WIDTH * WIDTH) * 4
ROW = BATCH * SHARED * EACH * 4  # bytes of the keys of one place
TOKEN = BATCH * WIDTH * 4  # bytes of one token's activations


class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer that takes caches; `into` says how what is new gets into them."""

    def __init__(self, into: str) -> None:
        super().__init__()
        self.into = into
        self.qkv = torch.nn.Linear(WIDTH, WIDTH + 2 * SHARED * EACH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, keys: Any, values: Any, at: Any) -> Any:
        q, k, v = self.qkv(x).split([WIDTH, SHARED * EACH, SHARED * EACH], -1)
        q, k, v = (part.unflatten(-1, (-1, EACH)).transpose(1, 2) for part in (q, k, v))
        if self.into == "joined":
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        elif self.into == "index_copy_":
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
        else:
            keys[:, :, at] = k
            values[:, :, at] = v
        shown = None if self.into == "joined" else torch.arange(keys.shape[2]) <= at[:, None]
        mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values, shown, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2)), keys, values


def exported(into: str, tokens: int = 1, **open_: Any) -> Any:
    """The program for so many new tokens, with caches of open length. open_: what else is, by axis of the input."""
    cache = torch.zeros(BATCH, SHARED, 24, EACH)
    length = torch.export.Dim("s", min=2, max=4096)
    return torch.export.export(
        Step(into).eval(),
        (torch.zeros(BATCH, tokens, WIDTH), cache, cache.clone(), torch.arange(tokens)),
        dynamic_shapes=(open_.get("x"), {2: length}, {2: length}, None),
    )


def rows(report: Report, op: str) -> list[Row]:
    return [row for row in report.rows if op in row.op]


def only(report: Report, op: str) -> Row:
    (row,) = rows(report, op)
    return row


def named(report: Report) -> Expr:
    """The length of the caches as the program names it."""
    (name,) = (name for name, info in report.symbols.items() if "keys[2]" in info.where)
    found = symbol(name)
    assert isinstance(found, Expr)
    return found


@pytest.fixture(scope="module")
def in_place() -> Report:
    return analyze(exported("index_copy_"))


@pytest.mark.parametrize("into", ["index_copy_", "index_put_"])
def test_an_update_in_place_writes_what_is_new(into: str) -> None:
    report = analyze(exported(into))
    updates = rows(report, into)
    assert len(updates) == 2
    for row in updates:
        assert row.cost.written_bytes == ROW
        assert row.cost.read_bytes == ROW + 8  # and the place, an int64


def test_caches_are_read_once(in_place: Report) -> None:
    s = named(in_place)
    row = only(in_place, "scaled_dot_product_attention")
    assert row.cost.matrix_flops == 2 * (2 * BATCH * HEADS * 1 * s * EACH)
    assert (
        row.cost.read_bytes == TOKEN + 2 * ROW * s + s
    )  # the queries, both caches, a byte a place of the mask
    assert row.cost.written_bytes == TOKEN
    (use,) = in_place.attentions
    assert (use.kv_heads, use.queries, use.keys, use.kv_bytes) == (SHARED, 1, s, 2 * ROW * s)


@pytest.mark.parametrize("s", [24, 4096])
def test_a_step_at_any_length_of_the_cache(in_place: Report, s: int) -> None:
    (point,) = sweep(in_place, {"keys[2]": (s,)})
    flops = PROJECTIONS + 2 * (2 * BATCH * HEADS * s * EACH)
    assert point.cost["matrix_flops"] == flops
    weights = WEIGHTS + TOKEN + 2 * TOKEN + TOKEN + TOKEN  # with what each projection reads and writes
    updates = 2 * (ROW + 8 + ROW)
    mask = 8 * s + (8 * s + 8 + s)  # the places are written, then read and compared
    attention = TOKEN + 2 * ROW * s + s + TOKEN
    assert point.traffic == weights + updates + mask + attention
    assert point.intensity == pytest.approx(flops / (weights + updates + mask + attention))
    # The caller's token, caches and place, and the projections; the mask beside the places that it is made of, or later
    # beside the result of attention.
    assert point.peak_bytes == (TOKEN + 2 * ROW * s + 8) + 2 * TOKEN + max(s + 8 * s, s + TOKEN)


def test_joined_caches_are_written_anew() -> None:
    report = analyze(exported("joined"))
    s = named(report)
    for row in rows(report, "cat"):
        assert row.cost.read_bytes == row.cost.written_bytes == ROW * (s + 1)
    assert only(report, "scaled_dot_product_attention").cost.read_bytes == TOKEN + 2 * ROW * (s + 1)


def test_decompositions_write_whole_caches() -> None:
    report = analyze(exported("index_copy_").run_decompositions())
    s = named(report)
    for row in rows(report, "index_put"):
        assert row.cost.written_bytes == ROW * s
        assert row.cost.read_bytes == ROW * s + ROW + 8


def test_one_program_tells_prefill_and_decode() -> None:
    report = analyze(exported("joined", 3, x={1: torch.export.Dim("t", min=2, max=4096)}))
    points = sweep(report, {"x[1]": (1, 512), "keys[2]": (0, 512)})
    for point in points:
        t, s = point.sizes["x[1]"], point.sizes["keys[2]"]
        pairs = t * (s + t)
        assert point.cost["matrix_flops"] == PROJECTIONS * t + 2 * (2 * BATCH * HEADS * pairs * EACH)
    prefill, decode = points[2], points[1]
    assert (prefill.sizes["x[1]"], prefill.sizes["keys[2]"]) == (512, 0)
    assert (decode.sizes["x[1]"], decode.sizes["keys[2]"]) == (1, 512)
    # One token reads all weights and the cache of 512; 512 tokens read the weights once too.
    assert prefill.intensity > 50 * decode.intensity  # type: ignore[operator]


@pytest.mark.parametrize("into", ["joined", "index_copy_", "index_put"])
def test_requests_that_fit_beside_their_caches(into: str) -> None:
    from graphflops.fitting.fits import fits

    batch, length = torch.export.Dim("b", min=1, max=100_000), torch.export.Dim("s", min=2, max=8192)
    cache = torch.zeros(BATCH, SHARED, 24, EACH)
    program = torch.export.export(
        Step(into).eval(),
        (torch.zeros(BATCH, 1, WIDTH), cache, cache.clone(), torch.arange(1)),
        dynamic_shapes=({0: batch}, {0: batch, 2: length}, {0: batch, 2: length}, None),
    )
    found = fits(program, memory="2GB")
    assert found.cache is not None
    assert (found.cache.inputs, found.cache.token_bytes) == (2, 2 * SHARED * EACH * 4)
    requests = dict(found.requests)
    assert [*requests] == [1024, 2048, 4096, 8192]
    room = 2_000_000_000 - (found.entry.context or 0)
    assert requests[8192] <= room / (found.cache.token_bytes * 8192)
    assert requests[8192] >= room / (found.cache.token_bytes * 8192) / 6  # what attention copies comes on top
    assert requests[1024] >= 7 * requests[8192]
