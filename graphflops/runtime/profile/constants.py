"""Fits the constants of kernel families' models to measured kernels, for a device that has no constants yet: a CPU."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, log

from graphflops.base.record import replace
from graphflops.devices import Device
from graphflops.kernels.kernel import Convolution, Kernel, Strided, Windows, bytes_of
from graphflops.time.predict import modelled, names_of_constants

Measured = Sequence[tuple[Kernel, float]]
Table = dict[str, float]

# Start values of the search, in the units of the models: µs for floors, shares of ceilings, elements and FLOPs per ns.
_PRODUCT = {"floor": 2.0, "memory": 0.5, "matrix": 0.5, "half": 1e-3, "epilogue": 1e-3}
_ATTENTION = {"floor": 5.0, "memory": 0.5, "matrix": 0.3, "width": 10.0, "start": 1.0, "block": 1.0}
_DECODING = {"decoding_block": 1.0, "decoding_tile": 1e3}
_TRAFFIC = {"floor": 2.0, "memory": 0.3, "cache": 0.5, "elements": 2.0, "work": 5.0}
_OF_ROWS = {"row": 10.0, "column": 0.1}
_OF_STRIDES = {"axis": 0.05, "tensor": 0.05, "waste": 0.01, "cast": 0.1}
_OF_WINDOWS = {"position": 0.3}
_OF_CHUNKS = {"floor": 5.0, "memory": 0.3, "cache": 0.5, "column": 0.3}
# Constants that are not searched: a CPU does not split k, and unaligned rows cost it little.
_NO_SPLITS = {
    "mix": 3.0, "split": 1e3, "latency": 1e-3, "unaligned_8": 1.0, "unaligned_4": 1.0, "unaligned_2": 1.0,
}  # fmt: skip
_NO_PARTS = {"mix": 3.0, "join": 1e-3}
_STEPS = (4.0, 2.0, 1.4, 1.15)
_TURNS = 6  # passes of the search over all constants, for each step
_STAYS = 0.01  # penalty for a constant that moves by a factor of two, in octaves of the mean error
_FEWEST = 5  # kernels for which a table of their own is fitted
_NARROWEST = 1.15
_OCTAVES = 20  # by which a constant may move at most


def fitted(found: Measured, device: Device) -> dict[str, Table]:
    """The constants of each family; also by variant and width of elements, if enough such kernels were measured."""
    groups: dict[str, list[tuple[Kernel, float]]] = defaultdict(list)
    for kernel, seconds in found:
        names = names_of_constants(kernel, bytes_of(kernel.dtype))
        for name in dict.fromkeys((names[0], *names[-2:])):
            groups[name].append((kernel, seconds))
    general = {names_of_constants(kernel, 4)[-1] for kernel, _ in found}
    tables: dict[str, Table] = {}
    # By kernels, because a family and its only variant have the same ones.
    same: dict[tuple[int, ...], Table] = {}
    for name, kernels in sorted(groups.items()):
        if len(kernels) >= _FEWEST or name in general:
            key = tuple(id(kernel) for kernel, _ in kernels)
            if key not in same:
                same[key] = _searched(name, kernels, device)
            tables[name] = same[key]
    if "elementwise" in tables:
        tables["other"] = tables["elementwise"]
    return tables


def _searched(name: str, kernels: Measured, device: Device) -> Table:
    """The constants of one table, by coordinate descent: each in turn is moved as long as that lowers the mean error."""
    begun, fixed = _begun(kernels)
    free, best = dict(begun), float("inf")
    for step in _STEPS:
        for _ in range(_TURNS):
            before = best
            for constant in begun:
                for factor in (step, 1 / step):
                    moved = {**free, constant: free[constant] * factor}
                    errors = _errors(name, {**moved, **fixed}, kernels, device)
                    octaves = [abs(log(moved[key] / begun[key])) / log(2) for key in begun]
                    # mean error and mean distance from the start, in octaves
                    error = sum(errors) / len(errors) + _STAYS * sum(octaves) / len(octaves)
                    if error < best and max(octaves) < _OCTAVES:
                        free, best = moved, error
            if best > before - 1e-4:
                break
    table = {**free, **fixed}
    errors = sorted(_errors(name, table, kernels, device))
    # Nine of ten of these kernels are within this factor of their prediction.
    table |= {"spread": max(_NARROWEST, exp(log(2) * errors[round(0.9 * (len(errors) - 1))]))}
    return {key: float(f"{value:.3g}") for key, value in table.items()}


def _begun(kernels: Measured) -> tuple[Table, Table]:
    """The constants that the models of these kernels read: start values of those to search, and the fixed ones."""
    families = {kernel.family for kernel, _ in kernels}
    sizes = [kernel.sizes for kernel, _ in kernels]
    if "attention" in families:
        return {**_ATTENTION, **_DECODING}, {**_NO_PARTS}
    # A convolution where each channel is its own group is not computed as a product.
    dense = (isinstance(each, Convolution) and not 1 < each.groups == each.channels for each in sizes)
    if "matmul" in families or any(dense):
        return _PRODUCT, {**_NO_SPLITS}
    if "optimizer" in families:
        return _OF_CHUNKS, {}
    begun = {**_TRAFFIC, **_OF_ROWS}
    if any(isinstance(each, Strided) for each in sizes):
        begun |= _OF_STRIDES
    if any(isinstance(each, (Windows, Convolution)) for each in sizes):
        begun |= _OF_WINDOWS
    return begun, {}


def _errors(name: str, table: Mapping[str, float], kernels: Measured, device: Device) -> list[float]:
    known = replace(device, rates={name: {"spread": 1.0, **table}})
    return [abs(log(modelled(kernel, known) or 1e-9) - log(seconds)) / log(2) for kernel, seconds in kernels]
