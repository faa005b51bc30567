"""The replay page in a real browser: it draws, plays, and makes no request."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from browser import Opened, started_browser
from made_flights import made_recording

from navrl.errors import ConfigError
from navrl.evaluation.recording import Recorder
from navrl.render.palette import DARK, LIGHT
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings
from navrl.view.replay import replay_page, write_replay

STILL = "!!window.replay && replay.drawn > 0 && !replay.changed && !replay.gliding"


@pytest.fixture(scope="module")
def browser():
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "flight.html"
    other = replace(made_recording(flights=3, moving=0, seed=1), scenario="calm <&> static")
    write_replay([made_recording(), other], path)
    return path


@pytest.fixture(scope="module")
def opened(browser, file):
    """One page for the tests that can share it."""
    shared = Opened(browser, file)
    shared.wait("!!window.replay && replay.drawn > 0")
    yield shared
    shared.page.close()


@pytest.fixture
def page(opened):
    """The shared page, as it is when it opens, but paused."""
    opened.page.evaluate(
        "() => { replay.open(0); replay.play(false); replay.setSpeed(1);"
        " replay.camera.now = {...replay.camera.goal}; replay.changed = true; }"
    )
    opened.wait(STILL)
    return opened


def near(pixels: np.ndarray, colour: str, within: int = 40) -> int:
    """Return how many pixels have about the colour."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels.astype(int) - wanted).max(2) <= within).sum())


def seek(page: Opened, time: float) -> None:
    page.page.evaluate("time => replay.seek(time)", time)
    page.wait(STILL)


def test_the_scene_is_on_the_screen(page):
    seek(page, 1.0)
    pixels = page.pixels()
    assert near(pixels, LIGHT.moving) > 100
    assert near(pixels, LIGHT.flying) > 100
    assert near(pixels, LIGHT.high) > 300


def test_the_page_logs_no_error_and_requests_nothing_but_itself(page, file):
    assert page.complaints == []
    assert page.requests == [file.as_uri()]


def test_the_arrays_in_the_browser_are_those_that_were_recorded(page):
    recording = made_recording()
    values = page.page.evaluate("[...replay.scenes[0].position]")
    rows = np.minimum(np.arange(60)[:, None], recording.lengths)
    expected = recording.position[rows, np.arange(8)]
    assert np.abs(np.reshape(values, expected.shape) - expected).max() <= 0.00501


def test_drones_and_obstacles_move_with_the_time(page):
    seek(page, 0.5)
    before = page.pixels()
    seek(page, 3.0)
    assert (before != page.pixels()).any(axis=2).mean() > 0.005


def test_an_outcome_has_no_colour_before_it_happens(page):
    seek(page, 1.0)
    before = page.pixels()
    seek(page, 4.72)
    after = page.pixels()
    for outcome in ("static_collision", "dynamic_collision", "out_of_bounds", "success_100"):
        colour = getattr(LIGHT, outcome)
        assert near(after, colour, 24) > near(before, colour, 24) + 20, outcome


def test_play_runs_to_the_end_and_stops(page):
    seek(page, 4.5)
    page.page.click("#play")
    page.wait("!replay.playing")
    assert page.page.evaluate("replay.time === replay.scene.duration")


def test_the_slider_seeks(page):
    page.page.locator("#time").fill("2.5")
    assert page.page.evaluate("replay.time") == 2.5


def test_the_speed_is_chosen_from_the_list(page):
    page.page.select_option("#speed", "4")
    assert page.page.evaluate("replay.speed") == 4


def test_failures_come_first_in_the_list(page):
    rows = page.page.locator("#list button").all_inner_texts()
    reached = ["reached the goal" in row for row in rows]
    assert reached == [False] * 6 + [True] * 2
    assert page.page.locator("#list h2").all_inner_texts() == ["Failed (6)", "Reached the goal (2)"]


def test_a_click_in_the_list_follows_the_flight_to_its_end(page):
    page.page.locator("#list button").first.click()
    page.wait(STILL)
    assert page.page.evaluate("replay.following && replay.chosen === replay.order[0]")
    assert "in flight" in page.page.inner_text("#followed")
    drone = page.page.evaluate("replay.drones[replay.chosen].place")
    assert page.page.evaluate("replay.camera.now.target") == pytest.approx(drone, abs=0.01)
    seek(page, 99.0)
    assert "hit an obstacle" in page.page.inner_text("#followed")


def test_rays_are_drawn_for_the_followed_drone_only_while_wanted(page):
    assert page.page.evaluate("replay.stage.rays.count") == 0
    page.page.evaluate("replay.choose(0)")
    page.wait(STILL)
    assert page.page.evaluate("replay.stage.rays.count") == 144
    page.page.click("#rays")
    page.wait(STILL)
    assert page.page.evaluate("replay.stage.rays.count") == 0
    page.page.click("#rays")


def test_a_click_on_a_drone_follows_it(page):
    seek(page, 1.0)
    box = page.page.locator("#canvas").bounding_box()
    x, y = page.page.evaluate("replay.onScreen(replay.drones[5].place)")
    page.page.mouse.click(box["x"] + x, box["y"] + y)
    assert page.page.evaluate("replay.chosen") == 5


@pytest.mark.parametrize(
    ("gesture", "changes"),
    [("drag", {"yaw", "pitch"}), ("shift-drag", {"target"}), ("wheel", {"distance"})],
)
def test_the_mouse_turns_moves_and_zooms_the_view(page, gesture, changes):
    before = page.page.evaluate("({...replay.camera.goal})")
    mouse = page.page.mouse
    mouse.move(400, 300)
    if gesture == "wheel":
        mouse.wheel(0, -200)
        page.wait(f"replay.camera.goal.distance !== {before['distance']}")
    else:
        if gesture == "shift-drag":
            page.page.keyboard.down("Shift")
        mouse.down()
        mouse.move(460, 340, steps=3)
        mouse.up()
        page.page.keyboard.up("Shift")
    after = page.page.evaluate("({...replay.camera.goal})")
    assert {key for key in before if before[key] != after[key]} == changes


@pytest.mark.parametrize(
    ("key", "state"),
    [
        ("Space", "replay.playing"),
        ("ArrowRight", "replay.time === 1"),
        ("ArrowDown", "replay.chosen === replay.order[0]"),
        (".", "replay.speed === 2"),
        (",", "replay.speed === 0.5"),
        ("?", "document.getElementById('keys').open"),
    ],
)
def test_a_key_does_what_the_list_of_keys_says(page, key, state):
    page.page.locator("#canvas").focus()
    page.page.keyboard.press(key)
    assert page.page.evaluate(state)
    page.page.evaluate("document.getElementById('keys').close()")


def test_escape_goes_back_to_the_whole_field(page):
    page.page.evaluate("replay.choose(2)")
    page.page.keyboard.press("Escape")
    assert page.page.evaluate("replay.chosen === -1 && !replay.following")


def test_another_scenario_is_a_tab_away(page):
    page.page.locator("#scenes button").nth(1).click()
    page.wait(STILL)
    assert page.page.inner_text("#title") == "3 flights of a made-up policy"
    assert "calm <&> static" in page.page.inner_text("#summary")
    legend = page.page.locator("#legend span").all_text_contents()
    assert "fixed obstacle" in legend
    assert "moving obstacle" not in legend


def test_the_legend_names_everything_that_is_drawn(page):
    page.page.evaluate("document.getElementById('legend').open = true")
    legend = page.page.inner_text("#legend")
    for words in ("drone in flight", "its goal", "moving obstacle", "ran out of time"):
        assert words in legend


def test_the_page_follows_the_colours_of_the_system_and_its_own_switch(browser, file):
    dark = Opened(browser, file, color_scheme="dark", reduced_motion="reduce")
    dark.wait(STILL)
    assert near(dark.pixels(), DARK.ground, 10) > 1000
    dark.page.click("#theme")
    dark.wait(STILL)
    assert near(dark.pixels(), LIGHT.ground, 10) > 1000
    dark.page.close()


def test_a_page_opened_with_reduced_motion_waits_for_play(browser, file):
    calm = Opened(browser, file, reduced_motion="reduce")
    calm.wait(STILL)
    assert calm.page.evaluate("!replay.playing && replay.time === 0")
    calm.page.close()


def test_an_address_opens_a_flight_of_a_scenario(browser, file):
    addressed = Opened(browser, file, "#scenario=crossing&episode=9")
    addressed.wait("!!window.replay && replay.drawn > 0")
    assert addressed.page.evaluate("replay.scene.flights[replay.chosen].episode") == 9
    addressed.page.close()


def test_the_page_fits_a_phone(browser, file):
    phone = Opened(browser, file, viewport={"width": 390, "height": 700}, has_touch=True)
    phone.wait("!!window.replay && replay.drawn > 0")
    assert phone.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert phone.page.locator("#play").is_visible()
    phone.page.close()


def test_a_browser_without_webgl_is_told_what_to_use(browser, file, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(file.read_text().replace('getContext("webgl2"', 'getContext("no"'))
    page = Opened(browser, broken)
    page.wait("!document.getElementById('message').hidden")
    assert "no WebGL 2" in page.page.inner_text("#message")
    page.page.close()


def test_sixty_four_flights_fit_into_half_a_megabyte(tmp_path):
    random = np.random.default_rng(0)
    recording = made_recording(flights=64, frames=440, moving=80)
    rough = recording.position + np.cumsum(random.normal(0, 0.01, recording.position.shape), 0)
    write_replay(replace(recording, position=rough.astype(np.float32)), tmp_path / "flight.html")
    assert (tmp_path / "flight.html").stat().st_size <= 500_000


def test_nothing_in_the_page_points_elsewhere():
    page = replay_page([made_recording()])
    assert re.findall(r"(?:src|href)=\"(?!data:)[^\"]*\"", page) == []
    assert "http" not in page.replace("http-equiv", "")


def test_a_name_cannot_end_the_script_of_the_page():
    page = replay_page([replace(made_recording(), policy="</script><script>alert(1)</script>")])
    assert "<script>alert" not in page
    assert page.count("</script>") == 2


def test_a_page_without_flights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"flight\.recorded"):
        write_replay([], tmp_path / "flight.html")
    assert not (tmp_path / "flight.html").exists()


@pytest.fixture(scope="module")
def flown():
    """Drones among many obstacles that the LiDAR sees, after a few decisions; and their recorder."""
    settings = NavigationSettings.of(
        env__num_envs=8, env__num_worlds=1, env__action_repeat=5, env_dyn__visible_to_lidar=True
    )
    env = NavigationEnv(settings, seed=3, auto_reset=False)
    # over the field, where there is something to see
    places = np.stack([np.linspace(-15, 15, 8), np.linspace(-9, 12, 8), np.full(8, 1.4)], 1)
    env.place(places, places + np.array([3.0, 1.0, 0.0]))
    recorder = Recorder(env, torch.arange(8))
    for _ in range(3):
        step = env.step(np.tile([1.0, 0.3, 0.0], (8, 1)))
        recorder.sample()
    statistics = {name: torch.zeros(8) for name in STATISTICS}
    statistics["length"] += 15
    return env, step, recorder.finish(statistics)


def test_the_rays_in_the_page_are_those_of_the_simulator(browser, flown, tmp_path):
    env, step, recording = flown
    write_replay(recording, tmp_path / "flight.html")
    page = Opened(browser, tmp_path / "flight.html", reduced_motion="reduce")
    page.wait(STILL)
    seek(page, 99.0)
    cast = "([place, yaw]) => castRays(replay.scene, place, yaw, replay.stage.movingShapes())"
    gaps = []
    for drone in range(8):
        place = env.position[drone].tolist()
        ends = np.array(page.page.evaluate(cast, [place, float(env.yaw[drone])]))
        ranges = np.linalg.norm(ends[:, :3] - place, axis=1).reshape(36, 4)
        gaps.append(np.abs(ranges - (4.0 - step.observation["lidar"][drone, 0].numpy())))
    page.page.close()
    assert (step.observation["lidar"] > 0).float().mean() > 0.1, "the drones see too little"
    # a centimetre of the page's unit turns a hit at an edge into a miss
    assert (np.array(gaps) < 0.02).mean() > 0.99
