"""What decides which kernels PyTorch launches: the device's architecture, and the release whose kernels are known."""

from __future__ import annotations

from typing import NamedTuple

from graphflops.devices.device import Device
from graphflops.errors import OptionError, shown
from graphflops.kernels.choices import library

Capability = tuple[int, int]  # CUDA's compute capability; (0, 0) of a GPU that does not run CUDA

# Resident threads of a multiprocessor (CUDA C++ Programming Guide, technical specifications per compute capability).
_THREADS = {(7, 5): 1024, **dict.fromkeys(((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)), 1536)}
_MOST_THREADS = 2048


_TORCH = library("aten_2")


class Platform(NamedTuple):
    """A device as its libraries see it. torch: the release of PyTorch whose choices of kernels are assumed, as `2.11`;
    cudnn: the release of cuDNN that its packages on PyPI require, as cuDNN numbers it: 91900 is 9.19.0.
    """

    capability: Capability = (9, 0)
    multiprocessors: int = 132
    torch: str = _TORCH.measured
    cudnn: int = _TORCH.releases[_TORCH.measured]["cudnn"]

    @property
    def threads(self) -> int:
        """Threads that the device holds at once."""
        return self.multiprocessors * self.threads_each

    @property
    def threads_each(self) -> int:
        """Threads that one multiprocessor holds at once."""
        return _THREADS.get(self.capability, _MOST_THREADS)


HOPPER = Platform()  # an H200, and what is assumed where no device is named


def platform_of(device: Device | None, torch: str | None = None) -> Platform:
    """The platform of a device under a release of PyTorch, by default the one that was measured.

    Where a GPU's profile does not say what it is, and of what is no GPU, the device is an H200.
    """
    release = HOPPER.torch if torch is None else torch
    if release not in _TORCH.releases:
        known = ", ".join(_TORCH.releases)
        raise OptionError(f"--torch {shown(release)}: choices of kernels are known of PyTorch {known}")
    platform = HOPPER._replace(torch=release, cudnn=_TORCH.releases[release]["cudnn"])
    if device is None or device.kind != "gpu":
        return platform
    return platform._replace(
        capability=device.capability or HOPPER.capability,
        multiprocessors=device.multiprocessors or HOPPER.multiprocessors,
    )
