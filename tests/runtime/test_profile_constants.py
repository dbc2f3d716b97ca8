"""Constants of a CPU: a search finds those by which kernels were made, and products of few rows are no whole tiles."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")

from graphflops.devices import Device
from graphflops.kernels.kernel import Attention, Kernel, Product, Rows
from graphflops.runtime.profile.constants import fitted
from graphflops.runtime.profile.trial import spread
from graphflops.time.predict import modelled

CPU = Device(
    name="CPU",
    kind="cpu",
    aliases=(),
    memory_bytes=2**34,
    bandwidth=4e10,
    matrix={"float32": 2e11},
    sources={},
    l2_bytes=2**25,
)


def product(m: int, n: int, k: int) -> Kernel:
    return Kernel("matmul", "float32", 2 * m * n * k, 0, 4 * k * (m + n), 4 * m * n, Product(m, n, k))


def softmax(rows: int, columns: int) -> Kernel:
    moved = 4 * rows * columns
    return Kernel("softmax", "float32", 0, 5 * rows * columns, moved, moved, Rows(rows, columns))


def attention(heads: int, length: int) -> Kernel:
    sizes = Attention(1, heads, heads, length, length, 64, kernel="efficient")
    moved = 4 * heads * length * 64
    return Kernel("attention", "float32", 4 * heads * length**2 * 64, 0, 3 * moved, moved, sizes)


def test_products_have_the_rate_and_the_floor_that_they_were_made_with() -> None:
    kernels = [product(m, 16 * n, 64 * k) for m, n, k in spread(60, (1, 3000), (1, 200), (1, 40))]
    found = [(kernel, 3e-6 + kernel.flops / 1e11) for kernel in kernels]
    tables = fitted(found, CPU)
    table = tables["matmul.tn.32"]
    assert table["floor"] == pytest.approx(3, rel=0.3)
    assert table["matrix"] == pytest.approx(0.5, rel=0.1)  # of 2e11
    known = replace(CPU, rates=tables)
    for kernel in (product(1, 1024, 1024), product(300, 700, 640)):
        assert modelled(kernel, known) == pytest.approx(3e-6 + kernel.flops / 1e11, rel=0.3)


def test_rows_have_the_rate_of_the_elements_that_they_were_made_with() -> None:
    kernels = [softmax(64 * rows, columns) for rows, columns in spread(30, (1, 100), (32, 4096))]
    found = [(kernel, 4e-6 + kernel.written_bytes / 4 * 1e-9) for kernel in kernels]
    known = replace(CPU, rates=fitted(found, CPU))
    for kernel, seconds in found:
        assert modelled(kernel, known) == pytest.approx(seconds, rel=0.25)
    assert fitted(found, CPU)["softmax.32"]["spread"] < 1.2


def test_kernels_of_each_family_have_a_table_that_any_variant_falls_back_to() -> None:
    found = [(attention(heads, 128), heads * 1e-4) for heads in range(1, 9)]
    tables = fitted(found, CPU)
    assert {"attention", "attention.32", "attention.efficient.narrow.forward.32"} == {*tables}
