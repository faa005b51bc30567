"""`navrl bench learning`: its learners learn and resume, its numbers are those of the curves."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from navrl.errors import BenchmarkError
from navrl.rl.networks.navigation import NavigationNetwork

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import learning  # noqa: E402
from _learning_page import page  # noqa: E402
from _learning_peers import recipes, training  # noqa: E402
from _learning_peers.course import Judge, Run  # noqa: E402

TINY = replace(learning.SMOKE, episodes=2, interval=0.0)
CURVE = [
    {"minutes": 0.0, "decisions": 0, "success": 0.0},
    {"minutes": 1.0, "decisions": 10, "success": 0.72},
    {"minutes": 2.0, "decisions": 20, "success": 0.69},
    {"minutes": 3.0, "decisions": 30, "success": 0.81},
]


def test_a_target_is_reached_at_the_first_evaluation_that_shows_it():
    assert learning.reached(CURVE, 0.7) == {"minutes to 70 %": 1.0, "decisions to 70 %": 10}
    assert learning.reached(CURVE[:3], 0.8)["minutes to 80 %"] == float("inf")


def test_the_recipe_of_quick_is_that_of_the_preset():
    algo = Run("rsl_rl_runner", recipes.QUICK).config.algo
    recipe = recipes.recipe_for("rsl_rl_runner", recipes.QUICK, algo)
    assert (recipe.steps, recipe.epochs) == (algo.training_frame_num, algo.training_epoch_num)
    assert recipe.rate(0.0) == algo.actor.learning_rate
    assert recipe.rate(1.0) == pytest.approx(algo.actor.learning_rate * algo.final_learning_rate)
    assert recipe.entropy_at(2.0) == pytest.approx(
        algo.entropy_loss_coefficient * algo.final_entropy
    )


def test_a_run_with_other_settings_has_another_folder_but_not_one_with_another_limit(tmp_path):
    folders = [
        learning.folder_of(run, tmp_path)
        for run in (TINY, replace(TINY, seed=1), replace(TINY, threads=3), replace(TINY, minutes=1))
    ]
    assert len(set(folders)) == 3
    assert folders[0] == folders[3]


def test_a_run_that_ended_at_its_limit_is_not_finished_with_a_longer_one(tmp_path):
    ended = training.Course(seconds=60.0, decisions=20, curve=CURVE[:2])
    (tmp_path / training.RESULT).write_text(json.dumps(asdict(ended)))
    course = learning.course_of(tmp_path)
    assert course == ended
    assert course.finished(replace(TINY, minutes=1.0))
    assert not course.finished(replace(TINY, minutes=2.0))


class Counting:
    """A learner that counts its iterations, and is interrupted at one of them."""

    def __init__(self, fails_at=None):
        self.network, self.count, self.fails_at = NavigationNetwork(), 0, fails_at

    def iterate(self, decisions):
        assert decisions == 10 * self.count
        if self.count == self.fails_at:
            raise KeyboardInterrupt
        self.count += 1
        return 10

    def state(self):
        return {"count": self.count}

    def load(self, state):
        self.count = state["count"]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    run = replace(TINY, learner="counting", decisions=30)
    for fails_at in (2, None):
        module = SimpleNamespace(make=lambda run, at=fails_at: Counting(at))
        monkeypatch.setitem(sys.modules, "_learning_peers.counting", module)
        if fails_at is not None:
            with pytest.raises(KeyboardInterrupt):
                training.train(run, tmp_path)
            assert not learning.course_of(tmp_path).finished(run)
    course = training.train(run, tmp_path)
    assert [point["decisions"] for point in course.curve] == [0, 10, 20, 30]
    minutes = [point["minutes"] for point in course.curve]
    assert minutes == sorted(minutes)
    assert learning.carry_out(run, "no python is started", tmp_path) == asdict(course)


LEARNERS = {
    "navrl_trainer": "torch",
    "stable_baselines": "stable_baselines3",
    "rsl_rl_runner": "rsl_rl",
    "skrl_agent": "skrl",
}


@pytest.fixture
def one_thread():
    """Two threads of OpenMP wait for each other many times longer on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_changes_its_network_and_resumes(learner, tmp_path, one_thread):
    if importlib.util.find_spec(LEARNERS[learner]) is None:
        pytest.skip(f"{LEARNERS[learner]} is not installed")
    run = replace(TINY, learner=learner, recipe=recipes.QUICK, decisions=2048, interval=1e9)
    make = importlib.import_module(f"_learning_peers.{learner}").make
    untrained = make(run).network.state_dict()
    first = training.train(run, tmp_path)
    second = training.train(replace(run, decisions=4096), tmp_path)
    assert first.decisions == 2048
    assert second.decisions == 4096
    assert second.curve[: len(first.curve)] == first.curve
    saved = training.load_checkpoint(tmp_path / training.STATE)["learner"]
    weights = saved.get("network", saved.get("model_state_dict"))
    assert not torch.equal(weights["critic.weight"], untrained["critic.weight"])


@pytest.mark.slow
def test_the_judge_flies_the_same_episodes_each_time():
    judge, network = Judge(TINY), TINY.network()
    ends = []
    for _ in range(2):
        judge.success(network)
        ends.append(judge.env.position.clone())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


@pytest.mark.slow
def test_the_mean_action_of_rsl_rl_is_the_one_that_is_judged():
    distribution = pytest.importorskip("rsl_rl.modules.distribution")
    from navrl.rl.distributions import beta

    heads = torch.randn(20, 7)
    theirs = distribution.BetaDistribution(3, (-2.0, 2.0)).deterministic_output(
        heads[:, :6].view(-1, 2, 3)
    )
    torch.testing.assert_close(4 * beta.mean(heads) - 2, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_learner_that_fails_says_why(tmp_path):
    with pytest.raises(BenchmarkError, match=r"status 1:[\s\S]*_learning_peers.nobody"):
        learning.carry_out(replace(TINY, learner="nobody"), sys.executable, tmp_path)


def test_a_smoke_run_names_the_peers_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(learning, "existing_python", lambda name, requirements: "")
    monkeypatch.chdir(BENCHMARKS.parent)
    made = learning.suite(smoke=True)
    made.close()
    names = [case.name for case in made.cases]
    assert names == [
        "navrl",
        *(f"{name} (not installed)" for name in learning.contenders(smoke=True) if name != "navrl"),
    ]


def test_peers_may_be_left_with_one_of_their_two_settings(monkeypatch):
    both = set(learning.contenders())
    monkeypatch.setenv(learning.RECIPES, "quick")
    quick = set(learning.contenders())
    assert {"navrl", learning.UNTAUGHT, "skrl, settings of quick"} < quick < both
    assert both - quick == {"Stable-Baselines3", "rsl_rl", "skrl"}
    monkeypatch.setenv(learning.RECIPES, "quik")
    with pytest.raises(BenchmarkError, match="is 'quik'; expected isaac-lab, quick or isaac-lab,q"):
        learning.contenders()


def test_the_page_says_what_was_not_reached_and_how_long_a_run_was():
    values = learning.metrics_of({"curve": CURVE[:3], "seconds": 120.0, "decisions": 20})
    metrics = {
        name: {"median": None if value == float("inf") else value} for name, value in values.items()
    }
    results = {
        "machine": {"processor": "P", "cores": 2, "date": "2026-01-01 10:00"},
        "settings": {
            "run": {"minutes": 4.0, "decisions": 24_000_000, "episodes": 8, "interval": 30.0},
            "curves": {"navrl": [CURVE[:3]]},
        },
        "cases": {name: {"metrics": metrics} for name in ("navrl", learning.UNTAUGHT, "rsl_rl")},
    }
    text = page(results)
    assert "| **navrl** | `preset=quick`, without teacher | 1.0 |" in text
    assert "| rsl_rl | Isaac Lab's | 1.0 |" in text
    assert "1 seed; at most 4 minutes of training and 24 million decisions a run" in text
    assert (
        "| **navrl** | `preset=quick` | 1.0 | 0.0 million | not reached |  | 72.0 % | 0 |" in text
    )
