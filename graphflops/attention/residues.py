"""Closed-form counts of the pairs (i, j) in a band of diagonals for which a term of the places has a given remainder.

The term is the query's place, the key's place, or the distance from query to key, plus a constant. A band is a staircase
minus another staircase, and each staircase consists of triangles. A triangle is summed along the term; places with a given
remainder are evenly spaced, so floor divisions count them.
"""

from collections.abc import Sequence

from graphflops.dims import Dim, dim_max, floor_div, total
from graphflops.rules.shapes import doubled_pairs

QUERY, KEY, DISTANCE = (1, 0), (0, 1), (-1, 1)  # coefficients of i and j
FORMS = (QUERY, KEY, DISTANCE)


def count(first: Dim, end: Dim, modulus: int, remainder: int) -> Dim:
    """How many integers from `first` to before `end` have a remainder."""
    return _before(end, modulus, remainder) - _before(first, modulus, remainder)


def _before(end: Dim, modulus: int, remainder: int) -> Dim:
    """Integers with a remainder from 0 to before `end`; negative if `end` is negative."""
    return floor_div(end - remainder + (modulus - 1), modulus)


def doubled(
    form: tuple[int, int], constant: Dim, modulus: int, remainders: Sequence[int], rows: Dim, keys: Dim,
    left: Dim | None, right: Dim | None, offset: Dim,
) -> Dim:  # fmt: skip
    """Twice the pairs with -left <= key - row - offset <= right whose term has one of these remainders."""
    if 2 * len(remainders) > modulus:
        others = [place for place in range(modulus) if place not in {*remainders}]
        every = doubled_pairs(rows, keys, left=left, right=right, offset=offset)
        return every - doubled(form, constant, modulus, others, rows, keys, left, right, offset)

    def below(diagonal: Dim, remainder: int) -> Dim:
        corners = ((rows, 0, 1), (0, 0, -1), (rows, keys, -1), (0, keys, 1))
        of_term = (form, constant, modulus, remainder)
        return total(sign * _triangle(*of_term, row, key, diagonal) for row, key, sign in corners)

    def with_remainder(remainder: int) -> Dim:
        if right is not None or form == DISTANCE:
            upper = below(keys if right is None else offset + right, remainder)
        else:
            size, others = (rows, keys) if form == QUERY else (keys, rows)
            upper = 2 * others * count(constant, size + constant, modulus, remainder)
        return upper if left is None else upper - below(offset - left - 1, remainder)

    return total(map(with_remainder, remainders))


def _triangle(
    form: tuple[int, int], constant: Dim, modulus: int, remainder: int, row: Dim, key: Dim, diagonal: Dim
) -> Dim:
    """Twice the pairs before `row` and from `key` on, with key - row <= diagonal, whose term has a remainder."""
    side = dim_max(row + diagonal - key, 0)
    if form == KEY:  # rows of each key
        begin, alone, each = key, row + diagonal, -1
    elif form == QUERY:  # keys of each row
        begin, alone, each = key - diagonal, diagonal - key + 1, 1
    else:  # pairs of each diagonal
        begin, alone, each = key - row + 1, row - key, 1
    first, last = (_before(end + constant, modulus, remainder) for end in (begin, begin + side))
    sums = 2 * (remainder - constant) * (last - first) + modulus * (last * (last - 1) - first * (first - 1))
    return 2 * alone * (last - first) + each * sums
