"""Fly drones with the native interface: a batch of environments, the scripted pilot, what became of them.

python examples/fly.py
python examples/fly.py --drones 4096 --steps 2000
"""

from __future__ import annotations

import argparse

from navrl import NavigationEnv, NavigationSettings
from navrl.rl.scripted import scripted_pilot


def main() -> None:
    """Fly, and print the share of episodes that reached their goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drones", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()

    env = NavigationEnv(NavigationSettings.of(env__num_envs=arguments.drones, env__num_worlds=16), seed=0)
    step = env.make_step()  # buffers that every step fills: nothing is allocated while flying
    observation = env.reset()
    ended = reached = 0
    for _ in range(arguments.steps):
        env.step(scripted_pilot(observation), out=step)
        observation = step.observation
        episodes = step.episodes()
        ended += len(episodes["return"])
        reached += int(episodes["success_100"].sum())
    print(f"{ended} episodes ended, {reached} reached their goal")


if __name__ == "__main__":
    main()
