"""Kernels of one convolution, and bytes beside it and its gradients, by the way that a test names."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.devices import HOPPER
from graphflops.execution.strides import row_major
from graphflops.kernels import cudnn
from graphflops.kernels.call import ConcreteCall
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.kernels.cudnn import Problem
from graphflops.kernels.kernel import Kernel, Product, Rows, Strided
from graphflops.tensor import BFLOAT16, TensorType
from graphflops.time.schedule import forward_seconds
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made, one_call, pointwise

Shape = tuple[int, ...]
INPUT: Any = "input_gradient"
WEIGHT: Any = "weight_gradient"


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets cuDNN take a way."""
    return lambda taken: monkeypatch.setattr(cudnn, "way", lambda *_: taken)


def last(shape: Shape) -> Shape:
    """Strides of an image whose channels are innermost."""
    return (shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1])


def problem(
    channels: int = 64,
    results: int = 32,
    groups: int = 1,
    *,
    batch: int = 2,
    side: int = 8,
    taps: int = 3,
    is_last: bool = False,
    dtype: str = "bfloat16",
    transposed: bool = False,
    phase: Any = "forward",
) -> Problem:
    """Square images with so many channels in each group."""
    x = (batch, channels * groups, side, side)
    shape = (
        (channels * groups, results, taps, taps) if transposed else (results * groups, channels, taps, taps)
    )
    name = "conv_transpose2d.input" if transposed else "conv2d.default"
    more: tuple[Any, ...] = (
        ((taps // 2,) * 2, (0, 0), groups) if transposed else ((taps // 2,) * 2, (1, 1), groups)
    )
    lies = {0: last(x), 1: last(shape)} if is_last else {}
    given = g(*x, dtype=dtype), g(*shape, dtype=dtype)
    found = Problem.of(one_call(f"aten.{name}", *given, None, (1, 1), *more, strides=lies))
    assert found is not None
    return replace(found, phase=phase)


@pytest.mark.parametrize(
    ("shape", "steps", "is_last"),
    [
        ((2, 8, 6, 6), last((2, 8, 6, 6)), True),
        ((2, 8, 6, 6), row_major((2, 8, 6, 6)), False),
        ((2, 2, 6, 6), last((2, 2, 6, 6)), True),
        ((2, 1, 6, 6), (36, 1, 6, 1), False),  # one channel
        ((2, 8, 6), (48, 1, 8), False),  # a sequence, which is put in order first
        ((2, 8, 6, 6), (288, 2, 48, 16), False),
    ],
)
def test_whether_the_channels_of_an_operand_are_innermost(shape: Shape, steps: Shape, is_last: bool) -> None:
    axes = len(shape) - 2
    weight = t(16, shape[1], *[3] * axes)
    found = Problem.of(one_call(f"aten.conv{axes}d.default", t(*shape), weight, strides={0: steps}))
    assert found is not None
    assert found.is_channels_last is is_last


def test_a_weight_with_its_channels_innermost_asks_for_an_operand_like_it() -> None:
    given = "aten.conv2d.default", t(2, 8, 6, 6), t(16, 8, 3, 3)
    found = Problem.of(one_call(*given, strides={1: last((16, 8, 3, 3))}))
    assert found is not None
    assert found.is_channels_last


def test_a_problem_needs_operands_weight_and_result() -> None:
    call = one_call("aten.conv2d.default", t(2, 8, 6, 6), t(16, 8, 3, 3))
    for name in ("x0", "x1"):
        known = {key: value for key, value in call.values.items() if key != name}
        assert Problem.of(ConcreteCall(call.call, known, {}, call.sizes)) is None
    assert Problem.of(one_call("aten.relu.default", t(2, 8, 6, 6))) is None


@pytest.mark.parametrize(
    ("one", "taken", "algorithm"),
    [  # two filters of each channel that is last: one kernel, or forward one for each group if windows are large or strided
        (problem(1, 2, 8, is_last=True), "as_it_lies", "grouped_direct"),
        (problem(1, 2, 8, taps=5, is_last=True), "as_it_lies", "direct"),
        (problem(1, 2, 8, taps=5, is_last=True, dtype="float32"), "as_it_lies", "grouped_direct"),
        (problem(1, 2, 8, is_last=True, phase=INPUT), "as_it_lies", "grouped_direct"),
        (problem(1, 2, 8, is_last=True, phase=INPUT, dtype="float32"), "as_it_lies", "grouped_direct"),
        (problem(1, 2, 8, taps=5, is_last=True, phase=WEIGHT), "as_it_lies", "grouped_direct"),
        (problem(1, 1, 8, is_last=True), "as_it_lies", ""),
        (problem(1, 2, 8), "as_it_lies", ""),
        # Single positions in float32: a kernel for each of 16 groups at most.
        (problem(8, 8, 16, taps=1, dtype="float32"), "direct", "direct"),
        (problem(8, 8, 17, taps=1, dtype="float32"), "direct", "grouped_direct"),
        (problem(8, 8, 2, taps=1, dtype="float32", phase=INPUT), "direct", "grouped_direct"),
        (problem(8, 8, 2, taps=1, dtype="float32", is_last=True), "direct", ""),
        (problem(8, 8, 2, taps=1, dtype="float32"), "packed", ""),
        # Threads that sum at most 100 elements.
        (problem(11, 8, 2), "direct", "grouped_direct"),
        (problem(12, 8, 2), "direct", ""),
        (problem(11, 8, 2, is_last=True), "direct", ""),
    ],
)
def test_groups_that_are_kernels_without_tensor_cores(
    one: Problem, taken: str, algorithm: str, takes: Any
) -> None:
    takes(taken)
    (kernel, *rest) = one.kernels(1000)
    assert one.sizes.algorithm == algorithm
    assert (kernel.vector_flops, kernel.flops) == (0, 1000) or rest


@pytest.mark.parametrize(
    ("one", "taken", "launches"),
    [
        (problem(16, 16, 4), "one_by_one", 4 * 4),  # operand, weight, product and result of each group
        (problem(16, 16, 4, is_last=True), "one_by_one", 4 * 3),  # the weight lies in order
        (problem(16, 16, 4, taps=1), "one_by_one", 4 * 3),  # and so does one of single positions
        (problem(16, 16, 4, dtype="float32"), "one_by_one", 4 * 4),
        (problem(16, 16, 4, taps=1, dtype="float32"), "one_by_one", 4),
        # Operand and result are transposed, and so for single positions.
        (problem(16, 16, 4, taps=1, dtype="float32", phase=INPUT), "one_by_one", 4 * 3),
        (problem(16, 16, 4, taps=1, dtype="float32"), "direct", 4),
        (problem(16, 16, 4), "as_it_lies", 1),
    ],
)
def test_the_cpu_starts_the_kernels_of_each_group(
    one: Problem, taken: str, launches: int, takes: Any
) -> None:
    takes(taken)
    (kernel,) = one.kernels(1000)
    assert kernel.launches == launches
    costs = {"forward.convolution": 20.0, "forward.further_kernel": 7.0, "forward.recording": 0.0}
    operator = one_call("aten.conv2d.default", t(2, 64, 8, 8), t(64, 16, 3, 3), None, 1, 1, 1, 4).operator
    seconds = forward_seconds(costs, operator, [kernel, kernel], records=False)
    assert seconds == 20.0 + 7.0 * (2 * launches - 1)


@pytest.mark.parametrize(
    ("channels", "taps", "is_each"),
    [(48, 128, True), (48, 96, False), (64, 128, False), (12, 128, False), (160, 31, False)],
)
def test_long_windows_of_sequences_are_kernels_for_each_group(
    channels: int, taps: int, is_each: bool, takes: Any
) -> None:
    takes("direct")
    shape = (2 * channels, channels, taps)
    given = t(2, 2 * channels, 64, dtype="bfloat16"), t(*shape, dtype="bfloat16")
    one = Problem.of(one_call("aten.conv1d.default", *given, None, (1,), (taps // 2,), (1,), 2))
    assert one is not None
    assert (one.of_groups, one.algorithm) == ("long" if is_each else "",) * 2
    assert replace(one, is_channels_last=True).of_groups != "long"


@pytest.mark.parametrize(
    ("taken", "is_last", "expected"),
    [  # operands in channels-last, groups one after the other
        ("as_it_lies", False, (False, False)),
        ("as_it_lies", True, (True, False)),
        ("converted", False, (True, False)),
        ("operands_converted", False, (True, False)),
        ("converted_split", False, (True, False)),
        ("packed", False, (True, False)),
        ("packed", True, (True, False)),
        ("one_by_one", False, (False, True)),
        ("one_by_one", True, (True, True)),
        ("direct", False, (False, False)),
    ],
)
def test_how_the_kernel_of_a_way_sees_its_operands(
    taken: str, is_last: bool, expected: tuple[bool, bool], takes: Any
) -> None:
    takes(taken)
    sizes = problem(16, 16, 4, is_last=is_last).sizes
    assert (sizes.channels_last, sizes.algorithm == "one_by_one") == expected
    assert (sizes.channels, sizes.filters, sizes.groups, sizes.filter) == (64, 64, 4, (3, 3))


@pytest.mark.parametrize(
    ("one", "taken", "channels", "filters"),
    [
        # Converted channels are filled up to 8, fewer only in the operand's gradient; packed groups to a power of two.
        (problem(60, 30), "converted", 64, 32),
        (problem(60, 30), "as_it_lies", 60, 30),
        (problem(7, 30), "converted", 7, 32),
        (problem(8, 30), "converted", 8, 32),
        (problem(9, 30), "converted", 16, 32),
        (problem(7, 30, phase=WEIGHT), "converted", 7, 32),
        (problem(7, 30, phase=INPUT), "converted", 8, 32),
        (problem(12, 6, 4), "packed", 64, 64),
        (problem(16, 6, 4), "packed", 64, 64),
        (problem(12, 6, 4), "converted", 48, 24),
        (problem(12, 6, 4), "one_by_one", 48, 24),
        (problem(2, 2, 8), "packed", 32, 32),  # the fewest of a group are four
        (problem(5, 30, dtype="float32"), "converted", 8, 32),
        (problem(3, 30, dtype="float32"), "converted", 3, 32),
        (problem(60, 30, is_last=True), "converted", 64, 32),
        (problem(3, 30, is_last=True, phase=INPUT), "converted", 3, 32),
    ],
)
def test_channels_as_the_kernel_sees_them(
    one: Problem, taken: str, channels: int, filters: int, takes: Any
) -> None:
    takes(taken)
    assert (one.sizes.channels, one.sizes.filters) == (channels, filters)


@pytest.mark.parametrize(("phase", "turned"), [("forward", INPUT), (INPUT, "forward"), (WEIGHT, WEIGHT)])
def test_a_transposed_convolution_is_the_gradient_of_one(phase: Any, turned: str, takes: Any) -> None:
    """From its result to its operand."""
    takes("as_it_lies")
    sizes = problem(16, 24, transposed=True, phase=phase).sizes
    assert (sizes.phase, sizes.channels, sizes.filters) == (turned, 24, 16)
    plain = problem(16, 24, phase=phase).sizes
    assert (plain.phase, plain.channels, plain.filters) == (phase, 16, 24)
    takes("converted")
    few = problem(16, 3, transposed=True, phase=phase).sizes
    assert few.channels == (8 if turned == INPUT else 3)


def conversion(read: int, written: int, images: int, channels: int, pixels: int) -> Any:
    """In tiles of 32 channels by 32 pixels."""
    tiles = Rows(images * -(-channels // 32) * -(-pixels // 32), 1)
    return ("copy", "channels_last", 0, read, written, tiles)


X, W, OUT = 2 * 2 * 64 * 64, 2 * 32 * 64 * 9, 2 * 2 * 32 * 64  # bytes
OF_X, OF_W, OF_OUT = (
    conversion(X, X, 2, 64, 64),
    conversion(W, W, 32, 64, 9),
    conversion(OUT, OUT, 2, 32, 64),
)


@pytest.mark.parametrize(
    ("taken", "phase", "before", "after"),
    [
        ("as_it_lies", "forward", [], []),
        ("one_by_one", "forward", [], []),
        ("direct", "forward", [], []),
        ("converted", "forward", [OF_X, OF_W], [OF_OUT]),
        ("operands_converted", "forward", [OF_X, OF_W], []),
        ("converted", INPUT, [OF_OUT, OF_W], [OF_X]),
        ("converted", WEIGHT, [OF_OUT, OF_X], [OF_W]),
    ],
)
def test_conversions_before_and_after(
    taken: str, phase: Any, before: list[Any], after: list[Any], takes: Any
) -> None:
    takes(taken)
    kernels = made(problem(phase=phase).kernels(1000))
    place = next(at for at, kernel in enumerate(kernels) if kernel[0] == "convolution")
    assert (kernels[:place], kernels[place + 1 :]) == (before, after)
    read, written = {
        "forward": (X + W, OUT),
        INPUT: (OUT + W, X),
        WEIGHT: (OUT + X, W),
    }[phase]
    assert kernels[place][2:5] == (0, read, written)


def zeros(written: int) -> Any:
    return pointwise(0, 0, written)


def test_padded_channels_begin_as_zeros() -> None:
    """60 channels are 64, of the result as many as there are; a weight that is padded along both axes is copied alone."""
    one = problem(60, 30)
    x, out, weight = 2 * 2 * 60 * 64, 2 * 2 * 30 * 64, 2 * 30 * 60 * 9
    wide = x * 64 // 60
    assert made(one.conversion("x")) == [zeros(wide), conversion(x, wide, 2, 64, 64)]
    assert made(one.conversion("o")) == [conversion(out, out, 2, 30, 64)]
    wide = weight * 64 // 60
    assert made(one.conversion("w")) == [
        zeros(wide),
        ("copy", "generic", 0, weight, wide, None),
    ]
    whole = problem(60, 32)
    weight = 2 * 32 * 60 * 9
    assert made(whole.conversion("w")) == [
        zeros(weight * 64 // 60),
        conversion(weight, weight * 64 // 60, 32, 64, 9),
    ]
    assert made(problem(60, 32, batch=8).conversion("x"))[1][1] == "channels_last"


def test_with_channels_last_they_are_appended_to_each_pixel() -> None:
    one = problem(60, 32, is_last=True)
    x = 2 * 2 * 60 * 64
    tiles = Rows(2 * 2 * 2, 1)
    assert made(one.conversion("x")) == [
        zeros(x * 64 // 60),
        ("copy", "padded", 0, x, x * 64 // 60, tiles),
    ]
    assert made(one.conversion("o"))[0][1] == "channels_last"


def test_channels_that_tensor_cores_of_cudnn_cannot_read_are_multiplied_by_cublas() -> None:
    """Two images of 8 x 8 pixels; at a single pixel, cuDNN computes the gradient of the weight."""
    pixels = 2 * 8 * 8
    one = problem(60, 32, taps=1, is_last=True)
    products = [
        Product(pixels, 32, 60),
        Product(pixels, 60, 32, layout="nn"),
        Product(32, 60, pixels, layout="nt"),
    ]
    for phase, product in zip(("forward", INPUT, WEIGHT), products, strict=True):
        (kernel,) = replace(one, phase=phase).kernels(2 * pixels * 32 * 60)
        assert (kernel.family, kernel.sizes, kernel.flops) == ("matmul", product, 2 * pixels * 32 * 60)
    pixel = problem(60, 32, taps=1, side=1, is_last=True)
    assert [replace(pixel, phase=phase).kernels(1)[0].family for phase in (INPUT, WEIGHT)] == [
        "matmul",
        "convolution",
    ]
    others = [problem(64, 32, taps=1, is_last=True), problem(60, 32, taps=1), problem(60, 32, is_last=True)]
    others += [
        problem(60, 32, 2, taps=1, is_last=True),
        problem(60, 32, taps=1, is_last=True, dtype="float32"),
    ]
    assert not any(kernel.family == "matmul" for each in others for kernel in each.kernels(1))


@pytest.mark.parametrize("is_last", [False, True])
def test_packed_groups_are_padded_each(is_last: bool, takes: Any) -> None:
    """Of 12 and 6 channels 16 each: four groups are 64. With channels last, those that are 16 already stay as they are."""
    takes("packed")
    one = problem(12, 6, 4, is_last=is_last)
    x, weight, out = 2 * 2 * 48 * 64, 2 * 24 * 12 * 9, 2 * 2 * 24 * 64
    generic = ("copy", "generic", 0)
    found = [made(one.conversion(letter)) for letter in "xwo"]
    wide = [x * 16 // 12, weight * 256 // 72, out * 16 // 6]
    assert [kernels[0] for kernels in found] == [zeros(size) for size in wide]
    assert found[1][1] == (*generic, weight, wide[1], None)
    if is_last:
        assert found[0][1] == (*generic, x, wide[0], None)
    else:
        assert found[0][1] == conversion(x, wide[0], 2, 64, 64)
        assert found[2][1] == conversion(out, wide[2], 2, 64, 64)
    exact = problem(16, 16, 4, is_last=is_last)
    assert made(exact.conversion("x")) == [conversion(2 * 2 * 64 * 64, 2 * 2 * 64 * 64, 2, 64, 64)]
    families = [kernel.family for kernel in one.kernels(1)]
    assert families.count("copy") == 3
    half = [kernel.family for kernel in problem(8, 16, 4, is_last=is_last).kernels(1)]
    assert half.count("copy") == (2 if is_last else 3)
    assert one.sizes.channels == exact.sizes.channels == 4 * 16


@pytest.mark.parametrize(
    ("channels", "is_weight_last", "orders"), [(64, False, 1), (64, True, 0), (61, False, 0)]
)
def test_a_weight_in_another_order_than_its_operand_is_copied(
    channels: int, is_weight_last: bool, orders: int, takes: Any
) -> None:
    """Not where channels are padded all the same, nor for its own gradient."""
    takes("padded")
    x, shape = (2, channels, 8, 8), (32, channels, 3, 3)
    lies = {0: last(x), **({1: last(shape)} if is_weight_last else {})}
    one = Problem.of(one_call("aten.conv2d.default", g(*x), g(*shape), None, (1, 1), (1, 1), strides=lies))
    assert one is not None
    weight = 4 * 32 * channels * 9
    moved = [
        (kernel.read_bytes, kernel.written_bytes) for kernel in one.kernels(1) if kernel.variant == "strided"
    ]
    assert moved == [(weight, weight)] * orders
    if channels == 64:
        for phase, copies in ((INPUT, orders), (WEIGHT, 0)):
            families = [kernel.family for kernel in replace(one, phase=phase).kernels(1)]
            assert families == ["copy"] * copies + ["convolution"]


def test_a_bias_and_scattered_operands() -> None:
    given = t(2, 8, 6, 6), t(16, 8, 3, 3)
    results = 2 * 16 * 4 * 4
    added = pointwise(0, 4 * (results + 16), 4 * results, Strided(results, 3, 3))
    assert made(forward("aten.conv2d.default", *given, t(16)))[-1] == added
    assert forward("aten.conv2d.default", *given)[-1].family != "elementwise"
    first, *_ = forward("aten.conv2d.default", *given, strides={0: (288, 36, 1, 6)})
    size = 4 * 2 * 8 * 36
    assert (first.family, first.read_bytes, first.written_bytes) == ("copy", size, size)
    kernels = forward("aten.conv2d.default", *given, strides={0: last((2, 8, 6, 6)), 1: last((16, 8, 3, 3))})
    assert "copy" not in [kernel.family for kernel in kernels]


def test_the_gradient_of_a_bias_is_a_sum_over_images_and_positions() -> None:
    given = t(2, 8, 6, 6), t(16, 8, 3, 3), g(16)
    (summed,) = backward("aten.conv2d.default", *given)
    results = 2 * 16 * 4 * 4
    assert summed == Kernel("reduction", "float32", 0, results, 4 * results, 4 * 16, Rows(16, 32), "planes")


def conv(**wanted: bool) -> Convolution:
    types = (TensorType(shape, BFLOAT16) for shape in ((2, 64, 8, 8), (32, 64, 3, 3), (2, 32, 8, 8)))
    return Convolution(*types, (1, 1), (1, 1), 1, False, **wanted)


CONV = conv()


@pytest.mark.parametrize(
    ("layout", "gathered"),
    [
        (Layout(), 0),
        (Layout(gaps=True), X),
        (Layout(operand=True), 0),
        (Layout(operand=True, gaps=True), X),
    ],
)
def test_bytes_beside_a_convolution_and_its_gradients(
    layout: Layout, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of an operand with gaps."""
    for phase, copied in (("forward", gathered), (INPUT, 0), (WEIGHT, gathered)):
        dense = cudnn.workspace(CONV, phase, replace(layout, gaps=False), HOPPER)
        assert cudnn.workspace(CONV, phase, layout, HOPPER) == dense + copied
    own = {INPUT: 2 * 10**6, WEIGHT: 3 * 10**6}
    monkeypatch.setattr(cudnn, "workspace", lambda conv, phase, *_: own[phase])
    strides = row_major(CONV.out.shape)
    both = [2 * 10**6, 3 * 10**6]
    assert [*cudnn.gradient_bytes(CONV, layout, strides, HOPPER)] == both
    for wanted, expected in ((("wants_x",), both[:1]), (("wants_weight",), both[1:]), ((), [])):
        none = {"wants_x": False, "wants_weight": False}
        one = conv(**{**none, **dict.fromkeys(wanted, True)})
        assert [*cudnn.gradient_bytes(one, layout, strides, HOPPER)] == expected
        assert cudnn.backward_bytes(one, layout, strides, HOPPER) == max([0, *expected])
    assert cudnn.backward_bytes(CONV, layout, strides, HOPPER) == both[1]
    own[INPUT] = 4 * 10**6  # the weight's gradient has no memory yet
    assert cudnn.backward_bytes(CONV, layout, strides, HOPPER) == max(4 * 10**6 - W, both[1])
