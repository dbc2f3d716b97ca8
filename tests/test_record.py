"""What the standard library's functions of dataclasses do with records, and that every quantity of a cost has its words."""

from __future__ import annotations

import pickle
from dataclasses import MISSING, asdict, fields, is_dataclass, replace

import pytest
from msgspec import field

from graphflops.base.record import Record
from graphflops.cost import QUANTITIES, REPORTED
from graphflops.graph import Node


class Point(Record, frozen=True):
    """A point."""

    x: int
    y: int = 2
    names: dict[str, int] = field(default_factory=dict)


def test_records_are_dataclasses_to_the_standard_library() -> None:
    point = Point(1)
    assert is_dataclass(point)
    assert [(each.name, each.default) for each in fields(point)][:2] == [("x", MISSING), ("y", 2)]
    assert fields(point)[2].default_factory() == {}
    assert replace(point, y=3) == Point(1, 3)
    assert asdict(point) == {"x": 1, "y": 2, "names": {}}
    assert point.names is not Point(1).names


def test_records_are_frozen_and_can_be_pickled() -> None:
    with pytest.raises(AttributeError):
        Point(1).x = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)


def test_a_node_knows_the_operator_of_its_spelling() -> None:
    assert replace(Node("a", "aten.mm.default"), op="aten.relu.default").operator.name == "relu"


def test_every_quantity_has_its_words() -> None:
    assert [quantity.name for quantity in REPORTED if quantity.name != "macs"] == [*QUANTITIES]
