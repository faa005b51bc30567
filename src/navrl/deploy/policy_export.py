"""Write a policy for a robot: ONNX, torch.export and C, with its contract and test vectors."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.deploy.c_header import EXAMPLE, c_header
from navrl.deploy.contract import contract_of, picture_of
from navrl.deploy.robot_inputs import edge_cases, sampled_inputs
from navrl.deploy.robot_policy import INPUTS, OUTPUT, RobotPolicy
from navrl.errors import ConfigError, missing_extra
from navrl.evaluation.policy_lookup import Policy, load_policy
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.policy import NetworkPilot

FORMATS = ("onnx", "pt2", "c")
OPSET = 20  # from 19 on a circular padding can be expressed
GOLDEN = 256  # test vectors from flights, beside the edge cases
GOLDEN_SEED = 20_011


def export_policy(
    reference: str | Path,
    folder: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    progress: Callable[[str], None] = lambda name: None,
) -> Path:
    """Write a policy into a folder, and return the folder.

    Raises:
        ConfigError: there is no such policy, it has no network, or a format is unknown.
        MissingExtraError: ONNX is asked for and not installed; the message has the command.

    >>> from navrl.deploy import export_policy
    >>> folder = export_policy("pretrained", "out", formats=["c"])
    >>> (folder / "navrl_policy.h").is_file(), (folder / "contract.yaml").is_file()
    (True, True)
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ConfigError(f"formats are {list(formats)}; expected some of {', '.join(FORMATS)}")
    if "onnx" in formats:
        _check_onnx()
    policy = load_policy(reference)
    robot = robot_policy(policy)
    header = c_header(robot) if "c" in formats else ""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    assert policy.task is not None
    contract = contract_of(robot, policy.task, policy.card, _checksum(robot))
    writers: dict[str, Callable[[], None]] = {
        "onnx": lambda: _write_onnx(robot, contract, folder),
        "pt2": lambda: _write_pt2(robot, folder / "policy.pt2"),
        "c": lambda: _write_c(header, folder),
    }
    for name in formats:
        progress(name)
        writers[name]()
    progress("test vectors")
    _write_golden(policy, robot, folder / "golden.npz")
    _write_contract(contract | {"formats": list(formats)}, folder / "contract.yaml")
    return folder


def robot_policy(policy: Policy) -> RobotPolicy:
    """Return a policy with a robot's inputs and outputs.

    Raises:
        ConfigError: it has no network, as the scripted pilot.
    """
    pilot = policy.act
    if not isinstance(pilot, NetworkPilot) or policy.task is None:
        raise ConfigError(f"{policy.name} has no network to export; expected a trained policy")
    network = pilot.network.network
    if not isinstance(network, NavigationNetwork):
        raise ConfigError(
            f"{policy.name} has a {type(network).__name__}; expected the network of the navigation "
            "task, whose inputs a robot can be asked for"
        )
    return RobotPolicy(network, policy.task).eval().requires_grad_(False)


def _check_onnx() -> None:
    from importlib.util import find_spec

    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise missing_extra("ONNX export", "export", name)


def _checksum(robot: RobotPolicy) -> str:
    """Return the SHA-256 of the weights."""
    digest = hashlib.sha256()
    for name, value in sorted(robot.network.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _example(robot: RobotPolicy) -> tuple[Tensor, ...]:
    """Return inputs to trace with; a batch of one would be taken for a constant."""
    vectors = [torch.rand(2, 3) for _ in range(4)]
    lidar = torch.rand(2, robot.azimuths, robot.beams)
    return (*vectors, lidar, torch.rand(2, 3, 8))


def _dynamic_shapes() -> dict[str, dict[int, Any]]:
    batch = torch.export.Dim("batch", min=1, max=65536)
    tracks = torch.export.Dim("tracks", min=1, max=4096)
    return {name: {0: batch, 1: tracks} if name == "obstacles" else {0: batch} for name in INPUTS}


def _write_onnx(robot: RobotPolicy, contract: dict[str, Any], folder: Path) -> None:
    import onnx

    with _quiet():
        program = torch.onnx.export(
            robot,
            _example(robot),
            dynamo=True,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_shapes=_dynamic_shapes(),
            opset_version=OPSET,
            external_data=False,
            report=False,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for key, value in (("contract", json.dumps(contract)), ("producer", "navrl")):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(model)
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    shutil.copyfile(Path(__file__).with_name("runner.py"), folder / "runner.py")


def _write_pt2(robot: RobotPolicy, path: Path) -> None:
    with _quiet():
        shapes = tuple(_dynamic_shapes().values())
        torch.export.save(torch.export.export(robot, _example(robot), dynamic_shapes=shapes), path)


def _write_c(header: str, folder: Path) -> None:
    (folder / "navrl_policy.h").write_text(header)
    (folder / "example.c").write_text(EXAMPLE)


def _write_golden(policy: Policy, robot: RobotPolicy, path: Path) -> None:
    """Write inputs with the commands of the torch policy: edge cases, then moments of flights."""
    assert policy.task is not None
    flown, commands = sampled_inputs(policy.task, policy, GOLDEN, GOLDEN_SEED)
    edges = edge_cases(robot.azimuths, robot.beams, robot.reach)
    most = max(edges["obstacles"].shape[1], flown["obstacles"].shape[1])
    inputs = {
        name: np.concatenate(
            [_padded(edges[name], most), _padded(flown[name].numpy(), most)]
            if name == "obstacles"
            else [edges[name], flown[name].numpy()]
        ).astype(np.float32)
        for name in INPUTS
    }
    with torch.no_grad():
        at_edges = robot(*(torch.from_numpy(edges[name]) for name in INPUTS))
    output = np.concatenate([at_edges.numpy(), commands.numpy()]).astype(np.float32)
    arrays: dict[str, Any] = inputs | {OUTPUT: output}
    np.savez_compressed(path, **arrays)


def _padded(tracks: np.ndarray, most: int) -> np.ndarray:
    """Return tracks with empty slots behind them."""
    return np.pad(tracks, ((0, 0), (0, most - tracks.shape[1]), (0, 0)))


def _write_contract(contract: dict[str, Any], path: Path) -> None:
    import yaml

    text = yaml.safe_dump(_plain(contract), sort_keys=False, width=100, allow_unicode=True)
    path.write_text(f"{picture_of(contract)}\n{text}")


def _plain(value: Any) -> Any:
    """Return a value as YAML can hold it."""
    return json.loads(json.dumps(value, default=str))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own progress and deprecation notes off the screen."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
