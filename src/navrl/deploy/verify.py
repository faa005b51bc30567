"""Prove that exported files fly as the policy does: equal commands, and equal flights."""

from __future__ import annotations

import copy
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.config import FlightSettings
from navrl.deploy.exported_pilot import Arrays, Command, ExportedPilot
from navrl.deploy.policy_export import robot_policy
from navrl.deploy.robot_inputs import sampled_inputs, with_perfect_detector
from navrl.deploy.robot_policy import INPUTS, OUTPUT
from navrl.errors import ConfigError, missing_extra
from navrl.evaluation.flights import Flights, evaluate
from navrl.evaluation.policy_lookup import Policy
from navrl.evaluation.scenarios import scenario_tasks
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

TOLERANCE = 1e-5  # m/s, or twice the rounding of the policy where that is more ...
LARGEST_ROUNDING = 1e-4  # ... but never above this
FILES = {"onnx": "policy.onnx", "pt2": "policy.pt2", "c": "navrl_policy.h"}
C_SOURCE = """\
#include "navrl_policy.h"
void commands(int n, int k, const float *p, const float *v, const float *g, const float *s, \
const float *l, const float *o, float *out) {
  for (int i = 0; i < n; i++)
    navrl_command(p + 3 * i, v + 3 * i, g + 3 * i, s + 3 * i,
                  l + (long)NAVRL_AZIMUTHS * NAVRL_BEAMS * i, o + 8L * k * i, k,
                  out + 3 * i);
}
"""


@dataclass(frozen=True)
class Verdict:
    """How one exported file compares with the torch policy."""

    name: str
    golden: float = float("nan")  # m/s, largest difference on the test vectors
    parity: float = float("nan")  # m/s, largest difference on observations of the simulator
    exported_success: float = float("nan")  # share of the flights
    torch_success: float = float("nan")
    differing: int = 0  # flights that ended differently
    allowed: float = TOLERANCE  # m/s, largest parity
    skipped: str = ""  # why it was not tried

    @property
    def holds(self) -> bool:
        """Whether the file can be trusted; one that was not tried does not count against it."""
        close = self.golden <= TOLERANCE and self.parity <= self.allowed
        return bool(self.skipped) or (close and self.exported_success >= self.torch_success - 0.02)


def verify_export(
    folder: str | Path,
    policy: Policy,
    *,
    observations: int = 10_000,
    episodes: int = 256,
    seed: int = 7,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Verdict]:
    """Return a verdict for every file in the folder that `export_policy` wrote.

    Raises:
        ConfigError: the folder holds no exported policy.

    >>> import navrl
    >>> from navrl.deploy import export_policy, verify_export
    >>> folder = export_policy("pretrained", "out", formats=["pt2"])
    >>> policy = navrl.load_policy("pretrained")
    >>> [verdict] = verify_export(folder, policy, observations=16, episodes=4)
    >>> verdict.name, verdict.holds
    ('pt2', True)
    """
    folder = Path(folder)
    present = _exported(folder)
    assert policy.task is not None
    with np.load(folder / "golden.npz") as golden:
        vectors = {name: golden[name] for name in golden.files}
    inputs, commands = sampled_inputs(policy.task, policy, observations, seed)
    arrays = {name: value.numpy() for name, value in inputs.items()}
    allowed = min(max(TOLERANCE, 2 * rounding(policy, inputs)), LARGEST_ROUNDING)
    progress("flights of the torch policy")
    reference = evaluate(crossing(policy, episodes, seed), policy) if episodes else None
    verdicts = []
    for name in present:
        progress(name)
        try:
            command = load_command(folder, name)
        except (ImportError, OSError) as error:
            verdicts.append(Verdict(name, skipped=str(error)))
            continue
        verdicts.append(
            Verdict(
                name,
                _difference(command(vectors), vectors[OUTPUT]),
                _difference(command(arrays), commands.numpy()),
                *_compare(policy, command, reference, episodes, seed),
                allowed=allowed,
            )
        )
    return verdicts


def _exported(folder: Path) -> list[str]:
    """Return which files an export has, at least one.

    Raises:
        ConfigError: it has none.
    """
    present = [name for name, file in FILES.items() if (folder / file).exists()]
    if not present or not (folder / "golden.npz").exists():
        raise ConfigError(
            f"{folder} holds no exported policy; expected a folder that `navrl export` wrote, with "
            "golden.npz and policy.onnx, policy.pt2 or navrl_policy.h"
        )
    return present


def rounding(policy: Policy, inputs: Mapping[str, Tensor]) -> float:
    """Return how far commands in single precision are from those in double, at most, in m/s.

    Where a policy reacts sharply, single precision alone makes a difference, in every file. Both
    are of the module that is exported, so that a mistake in it changes nothing here: it shows
    against the commands of the policy itself.
    """
    single = robot_policy(policy)
    double = copy.deepcopy(single).double()
    with torch.no_grad():
        rough: Tensor = single(*(inputs[name] for name in INPUTS))
        exact: Tensor = double(*(inputs[name].double() for name in INPUTS))
    return float((exact - rough).abs().max())


def load_command(folder: Path, name: str) -> Command:
    """Return an exported file as a function of a robot's inputs.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        OSError: there is no C compiler.
    """
    return {"onnx": _onnx_command, "pt2": _pt2_command, "c": _c_command}[name](folder)


def _onnx_command(folder: Path) -> Command:
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("running an ONNX file", "export", "onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(folder / FILES["onnx"]), options, providers=["CPUExecutionProvider"]
    )
    return lambda arrays: session.run([OUTPUT], {name: arrays[name] for name in INPUTS})[0]


def _pt2_command(folder: Path) -> Command:
    module = torch.export.load(folder / FILES["pt2"]).module()

    def command(arrays: Arrays) -> NDArray[np.float32]:
        with torch.no_grad():
            found: Tensor = module(*(torch.from_numpy(arrays[name]) for name in INPUTS))
        return found.numpy()

    return command


def _c_command(folder: Path) -> Command:
    """Return the header as compiled by the system's compiler."""
    compiled = _compiled(folder)

    def command(arrays: Arrays) -> NDArray[np.float32]:
        held = [np.ascontiguousarray(arrays[name], np.float32) for name in INPUTS]
        out = np.zeros((len(held[0]), 3), np.float32)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*held, out)]
        compiled.commands(len(out), held[-1].shape[1], *pointers)
        return out

    return command


def _compiled(folder: Path) -> ctypes.CDLL:
    """Return a library whose `commands` calls the header for every row."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("no C compiler was found (cc, gcc or clang)")
    with tempfile.TemporaryDirectory() as temporary:
        library = Path(temporary) / "policy.so"
        flags = ["-O3", "-shared", "-fPIC", "-x", "c", "-I", str(folder.resolve())]
        done = subprocess.run(
            [compiler, *flags, "-o", str(library), "-", "-lm"],
            input=C_SOURCE,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ConfigError(f"{folder / FILES['c']} does not compile: {done.stderr[:400]}")
        return ctypes.CDLL(str(library))


def _difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest difference; infinity where something is not a number."""
    difference = np.abs(found.astype(np.float64) - expected)
    return float(difference.max()) if np.isfinite(difference).all() else float("inf")


def crossing(policy: Policy, episodes: int, seed: int) -> NavigationEnv:
    """Return drones that must each cross the field, in the worlds of evaluations."""
    flight = FlightSettings(episodes=episodes, worlds=min(32, episodes))
    tasks = scenario_tasks(["crossing"], NavigationSettings(), flight, policy)
    return NavigationEnv(with_perfect_detector(tasks["crossing"]), seed=seed, auto_reset=False)


def _compare(
    policy: Policy, command: Command, reference: Flights | None, episodes: int, seed: int
) -> tuple[float, float, int]:
    """Fly the exported file over the same episodes; return both successes and how many differ."""
    if reference is None:
        return 1.0, 1.0, 0
    env = crossing(policy, episodes, seed)
    flown = evaluate(env, ExportedPilot(command, env))
    found, known = flown.success, reference.success
    return found.float().mean().item(), known.float().mean().item(), int((found != known).sum())
