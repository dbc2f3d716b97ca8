"""Aligns two sequences in bounded time."""

from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

_MOST_EQUAL_PAIRS = 40_000  # SequenceMatcher looks at all of them for each block that it finds


def matching_blocks(
    old: Sequence[Hashable], new: Sequence[Hashable], most: int = _MOST_EQUAL_PAIRS
) -> list[tuple[int, int, int]]:
    """The runs that are equal in both, in order: place in `old`, place in `new`, length. Equal beginnings and ends always
    match; the part in between does if it has at most `most` pairs of equal elements.
    """
    start = equal_at_start(old, new)
    end = equal_at_start(old[start:][::-1], new[start:][::-1])
    ours, theirs = old[start : len(old) - end], new[start : len(new) - end]
    blocks = [(0, 0, start)]
    counts = Counter(theirs)
    if sum(times * counts[element] for element, times in Counter(ours).items()) <= most:
        matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
        blocks += [(start + a, start + b, size) for a, b, size in matcher.get_matching_blocks()]
    blocks.append((len(old) - end, len(new) - end, end))
    return [block for block in blocks if block[2]]


def equal_at_start(old: Sequence[Hashable], new: Sequence[Hashable]) -> int:
    """How many elements both begin with."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(old), len(new)))
