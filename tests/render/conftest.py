"""What tests of pages share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.render.browser import Browser

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    window = Browser()
    yield window
    window.close()
