"""Times of recurrent layers from those of their products, with the constants that 419 layers on an H200 gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from graphflops.kernels.kernel import Kernel, Product, Recurrence
from graphflops.kernels.products import is_resident
from graphflops.time.predict_sequences import on_cpu, recurrence as seconds
from tests.time.toy_device import device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TOY = device(multiprocessors=4)
US = 1e-6


def of(products: Mapping[tuple[int, int, int], float], dtype: str = "bfloat16") -> Callable[[Kernel], float]:
    """Seconds of the products that are asked for; others are none that a layer has."""

    def predict(kernel: Kernel) -> float:
        sizes = kernel.sizes
        assert isinstance(sizes, Product)
        m, n, k = sizes.m, sizes.n, sizes.k
        assert (kernel.dtype, kernel.flops, kernel.written_bytes) == (dtype, 2 * m * n * k, 2 * m * n)
        assert kernel.read_bytes == 2 * k * (m + n)
        return products[m, n, k]

    return predict


STEPS, BATCH, INPUTS, HIDDEN = 10, 8, 64, 512
GATES = 4 * HIDDEN
ROWS = STEPS * BATCH


def lstm(
    layers: int = 1,
    directions: int = 1,
    phase: Any = "forward",
    batch: int = BATCH,
    hidden: int = HIDDEN,
) -> Recurrence:
    return Recurrence(STEPS, batch, INPUTS, hidden, 4, layers, directions, phase)


def copied(weights: int, parts: int = 1) -> float:
    """In bfloat16 the weights of each layer and direction are put in one piece by four kernels, at 0.8 TB/s."""
    return 4 * 0.86 * US * parts + 2 * weights / 0.8e12


def test_a_step_is_a_product_and_a_cell() -> None:
    """The weight is in the cache: 0.56 of a product alone. What a cell moves runs at 0.68 TB/s."""
    products = {(BATCH, GATES, HIDDEN): 100 * US, (ROWS, GATES, INPUTS): 200 * US}
    step = 0.56 * 100 * US + 3.2 * US + BATCH * GATES * 2 / 6.8e11
    weights = GATES * (INPUTS + HIDDEN)
    expected = 4.5 * US + STEPS * step + copied(weights) + 1.43 * 200 * US
    assert seconds(lstm(), "bfloat16", TOY, of(products)) == pytest.approx(expected)


def test_layers_and_directions_run_beside_one_another() -> None:
    """32 blocks of 64 gates and 8 rows fill four multiprocessors: 49 % of further layers are not beside the first."""
    one, further = (ROWS, GATES, INPUTS), (ROWS, GATES, HIDDEN)
    products = {(BATCH, GATES, HIDDEN): 100 * US, one: 200 * US, further: 300 * US}
    step = 0.56 * 100 * US + 3.2 * US + BATCH * GATES * 2 / 6.8e11
    weights = GATES * (INPUTS + HIDDEN) + 2 * GATES * 2 * HIDDEN
    expected = 4.5 * US + STEPS * step * (1 + 2 * 0.49) + copied(weights, 3) + 1.43 * 800 * US
    assert seconds(lstm(3), "bfloat16", TOY, of(products)) == pytest.approx(expected)
    wide = device(multiprocessors=1000)  # at least 34 %
    expected = 4.5 * US + STEPS * step * (1 + 2 * 0.34) + copied(weights, 3) + 1.43 * 800 * US
    assert seconds(lstm(3), "bfloat16", wide, of(products)) == pytest.approx(expected)
    middle = device(multiprocessors=80)  # 32 blocks on 80
    expected = 4.5 * US + STEPS * step * (1 + 2 * 0.4) + copied(weights, 3) + 1.43 * 800 * US
    assert seconds(lstm(3), "bfloat16", middle, of(products)) == pytest.approx(expected)
    both = {(BATCH, GATES, HIDDEN): 100 * US, one: 200 * US, (ROWS, GATES, 2 * HIDDEN): 300 * US}
    weights = 2 * (GATES * (INPUTS + HIDDEN) + GATES * (2 * HIDDEN + HIDDEN))
    expected = 4.5 * US + STEPS * step * 2 * (1 + 0.4) + copied(weights, 4) + 1.43 * 2 * 500 * US
    assert seconds(lstm(2, 2), "bfloat16", middle, of(both)) == pytest.approx(expected)


@pytest.mark.parametrize(("batch", "blocks"), [(8, 32), (9, 64), (16, 64), (17, 96)])
def test_blocks_of_a_step_are_of_64_gates_and_8_rows(batch: int, blocks: int) -> None:
    """Of 160 multiprocessors they fill a share, 34 to 49 %: so much of a further layer is not beside the first."""
    one, further = (STEPS * batch, GATES, INPUTS), (STEPS * batch, GATES, HIDDEN)
    products = {(batch, GATES, HIDDEN): 100 * US, one: 200 * US, further: 300 * US}
    step = 0.56 * 100 * US + 3.2 * US + batch * GATES * 2 / 6.8e11
    weights = GATES * (INPUTS + HIDDEN) + GATES * 2 * HIDDEN
    share = min(max(blocks / 160, 0.34), 0.49)
    expected = 4.5 * US + STEPS * step * (1 + share) + copied(weights, 2) + 1.43 * 500 * US
    found = seconds(lstm(2, batch=batch), "bfloat16", device(multiprocessors=160), of(products))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("hidden", [HIDDEN, 501])  # also where rows do not align
def test_steps_in_float32_are_products_of_twice_as_many_elements_of_half_the_width(hidden: int) -> None:
    gates = 4 * hidden
    products = {(BATCH, gates, 2 * hidden): 100 * US, (ROWS, gates, 2 * INPUTS): 200 * US}
    step = 0.8 * 100 * US + 3.7 * US + BATCH * gates * 4 / 6.8e11
    expected = 4.5 * US + STEPS * step + 1.43 * 200 * US  # weights in float32 are not copied
    assert seconds(lstm(hidden=hidden), "float32", TOY, of(products)) == pytest.approx(expected)


def test_rows_of_half_precision_that_do_not_align_take_half_as_long_again() -> None:
    hidden = 500
    gates = 4 * hidden
    for batch in (2, BATCH):
        products = {(batch, gates, hidden): 100 * US, (STEPS * batch, gates, INPUTS): 200 * US}
        step = 1.5 * 0.56 * 100 * US + 3.2 * US + batch * gates * 2 / 6.8e11
        expected = 4.5 * US + STEPS * step + copied(gates * (INPUTS + hidden)) + 1.43 * 200 * US
        found = seconds(lstm(hidden=hidden, batch=batch), "bfloat16", TOY, of(products))
        assert found == pytest.approx(expected)
    single = {(1, gates, hidden): 100 * US, (STEPS, gates, INPUTS): 200 * US}
    step = 0.56 * 100 * US + 3.2 * US + gates * 2 / 6.8e11
    expected = 4.5 * US + STEPS * step + copied(gates * (INPUTS + hidden)) + 1.43 * 200 * US
    assert seconds(lstm(hidden=hidden, batch=1), "bfloat16", TOY, of(single)) == pytest.approx(expected)


def test_gradients_go_through_the_steps_then_add_up_weights_and_biases() -> None:
    products = {
        (BATCH, HIDDEN, GATES): 100 * US,
        (ROWS, INPUTS, GATES): 200 * US,  # of the operand
        (GATES, INPUTS, ROWS): 300 * US,  # of the weights
        (GATES, HIDDEN, ROWS): 400 * US,
    }
    step = 1.18 * 100 * US + 1.74 * US + BATCH * GATES * 2 / 2.6e11
    after = 1.31 * 200 * US + 0.623 * 700 * US + ROWS * 7.6e-9
    expected = 3.3 * US + STEPS * step + after
    assert seconds(lstm(phase="backward"), "bfloat16", TOY, of(products)) == pytest.approx(expected)
    two = {**products, (ROWS, HIDDEN, GATES): 500 * US}
    after = 1.31 * 700 * US + 0.623 * (700 + 800) * US + ROWS * 7.6e-9
    share = 0.889  # 8 blocks of 64 hidden units are more than the multiprocessors
    expected = 3.3 * US + STEPS * step * (1 + share) + after
    assert seconds(lstm(2, phase="backward"), "bfloat16", TOY, of(two)) == pytest.approx(expected)
    single = {(m, n, 2 * k): time for (m, n, k), time in products.items()}
    step = 0.768 * 100 * US + 9.46 * US + BATCH * GATES * 4 / 2.6e11
    after = 1.31 * 200 * US + 0.623 * 700 * US + ROWS * 7.6e-9
    expected = 3.3 * US + STEPS * step + after
    assert seconds(lstm(phase="backward"), "float32", TOY, of(single)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("hidden", "gates", "dtype", "phase", "expected"),
    [
        (192, 4, "float16", "forward", True),  # 147,456 elements
        (193, 4, "float16", "forward", False),  # as 224 units
        (200, 3, "float32", "forward", False),
        (384, 1, "float32", "forward", True),
        (192, 4, "bfloat16", "forward", False),
        (128, 4, "float32", "backward", True),
        (129, 3, "float32", "backward", False),
        (192, 3, "float32", "forward", True),
    ],
)
def test_small_recurrent_weights_stay_on_chip(
    hidden: int, gates: int, dtype: str, phase: Any, expected: bool
) -> None:
    sizes = Recurrence(STEPS, BATCH, INPUTS, hidden, gates, phase=phase)
    assert is_resident(sizes, dtype) is expected


@pytest.mark.parametrize(
    ("batch", "hidden", "dtype", "waves"),
    [
        (8, 64, "float32", 2),
        (9, 64, "float32", 3),
        (8, 48, "float32", 1),
        (9, 48, "float16", 2),
        (64, 128, "float16", 2),
        (65, 128, "float16", 3),
        (8, 49, "float32", 2),
    ],
)
def test_a_block_goes_through_all_steps_of_a_sequence(
    batch: int, hidden: int, dtype: str, waves: int
) -> None:
    """Four multiprocessors; up to 48 hidden units two sequences share one, and eight in float16 at multiples of 128."""
    units = -(-hidden // 32) * 32
    weights = 4 * units * units
    sizes = Recurrence(STEPS, batch, INPUTS, hidden, 4, layers=1, directions=2)
    wide = 2 if dtype == "float32" else 1  # TF32
    products = {(STEPS * batch, 4 * hidden, INPUTS * wide): 200 * US}
    again = max(0, weights - 49_152) * 4 / 90e9
    each = waves * (1.0 * US + 5.2e-10 * weights + STEPS * (3.5e-7 + 6.5e-12 * weights + again))
    expected = 5.3 * US + 2 * each + 2 * 200 * US
    known = "bfloat16" if dtype == "float32" else dtype
    assert seconds(sizes, dtype, TOY, of(products, known)) == pytest.approx(expected)


def test_weights_beyond_the_registers_are_read_in_each_step() -> None:
    """150 hidden units run as 160: 102,400 elements, of which 49,152 stay in registers, the others at 90 GB/s in float32."""
    weights = 4 * 160 * 160
    products = {(ROWS, 600, 2 * INPUTS): 200 * US}
    step = 3.5e-7 + 6.5e-12 * weights + 4 * (weights - 49_152) / 90e9
    each = 2 * (1.0 * US + 5.2e-10 * weights + STEPS * step)
    assert seconds(lstm(hidden=150), "float32", TOY, of(products)) == pytest.approx(
        5.3 * US + each + 200 * US
    )


def test_steps_of_one_sequence_in_float32_are_not_split() -> None:
    products = {(1, HIDDEN, 2 * GATES): 100 * US}
    products |= {
        (STEPS, INPUTS, 2 * GATES): 0.0,
        (GATES, INPUTS, 2 * STEPS): 0.0,
        (GATES, HIDDEN, 2 * STEPS): 0.0,
    }
    step = 0.768 * 100 * US + 1.74 * US + GATES * 4 / 2.6e11
    found = seconds(lstm(batch=1, phase="backward"), "float32", TOY, of(products))
    assert found == pytest.approx(3.3 * US + STEPS * (step + 7.6e-9))


def test_gradients_of_weights_on_chip() -> None:
    weights = 4 * 64 * 64
    products = {
        (ROWS, INPUTS, 2 * 256): 200 * US,
        (256, INPUTS, 2 * ROWS): 300 * US,
        # the recurrent weight is as wide as the operand
    }
    each = 2 * (2.5 * US + 6e-11 * weights + STEPS * (4e-7 + 1.1e-11 * weights))
    after = 1.31 * 200 * US + 0.623 * 600 * US + ROWS * 7.6e-9
    found = seconds(lstm(hidden=64, phase="backward"), "float32", TOY, of(products))
    assert found == pytest.approx(12.7 * US + each + after)


@pytest.mark.parametrize(("phase", "turns"), [("forward", 1), ("backward", 3)])
def test_a_cpu_computes_step_after_step(phase: Any, turns: int) -> None:
    cpu = device(kind="cpu")
    products = {
        (ROWS, GATES, INPUTS): 200.0,
        (ROWS, GATES, 2 * HIDDEN): 300.0,
        (BATCH, GATES, HIDDEN): 100.0,
    }
    expected = turns * 2 * (200 + 300 + 2 * STEPS * 0.56 * 100)
    assert on_cpu(lstm(2, 2, phase), "bfloat16", cpu, of(products)) == pytest.approx(expected)
