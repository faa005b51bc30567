"""Where the documents' calls are made: an empty folder, W&B offline, and a server that trains in
seconds.
"""

from __future__ import annotations

import pytest
import torch
from documented import COMMAND

from training_runs import Server


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder and an empty registry; W&B is never asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("wandb.run", None)  # an earlier test of this process may have left one
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    return tmp_path


@pytest.fixture
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ELU(), torch.nn.Linear(64, 3))


@pytest.fixture(scope="session")
def documents_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="session")
def server(documents_folder):
    """Starts `navrl train` processes, which share a registry of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("NAVRL_REGISTRY", str(documents_folder / "registry"))
        made = Server()
    yield made
    made.close()


@pytest.fixture(scope="session")
def documented(server, documents_folder):
    """The run of the documented command, two iterations long; its best model is `smoke:best`."""
    folder = documents_folder / "documented"
    server.train(folder, *COMMAND, "max_frame_num=1024", "save_interval=2", "eval_interval=2")
    return folder
