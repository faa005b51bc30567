"""Crafted files: an index with a valid checksum and false claims ends in an error that names the
file.

Never in another exception, and never in more memory than the file justifies. The long mode runs as
many as asked for: `NAVRL_FUZZ=100000 pytest tests/io/test_crafted.py`.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import tracemalloc
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_container import rewrite_index

from navrl.cli import main
from navrl.errors import ContainerError, NavrlError, RolloutError
from navrl.io import CheckpointDirectory, load_checkpoint, read_index, verify_checkpoint
from navrl.io.checkpoint.listing import list_entries, list_unreadable
from navrl.io.rollouts.dataset_export import export_parquet
from navrl.io.rollouts.storage import RolloutStorage

try:
    import pyarrow.parquet as parquet
except ImportError:
    parquet = None
try:
    import tensordict
except ImportError:
    tensordict = None

EXAMPLES = max(30, int(os.environ.get("NAVRL_FUZZ", "0")))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
MOST_MEMORY = 64 << 20  # bytes; the files are some kB
TOLERATED = 4000  # letters of an error: never the whole of what a file says

NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 3, 2**28, 2**31, 2**60, 2**63, 10**30, 10**400, 1.5, -0.0, 1e300, float("1e308")]
)
WORDS = st.sampled_from(
    [
        "",
        "raw",
        "rows-zstd",
        "float64",
        "bool",
        "a/b",
        "x" * 300,
        "\ud800",
        "checkpoint",
        "../x",
        "nan",
    ]
)
TREES = st.sampled_from(
    [
        {"tensor": 0},
        {"ndarray": 1},
        {"tensor": 10**30},
        {"scalar": 0},
        {"bytes": 0},
        {"int": "z"},
        {"int": "f" * 9000},
        {"float": "x"},
        {"dict": []},
        {"dict": [["x", {"tensor": 0}]]},
        {"dict": [[[], 1]]},
        {"dict": 5},
        {"tuple": 3},
        {"size": [2**70]},
        {"complex": [1]},
        {"ordered": [], "attributes": [["items", 1]]},
        {"no": 1},
        {},
    ]
)
VALUES = st.one_of(
    st.none(), st.booleans(), NUMBERS, WORDS, TREES, st.lists(NUMBERS, max_size=3), st.just([[]])
)


def nested(depth):
    tree = {"tensor": 0}
    for _ in range(depth):
        tree = {"dict": [["x", tree]]}
    return tree


@st.composite
def changes(draw):
    """Return a function that changes an index in one to three places."""
    steps = draw(
        st.lists(
            st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=7), ACTIONS, VALUES),
            min_size=1,
            max_size=3,
        )
    )

    def change(index):
        for path, action, value in steps:
            apply(index, path, action, value)

    return change


ACTIONS = st.sampled_from(["replace", "replace", "replace", "remove", "double", "deepen"])


def apply(node, path, action, value):
    """Walk down a document by numbers and change what is found there."""
    *way, last = path
    for number in way:
        inner = [
            child
            for child in (node.values() if isinstance(node, dict) else node)
            if child and isinstance(child, dict | list)
        ]
        if not inner:
            break
        node = inner[number % len(inner)]
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return
    key = keys[last % len(keys)]
    if action == "remove":
        del node[key]
    elif action == "double" and isinstance(node, list):
        node.append(copy.deepcopy(node[key]))
    else:
        node[key] = nested(90) if action == "deepen" else copy.deepcopy(value)


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """A folder with a chain of checkpoints and three rollouts."""
    folder = tmp_path_factory.mktemp("templates")
    torch.manual_seed(0)
    state = {
        "weights": torch.randn(40, 30),
        "list": [torch.arange(5), b"bytes"],
        "step": 7,
        (1, "a"): 1 << 80,
    }
    with CheckpointDirectory(folder, delta_chain=3) as run:
        for step in (1, 2):
            state["weights"] += 1e-3
            run.save(step, state, metrics={"success": 0.5}, config={"rate": 0.1})
            run.flush()
    data = {
        "observation": {
            "lidar": torch.rand(6, 16, 50).round(decimals=1),
            "empty": torch.empty(6, 16, 0),
        },
        "action": torch.rand(6, 16, 3),
        "reward": torch.rand(6, 16),
        "done": torch.rand(6, 16) < 0.1,
        "last": torch.rand(6, 4),
    }
    for number, options in enumerate(({"error_bounds": {"lidar": 1e-3}}, {"time_first": True})):
        with RolloutStorage(folder, **options) as storage:
            storage.save(data, number, metadata={"range": 4.0})
    if tensordict is not None:
        with RolloutStorage(folder) as storage:
            storage.save(tensordict.TensorDict(data, batch_size=[6]), 2)
    return folder


@pytest.fixture
def folder(templates, tmp_path):
    shutil.copytree(templates, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def attempt(path, use, *arguments, **options):
    """Call what may refuse a file: only errors of our own, of a bearable length, may come of it."""
    refusal = None
    tracemalloc.start()
    try:
        use(*arguments, **options)
    except NavrlError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert refusal is None or len(refusal) < TOLERATED
    assert refusal is None or path is None or path.name in refusal


def command(*words):
    """Run a command; what it prints is of no interest, but it must end well or with a sentence."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        assert main([str(word) for word in words]) in (0, 1, 2)
    assert "Traceback" not in said.getvalue()


@pytest.mark.slow
@FUZZ
@given(change=changes(), which=st.sampled_from([1, 2]))
def test_no_crafted_checkpoint_ends_in_anything_but_a_sentence(
    templates, folder, change, which, injected
):
    injected.add()
    name = f"checkpoint_00000000{which}.pt"
    path = folder / name
    shutil.copy(templates / name, path)
    rewrite_index(path, change)
    attempt(path, read_index, path)
    attempt(path, load_checkpoint, path, workers=1)
    attempt(path, load_checkpoint, path, workers=1, into={"weights": torch.zeros(40, 30)})
    attempt(path, verify_checkpoint, path, workers=1)
    attempt(None, list_entries, folder)
    attempt(None, list_unreadable, folder)
    command("inspect", path)
    command("inspect", folder)
    command(
        "checkpoints",
        "prune",
        folder,
        "--keep-last",
        1,
        "--keep-best",
        1,
        "--metric",
        "success",
        "--dry-run",
    )
    shutil.copy(templates / name, path)


@pytest.mark.slow
@pytest.mark.skipif(parquet is None, reason="needs pyarrow")
def test_an_array_that_the_state_does_not_hold_is_refused_by_an_export(templates, folder):
    def rename(index):
        for pair in index["document"]["state"]["dict"]:
            pair[0] = "x" if pair[0] == "reward" else pair[0]

    path = folder / "rollout_000000000.navrl"
    shutil.copy(templates / path.name, path)
    rewrite_index(path, rename)
    with pytest.raises((ContainerError, RolloutError), match="reward"):
        export_parquet(RolloutStorage(folder), folder / "x.parquet", iterations=[0])


@pytest.mark.slow
@FUZZ
@given(change=changes(), number=st.sampled_from([0, 1, 2] if tensordict else [0, 1]))
def test_no_crafted_rollout_ends_in_anything_but_a_sentence(
    templates, folder, change, number, injected
):
    injected.add()
    name = f"rollout_00000000{number}.navrl"
    path = folder / name
    shutil.copy(templates / name, path)
    rewrite_index(path, change)
    storage = RolloutStorage(folder)
    attempt(path, storage.info, number)
    attempt(path, storage.load, number)
    attempt(path, storage.load, number, envs=0)
    attempt(path, storage.load, number, envs=slice(0, 2), steps=[3, 1])
    attempt(path, storage.load, number, steps=2, keys="reward")
    attempt(path, storage.load, number, keys=["observation", "done"])
    attempt(None, storage.latest)
    command("rollouts", "ls", folder)
    command("rollouts", "show", folder, number)
    if parquet is not None:
        command(
            "rollouts", "export", folder, "--parquet", folder / "x.parquet", "--iterations", number
        )
    shutil.copy(templates / name, path)


def craft(path, change):
    """Change the index of a file; infinity becomes a number that JSON allows and that reads as
    infinity.
    """

    def changed(index):
        change(index)
        return json.dumps(index).replace("Infinity", "1e400").encode()

    rewrite_index(path, changed)


def array(index, name):
    return next(entry for entry in index["arrays"] if entry["name"] == name)


def set_shape(name, shape):
    def change(index):
        array(index, name)["shape"] = shape

    return change


def say(**values):
    return lambda index: index["document"]["rollout"].update(values)


def document(name, value):
    return lambda index: index["document"].update({name: value})


LIDAR = "observation/lidar"
CRAFTED = {
    "a zero in a trailing shape": (set_shape(LIDAR, [6, 16, 0]), "lidar.*chunks for shape"),
    "a shape beyond all numbers": (
        set_shape(LIDAR, [6, 16, 10**30]),
        "lidar.*shape: expected whole numbers",
    ),
    "rows beyond all numbers": (
        lambda index: array(index, LIDAR).update(part_rows=2**70),
        "lidar.*part_rows",
    ),
    "no element type": (lambda index: array(index, LIDAR).pop("element"), "'element' is missing"),
    "no arrays": (lambda index: index.pop("arrays"), "'arrays' is missing"),
    "no environments": (say(envs=None), "'envs' is None, expected a whole number"),
    "environments without steps": (say(envs=2**60, steps=0, rows=[]), "claims 'envs'"),
    "more environments than bytes": (say(envs=2**27, steps=1, rows=[]), "claims 'envs'"),
    "an error bound that is a text": (
        say(error_bounds={"x": "wide"}),
        "'error_bounds' of 'x' is 'wide'",
    ),
    "batch dimensions that are infinite": (say(tensordicts=[[[], float("inf")]]), "TensorDicts"),
    "metadata that are a list": (document("metadata", [1]), "'metadata' is \\[1\\]"),
    "a state that is a number": (document("state", 5), "a rollout is a dict"),
    "a state that names no array": (
        document("state", {"dict": [["x", {"tensor": 10**30}]]}),
        "names array",
    ),
    "a state that is nested too deep": (document("state", nested(200)), "nested too deep"),
}


@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_rollout_is_refused_by_file_and_field(folder, case, capsys):
    change, message = CRAFTED[case]
    path = folder / "rollout_000000000.navrl"
    craft(path, change)
    with pytest.raises(ContainerError, match=rf"{path.name}: .*{message}"):
        RolloutStorage(folder).load(0, envs=0)
    command("rollouts", "ls", folder)
    command("rollouts", "show", folder, 0)


@pytest.mark.parametrize("created", [1e300, -1e300, float("inf")])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(folder, created, capsys):
    for name in ("rollout_000000000.navrl", "checkpoint_000000001.pt"):
        craft(folder / name, document("created", created))
    for words in (
        ["rollouts", "ls", folder],
        ["inspect", folder],
        ["inspect", folder / "checkpoint_000000001.pt"],
    ):
        assert main([str(word) for word in words]) == 0
    assert "after 1970" in capsys.readouterr().out


def test_a_metric_beyond_all_numbers_is_never_best(folder, capsys):
    craft(
        folder / "checkpoint_000000001.pt", document("metadata", {"metrics": {"success": 10**400}})
    )
    with CheckpointDirectory(folder) as run:
        assert run.best("success").step == 2
    assert main(["inspect", str(folder)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {
                "dict": [
                    ["observation", {"tensor": 0}],
                    ["action", {"tensor": 2}],
                    ["reward", {"dict": []}],
                ]
            },
            "reward",
        ),
        (
            {"dict": [["observation", 5], ["action", {"tensor": 2}], ["reward", {"tensor": 3}]]},
            "observation",
        ),
        (
            {
                "dict": [
                    ["observation", {"tensor": 5}],
                    ["action", {"tensor": 2}],
                    ["reward", {"tensor": 3}],
                ]
            },
            "observation",
        ),
        (
            {
                "dict": [
                    ["observation", {"tensor": 0}],
                    ["action", {"tensor": 2}],
                    ["reward", {"tensor": 0}],
                ]
            },
            "reward",
        ),
    ],
)
def test_a_rollout_whose_parts_do_not_fit_each_other_is_not_exported(
    folder, tree, message, tmp_path, capsys
):
    pytest.importorskip("minari")
    craft(folder / "rollout_000000000.navrl", document("state", tree))
    assert (
        main(
            [
                "rollouts",
                "export",
                str(folder),
                "--minari",
                str(tmp_path / "sets"),
                "--iterations",
                "0",
            ]
        )
        == 2
    )
    assert f"rollout_000000000.navrl: {message} is " in capsys.readouterr().err


def test_an_array_without_elements_does_not_stop_an_export(folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert (
        main(
            [
                "rollouts",
                "export",
                str(folder),
                "--parquet",
                str(tmp_path / "x.parquet"),
                "--iterations",
                "0",
            ]
        )
        == 0
    )
    names = parquet.read_table(tmp_path / "x.parquet").column_names
    assert LIDAR in names
    assert "observation/empty" not in names
