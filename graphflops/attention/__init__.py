"""The attentions of a program and what their masks hide; `program` finds them. Reports need only `AttentionUse`.

How attention is found: `operator_kinds`, `match` (spelled out), `fused` (one operator), `gradients`.

How a mask is evaluated: `index_propagation` follows a value through the calls of a scope (`scopes`, `mutations`,
`constants`), by `structure` for layouts, gathers and joins, and by a domain (`domain`) for all else: formulas
(`affine`, of `piecewise` numbers and `conditions`, with `constants`: forms of stored tensors), numpy arrays (`concrete`,
with `elementwise` and `whole_tensors`), or intervals over rectangles (`intervals`, `interval_functions`).

How pairs are counted: `hidden_pairs` for masks that are tensors, `flex`, `flex_problem` and `flex_function` for score
and mask functions, `user_masks` for what the user states; in closed form (`conditions`, `block_counts`), or by
evaluation (`pair_enumeration`, `rectangles`), once for equal masks (value numbers in `hidden_pairs`).
"""

from graphflops.attention.attention_use import AttentionUse

__all__ = ["AttentionUse"]
