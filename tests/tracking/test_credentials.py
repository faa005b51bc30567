"""Passwords in addresses are in no file and no command line, and still used to deliver."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from navrl.cli import main
from navrl.config import load_config
from navrl.credentials import PASSWORD, URI, USER, check_address, redact, redacted, sign_in
from navrl.errors import ConfigError, TrackingError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.tracking.backends import open_backend

SECRET = "h0rse%40battery"  # "h0rse@battery", as addresses write it
ADDRESS, HIDDEN = f"http://ada:{SECRET}@127.0.0.1:9", "http://ada:***@127.0.0.1:9"
SMALL = (
    "preset=smoke",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "headless=true",
    "processes=1",
    "algo.training_frame_num=8",
    "flight.episodes=2",
    "flight.interim_episodes=2",
    "flight.worlds=1",
    "flight.animation=false",
    "flight.recorded=0",
    "env.max_episode_length=50",
    "eval_interval=0",
    "tracker_patience=0.1",
)


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch):
    for name in (URI, USER, PASSWORD):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ada:secret@host:5000/a", "http://ada:***@host:5000/a"),
        ("mlflow.uri=https://ada:s@cret:x@host", "mlflow.uri=https://ada:***@host"),
        ("postgresql://ada:secret@db/mlflow", "postgresql://ada:***@db/mlflow"),
        ("https://gh_token@host/x", "https://***@host/x"),
        ("https://host/box?se=2030&sig=AbC%3D", "https://host/box?se=2030&sig=***"),
        ("https://gh_token:@host/x", "https://***@host/x"),
        ("https://host/?a=1&api_key=secret#x", "https://host/?a=1&api_key=***#x"),
        ("https://host/#Access_Token=secret", "https://host/#Access_Token=***"),
        (
            "failed: http://a:b@c/d and http://e:f@g?token=h",
            "failed: http://a:***@c/d and http://e:***@g?token=***",
        ),
        ("http://localhost:5000", "http://localhost:5000"),
        ("http://host/models@v1", "http://host/models@v1"),
        ("sqlite:////data/a.db", "sqlite:////data/a.db"),
        ("ada@example.org?key=1", "ada@example.org?key=1"),
    ],
)
def test_passwords_and_tokens_in_addresses_are_hidden_and_nothing_else(text, shown):
    assert redact(text) == shown
    assert redact(shown) == shown


@given(
    st.text(
        st.characters(codec="ascii", exclude_characters="/?#\\ \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f*"),
        min_size=1,
    )
)
def test_no_password_survives(password):
    assert redact(f"x=http://ada:{password}@host/path") == "x=http://ada:***@host/path"


def test_nested_values_are_redacted_in_a_copy():
    values = {"a": ["http://u:p@h", 3], "b": {"c": "http://u:p@h"}, "d": None}
    assert redacted(values) == {"a": ["http://u:***@h", 3], "b": {"c": "http://u:***@h"}, "d": None}
    assert values["a"] == ["http://u:p@h", 3]


@pytest.mark.parametrize("password", ["pa/ss", "12/ss", "p#ss", "p?ss", "p ss"])
def test_an_address_whose_password_cannot_be_told_is_refused_without_being_shown(password):
    with pytest.raises(
        ConfigError, match=r"mlflow\.uri is not an address.*percent-encoded"
    ) as caught:
        load_config([f"mlflow.uri='http://u:{password}@h'"])
    assert "ss@h" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["localhost:5000", "http://", "user:pass@host:5000", "http://host:0", "http://host:port"]
)
def test_what_is_no_address_is_refused_in_a_sentence(uri):
    with pytest.raises(ConfigError, match=r"mlflow\.uri is not an address; expected scheme://"):
        check_address("mlflow.uri", uri)


@pytest.mark.parametrize(
    "uri", ["", "sqlite:///a@b.db", "databricks", "http://localhost:5000", "postgresql://u:p@h/db"]
)
def test_other_addresses_are_taken(uri):
    assert load_config([f"mlflow.uri={uri}"]).mlflow.uri == uri


def test_credentials_of_a_server_move_from_the_address_into_the_environment(monkeypatch):
    monkeypatch.setenv(USER, "bob")
    monkeypatch.setenv(PASSWORD, "of another server")
    assert sign_in(f"http://ada:{SECRET}@host:5000/x") == "http://host:5000/x"
    assert (os.environ[USER], os.environ[PASSWORD]) == ("ada", "h0rse@battery")


def test_a_redacted_address_takes_its_password_from_the_environment(monkeypatch):
    with pytest.raises(
        TrackingError, match=rf"without its password; set {USER} and {PASSWORD}, or {URI}"
    ):
        sign_in("http://ada:***@host")
    monkeypatch.setenv(URI, "postgresql://ada:secret@host/db")
    assert sign_in("postgresql://ada:***@host/db") == "postgresql://ada:secret@host/db"
    with pytest.raises(TrackingError, match="without its password"):
        sign_in("http://ada:***@another")  # the password is that of another server
    monkeypatch.setenv(USER, "ada")
    monkeypatch.setenv(PASSWORD, "secret")
    assert sign_in("http://ada:***@host") == "http://host"


@pytest.fixture
def door():
    """A server that notes who asks, and lets nobody in."""
    seen = []

    class Door(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.headers.get("Authorization"), self.path))
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *arguments):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://ada:{SECRET}@127.0.0.1:{server.server_port}", seen
        server.shutdown()


@pytest.mark.slow
def test_a_password_in_an_address_is_sent_to_the_server_and_told_in_no_error(door):
    pytest.importorskip("mlflow")
    uri, seen = door
    backend = open_backend("mlflow", uri=uri)
    with pytest.raises(Exception, match="404") as caught:
        backend.versions("model")
    assert seen[-1][0] == "Basic " + base64.b64encode(b"ada:h0rse@battery").decode()
    assert SECRET not in str(caught.value)


def children() -> list[Path]:
    """Return the processes that this one has started, and those that they have, below /proc."""
    started, found = {os.getpid()}, []
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda entry: int(entry.name)):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent in started and b"navrl" in (entry / "cmdline").read_bytes():
                started.add(int(entry.name))
                found.append(entry)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training with a password in the address that was typed, and the processes that it started
    as they were seen.
    """
    folder = tmp_path_factory.mktemp("secrets") / "run"
    options = [
        f"run_folder={folder}",
        "tracker=mlflow",
        f"mlflow.uri={ADDRESS}",
        "max_frame_num=512",
    ]
    seen, over = {}, threading.Event()

    def watch():
        while not over.wait(0.05):
            for entry in children():
                with contextlib.suppress(OSError):
                    seen[entry] = (
                        (entry / "cmdline").read_bytes(),
                        (entry / "environ").read_bytes(),
                    )

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = main(["train", *SMALL, *options])
    over.set()
    watcher.join()
    assert code == 0
    return folder, seen.values()


@pytest.mark.slow
def test_a_password_in_an_address_reaches_workers_but_no_file_and_no_command_line(run):
    folder, processes = run
    workers = [
        environment for line, environment in processes if b"navrl.tracking.delivery_worker" in line
    ]
    assert workers
    assert all(ADDRESS.encode() in environment for environment in workers)
    assert not any(SECRET.encode() in line for line, _ in processes)
    files = [
        file
        for place in (folder, Path(os.environ["NAVRL_REGISTRY"]))
        for file in place.rglob("*")
        if file.is_file()
    ]
    assert {"config.yaml", "run.json", "records.log", "registry.db"} <= {
        file.name for file in files
    }
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    assert load_checkpoint(folder / "checkpoints" / "latest")["config"]["mlflow"]["uri"] == HIDDEN


@pytest.mark.slow
def test_files_with_addresses_are_for_their_owner(run):
    folder, _ = run
    queue = folder / "tracking"
    files = [
        folder / "config.yaml",
        folder / "run.json",
        *queue.glob("*.log"),
        *queue.glob("*.output"),
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(queue.stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_resumed_run_without_its_password_trains_queues_and_says_what_is_missing(run, capsys):
    folder, _ = run
    with pytest.warns(
        RuntimeWarning, match=r"mlflow.uri http://ada:\*\*\*@.* without its password"
    ):
        assert main(["train", "resume=auto", f"run_folder={folder}", "max_frame_num=768"]) == 0
    assert main(["sync", str(folder)]) == 1
    assert f"was saved without its password; set {USER} and {PASSWORD}" in capsys.readouterr().out
