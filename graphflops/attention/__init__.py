"""The attentions of a program, in whatever spelling: `program` finds them. Reports need no more than what one is."""

from graphflops.attention.attention_use import AttentionUse

__all__ = ["AttentionUse"]
