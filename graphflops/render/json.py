"""A report as JSON, safe to print: characters that a terminal could act on are escaped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from graphflops.render.tables import Listing
    from graphflops.report import Report

_ACTIVE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def json(report: Report) -> str:
    """The whole report, one object on one line."""
    return inert(report.to_json())


def listing(listing: Listing) -> str:
    """A list of objects, one for each row."""
    return inert(msgspec.json.encode([dict(zip(listing.heads, row, strict=True)) for row in listing.rows]))


def inert(data: bytes) -> str:
    """JSON as a line of text: characters that a terminal could act on are escaped."""
    text = data.decode()
    if not text.isascii() or "\x7f" in text:
        text = _ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text + "\n"
