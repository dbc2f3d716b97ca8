"""How cuDNN runs a convolution: its kernels, the tensors that it converts first, the parts of its sums, and their memory.

Tensor cores need channels last, in multiples of 16 bytes: cuDNN copies other tensors into that layout, and results back.
Groups are packed into one kernel, with channels padded to a power of two, or run one by one in streams, or as they lie.
Sums of many elements to few results are split into float32 parts. PyTorch itself copies tensors that lack the layout of
operand or weight. cuDNN's heuristics choose among these ways; `choices/cudnn_9.json` holds them as decision trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal, Union, cast

from msgspec import Struct

from graphflops.base.record import replace
from graphflops.devices import Platform
from graphflops.dims import Dim, dim_max, prod
from graphflops.execution.strides import Shape, has_channels_last
from graphflops.kernels.beside import reduction_bytes
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import chosen, library, limits
from graphflops.kernels.convolution import Convolution, Layout, up
from graphflops.kernels.kernel import (
    FLOAT_BYTES,
    IMAGE_RANK,
    SEQUENCE_RANK,
    Convolution as Sizes,
    ConvolutionAlgorithm,
    Kernel,
    Pass,
    Rows,
)
from graphflops.kernels.moved import copy_to, pointwise, put_in_order, sum_to

KINDS = {1: "sequence", 3: "volume"}  # by number of axes; images are told apart by their windows
STREAMS, FEW = limits("cudnn_9", "convolution", "streams few")
_PART, _MOST_PARTS, _TILE, _GROUP_TILE = limits("cudnn_9", "split", "part most_parts tile group_tile")
_MANY_ROWS, _MANY_FLOAT_ROWS = limits("cudnn_9", "split", "many_rows many_float_rows")
_LEAST_GROUPS, _LEAST_WIDTH, *_SIDES = limits("aten_2", "depthwise", "channels width small large")
_SHARED_KERNELS = frozenset((side, side) for side in _SIDES)
_SMALL_WINDOW, _FEW_STEPS, _FEW_GROUPS = limits("cudnn_9", "grouped_direct", "window steps groups")
_SIDE = 32  # channels and pixels of a tile in which a tensor is converted to channels last or back
_LONE_PARTS, _LONE_CHANNELS, _LONE_ROWS = limits("cudnn_9", "depthwise", "parts channels rows")


# converted: all tensors are copied to channels last. operands_converted: the result is written row-major. padded, of an
# operand that is channels last: channels that tensor cores cannot read. copied: few channels, to be rounded.
Conversion = Literal["as_it_lies", "converted", "operands_converted", "padded", "copied"]
# by_entry: one part of the weight's gradient for each batch entry.
Split = Literal["by_entry", "split", "converted_split", "operands_converted_split"]
# scalar: no tensor cores. direct, packed, one_by_one: of several groups.
Way = Union[Conversion, Split, Literal["scalar", "direct", "packed", "one_by_one"]]


@lru_cache(maxsize=4096)
def way(conv: Convolution, phase: str, is_last: bool) -> Way:
    """The way that cuDNN takes for a phase: forward, input_gradient or weight_gradient. is_last: of the operand."""
    if conv.is_depthwise or (conv.is_one_position and conv.groups == 1):
        return "as_it_lies"  # no conversion changes the order of elements
    if conv.groups > 1:
        if phase == "forward" and conv.is_long:
            return "direct"
        name = f"groups.{phase}{'.channels_last' if is_last else ''}"
    elif is_last:
        name = f"few_channels.{conv.x.dtype.name}"
        is_few = conv.axes == IMAGE_RANK - 2 and conv.channels < FEW and not conv.transposed
        if phase != "forward" or not is_few or name not in library("cudnn_9").choices:
            return "padded"
    else:
        is_narrow = phase == "forward" and conv.is_narrow
        of_image = "pointwise" if conv.is_pointwise else "narrow_window" if is_narrow else "window"
        kind = KINDS.get(conv.axes, of_image)
        name = f"{phase}.{kind}"
    return cast("Way", chosen(library("cudnn_9").choices[name].tree, conv))


def converted(conv: Convolution, phase: str, is_last: bool) -> str:
    """The tensors that are copied, or padded if the operand is channels last: letters of operand x, weight w, result o."""
    taken, of_weight = way(conv, phase, is_last), phase == "weight_gradient"
    if taken == "packed":
        is_x, is_out = (not is_last or size != conv.packed for size in (conv.channels, conv.results))
        return _letters(is_x, is_out)
    if not is_last:
        if not taken.startswith(("converted", "operands_converted")):
            return ""
        weight = "" if conv.is_pointwise and conv.is_aligned else "w"
        return f"x{weight}{'o' if taken.startswith('converted') else ''}"
    if taken == "copied":
        return "xw"
    is_product = conv.is_pointwise and (conv.is_one_position or not conv.is_half or not conv.is_strided)
    if taken == "as_it_lies" or conv.groups > 1 or is_product:
        return ""
    if phase != "forward" and (conv.transposed or (of_weight and not conv.is_half)):
        return ""
    is_x = conv.aligned(conv.channels) != conv.channels
    is_out = conv.aligned(conv.results) != conv.results and not conv.is_pointwise
    return _letters(is_x, is_out)


def _letters(is_x: bool, is_out: bool) -> str:
    """The letters of operand and result, and of the weight if either is copied."""
    return f"{'x' if is_x else ''}{'w' if is_x or is_out else ''}{'o' if is_out else ''}"


def is_weight_ordered(conv: Convolution, phase: str, layout: Layout) -> bool:
    """Whether PyTorch copies the weight to channels last because the operand is channels last."""
    is_other = layout.operand and not layout.weight and phase != "weight_gradient"
    return is_other and not conv.is_pointwise and not conv.is_depthwise


def backward_bytes(conv: Convolution, layout: Layout, strides: Sequence[Dim], platform: Platform) -> Dim:
    """Bytes beside all gradients. The operand's is computed first, when the weight's is not allocated yet."""
    own = [*gradient_bytes(conv, layout, strides, platform)]
    if conv.wants_x and conv.wants_weight:
        own[0] = own[0] - conv.weight.nbytes
    return dim_max(0, *own)


def gradient_bytes(conv: Convolution, layout: Layout, strides: Shape, platform: Platform) -> Sequence[Dim]:
    """Bytes beside each gradient: of operand, weight and bias. strides: those of the result's gradient."""
    wanted = {"input_gradient": conv.wants_x, "weight_gradient": conv.wants_weight}
    found = [workspace(conv, phase, layout, platform) for phase, is_wanted in wanted.items() if is_wanted]
    if conv.wants_bias:
        axes = [axis for axis in range(conv.out.rank) if axis != 1]
        found.append(reduction_bytes(conv.out.shape, strides, axes, FLOAT_BYTES, platform))
    return found


def workspace(conv: Convolution, phase: str, layout: Layout, platform: Platform) -> Dim:
    """Bytes of PyTorch's copies of operand and weight, of converted tensors, and of the parts of sums."""
    copied = conv.weight.nbytes if is_weight_ordered(conv, phase, layout) else 0
    copied += conv.x.like().nbytes if layout.gaps and phase != "input_gradient" else 0
    if conv.is_depthwise:
        # Eight float32 parts for each batch entry, if the kernel has a middle position.
        is_odd = conv.kernel[0] % 2 == 1 and not (conv.is_pointwise and conv.is_strided)
        is_last = phase == "weight_gradient" and layout.operand and conv.is_half
        if not is_last or conv.rows < _LONE_ROWS or not is_odd:
            return copied
        channels = up(conv.results * conv.groups, _LONE_CHANNELS)
        return copied + conv.x.shape[0] * (_LONE_PARTS * channels * conv.taps * FLOAT_BYTES)
    if conv.groups > 1:
        return copied + _of_groups(conv, phase, layout.operand, platform)
    letters = converted(conv, phase, layout.operand)
    is_own = way(conv, phase, layout.operand) == "copied"
    copies = {"x": conv.x.nbytes, "w": conv.weight.nbytes} if is_own else conv.copies()
    return copied + sum(copies[letter] for letter in letters) + _parts(conv, phase, layout.operand, platform)


def _parts(conv: Convolution, phase: str, is_last: bool, platform: Platform) -> Dim:
    """Bytes of the float32 parts of sums: one for each batch entry or 64 channels, or as many as keep the GPU busy."""
    taken = way(conv, phase, is_last)
    if taken == "by_entry":
        return conv.x.shape[0] * conv.float_weight
    has_many = conv.rows >= (_MANY_ROWS if conv.is_half else _MANY_FLOAT_ROWS)
    if not taken.endswith("split") and not (is_last and phase == "weight_gradient" and has_many):
        return 0
    if phase != "weight_gradient":
        summed, written = (conv.channels, conv.out) if phase == "forward" else (conv.results, conv.x)
        return prod(written.shape) * (FLOAT_BYTES * min(_MOST_PARTS, -(-summed // _PART)))
    if taken == "split" and conv.is_pointwise:
        return min(_MOST_PARTS, -(-conv.rows // (_PART if conv.is_half else _TILE))) * conv.float_weight
    taps = conv.taps if conv.channels >= _PART else 1  # with fewer channels, several taps share a tile
    tiles = taps * -(-conv.channels * (conv.taps // taps) // _TILE) * -(-conv.results // _TILE)
    return max(1, platform.multiprocessors // tiles - 1) * conv.float_weight


def _of_groups(conv: Convolution, phase: str, is_last: bool, platform: Platform) -> Dim:
    # A float32 kernel that takes groups as they are may first round what it reads.
    is_narrow = phase == "weight_gradient" and conv.wide <= _GROUP_TILE // 2 and conv.is_power
    is_rounded = conv.is_strided if phase == "input_gradient" else is_narrow
    if is_last and not conv.is_half and is_rounded:
        other = conv.weight if phase == "input_gradient" else conv.x
        return conv.out.nbytes + other.nbytes
    taken = way(conv, phase, is_last)
    if taken == "packed":
        wide, letters = conv.packed, converted(conv, phase, is_last)
        own = sum(size for letter, size in conv.copies(wide).items() if letter in letters)
        if phase != "weight_gradient" or is_last or conv.rows < _MANY_ROWS:
            return own
        # Parts of the weight's gradient, if many rows add to it: as many as keep the GPU busy.
        tile = _TILE if wide >= _TILE else _GROUP_TILE
        tiles = -(-conv.groups * wide // tile) * max(1, wide // tile) * conv.taps
        return own + max(0, platform.multiprocessors // tiles - 1) * tiles * tile * tile * FLOAT_BYTES
    if taken == "one_by_one":
        copies = conv.copies()
        # If the weight needs no copy, each running group reads its part of the weight in place.
        weight = 0 if is_last or (conv.is_pointwise and conv.is_aligned) else copies["w"]
        return (copies["x"] + weight + copies["o"]) * min(STREAMS, conv.groups) // conv.groups
    return 0


# The tensors that a phase reads, and the one that it writes.
_MOVED = {"forward": ("xw", "o"), "input_gradient": ("ow", "x"), "weight_gradient": ("ox", "w")}
_TURNED: dict[Pass, Pass] = {"forward": "input_gradient", "input_gradient": "forward"}


class Problem(Struct, frozen=True, dict=True):
    """One phase of a convolution with its tensors."""

    conv: Convolution  # what cuDNN chooses a kernel by
    x: Tensor
    weight: Tensor
    out: Tensor
    is_channels_last: bool = False  # whether the operand is; sequences are copied to row-major first
    phase: Pass = "forward"

    @staticmethod
    def of(call: ConcreteCall) -> Problem | None:
        """The forward of a call that is a convolution, or computes its gradients; None if an operand is missing."""
        conv = Convolution.of(call.call, call.bound_types)
        x, weight, out = call.operand("x"), call.operand("weight"), call.operand("grad") or call.out
        if conv is None or x is None or weight is None or out is None:
            return None
        layout = Layout.of(x.shape, x.strides, weight.shape, weight.strides)
        return Problem(conv, x, weight, out, layout.operand)

    @cached_property
    def way(self) -> Way:
        return way(self.conv, self.phase, self.is_channels_last)

    @property
    def of_groups(self) -> ConvolutionAlgorithm:
        """How groups run without tensor cores: each is a kernel (direct, long), or all are one (grouped_direct); else ""."""
        conv, is_forward = self.conv, self.phase == "forward"
        if conv.is_depthwise:
            if conv.results == 1 or conv.transposed or not self.is_channels_last:
                return ""
            is_small = conv.taps <= _SMALL_WINDOW and (conv.is_pointwise or not conv.is_strided)
            return "direct" if is_forward and not (conv.is_single or is_small) else "grouped_direct"
        if self.way != "direct" or self.is_channels_last or self.phase == "weight_gradient":
            return ""
        if is_forward and conv.is_long:
            return "long"
        if is_forward and conv.is_single and conv.is_pointwise:
            return "direct" if conv.groups <= _FEW_GROUPS else "grouped_direct"
        return "grouped_direct" if conv.steps <= _FEW_STEPS else ""

    @property
    def own(self) -> ConvolutionAlgorithm:
        """The cuDNN kernel of a depthwise float16 convolution that PyTorch leaves to cuDNN; else "".

        PyTorch does so for these windows of images, for any window of sequences, and for a stride of 1. With larger strides
        it depends, and times are about equal (Convolution.cpp).
        """
        conv, (*_, wide) = self.conv, self.x.shape
        is_known = self.x.dtype == "float16" and conv.groups >= _LEAST_GROUPS and not conv.is_strided
        if not (conv.is_depthwise and is_known) or conv.transposed or self.is_channels_last:
            return ""
        if len(self.x.shape) == SEQUENCE_RANK:
            return "line" if self.phase != "weight_gradient" else ""
        if conv.kernel not in _SHARED_KERNELS or wide < _LEAST_WIDTH:
            return ""
        if self.phase != "weight_gradient":
            return "grouped_direct" if conv.results > 1 and self.phase == "forward" else "shared"
        tree = library("cudnn_9").choices["depthwise.weight_gradient"].tree
        return cast("ConvolutionAlgorithm", chosen(tree, conv))

    @property
    def sizes(self) -> Sizes:
        """The sizes that the kernel sees: a transposed convolution is the gradient of one from its result to its operand."""
        conv = self.conv
        x, out = (self.out, self.x) if conv.transposed else (self.x, self.out)
        turned = _TURNED.get(self.phase, self.phase) if conv.transposed else self.phase
        is_converted = "converted" in self.way or (self.way == "packed" and not self.is_channels_last)
        channels, filters = x.shape[1], out.shape[1]
        is_padded = turned == "input_gradient" or (turned == "weight_gradient" and conv.axes not in (1, 2))
        is_stem = channels < conv.alignment and (self.is_channels_last or not is_padded)
        if self.way == "packed":  # the kernel of all groups may have more channels than they have
            channels = filters = conv.packed * conv.groups
        elif conv.groups == 1 and converted(conv, self.phase, self.is_channels_last):
            filters = conv.aligned(filters)
            channels = channels if is_stem else conv.aligned(channels)
        return Sizes(
            *(x.shape[0], channels, filters, x.shape[2:], out.shape[2:], self.weight.shape[2:]),
            groups=conv.groups,
            channels_last=self.is_channels_last or is_converted,
            algorithm=self.algorithm,
            phase=turned,
            is_patches=conv.is_patch and not conv.is_pointwise,
            is_dilated=conv.is_dilated,
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"x": self.x, "w": self.weight, "o": self.out}

    @property
    def algorithm(self) -> ConvolutionAlgorithm:
        """The algorithm of the kernel; "" if it may use tensor cores for all groups."""
        conv, is_plain = self.conv, self.way == "as_it_lies" and self.phase == "forward"
        is_product = conv.is_pointwise or conv.is_one_position
        if self.own:
            return self.own
        if is_plain and self.is_channels_last and conv.is_half and conv.channels < FEW and conv.groups == 1:
            return "few" if self.x.dtype == "float16" else "few_scalar"
        if is_plain and not (conv.is_depthwise or is_product or conv.is_single or self.is_channels_last):
            return "tiled"  # few row-major channels in half precision
        if self.way == "one_by_one":
            choice = library("cudnn_9").choices.get(f"transposes.{self.phase}")
            if choice is None or not conv.is_single or self.is_channels_last:
                return self.way
            return cast("ConvolutionAlgorithm", chosen(choice.tree, conv))
        if self.way == "scalar":
            return self.way
        return self.of_groups

    @property
    def launches(self) -> int:
        """Kernels that the CPU launches; groups that run one by one also convert operand, result, and maybe the weight."""
        conv = self.conv
        is_transposed = self.algorithm == "transposed"
        if self.way == "one_by_one" and (is_transposed or not (conv.is_pointwise and conv.is_single)):
            is_weight_kept = conv.is_pointwise or self.is_channels_last or is_transposed
            return conv.groups * (3 if is_weight_kept else 4)
        return conv.groups if self.way == "one_by_one" or self.of_groups in ("direct", "long") else 1

    def kernels(self, flops: int) -> list[Kernel]:
        """The kernels of the phase: conversions before and after one kernel, or only one kernel for each group."""
        reads, writes = _MOVED[self.phase]
        moved = (sum(self.tensors[each].full_bytes for each in reads), self.tensors[writes].full_bytes)
        if self.is_channels_last and self.conv.is_of_cublas(self.phase):
            return [Kernel("matmul", self.x.dtype, flops, 0, *moved, self.sizes.product)]
        kernel = Kernel("convolution", self.x.dtype, flops, 0, *moved, self.sizes, launches=self.launches)
        if self.way in ("one_by_one", "direct"):
            return [kernel]
        return [*self.converted(reads), kernel, *self.converted(writes)]

    def converted(self, letters: str) -> list[Kernel]:
        """The kernels that convert these tensors to channels last or back; tensor cores may need padded channels."""
        wanted, is_last = converted(self.conv, self.phase, self.is_channels_last), self.is_channels_last
        layout = Layout(is_last, weight=has_channels_last(self.weight.shape, self.weight.strides))
        is_ordered = "w" in letters and "w" not in wanted and is_weight_ordered(self.conv, self.phase, layout)
        ordered = put_in_order(self.weight, is_last=is_last) if is_ordered else []
        return ordered + [each for letter in letters if letter in wanted for each in self.conversion(letter)]

    def conversion(self, letter: str) -> list[Kernel]:
        """The kernels that convert one tensor, or convert it back; zeros are written first if channels are padded."""
        conv, tensor = self.conv, self.tensors[letter]
        channels = tensor.shape[1]
        if self.way == "copied":  # a copy in the same order, to be rounded
            return [copy_to(tensor, tensor)]
        is_weight, is_grouped = letter == "w", conv.groups > 1
        padded = channels if letter == "o" else conv.aligned(channels)
        if is_grouped:
            padded = conv.packed**2 if is_weight else conv.packed
            channels = {"x": conv.channels, "w": conv.weight_elements, "o": conv.results}[letter]
        written = tensor.full_bytes * padded // max(channels, 1)
        zeros = [Kernel("elementwise", tensor.dtype, written_bytes=written)] if padded > channels else []
        is_generic = (is_weight or self.is_channels_last) if is_grouped else tensor.shape[0] % conv.alignment
        if tensor.dtype == "float16" and self.phase == "forward" and conv.channels % conv.alignment:
            is_generic = is_grouped and is_generic
        moved = (tensor.full_bytes, written)
        if zeros and is_generic and (is_grouped or is_weight):  # a weight is padded along both channel axes
            return [*zeros, Kernel("copy", tensor.dtype, 0, 0, *moved, variant="generic")]
        wide, pixels = tensor.shape[1] * padded // max(channels, 1), math.prod(tensor.shape[2:])
        tiles = Rows(tensor.shape[0] * -(-wide // _SIDE) * -(-pixels // _SIDE), 1)
        # If the tensor is channels last already, padding only appends channels to each pixel.
        variant = "padded" if self.is_channels_last and zeros and not is_grouped else "channels_last"
        return [*zeros, Kernel("copy", tensor.dtype, 0, 0, *moved, tiles, variant=variant)]


def convolution(call: ConcreteCall) -> list[Kernel]:
    """Conversions, the convolution, the conversion back, the bias."""
    problem, out, cost = Problem.of(call), call.out, call.cost
    if problem is None:
        return [] if out is None else [Kernel("convolution", out.dtype, cost.matrix_flops, 0, *cost.moved)]
    if call.operand("grad") is not None:
        return convolution_backward(call)
    bias, out = call.operand("bias"), problem.out
    kernels = put_in_order(problem.x, is_last=problem.is_channels_last) + problem.kernels(cost.matrix_flops)
    if bias is not None and bias.dtype != "int32":  # integer convolutions start their sums from the bias
        ones = (1,) * (out.rank - 2)
        by_channel = replace(bias, shape=(bias.numel, *ones), strides=(1, *ones))
        kernels.append(pointwise(out, [out, by_channel], out.full_bytes + bias.nbytes, out.full_bytes))
    return kernels


def convolution_backward(call: ConcreteCall) -> list[Kernel]:
    """A convolution for each wanted gradient of operand and weight, and a sum for that of the bias."""
    if (problem := Problem.of(call)) is None:
        return []
    conv, kernels, flops = problem.conv, list[Kernel](), call.cost.matrix_flops
    if call.operand("grad") is not None:  # the recorded operator, whose work is that of all gradients
        flops //= max(conv.wants_x + conv.wants_weight, 1)
    if conv.wants_x:
        kernels += replace(problem, phase="input_gradient").kernels(flops)
    if conv.wants_weight:
        kernels += replace(problem, phase="weight_gradient").kernels(flops)
    return [*kernels, *[sum_to(problem.out, [1])] * conv.wants_bias]
