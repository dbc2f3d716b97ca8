"""What spells out attention, and what masks hide, for `passes/attention.py`. Reports need only `AttentionUse`.

How attention that is spelled out in several operators is found: `match`.

How a mask is evaluated: `index_propagation` follows a value through the calls of a scope (`scopes`, `constants`). It uses
`structure` for layouts, gathers and joins, and a domain (of `scopes`) for everything else. A domain has formulas (`affine`,
of `piecewise` numbers and `conditions`, with `constants`: forms of stored tensors), or numpy arrays of pairs and of
rectangles of pairs (`arrays`, with `elementwise`).

How pairs are counted: what hides pairs is a `Restriction` (`scopes`), a tensor or a function, which has a meaning in each
domain. Those of tensors come from `hidden_pairs`, those of score and mask functions from `flex`; `user_masks` has what the
user states. They are counted in closed form (`conditions`, `rectangles`) or by evaluation (`arrays`, `rectangles`); equal
masks are counted once (value numbers in `hidden_pairs`).
"""

from graphflops.attention.attention_use import AttentionUse

__all__ = ["AttentionUse"]
