"""Fly drones with the native interface: a batch of environments, a pilot, what became of them.

python examples/fly.py                                the policy that comes with the package
python examples/fly.py --policy scripted              the scripted pilot
python examples/fly.py --policy runs/mine --drones 4096 --steps 2000
"""

from __future__ import annotations

import argparse

from navrl import NavigationEnv, NavigationSettings, load_policy


def main() -> None:
    """Fly, and print the share of episodes that reached their goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--policy",
        default="pretrained",
        help="pretrained, scripted, a model file or a run's folder",
    )
    parser.add_argument("--drones", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()

    settings = NavigationSettings.of(env__num_envs=arguments.drones, env__num_worlds=16)
    policy = load_policy(arguments.policy, settings)
    if policy.task is not None:
        # it decides as often as it was trained to
        settings.env.action_repeat = policy.task.env.action_repeat
    env = NavigationEnv(settings, seed=0)
    step = env.make_step()  # buffers that every step fills: nothing is allocated while flying
    observation = env.reset()
    ended = reached = 0
    for _ in range(arguments.steps):
        env.step(policy(observation), out=step)
        observation = step.observation
        episodes = step.episodes()
        ended += len(episodes["return"])
        reached += int(episodes["success_100"].sum())
    print(f"{ended} episodes ended, {reached} reached their goal")


if __name__ == "__main__":
    main()
