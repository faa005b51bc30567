"""navrl inspect, navrl checkpoints prune, navrl convert: as a user types them."""

from __future__ import annotations

import lz4.frame
import numpy as np
import pytest
import torch
from io_states import TinyTraining, assert_same

from navrl.cli import main
from navrl.errors import CheckpointError
from navrl.io import CheckpointDirectory, load_checkpoint, read_index, save_checkpoint
from navrl.io.checkpoint.conversion import convert_checkpoint


@pytest.fixture
def run(tmp_path):
    with CheckpointDirectory(tmp_path / "run") as run:
        for step in (1, 2, 3):
            run.save(
                step, {"weights": torch.full((5000,), float(step))}, metrics={"success": step / 10}
            )
    return run.folder


@pytest.fixture
def damaged(run):
    path = run / "checkpoint_000000002.pt"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    return path


def test_inspect_shows_the_tensors_of_a_file(run, capsys):
    assert main(["inspect", str(run / "latest")]) == 0
    out = capsys.readouterr().out
    assert "weights" in out
    assert "planes-zstd" in out
    assert '"success": 0.3' in out


def test_inspect_lists_a_folder_with_names_and_metrics(run, capsys):
    assert main(["inspect", str(run)]) == 0
    out = capsys.readouterr().out
    assert "3 checkpoints" in out
    assert "latest" in out
    assert "success 0.2" in out


def test_inspect_verify_passes_what_is_whole(run, capsys):
    assert main(["inspect", str(run), "--verify"]) == 0
    assert capsys.readouterr().out.count("verified") == 3


def test_inspect_verify_names_what_is_damaged_and_exits_one(run, damaged, capsys):
    assert main(["inspect", str(run), "--verify"]) == 1
    assert f"damaged: {damaged}: array 'weights' is damaged" in capsys.readouterr().out


def test_inspect_of_a_folder_without_checkpoints_verifies_nothing(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == f"{tmp_path}: 0 checkpoints"
    assert main(["inspect", str(tmp_path), "--verify"]) == 1
    assert "nothing to verify" in capsys.readouterr().out


def test_inspect_of_nothing_is_a_mistake_with_a_message(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing")]) == 2
    assert "no such checkpoint" in capsys.readouterr().err


def test_prune_says_what_it_would_remove(run, capsys):
    assert main(["checkpoints", "prune", str(run), "--keep-last", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would remove") == 2
    assert len(list(run.glob("checkpoint_*"))) == 3


def test_prune_removes_what_no_rule_keeps(run, capsys):
    arguments = [
        "checkpoints",
        "prune",
        str(run),
        "--keep-last",
        "1",
        "--keep-best",
        "1",
        "--metric",
        "success",
    ]
    assert main([*arguments, "--mode", "min"]) == 0
    assert "2 checkpoints kept" in capsys.readouterr().out
    assert sorted(path.name[-4] for path in run.glob("checkpoint_*")) == ["1", "3"]


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_training_survives_the_way_there_and_back(tmp_path, suffix, capsys):
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    training = TinyTraining()
    training.step()
    state = training.state()
    save_checkpoint(state, tmp_path / "a.pt")
    there = [
        str(tmp_path / "a.pt"),
        str(tmp_path / f"b.{suffix}"),
        *(["--to", "torch"] if suffix == "pt" else []),
    ]
    assert main(["convert", *there]) == 0
    assert main(["convert", str(tmp_path / f"b.{suffix}"), str(tmp_path / "c.pt")]) == 0
    assert_same(load_checkpoint(tmp_path / "c.pt"), state)


def test_others_read_what_convert_writes(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    save_checkpoint({"layer": {"weight": torch.ones(3)}, "step": 3}, tmp_path / "a.pt")
    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")]) == 0
    assert safetensors.load_file(tmp_path / "b.safetensors")["layer/weight"].tolist() == [1, 1, 1]
    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "c.pt"), "--to", "torch"]) == 0
    assert torch.load(tmp_path / "c.pt", weights_only=True)["step"] == 3


@pytest.mark.parametrize("between", ["b.pt", "b.safetensors"])
def test_metadata_survive_a_conversion(tmp_path, between):
    if between.endswith("safetensors"):
        pytest.importorskip("safetensors")
    save_checkpoint({"x": torch.ones(3)}, tmp_path / "a.pt", metadata={"metrics": {"success": 0.5}})
    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / between)]) == 0
    assert main(["convert", str(tmp_path / between), str(tmp_path / "c.pt")]) == 0
    assert read_index(tmp_path / "c.pt").document["metadata"] == {"metrics": {"success": 0.5}}


def test_tensors_that_share_memory_become_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    whole = torch.arange(6.0)
    torch.save({"whole": whole, "half": whole[:3], "turned": whole.view(2, 3).T}, tmp_path / "a.pt")
    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")]) == 0
    assert_same(
        safetensors.load_file(tmp_path / "b.safetensors")["turned"], whole.view(2, 3).T.contiguous()
    )


def test_what_safetensors_refuses_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    safetensors = pytest.importorskip("safetensors.torch")

    def refuse(*arguments):
        raise RuntimeError("shared memory")

    monkeypatch.setattr(safetensors, "save", refuse)
    save_checkpoint({"x": torch.ones(3)}, tmp_path / "a.pt")
    with pytest.raises(
        CheckpointError, match=r"b\.safetensors: safetensors cannot hold this state: shared memory"
    ):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.safetensors")


def test_inspect_shows_odd_names_and_metadata_as_they_are(tmp_path, capsys):
    metadata = {"metrics": {"[red]": "high", "list": [1]}}
    save_checkpoint(
        {"[/bold]": torch.ones(3)}, tmp_path / "checkpoint_000000001.pt", metadata=metadata
    )
    assert main(["inspect", str(tmp_path / "checkpoint_000000001.pt")]) == 0
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "[/bold]" in shown
    assert "[red] 'high'" in shown


def test_a_foreign_safetensors_file_becomes_a_flat_state(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"a.b": torch.ones(2)}, tmp_path / "a.safetensors")
    assert main(["convert", str(tmp_path / "a.safetensors"), str(tmp_path / "b.pt")]) == 0
    assert_same(load_checkpoint(tmp_path / "b.pt"), {"a.b": torch.ones(2)})


@pytest.fixture
def trained(tmp_path):
    """A run as `navrl train` leaves it: checkpoints in their own folder, and a model."""
    with CheckpointDirectory(tmp_path / "a" / "checkpoints") as directory:
        for step in (1, 2):
            directory.save(step, {"weights": torch.full((5000,), float(step))})
    save_checkpoint({"parameters": torch.ones(7)}, tmp_path / "a" / "model.pt")
    return tmp_path / "a"


def test_inspect_of_a_run_lists_its_checkpoints(trained, capsys):
    assert main(["inspect", str(trained)]) == 0
    assert f"{trained / 'checkpoints'}: 2 checkpoints" in capsys.readouterr().out


def test_prune_takes_a_run_too(trained, capsys):
    assert main(["checkpoints", "prune", str(trained), "--keep-last", "1"]) == 0
    assert "1 checkpoint kept" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["latest", "checkpoint_000000001.pt"])
def test_a_checkpoint_is_found_by_its_run_and_its_name(trained, name, capsys):
    assert main(["inspect", str(trained / name), "--verify"]) == 0
    assert "verified" in capsys.readouterr().out
    assert main(["convert", str(trained / name), str(trained / "out.pt")]) == 0
    assert "weights" in load_checkpoint(trained / "out.pt")


def test_convert_of_a_run_is_of_its_model(trained):
    assert main(["convert", str(trained), str(trained / "out.pt")]) == 0
    assert list(load_checkpoint(trained / "out.pt")) == ["parameters"]


def test_a_name_of_the_registry_is_inspected_and_converted(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    assert main(["models", "register", "policy", str(trained / "checkpoints" / "latest")]) == 0
    assert main(["inspect", "policy:latest"]) == 0
    assert "weights" in capsys.readouterr().out
    assert main(["convert", "policy:v1", str(tmp_path / "out.pt")]) == 0
    assert main(["inspect", "policy:bst"]) == 2
    assert "model 'policy' has no 'bst'" in capsys.readouterr().err


def test_the_policy_in_the_package_is_inspected_by_its_name(capsys):
    assert main(["inspect", "pretrained"]) == 0
    assert "parameters/lidar.0.weight" in capsys.readouterr().out


@pytest.mark.parametrize("wrap", [bytes, lz4.frame.compress], ids=["plain", "LZ4"])
def test_inspect_shows_keys_types_and_shapes_of_a_torch_file(tmp_path, wrap, capsys):
    torch.save(
        {"model": {"bias": torch.ones(2, 3).half()}, "table": np.arange(5), "epoch": 3},
        tmp_path / "a.pth",
    )
    (tmp_path / "a.pth").write_bytes(wrap((tmp_path / "a.pth").read_bytes()))
    assert main(["inspect", str(tmp_path / "a.pth")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "model/bias", "│", "float16", "│", "2", "x", "3", "│", "12", "│"] in rows
    assert ["│", "table", "│", "int64", "│", "5", "│", "40", "│"] in rows
    assert ["'epoch':", "3"] in rows


def test_inspect_runs_no_code_of_a_torch_file(tmp_path, capsys):
    torch.save({"model": torch.nn.Linear(2, 3)}, tmp_path / "a.pt")
    assert main(["inspect", str(tmp_path / "a.pt")]) == 2
    assert "holds more than tensors" in capsys.readouterr().err


def test_inspect_shows_a_safetensors_file(tmp_path, capsys):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"a.b": torch.ones(2)}, tmp_path / "a.safetensors")
    assert main(["inspect", str(tmp_path / "a.safetensors"), "--verify"]) == 0
    out = capsys.readouterr().out
    assert "a.b" in out
    assert "no checksums" in out


def test_a_target_with_the_suffix_pth_is_for_torch_load(trained):
    assert main(["convert", str(trained / "latest"), str(trained / "out.pth")]) == 0
    assert torch.load(trained / "out.pth", weights_only=True)["weights"].sum() == 10_000


@pytest.mark.parametrize(
    ("asked", "said"), [("", "a/checkpoints/latest"), ("checkpoints", "a/checkpoints/latest")]
)
def test_a_folder_is_refused_with_the_checkpoint_to_name_instead(trained, asked, said):
    with pytest.raises(CheckpointError, match=f"found a directory.*name one in it: .*{said}"):
        load_checkpoint(trained / asked)


def test_a_name_that_lacks_the_folder_of_the_checkpoints_is_told_with_it(trained):
    with pytest.raises(CheckpointError, match=r"Did you mean .*a/checkpoints/latest\?"):
        load_checkpoint(trained / "latest")
