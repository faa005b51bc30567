"""Real trackers for the tests: one server each for the whole session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from faulty_proxy import FaultyProxy
from hub_emulator import TOKEN, HubEmulator
from trackers import wait_for
from wandb_emulator import Emulator

from navrl.tracking.client_processes import kill_client_processes


@pytest.fixture(scope="session")
def emulator():
    emulator = Emulator()
    yield emulator
    emulator.close()


@pytest.fixture(scope="session")
def wandb_environment(emulator):
    """Have this process and its children talk to the emulator."""
    values = {
        "WANDB_BASE_URL": emulator.url,
        "WANDB_API_KEY": "a" * 40,
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    yield values
    # W&B's client would wait at the end of this process for a server that is gone
    kill_client_processes(os.getpid())
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def hub_server():
    pytest.importorskip("huggingface_hub")
    hub = HubEmulator()
    yield hub
    hub.close()


@pytest.fixture
def hub(hub_server, monkeypatch, tmp_path):
    """The stand-in for the Hugging Face hub, with a token for it in the environment.

    Xet, a storage protocol of its own, is off: files go through Git LFS.
    """
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub_server


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    """A real `mlflow server`; it takes seconds to start, so there is one for all."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow_server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    # Nobody asks it for jobs, for which it would start eight processes of its own.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "output", "wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: answers(url), 300)  # on a machine that has more to do
    yield url
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="session")
def trackio_folder():
    """The folder of the tests in which trackio keeps its files, here and in child processes."""
    utils = pytest.importorskip("trackio.utils")
    assert str(utils.TRACKIO_DIR) == os.environ["TRACKIO_DIR"], (
        "trackio was imported before its folder was set"
    )
    return Path(os.environ["TRACKIO_DIR"])


@pytest.fixture
def proxy(emulator):
    proxy = FaultyProxy(emulator.url)
    yield proxy
    proxy.close()
