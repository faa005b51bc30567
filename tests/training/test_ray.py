"""Training with workers on a Ray cluster of two machines, both on the loopback interface."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import navrl
from navrl.config import load_config
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.metrics_log import MetricsLog
from navrl.training.distributed.team import Team
from navrl.training.remote.ray_workers import RayWorkers
from navrl.training.remote.remote_trainer import RemoteTrainer
from navrl.training.remote.worker import Worker

pytestmark = pytest.mark.slow
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1])
PATIENCE = 400.0  # s, on a machine that has more to do
POINT = (
    "env=python",
    "env.target=point_environment:make_point",
    "env.num_envs=8",
    "algo.training_frame_num=16",
    "algo.num_minibatches=2",
    "network.hidden=[8]",
    "save_interval=1",
    "flight.interim_episodes=4",
    "flight.episodes=4",
    "collect=ray",
    "collect.workers=2",
)
STORE = 80 << 20  # bytes of a machine's object store: about the least that Ray takes


@pytest.fixture(scope="module")
def cluster():
    """Two machines with a core for workers each; this process belongs to the first."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for folder in FOLDERS:  # inherited by the workers
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        # Without this, Ray takes 127.0.0.1 for the host's own address. It reads it when imported.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        from ray.cluster_utils import Cluster

        machine = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
        made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **machine})
        made.add_node(**machine)
        yield made
        if ray.is_initialized():
            ray.shutdown()
        made.shutdown()


@pytest.fixture
def connected(cluster):
    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def listening() -> dict[str, str]:
    """Return the local addresses, in hexadecimal, of the sockets that listen, by inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found[words[9]] = words[1].partition(":")[0]
    return found


def sockets_of(session: str) -> set[str]:
    """Return the inodes of the sockets of all processes that belong to a Ray session."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if session.encode() in told:
                links = [os.readlink(link) for link in (folder / "fd").iterdir()]
                found |= {link[8:-1] for link in links if link.startswith("socket:[")}
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_cluster_listens_on_loopback_alone(cluster):
    session = cluster.head_node.get_session_dir_path()
    addresses = listening()
    heard = [addresses[inode] for inode in sockets_of(session) if inode in addresses]
    assert len(heard) >= 3  # the head and a daemon on each machine
    assert all(address.endswith("0100007F") for address in heard), heard


class Troubled(Worker):
    """Writes down its process; the first damages its second batch, the second is slow."""

    def __init__(self, *arguments, folder, **options):
        super().__init__(*arguments, **options)
        (Path(folder) / f"worker{self.worker}").write_text(str(os.getpid()))

    def collect(self, message):
        batch = bytearray(super().collect(message))
        if self.worker == 0 and self.number == 2:
            batch[len(batch) // 2] ^= 1
        if self.worker == 1:
            time.sleep(1.0)
        return bytes(batch)


def test_training_survives_a_dead_worker_a_slow_one_and_a_damaged_batch(connected, tmp_path):
    def workers(config, run, stream):
        make = partial(Troubled, folder=str(tmp_path))
        return RayWorkers(config, run, stream=stream, make=make)

    config = load_config([*POINT, "max_frame_num=10_000_000", "collect.max_staleness=2"])
    trainer = RemoteTrainer(config, Team(), make_workers=workers)
    dropped = dict.fromkeys(("collect/stale", "collect/damaged", "collect/lost"), 0.0)
    told, killed, end = [], 0, time.monotonic() + PATIENCE
    while time.monotonic() < end and not ("worker 0 is back" in told and all(dropped.values())):
        report = trainer.learn(trainer.collect())
        told += trainer.news()
        dropped = {name: count + report[name] for name, count in dropped.items()}
        if not killed and report["collect/workers"] == 2 and dropped["collect/damaged"]:
            killed = int((tmp_path / "worker0").read_text())
            os.kill(killed, signal.SIGKILL)
    trainer.close()
    assert "2 machines with 2 cores" in told[0]
    assert any("its checksum does not match" in sentence for sentence in told), told
    assert any(sentence.startswith("worker 0 was lost") for sentence in told), told
    assert "worker 0 is back" in told
    assert int((tmp_path / "worker0").read_text()) != killed
    assert all(dropped.values()), dropped


def test_the_command_trains_on_the_cluster_stops_on_a_signal_and_is_resumed(cluster, tmp_path):
    run, output = tmp_path / "run", tmp_path / "output.txt"
    typed = [*POINT, f"collect.address={cluster.address}", f"run_folder={run}", "headless=true"]
    command = [sys.executable, "-m", "navrl.cli", "train", *typed, "max_frame_num=10_000_000"]
    with output.open("w") as file:
        training = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        metrics, end = run / "metrics.jsonl", time.monotonic() + PATIENCE
        while time.monotonic() < end and training.poll() is None:
            if metrics.exists() and len([*MetricsLog.read(metrics, "train")]) >= 3:
                break
            time.sleep(0.2)
        training.terminate()
        code = training.wait(PATIENCE)
    assert code == 128 + signal.SIGTERM, output.read_text()
    iteration = load_checkpoint(run / "checkpoints" / "latest")["iteration"]
    assert iteration >= 3
    frames = 128 * (iteration + 2)
    settings = ["resume=auto", f"run_folder={run}", "collect=ray", "collect.workers=1"]
    navrl.train([*settings, f"max_frame_num={frames}"])
    rows = [*MetricsLog.read(metrics, "train")]
    assert [row["iteration"] for row in rows] == [*range(1, iteration + 3)]
    # of each training; an iteration may learn from a batch that came during the one before
    for part in (rows[:iteration], rows[iteration:]):
        assert sum(row["collect/bytes_in"] for row in part) > 0
    assert rows[0]["collect/frames"] == 128


def test_the_benchmark_runs(connected, run_benchmark):
    told = run_benchmark("remote")
    assert "link: compressed, 100 Mbit/s" in told
