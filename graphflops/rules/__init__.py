"""One rule per operator: a pure function from operand types and attributes to an `Estimate`.

A rule's signature and defaults are the operator's own. Arguments are bound by position, or by name where the file gives a
name that the rule has too; so every parameter that has a default, or is keyword-only, bears the schema's name.

Keys: `aten.add.Tensor` is looked up as itself, then as `aten.add`; an in-place operator without a rule of its own
(`aten.add_.Tensor`) is priced by the rule of the functional one.
"""

from graphflops.rules.registry import ForwardCall, Rule, backward, find, known, require, rule

__all__ = ["ForwardCall", "Rule", "backward", "find", "known", "require", "rule"]
