"""Registries for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from navrl.registry import Registry

NO_GIT = {"git": {}}  # told, so that nobody has to ask


@pytest.fixture
def quick_folder(tmp_path):
    """A folder where flushing costs nothing, for tests that commit thousands of times; what is
    tested is not the disk.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="navrl-", dir=memory))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def registry(quick_folder):
    with Registry(quick_folder / "registry") as registry:
        yield registry


@pytest.fixture
def put(registry, tmp_path):
    """Return a function that registers a small file as the next version of a model."""

    def register(name: str = "policy", content: str = "", **options):
        file = tmp_path / "file.pt"
        file.write_text(
            content or f"{name} {len(registry.versions(name)) + 1 if known(name) else 1}"
        )
        return registry.register(name, file, **{"lineage": NO_GIT, **options})

    def known(name: str) -> bool:
        return any(model.name == name for model in registry.models())

    return register
