"""docs/migration.md: its snippets and commands are run, its tables are compared with what the code
does.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from navrl.conf.spellings import REFUSED, RENAMED
from navrl.config import known_keys, load_config, our_overrides
from navrl.errors import ConfigError
from navrl.registry.upload_policy import UploadPolicy
from navrl.rl.networks.navigation import NavigationNetwork, to_upstream
from navrl.tracking.tracker import current_tracking
from training_runs import TINY, Run

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
# The keys of the original's configuration files, the many of PhysX aside.
ORIGINAL = {
    "": ("headless", "device", "seed", "max_frame_num", "eval_interval", "save_interval"),
    "env.": ("num_envs", "max_episode_length", "env_spacing", "num_obstacles"),
    "env_dyn.": ("num_obstacles", "vel_range", "local_range"),
    "drone.": ("model_name",),
    "sensor.": ("lidar_range", "lidar_vfov", "lidar_vbeams", "lidar_hres"),
    "algo.": (
        "entropy_loss_coefficient",
        "training_frame_num",
        "training_epoch_num",
        "num_minibatches",
    ),
    "algo.feature_extractor.": ("learning_rate", "dyn_obs_num"),
    "algo.actor.": ("learning_rate", "clip_ratio", "action_limit"),
    "algo.critic.": ("learning_rate", "clip_ratio"),
    "sim.": ("dt", "substeps", "gravity"),
    "viewer.": ("eye", "lookat", "resolution"),
    "wandb.": ("project", "name", "entity", "mode", "run_id"),
}
MANAGED = (
    "upload_frequency",
    "save_best_models",
    "best_model_metric",
    "upload_final_model",
    "keep_last_n",
    "continue_on_upload_failure",
)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def table(heading):
    """Return the rows of the table below a heading, as lists of cells."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


SETTINGS = [(names(original)[0], ours) for original, ours, *_ in table("Settings")]
MANAGEMENT = [
    (names(original)[0], ours) for original, ours, *_ in table("Settings of model management")
]


@pytest.fixture
def of_the_original(here):
    """The current folder, with a checkpoint that the original NavRL wrote."""
    torch.save(to_upstream(NavigationNetwork()), "checkpoint_1000.pt")
    return here


def title(block):
    """Return the names that a snippet is about."""
    return " ".join(re.findall(r"from navrl\S* import (.*)", block))[:60]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("block", blocks("python"), ids=title)
def test_a_snippet_runs_in_an_empty_file(of_the_original, block):
    try:
        exec(compile(block, "snippet.py", "exec"), {"__name__": "__main__"})
    finally:
        if (tracking := current_tracking()) is not None:
            tracking.close()


@pytest.mark.parametrize("block", blocks("py"))
def test_what_was_before_is_python(block):
    compile(block, "before.py", "exec")


@pytest.mark.slow
def test_the_commands_run_one_after_another(server, of_the_original):
    folder = of_the_original
    (folder / "cfg").mkdir()
    (folder / "cfg" / "train.yaml").write_text(blocks("yaml")[0])
    commands = [
        shlex.split(line, comments=True) for block in blocks("bash") for line in block.splitlines()
    ]
    assert len(commands) == 8
    for number, (program, *words) in enumerate(commands):
        assert program == "navrl"
        output = folder / f"{number}.txt"
        request = {
            "arguments": [*words, *shorter(words)],
            "output": str(output),
            "folder": str(folder),
        }
        Run(server, server.ask(**request)["pid"], folder, output).finish()


def shorter(words):
    """Return what makes a command short; a run that goes on may not change its task."""
    if words[0] == "eval":
        return ["--episodes", "4", "--worlds", "1", "--no-animation"]
    if words[0] != "train" or any(word.startswith("resume") for word in words):
        return []
    return [word for word in TINY if not word.startswith("preset=")]


@pytest.mark.parametrize(
    ("override", "ours"), [*SETTINGS, *MANAGEMENT], ids=lambda word: word.partition("=")[0]
)
def test_a_row_of_the_tables_of_settings_is_true(override, ours):
    key = override.partition("=")[0]
    if key == "device" and not torch.cuda.is_available():
        override = "device=cpu"
    if ours == "refused":
        with pytest.raises(ConfigError, match=re.escape(key)):
            load_config([override])
        return
    load_config([override])
    meant = {word.partition("=")[0] for word in our_overrides([override])}
    asks_for_default = override.endswith("=null") or ours == "left out"
    assert meant == (set() if asks_for_default else {*names(ours)})
    assert set(names(ours)) <= set(known_keys())


def test_every_setting_of_the_original_is_in_the_table():
    told = {override.partition("=")[0] for override, _ in SETTINGS}
    assert {f"{group}{name}" for group, keys in ORIGINAL.items() for name in keys} - told == set()
    assert [
        key for key in (*REFUSED, *RENAMED) if not any(one.startswith(key) for one in told)
    ] == []


def test_every_setting_of_model_management_is_in_the_table():
    told = {override.partition("=")[0] for override, _ in MANAGEMENT}
    conditions = [f"upload_conditions.{name}" for name in vars(UploadPolicy().upload_conditions)]
    assert told == {f"model_management.{name}" for name in (*MANAGED, *conditions)}


@pytest.mark.slow
@pytest.mark.parametrize(("original", "ours"), [row[:2] for row in table("Metrics")])
def test_a_metric_of_the_original_has_its_counterpart(documented, original, ours):
    queued = (documented / "tracking" / "records.log").read_text(errors="replace")
    assert [name for name in names(ours) if f'"{name}"' not in queued] == []
