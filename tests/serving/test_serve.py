"""A decoder as a service: bytes of caches, steps at any size, what engines take, and limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from graphflops import analyze, serve
from graphflops.cli import main
from graphflops.devices import complete, device
from graphflops.dims import symbol
from graphflops.dims.solving import affine, symbol_of
from graphflops.errors import GraphflopsError, ModelError, OptionError
from graphflops.fitting.cells import KvCache
from graphflops.serving.engines import Prefill, engine_named, engines

pytest.importorskip("torch")

LAYERS, HIDDEN, HEADS, SHARED, MLP, VOCABULARY = 2, 64, 4, 2, 128, 100
EACH = HIDDEN // HEADS
TOKEN = LAYERS * 2 * SHARED * EACH * 2  # keys and values in bfloat16
LAYER = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * SHARED * EACH + 3 * HIDDEN * MLP + 2 * HIDDEN
WEIGHTS = 2 * (LAYERS * LAYER + 2 * VOCABULARY * HIDDEN + HIDDEN)
SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from benchmarks.serving import export

    return export(tmp_path_factory.mktemp("decoder"), LAYERS, HIDDEN, HEADS, SHARED, MLP, VOCABULARY)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["serve", *map(str, arguments)])


def test_what_a_request_keeps(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h200", batch=[2], context=[1000])
    assert (plan.cache.inputs, plan.cache.token_bytes, plan.cache.request_bytes) == (2 * LAYERS, TOKEN, 0)
    assert plan.kept_by(1000) == 1000 * TOKEN


def test_a_window_keeps_no_more_than_fits_into_it() -> None:
    cache = KvCache(4, 7, symbol("b"), {"past": None, "window": 128}, {"past": 20, "window": 10})
    assert cache.bytes_at(100) == 7 + 20 * 100 + 10 * 100
    assert cache.bytes_at(1000) == 7 + 20 * 1000 + 10 * 128
    assert cache.sizes_at(3, 1000) == {"b": 3, "past": 1000, "window": 128}


def test_a_prompt_is_filled_up_to_whole_chunks() -> None:
    """A recurrence that is computed chunk by chunk has prompts of 8 tokens times an open number of chunks, from 2 on."""
    sizes = [8 * symbol("chunks"), symbol("tokens"), symbol("a") + 1, symbol("a") * symbol("b"), 8]
    assert [affine(size) for size in sizes] == [("chunks", 8, 0), ("tokens", 1, 0), ("a", 1, 1), None, None]
    assert [symbol_of(size) for size in sizes] == ["", "tokens", "", "", ""]
    prefill = Prefill(None, "chunks", {"batch": 1}, "batch", 8)  # type: ignore[arg-type]
    assert [prefill.sizes_at(tokens)["chunks"] for tokens in (8, 16, 17, 24)] == [2, 2, 3, 3]


def test_an_engine_stores_windows_in_float8_and_states_as_they_are() -> None:
    cache = KvCache(4, 107, symbol("b"), {"past": None}, {"past": 30}, bits=16, fixed_bytes=100)
    assert cache.stored_in(8).bytes_at(1000) == 7 + 50 + 15 * 1000


@pytest.mark.parametrize(("batch", "context"), [(2, 512), (32, 4096)])
def test_a_step_takes_what_an_analysis_at_its_sizes_says(
    programs: tuple[Path, Path], batch: int, context: int
) -> None:
    (cell,) = serve(programs[0], device="h200", batch=[batch], context=[context]).cells
    open_ = analyze(programs[0]).symbols
    sizes = {name: batch if "ids[0]" in info.where else context for name, info in open_.items()}
    whole = analyze(programs[0], device="h200", execution="graph", dims=sizes)
    assert cell.step == whole.totals.time
    assert cell.tokens_per_second == batch / cell.step.seconds  # type: ignore[union-attr]


def test_prefills_of_new_requests_delay_steps(programs: tuple[Path, Path]) -> None:
    step, prompt = programs
    (alone,) = serve(step, prefill=prompt, device="h200", batch=[8], context=[1024]).cells
    (beside,) = serve(step, prefill=prompt, device="h200", batch=[8], context=[1024], output_tokens=2).cells
    assert alone.prefill is not None
    assert alone.prefill == beside.prefill
    assert alone.beside == 0
    assert beside.beside == 8 * alone.prefill.seconds / 2  # each of 8 requests is replaced every 2 steps
    lengths = {"ids[0]": 1, "ids[1]": 1024}
    assert alone.prefill == analyze(prompt, device="h200", execution="graph", dims=lengths).totals.time


def test_an_engine_extends_caches_in_place(programs: tuple[Path, Path]) -> None:
    (copied,) = serve(programs[0], device="h200", batch=[64], context=[8192]).cells
    (paged,) = serve(programs[0], device="h200", batch=[64], context=[8192], engine="trtllm").cells
    bandwidth = device("h200").bandwidth
    moved = 2 * 64 * 8192 * TOKEN  # all caches are read and written
    assert copied.step is not None
    assert paged.step is not None
    assert copied.step.seconds - paged.step.seconds > moved / bandwidth


def test_room_of_an_engine(programs: tuple[Path, Path]) -> None:
    h200 = complete(device("h200"))
    plan = serve(programs[0], device="h200", batch=[2], context=[17], engine="vllm")
    blocks = 2 * 16  # tokens that 17 take
    sampled = 1024 * VOCABULARY * 39  # bytes of the sampler's warm-up
    free = int(0.9 * h200.memory_bytes) - WEIGHTS - sampled - 140_000_000
    assert dict(plan.requests) == {17: free // (blocks * TOKEN)}
    static = serve(programs[0], device="h200", batch=[2], context=[17], engine="sglang")
    assert dict(static.requests) == {17: (int(0.87 * h200.memory_bytes) - WEIGHTS) // (17 * TOKEN)}


def test_figures_of_engines_have_sources() -> None:
    for engine in engines().values():
        figures = {name for name in engine.__struct_fields__ if getattr(engine, name) is not None}
        assert figures - {"name", "sources"} == engine.sources.keys()


def test_the_load_that_keeps_a_limit(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h200", batch=[2], context=[8192], tpot="1ms", engine="trtllm")
    ((context, load),) = plan.loads
    assert context == 8192
    assert load is not None
    (most,) = dict(plan.requests).values()
    assert 1 < load.batch < most
    (one_more,) = serve(
        programs[0], device="h200", batch=[load.batch + 1], context=[8192], engine="trtllm"
    ).cells
    assert load.each is not None
    assert one_more.each is not None
    assert load.each <= 1e-3 < one_more.each


def test_no_load_keeps_a_limit_that_no_step_keeps(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h200", batch=[2], context=[1024], tpot="1us")
    assert plan.loads == ((1024, None),)
    assert "none" in plan.summary()


def test_what_does_not_fit_has_no_time(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h200", batch=[2, 2**30], context=[1024])
    assert [cell.step is None for cell in plan.cells] == [False, True]
    assert "does not fit" in plan.summary()


def test_price_and_energy_of_tokens(programs: tuple[Path, Path]) -> None:
    given = {"device": "h200", "batch": [4], "context": [1024]}
    (cell,) = serve(programs[0], price_per_hour=3.6, **given).cells  # type: ignore[arg-type]
    assert cell.step is not None
    assert cell.price == pytest.approx(3.6 / 3600 * cell.step.seconds / 4 * 1e6)
    assert cell.joules == pytest.approx(700 * cell.step.seconds / 4)  # watts of the board


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "html"])
def test_formats(programs: tuple[Path, Path], form: str) -> None:
    done = run(programs[0], "--device", "h200", "--prefill", programs[1], "--format", form, "--tpot", "1s")
    assert done.exit_code == 0, done.output
    if form == "json":
        data = json.loads(done.output)
        assert data["cache"]["token_bytes"] == TOKEN
        assert {one["context"] for one in data["steps"]} == {1024, 4096, 16384, 65536}
    if form == "csv":
        assert done.output.startswith("context,batch,fits,ttft,tpot,")


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--tpot", "30"), 2, "--tpot: '30' has no unit"),
        (("--ttft", "1s"), 2, "--ttft limits the prefill"),
        (("--batch", "0"), 2, "0 is no size to serve"),
        (("--engine", "none such"), 2, "engine: no 'none such'"),
        (("--device", "h200x"), 2, "unknown device"),
    ],
)
def test_wrong_options(programs: tuple[Path, Path], given: tuple[str, str], code: int, said: str) -> None:
    done = run(programs[0], "--device", "h200", *given)
    assert done.exit_code == code
    assert said in done.output
    assert "Traceback" not in done.output


def test_programs_that_are_no_steps(programs: tuple[Path, Path]) -> None:
    with pytest.raises(ModelError, match="no input is a cache"):
        serve(SAMPLES / "gqa_transformer.pt2", device="h200")
    with pytest.raises(ModelError, match="no axis of token ids that is open"):
        serve(programs[0], prefill=SAMPLES / "convnet.pt2", device="h200")
    with pytest.raises(GraphflopsError, match="no such file"):
        serve("missing.pt2", device="h200")
    with pytest.raises(OptionError, match="combinations"):
        serve(programs[0], device="h200", batch=[])


def test_unknown_work_makes_times_lower_bounds(programs: tuple[Path, Path]) -> None:
    plan = serve(programs[0], device="h200", batch=[2], context=[1024])
    (cell,) = plan.cells
    assert cell.step is not None
    least = replace(cell, step=replace(cell.step, is_lower_bound=True))
    assert ">= " in replace(plan, cells=(least,)).summary()


def test_every_engine_is_known_by_name() -> None:
    assert engine_named("vllm").is_paged
    assert not engine_named("none").is_paged


LOADED: dict[str, Any] = {
    "device": "h200",
    "batch": [8],
    "context": [4096],
    "engine": "vllm",
    "output_tokens": 64,
}


def test_caches_of_float8_take_half(programs: tuple[Path, Path]) -> None:
    own, less = (serve(programs[0], prefill=programs[1], **LOADED, kv_dtype=name) for name in (None, "fp8"))
    assert less.cache.token_bytes * 2 == own.cache.token_bytes == TOKEN
    assert less.requests[0][1] == pytest.approx(2 * own.requests[0][1], abs=1)
    # A step reads as many bytes as one of half the context.
    (half,) = serve(programs[0], device="h200", batch=[8], context=[2048 + 16], engine="vllm").cells
    assert less.cells[0].step == half.step


def test_a_common_beginning_is_kept_and_computed_once(programs: tuple[Path, Path]) -> None:
    own, common = (serve(programs[0], prefill=programs[1], **LOADED, shared_prefix=part) for part in (0, 0.5))
    assert common.kept_by(4096) == own.kept_by(4096) - 2048 * TOKEN
    room = own.requests[0][1] * own.kept_by(4096)
    assert common.requests[0][1] == pytest.approx((room - 2048 * TOKEN) / common.kept_by(4096), rel=0.001)
    (whole,), (rest,) = own.cells, common.cells
    prompt = {
        length: serve(
            programs[0], prefill=programs[1], device="h200", batch=[2], context=[length], engine="vllm"
        )
        .cells[0]
        .first
        for length in (2048, 4096)
    }
    assert rest.first == max(prompt[2048], prompt[4096] - prompt[2048])  # type: ignore[type-var, operator]
    assert rest.step == whole.step
    assert rest.beside < whole.beside


def test_chunks_of_a_prefill_bound_the_slowest_token(programs: tuple[Path, Path]) -> None:
    cells = [
        serve(programs[0], prefill=programs[1], **LOADED, prefill_tokens=tokens).cells[0]
        for tokens in (1024, 4096)
    ]
    assert cells[0].slowest is not None
    assert cells[1].slowest is not None
    assert cells[0].slowest < cells[1].slowest
    assert cells[0].step == cells[1].step


def test_requests_that_begin_together_wait_before_their_first_token(programs: tuple[Path, Path]) -> None:
    """4 prompts of 4,096 tokens in passes of 8,192: half wait for one pass and again for the other, half for both."""
    load = {**LOADED, "batch": [4], "engine": "sglang"}
    (spread,) = serve(programs[0], prefill=programs[1], **load).cells
    (cell,) = serve(programs[0], prefill=programs[1], **load, together=True).cells
    alone = spread.first
    assert alone is not None
    assert cell.first is not None
    assert spread.beside == pytest.approx(
        4 * alone / 64
    )  # a new request every 16 steps, and no step beside it
    each = cell.beside * 64  # (1 - 1 / 2) / 2 of all four
    assert cell.first == pytest.approx(3 * each)  # (1 + 1 / 2) / 2 of them
    assert 0.5 * alone < each < 1.1 * alone
    assert cell.step == spread.step


def test_an_engine_works_for_each_request(programs: tuple[Path, Path]) -> None:
    times = {}
    for engine in ("vllm", "sglang"):
        plan = serve(programs[0], device="h200", batch=[1, 100], context=[1024], engine=engine)
        times[engine] = [cell.step.seconds for cell in plan.cells if cell.step]
    own = engine_named("sglang").request_seconds or 0
    assert own > 0
    assert times["sglang"] == pytest.approx([times["vllm"][0] + own, times["vllm"][1] + 100 * own])


@pytest.mark.parametrize("given", [{"engine": "vllm", "output_tokens": 8}, {"engine": "sglang"}])
def test_where_no_request_begins_with_others(programs: tuple[Path, Path], given: Any) -> None:
    with pytest.raises(OptionError, match="--together"):
        serve(programs[0], prefill=programs[1], device="h200", together=True, **given)


@pytest.mark.parametrize("given", [{"kv_dtype": "fp8"}, {"shared_prefix": 0.5}, {"prefill_tokens": 2048}])
def test_engines_alone_change_how_caches_are_kept(programs: tuple[Path, Path], given: Any) -> None:
    with pytest.raises(OptionError, match="--engine"):
        serve(programs[0], device="h200", **given)


@pytest.mark.parametrize("given", [{"kv_dtype": "int9"}, {"shared_prefix": 1.0}])
def test_what_no_engine_does(programs: tuple[Path, Path], given: Any) -> None:
    with pytest.raises(OptionError, match="give"):
        serve(programs[0], device="h200", engine="vllm", **given)


def test_a_configuration_of_a_simulator(programs: tuple[Path, Path]) -> None:
    loads = ("--device", "h200", "--engine", "vllm", "--batch", "1,32", "--context", "1024,4096")
    done = run(programs[0], "--prefill", programs[1], *loads, "--format", "llm-d-inference-sim")
    assert done.exit_code == 0, done.output
    found = yaml.safe_load(done.output)
    plan = serve(
        programs[0], prefill=programs[1], device="h200", engine="vllm", batch=[1, 32], context=[1024, 4096]
    )
    few, many, long = plan.cells[0], plan.cells[1], plan.cells[3]
    assert few.each is not None
    assert many.each is not None
    assert long.first is not None
    times = found["latencies"]
    assert times["inter-token-latency"] == f"{few.each * 1e6:.0f}us"
    assert times["time-factor-under-load"] == pytest.approx(many.each / few.each, abs=0.001)
    overhead, each = (float(times[name][:-2]) for name in ("prefill-overhead", "prefill-time-per-token"))
    assert overhead * 1e-6 + 4096 * each * 1e-9 == pytest.approx(long.first, rel=0.02)
    assert found["kvcache"] == {"kv-cache-size": 1024 * plan.requests[0][1] // 16, "block-size": 16}
