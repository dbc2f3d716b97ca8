"""What each way of dividing a program among devices exchanges, as collectives: closed forms of docs/parallel.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from graphflops.links import Kind, link_bytes


class Collective(NamedTuple):
    """A collective over a group. nbytes: of the operand of one device. times: how often it runs."""

    kind: Kind
    nbytes: int
    group: int
    times: int = 1


class Exchanged(NamedTuple):
    """The collectives of one step, of its forward and of its backward."""

    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()


def sent(collectives: Iterable[Collective]) -> int:
    """Bytes that each device sends."""
    return sum(link_bytes(kind, nbytes, group) * times for kind, nbytes, group, times in collectives)


def data_parallel(gradients: int, group: int) -> Exchanged:
    """Gradients of so many bytes are summed over devices that hold all parameters each."""
    return Exchanged(backward=(Collective("all_reduce", gradients, group),))


def fully_sharded(
    parameters: int, group: int, *, gathers_again: bool = True, gradients: int | None = None
) -> Exchanged:
    """Parameters in shards are gathered where they are used, and their gradients scattered (FSDP, ZeRO-3).

    parameters: bytes of all shards as they are sent; gradients: of all gradients, by default as many. gathers_again: whether
    the backward gathers them again because the forward freed them.
    """
    gathered = Collective("all_gather", parameters // group, group)
    scattered = Collective("reduce_scatter", parameters if gradients is None else gradients, group)
    return Exchanged((gathered,), (gathered, scattered) if gathers_again else (scattered,))


def tensor_parallel(hidden: int, layers: int, group: int) -> Exchanged:
    """Sums after the attention and the feed-forward of each layer, and of their inputs' gradients (Megatron).

    hidden: bytes of the hidden states of all tokens of one device.
    """
    sums = (Collective("all_reduce", hidden, group, 2 * layers),)
    return Exchanged(sums, sums)


def sequence_parallel(hidden: int, layers: int, group: int) -> Exchanged:
    """The same with hidden states in shards by token between the products: sums become a scattering and a gathering."""
    gathered = Collective("all_gather", hidden // group, group, 2 * layers)
    scattered = Collective("reduce_scatter", hidden, group, 2 * layers)
    return Exchanged((gathered, scattered), (scattered, gathered))


def expert_parallel(hidden: int, chosen: int, layers: int, group: int) -> Exchanged:
    """Tokens go to the devices of their experts and back. hidden: bytes of one device's tokens; chosen: experts of each."""
    passed = (Collective("all_to_all", hidden * chosen, group, 2 * layers),)
    return Exchanged(passed, passed)


def context_parallel(keys_values: int, layers: int, group: int) -> Exchanged:
    """Keys and values of all devices are gathered, their gradients scattered. keys_values: bytes of both of one device."""
    gathered = Collective("all_gather", keys_values, group, layers)
    scattered = Collective("reduce_scatter", keys_values * group, group, layers)
    return Exchanged((gathered,), (scattered,))


def ring_attention(keys_values: int, layers: int, group: int) -> Exchanged:
    """Keys and values go from device to device, again in the backward, and their gradients in float32 all the way around.

    keys_values: bytes of both of one device, in a type of two bytes.
    """
    others = Collective("send", keys_values, 2, layers * (group - 1))
    return Exchanged((others,), (others, Collective("send", 2 * keys_values, 2, layers * group)))
