"""Puts the policy of a run into the package, with its card and its record in the docs.

    python benchmarks/_ship_policy.py runs/best                 # and evaluate it
    python benchmarks/_ship_policy.py runs/best --evaluation runs/eval/evaluation.json
    python benchmarks/_ship_policy.py runs/robust --name robust --model mean.pt --command "..."

Writes src/navrl/policies/pretrained.pt and pretrained.md, and docs/learning/NAME.config.yaml,
NAME.metrics.jsonl and NAME.evaluation.json; NAME is `best` by default. With --model that file is
shipped instead of the run's own, such as the mean of several runs. An evaluation that is given must
be of the model: `navrl eval runs/best --scenario static,standard,crossing`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _page import ROOT
from navrl.evaluation import OUTCOMES, PRETRAINED, Policy, load_policy
from navrl.io import load_checkpoint
from navrl.metrics_log import MetricsLog
from navrl.models import save_model
from navrl.rl.policy import NetworkPilot
from navrl.sim.settings import NavigationSettings

CARD = PRETRAINED.with_suffix(".md")
LEARNING = ROOT / "docs" / "learning"
SCENARIOS = ("static", "standard", "crossing")
# settings of a training that make the task harder or more varied than the scenarios are
RANDOMISED = {
    "sensor.noise": "noise of the LiDAR",
    "sensor.dropout": "dropped rays",
    "sensor.detection_dropout": "missed detections",
    "sensor.detection_noise": "noise of detections",
    "sensor.position_noise": "noise of its position",
    "sensor.observation_delay": "old observations",
    "drone.mass_variation": "other masses",
    "drone.thrust_variation": "other thrusts",
    "drone.wind": "wind",
    "drone.delay": "late commands",
}


def main() -> None:
    """Ship the policy of a run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--model", type=Path, help="the model to ship (default: the run's)")
    parser.add_argument("--evaluation", type=Path, help="its evaluation.json, if there is one")
    parser.add_argument("--name", default="best", help="of the files in docs/learning")
    parser.add_argument("--command", help="how it was trained (default: as run.json says)")
    arguments = parser.parse_args()
    model = arguments.model or arguments.run / "model.pt"
    evaluation = (
        json.loads(arguments.evaluation.read_text()) if arguments.evaluation else evaluated(model)
    )
    ship(arguments.run, model, evaluation, arguments.name, arguments.command)
    print(f"written: {PRETRAINED}, {CARD}, {LEARNING}/{arguments.name}.*")


def evaluated(model: Path) -> dict[str, Any]:
    """Fly a model in all scenarios of the card; return its evaluation.json."""
    with tempfile.TemporaryDirectory(prefix="navrl-ship-") as folder:
        command = [sys.executable, "-m", "navrl.cli", "eval", str(model), "--no-animation"]
        command += ["--scenario", ",".join(SCENARIOS), "--out", folder, "flight.recorded=0"]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads((Path(folder) / "evaluation.json").read_text())
    return found


def ship(
    run: Path,
    model: Path,
    evaluation: Mapping[str, Any],
    name: str = "best",
    command: str | None = None,
) -> None:
    """Write the policy, its card and the record of its run."""
    missing = [name for name in SCENARIOS if name not in evaluation["conditions"]]
    if missing:
        raise SystemExit(f"the evaluation lacks {', '.join(missing)}: see --help")
    policy = load_policy(model)  # a damaged or foreign file stops here
    record = kept_evaluation(evaluation)
    (LEARNING / f"{name}.evaluation.json").write_text(json.dumps(record, indent=1) + "\n")
    (LEARNING / f"{name}.config.yaml").write_text(kept_settings(run))
    rows = MetricsLog.read(run / "metrics.jsonl", "eval")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (LEARNING / f"{name}.metrics.jsonl").write_text(lines)
    command = command or json.loads((run / "run.json").read_text())["command"]
    state = load_checkpoint(model)
    results = {row["label"]: row for row in record["conditions"].values()}
    save_model(PRETRAINED, state | {"card": state["card"] | {"evaluation": results}})
    CARD.write_text(card(policy, evaluation, name, command))


def kept_settings(run: Path) -> str:
    """Return the settings of a run without its folder and those of other files."""
    text = re.sub(r"(?m)^run_folder: .*$", "run_folder: ''", (run / "config.yaml").read_text())
    return re.sub(r"(?m)^(teacher|resume_checkpoint): /.*/([^/\n]+)$", r"\1: \2", text)


def kept_evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation of the policy alone, without the names of files and folders."""
    conditions = {
        name: {key: value for key, value in row.items() if key != "recording"}
        for name, row in evaluation["conditions"].items()
    }
    kept = {key: value for key, value in evaluation.items() if key != "compared"}
    return kept | {"model": "pretrained", "policy": "pretrained", "conditions": conditions}


# -------------------------------------------------------------------- the card


def card(policy: Policy, evaluation: Mapping[str, Any], name: str, command: str) -> str:
    """Return the card of the policy in the package: first of all its held-out evaluation."""
    task = policy.task
    if task is None:
        raise SystemExit("the run is of another environment than the navigation task")
    rows = {name: evaluation["conditions"][name] for name in SCENARIOS}
    first = rows[SCENARIOS[0]]
    about = {
        "trained with": f"{_command(command)}, two CPU cores; {_origin(policy)}at "
        f"{_rate(task):.3g} Hz",
        "settings": f"`docs/learning/{name}.config.yaml` of the repository, and in the file itself "
        "(`navrl inspect`)",
        "sees": f"LiDAR {360 / task.sensor.lidar_hres:.0f} x {task.sensor.lidar_vbeams} rays to "
        f"{task.sensor.lidar_range:g} m, the {task.env.num_observed} nearest moving obstacles "
        f"within {task.sensor.detection_range or task.sensor.lidar_range:g} m, its own velocity, "
        "direction and distance of the goal",
        "gives": f"velocity commands in the goal frame, at most {task.env.action_limit:g} m/s on "
        f"each axis, every {1 / _rate(task):.3g} s",
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in about.items())
    return f"""\
# The policy in this package

Held-out evaluation: {first["episodes"]} episodes of each scenario in {first["worlds"]} worlds that
no training has flown in, deterministic actions, 95 % intervals
from a bootstrap over worlds:

{_outcomes(rows)}

A success comes within 1.0 m of its goal, before any collision, within
{task.env.max_episode_length} simulated steps. `static`: 350 boxes. `standard`: 80 moving obstacles
too. `crossing`: the same, on trips of 48 m straight across the field. `navrl eval pretrained
--scenario {",".join(SCENARIOS)}` repeats it.

A `NavigationNetwork` with {_parameters(policy):,} parameters that flies a quadrotor to its goal
among static and moving obstacles. `navrl eval pretrained` flies it;
`navrl.load_policy("pretrained")` gives it to a script.

| | |
|---|---|
{table}

Limits: trained in simulation only, {_randomised(task)}; `navrl eval pretrained --card` shows what
each of these costs. Some trips are longer than the time allows at top speed. The obstacles stand
within 20 m of the centre, and the policy has learnt that flying around them can pay.
"""


def _outcomes(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how the episodes ended, a column for each scenario."""
    lines = [f"| | {' | '.join(f'`{name}`' for name in rows)} |", f"|---{'|---' * len(rows)}|"]
    for name, words in OUTCOMES.items():
        outcomes = [row["outcomes"][name] for row in rows.values()]
        told = [f"{100 * each['share']:.1f} %" for each in outcomes]
        if name == "success_100":
            told = [
                f"**{share}** ({100 * each['low']:.1f} - {100 * each['high']:.1f})"
                for share, each in zip(told, outcomes, strict=True)
            ]
        lines.append(f"| {words} | {' | '.join(told)} |")
    spl = " | ".join(f"{100 * row['spl']['mean']:.1f} %" for row in rows.values())
    return "\n".join([*lines, f"| SPL | {spl} |"])


def _command(command: str) -> str:
    """Return a command without the folder that it wrote to; a text with code is left as it is."""
    if "`" in command:
        return command
    words = (word for word in command.split() if not word.startswith("run_folder="))
    return f"`{' '.join(words)}`"


def _origin(policy: Policy) -> str:
    """Return how many decisions a model or the models that it is the mean of have learnt from."""
    decisions = f"{policy.card['frames'] / 1e6:.0f} million decisions "
    models = len(policy.card.get("average_of", ()))
    return f"the mean of {models} models after {decisions}" if models else f"after {decisions}"


def _rate(task: NavigationSettings) -> float:
    return 1 / (task.sim.dt * task.env.action_repeat)


def _parameters(policy: Policy) -> int:
    assert isinstance(policy.act, NetworkPilot)
    return sum(each.numel() for each in policy.act.network.network.parameters())


def _randomised(task: NavigationSettings) -> str:
    """Return what the training added to the task, in words."""
    groups, usual = task.as_dict(), NavigationSettings().as_dict()
    added = [
        words
        for key, words in RANDOMISED.items()
        if groups[key.split(".")[0]][key.split(".")[1]]
        != usual[key.split(".")[0]][key.split(".")[1]]
    ]
    return f"with {', '.join(added)}" if added else "without sensor noise, wind or delay"


if __name__ == "__main__":
    main()
