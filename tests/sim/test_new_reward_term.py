"""A reward term is added by the three lines that docs/simulator.md shows, and by nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from navrl import kernel_cache

PACKAGE = kernel_cache.PACKAGE
PAGE = PACKAGE.parents[1] / "docs" / "simulator.md"
FLY = """
import json, shutil, sys, torch
from pathlib import Path
from navrl import kernel_cache
for path in Path(sys.argv[1]).glob("sim.worlds.*.nbc"):  # which know nothing of rewards
    shutil.copy(path, kernel_cache.storage())
from dataclasses import replace
from navrl import NavigationEnv, NavigationSettings
from navrl.sim import reference
from navrl.sim.episode_statistics import STATISTICS

settings = NavigationSettings.of(
    env__num_envs=3, env__num_worlds=1, env__num_obstacles=0, env_dyn__num_obstacles=0,
    sim__num_threads=1, env__max_episode_length=1, reward__climb=5.0, reward__per_second=False,
)
env = NavigationEnv(settings, auto_reset=False)
velocity = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])
env.place([0.0, 0.0, 2.0], [10.0, 0.0, 2.0], velocity=velocity)
step = env.step(torch.zeros(3, 3))
drone = reference.hover(env.position, env.yaw)
drone = replace(drone, velocity=env.velocity)
terms = reference.reward_terms(
    drone, velocity, env.target, 4 - step.observation["lidar"][:, 0], torch.full((3, 2), 2.0),
    torch.full((3, 5), 4.0), has_moving_obstacles=False, log_reference=4.0,
)
print(json.dumps({
    "kernel": step.reward.tolist(),
    "reference": reference.total_reward(terms, vars(settings.reward)).tolist(),
    "climb": terms["climb"].tolist(),
    "statistic": step.statistics[:, STATISTICS.index("reward_climb")].tolist(),
}))
"""


def edits() -> list[tuple[str, str, str]]:
    """Return file, anchor and line of every edit that the page shows."""
    section = PAGE.read_text().split("## Add a reward term")[1].split("\n## ")[0]
    return re.findall(r'```python\n# (\S+), above "(.*)"\n(.*\n)```', section)


@pytest.fixture(scope="module")
def flown(tmp_path_factory):
    """What a copy of the package with the new term says about one step, in a process that compiles
    the kernel and in one that loads it.
    """
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, site / "navrl", ignore=shutil.ignore_patterns("__pycache__"))
    for name, anchor, line in edits():
        source = (site / "navrl" / name).read_text()
        assert source.count("\n" + anchor) == 1, (name, anchor)
        (site / "navrl" / name).write_text(source.replace("\n" + anchor, "\n" + line + anchor))
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-c", FLY, str(kernel_cache.storage())]
    told = [
        subprocess.run(command, env=environment, capture_output=True, text=True) for _ in range(2)
    ]
    assert [done.returncode for done in told] == [0, 0], told[0].stderr
    return [json.loads(done.stdout) for done in told]


def test_the_page_edits_the_table_the_kernel_and_the_reference():
    assert [name for name, _, _ in edits()] == [
        "sim/settings.py",
        "sim/kernels/reward.py",
        "sim/reference/rules.py",
    ]


@pytest.mark.slow
def test_the_kernel_and_the_reference_agree_on_the_new_term(flown):
    flown, _ = flown
    assert flown["kernel"] == pytest.approx(flown["reference"], abs=1e-4)
    assert flown["climb"][0] > 0.9
    assert flown["climb"][1] < -0.9


@pytest.mark.slow
def test_the_new_term_has_a_statistic_of_its_own(flown):
    flown, _ = flown
    assert flown["statistic"] == pytest.approx([5 * climb for climb in flown["climb"]], abs=1e-4)


@pytest.mark.slow
def test_a_process_that_loads_the_kernel_flies_as_the_one_that_compiled_it(flown):
    compiled, loaded = flown
    assert compiled == loaded
