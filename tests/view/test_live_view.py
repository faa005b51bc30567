"""The live view: drones fly, goals move, a run's newest policy is taken; and it is in the browser."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from browser import Opened, started_browser

from navrl.cli import main
from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.evaluation import PRETRAINED, Policy, load_policy
from navrl.render.moment import FLYING
from navrl.render.palette import LIGHT
from navrl.view.live.flight import HOLD, LiveFlight
from navrl.view.live.newest import NewestPolicy

SMALL = ["env.num_obstacles=30", "env_dyn.num_obstacles=8", "env.action_repeat=5"]
CANVAS = "canvas[data-engine]"
TYPED = {word.split("=")[0] for word in SMALL}


def straight(observation: dict[str, torch.Tensor]) -> torch.Tensor:
    return 2.0 * observation["state"][:, :3]


def flight(**options) -> LiveFlight:
    policy = Policy("straight", straight)
    return LiveFlight(policy, "light", load_config(SMALL), TYPED, **options)


def test_a_flight_that_ended_is_shown_so_and_its_drone_starts_again():
    live = flight(drones=4)
    live.set_goal(1, live.env.position[1] + torch.tensor([0.0, 0.0, 0.3]))
    steps = 0
    while live.moment().state[1] == FLYING and steps < 100:
        live.step()
        steps += 1
    assert live.moment().state[1] == "success_100"
    assert live.counts["success_100"] >= 1
    for _ in range(round(HOLD / live.seconds_per_step) + 2):
        live.step()
    assert live.moment().state[1] == FLYING
    assert len(live.moment().trails[1]) < 5


def test_a_drone_flies_to_a_goal_that_was_moved_from_where_it_is():
    live = flight(drones=2)
    for _ in range(20):
        live.step()
    place, other = live.env.position.clone(), live.env.target[1].clone()
    live.set_goal(0, (3.0, -2.0, 99.0))
    assert torch.equal(live.env.position, place)
    assert live.env.target[0].tolist() == [3.0, -2.0, 4.0]  # kept within the field
    assert torch.equal(live.env.target[1], other)


def test_what_is_seen_has_the_rays_of_the_followed_drone():
    live = flight(drones=3)
    moment = live.moment(2)
    assert np.allclose(moment.rays[:, 0], moment.position[2])


def test_the_oracle_is_refused():
    policy = load_policy("oracle", load_config(SMALL).task)
    with pytest.raises(ConfigError, match="cannot be watched live"):
        LiveFlight(policy, "light", load_config(SMALL), TYPED)


def test_the_newest_policy_of_a_run_is_taken_once_whenever_it_changes(tmp_path):
    newest = NewestPolicy(tmp_path)
    with pytest.raises(ConfigError, match="neither a checkpoint nor a model"):
        newest.take()
    model = tmp_path / "model.pt"
    shutil.copy(PRETRAINED, model)
    assert newest.take() is not None
    assert newest.take() is None
    os.utime(model, ns=(1, 1))
    assert newest.take() is not None
    model.write_bytes(b"damaged")
    assert newest.take_quietly() is None


MISTAKES = {
    "nothing": (["view"], "one policy"),
    "two policies": (["view", "a", "b"], "one policy"),
    "no run": (["view", "--run", "nowhere"], "nowhere"),
    "a grid": (["view", "scripted", "--scenario", "grid"], "cannot be watched"),
    "no drones": (["view", "scripted", "--drones", "0"], "--drones"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_told_before_anything_flies(capsys, kind):
    arguments, piece = MISTAKES[kind]
    assert main(arguments) == 2
    assert piece in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def address():
    """A server on loopback, in a process of its own."""
    pytest.importorskip("viser", reason="the live view is not tested: pip install viser")
    command = [sys.executable, "-m", "navrl.cli", "view", "scripted", *SMALL, "--drones", "4"]
    command += ["--port", str(free_port()), "--scenario", "light"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        yield re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        process.terminate()


@pytest.fixture(scope="module")
def opened(address):
    with started_browser() as browser:
        yield Opened(browser, address)


def near(pixels: np.ndarray, colour: str, within: int = 60) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels.astype(int) - wanted).max(2) <= within).sum())


@pytest.mark.slow
def test_the_scene_and_its_controls_are_in_the_browser_and_nothing_comes_from_elsewhere(
    opened, address
):
    page = opened.page
    for label in ("Policy", "Scenario", "World", "Shield", "Drone", "Rays", "Pause", "Speed"):
        page.get_by_text(label, exact=True).first.wait_for(timeout=60_000)
    opened.until(lambda: near(opened.pixels(CANVAS), LIGHT.moving) > 20, "moving obstacles")
    before = opened.pixels(CANVAS)
    opened.until(lambda: (before != opened.pixels(CANVAS)).any(), "anything moves")
    page.get_by_text("Pause", exact=True).first.click()
    assert {
        url for url in opened.requests if not url.startswith((address, "data:", "blob:"))
    } == set()
