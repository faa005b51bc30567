"""All settings in one dataclass; presets come from `conf/`, dotted overrides go on top."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from navrl.conf.collect_settings import LOCAL, CollectSettings, check_collection
from navrl.conf.overrides import GROUPS, apply_override, check_overrides
from navrl.credentials import redact, redacted
from navrl.errors import ConfigError, RegistryError, shown
from navrl.io.checkpoint.differences import MAX_CHAIN
from navrl.io.container.devices import usable_device
from navrl.registry.model_names import check_name
from navrl.registry.upload_policy import UploadPolicy
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.rl.ppo import PPOSettings
from navrl.rl.sac import SACSettings
from navrl.sim.settings import EARLIER as EARLIER
from navrl.sim.settings import NavigationSettings as NavigationSettings
from navrl.sim.settings import TaskSettings
from navrl.tracking.tracker_settings import (
    MlflowSettings,
    TrackingSettings,
    WandbSettings,
    tracker_names,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LIMITS = {  # of whole numbers
    "seed": (0, 2**31),
    "processes": (0, 1024),
    "max_frame_num": (1, 1 << 50),
    "eval_interval": (0, 1 << 31),
    "save_interval": (1, 1 << 31),
    "keep_last_n": (1, 1 << 31),
    "save_compression_level": (0, 16),
    "checkpoint_delta_chain": (0, MAX_CHAIN),
    "async_checkpoint_queue_size": (1, 64),
    "rollout_save_interval": (0, 1 << 31),
    "rollout_keep_last_n": (0, 1 << 31),
}
ALGORITHMS = {"ppo": "beta", "sac": "gaussian"}  # and the action distribution that each needs
# maps of evaluations during training follow those of the final evaluation by this many seeds
PERIODIC_EVALUATION_OFFSET = 5000
NAVIGATION = "navigation"  # the environment that comes with the package
# groups of settings that only the navigation task reads, and what other environments have of env.*
NAVIGATION_GROUPS = ("env.", "env_dyn.", "sensor.", "drone.", "reward.", "sim.", "curriculum.")
GENERAL = ("gymnasium", "torchrl", "rsl_rl", "python")  # env=NAME that is another task
ANY_ENVIRONMENT = ("env.name", "env.id", "env.target", "env.options", "env.num_envs")
LONGEST_NAME = 100  # characters of a model's name that is made from that of an environment
LONGEST_MESSAGE = 300  # characters of a library's error message
_composing = threading.Lock()
PARTS = {  # config groups that a preset selects
    "preset=navrl_exact": ("env=navrl_exact", "algo=ppo_exact", "network=navrl"),
    "preset=sac": ("algo=sac",),
}


@dataclass
class FlightSettings:
    """Keys `flight.*`: evaluation on unseen worlds, during and after training."""

    episodes: int = 2048  # of each scenario, spread evenly over the worlds
    worlds: int = 32  # unseen in training
    map_seed: int = 1_000_000  # of the first world; must not overlap the worlds of training
    seed: int = 0  # of starts, goals and moving obstacles
    # during training: twice as many in all, a quarter of them without moving obstacles
    interim_episodes: int = 512
    recorded: int = 64  # flights in recordings and pictures, all in the first world
    animation: bool = True  # write flights.gif

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        limits = {
            "episodes": (1, 1 << 20),
            "interim_episodes": (1, 1 << 20),
            "worlds": (1, 4096),
            "map_seed": (0, 2**32 - 4097),
            "recorded": (0, 4096),
            "seed": (0, 2**31),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"flight.{name} is {getattr(self, name)}; expected {low} to {high}"
                )


@dataclass
class CurriculumSettings:
    """Keys `curriculum.*`: what changes while the policy trains."""

    # the collision penalty goes linearly from reward.collision to this; null: it stays constant
    final_collision: float | None = None
    collision_until: float = 0.5  # fraction of the training after which it is reached

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        if self.final_collision is not None and not 0 <= self.final_collision <= 1e6:
            raise ConfigError(
                f"curriculum.final_collision is {self.final_collision}; expected 0 to 1e6"
            )
        if not 0 < self.collision_until <= 1:
            raise ConfigError(
                f"curriculum.collision_until is {self.collision_until}; expected above 0, at most 1"
            )


@dataclass
class EnvironmentSettings(TaskSettings):
    """Keys `env.*`: which environment is trained, and the navigation task's own settings."""

    name: str = NAVIGATION  # an entry of navrl.environments.table.ENVIRONMENTS
    id: str = ""  # of a Gymnasium environment
    target: str = ""  # what makes an environment, as module:name
    # keyword arguments of what makes the environment: env.options.NAME=VALUE
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> TaskSettings:
        """The settings of the navigation task alone."""
        names = [part.name for part in dataclasses.fields(TaskSettings)]
        return TaskSettings(**{name: getattr(self, name) for name in names})


@dataclass
class Config(NavigationSettings):
    """All settings: the task, the algorithm and the run."""

    env: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    seed: int = 0  # of the weights, the actions and the worlds' random numbers
    # of the network: cpu, or a GPU: cuda or cuda:0; the simulator runs on the CPU
    device: str = "cpu"
    processes: int = 0  # each trains its part of the drones; 0: one per core
    headless: bool = False  # print lines instead of the live panel
    max_frame_num: int = 40_000_000  # length of the training in decisions of all drones together
    eval_interval: int = 100  # iterations between evaluations; 0: only at the end
    save_interval: int = 50  # iterations between checkpoints
    keep_last_n: int = 3  # checkpoints to keep
    compress_checkpoint: bool = True  # compress the tensors of a checkpoint, without loss
    save_compression_level: int = 0  # 0: the codec's default
    # checkpoints in a chain of differences that begins with a whole one; 0: all are whole
    checkpoint_delta_chain: int = 0
    # round the optimiser's moments to bfloat16 in the file: half the size, not resumed to the bit
    checkpoint_lossy_moments: bool = False
    async_checkpoint_queue_size: int = 3  # checkpoints that may wait to be written
    on_save_failure: str = "stop"  # after three failed checkpoints in a row: stop or continue
    rollout_save_interval: int = 0  # iterations between batches kept in RUN/rollouts; 0: none
    rollout_keep_last_n: int = 10  # batches to keep there; 0: all
    # collect the next batch while the policy learns, with the weights from before the update
    use_pipelined_collector: bool = False
    shield: bool = False  # filter the actions of the training with the shield (docs/deploy.md)
    shield_penalty: float = 0.1  # reward lost by a decision that the shield changes
    # whom algo.imitation imitates in the navigation task. straight: what the shield makes of flying
    # straight at the goal; own: what it makes of the policy's direction at full speed; a model, by
    # path, run or name: what it makes of that model's commands
    teacher: str = "straight"
    # keep the last batch, LiDAR scans included, in a compressed file beside each checkpoint
    compress_lidar: bool = False
    run_folder: str = ""  # empty: runs/DATE_TIME
    # auto: resume the run in run_folder, or the newest run, from its newest whole checkpoint
    resume: str = ""
    algorithm: str = "ppo"  # ppo or sac; set with algo=sac, which selects all of its settings
    # start from a checkpoint or model: a path, a run folder, or NAME:ALIAS in the registry
    resume_checkpoint: str = ""
    # wandb, trackio, mlflow, tensorboard, or a list; RUN/metrics.jsonl is written in any case
    tracker: Any = ""
    tracker_patience: float = 8.0  # seconds to wait for trackers at the end of a run
    tracker_deadline: float = 60.0  # seconds that a tracker has to answer a request
    algo: PPOSettings = field(default_factory=PPOSettings)
    sac: SACSettings = field(default_factory=SACSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    flight: FlightSettings = field(default_factory=FlightSettings)
    collect: CollectSettings = field(default_factory=CollectSettings)
    registry: UploadPolicy = field(default_factory=UploadPolicy)
    wandb: WandbSettings = field(default_factory=WandbSettings)
    mlflow: MlflowSettings = field(default_factory=MlflowSettings)

    @property
    def tracking(self) -> TrackingSettings:
        """The settings of the trackers."""
        return _tracking_of(self)

    @property
    def task(self) -> NavigationSettings:
        """The settings of the navigation task."""
        return NavigationSettings(
            self.env.task, self.env_dyn, self.sensor, self.drone, self.reward, self.sim
        )

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        _check_types(self, Config(), "")
        self.task.check()
        for group in (
            self.algo,
            self.sac,
            self.network,
            self.curriculum,
            self.flight,
            self.registry,
            self.tracking,
        ):
            group.check()
        self._check_limits()
        self._check_algorithm()
        check_collection(self)
        self._check_shield()
        self._check_device()
        self._check_worlds()
        self._check_checkpoints()
        self._check_resuming()

    def _check_limits(self) -> None:
        for name, (low, high) in _LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {low} to {high}")
        if not 0 <= self.reward.collision <= 1e6:
            raise ConfigError(
                f"reward.collision is {self.reward.collision}; expected 0 to 1e6 where drones learn"
            )

    def _check_resuming(self) -> None:
        if self.resume not in ("", "auto"):
            raise ConfigError(
                f"resume is {self.resume!r}; expected auto, or resume_checkpoint=PATH"
            )

    def _check_checkpoints(self) -> None:
        if self.checkpoint_delta_chain == 1:
            raise ConfigError(
                "checkpoint_delta_chain is 1; expected 0 for whole checkpoints, or at least 2"
            )
        if self.checkpoint_delta_chain and not self.compress_checkpoint:
            raise ConfigError(
                f"checkpoint_delta_chain is {self.checkpoint_delta_chain} and compress_checkpoint "
                "is false; differences save nothing unless they are compressed: leave one out"
            )
        if self.on_save_failure not in ("stop", "continue"):
            raise ConfigError(
                f"on_save_failure is {self.on_save_failure!r}; expected stop or continue"
            )

    def _check_shield(self) -> None:
        if self.shield and self.env.name != NAVIGATION:
            raise ConfigError(
                f"shield is true; only the navigation task has one, not {self.env.name}"
            )
        if not 0 <= self.shield_penalty <= 1e6:
            raise ConfigError(f"shield_penalty is {self.shield_penalty}; expected 0 to 1e6")

    def _check_algorithm(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(
                f"algorithm is {self.algorithm!r}; expected one of {', '.join(ALGORITHMS)}"
            )
        if self.network.distribution != ALGORITHMS[self.algorithm]:
            raise ConfigError(
                f"network.distribution is {self.network.distribution!r}; expected "
                f"{ALGORITHMS[self.algorithm]!r}, which algo={self.algorithm} sets"
            )
        if self.algorithm == "sac":
            self._check_sac()

    def _check_sac(self) -> None:
        if self.env.name != NAVIGATION:
            raise ConfigError(
                f"algo=sac trains the navigation task; env={self.env.name} is trained with algo=ppo"
            )
        if self.processes > 1:
            raise ConfigError(
                f"processes is {self.processes}; algo=sac trains in one process, with as many "
                "threads as cores"
            )
        if self.use_pipelined_collector:
            raise ConfigError(
                "use_pipelined_collector is true; algo=sac has no pipelined collector: leave it out"
            )
        if self.sac.warmup >= self.max_frame_num:
            raise ConfigError(
                f"sac.warmup is {self.sac.warmup}; expected less than max_frame_num, "
                f"{self.max_frame_num}"
            )

    def _check_device(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise ConfigError(f"device is {shown(self.device)}; expected cpu, cuda or cuda:0")
        usable_device(self.device)

    def _check_worlds(self) -> None:
        """Refuse evaluation on worlds that the policy trains on."""
        if self.env.same_map or self.env.world_files:
            return
        trained = range(self.env.map_seed, self.env.map_seed + self.env.num_worlds)
        final, periodic = self.flight.map_seed, self.flight.map_seed + PERIODIC_EVALUATION_OFFSET
        for name, first in (("final evaluation", final), ("evaluations in training", periodic)):
            last = first + self.flight.worlds - 1
            if first < trained.stop and trained.start <= last:
                raise ConfigError(
                    f"flight.map_seed is {self.flight.map_seed}: the worlds of the {name}, {first} "
                    f"to {last}, overlap those of training, {trained.start} to {trained.stop - 1}; "
                    "change flight.map_seed or env.map_seed"
                )


def _check_types(values: Any, defaults: Any, prefix: str) -> None:
    """Raise a ConfigError for the first value whose type is not that of its default."""
    for part in dataclasses.fields(defaults):
        key = f"{prefix}{part.name}"
        value = getattr(values, part.name)
        default = getattr(defaults, part.name)
        if dataclasses.is_dataclass(default):
            if not isinstance(value, type(default)):
                raise ConfigError(f"{key} is {shown(value)}; expected {type(default).__name__}")
            _check_types(value, default, f"{key}.")
        elif part.type != "Any" and not _is_like(value, default):
            expected = (
                "a number or null"
                if default is None
                else f"{type(default).__name__}, such as {default!r}"
            )
            raise ConfigError(
                f"{key} is {shown(value)} of type {type(value).__name__}; expected {expected}"
            )


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if default is None:
        return value is None or isinstance(value, int | float)
    if isinstance(default, float):
        return isinstance(value, int | float)
    return isinstance(value, list | tuple if isinstance(default, list | tuple) else type(default))


def _tracking_of(config: Config) -> TrackingSettings:
    names = tracker_names(config.tracker)
    return TrackingSettings(
        names, config.wandb, config.mlflow, config.tracker_patience, config.tracker_deadline
    )


def our_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides with `robot=NAME` and other spellings replaced by our settings; see
    `navrl.conf.robot_overrides` and `navrl.conf.spellings`.
    """
    from navrl.conf.robot_overrides import with_robot
    from navrl.conf.spellings import with_our_spelling

    if isinstance(overrides, str):
        raise ConfigError(f"overrides are {shown(overrides)}; expected a list, such as ['seed=1']")
    return with_our_spelling(with_robot(overrides), _schema())


def with_default_preset(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the preset that a training takes when none is typed."""
    chosen = {override.split("=", 1)[0]: override.split("=", 1)[1:] for override in overrides}
    if "preset" in chosen or chosen.get("env", ["default"])[0] in GENERAL:
        return [*overrides]
    return ["preset=sac" if chosen.get("algo") == ["sac"] else "preset=quick", *overrides]


def load_config(overrides: Sequence[str] = ()) -> Config:
    """Return the configuration after overrides such as `env.num_envs=256` or `env=navrl_exact`.

    The later of two overrides of one setting wins.

    Raises:
        ConfigError: an override is malformed, names no setting (the nearest one is named), or has
            an impossible value.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = our_overrides(overrides)
    check_overrides(overrides, _schema())
    chosen, others = _with_parts(overrides)
    composed = copy.deepcopy(_composed(*chosen))
    for override in others:
        apply_override(override, composed, _schema())
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the settings cannot be composed: {_short(error)}") from error
    if not isinstance(config, Config):
        raise ConfigError(
            f"the configuration became {type(config).__name__}; expected {Config.__name__}"
        )
    _refuse_foreign(config, overrides)
    if not any(override.startswith("registry.name=") for override in overrides):
        config.registry.name = model_name(config.env) or config.registry.name
    config.check()
    return config


@functools.cache
def _schema() -> DictConfig:
    """Return every setting with its type and default; not to be changed."""
    from omegaconf import OmegaConf

    return OmegaConf.structured(Config)


@functools.cache
def _composed(*chosen: str) -> DictConfig:
    """Return the configuration of chosen groups, such as `preset=best`; not to be changed."""
    from hydra import compose, initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name="schema", node=_schema())
    # Hydra keeps its state in a global object
    with _composing, initialize_config_module("navrl.conf", version_base="1.3"):
        try:
            return compose("config", overrides=[*chosen])
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(f"the settings cannot be composed: {_short(error)}") from error


def model_name(env: EnvironmentSettings, given: str = "") -> str:
    """Return what models of an environment are called in the registry; empty for our own task.

    Args:
        env: the settings.
        given: the name of an environment that no setting names.
    """
    if env.name == NAVIGATION or not (env.id or env.target or given):
        return ""
    name = env.target.replace(":", "-") or env.id.rpartition(":")[2] or given
    legal = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:LONGEST_NAME]
    try:
        return check_name(legal)
    except RegistryError:
        return f"policy-{legal}".rstrip(".-")[:LONGEST_NAME]


def _refuse_foreign(config: Config, overrides: Sequence[str]) -> None:
    """Refuse settings of an algorithm or a task that was not selected: they have no effect."""
    if config.env.name != NAVIGATION:
        _refuse_navigation(config.env.name, overrides)
    remote = [override for override in overrides if override.startswith("collect.")]
    if remote and config.collect.name == LOCAL:
        raise ConfigError(f"override {remote[0]!r} has no effect without collect=ray")
    teacher = [override for override in overrides if override.startswith("teacher=")]
    if teacher and config.teacher != Config.teacher and not config.algo.imitation:
        raise ConfigError(f"override {teacher[0]!r} has no effect without algo.imitation")
    foreign = {"ppo": "sac.", "sac": "algo."}.get(config.algorithm, "")
    wrong = [override for override in overrides if foreign and override.startswith(foreign)]
    if wrong:
        raise ConfigError(
            f"override {wrong[0]!r} has no effect on {config.algorithm}: PPO reads algo.*, SAC "
            "(algo=sac) reads sac.*"
        )


def _refuse_navigation(env: str, overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.split("=", 1)[0]
        if key.startswith(NAVIGATION_GROUPS) and not key.startswith(ANY_ENVIRONMENT):
            raise ConfigError(
                f"override {shown(override)} belongs to the navigation task; env={env} "
                f"has {', '.join(ANY_ENVIRONMENT)}, and its own options as env.options.NAME"
            )


def _with_parts(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that choose a group, with those that a preset selects, and the others.

    Of several choices for one group, which Hydra refuses, the last stays.
    """
    chosen = {one.split("=", 1)[0]: one for one in overrides if one.split("=", 1)[0] in GROUPS}
    parts = [part for override in chosen.values() for part in PARTS.get(override, ())]
    added = [part for part in parts if part.split("=", 1)[0] not in chosen]
    others = [one for one in overrides if one.split("=", 1)[0] not in GROUPS]
    return [*added, *chosen.values()], others


def as_yaml(config: Config) -> str:
    """Return the configuration as YAML, with passwords in addresses redacted."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(as_saved(config)))


def as_dict(config: Config) -> dict[str, Any]:
    """Return the configuration as nested plain values."""
    return dataclasses.asdict(config)


def as_saved(config: Config) -> dict[str, Any]:
    """Return the configuration as nested plain values, with passwords in addresses redacted."""
    saved: dict[str, Any] = redacted(as_dict(config))
    return saved


def from_dict(values: Mapping[str, Any]) -> Config:
    """Return the configuration of nested plain values, checked.

    Raises:
        ConfigError: a key is unknown, or a value impossible.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(values, Mapping):
        raise ConfigError(f"saved settings are {shown(values)}; expected settings by name")
    try:
        config = OmegaConf.to_object(OmegaConf.merge(_schema(), dict(values)))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"saved settings do not fit this version: {_short(error)}") from error
    if not isinstance(config, Config):
        raise ConfigError(
            f"the configuration became {type(config).__name__}; expected {Config.__name__}"
        )
    config.check()
    return config


def known_keys() -> list[str]:
    """Return every dotted key that can be set."""
    from navrl.conf.overrides import keys_of

    return keys_of(_schema())


def _short(error: BaseException) -> str:
    """Return a library's error message in one line, shortened and redacted."""
    told = " ".join(
        redact(f"{error}: {error.__cause__}" if error.__cause__ else str(error)).split()
    )
    return told if len(told) <= LONGEST_MESSAGE else f"{told[:LONGEST_MESSAGE]}..."
