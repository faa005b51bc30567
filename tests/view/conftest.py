"""Tests that open a page in a browser are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

BROWSER = {"browser", "opened"}  # fixtures that start one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = item.path.is_relative_to(Path(__file__).parent)
        if here and BROWSER.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
