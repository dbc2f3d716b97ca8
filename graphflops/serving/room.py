"""What an engine leaves to the caches of its requests."""

from __future__ import annotations

from graphflops.devices import Device
from graphflops.fitting.kv_cache import KvCache
from graphflops.fitting.varied_size import room
from graphflops.report import Report
from graphflops.serving.engines import Engine
from graphflops.serving.phases import Prefill, Steps


def paged_room(steps: Steps, prefill: Prefill | None, cache: KvCache, device: Device, engine: Engine) -> int:
    """Bytes that an engine leaves to the caches; negative where not even the weights fit."""
    assert engine.memory_fraction is not None
    entry = steps.report.memory_use[-1]
    weights = sum(steps.report.value(size or 0) or 0 for size in (entry.weights, entry.buffers))
    part = int(engine.memory_fraction * device.memory_bytes)
    if engine.fraction_of == "weights and caches":
        return part - weights
    peak = _warm_up(steps, prefill, cache, engine)
    if engine.fraction_of == "free":
        return int(engine.memory_fraction * (room(device) - weights - peak))
    return part - weights - peak - (engine.libraries_bytes or 0)


def _warm_up(steps: Steps, prefill: Prefill | None, cache: KvCache, engine: Engine) -> int:
    """What the largest step of an engine takes beside weights and caches: a prefill, then the sampler for all requests."""
    sampled = int((engine.sequences or 0) * vocabulary(steps.report) * (engine.bytes_per_logit or 0))
    if prefill is None or engine.prefill_tokens is None:
        return sampled
    held = prefill.steps.bytes_at(prefill.sizes_at(engine.prefill_tokens)) or 0
    # Whose entries are in the caches already.
    return max(sampled, held - cache.bytes_at(engine.prefill_tokens))


def vocabulary(report: Report) -> int:
    """The entries of the logits: the longest last axis of what the program returns."""
    types = {named.name: named.type for row in report.rows for named in row.outputs}
    given = [types[name].shape[-1] for name in report.outputs if name in types and types[name].rank]
    return max((size for size in given if isinstance(size, int)), default=0)
