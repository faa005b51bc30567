"""Checkpoints in a training script that knows nothing of navrl, such as one for Isaac Sim: five
lines, marked (1)-(5).

Run it twice: the second run goes on where the first one stopped. Stop it with Ctrl+C whenever you
like.

    python examples/isaac_checkpoint.py --folder runs/isaac --iterations 200
"""

import argparse

import torch

from navrl.io import CheckpointDirectory, get_random_state, set_random_state  # (1)


class TheirEnvironment:
    """Stands in for a simulator: 64 carts that are to come to rest at the origin."""

    def reset(self):
        """Return the first observation."""
        self.state = torch.randn(64, 2)
        return self.state

    def step(self, action):
        """Return the next observation and the reward."""
        position, velocity = self.state.unbind(-1)
        velocity = velocity + 0.1 * action.squeeze(-1).clamp(-1, 1)
        self.state = torch.stack([position + 0.1 * velocity, velocity], -1)
        return self.state, -self.state.square().sum(-1)


def main():
    """Train, save, and go on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="runs/isaac")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--save-interval", type=int, default=20)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    environment = TheirEnvironment()
    policy = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    start = 0

    with (
        # (2) the next optimizer.step() waits for the copy, and for nothing else
        CheckpointDirectory(
            arguments.folder, optimizers=[optimizer], keep_last_n=3, keep_best=1, metric="reward"
        ) as checkpoints
    ):
        if checkpoints.latest():  # (3)
            state = checkpoints.load()
            policy.load_state_dict(state["policy"])
            optimizer.load_state_dict(state["optimizer"])
            set_random_state(state["random"])
            start = state["iteration"]

        for iteration in range(start + 1, arguments.iterations + 1):
            observation, total = environment.reset(), 0.0
            for _ in range(30):
                observation, reward = environment.step(policy(observation))
                total = total + reward.mean() / 30
            optimizer.zero_grad()
            (-total).backward()
            optimizer.step()

            if iteration % arguments.save_interval == 0:
                state = {  # (4)
                    "policy": policy.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "random": get_random_state(),
                    "iteration": iteration,
                }
                # (5) returns in under 1 ms
                checkpoints.save(iteration, state, metrics={"reward": float(total)})
                print(f"iteration {iteration}: reward {float(total):.3f}")

    statistics = checkpoints.saver.get_stats()
    print(
        f"{statistics['total_saved']:.0f} saves held training up for "
        f"{statistics['stall_ms_p50']:.2f} ms each (median)"
    )


if __name__ == "__main__":
    main()
