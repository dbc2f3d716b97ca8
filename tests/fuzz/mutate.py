"""Changes of archives, bytes and lines of text."""

from __future__ import annotations

import io
import json
import random
import zipfile

from tests.fuzz.documents import Document
from tests.fuzz.values import TEXTS, VALUES

_TAKEN = 20_000  # bytes of an entry beside the JSON: weights are never read


class Archive:
    """The entries of a zip archive, its JSON ready to be changed."""

    def __init__(self, data: bytes) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as old:
            self.entries = {name: old.read(name) for name in old.namelist()}
        self.documents = {
            name: Document(text) for name, text in self.entries.items() if name.endswith(".json")
        }
        for name in self.entries.keys() - self.documents:
            self.entries[name] = self.entries[name][:_TAKEN]
        self.weights = [20 if "model.json" in name or "program" in name else 3 for name in self.documents]

    def changed(self, chance: random.Random) -> bytes:
        """The archive with one of its JSON files changed, or entries removed, emptied, repeated or made long."""
        entries = dict(self.entries)
        if chance.random() < 0.9:
            name = chance.choices([*self.documents], self.weights)[0]
            entries[name] = self.documents[name].changed(chance)
        else:
            name, data = chance.choice([*entries.items()])
            entries[name] = chance.choice(
                (b"", b"{}", b"[]", b"0", data * 2, data[:-3], b"\0" * 100_000, garbled(data, chance))
            )
        if chance.random() < 0.05:
            del entries[chance.choice([*entries])]
        packed = io.BytesIO()
        compression = zipfile.ZIP_DEFLATED if chance.random() < 0.1 else zipfile.ZIP_STORED
        with zipfile.ZipFile(packed, "w", compression) as new:
            for name, content in entries.items():
                new.writestr(name, content)
        return garbled(packed.getvalue(), chance) if chance.random() < 0.05 else packed.getvalue()


def garbled(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out or put in."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        out[at : at + chance.choice((0, 1, 1, 20))] = chance.randbytes(chance.choice((0, 1, 1, 5)))
    return bytes(out)


def lines(text: str, chance: random.Random) -> str:
    """Text with lines removed, repeated, exchanged, and words replaced."""
    rows = text.split("\n")
    for _ in range(chance.randint(1, 4)):
        at, other = chance.randrange(len(rows)), chance.randrange(len(rows))
        pick = chance.random()
        if pick < 0.2:
            rows[at:at] = [rows[other]] * chance.choice((1, 1, 2, 500))
        elif pick < 0.3 and len(rows) > 1:
            del rows[at]
        elif pick < 0.5:
            rows[at], rows[other] = rows[other], rows[at]
        elif pick < 0.9 and "=" in rows[at]:
            name = rows[at].partition("=")[0]
            rows[at] = f"{name}= {json.dumps(chance.choice(VALUES), default=str)}"
        else:
            rows[at] = chance.choice(TEXTS).replace("\ud800", "?")
    return "\n".join(rows)
