"""What a user's own profile must hold: the constants that the model of a family of kernels reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import shown

if TYPE_CHECKING:
    from graphflops.devices.device import Device

_LEAST_MIX, _LARGEST_MIX = 0.2, 32  # exponent of a mean; the larger it is, the more the longest time decides


def problem(profile: Device, reference: Device) -> str:
    """One sentence that says what is wrong with the constants of a profile; "" if nothing is.

    A table must have the constants that all tables of its kind have in the profile of the reference device.
    """
    for name, table in profile.rates.items():
        kind = _kind(name)
        alike = [{*other} for known, other in reference.rates.items() if _kind(known) == kind]
        wanted = set.intersection(*alike) if alike else {*reference.rates["other"]}
        if absent := min(wanted - table.keys(), default=""):
            return f"rates[{shown(repr(name), 60)}] has no {absent}"
        if not _LEAST_MIX <= table.get("mix", 1) <= _LARGEST_MIX:
            return f"rates[{shown(repr(name), 60)}].mix is not between {_LEAST_MIX} and {_LARGEST_MIX}"
    return ""


def _kind(name: str) -> tuple[str, bool]:
    """The family of a table of constants; depthwise convolutions have a model of their own."""
    family, _, variant = name.partition(".")
    return family, variant.startswith("depthwise")
