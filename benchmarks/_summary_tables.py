"""What docs/benchmarks.md shows of each benchmark: cases, columns, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measure:
    """A column: a metric, its heading, how it is written, and whether more is better."""

    metric: str
    heading: str
    scale: float = 1.0
    more_is_better: bool = False
    chart: str = ""  # the title of its chart, if it has one


@dataclass(frozen=True)
class Section:
    """The part of the page about one benchmark; cases are shown under the labels given here."""

    benchmark: str
    heading: str
    about: str
    ours: str
    cases: dict[str, str]
    measures: tuple[Measure, ...]
    limits: tuple[str, ...] = field(default=())  # cases that are no peers


def _labels(suffix: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{name}{suffix}": label for name, label in names.items()}


WRITERS = {
    "navrl": "navrl",
    "navrl raw": "navrl, uncompressed",
    "copy and write": "copy and write",
    "safetensors": "safetensors",
    "torch.save": "torch.save",
    "Lightning async": "Lightning, async",
    "DCP thread": "DCP, thread",
    "DCP process": "DCP, process",
    "clone, queue, LZ4-9": "clone, queue, LZ4-9",
}
SAVES = (
    Measure("stall", "stall ms", 1e3),
    Measure("added", "added ms", 1e3),
    Measure("durable", "durable ms", 1e3),
    Measure("size", "size"),
    Measure("load", "load ms", 1e3),
)

SECTIONS = (
    Section(
        "simulator",
        "Simulator",
        "Whole environment steps on two threads: controller, rotors, rigid body, 144 rays, 350 "
        "static and 80 moving obstacles, observation, reward, endings. MuJoCo does the rigid body, "
        "contacts and rays only.",
        "navrl, 1024 drones",
        {
            "navrl, 1024 drones": "navrl",
            "torch eager": "PyTorch, eager",
            "MuJoCo, step + 144 rays": "MuJoCo, body and rays",
        },
        (Measure("steps_per_second", "steps/s", 1, True, "Simulated steps a second"),),
    ),
    Section(
        "training",
        "Training",
        "PPO with the same network, environment, batch (1024 drones x 32 decisions, 4 epochs x 16 "
        "minibatches) and two threads for all. PyTorch's matrix products alone limit the libraries "
        "that use them; navrl has compiled kernels of its own.",
        "navrl",
        {
            "navrl": "navrl",
            "TorchRL": "TorchRL",
            "TorchRL collector, plain update": "TorchRL collector",
            "Stable-Baselines3": "Stable-Baselines3",
            "rsl_rl": "rsl_rl",
            "skrl": "skrl",
            "plain loop": "PyTorch, plain loop",
            "GEMM limit": "matrix products alone",
        },
        (
            Measure("frames_per_second", "frames/s", 1, True, "PPO, frames a second"),
            Measure("collection", "collection frames/s", 1, True),
            Measure("update", "update frames/s", 1, True),
            Measure("memory", "memory MB", 1e-6),
        ),
        ("GEMM limit",),
    ),
    Section(
        "replay",
        "Replay",
        "100,000 LiDAR frames with their next observation; batches of 128.",
        "navrl, LiDAR, 100,000",
        _labels(
            ", LiDAR, 100,000",
            {
                "navrl": "navrl",
                "navrl in TorchRL": "navrl under TorchRL",
                "LazyTensorStorage": "TorchRL, LazyTensorStorage",
                "Stable-Baselines3": "Stable-Baselines3",
                "cpprb": "cpprb",
                "LZ4-9 per frame": "LZ4-9, frame by frame",
                "LZ4-9 per episode": "LZ4-9, episode by episode",
            },
        ),
        (
            Measure("bytes", "bytes a frame", 1, False, "Bytes a LiDAR frame"),
            Measure("batch", "a batch, ms", 1e3, False, "A batch of 128, ms"),
            Measure("added", "frames added/s", 1, True),
        ),
    ),
    Section(
        "checkpoint",
        "Checkpoints, 200 MB",
        "A trained network with Adam's moments. Stall: how long a save blocks the training thread. "
        "Added: what it costs training until the file is written "
        "([more](checkpoints.md#measured)).",
        "navrl, 200 MB",
        _labels(", 200 MB", WRITERS),
        (
            Measure("stall", "stall ms", 1e3, False, "Stall of a save of 200 MB, ms"),
            Measure("added", "added ms", 1e3, False, "Training time a save of 200 MB costs, ms"),
            *SAVES[2:],
        ),
    ),
    *(
        Section(
            "checkpoint",
            f"Checkpoints, {size}",
            f"The same with a network of {size}.",
            f"navrl, {size}",
            _labels(f", {size}", WRITERS),
            SAVES,
        )
        for size in ("20 MB", "1 MB")
    ),
    Section(
        "rollouts",
        "Rollouts",
        "A batch of 1024 drones x 32 decisions in a file ([more](rollouts.md)).",
        "navrl",
        {
            "navrl": "navrl",
            "torch.save": "torch.save",
            "HDF5, gzip": "HDF5, gzip",
            "numpy.savez_compressed": "NumPy, compressed",
            "pickle + LZ4-9": "pickle, LZ4-9",
        },
        (
            Measure("bytes", "MB", 1e-6),
            Measure("stall", "stall ms", 1e3),
            Measure("durable", "durable ms", 1e3),
            Measure("read", "read all ms", 1e3),
            Measure("one_env", "read one drone ms", 1e3),
        ),
    ),
    Section(
        "collectors",
        "Collectors, slow environment",
        "Every step of the environment pauses for 40 ms; collection beside training.",
        "slow: NavigationCollector, 1 ahead",
        {
            "slow: NavigationCollector": "navrl",
            "slow: NavigationCollector, 1 ahead": "navrl, 1 batch ahead",
            "slow: NavigationCollector, 2 ahead": "navrl, 2 batches ahead",
            "slow: TorchRL's Collector": "TorchRL",
            "slow: TorchRL's Collector, 1 ahead": "TorchRL under navrl, 1 ahead",
        },
        (Measure("frames_per_second", "frames/s", 1, True),),
        ("slow: NavigationCollector, 2 ahead",),
    ),
    Section(
        "tracking",
        "Trackers",
        "20 metrics and a model of 1 MB to a W&B server of this machine; `end` waits for delivery.",
        "navrl, ok",
        {"navrl, ok": "navrl", "wandb, ok": "wandb"},
        (
            Measure("begin", "start s"),
            Measure("log", "a metric ms", 1e3),
            Measure("artifact", "a model ms", 1e3),
            Measure("end", "end s"),
        ),
    ),
    Section(
        "registry",
        "Registry",
        "100 versions of a model in one registry.",
        "navrl",
        {"navrl": "navrl", "MLflow, SQLite": "MLflow, SQLite"},
        (
            Measure("register", "register ms", 1e3),
            Measure("move", "move an alias ms", 1e3),
            Measure("resolve", "resolve ms", 1e3),
        ),
    ),
    *(
        Section(
            "environments",
            f"PPO in {task}",
            "Equal seconds of one processor ([more](environments.md)).",
            f"{task}: navrl",
            {f"{task}: navrl": "navrl", f"{task}: {peer}": peer},
            (
                Measure("end", "return after", 1, True),
                Measure("frames_per_second", "steps/s", 1, True),
            ),
        )
        for task, peer in (
            ("HalfCheetah-v5", "Stable-Baselines3"),
            ("Pendulum-v1", "Stable-Baselines3"),
            ("Catch, pixels", "Stable-Baselines3"),
            ("rsl_rl VecEnv, 64 carts", "rsl_rl"),
        )
    ),
)
