"""`navrl models`, as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from navrl import load_checkpoint
from navrl.cli import main
from navrl.evaluation import PRETRAINED
from navrl.registry import Registry


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    with Registry() as registry:
        yield registry


@pytest.fixture
def policy(own, tmp_path):
    """Three versions of a model; v1 is best."""
    for number in (1, 2, 3):
        (tmp_path / "file.pt").write_text(f"model {number}")
        lineage = {
            "git": {},
            "config": {"seed": number, "env": {"num_envs": 8}},
            "iteration": 10 * number,
        }
        options = {"metrics": {"success": number / 10}, "lineage": lineage}
        own.register(
            "policy", tmp_path / "file.pt", aliases=["best"] if number == 1 else [], **options
        )
    return own


def told(capsys, *arguments: str, code: int = 0) -> str:
    assert main(["models", *arguments]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out if code != 2 else captured.err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as left:
        main(["models", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    actions = (
        "ls",
        "show",
        "compare",
        "promote",
        "alias",
        "rollback",
        "prune",
        "card",
        "verify",
        "gc",
        "repair",
        "register",
        "pull",
        "push",
    )
    assert [action for action in actions if action not in text] == []


def test_without_models_the_list_says_how_to_add_one(capsys, tmp_path):
    assert "navrl models register" in told(capsys, "ls")
    assert not (tmp_path / "own").exists()


def test_the_model_of_the_package_is_registered_with_its_results(capsys):
    out = told(
        capsys,
        "register",
        "policy",
        str(PRETRAINED),
        "--alias",
        "best",
        "--tag",
        "robot=small",
        "--notes",
        "good",
    )
    assert out == "policy:v1 (best, latest; stage none)\n"
    evaluations = load_checkpoint(PRETRAINED)["card"]["evaluation"].values()
    *_, crossing = evaluations  # the last one is judged by
    success = f"{crossing['success_rate']:.4g}"
    shown = told(capsys, "show", "policy:best")
    for piece in (
        "success_100",
        success,
        "robot=small",
        "good",
        "SHA-256",
        "iteration",
        "register",
    ):
        assert piece in shown
    listed = told(capsys, "ls", "policy")
    assert f"success_rate {success}, mean_reward {crossing['mean_reward']:.4g}" in listed


def test_the_folder_of_a_run_is_registered_by_its_model(capsys, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(PRETRAINED, run / "model.pt")
    (run / "run.json").write_text(
        json.dumps({"command": "navrl train", "git": {"commit": "abc"}, "versions": {"torch": "9"}})
    )
    (run / "config.yaml").write_text("seed: 77\nenv:\n  num_envs: 5\n")
    version = json.loads(told(capsys, "register", "policy", str(run), "--json"))
    lineage = version["lineage"]
    assert lineage["run_folder"] == str(run)
    assert lineage["config"] == {"seed": 77, "env": {"num_envs": 5}}
    assert (lineage["git"], lineage["versions"], lineage["command"]) == (
        {"commit": "abc"},
        {"torch": "9"},
        "navrl train",
    )
    # the model's own word
    card = load_checkpoint(PRETRAINED)["card"]
    assert [lineage[key] for key in ("iteration", "frames", "seed")] == [
        card[key] for key in ("iteration", "frames", "seed")
    ]


def test_lists_are_plain_lines_without_a_terminal(capsys, policy):
    lines = told(capsys, "ls").splitlines()
    assert lines[0].split() == ["model", "versions", "newest", "aliases", "size", "updated"]
    assert lines[1].startswith("policy  3         v3      best=v1, latest=v3  0.0 kB")
    lines = told(capsys, "ls", "policy").splitlines()
    assert [line.split()[0] for line in lines] == ["version", "policy:v1", "policy:v2", "policy:v3"]


def test_lists_are_tables_on_a_terminal(capsys, policy, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "┃" in told(capsys, "ls")


def test_every_list_is_json_for_programs(capsys, policy):
    assert json.loads(told(capsys, "ls", "--json"))[0]["aliases"] == {"best": 1, "latest": 3}
    assert [version["label"] for version in json.loads(told(capsys, "ls", "policy", "--json"))][
        -1
    ] == "policy:v3"
    assert json.loads(told(capsys, "show", "policy:v1", "--json"))["history"][0]["new"] == 1
    rows = json.loads(told(capsys, "compare", "policy:v1", "policy:v2", "--json"))
    assert {row["key"]: row["values"] for row in rows}["success"] == {
        "policy:v1": 0.1,
        "policy:v2": 0.2,
    }
    assert json.loads(told(capsys, "verify", "--json")) == []
    assert json.loads(told(capsys, "gc", "--json")) == {"files": [], "bytes": 0, "quarantined": []}
    assert (
        json.loads(told(capsys, "prune", "policy", "--keep-last", "1", "--json"))[0]["label"]
        == "policy:v2"
    )


def test_a_comparison_shows_metrics_and_only_the_settings_that_differ(capsys, policy):
    out = told(capsys, "compare", "policy:v1", "policy:latest")
    assert "policy:v3" in out
    assert [line.split() for line in out.splitlines() if "success" in line] == [
        ["metrics", "success", "*", "0.1", "0.3"]
    ]
    assert [line.split() for line in out.splitlines() if line.startswith("config")] == [
        ["config", "seed", "*", "1", "3"]
    ]


def test_names_are_moved_and_moved_back(capsys, policy):
    assert "prod; stage production" in told(capsys, "promote", "policy:v1", "production")
    told(capsys, "promote", "policy:v2", "production")
    assert told(capsys, "rollback", "policy:prod").startswith(
        "policy:v1 (best, prod; stage production)"
    )
    assert told(capsys, "alias", "policy:v2", "stable").startswith("policy:v2 (stable")
    assert "no alias" in told(capsys, "alias", "policy", "stable", "--remove")
    assert (
        told(capsys, "tag", "policy:v2", "fast", "robot=x", "--remove", "slow")
        == "policy:v2: fast, robot\n"
    )
    assert "has the aliases" in told(capsys, "delete", "policy:v1", code=2)
    assert told(capsys, "delete", "policy:v1", "--force") == "removed policy:v1\n"


def test_pruning_says_what_goes_and_dry_run_keeps_it(capsys, policy):
    assert "would remove policy:v2" in told(
        capsys, "prune", "policy", "--keep-last", "1", "--dry-run"
    )
    assert "removed policy:v2" in told(capsys, "prune", "policy", "--keep-last", "1")
    assert told(capsys, "prune", "policy", "--keep-last", "1") == "2 versions kept\n"


def test_the_card_says_what_where_from_and_how(capsys, policy, tmp_path):
    card = told(capsys, "card", "policy:best")
    for piece in (
        "# policy, version 1",
        "| `success` | 0.1 |",
        "## How to load it",
        "| iteration | 10 |",
        "| `env.num_envs` | 8 |",
    ):
        assert piece in card
    assert "written" in told(capsys, "card", "policy:best", "--out", "CARD.md")
    assert (tmp_path / "CARD.md").read_text() == card


def test_the_card_cannot_be_broken_by_what_is_in_it(own, tmp_path):
    (tmp_path / "file").write_text("x")
    own.register(
        "policy",
        tmp_path / "file",
        metrics={"a|b`c": 1},
        tags={"t": "x | y\n| z"},
        lineage={"git": {}, "<b>": "[a](b)"},
    )
    card = own.card("policy")
    assert "x \\| y \\| z" in card
    assert "| `a\\|b\\`c` | 1 |" in card
    assert "\\[a\\](b)" in card


def test_the_card_leads_with_the_evaluation_that_did_not_choose_the_model(own, tmp_path):
    (tmp_path / "file").write_text("x")
    own.register("policy", tmp_path / "file", metrics={"success_100": 0.9})
    own.tag("policy", {"judged": f"standard: {STANDARD}; crossing: 74.0 %, 64 episodes"})
    card = own.card("policy")
    held_out = card.index(f"| standard | {STANDARD} |\n| crossing | 74.0 %, 64 episodes |")
    assert held_out < card.index("## About")
    assert held_out < card.index("## Evaluation that chose the model") < card.index("success_100")


def test_show_leads_with_the_evaluation_that_did_not_choose_the_model(capsys, own, tmp_path):
    (tmp_path / "file").write_text("x")
    own.register("policy", tmp_path / "file", metrics={"success_100": 0.9})
    own.tag("policy", {"judged": f"standard: {STANDARD}"})
    lines = told(capsys, "show", "policy").splitlines()
    assert lines[2].split("  ") == ["held out, standard", STANDARD]


def test_a_model_is_registered_with_the_evaluation_of_its_run(capsys, own, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "model.pt").write_text("x")
    rows = {"CartPole-v1": {"mean_return": 210.5, "episodes": 64}}
    (run / "evaluation.json").write_text(json.dumps({"conditions": rows}))
    told(capsys, "register", "policy", str(run))
    assert own.resolve("policy").tags["judged"] == "CartPole-v1: return 210.5, 64 episodes"


STANDARD = "81.2 % (79.0 - 83.1), 2048 episodes in 32 worlds"


def test_damage_is_named_and_exits_1(capsys, policy):
    path = policy.resolve("policy:v2").path
    path.chmod(0o644)
    path.write_text("model X")
    out = told(capsys, "verify", code=1)
    assert f"damaged: policy:v2: {path} is damaged" in out
    assert "1 damaged" in out


def test_repair_says_what_it_did_and_exits_1_for_a_file_that_is_gone(capsys, policy):
    policy.close()
    (policy.root / "registry.db").write_text("not a database " * 100)
    assert main(["models", "ls"]) == 2
    assert "navrl models repair" in capsys.readouterr().err
    out = told(capsys, "repair")
    assert f"kept as {policy.root / 'registry.db.damaged-1'}" in out
    assert "no files missing" in out
    policy.resolve("policy:v1").path.unlink()
    assert "missing: the file of policy:v1" in told(capsys, "repair", code=1)
    assert json.loads(told(capsys, "repair", "--json", code=1))["missing"] == ["policy:v1"]


def test_gc_says_what_it_put_into_quarantine_and_purges_it_on_request(capsys, policy):
    stray = policy.root / "objects" / "ab" / ("c" * 62)
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("12345")
    assert "would move 1 unowned file to" in told(capsys, "gc", "--dry-run")
    assert "--purge-quarantine" in told(capsys, "gc")
    assert "removed 1 file " in told(capsys, "gc", "--purge-quarantine")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "{}"],
        ["show", "{}"],
        ["show", "policy:{}"],
        ["compare", "{}", "policy"],
        ["promote", "{}", "production"],
        ["promote", "policy", "{}"],
        ["alias", "policy", "{}"],
        ["alias", "{}", "best"],
        ["alias", "{}", "best", "--remove"],
        ["rollback", "{}"],
        ["rollback", "policy:{}"],
        ["prune", "{}", "--keep-last", "1"],
        ["card", "{}"],
        ["delete", "{}:v1"],
        ["delete", "policy:{}"],
        ["register", "{}", "file.pt"],
        ["register", "policy", "file.pt", "--alias={}"],
        ["register", "policy", "file.pt", "--tag={}"],
        ["register", "policy", "file.pt", "--parent={}:best"],
        ["register", "policy", "{}/x"],
        ["tag", "policy", "{}"],
        ["push", "{}"],
        ["pull", "{}"],
    ],
    ids=" ".join,
)
def test_a_hostile_name_exits_2_with_one_line(capsys, policy, tmp_path, arguments):
    before = policy.versions("policy")
    for name in ("../x", "a\0b", "m" * 300, "b\u0435st\n", ".."):
        assert main(["models", *(argument.replace("{}", name) for argument in arguments)]) == 2, (
            name
        )
        error = capsys.readouterr().err
        assert error.startswith("navrl: "), name
        assert error.count("\n") == 1, name
        assert "Traceback" not in error
    assert policy.versions("policy") == before


MISTAKES = {
    "unknown model": (["show", "polcy"], "Did you mean 'policy'?"),
    "unknown alias": (["show", "policy:bset"], "Did you mean 'best'?"),
    "unknown version": (["show", "policy:v9"], "v1 to v3"),
    "no alias": (["rollback", "policy"], "NAME:ALIAS"),
    "nothing before": (["rollback", "policy:best"], "no earlier version"),
    "a version as an alias": (["alias", "policy:v1", "v7"], "version number"),
    "one version": (["compare", "policy"], "at least two"),
    "no number": (["register", "policy", "file.pt", "--metric", "success=much"], "key=number"),
    "no file": (["register", "policy", "gone.pt"], "'gone.pt': no such file"),
    "no stage": (["register", "policy", "file.pt", "--stage", "live"], "staging"),
    "keeping none": (["prune", "policy", "--keep-last", "0"], "at least 1"),
    "a card nowhere": (["card", "policy", "--out", "none/such/card.md"], "card.md"),
    "deleting by alias": (["delete", "policy:best"], "NAME:v3"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_exits_2_with_one_line_that_helps(capsys, policy, kind):
    arguments, piece = MISTAKES[kind]
    error = told(capsys, *arguments, code=2)
    assert error.startswith("navrl: ")
    assert error.count("\n") == 1
    assert piece in error


class FolderBackend:
    """A tracker that is a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uploads: list[tuple] = []

    def upload(self, file, name, *, aliases=(), metadata=None):
        self.uploads.append((name, tuple(aliases), metadata))
        for alias in aliases:
            shutil.copy(file, self.folder / f"{name}-{alias}")
        return f"v{len(self.uploads) - 1}"

    def download(self, reference, folder):
        name, alias = reference.split("/")[-1].split(":")
        return Path(shutil.copy(self.folder / f"{name}-{alias}", folder / "model.pt"))


@pytest.fixture
def tracker(monkeypatch, tmp_path):
    """A tracker behind the name that trackers are opened by; `asked` is what it was opened with."""
    (tmp_path / "tracker").mkdir()
    backend, asked = FolderBackend(tmp_path / "tracker"), []
    module = types.ModuleType("navrl.tracking.backends")
    module.open_backend = lambda kind, **options: asked.append((kind, options)) or backend
    monkeypatch.setitem(sys.modules, "navrl.tracking", types.ModuleType("navrl.tracking"))
    monkeypatch.setitem(sys.modules, "navrl.tracking.backends", module)
    backend.asked = asked
    return backend


def test_what_is_pushed_comes_back_with_its_alias(capsys, policy, tracker, tmp_path):
    assert (
        told(capsys, "push", "policy:best", "--option", "project=mine")
        == "policy:v1 is v0 in wandb\n"
    )
    assert tracker.asked[-1] == ("wandb", {"project": "mine"})
    name, aliases, metadata = tracker.uploads[0]
    assert (name, aliases, metadata["metrics"]) == ("policy", ("best",), {"success": 0.1})
    json.dumps(metadata)
    assert policy.resolve("policy:v1").tags == {"wandb": "v0"}
    other = ["--registry", str(tmp_path / "other")]
    assert "policy:v1 (best, latest" in told(capsys, "pull", "ada/drones/policy:best", *other)
    assert tracker.asked[-1] == ("wandb", {"project": "drones", "entity": "ada"})
    told(capsys, "pull", "ada/drones/policy:best", *other)
    with Registry(tmp_path / "other") as registry:
        (version,) = registry.versions("policy")  # fetched twice, registered once
        assert version.path.read_text() == "model 1"
        assert version.lineage["pulled_from"] == "ada/drones/policy:best"
    assert "mine:v1" in told(
        capsys, "pull", "policy:best", "--mirror", "mlflow", "--name", "mine", *other
    )


def test_what_a_tracker_raises_is_one_line(capsys, policy, tracker):
    assert "wandb could not fetch policy:nothing: FileNotFoundError" in told(
        capsys, "pull", "policy:nothing", code=2
    )
    tracker.folder = Path("gone")
    assert "wandb could not upload policy:v1" in told(capsys, "push", "policy:best", code=2)


def test_a_damaged_version_is_not_pushed(capsys, policy, tracker):
    path = policy.resolve("policy:best").path
    path.chmod(0o644)
    path.write_text("model X")
    assert "nothing was uploaded" in told(capsys, "push", "policy:best", code=2)
    assert tracker.uploads == []


def test_looking_at_the_list_loads_neither_torch_nor_trackers(policy):
    program = (
        "import sys; from navrl.cli import main; main(['models', 'ls']); print({'torch', "
        "'wandb', 'yaml'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_reader_that_has_seen_enough_breaks_nothing(policy):
    command = f"{sys.executable} -m navrl.cli models card policy | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("# policy, version 3\n", "")
