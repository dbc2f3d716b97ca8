"""Profiles of devices, one JSON file each: published figures and measured kernels, from which times are predicted."""

from graphflops.devices.device import Calibration, Device, Host, Launch, Link, Node
from graphflops.devices.load import complete, device, disturbance, names, published, substitution, with_rates
from graphflops.devices.platform import HOPPER, Platform, platform_of

__all__ = [
    "HOPPER",
    "Calibration",
    "Device",
    "Host",
    "Launch",
    "Link",
    "Node",
    "Platform",
    "complete",
    "device",
    "disturbance",
    "names",
    "platform_of",
    "published",
    "substitution",
    "with_rates",
]
