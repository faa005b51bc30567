"""Train the PPO of Stable-Baselines3 on the simulator: the whole batch of drones is one VecEnv, in
one process.

pip install 'navrl[gymnasium]' stable-baselines3
python examples/stable_baselines3_ppo.py --steps 200000
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO

from navrl import NavigationSettings
from navrl.adapters.stable_baselines3 import NavigationVecEnv


def main() -> None:
    """Train, and print the mean return of the last episodes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drones", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200_000)
    arguments = parser.parse_args()

    settings = NavigationSettings.of(
        env__num_envs=arguments.drones, env__num_worlds=8, env__action_repeat=3
    )
    model = PPO(
        "MultiInputPolicy", NavigationVecEnv(settings), n_steps=32, batch_size=1024, verbose=1
    )
    model.learn(arguments.steps)
    returns = [episode["r"] for episode in model.ep_info_buffer or []]
    print(
        f"mean return of the last {len(returns)} episodes: "
        f"{sum(returns) / max(len(returns), 1):.2f}"
    )


if __name__ == "__main__":
    main()
