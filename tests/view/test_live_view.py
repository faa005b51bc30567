"""The live view: drones fly, goals move, a run's newest policy is taken; and it is in the browser."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Opened, started_browser
from PIL import Image

import forked
from navrl.cli import main
from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.evaluation import PRETRAINED, Policy, load_policy
from navrl.io import load_checkpoint, save_checkpoint
from navrl.render.moment import FLYING
from navrl.render.palette import LIGHT
from navrl.view.live.flight import HOLD, LiveFlight
from navrl.view.live.newest import NewestPolicy

SMALL = ["env.num_obstacles=30", "env_dyn.num_obstacles=8", "env.action_repeat=5"]
SHOWN = slice(190, 540), slice(0, 650)  # rows and columns of the page without panel and notice
ARROW = "#ff2060"  # of viser's controls that are dragged
TYPED = {word.split("=")[0] for word in SMALL}


def straight(observation: dict[str, torch.Tensor]) -> torch.Tensor:
    return 2.0 * observation["state"][:, :3]


def flight(**options) -> LiveFlight:
    policy = Policy("straight", straight)
    return LiveFlight(policy, "light", load_config(SMALL), TYPED, **options)


@pytest.mark.slow
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
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    assert main(arguments) == 2
    assert piece in capsys.readouterr().err
    assert os.getpriority(os.PRIO_PROCESS, 0) == niceness


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a training that has written one model so far."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    write_model(folder, iteration=10)
    return folder


def write_model(run: Path, iteration: int) -> None:
    state = load_checkpoint(PRETRAINED)
    state["card"]["iteration"] = iteration
    save_checkpoint(state, run / "model.pt")


@pytest.fixture(scope="module")
def address(run):
    """A server on loopback that watches a run, in a process of its own."""
    pytest.importorskip("viser", reason="the live view is not tested: pip install viser")
    words = ["view", "--run", run, *SMALL]
    words += ["--drones", "4", "--port", free_port(), "--scenario", "light"]
    with forked.start(forked.NAVRL, *words) as process:
        line = process.stdout.readline()
        yield re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        process.terminate()


@pytest.fixture(scope="module")
def opened(address):
    with started_browser() as browser:
        opened = Opened(browser, address, viewport={"width": 1000, "height": 600})
        opened.page.get_by_text("Speed", exact=True).first.wait_for(timeout=60_000)
        opened.until(lambda: near(seen(opened), LIGHT.moving) > 20, "moving obstacles")
        yield opened


def seen(opened: Opened) -> np.ndarray:
    """Return the pixels of the scene, (rows, columns, 3).

    A picture of the canvas alone would wait for it to rest, which a busy machine does not grant.
    """
    picture = opened.page.screenshot(timeout=60_000)
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))[SHOWN]


def near(pixels: np.ndarray, colour: str, within: int = 60) -> int:
    return int(like(pixels, colour, within).sum())


def like(pixels: np.ndarray, colour: str, within: int) -> np.ndarray:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return np.abs(pixels.astype(int) - wanted).max(2) <= within


def switch(opened: Opened, label: str) -> None:
    opened.page.get_by_label(label, exact=True).first.click()


def told_goal(opened: Opened) -> list[float]:
    words = opened.page.get_by_text("Goal of drone").first.inner_text()
    return [float(value) for value in re.search(r"\((.*)\)", words)[1].split(",")]


@pytest.mark.slow
def test_the_scene_and_its_controls_are_in_the_browser_and_nothing_comes_from_elsewhere(
    opened, address
):
    page = opened.page
    for label in ("Policy", "Scenario", "World", "Shield", "Drone", "Rays", "Pause", "Speed"):
        page.get_by_text(label, exact=True).first.wait_for(timeout=60_000)
    before = seen(opened)
    opened.until(lambda: (before != seen(opened)).any(), "anything moves")
    assert {
        url for url in opened.requests if not url.startswith((address, "data:", "blob:"))
    } == set()


@pytest.mark.slow
def test_the_policy_that_a_training_has_just_written_is_flown(opened, run):
    opened.page.get_by_text("iteration 10", exact=False).first.wait_for(timeout=60_000)
    write_model(run, iteration=20)
    opened.page.get_by_text("iteration 20", exact=False).first.wait_for(timeout=60_000)


@pytest.mark.slow
def test_the_shield_is_switched_on_and_off(opened):
    shielded = opened.page.get_by_text("+ shield", exact=False)
    assert shielded.count() == 0
    switch(opened, "Shield")
    shielded.first.wait_for(timeout=60_000)
    switch(opened, "Shield")
    opened.until(lambda: shielded.count() == 0, "without the shield")


@pytest.fixture
def paused(opened):
    switch(opened, "Pause")
    yield opened
    switch(opened, "Pause")


@pytest.mark.slow
def test_a_goal_that_is_dragged_stays_where_it_was_left(paused):
    before = told_goal(paused)
    arrow = np.argwhere(like(seen(paused), ARROW, 40))
    y, x = (float(value) for value in arrow[len(arrow) // 2] + [SHOWN[0].start, 0])
    mouse = paused.page.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + 80, y, steps=8)
    mouse.up()
    paused.until(lambda: told_goal(paused) != before, "another goal")
    after = told_goal(paused)
    assert np.linalg.norm(np.subtract(after, before)) > 2.0
    settled(paused)
    assert told_goal(paused) == after


@pytest.mark.slow
def test_rays_are_shown_until_they_are_switched_off(opened):
    """The drone of the first world comes near an obstacle sooner or later."""
    found = 0
    while found < 10:
        opened.page.wait_for_timeout(300)
        switch(opened, "Pause")
        shown = settled(opened)
        switch(opened, "Rays")
        found = int((shown != settled(opened)).any(2).sum())
        switch(opened, "Rays")
        assert (shown != settled(opened)).any(2).sum() < 10
        switch(opened, "Pause")


def settled(opened: Opened) -> np.ndarray:
    """Return the pixels once they do not change any more."""
    pictures = [seen(opened)]

    def at_rest() -> bool:
        pictures.append(seen(opened))
        return len(pictures) > 3 and bool((pictures[-1] == pictures[-3]).all())

    opened.until(at_rest, "a scene at rest")
    return pictures[-1]
