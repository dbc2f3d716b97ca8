"""Fourier transforms as ATen computes them (SpectralOps.cpp): padded operands, cuFFT's transform, what scales the result."""

from __future__ import annotations

from graphflops.dims import Dim, same
from graphflops.errors import RuleError
from graphflops.execution.composites import Calls, Operand, composite, gradient, kernel
from graphflops.rules.elementwise import complex_of
from graphflops.rules.shapes import axes

Axes = tuple[int, ...]
_PUBLIC = [
    f"fft_{inverse}{real}fft{rank}" for inverse in ("", "i") for real in ("", "r") for rank in ("", "2", "n")
]
_LAST = {"t": (-1,), "2": (-2, -1)}  # axes that are meant without names, by the last letter of the operator


@composite(*_PUBLIC)
def transformed(
    t: Calls,
    x: Operand,
    sizes: Dim | tuple[Dim, ...] | None = None,
    dim: int | Axes | None = None,
    norm: str | None = None,
) -> Operand:
    """One transform of the operand, cut and filled up to the sizes along the axes."""
    word = t.of.node.operator.word
    is_inverse, is_real = word.startswith("fft_i"), "rfft" in word
    wanted = sizes if sizes is None or isinstance(sizes, tuple) else (sizes,)
    meant = _LAST.get(word[-1], tuple(range(-len(wanted), 0)) if wanted else None)
    places = axes(meant if dim is None else dim, x.rank)
    scaled = 1 if norm == "ortho" else 2 * ((norm in (None, "backward")) == is_inverse)  # by a root, or whole
    last = places[-1]
    whole = wanted[-1] if wanted else 2 * (x.shape[last] - 1)
    if is_real and is_inverse and wanted:
        wanted = (*wanted[:-1], whole // 2 + 1)
    if not is_real and word[-1] != "t" and x.type.dtype.kind != "complex":
        x = t._to_copy(x, dtype=complex_of(x.type.dtype))
    for place, size in zip(places, wanted or (), strict=False):
        x = _resized(t, x, place, size)
    if is_real and is_inverse:
        return t.call("aten._fft_c2r.default", x, places, scaled, whole)
    if x.type.dtype.kind == "complex":
        return t.call("aten._fft_c2c.default", x, places, scaled, not is_inverse)
    return t.call("aten._fft_r2c.default", x, places, scaled, is_real)


def _resized(t: Calls, x: Operand, place: int, size: Dim) -> Operand:
    """The operand with an axis of this size; -1 leaves it."""
    before = x.shape[place]
    if same(size, -1) or same(size, before):
        return x
    if not isinstance(size, int) or not isinstance(before, int):
        raise RuleError(str(size))
    if size < before:
        return t.slice(x, place, 0, size)
    return t.constant_pad_nd(x, (*(0, 0) * (x.rank - 1 - place), 0, size - before))


@kernel("_fft_c2c", "_fft_r2c")
def transform_kernels(t: Calls, x: Operand, dim: Axes, scaled: int, flag: bool) -> None:
    """The transform of cuFFT. flag: whether it goes forward, or leaves out the frequencies that others tell."""
    _scaled(t, t.call(f"prims.{t.of.node.operator.word.removeprefix('_')}.default", x, dim, flag), scaled)


@kernel("_fft_c2r")
def inverse_kernels(t: Calls, x: Operand, dim: Axes, scaled: int, last: Dim) -> None:
    """CuFFT may overwrite its operand, so it gets a copy."""
    _scaled(t, t.call("prims.fft_c2r.default", t.clone(x), dim, last_dim_size=last), scaled)


def _scaled(t: Calls, made: Operand, scaled: int) -> None:
    if scaled:
        t.mul_(made, 1.0)


@gradient("_fft_c2c")
def complex_gradient(t: Calls, x: Operand, dim: Axes, scaled: int, forward: bool) -> None:
    """The transform the other way."""
    t.call("aten._fft_c2c.default", t.g, dim, scaled, not forward)


@gradient("_fft_r2c")
def real_gradient(t: Calls, x: Operand, dim: Axes, scaled: int, onesided: bool) -> None:
    """The inverse of all frequencies; those that the result leaves out are zeros."""
    g, last = t.g, axes(dim, x.rank)[-1]
    if onesided:
        g = t.new_zeros(t.g, x.shape)
        t.copy_(t.slice(g, last, 0, t.g.shape[last]), t.g)
    t.view_as_real(t.call("aten._fft_c2c.default", g, dim, scaled, False))


@gradient("_fft_c2r")
def inverse_gradient(t: Calls, x: Operand, dim: Axes, scaled: int, size: Dim) -> None:
    """The frequencies of the gradient; those that stand for two are doubled."""
    made, last = t.call("aten._fft_r2c.default", t.g, dim, scaled, True), axes(dim, x.rank)[-1]
    t.mul_(t.slice(made, last, 1, size - made.shape[last] + 1), 2)
