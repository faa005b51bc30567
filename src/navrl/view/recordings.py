"""Find the recorded flights of an evaluation, or fly a policy to record some."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from navrl.config import load_config, our_overrides
from navrl.errors import ConfigError
from navrl.evaluation import load_policy
from navrl.evaluation.names import DEFAULT_SCENARIOS
from navrl.evaluation.recording import Recording
from navrl.evaluation.run import fly_scenarios
from navrl.sim.threads import one_thread

__all__ = ["fly_recordings", "saved_recordings"]

FEW = 256  # drones that one thread flies faster than several


def saved_recordings(reference: str, scenarios: Sequence[str] = ()) -> list[Recording]:
    """Return the recordings that an evaluation left, or nothing if the reference names none.

    Args:
        reference: the folder of an evaluation or of a run, its `evaluation.json`, or a recording.
        scenarios: those wanted; all if empty.

    Raises:
        ConfigError: the evaluation has recordings, but none of a wanted scenario.
        ContainerError: a recording is damaged.
    """
    path = Path(reference)
    if path.suffix == ".npz" and path.is_file():
        return [Recording.load(path)]
    folder = path.parent if path.name == "evaluation.json" else path
    files = sorted((folder / "recordings").glob("*.npz"))
    found = [Recording.load(file) for file in files]
    known = [recording.scenario for recording in found]
    for name in scenarios:
        if found and name not in known:
            raise ConfigError(
                f"{folder} has no recorded flights of scenario {name!r}; it has "
                f"{', '.join(known)}. `--fly` flies the model again"
            )
    return [recording for recording in found if not scenarios or recording.scenario in scenarios]


def fly_recordings(
    reference: str,
    scenarios: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    flights: int = 64,
    world: int = 0,
) -> list[Recording]:
    """Fly a policy once through each scenario in one unseen world and return the recordings.

    Args:
        reference: of a policy, as for `navrl eval`.
        scenarios: names of scenarios; the default ones if empty.
        overrides: settings, such as `env.num_obstacles=200`.
        flights: number of drones, all recorded.
        world: which of the unseen worlds; 0 is the first of an evaluation.
    """
    typed = our_overrides(overrides)
    config = load_config(typed)
    config.flight.episodes = config.flight.recorded = flights
    config.flight.worlds = 1
    config.flight.map_seed += world
    config.flight.check()
    policy = load_policy(reference, config.task)
    names = scenarios or (("own",) if config.env.world_files else DEFAULT_SCENARIOS)
    keys = {override.split("=", 1)[0] for override in typed}
    with one_thread() if flights <= FEW else nullcontext():
        flown = fly_scenarios(policy, names, config, keys)
    recorded = [flights.recording for flights in flown.flights.values()]
    return [recording for recording in recorded if recording is not None]
