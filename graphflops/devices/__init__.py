"""Profiles of devices, one JSON file each: published figures and measured kernels, from which times are predicted."""

from graphflops.devices.device import (
    HOPPER,
    Calibration,
    Device,
    Host,
    Launch,
    Link,
    Node,
    Platform,
    complete,
    device,
    disturbance,
    names,
    platform_of,
    published,
    substitution,
    with_rates,
)

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
