"""A size of two programs that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphflops.dims import Dim, evaluate


@dataclass(frozen=True, slots=True)
class JointSize:
    """A size of the two programs: one axis of an input, or a size that depends on data.

    name: the name it has in every quantity of the comparison.
    before, after: its name in that program, the number that program fixes it at, or None where there is no such size.
    value: what both programs are compared at; None if none is known, or if each program has its own.
    before_value, after_value: what it is in that program, by its own file or the user; these may differ.
    assumed: True if `value` is an assumption, because neither program has a value or an example.
    minimum, maximum: the values that both programs were exported for. computed: the size of each axis that is an expression
    of this one; axis: the one of them by which people read the size, "" where they read its own name. before_as, after_as:
    what the size of that program is, where that is another one: the two may be `2*n` and `3*n`.
    """

    name: str
    where: tuple[str, ...]
    before: str | int | None
    after: str | int | None
    value: int | None
    before_value: int | None
    after_value: int | None
    assumed: bool = False
    minimum: int | None = None
    maximum: int | None = None
    computed: Mapping[str, Dim] = field(default_factory=dict)
    axis: str = ""
    before_as: Dim | None = None
    after_as: Dim | None = None

    @property
    def stated(self) -> str:
        """The name by which people read the size."""
        return self.axis or self.name

    @property
    def place(self) -> str:
        """An axis of this size; its name where it has none."""
        return self.axis or next((axis for axis in self.where if axis not in self.computed), self.name)

    def at(self, value: int) -> int:
        """What people read for a value of the size."""
        found = evaluate(self.computed[self.axis], {self.name: value}) if self.axis else None
        return value if found is None else found

    @property
    def opened(self) -> bool:
        """Fixed before, open now."""
        return isinstance(self.before, int) and isinstance(self.after, str)

    @property
    def fixed(self) -> bool:
        """Open before, fixed now."""
        return isinstance(self.before, str) and isinstance(self.after, int)
