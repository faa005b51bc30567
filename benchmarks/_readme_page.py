"""Writes the table of README.md and README.zh-CN.md from the committed results.

python benchmarks/_readme_page.py     # after a benchmark whose results the table shows
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _page import ROOT, rewrite

RESULTS = ROOT / "benchmarks" / "results"
WRITER = "benchmarks/_readme_page.py"
PILOTS = ("published", "dynamic-window", "scripted", "orca", "straight")
PEERS = {  # of the training benchmark
    "TorchRL collector, plain update": "TorchRL",
    "Stable-Baselines3": "Stable-Baselines3",
    "rsl_rl": "rsl_rl",
    "skrl": "skrl",
}
BUFFERS = {
    "LazyTensorStorage": "TorchRL",
    "Stable-Baselines3": "Stable-Baselines3",
    "cpprb": "cpprb",
}
WRITERS = ("torch.save", "Lightning async", "DCP thread")
SIZES = ("1 MB", "20 MB", "200 MB")
ENGLISH = {
    "page": "README.md",
    "head": "| | navrl | beside it |",
    "static": "success among 350 boxes (`static`)",
    "standard": "success among 350 boxes and 80 moving obstacles (`standard`)",
    "crossing": "success on trips straight across that field (`crossing`)",
    "quick": "after 24 M decisions, about twelve minutes (`navrl train`): `standard`, `crossing`",
    "shield": "behind the [shield](docs/deploy.md)",
    "published": "the original's policy",
    "simulator": "simulated steps a second, everything included",
    "torch eager": "PyTorch (eager)",
    "mujoco": "MuJoCo (body and rays only)",
    "training": "PPO, frames a second",
    "stall": "a save of 1 / 20 / 200 MB blocks training for, ms",
    "added": "and costs training in all, ms",
    "replay": "replay memory, bytes for a LiDAR frame",
}
CHINESE = {
    "page": "README.zh-CN.md",
    "head": "| | navrl | 对照 |",
    "static": "350 个静态障碍中的成功率（`static`）",
    "standard": "350 个静态障碍加 80 个移动障碍的成功率（`standard`）",
    "crossing": "横穿同一场地的成功率（`crossing`）",
    "quick": "训练 24 M 次决策后，约十二分钟（`navrl train`）：`standard`、`crossing`",
    "shield": "加上[安全盾](docs/deploy.md)",
    "published": "原版公开的策略",
    "simulator": "每秒仿真步数（含全部环节）",
    "torch eager": "PyTorch（eager）",
    "mujoco": "MuJoCo（仅刚体与射线）",
    "training": "PPO，每秒帧数",
    "stall": "保存 1 / 20 / 200 MB 检查点时训练停顿，毫秒",
    "added": "训练因此总共多花的时间，毫秒",
    "replay": "回放缓存中一帧 LiDAR 的字节数",
}


def table(words: Mapping[str, str]) -> str:
    """Return the table in a language."""
    lines = [words["head"], "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(words)]
    return "\n".join(lines)


def write_readme() -> None:
    """Bring both pages up to date with the results."""
    for words in (ENGLISH, CHINESE):
        rewrite(ROOT / words["page"], WRITER, table(words))


def _rows(words: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    yield from _learning(words)
    steps = _medians("simulator", "steps_per_second")
    beside = {words["torch eager"]: steps["torch eager"]}
    beside[words["mujoco"]] = steps["MuJoCo, step + 144 rays"]
    yield (words["simulator"], _short(steps["navrl, 16384 drones"]), _list(beside))
    frames = _medians("training", "frames_per_second")
    beside = {title: frames[name] for name, title in PEERS.items() if name in frames}
    yield (words["training"], _short(frames["navrl"]), _list(beside))
    for metric in ("stall", "added"):
        ours, *peers = (_by_size(metric, name) for name in ("navrl", *WRITERS))
        told = [f"{name} {times}" for name, times in zip(WRITERS, peers, strict=True)]
        yield (words[metric], ours, ", ".join(told))
    size = _medians("replay", "bytes")
    told = [f"{title} {size[f'{name}, LiDAR, 100,000']:,.0f}" for name, title in BUFFERS.items()]
    yield (words["replay"], f"{size['navrl, LiDAR, 100,000']:.0f}", ", ".join(told))


def _learning(words: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of success: the policy in the package, then a short training."""
    cases = _read(RESULTS / "baselines.json")["cases"]
    pilots = {
        name: {metric: value["median"] for metric, value in case["metrics"].items()}
        for name, case in cases.items()
    }
    for label in ("static", "standard", "crossing"):
        learned = pilots["pretrained"]
        low, high = (100 * learned[f"{label} {end}"] for end in ("low", "high"))
        success = f"**{100 * learned[f'{label} success']:.1f} %** ({low:.1f} - {high:.1f})"
        beside = [
            f"{words.get(name, f'`{name}`')} {100 * pilots[name][f'{label} success']:.1f} %"
            for name in PILOTS
            if name in pilots
        ]
        yield (words[label], success, ", ".join(beside))
    plain = _read(ROOT / "docs" / "learning" / "quick.evaluation.json")["conditions"]
    shielded = _read(ROOT / "docs" / "learning" / "quick.shield.evaluation.json")
    behind = shielded["compared"][0]["conditions"]
    told = ", ".join(_success(plain[label]) for label in ("standard", "crossing"))
    guarded = ", ".join(_success(behind[label]) for label in ("standard", "crossing"))
    yield (words["quick"], told, f"{words['shield']} {guarded}")


def _by_size(metric: str, writer: str) -> str:
    """Return what a save takes, in ms: 0.31 / 0.39 / 0.37."""
    seconds = _medians("checkpoint", metric)
    times = (1000 * seconds[f"{writer}, {size}"] for size in SIZES)
    return " / ".join(f"{time:.1f}" if time < 10 else f"{time:.0f}" for time in times)


def _success(row: Mapping[str, Any]) -> str:
    found = row["outcomes"]["success_100"]
    return f"{100 * found['share']:.1f} % ({100 * found['low']:.1f} - {100 * found['high']:.1f})"


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _medians(benchmark: str, metric: str) -> dict[str, float]:
    """Return a metric of every case of a benchmark that has it."""
    cases = _read(RESULTS / f"{benchmark}.json")["cases"]
    return {
        name: case["metrics"][metric]["median"]
        for name, case in cases.items()
        if metric in case["metrics"]
    }


def _list(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: float) -> str:
    return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.1f} k"


if __name__ == "__main__":
    write_readme()
