"""Counters as `ncu` printed them on an H200 (torch 2.11), cleaned of names; expected FLOPs are products of padded sizes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from graphflops.cost import Cost
from graphflops.errors import ModelError
from graphflops.report import Named, Row
from graphflops.runtime.counters import (
    KernelCount,
    RangeCount,
    Tile,
    available,
    explain,
    explain_row,
    measure,
    ncu,
    range_name,
    read_csv,
    tile_of,
)
from tests.support import t

TEXT = (Path(__file__).parent / "data" / "ncu_h200.csv").read_text()
RECORDED = read_csv(TEXT)
B, H, S, D = "bfloat16", "float16", "float32", "float64"
N = 2048
CAUSAL = N * (N - 1) // 2  # hidden pairs


def row(op: str, dtype: str, operands, out, flops: int, masked: int = 0, backward: int = 0) -> Row:
    """A row of a report. backward: how many times the forward's work its gradients are, in halves."""
    cost = Cost(matrix_flops=flops, masked_flops=masked)
    back = Cost(matrix_flops=flops * backward // 2, masked_flops=masked * backward // 2)
    inputs = tuple(Named(f"x{i}", t(*shape, dtype=dtype)) for i, shape in enumerate(operands))
    return Row(
        *("node", op, "", "", "", "counted"),
        inputs=inputs,
        outputs=(Named("out", t(*out, dtype=dtype)),),
        cost=cost,
        backward=back if backward else None,
    )


def mm(dtype: str, m: int, k: int, n: int, backward: int = 0) -> Row:
    return row("aten.mm.default", dtype, ((m, k), (k, n)), (m, n), 2 * m * k * n, backward=backward)


def sdpa(
    length: int,
    width: int,
    masked: int = 0,
    backward: int = 0,
    dtype: str = B,
    heads: tuple[int, int] = (2, 16),
) -> Row:
    one, each = (*heads, length, width), 4 * heads[0] * heads[1] * width
    op = "aten.scaled_dot_product_attention.default"
    return row(op, dtype, (one,) * 3, one, each * length * length, each * masked, backward)


def conv(
    rank: int, dtype: str, x, w, y, flops: int, backward: int = 0, op: str = "aten.conv{}d.default"
) -> Row:
    return row(op.format(rank), dtype, (x, w), y, flops, backward=backward)


PHOTOS = conv(2, H, (4, 3, 224, 224), (64, 3, 7, 7), (4, 64, 110, 110), 2 * 4 * 64 * 110 * 110 * 3 * 49, 4)
IMAGES = conv(2, B, (8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56), 2 * 8 * 56 * 56 * 64 * 64 * 9)
VOLUMES = conv(
    3, B, (2, 32, 16, 28, 28), (64, 32, 3, 3, 3), (2, 64, 16, 28, 28), 2 * 2 * 16 * 28 * 28 * 64 * 32 * 27
)
GROUPS = conv(2, B, (8, 256, 28, 28), (256, 8, 3, 3), (8, 256, 28, 28), 2 * 8 * 28 * 28 * 256 * 8 * 9, 4)
DEPTHWISE = conv(2, B, (8, 256, 28, 28), (256, 1, 3, 3), (8, 256, 28, 28), 2 * 8 * 28 * 28 * 256 * 9)
TRANSPOSED = conv(
    *(2, B, (4, 128, 32, 32), (128, 64, 4, 4), (4, 64, 64, 64), 2 * 4 * 32 * 32 * 128 * 64 * 16, 4),
    op="aten.conv_transpose{}d.input",
)
SOUND = conv(1, B, (8, 80, 3000), (512, 80, 3), (8, 512, 3000), 2 * 8 * 3000 * 512 * 80 * 3)
EXACT = IMAGES._replace(backward=Cost(matrix_flops=2 * 2 * 8 * 56 * 56 * 64 * 64 * 9))
LINEAR = row("aten.linear.default", S, ((4, 197, 768), (3072, 768)), (4, 197, 3072), 2 * 788 * 768 * 3072)
DECODE = row("aten.linear.default", B, ((8, 4096), (32000, 4096)), (8, 32000), 2 * 8 * 4096 * 32000)
BATCHED = row(
    "aten.bmm.default", H, ((7, 300, 80), (7, 80, 200)), (7, 300, 200), 2 * 7 * 300 * 80 * 200, backward=4
)
INTEGER = row("aten._int_mm.default", "int8", ((N, N), (N, N)), (N, N), 2 * N * N * N)
EACH = 2 * 32  # FLOPs of a multiply-add, heads


# Place among the recorded ranges, row, gradients, whole tiles, verdict, words of the reason.
@pytest.mark.parametrize(
    "place, given, backward, padded, verdict, words",
    [
        (0, mm(B, 4096, 4096, 4096), False, 2 * 4096**3, "equal", ()),
        (4, mm(B, 1000, 1000, 1000), False, 2 * 1024**3, "padded", ("padded to tiles of 64x128x64",)),
        (8, mm(B, 64, 16384, 64), False, 2 * 64 * 64 * 264 * 64, "padded", ("the depth in 12 parts",)),
        (9, mm(B, 64, 16384, 64, 4), True, 2 * 64 * 64 * (16384 + 100 * 168), "padded", ("clusters of 4x1",)),
        (10, mm(B, 127, 333, 65), False, 2 * 128 * 128 * 448, "padded", ("64x64, the depth in 5 parts",)),
        (13, mm(S, N, N, N, 4), True, 2 * 2 * N**3, "algorithm", ("FP32 by FFMA", "one more multiply-add")),
        (18, mm(D, 1024, 1024, 1024), False, 2 * 1024**3, "equal", ()),
        (27, BATCHED, True, 2 * 7 * (128 * 256 * 320 + 384 * 96 * 256), "padded", ("clusters of 4x2",)),
        (34, DECODE, False, 2 * 126 * 256 * 8 * 4096, "padded", ("tiles of 256x8x64, in clusters of 2x1",)),
        (36, LINEAR, False, 2 * 832 * 768 * 3072, "padded", ("FP32 by FFMA", "64x64x8", "one more")),
        (95, INTEGER, False, 2 * N**3, "equal", ()),
        (38, SOUND, False, None, "different", ("1.354 of the model",)),
        (40, IMAGES, False, 2 * 8 * 56 * 56 * 64 * 64 * 9, "equal", ()),
        (
            *(45, PHOTOS, True, 2 * 4 * 112 * 112 * 64 * 16 * 64 + 2 * 64 * 512 * 29 * 53 * 32, "padded"),
            ("taps padded to whole strides", "3 channels padded to 8", "in 29 parts"),
        ),
        (49, EXACT, True, None, "algorithm", ("FP32 by FFMA", "Winograd", "FFT")),
        (52, VOLUMES, False, 2 * 2 * 16 * 28 * 28 * 64 * 64 * 27, "padded", ("tiles of 64x64x64",)),
        (
            *(57, GROUPS, True, 2 * 8 * 832 * 256 * 16 * 9 + 2 * 40 * 64 * 64 * 8 * 28 * 28, "padded"),
            ("padded to tiles of 64x8x16", "40 tiles of 64x64x64 launched"),
        ),
        (58, DEPTHWISE, False, 2 * 8 * 256 * 82 * 82, "skipped", ("FP32 by FFMA", "taps on padding skipped")),
        (
            *(63, TRANSPOSED, True, 2 * 70 * 64 * 128 * 16 * 64 + 2 * 36 * 64 * 64 * 4096, "padded"),
            ("70 tiles of 64x128x64 launched", "36 tiles of 64x64x64"),
        ),
        (66, sdpa(N, 128), False, 2 * EACH * N * N * 128, "equal", ()),
        (67, sdpa(N, 128, 0, 5), True, 5 * EACH * N * N * 128, "equal", ()),
        # Of 16 x 16 tiles of 128 those on and below the diagonal.
        (68, sdpa(N, 128, CAUSAL), False, 2 * EACH * 136 * 128**3, "skipped", ("tiles of 64x128 skipped",)),
        (70, sdpa(1000, 80), False, 2 * EACH * 1024**2 * 128, "padded", ("64x128", "widths padded to 128")),
        (71, sdpa(1000, 80, 0, 5), True, 5 * EACH * 1024**2 * 128, "padded", ("widths padded to 128",)),
        (76, sdpa(1000, 80), False, 2 * EACH * 1024**2 * 96, "padded", ("128x64", "widths padded to 96")),
        # The second product stops at the last key that the tile's 64 queries see.
        (
            *(80, sdpa(N, 128, CAUSAL), False, EACH * 128 * (136 * 128**2 + 528 * 64**2), "skipped"),
            ("masked tiles of 64x128 skipped",),
        ),
        (82, sdpa(1000, 80), False, EACH * 1024**2 * (96 + 128), "padded", ("widths padded to 96 and 128",)),
        (83, sdpa(1000, 80, 0, 5), True, EACH * 1024**2 * (2 * 96 + 3 * 128), "padded", ("96 and 128",)),
        (
            84,
            sdpa(512, 64, 0, 0, S, (2, 4)),
            False,
            3 * 2 * 2 * 8 * 512**2 * 64,
            "algorithm",
            ("three times",),
        ),
        (87, sdpa(N, 128, 0, 5), True, 7 * EACH * N * N * 128, "algorithm", ("seven products",)),
        (88, sdpa(N, 128, CAUSAL), False, 2 * EACH * 136 * 128**3, "skipped", ("masked tiles skipped",)),
    ],
)
def test_recorded_calls_are_explained(place, given, backward, padded, verdict, words):
    found = explain_row(given, RECORDED[range_name(place)], lambda dim: dim, backward)
    assert (found.verdict, found.padded_flops) == (verdict, padded)
    for word in words:
        assert word in found.reason


@pytest.mark.parametrize(
    "place, given",
    [
        (4, mm(B, 1000, 1000, 1000)._replace(cost=Cost(matrix_flops=1000**3))),  # multiply-adds for FLOPs
        (0, mm(B, 4096, 4096, 4096)._replace(cost=Cost(matrix_flops=4096**3))),
        (0, mm(B, 4096, 4096, 4097)),
        (40, IMAGES._replace(cost=Cost(matrix_flops=2 * 8 * 56 * 56 * 64 * 64))),
        (70, sdpa(1000, 80)._replace(cost=Cost(matrix_flops=2 * 32 * 1000 * 1000 * 80))),
        (52, VOLUMES._replace(cost=Cost(matrix_flops=2 * 2 * 16 * 28 * 28 * 64 * 32 * 9))),
    ],
)
def test_a_wrong_model_is_different(place, given):
    assert explain_row(given, RECORDED[range_name(place)], lambda dim: dim).verdict == "different"


def kernel(name="k", tensor=0, fused=0, grid=(1, 1, 1)) -> KernelCount:
    return KernelCount(name, {B: tensor} if tensor else {}, {"ffma": fused} if fused else {}, grid, 0, 0)


@pytest.mark.parametrize(
    "model, kernels, more, verdict",
    [
        (None, [kernel(tensor=8)], {}, "unknown"),
        (0, [kernel(fused=100)], {}, "equal"),  # arithmetic of elementwise kernels
        (0, [kernel(tensor=100)], {}, "different"),
        (100, [kernel()], {}, "different"),
        (100, [], {}, "different"),
        (100, [kernel(tensor=60)], {"masked_flops": 40}, "skipped"),
        (100, [kernel(tensor=59)], {"masked_flops": 40}, "different"),
        (100, [kernel(tensor=60)], {"tiles": 60}, "skipped"),
        (100, [kernel(tensor=128)], {"tiles": 128}, "padded"),
        (100, [kernel(tensor=100)], {"tiles": 90}, "different"),
    ],
)
def test_explanations_without_sizes(model, kernels, more, verdict):
    found = explain(model, RangeCount(tuple(kernels)), **more)
    assert found.verdict == verdict
    assert found.explained == (verdict not in ("different", "unknown"))


def test_a_convolution_in_pairs_of_tiles():
    """ResNet-50, 128 images of 7 x 7: 6,272 rows are 49 tiles of 128, run in pairs: 25 tiles of 256, 1.020 of the model."""
    name = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_x"
    conv7 = conv(2, B, (128, 512, 7, 7), (512, 512, 3, 3), (128, 512, 7, 7), 2 * 128 * 49 * 512 * 512 * 9)
    run = 2 * 25 * 256 * 512 * 512 * 9
    found = explain_row(conv7, RangeCount((kernel(name, run),)), lambda dim: dim)
    assert (found.verdict, found.padded_flops) == ("padded", run)
    assert "padded to tiles of 128x128x64 (inferred), in clusters of 2x1" in found.reason
    other = 2 * 26 * 256 * 512 * 512 * 9
    assert explain_row(conv7, RangeCount((kernel(name, other),)), lambda dim: dim).verdict == "different"


def test_a_tiny_product_without_tensor_cores():
    """4 x 5 by 5 x 6 in float32: 240 FLOPs; a kernel that computes 16 x 16 x 8 and a few sums more counts about 4,096."""
    tiny, large = mm(S, 4, 5, 6), mm(S, 1000, 5, 6)
    found = explain_row(tiny, RangeCount((kernel("gemmSN_NN_kernel", fused=2100),)), lambda dim: dim)
    assert (found.verdict, found.model_flops, found.counted_flops) == ("padded", 240, 4200)
    assert "FP32 by FFMA; a tiny product" in found.reason
    for given, fused in ((tiny, 119), (tiny, 128 * 128 * 32 + 1), (large, 30007)):
        wrong = RangeCount((kernel("gemmSN_NN_kernel", fused=fused),))
        assert explain_row(given, wrong, lambda dim: dim).verdict == "different"


def test_kernels_that_accompany_a_product_are_not_counted():
    counted = RangeCount((kernel(fused=50), kernel(tensor=6400), kernel(tensor=10), kernel(fused=49)))
    assert counted.flops == 6400 + 10 + 2 * 50  # a share of at least 1 in 64
    assert sum(one.fma_flops.get(S, 0) for one in counted.kernels) == 2 * 99
    assert counted.tensor_flops == {B: 6410}


def test_recorded_numbers():
    counted = RECORDED["gf:40"]  # a convolution between three changes of layout
    names = "nchwToNhwcKernel", "nchwToNhwcKernel", "sm80_xmma_fprop", "nhwcToNchwKernel"
    assert all(name in one.name for name, one in zip(names, counted.kernels, strict=True))
    assert counted.kernels[2].tensor_flops == {B: 1_849_688_064}
    assert counted.kernels[2].grid == (1, 392, 1)
    weights = 2 * (
        32000 * 4096 + 8 * 4096
    )  # bytes that a product of eight rows reads, more than a cache holds
    assert RECORDED["gf:34"].dram_read == pytest.approx(weights, rel=1e-3)


@pytest.mark.parametrize(
    "name, tile",
    [
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", Tile(128, 256, 64, (2, 1))),
        ("nvjet_tst_64x32_64x16_1x2_h_bz_splitK_NNT", Tile(64, 32, 64, (1, 2))),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)", Tile(256, 128, 8)),
        (
            "void cutlass::Kernel2<cutlass_75_tensorop_s1688gemm_bf16_64x64_nn_align1>(T1::Params)",
            Tile(64, 64),
        ),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8", Tile(128, 64, 64)),
        ("sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x32_stage3_warpsize4x2x1_x", Tile(128, 64, 32)),
        ("ampere_sgemm_128x64_tn", Tile(128, 64)),
        ("void cutlass::Kernel<Conv<gemm::GemmShape<64, 128, 32>, X>>", Tile(64, 128, 32)),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x96_4x1x1_k",
            Tile(64, 128, 96),
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<96, 128, 64, 4, 0>>",
            Tile(128, 64, 96),
        ),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(Kernel::Params)", Tile(64, 128)),
        ("triton_mm_3", None),
        ("void at::vectorized_elementwise_kernel<4, F>(int)", None),
    ],
)
def test_tiles_in_names(name, tile):
    assert tile_of(name) == tile


def test_kernels_belong_to_the_innermost_range():
    line = next(text for text in TEXT.splitlines() if ":gf:0:" in text)
    column = '"100  ""<default domain>:gf:0:none:none:none:none:none:none"" "'
    assert column in line

    def ranges(*names: str) -> str:
        return '"100 ' + " ".join(f'""<default domain>:{name}:none:none:none""' for name in names) + '"'

    nested = line.replace(column, ranges("gf:3", "gf:3.12", "somebody's"))
    started = line.replace(column + ',""', '"",' + ranges("gf:7"))
    other = line.replace(column, ranges("forward"))
    text = TEXT.replace(line, "\n".join((nested, started, started, other)))
    found = read_csv(text)
    assert found.keys() - RECORDED.keys() == {"gf:3.12", "gf:7"}
    assert RECORDED.keys() - found.keys() == {"gf:0"}
    assert len(found["gf:7"].kernels) == 2


def test_what_was_not_read_is_an_error():
    with pytest.raises(ModelError, match=r"ncu did not read dram__bytes_read.sum: n/a"):
        read_csv(TEXT.replace('"148,328,704"', '"n/a"'))
    with pytest.raises(ModelError, match="no dram__bytes_read in the output of ncu"):
        read_csv(TEXT.replace("dram__bytes_read.sum", "dram__bytes.sum"))
    assert read_csv("==WARNING== No kernels were profiled.\n") == {}


PROGRAM = """#!{python}
import os, pathlib, subprocess, sys
args = sys.argv[1:]
if args == ["--query-metrics"]:
    print("Device X")
    for name in {metrics!r}.split():
        print(name, "  Counter  # of")
    sys.exit(0)
print(*args)
log = pathlib.Path(args[args.index("--log-file") + 1])
(pathlib.Path(__file__).parent / "asked").write_text("\\n".join(args))
rest = args[args.index("--log-file") + 2:]
ran = subprocess.run(rest)
text = pathlib.Path({data!r}).read_text() if not ran.returncode else "==ERROR== The application returned an error code (1)."
log.write_text({said!r} or text)
sys.exit(ran.returncode or bool({said!r}))
"""
METRICS = """dram__bytes_read dram__bytes_write sm__ops_path_tensor_src_fp16 sm__ops_path_tensor_src_fp16_dst_fp16
sm__ops_path_tensor_src_fp8 sm__ops_path_tensor_src_fp8_sparsity_on sm__ops_path_tensor_src_int1"""


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A program in ncu's place, which answers with what was recorded, or says something else."""

    def make(said: str = "", metrics: str = METRICS) -> Path:
        program = tmp_path / "ncu"
        data = str(Path(__file__).parent / "data" / "ncu_h200.csv")
        program.write_text(PROGRAM.format(python=sys.executable, metrics=metrics, data=data, said=said))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        ncu._metrics.cache_clear()
        return tmp_path / "asked"

    return make


def test_measure_asks_for_what_the_device_has(pretend):
    asked = pretend()
    counted = measure([sys.executable, "-c", "pass"])
    assert counted == RECORDED
    args = asked.read_text().splitlines()
    tensor = [name for name in args[args.index("--metrics") + 1].split(",") if "tensor" in name]
    assert tensor == ["sm__ops_path_tensor_src_fp16.sum", "sm__ops_path_tensor_src_fp8.sum"]
    assert args[args.index("--clock-control") + 1] == "none"


@pytest.mark.parametrize(
    "said, metrics, command, message",
    [
        (
            "",
            METRICS,
            "raise ValueError('no such size')",
            r"failed under ncu \(exit status 1\): .*no such size",
        ),
        (
            "==ERROR== ERR_NVGPUCTRPERM - no permission",
            METRICS,
            "pass",
            "counters for administrators: run as root",
        ),
        ("==ERROR== Failed to load", METRICS, "pass", "ncu did not count: Failed to load"),
        ("", "dram__bytes_read", "pass", "no counters of tensor operations"),
        ("", "dram__bytes_op_read", "pass", "not supported: ncu lists no dram__bytes_read"),
    ],
)
def test_failures_are_one_line(pretend, said, metrics, command, message):
    pretend(said, metrics)
    with pytest.raises(ModelError, match=message) as caught:
        measure([sys.executable, "-c", command])
    assert "\n" not in str(caught.value)


def test_time_out_and_missing_programs(pretend, monkeypatch):
    asked = pretend()
    late = asked.parent / "late"
    with pytest.raises(ModelError, match=r"did not finish in 0\.2 s"):
        measure(
            [sys.executable, "-c", f"import time; time.sleep(0.6); open({str(late)!r}, 'w')"], timeout=0.2
        )
    time.sleep(0.8)
    assert not late.exists()  # the command ended with ncu
    with pytest.raises(ModelError, match="no such program"):
        measure(["no-such-program-here"])
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ncu, "_PLACES", ())
    assert available() is None
    with pytest.raises(ModelError, match="no Nsight Compute: put ncu on PATH"):
        measure([sys.executable])
