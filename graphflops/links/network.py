"""Which devices a fast link joins to a node, and what joins the nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from graphflops.devices import Device, Node, device
from graphflops.errors import OptionError, shown

_REFERENCE = "h100"  # its node is taken where a profile has none
_TEXT = re.compile(r"(?:(\d{1,4}):)?(\d{1,4})\s*x\s*(\d{1,6}(?:\.\d+)?)\s*(G|T)bit(?:/s)?", re.IGNORECASE)
_BITS = {"g": 1e9, "t": 1e12}
_SHAPE = "8x400Gbit (network links of a node x rate of each), or 4:4x200Gbit for nodes of 4 devices"


class Network(msgspec.Struct, frozen=True):
    """Devices of one profile in nodes. is_given: whether a user named the links between nodes."""

    device: Device
    node: Node
    is_given: bool = False

    @property
    def rate(self) -> float:
        """Bytes per second that each device of a node sends to other nodes while all of them do."""
        return self.node.links * self.node.bandwidth * between_nodes().share / self.node.devices

    def within(self, stride: int) -> int:
        """How many devices of a group are in one node by the distance of their ranks: a node has consecutive ones."""
        return max(1, self.node.devices // stride)

    def __str__(self) -> str:
        node = self.node
        return (
            f"{node.devices} devices a node, {node.links} x {node.bandwidth * 8 / 1e9:g} Gbit/s between nodes"
        )


class BetweenNodes(msgspec.Struct, frozen=True):
    """What NCCL reaches between nodes. share: of the line rate. latency_seconds: of a step by algorithm and protocol."""

    share: float
    latency_seconds: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, str]


def network_of(profile: Device, text: str | None = None) -> Network:
    """The network of a device's profile, with the links between nodes of a text such as `8x400Gbit`.

    Raises OptionError for a text of another form.
    """
    node = profile.node or device(_REFERENCE).node
    assert node is not None
    if text is None:
        return Network(profile, node)
    found = _TEXT.fullmatch(text.strip())
    if found is None or not all(float(part or 1) for part in found.groups()[:3]):
        raise OptionError(f"--network {shown(text)}: write {_SHAPE}")
    devices, links, rate, unit = found.groups()
    bandwidth = float(rate) * _BITS[unit.lower()] / 8
    given = replace(node, devices=int(devices or node.devices), links=int(links), bandwidth=bandwidth)
    return Network(profile, given, is_given=True)


@cache
def between_nodes() -> BetweenNodes:
    """The constants of networks between nodes."""
    data = (Path(__file__).parent / "between_nodes.json").read_bytes()
    return msgspec.json.decode(data, type=BetweenNodes)
