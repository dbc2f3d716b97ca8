"""Calls that no runtime would run: unknown and said in one line each, with no cost that is none, and without a long wait."""

from __future__ import annotations

import pytest
from onnx import parser

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin

HEAD = '<ir_version: 10, opset_import: ["": 21, "d": 1, "com.microsoft": 1]>'
IMAGE = "g (float[1, 4, 8, 8] x, float[8, 4, 3, 3] w, float[4, 3, 3, 3] u, float[4] s, float[5] t, float[8] e) => (y) { y ="
MATRIX = "g (float[2, 3] x) => (y) {"
HUGE = 10**18


def analyzed(text):
    return analyze(Program(parser.parse_model(f"{HEAD} {text}")).graph(Origin()))


def refusal(text):
    """What is said of the one call."""
    report = analyzed(text)
    assert (report.coverage.unknown, report.coverage.nodes) == (1, 1)
    said = next(entry for entry in report.diagnostics if entry.name != "sizes-merged")
    assert said.code in ("GF101", "GF104", "GF118")
    assert "\n" not in said.message
    return said.message


@pytest.mark.parametrize(
    "call, said",
    [
        ("Conv<group = 0>(x, w)", "0 groups"),
        ("Conv<group = -1>(x, w)", "-1 groups"),
        ("Conv<group = 3>(x, w)", "the input has 4 channels, the weight takes 12"),
        ("Conv<strides = [0, 0]>(x, w)", "must be positive"),
        ("Conv<strides = [-1, 1]>(x, w)", "must be positive"),
        ("Conv<dilations = [0, 1]>(x, w)", "must be positive"),
        ("Conv<pads = [-9, -9, -9, -9]>(x, w)", "pads (-9, -9, -9, -9) must not be negative"),
        ("Conv<pads = [1, 1]>(x, w)", "2 pads for 2 spatial axes"),
        ("Conv<kernel_shape = [5, 5]>(x, w)", "a window of [5, 5] is not that of the weight"),
        ("Conv<kernel_shape = [3]>(x, w)", "a window of [3] is not that of the weight"),
        ('Conv<auto_pad = "SOMETIMES">(x, w)', "auto_pad of onnx.Conv.11 is one of NOTSET, "),
        ('Conv<auto_pad = "VALID", pads = [0, 0, 0, 0]>(x, w)', "padded by auto_pad VALID has no pads"),
        ('ConvTranspose<auto_pad = "SAME_UPPER", pads = [1, 1, 1, 1]>(x, u)', "has no pads (1, 1, 1, 1)"),
        ("ConvTranspose<output_padding = [5, 5]>(x, u)", "output_padding (5, 5) is not smaller than strides"),
        ("Conv<surprise = 1>(x, w)", "onnx.Conv.11 has no attribute surprise"),
        ("Relu<alpha = 1.0>(x)", "onnx.Relu.14 has no attribute alpha"),  # LeakyRelu's
        ("Relu<consumed_inputs = [1]>(x)", "onnx.Relu.14 has no attribute consumed_inputs"),  # of version 1
        (
            "BatchNormalization<epsilon = 1>(x, s, s, s, s)",
            "epsilon of onnx.BatchNormalization.15 must be a number",
        ),
        ("Softmax<axis = 1.0>(x)", "axis of onnx.Softmax.13 must be an integer, not 1.0"),
        ("MaxPool<kernel_shape = [2, 2], storage_order = 5>(x)", "is one of 0, 1, not 5"),
        ('DepthToSpace<blocksize = 2, mode = "XX">(x)', "is one of DCR, CRD, not 'XX'"),
        ("LRN<size = 2>(x)", "2 neighbouring channels have no middle"),
        ("InstanceNormalization(x, w, s)", "do not fit one another: [1, 4, 8, 8], [8, 4, 3, 3], [4]"),
        ("BatchNormalization(x, s, s, s, t)", "do not fit one another: [1, 4, 8, 8], [4], [4], [4], [5]"),
        ("LayerNormalization(x, e, s)", "do not broadcast"),
        ("LayerNormalization(e, x)", "a scale or bias float32[1, 4, 8, 8] for [8]"),
        ("LayerNormalization(x, s)", "do not broadcast"),
        ("PRelu(x, u)", "do not broadcast"),
        ("com.microsoft.FusedMatMul<transBatchA = 1>(s, s)", "has no batch to stand behind the rows"),
        ("com.microsoft.QuickGelu<beta = 1.0>(x)", "com.microsoft.QuickGelu.1 has no attribute beta"),
        ("Conv(s, w)", "does not fit"),
        ("Conv(x)", "is called without operand 2"),
        ("ConvTranspose<group = 0>(x, u)", "0 groups"),
        ("ConvTranspose<group = 3>(x, u)", "do not make 3 groups"),
        ("ConvTranspose<strides = [0, 0]>(x, u)", "must be positive"),
        ("ConvTranspose<output_shape = [-3, 5]>(x, u)", "the size -3"),
        ("MaxPool<kernel_shape = [0, 0]>(x)", "a window of [0, 0] is empty"),
        ("MaxPool<kernel_shape = [2, 2], strides = [0, 1]>(x)", "must be positive"),
        ("AveragePool<kernel_shape = [2]>(x)", "a window of 1 axes over 2 axes"),
        ("AveragePool<kernel_shape = [20, 20]>(x)", "a window of 20 is larger than its input of 8"),
        ("DepthToSpace<blocksize = 0>(x)", "no blocks of 0"),
        ("SpaceToDepth<blocksize = -2>(x)", "no blocks of -2"),
        ("SpaceToDepth<blocksize = 3>(x)", "not made of blocks of 3"),
        ("GroupNormalization<num_groups = 0>(x, s, s)", "0 groups"),
        ("Split<num_outputs = 0>(x)", "0 pieces are asked for, but 1 named"),
        ("GroupNormalization<num_groups = 3>(x, s, s)", "4 channels do not make 3 groups"),
    ],
)
def test_windows_and_groups(call, said) -> None:
    assert said in refusal(f"{IMAGE} {call} }}")


OPEN = (
    "g (float[n, s, h] x, int8[n, s, h] i, int8[7, 5] w, float a, float[7] b, float[9] c, float[5] d, "
    "float[5, 9] m, int8[9] z, float[n, s, 8] q, int8 e, float[1, 1] r, int8[5, 3] v, int8[1, 2] f) => (y) { y ="
)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("LayerNormalization(x, b, c)", "sizes 9 and 7 do not broadcast"),
        ("com.microsoft.SkipLayerNormalization(x, x, b, c)", "[n, s, 7], [n, s, 7], [7], [9]"),
        ("com.microsoft.Attention<num_heads = 1>(x, m, b)", "[n, s, h], [5, 9], [7]"),
        (
            "com.microsoft.MultiHeadAttention<num_heads = 2>(q, q, q, b)",
            "float32[7] for 24 features of queries",
        ),
        ("DequantizeLinear(w, d)", ""),
        ("DequantizeLinear<axis = 0>(w, d)", "a scale or zero point float32[5] for axis 0 of int8[7, 5]"),
        ("DequantizeLinear<axis = 0>(w, b, z)", "a scale or zero point int8[9] for axis 0 of int8[7, 5]"),
        ("DequantizeLinear<axis = 2>(i, b, z)", "a zero point int8[9] beside a scale float32[7]"),
        ("com.microsoft.MatMulIntegerToFloat(i, w, a, b)", "float32[7] is neither one number nor [1, 5]"),
        ("DequantizeLinear<axis = 0>(w, b, e)", "a zero point int8[] beside a scale float32[7]"),
        ("DequantizeLinear(w, r)", "a scale or zero point float32[1, 1] for axis 1"),
        ("MatMulInteger(w, v, , f)", "int8[1, 2] is neither one number nor [1, 3]"),
        ("com.microsoft.QLinearSigmoid(w, b, e, a, e)", "float32[7] is neither one number nor []"),
        ("com.microsoft.DynamicQuantizeMatMul(x, w, d, , c)", "a bias float32[9] for 5 features"),
    ],
)
def test_constants_that_contradict_one_another_beside_an_open_size(call: str, said: str) -> None:
    text = f"{OPEN} {call} }}"
    assert said in refusal(text) if said else not analyzed(text).diagnostics


def test_a_scale_tells_an_open_size() -> None:
    report = analyzed(f"{OPEN} com.microsoft.BiasGelu(x, b) }}")
    assert str(report.rows[0].outputs[0].type) == "float32[n, s, 7]"
    assert [entry.message for entry in report.diagnostics] == [
        "operators require equal sizes, from which follows h = 7"
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("N = 8", "for 8 features in 1 blocks of 32"),
        ("block_size = 16", "scales float32[16] for 16 features in 2 blocks"),
        ("block_size = 20", "blocks of 20 weights"),
        ("bits = 3", "bits of com.microsoft.MatMulNBits.1 is one of 2, 4, 8, not 3"),
        ("bits = 8", "for 16 features in 1 blocks of 32"),
    ],
)
def test_a_weight_of_few_bits_that_contradicts_its_attributes(changed: str, said: str) -> None:
    given = {"K": "32", "N": "16", "bits": "4", "block_size": "32"}
    given |= [changed.split(" = ")]
    settings = ", ".join(f"{name} = {value}" for name, value in given.items())
    graph = "g (float[2, 32] x, uint8[16, 1, 16] b, float[16] s) => (y)"
    assert said in refusal(f"{graph} {{ y = com.microsoft.MatMulNBits<{settings}>(x, b, s) }}")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ('direction = "bidirectional"', "1 directions in a layer that runs bidirectional"),
        ('direction = "sideways"', "is one of forward, reverse, bidirectional"),
        ("hidden_size = 7", "a state of 4, where hidden_size is 7"),
    ],
)
def test_a_recurrent_layer_that_contradicts_its_matrices(changed: str, said: str) -> None:
    graph = "g (float[5, 2, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => (y)"
    assert said in refusal(f"{graph} {{ y = LSTM<{changed}>(x, w, r) }}")


def test_a_grouped_weight_whose_filters_do_not_come_out_even() -> None:
    text = "g (float[1, 4, 8, 8] x, float[9, 2, 3, 3] w) => (y) { y = Conv<group = 2>(x, w) }"
    assert refusal(text) == "9 rows of a weight do not make 2 groups"


@pytest.mark.parametrize(
    "equation",
    ["", "ij,jk->ik", "ij->iz", "ijk->i", "ii->i", "...i...->i", "ij->ijj", "i1->i", "ij->ji->ij", "i,,->"],
)
def test_einsum(equation) -> None:
    assert "equation" in refusal(f'{MATRIX} y = Einsum<equation = "{equation}">(x) }}') or equation == "ii->i"


@pytest.mark.parametrize(
    "call",
    [
        "y = Relu(x, x, x)",
        "y = MatMul(x)",
        "y = MatMul()",
        "y = MatMul(x, x)",
        "y = Cast(x)",
        "y = Cast<to = 77>(x)",
        "y = Concat(x, x)",
        "y = Concat<axis = 5>(x, x)",
        "y = Transpose<surprise = 1>(x)",
        "y = Transpose<perm = [5, 5]>(x)",
        "y = Transpose<perm = [0, 0]>(x)",
        "y = Softmax<axis = 9>(x)",
        "y = Softmax<axis = 0.5>(x)",
        'y = Softmax<axis = "one">(x)',
        "y = Softmax<axis = [1]>(x)",
        "y = Nonsense(x)",
        "y = SequenceAt(x, x)",
        "y, z = Split<num_outputs = 2, axis = 7>(x)",
        "y, z = Split<num_outputs = 100000000000>(x)",
        "y = com.microsoft.Rfft<signal_ndim = 4611686018427387904>(x)",
        "y = com.microsoft.Irfft<signal_ndim = -4611686018427387904>(x)",
    ],
)
def test_operands_and_attributes(call) -> None:
    assert refusal(f"{MATRIX} {call} }}")


@pytest.mark.parametrize(
    "stored, call",
    [
        ("int64[2] s = {-1, -1}", "y = Reshape(x, s)"),
        ("int64[2] s = {-5, 2}", "y = Reshape(x, s)"),
        ("int64[2] s = {4611686018427387904, 4}", "y = Reshape(x, s)"),
        ("int64[3] s = {0, 0, 0}", "y = Reshape(x, s)"),
        ("int64[2] s = {-5, 3}", "y = ConstantOfShape(s)"),
        ("int64[3] s = {-5, 1, 1}", "y = Expand(x, s)"),
        ("int64[2] s = {-1, 3}", "y = Tile(x, s)"),
        ("int64[4] s = {-9, 0, 0, 0}", "y = Pad(x, s)"),
        ("int64[1] s = {-1}", "y, i = TopK(x, s)"),
        ("int64[1] s = {1000000000000000000}", "y, i = TopK(x, s)"),
        ("int64[1] s = {0}, int64[1] e = {9}", "y = Slice(x, s, e, s, s)"),
        ("int64[2] s = {-1, 3}", "y, z = Split(x, s)"),
        ("int64 s = {0}", "y = Range(s, s, s)"),
    ],
)
def test_contents(stored, call) -> None:
    assert refusal(f"g (float[2, 3] x) => (y) <{stored}> {{ {call} }}")


@pytest.mark.parametrize(
    "call",
    [
        "y, z = Split(x, s)",
        "y = Slice(x, s, s)",
        "y = AffineGrid(t, s)",
        "y = Reshape(x, s)",
        "y = Expand(x, s)",
    ],
)
def test_operands_that_say_sizes_and_are_too_long_to_list(call) -> None:
    assert refusal(f"g (float[2, 3] x, float[1, 2, 3] t, int64[{HUGE}] s) => (y) {{ {call} }}")


@pytest.mark.parametrize(
    "stored, call, shape",
    [
        (f"int64 a = {{0}}, int64 b = {{{HUGE}}}, int64 c = {{1}}", "y = Range(a, b, c)", (HUGE,)),
        (f"int64[2] s = {{{HUGE}, {HUGE}}}", "y = ConstantOfShape(s)", (HUGE, HUGE)),
        (f"int64[2] s = {{{HUGE}, 3}}", "y = Expand(x, s)", (HUGE, 3)),
        (f"int64[2] s = {{{HUGE}, 3}}", "y = Tile(x, s)", (HUGE, 9)),
    ],
)
def test_results_as_large_as_was_asked_for_are_not_made(stored, call, shape) -> None:
    report = analyzed(f"g (float[1, 3] x) => (y) <{stored}> {{ {call} }}")
    assert report.rows[-1].outputs[0].type.shape == shape
    assert report.coverage.unknown == 0


def test_growth_ends_where_nothing_can_be_so_large() -> None:
    """Each is as many times as long as the one before is long, and has twice as many axes, in the other program."""
    longer = " ".join(f"s{i} = Shape(v{i}) v{i + 1} = Tile(v{i}, s{i})" for i in range(60))
    report = analyzed(f"g (float[7, 4] v0) => (v60) {{ {longer} }}")
    assert 0 < report.coverage.unknown < 60
    assert report.diagnostics[0].message.startswith("a result would have the size 2**")
    assert report.to_json()
    deeper = " ".join(f"v{i + 1} = Gather(v{i}, v{i})" for i in range(60))
    report = analyzed(f"g (int64[2, 2] v0) => (v60) {{ {deeper} }}")
    assert report.diagnostics[0].message.startswith("a result would have ")
    assert report.coverage.counted < 10


def test_sizes_that_double_over_and_over_get_names() -> None:
    doubled = " ".join(f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(300))
    report = analyzed(f"g (float[N, 4] v0) => (v300) {{ {doubled} }}")
    assert report.coverage.counted == 300
    assert {said.code for said in report.diagnostics} == {"GF116"}


def test_a_loop_of_less_than_no_turns_does_not_turn() -> None:
    body = "b (int64 i, bool go, float[4, 4] s) => (bool go, float[4, 4] r) { r = MatMul(s, s) }"
    loop = f'y = Loop(turns, "", x) <body = {body}>'
    report = analyzed(f"g (float[4, 4] x) => (y) <int64 turns = {{-3}}> {{ {loop} }}")
    assert report.total().matrix_flops == 0
    assert report.rows[0].outputs[0].type.shape == (4, 4)


@pytest.mark.parametrize("name", ["N", "turn_0", "carried_0_0_0"])
def test_a_size_of_the_file_is_not_the_turn_of_a_loop(name) -> None:
    body = f"b (int64 i, bool go, float[{name}, 4] s) => (bool go, float[{name}, 4] r) {{ r = MatMul(s, w) }}"
    loop = f'turns = Constant<value_int=5>() y = Loop(turns, "", x) <body = {body}>'
    report = analyzed(f"g (float[{name}, 4] x, float[4, 4] w) => (y) {{ {loop} }}")
    (size,) = report.symbols
    assert report.total().matrix_flops == 5 * 2 * symbol(size) * 4 * 4


def test_a_decoder_that_generates_runs_on_what_the_file_states_of_its_inputs() -> None:
    decoder = """d (int32[rows, new] ids, int32[rows, new] places, int32[rows, all] mask, float[2, rows, 4, old, 8] past)
        => (float[rows, new, 100] logits, float[2, rows, 4, all, 8] present) {
            x = Gather(words, ids) logits = MatMul(x, head) present = Identity(past) }"""
    search = (
        f"com.microsoft.GreedySearch<eos_token_id = 0, pad_token_id = 0, decoder = {decoder}>(start, length)"
    )
    report = analyzed(
        f"g (int32[2, 7] start, int32[1] length, float[100, 32] words, float[32, 100] head) => (y) {{ y = {search} }}"
    )
    rows, new, steps = map(symbol, ("rows", "new", "generated_tokens_0"))
    assert report.coverage.unknown == 0
    assert report.total().matrix_flops == steps * 2 * rows * new * 32 * 100


def test_each_turn_of_a_loop_over_rows_takes_one() -> None:
    row = "more = Add(i, one) from = Unsqueeze(i, zero) to = Unsqueeze(more, zero) row = Slice(x, from, to, zero)"
    body = f"b (int64 i, bool go) => (bool go, float[k, 2] r) {{ {row} r = MatMul(row, w) }}"
    given = "one = Constant<value_int=1>() zero = Constant<value_ints=[0]>()"
    rows = "all = Shape(x) first = Gather(all, zero) rows = Squeeze(first)"
    loop = f'{given} {rows} y = Loop(rows, "") <body = {body}>'
    report = analyzed(f"g (float[N, 4] x, float[4, 2] w) => (y) {{ {loop} }}")
    assert report.total().matrix_flops == symbol("N") * 2 * 4 * 2


def test_a_result_that_an_operator_does_not_have_is_not_known() -> None:
    report = analyzed(f"{MATRIX.replace('(y)', '(y, z)')} y, z = Relu(x) }}")
    assert report.coverage.counted == 1
    assert report.diagnostics[-1].message == "the types of z are not known"


@pytest.mark.parametrize(
    "call",
    [
        *("y = GatherND<batch_dims = -3>(x, i)", "y, z = Split<num_outputs = 1>(x)"),
        "j = Constant<value = int64[1] {1}>() y = GatherND<batch_dims = -1>(x, j)",
    ],
)
def test_calls_over_which_onnx_ends_the_process(call) -> None:
    """Of these its own shape inference reads past the end of a list, so it is not asked for sizes."""
    assert refusal(f"g (float[2, 3] x, int64[2] i) => (y) {{ {call} }}")


@pytest.mark.parametrize(
    ("inputs", "call", "said"),
    [
        ("float[2] a, float16[2] b", "Add(a, b)", "must have one element type, not float32 and float16"),
        ("int64[2] a", "Acos(a)", "operand 1 of onnx.Acos.7 cannot be int64"),
        ("float[2] a, float[2] b", "And(a, b)", "operand 1 of onnx.And.7 cannot be float32"),
        ("float[3, 4] a, float[2] b", "Gather(a, b)", "operand 2 of onnx.Gather.13 cannot be float32"),
        ("float[3, 4] a, int32[2] b", "Reshape(a, b)", "operand 2 of onnx.Reshape.21 cannot be int32"),
        (
            "int64[2, 3] a, uint8[3, 4] b, float s",
            "com.microsoft.DynamicQuantizeMatMul(a, b, s)",
            "operand 1 of com.microsoft.DynamicQuantizeMatMul.1 cannot be int64",
        ),
        ("int64[2] a, float[2] b", 'OneHot(a, "", b)', "onnx.OneHot.11 is called without operand 2"),
        ("int64[2] a, int64[2] d, float[2] b", "OneHot(a, d, b)", "[2], [2], [2]"),
        ("int64[2] a, int64 b", "Range(a, b, b)", "[2], [], []"),
        ("float[4] a", "Multinomial(a)", "do not fit one another: [4]"),
        ("float[4] a", "LRN<size = 3>(a)", "do not fit one another: [4]"),
        ("float[2, 3, 4] a, float[4, 5] b", "Gemm(a, b)", "do not fit one another: [2, 3, 4], [4, 5]"),
        (
            "float[9, 4] a, float[1, 2, 9] b",
            "NonMaxSuppression(a, b)",
            "do not fit one another: [9, 4], [1, 2, 9]",
        ),
        (
            "float[1, 9, 1, 1] a, int64 b, float[8] c",
            "STFT(a, b, c)",
            "do not fit one another: [1, 9, 1, 1], [], [8]",
        ),
        ("float a, int64[2] b", "Gather(a, b)", "do not fit one another: [], [2]"),
        (
            "float[1, 5, 16] q, float[1, 2, 3, 8] p",
            'com.microsoft.MultiHeadAttention<num_heads = 2>(q, q, q, "", "", "", "", p)',
            "past keys and past values are not given together",
        ),
        (
            "float[1, 5, 16] q, float[1, 4, 3, 8] p",
            'com.microsoft.MultiHeadAttention<num_heads = 2>(q, q, q, "", "", "", p, p)',
            "a past float32[1, 4, 3, 8] for heads of float32[1, 2, 5, 8]",
        ),
        (
            "float[1, 5, 16] x, float[16, 48] w",
            "com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [16, 16]>(x, w)",
            "2 widths for queries, keys and values",
        ),
        *(
            (
                f"float[4, 32] x, uint8[8, 2, 8] w, float[{scales}] s, uint8[{points}] z",
                "com.microsoft.MatMulNBits<K = 32, N = 8, bits = 4, block_size = 16>(x, w, s, z)",
                said,
            )
            for scales, points, said in (
                ("2, 8", "8", "do not fit one another: [4, 32], [8, 2, 8], [2, 8], [8]"),
                ("8, 2", "4, 2", "do not fit one another: [4, 32], [8, 2, 8], [8, 2], [4, 2]"),
                ("16", "8, 2", "zero points uint8[8, 2] for 8 features in 2 blocks"),
            )
        ),
        (
            "uint8[4, 8] x, float s, uint8 z, uint8[8, 6] w, float[6] t",
            "com.microsoft.QGemm(x, s, z, w, t, z)",
            "do not fit one another: [4, 8], [], [], [8, 6], [6], []",
        ),
        (
            "uint8[4, 8] x, float[1] s, uint8 z",
            "com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z)",
            "do not fit one another: [4, 8], [1], [], [4, 8], [1], [], [1], []",
        ),
        (
            "float[2, 5, 8] x, float[2, 1, 8] k, float[8] g",
            "com.microsoft.SkipLayerNormalization(x, k, g)",
            "do not fit one another: [2, 5, 8], [2, 1, 8], [8]",
        ),
        ("float a", "ReduceSum(a, b) b = Constant<value_ints = [0]>()", "a number has no axis"),
        (
            "float[5, 3, 4] a",
            "Scan<num_scan_inputs = 1, body = b (float[4] v) => (float[4] r) { r = Relu(v) }>(a)",
            "the body takes float32[4], but gets float32[3, 4]",
        ),
        (
            "int64 n, bool c, double[4] a",
            "Loop<body = b (int64 i, bool d, float[4] v) => (bool e, float[4] r) "
            "{ e = Identity(d) r = Relu(v) }>(n, c, a)",
            "v of the graph b is float32, but gets float64",
        ),
        (
            "float[2, 3] a, double[3, 4] b",
            "MatMul(a, b)",
            "must have one element type, not float32 and float64",
        ),
        ("float[2, 3] a, float16[2, 3] b", "Concat<axis = 0>(a, b)", "must have one element type"),
        # Weights of three gates of 5, where those of the state are of 4; of a state of 5 in 2 directions and 1.
        ("float[7, 2, 3] a, float[1, 15, 3] b, float[1, 12, 4] c", "GRU(a, b, c)", "[1, 15, 3], [1, 12, 4]"),
        ("float[1, 1, 4, 4] a", 'Resize(a, "")', "neither sizes nor scales"),
        (
            "uint8[4, 8] a, float[3] s, uint8 z, uint8[8, 5] b, float t",
            "QLinearMatMul(a, s, z, b, t, z, t, z)",
            "a scale or zero point float32[3] is neither one number nor [4, 1]",
        ),
        (
            "uint8[1, 2, 5, 5] a, float s, uint8 z, uint8[4, 2, 3, 3] b, float[2] t",
            "QLinearConv(a, s, z, b, t, z, s, z)",
            "a scale or zero point float32[2] is neither one number nor [4]",
        ),
        ("float[7, 2, 3] a, float[2, 20, 3] b, float[1, 20, 5] c", "LSTM(a, b, c)", "[2, 20, 3], [1, 20, 5]"),
    ],
)
def test_operands_of_other_types_or_shapes_than_the_operator_takes(inputs, call, said) -> None:
    assert said in refusal(f"g ({inputs}) => (y) {{ y = {call} }}")


def test_attention_of_keys_and_values_in_other_heads() -> None:
    text = "g (float[2, 4, 8, 16] q, float[2, 2, 8, 16] k, float[2, 4, 8, 16] v) => (y) { y = Attention(q, k, v) }"
    report = analyze(Program(parser.parse_model(HEAD.replace("21", "23") + text)).graph(Origin()))
    assert report.diagnostics[0].code == "GF118"


@pytest.mark.parametrize(("opset", "parameter", "fits"), [(18, "g", True), (21, "g", False), (21, "c", True)])
def test_scales_of_groups_are_of_groups_before_version_21(opset: int, parameter: str, fits: bool) -> None:
    call = f"GroupNormalization<num_groups = 2>(x, {parameter}, {parameter})"
    text = f"g (float[1, 6, 5] x, float[2] g, float[6] c) => (y) {{ y = {call} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    assert (analyze(Program(model).graph(Origin())).coverage.unknown == 0) is fits
