"""Profiles of devices, one JSON file each: published figures and measured kernels, from which times are predicted."""

from graphflops.devices.device import Calibration, Device, Host, Launch, Link
from graphflops.devices.load import complete, device, disturbance, names, published, substitution, with_rates

__all__ = [
    "Calibration",
    "Device",
    "Host",
    "Launch",
    "Link",
    "complete",
    "device",
    "disturbance",
    "names",
    "published",
    "substitution",
    "with_rates",
]
