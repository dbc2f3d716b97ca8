"""What a program's collectives take of a network, in words."""

from __future__ import annotations

from collections.abc import Iterable

from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.links.cost import kind_of, of_sent
from graphflops.links.network import Network


def described(kernels: Iterable[Kernel], network: Network) -> str:
    """The network of collectives, and of which groups the times are guesses; "" where no kernel is a collective."""
    groups: set[int] = set()
    guessed: set[int] = set()
    for kernel in kernels:
        if isinstance(kernel.sizes, Exchange):
            sizes, group = kernel.sizes, kernel.sizes.devices
            groups.add(group)
            within = network.within(sizes.stride)
            if of_sent(kind_of(kernel.variant), sizes.sent_bytes, group, network, within=within).is_guess:
                guessed.add(group)
    if not groups:
        return ""
    among = f"; times among {', '.join(map(str, sorted(guessed)))} devices are a guess" if guessed else ""
    return f"{network}{among}"
