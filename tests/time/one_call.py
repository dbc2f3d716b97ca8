"""One call as it is lowered, without a program around it: `one_call("aten.relu.default", t(4, 64))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.devices import HOPPER, device
from graphflops.execution.runs import Runs
from graphflops.kernels.call import ConcreteCall, Sizes
from graphflops.kernels.gradients import backward_kernels
from graphflops.kernels.lower import forward_kernels
from graphflops.time.launches import Launcher
from tests.one_call import program_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.kernels.kernel import Kernel, Strided
    from graphflops.time.exchanges import Launches

Made = tuple[Any, ...]  # family, variant, vector work, bytes read and written, sizes


def made(kernels: Sequence[Kernel]) -> list[Made]:
    """What kernels are, do and move; their work on matrix units apart."""
    return [(k.family, k.variant, k.vector_flops, k.read_bytes, k.written_bytes, k.sizes) for k in kernels]


def pointwise(work: int, read: int, written: int, sizes: Strided | None = None) -> Made:
    """A pointwise kernel."""
    return ("elementwise", "strided" if sizes else "", work, read, written, sizes)


def copied(read: int, written: int, sizes: Strided | None = None, variant: str = "") -> Made:
    """A copy; one of bytes as they lie, unless there is a variant or the element type changes."""
    plain = "memcpy" if read == written else "narrowed"
    walked = "cast" if sizes and sizes.has_casts and sizes.axes == 1 else "strided"
    return ("copy", walked if sizes else variant or plain, 0, read, written, sizes)


def one_call(
    op: str,
    *args: Any,
    outputs: int = 1,
    strides: Mapping[Any, tuple[int, ...]] | None = None,
    out_strides: tuple[int, ...] | None = None,
    kernel: Any = None,
    is_copy: bool | None = None,
    **kwargs: Any,
) -> ConcreteCall:
    """A call in a training step. Tensors are its operands; strides: by their place, where they are not in order.

    "0_1" is the place of the second of a list.
    """
    main = program_of(op, *args, outputs=outputs, **kwargs).main
    (call,) = main.calls
    lie: dict[str, Any] = {f"x{place}": steps for place, steps in (strides or {}).items()}
    if out_strides is not None:
        lie["y0"] = out_strides
    return ConcreteCall(call, main.values, lie, Sizes({}), is_copy, kernel)


def forward(op: str, *args: Any, **more: Any) -> list[Kernel]:
    """The kernels of a call."""
    return forward_kernels(one_call(op, *args, **more))


def launcher_of(op: str, *args: Any, **more: Any) -> Launcher:
    """What lowers a call that may be made of others."""
    host = device("h200").host
    assert host is not None
    return Launcher(program_of(op, *args, **more), {}, Runs((), HOPPER, is_eager=True), host.seconds)


def kernels_of(launches: Iterable[Launches]) -> list[Kernel]:
    """The kernels of all launches."""
    return [kernel for launch in launches for kernel in launch.kernels or ()]


def launched(op: str, *args: Any) -> list[Kernel]:
    """The kernels of a call that may be made of others."""
    return kernels_of(launcher_of(op, *args).forward(records=False))


def backward(op: str, *args: Any, **more: Any) -> list[Kernel]:
    """The kernels of its gradients."""
    return backward_kernels(one_call(op, *args, **more))
