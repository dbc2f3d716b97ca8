"""Profiles of devices, one JSON file each: published figures and measured kernels, from which times are predicted."""

from graphflops.devices.device import Calibration, Device, Launch, Link
from graphflops.devices.load import complete, device, names, published

__all__ = ["Calibration", "Device", "Launch", "Link", "complete", "device", "names", "published"]
