"""What a measured profile holds, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.text import number

if TYPE_CHECKING:
    from graphflops.devices import Device


def summary(device: Device) -> str:
    """Ceilings of the device, and points and held-out error of each family."""
    lines = [device.name, f"  memory     {number(int(device.bandwidth))}B/s"]
    lines += [f"  {dtype:<10} {number(int(peak))}FLOP/s" for dtype, peak in device.matrix.items()]
    lines.append(
        "  family         element type   points  error of kernels held out (median, 90th percentile)"
    )
    families: dict[tuple[str, str], list[tuple[int, tuple[float, float, float] | None]]] = {}
    for one in device.calibration:
        families.setdefault((one.family, one.dtype), []).append((len(one.points), one.error))
    for (family, dtype), found in families.items():
        points = sum(count for count, _ in found)
        known = [(count, error) for count, error in found if error is not None]
        weight = sum(count for count, _ in known) or 1
        median, ninth = (sum(count * error[place] for count, error in known) / weight for place in (0, 2))
        shown = f"{median:6.1%} {ninth:6.1%}" if known else "     -"
        lines.append(f"  {family:<14} {dtype:<14} {points:>6}  {shown}")
    return "\n".join(lines)
