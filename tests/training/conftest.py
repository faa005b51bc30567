"""Fixtures of the tests that start real trainings."""

from __future__ import annotations

import pytest

from training_runs import Server


@pytest.fixture(scope="session")
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="session")
def whole(server, tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    server.train(folder)
    return folder
