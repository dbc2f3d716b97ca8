"""Networks of devices, and the time of a collective: latency by steps and bytes by bandwidth, as in NCCL's own cost model.

Short messages use a protocol of low latency at a share of the bandwidth; long ones reach most of it after a setup. The
faster counts. Inside a node, NVLink joins the devices in a ring, or a switch sums and multicasts. Between nodes, rings and
trees use links that the devices of a node share. Constants come from the device's profile (`rates`, fitted to NCCL's times)
and from `between_nodes.json`; measured times near a message correct the model.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil, exp, log2
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec

from graphflops.base.record import replace
from graphflops.devices import Device, Node, device
from graphflops.errors import OptionError, shown
from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.rules.collectives import sent
from graphflops.time.correction import NINE_OF_TEN, OTHER_DEVICE, interpolated

_REFERENCE = "h100"  # the device whose node is assumed if a profile has none
_TEXT = re.compile(r"(?:(\d{1,4}):)?(\d{1,4})\s*x\s*(\d{1,6}(?:\.\d+)?)\s*(G|T)bit(?:/s)?", re.IGNORECASE)
_BITS = {"g": 1e9, "t": 1e12}
_SHAPE = "8x400Gbit (network links of a node x rate of each), or 4:4x200Gbit for nodes of 4 devices"


class Network(msgspec.Struct, frozen=True):
    """Nodes of devices of one profile."""

    device: Device
    node: Node

    @property
    def rate(self) -> float:
        """Bytes per second that each device of a node sends to other nodes while all of them send."""
        return self.node.links * self.node.bandwidth * between_nodes().share / self.node.devices

    def within(self, stride: int) -> int:
        """How many devices of a group share a node. stride: distance of their ranks; a node has consecutive ranks."""
        return max(1, self.node.devices // stride)

    def __str__(self) -> str:
        node = self.node
        between = f"{node.links} x {node.bandwidth * 8 / 1e9:g} Gbit/s between nodes"
        return f"{node.devices} devices a node, {between}"


class BetweenNodes(msgspec.Struct, frozen=True):
    """What NCCL reaches between nodes. share: of the line rate. latency_seconds: of a step, by algorithm and protocol."""

    share: float
    latency_seconds: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, str]


def network_of(profile: Device, text: str | None = None) -> Network:
    """The network of a profile, or with links such as `8x400Gbit`. Raises OptionError if the text has another form."""
    node = profile.node or device(_REFERENCE).node
    assert node is not None
    if text is None:
        return Network(profile, node)
    found = _TEXT.fullmatch(text.strip())
    if found is None or not all(float(part or 1) for part in found.groups()[:3]):
        raise OptionError(f"--network {shown(text)}: write {_SHAPE}")
    devices, links, rate, unit = found.groups()
    bandwidth = float(rate) * _BITS[unit.lower()] / 8
    count = int(devices or node.devices)
    return Network(profile, replace(node, devices=count, links=int(links), bandwidth=bandwidth))


@cache
def between_nodes() -> BetweenNodes:
    """The constants of networks between nodes."""
    data = (Path(__file__).parent / "between_nodes.json").read_bytes()
    return msgspec.json.decode(data, type=BetweenNodes)


Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
KINDS = frozenset(get_args(Kind))

NO_LINK = 16e9  # bytes per second over PCIe 4.0 x8, if a profile has no link
_LINK_SHARE, _SETUP, _UNMEASURED = 0.6, 15e-6, 2.0  # if nothing was measured
_BETWEEN = 1.6  # spread of times between nodes: modelled from NCCL's constants, not measured
_SHORT_PEER = 16384  # NCCL uses its protocol of low latency for at most this many bytes to one other device
_HOPPER = (9, 0)  # the first generation whose NVLink switches sum and multicast
_HALF = 0.5  # the share of data in the bytes of the protocol of low latency; the rest are flags


def kind_of(name: str) -> Kind:
    """The modelled collective by which a collective is timed: fused and one-sided ones count as an all-reduce."""
    return name if name in KINDS else "all_reduce"  # type: ignore[return-value]


class Transfer(NamedTuple):
    """Seconds of a collective with a 90 % interval. is_guess: whether no such group of such devices was measured."""

    seconds: float
    low: float
    high: float
    is_guess: bool = False


def link_bytes(kind: Kind, nbytes: int, group: int) -> int:
    """Bytes that each device sends. nbytes: of the operand of one device; group: number of devices."""
    found = sent(kind, nbytes, group)
    assert isinstance(found, int)
    return found


def seconds(kind: Kind, nbytes: int, group: int, network: Network, *, within: int | None = None) -> Transfer:
    """The time of a collective alone, as nccl-tests measures it.

    nbytes: of the operand of one device. group: number of devices. within: how many of them are in one node; by default as
    many as fit. Further devices of a node are taken to be in groups of the same shape, which exchange at the same time.
    """
    return of_sent(kind, link_bytes(kind, nbytes, group), group, network, within=within)


def of_sent(kind: Kind, nbytes: float, group: int, network: Network, *, within: int | None) -> Transfer:
    """The same by the bytes that each device sends."""
    if group < 2:
        return Transfer(0.0, 0.0, 0.0)
    inside = min(group, within or network.node.devices, network.node.devices)
    nodes = ceil(group / inside)
    device = network.device
    bandwidth = device.links[0].bandwidth if device.links else NO_LINK
    rates = device.rates.get(f"collective.{'all_to_all' if kind == 'send' else kind}")
    if rates is None:
        slowest = min(bandwidth * _LINK_SHARE, network.rate if nodes > 1 else bandwidth)
        return _within(_SETUP * log2(group) + nbytes / slowest, _UNMEASURED, is_guess=True)
    model = _Model(kind, nbytes, inside, nodes, bandwidth, rates, network)
    if nodes > 1:
        return _within(model.between(), _BETWEEN, is_guess=True)
    modelled = model.within()
    own = ("collective", kind)
    points = next((one for one in device.calibration if (one.family, one.variant) == own), None)
    if points is None or group > max(point[1] for point in points.points):
        spread = rates["spread"] * (OTHER_DEVICE if device.rates_of else 1)
        return _within(modelled, spread, is_guess=bool(device.rates_of) or group > 2)
    corrected = interpolated(points, (model.message, group))
    return _within(modelled * corrected.factor, exp(NINE_OF_TEN * corrected.deviation))


def of_exchange(variant: str, sizes: Exchange, network: Network) -> Transfer:
    """The same for a kernel of this variant and sizes."""
    within = network.within(sizes.stride)
    return of_sent(kind_of(variant), sizes.sent_bytes, sizes.devices, network, within=within)


def _within(found: float, spread: float, *, is_guess: bool = False) -> Transfer:
    """A time with the interval of a factor around it."""
    return Transfer(found, found / spread, found * spread, is_guess)


class _Model(NamedTuple):
    """A collective of `inside` devices in each of `nodes` nodes. sent: bytes that each device sends."""

    kind: Kind
    sent: float
    inside: int
    nodes: int
    bandwidth: float
    rates: Mapping[str, float]
    network: Network

    @property
    def group(self) -> int:
        return self.inside * self.nodes

    @property
    def message(self) -> float:
        """Bytes of the message, as nccl-tests counts them."""
        parts = {"all_reduce": 2 * (self.group - 1), "broadcast": self.group, "send": self.group}
        return self.sent * self.group / parts.get(self.kind, self.group - 1)

    def within(self) -> float:
        """Seconds inside one node."""
        rates, floor = self.rates, self.rates["floor"] * 1e-6
        if "long" in rates:
            peer = self.sent if self.kind == "send" else self.message / self.group
            if peer <= _SHORT_PEER:
                return floor + peer / (self.bandwidth * rates["small"])
            return floor + rates["long"] * 1e-6 + self._streamed(self.sent, self._link(self.group))
        latency = floor + (self.group - 2) * rates["step"] * 1e-6
        by_ring = self._streamed(self.sent, self._link(self.group))
        short = self.sent / (self.bandwidth * rates["small"])
        return latency + min(short, by_ring, self._by_multicast(self.message, self.group))

    def between(self) -> float:
        """Seconds of a group over several nodes: by rings; all-reduces also by trees, if those are faster."""
        latency, rate = between_nodes().latency_seconds, self.inside * self.network.rate
        floor, step = self.rates["floor"] * 1e-6, self.rates["step"] * 1e-6
        turns = 2 if self.kind == "all_reduce" else 1
        if "long" in self.rates:  # all-to-all or one message: each device has its share of the network links
            near = 0.0 if self.kind == "send" else self.sent * (self.inside - 1) / (self.group - 1)
            moved = max(near / self._link(max(self.inside, 2)), (self.sent - near) / self.network.rate)
            return floor + self.rates["long"] * 1e-6 + latency["ring"]["short"] + moved
        fast = self._link(self.inside) if self.inside > 1 else rate
        short = self.sent / min(self.bandwidth * self.rates["small"], _HALF * rate)
        streamed = self._streamed(self.sent, min(fast, rate))
        found = []
        for protocol, moved in (("short", short), ("long", streamed)):
            steps = turns * (self.nodes - 1) * latency["ring"][protocol]
            found.append(floor + (self.group - self.nodes) * step + steps + moved)
        # In a tree a message crosses a node's links once up and once down; of two nodes, each only receives or sends.
        if self.kind == "all_reduce":
            crossing = self.message * (1 if self.nodes == 2 else 2) / rate
            spread = self._by_multicast(self.message, self.inside) if self.inside > 1 else 0.0
            hops = 2 * log2(self.nodes)
            short = crossing / _HALF + hops * latency["tree"]["short"]
            long = max(crossing, min(spread, streamed)) + hops * latency["tree"]["long"]
            found += [floor + (self.inside - 1) * step + moved for moved in (short, long)]
        return min(found)

    def _link(self, devices: int) -> float:
        """Bytes per second that one device sends around a ring of `devices`: small rings have fewer paths."""
        return self.bandwidth * self.rates["link"] * (1 - self.rates["fewer"] / devices)

    def _streamed(self, nbytes: float, rate: float) -> float:
        """Seconds of a long message; shorter ones hide a part of the setup."""
        knee = self.rates["knee"] * 1e6
        return self.rates["setup"] * 1e-6 * nbytes / (nbytes + knee) + nbytes / rate

    def _by_multicast(self, message: float, devices: int) -> float:
        """Seconds of a sum in the switch: each device sends the message once, and then its share of the sum."""
        capability = self.network.device.capability
        if "multicast" not in self.rates or devices < 3 or capability is None or capability < _HOPPER:
            return float("inf")
        rate = self.bandwidth * self.rates["multicast"]
        return self._streamed(message * (devices + 1) / devices, rate)


def described(kernels: Iterable[Kernel], network: Network) -> str:
    """The network, and the groups whose times are guesses; "" if no kernel is a collective."""
    sizes = [(kernel.variant, kernel.sizes) for kernel in kernels if isinstance(kernel.sizes, Exchange)]
    if not sizes:
        return ""
    guessed = {each.devices for variant, each in sizes if of_exchange(variant, each, network).is_guess}
    among = f"; times among {', '.join(map(str, sorted(guessed)))} devices are a guess" if guessed else ""
    return f"{network}{among}"
