"""What is known of the code of libraries that an export does not show, told by the paths of their files.

A user's own code is priced as it stands, whatever its functions are called.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphflops.execution.source_lines import CodeLine

Fact = Literal[
    "export-only mask", "mask of nothing", "dictionary of operands", "results collected", "no weights"
]
_TRANSFORMERS = r"(?:^|[/\\])transformers[/\\](?:models[/\\]\w+[/\\]\w+|masking_utils|modeling_\w+)\.py$"
_DEBERTA = r"(?:^|[/\\])transformers[/\\]models[/\\](?:deberta|deberta_v2)[/\\]\w+\.py$"
# By fact: the path of the file, and what the line has.
_FACTS: dict[Fact, tuple[re.Pattern[str], re.Pattern[str]]] = {
    # An attention mask that is built only if it has to be. Whether padding hides anything is a question about data, which
    # an export cannot ask, so there it is always built.
    "export-only mask": (
        re.compile(_TRANSFORMERS),
        re.compile(r"\b(?:\w*create_\w*masks?|mask_function|_update_causal_mask|_prepare_4d\w+)\("),
    ),
    # One of them that hides nothing, which attention that is spelled out adds.
    "mask of nothing": (re.compile(_TRANSFORMERS), re.compile(r"\bcreate_bidirectional_mask\(")),
    # What masks are made from stays in a dictionary: the embeddings of the tokens.
    "dictionary of operands": (re.compile(_TRANSFORMERS), re.compile(r"\bcreate_\w*masks?\(\*\*\w+")),
    # The model always asks its encoder for the results of all layers.
    "results collected": (re.compile(_DEBERTA), re.compile(r"^output_states, attn_weights = layer_module\(")),
    # Modules return None beside their result unless attention weights are asked for.
    "no weights": (
        re.compile(_DEBERTA),
        re.compile(r"^(?:attention_output, att_matrix|output_states, attn_weights) ="),
    ),
}


def has_fact(fact: Fact, lines: Iterable[CodeLine]) -> bool:
    """Whether something is known of any of these lines."""
    return any(_has_fact(fact, line.file, line.text) for line in lines)


@lru_cache(maxsize=4096)
def _has_fact(fact: Fact, file: str, text: str) -> bool:
    path, words = _FACTS[fact]
    return words.search(text) is not None and path.search(file) is not None
