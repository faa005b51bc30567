"""Settings of PPO for every learner: those published for its library, and those of preset=quick.

Isaac Lab ships settings for each library, tuned for thousands of environments that step together
(github.com/isaac-sim/IsaacLab, source/isaaclab_tasks/isaaclab_tasks/manager_based):

- rsl_rl and skrl: navigation/config/anymal_c/agents, the task that is nearest to ours;
- Stable-Baselines3: locomotion/velocity/config/a1/agents, adapted there from rsl_rl's, since
  Isaac Lab has no navigation settings for it.

`quick` gives a peer what navrl's preset was tuned to on this task: one epoch, small minibatches,
rate and entropy that fall linearly. Discount, GAE lambda, network and action distribution are the
task's for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from navrl.rl.ppo import PPOSettings


@dataclass(frozen=True)
class Recipe:
    """The settings of a PPO update that libraries share."""

    steps: int  # of each drone in a batch
    epochs: int
    minibatches: int
    learning_rate: float  # at the start
    entropy: float  # coefficient at the start
    final_learning_rate: float = 1.0  # fraction of the first one; linear in decisions
    final_entropy: float = 1.0
    target_kl: float = 0.0  # the rate follows the KL divergence; 0: it does not
    clip: float = 0.2
    value_clip: float = 0.0  # 0: none
    value_coefficient: float = 1.0
    gradient_norm: float = 1.0
    adam_epsilon: float = 1e-8

    def rate(self, progress: float) -> float:
        """Return the learning rate after a share of the training."""
        return self.learning_rate * (1 + (self.final_learning_rate - 1) * min(1.0, progress))

    def entropy_at(self, progress: float) -> float:
        """Return the entropy coefficient after a share of the training."""
        return self.entropy * (1 + (self.final_entropy - 1) * min(1.0, progress))


def quick(algo: PPOSettings) -> Recipe:
    """Return the settings of a preset of navrl for a peer."""
    return Recipe(
        steps=algo.training_frame_num,
        epochs=algo.training_epoch_num,
        minibatches=algo.num_minibatches,
        learning_rate=algo.actor.learning_rate,
        entropy=algo.entropy_loss_coefficient,
        final_learning_rate=algo.final_learning_rate,
        final_entropy=algo.final_entropy,
        clip=algo.actor.clip_ratio,
        value_clip=algo.critic.clip_ratio,
        value_coefficient=algo.value_coefficient,
        gradient_norm=algo.max_grad_norm,
        adam_epsilon=algo.adam_epsilon,
    )


QUICK, ISAAC_LAB = "quick", "isaac-lab"
NAVIGATION = Recipe(8, 5, 4, 1e-3, 0.005, target_kl=0.01, value_clip=0.2)
LOCOMOTION = Recipe(24, 5, 4, 1e-3, 0.005)
PUBLISHED = {"rsl_rl_runner": NAVIGATION, "skrl_agent": NAVIGATION, "stable_baselines": LOCOMOTION}


def recipe_for(learner: str, name: str, algo: PPOSettings) -> Recipe:
    """Return the settings of a learner by the name of the recipe."""
    return quick(algo) if name == QUICK else PUBLISHED[learner]
