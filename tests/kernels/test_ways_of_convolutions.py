"""What follows from each way that cuDNN may take: tensors that are converted, bytes of their copies and of parts of sums.

A test names the way; which one cuDNN takes for which sizes is another question.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.kernels import cudnn
from graphflops.kernels.choices import Choice
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.tensor import BFLOAT16, FLOAT32, TensorType

FORWARD, INPUT, WEIGHT = "forward", "input_gradient", "weight_gradient"
ONE = {"side": 1, "taps": (1, 1)}


def conv(
    channels: int = 64,
    results: int = 32,
    groups: int = 1,
    *,
    batch: int = 2,
    side: int = 8,
    taps: tuple[int, ...] = (3, 3),
    to: int | None = None,
    stride: int = 1,
    half: bool = True,
    transposed: bool = False,
    **wanted: bool,
) -> Convolution:
    """Square images with so many channels in each group. to: the side of the result, where it is another."""
    axes, dtype = len(taps), BFLOAT16 if half else FLOAT32
    return Convolution(
        TensorType((batch, channels * groups, *[side] * axes), dtype),
        TensorType((results * groups, channels, *taps), dtype),
        TensorType((batch, results * groups, *[to or side] * axes), dtype),
        *((stride,) * axes, tuple(size // 2 for size in taps)),
        groups,
        transposed,
        **wanted,
    )


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets cuDNN take a way."""
    return lambda taken: monkeypatch.setattr(cudnn, "way", lambda *_: taken)


@pytest.mark.parametrize(
    ("one", "phase", "is_last", "expected"),
    [
        (conv(), FORWARD, False, "forward.window"),
        (conv(taps=(1, 1)), WEIGHT, False, "weight_gradient.pointwise"),
        (conv(), INPUT, True, "padded"),
        (conv(3), FORWARD, True, "few_channels.bfloat16"),
        (conv(3), WEIGHT, True, "padded"),
        (conv(8), FORWARD, True, "padded"),
        (conv(3, taps=(3, 3, 3)), FORWARD, True, "padded"),
        (conv(side=1), FORWARD, False, "as_it_lies"),  # one position has its channels last either way
        (conv(side=1, to=2), FORWARD, False, "forward.window"),
        (conv(side=2, to=1), FORWARD, False, "forward.window"),
        (conv(side=2), FORWARD, False, "forward.window"),
        (conv(groups=2), FORWARD, False, "groups.forward"),
        (conv(groups=2), FORWARD, True, "groups.forward.channels_last"),
        (conv(groups=2, side=1), WEIGHT, False, "groups.weight_gradient"),
        (conv(1, 3, 8), FORWARD, False, "as_it_lies"),  # one channel a group
        (conv(1, 3, 8), FORWARD, True, "as_it_lies"),
        (conv(1, 3, 1), FORWARD, False, "forward.window"),
        # Long windows of sequences in groups whose channels are no power of two.
        (conv(48, 48, 2, taps=(128,)), FORWARD, False, "direct"),
        (conv(12, 12, 2, taps=(31,)), FORWARD, False, "groups.forward"),
        (conv(16, 16, 2, taps=(32,)), FORWARD, False, "groups.forward"),
        (conv(12, 12, 2, taps=(32,)), INPUT, False, "groups.input_gradient"),
        (conv(12, 12, 2, taps=(32, 1)), FORWARD, False, "groups.forward"),
        (conv(12, 12, 1, taps=(32,)), FORWARD, False, "forward.sequence"),
        (conv(taps=(1,)), WEIGHT, False, "weight_gradient.sequence"),
        (conv(taps=(1, 1, 1)), INPUT, False, "input_gradient.volume"),
    ],
)
def test_which_choice_decides(
    one: Convolution, phase: str, is_last: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        *(f"{phase}.{kind}" for kind in ("window", "pointwise", "sequence", "volume")),
        *(f"groups.{phase}", f"groups.{phase}.channels_last", "few_channels.bfloat16"),
    ]
    known = SimpleNamespace(choices={name: Choice(1, 0.1, name) for name in names})
    monkeypatch.setattr(cudnn, "library", lambda _: known)
    assert cudnn.way.__wrapped__(one, phase, is_last) == expected


@pytest.mark.parametrize(
    ("taken", "window", "aligned", "uneven"),
    [  # of a window, of one position with a multiple of 8 channels, and with another number of them
        ("as_it_lies", "", "", ""),
        ("direct", "", "", ""),
        ("one_by_one", "", "", ""),
        ("by_entry", "", "", ""),
        ("split", "", "", ""),
        ("packed", "xwo", "xwo", "xwo"),
        ("converted", "xwo", "xo", "xwo"),
        ("converted_split", "xwo", "xo", "xwo"),
        ("operands_converted", "xw", "x", "xw"),
        ("operands_converted_split", "xw", "x", "xw"),
    ],
)
def test_which_tensors_are_converted(taken: str, window: str, aligned: str, uneven: str, takes: Any) -> None:
    takes(taken)
    for phase in (FORWARD, INPUT, WEIGHT):
        assert cudnn.converted(conv(), phase, False) == window
        assert cudnn.converted(conv(taps=(1, 1)), phase, False) == aligned
        assert cudnn.converted(conv(60, 32, taps=(1, 1)), phase, False) == uneven
        assert cudnn.converted(conv(64, 30, taps=(1, 1)), phase, False) == uneven


@pytest.mark.parametrize(
    ("one", "forward", "of_input", "of_weight"),
    [
        # With channels last those that are not a multiple of 16 bytes are padded, the weight along both of its axes.
        (conv(), "", "", ""),
        (conv(60), "xw", "xw", "xw"),
        (conv(64, 30), "wo", "wo", "wo"),
        (conv(60, 30), "xwo", "xwo", "xwo"),
        (conv(60, 30, half=False), "wo", "wo", ""),  # four channels of float32 are enough; of 30 two miss
        (conv(61, 32, half=False), "xw", "xw", ""),
        (conv(60, 30, transposed=True), "xwo", "", ""),
        (conv(60, 30, 2), "", "", "xwo"),  # packed, of 64 channels each
        (conv(60, 30, taps=(1, 1)), "", "", ""),  # cuBLAS multiplies any channels
        (conv(60, 30, taps=(1, 1), stride=2), "xw", "xw", "xw"),  # a product reads any result
        (conv(64, 30, taps=(1, 1)), "", "", ""),
        (conv(61, 32, taps=(1, 1), half=False), "", "", ""),
    ],
)
def test_which_tensors_are_padded(one: Convolution, forward: str, of_input: str, of_weight: str) -> None:
    found = [cudnn.converted(one, phase, True) for phase in (FORWARD, INPUT, WEIGHT)]
    assert found == [forward, of_input, of_weight]


@pytest.mark.parametrize(
    ("one", "layout", "phase", "expected"),
    [
        (conv(), Layout(operand=True), FORWARD, True),
        (conv(), Layout(operand=True), INPUT, True),
        (conv(), Layout(operand=True), WEIGHT, False),  # it reads no weight
        (conv(), Layout(operand=True, weight=True), FORWARD, False),
        (conv(), Layout(), FORWARD, False),
        (conv(), Layout(weight=True), FORWARD, False),
        (conv(taps=(1, 1)), Layout(operand=True), FORWARD, False),
        (conv(1, 1, 8), Layout(operand=True), FORWARD, False),
        (conv(2, 2, 8), Layout(operand=True), FORWARD, True),
    ],
)
def test_whether_the_weight_is_put_in_order(
    one: Convolution, layout: Layout, phase: str, expected: bool, takes: Any
) -> None:
    takes("as_it_lies")
    assert cudnn.is_weight_ordered(one, phase, layout) is expected
    assert cudnn.workspace(one, phase, layout, HOPPER) == (one.weight.nbytes if expected else 0)


X, W, OUT = 2 * 2 * 64 * 64, 2 * 32 * 64 * 9, 2 * 2 * 32 * 64  # bytes of operand, weight and result


@pytest.mark.parametrize(
    ("taken", "phase", "expected"),
    [
        ("as_it_lies", FORWARD, 0),
        ("converted", FORWARD, X + W + OUT),
        ("operands_converted", INPUT, X + W),
        # Sums over 64 channels, or 32 results, are one part of what is written, in float32.
        ("split", FORWARD, 2 * OUT),
        ("converted_split", FORWARD, X + W + OUT + 2 * OUT),
        ("split", INPUT, 2 * X),
        ("operands_converted_split", INPUT, X + W + 2 * X),
        # A gradient of the weight in float32 for each of two images; or one for every tile, of nine, less one.
        ("by_entry", WEIGHT, 2 * 2 * W),
        ("split", WEIGHT, (132 // 9 - 1) * 2 * W),
    ],
)
def test_bytes_of_copies_and_parts(taken: str, phase: str, expected: int, takes: Any) -> None:
    takes(taken)
    assert cudnn.workspace(conv(), phase, Layout(), HOPPER) == expected


@pytest.mark.parametrize(
    ("one", "phase", "parts"),
    [
        # Sums of up to 64 are one part, of more at most 16.
        (conv(65), FORWARD, 2),
        (conv(128), FORWARD, 2),
        (conv(16 * 64), FORWARD, 16),
        (conv(17 * 64), FORWARD, 16),
        (conv(64, 65), INPUT, 2),
        (conv(64, 20 * 64), INPUT, 16),
        # Of a product the rows are what is added up: 64 a part, of float32 128.
        (conv(taps=(1, 1)), WEIGHT, 2),
        (conv(taps=(1, 1), batch=1), WEIGHT, 1),
        (conv(taps=(1, 1), batch=3), WEIGHT, 3),
        (conv(taps=(1, 1), batch=50), WEIGHT, 16),
        (conv(taps=(1, 1), half=False), WEIGHT, 1),
        (conv(taps=(1, 1), batch=3, half=False), WEIGHT, 2),
        # Of a window as many as keep 132 multiprocessors busy: a tile of 128 x 128 for each tap, of fewer than 64 channels
        # one for all taps.
        (conv(64, 32), WEIGHT, 132 // 9 - 1),
        (conv(32, 32), WEIGHT, 132 // 3 - 1),
        (conv(63, 32), WEIGHT, 132 // 5 - 1),
        (conv(128, 128), WEIGHT, 132 // 9 - 1),
        (conv(129, 128), WEIGHT, 132 // 18 - 1),
        (conv(128, 129), WEIGHT, 132 // 18 - 1),
        (conv(129, 129), WEIGHT, 132 // 36 - 1),
        (conv(256, 512), WEIGHT, 1),
    ],
)
def test_parts_of_sums(one: Convolution, phase: str, parts: int, takes: Any) -> None:
    takes("split")
    written = {FORWARD: one.out, INPUT: one.x, WEIGHT: one.weight}[phase]
    elements = written.nbytes // (2 if one.is_half else 4)  # type: ignore[operator]
    assert cudnn.workspace(one, phase, Layout(), HOPPER) == parts * 4 * elements


@pytest.mark.parametrize(
    ("rows", "half", "is_last", "phase", "has_parts"),
    [
        (12_000, True, True, WEIGHT, True),
        (11_999, True, True, WEIGHT, False),
        (2000, False, True, WEIGHT, True),
        (1999, False, True, WEIGHT, False),
        (12_000, True, False, WEIGHT, False),
        (12_000, True, True, INPUT, False),
        (12_000, True, True, FORWARD, False),
    ],
)
def test_many_rows_are_added_up_in_parts(
    rows: int, half: bool, is_last: bool, phase: str, has_parts: bool, takes: Any
) -> None:
    """With channels last, of whatever way."""
    takes("as_it_lies")
    one = conv(64, 32, batch=rows, side=1, taps=(3, 3), half=half)
    expected = (132 // 9 - 1) * 4 * 64 * 32 * 9 if has_parts else 0
    layout = Layout(operand=is_last, weight=is_last)
    assert cudnn.workspace(one, phase, layout, HOPPER) == expected


@pytest.mark.parametrize(
    ("one", "phase", "is_last", "expected"),
    [
        # Groups of 12 and 6 channels, filled up to 16 where they are packed.
        (conv(12, 6, 4), FORWARD, False, 2 * (2 * 64 * 4 * (16 + 16) + 4 * 16 * 16 * 9)),
        (conv(12, 6, 4), WEIGHT, False, 2 * (2 * 64 * 4 * (16 + 16) + 4 * 16 * 16 * 9)),
        (conv(12, 6, 4), FORWARD, True, 2 * (2 * 64 * 4 * (16 + 16) + 4 * 16 * 16 * 9) + 2 * 24 * 12 * 9),
        # Many rows in float32 tiles of 64 x 64, as many as keep the GPU busy: nine for one group of 64 together.
        (conv(16, 16, 4, batch=12_000, side=1), WEIGHT, False,
         2 * (2 * 12_000 * 64 + 64 * 16 * 9) + (132 // 9 - 1) * 9 * 64 * 64 * 4),
        (conv(16, 16, 4, batch=11_999, side=1), WEIGHT, False, 2 * (2 * 11_999 * 64 + 64 * 16 * 9)),
        (conv(16, 16, 4, batch=12_000, side=1), FORWARD, False, 2 * (2 * 12_000 * 64 + 64 * 16 * 9)),
        (conv(16, 16, 4, batch=12_000, side=1), WEIGHT, True, 0),  # of as many channels as the kernel has
        (conv(8, 16, 4, batch=12_000, side=1), WEIGHT, True, 2 * (12_000 * 64 + 64 * 16 * 9)),
        (conv(16, 16, 5, batch=12_000, side=1), WEIGHT, False,
         2 * (2 * 12_000 * 80 + 80 * 16 * 9) + (132 // 18 - 1) * 18 * 64 * 64 * 4),
        (conv(128, 128, 2, batch=12_000, side=1), WEIGHT, False,
         2 * (2 * 12_000 * 256 + 256 * 128 * 9) + (132 // 18 - 1) * 18 * 128 * 128 * 4),
        (conv(256, 256, 2, batch=12_000, side=1), WEIGHT, False,
         2 * (2 * 12_000 * 512 + 512 * 256 * 9) + (132 // 72 - 1) * 72 * 128 * 128 * 4),
    ],
)  # fmt: skip
def test_packed_groups(one: Convolution, phase: str, is_last: bool, expected: int, takes: Any) -> None:
    takes("packed")
    assert cudnn.workspace(one, phase, Layout(operand=is_last), HOPPER) == expected


@pytest.mark.parametrize(
    ("groups", "together", "taps", "is_last", "channels", "has_weight"),
    [
        (4, 4, (3, 3), False, 16, True),
        (8, 8, (3, 3), False, 16, True),
        (16, 8, (3, 3), False, 16, True),
        (16, 8, (3, 3), True, 16, False),
        (16, 8, (1, 1), False, 16, False),
        (16, 8, (1, 1), False, 12, True),  # filled up to 16
    ],
)
def test_groups_one_by_one(
    groups: int,
    together: int,
    taps: tuple[int, ...],
    is_last: bool,
    channels: int,
    has_weight: bool,
    takes: Any,
) -> None:
    """Copies of the groups that run at a time, eight at most."""
    takes("one_by_one")
    weight = 2 * 16 * 16 * taps[0] ** 2 if has_weight else 0
    each = 2 * 2 * 64 * 16 + weight + 2 * 2 * 64 * 16
    found = cudnn.workspace(
        conv(channels, 16, groups, taps=taps), FORWARD, Layout(is_last, weight=is_last), HOPPER
    )
    assert found == together * each


@pytest.mark.parametrize(
    ("one", "phase", "is_last", "expected"),
    [
        # Float32 groups with channels last, as they are: what is read is rounded to TF32, half precision is not.
        (conv(8, 16, 4, half=False, stride=2), INPUT, True, "ow"),
        (conv(8, 16, 4, half=False), INPUT, True, ""),
        (conv(8, 16, 4, half=False), WEIGHT, True, "ox"),
        (conv(32, 16, 4, half=False), WEIGHT, True, "ox"),
        (conv(33, 64, 4, half=False), WEIGHT, True, ""),
        (conv(64, 16, 4, half=False), WEIGHT, True, ""),
        (conv(12, 12, 4, half=False), WEIGHT, True, ""),  # no power of two
        (conv(8, 16, 4, half=False, stride=2), FORWARD, True, ""),
        (conv(8, 16, 4, half=False), WEIGHT, False, ""),
        (conv(8, 16, 4), WEIGHT, True, ""),
    ],
)
def test_groups_that_are_rounded_first(
    one: Convolution, phase: str, is_last: bool, expected: str, takes: Any
) -> None:
    takes("direct")
    sizes = {"x": one.x.nbytes, "w": one.weight.nbytes, "o": one.out.nbytes}
    found = cudnn.workspace(one, phase, Layout(is_last, weight=is_last), HOPPER)
    assert found == sum(sizes[letter] for letter in expected)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("one", "phase", "is_last", "channels"),
    [
        # Eight parts of float32 for each image, of channels filled up to 32, of windows with a middle.
        (conv(1, 1, 32), WEIGHT, True, 0),  # 128 rows are few
        (conv(1, 1, 32, batch=8), WEIGHT, True, 32),
        (conv(1, 1, 33, batch=8), WEIGHT, True, 64),
        (conv(1, 2, 33, batch=8), WEIGHT, True, 96),
        (conv(1, 1, 32, batch=511, side=1), WEIGHT, True, 0),
        (conv(1, 1, 32, batch=8, taps=(2, 2)), WEIGHT, True, 0),
        (conv(1, 1, 32, batch=8, taps=(1, 1)), WEIGHT, True, 32),
        (conv(1, 1, 32, batch=8, taps=(1, 1), stride=2), WEIGHT, True, 0),
        (conv(1, 1, 32, batch=8, stride=2), WEIGHT, True, 32),
        (conv(1, 1, 32, batch=8, taps=(5, 4)), WEIGHT, True, 32),
        (conv(1, 1, 32, batch=8), WEIGHT, False, 0),
        (conv(1, 1, 32, batch=8), INPUT, True, 0),
        (conv(1, 1, 32, batch=8), FORWARD, True, 0),
        (conv(1, 1, 32, batch=8, half=False), WEIGHT, True, 0),
    ],
)
def test_parts_of_depthwise_weights(one: Convolution, phase: str, is_last: bool, channels: int) -> None:
    expected = 8 * 8 * channels * one.taps * 4
    assert cudnn.workspace(one, phase, Layout(is_last, weight=is_last), HOPPER) == expected


@pytest.mark.parametrize(
    ("channels", "taps", "half", "is_long"),
    [
        (48, (128,), True, True),
        (48, (96,), True, False),
        (160, (31,), True, False),
        (48, (128, 1), True, False),  # of images
        (64, (128,), True, False),
        (48, (128,), False, False),
    ],
)
def test_long_windows_of_sequences_in_half_precision(
    channels: int, taps: tuple[int, ...], half: bool, is_long: bool
) -> None:
    """Of more than 31 positions, over channels that are no power of two, if their sums are long."""
    assert conv(channels, channels, 8, taps=taps, half=half).is_long is is_long
