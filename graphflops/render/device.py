"""What a measured profile holds, for the terminal."""

from __future__ import annotations

from graphflops.base.units import number
from graphflops.devices import Device, complete, device, disturbance


def host_summary(profile: Device) -> str:
    """How fast the CPU beside the device launches kernels, compared with that which costs of calls were measured on."""
    host, reference = profile.host, complete(device("h200")).host
    if host is None or reference is None or not host.seconds:
        return f"{profile.name}\n{_others(profile)}\n  host       not measured"
    factor = host.seconds["forward.call"] / reference.seconds["forward.call"]
    lines = [
        f"{profile.name}",
        _others(profile),
        f"  host       {factor:.2f} x the CPU time of the reference, an undisturbed core beside an H200",
    ]
    lines += [
        f"    {name.replace('_', ' '):<22} {1e6 * took:8.1f} µs" for name, took in host.benchmarks.items()
    ]
    return "\n".join(lines)


def _others(profile: Device) -> str:
    """What other processes took of the machine while it was measured."""
    shares = [f"{100 * share:.0f} % of the {part.upper()}" for part, share in profile.busy.items()]
    disturbed = disturbance(profile)
    taken = f"  others     {' and '.join(shares) or 'not known'}"
    return f"{taken}\n  {disturbed}" if disturbed else taken


def summary(profile: Device) -> str:
    """Ceilings of the device, and points and held-out error of each family."""
    lines = [host_summary(profile), f"  memory     {number(int(profile.bandwidth))}B/s"]
    lines += [f"  {dtype:<10} {number(int(peak))}FLOP/s" for dtype, peak in profile.matrix.items()]
    lines.append(
        "  family         element type   points  error of kernels held out (median, 90th percentile)"
    )
    families: dict[tuple[str, str], list[tuple[int, tuple[float, float, float] | None]]] = {}
    for one in profile.calibration:
        families.setdefault((one.family, one.dtype), []).append((len(one.points), one.error))
    for (family, dtype), found in families.items():
        points = sum(count for count, _ in found)
        known = [(count, error) for count, error in found if error is not None]
        weight = sum(count for count, _ in known) or 1
        median, ninth = (sum(count * error[place] for count, error in known) / weight for place in (0, 2))
        shown = f"{median:6.1%} {ninth:6.1%}" if known else "     -"
        lines.append(f"  {family:<14} {dtype:<14} {points:>6}  {shown}")
    return "\n".join(lines)
