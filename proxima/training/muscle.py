"""PPO together with a muscle network: the iteration of hierarchical muscle control."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from proxima.algo.regression import MuscleLearner, Tuples
from proxima.envs.muscle.env import MUSCLE, MuscleVecEnv
from proxima.errors import UsageError
from proxima.nets.muscle_net import MuscleNet
from proxima.training.algorithm import Read
from proxima.training.ppo import PPO
from proxima.training.seeding import stream_seed
from proxima.training.setup import Parts


class PPOMuscle(PPO):
    """PPO's iteration, then the muscle network's update on the same rollout; its new weights act in the next one."""

    phases: ClassVar[tuple[str, ...]] = (*PPO.phases, MUSCLE)

    def __init__(self, parts: Parts):
        super().__init__(parts)
        config, env = parts.config, parts.env
        if not isinstance(env, MuscleVecEnv):
            raise UsageError(
                f"algorithm PPO+muscle needs an env file and vec_env_mode batch, not {config.env.env} in "
                f"{type(env).__name__}."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.run.seed, "muscle network"))
            self.muscle_net = MuscleNet(**env.network_shape(MUSCLE)).to(parts.device)
        self.networks[MUSCLE] = self.muscle_net
        iterations = max(1, round(parts.num_policy_steps / config.rollout_size))
        seed = stream_seed(config.run.seed, "muscle minibatches")
        self.muscle = MuscleLearner(
            self.muscle_net,
            config,
            device=parts.device,
            seed=seed,
            num_iterations=iterations,
            peers=parts.ranks.peers(parts.share.total),
        )
        self.learners[MUSCLE] = self.muscle
        self._hand_over()

    def begin(self) -> None:
        """Warm start, in a run that is not resumed."""
        rounds, count = self.config.muscle.muscle_warm_start, self.config.rollout_size
        if not rounds:
            return
        options = self.config.env
        env = MuscleVecEnv(num_envs=min(64, count), **options.env_kwargs)
        share, steps = self.parts.share, self.config.ppo.num_steps
        own = slice(steps * share.first, steps * (share.first + share.count))  # of as many as a rollout has
        for i in range(rounds):
            found = env.random_tuples(count, stream_seed(self.config.run.seed + i, "warm start") % 2**31)
            self.muscle.update(Tuples(*(x[own].to(self.parts.device) for x in found.values())))
        env.close()
        self._hand_over()

    def text(self) -> str:
        """What the numbers of the run come to, in the terms of the published configurations."""
        steps, actions = self.config.run.total_timesteps, self.parts.num_policy_steps
        updates = {size: -(-actions // size) for size in (self.config.rollout_size, 8192, 32768)}
        own, *others = (f"{count:,} update{'s' * (count != 1)} of {size:,} samples" for size, count in updates.items())
        equal = "16 workers x 512 steps collect 8,192 samples"
        return f"{steps:,} steps are {own}{''.join(f', or {other}' for other in others)}; {equal}."

    def iterate(self) -> dict[str, float]:
        """One rollout, and the updates of both learners."""
        metrics = super().iterate()
        tuples = self.muscle.prepare(self.source.rollout)
        metrics |= self.timed(MUSCLE, self.muscle.update, tuples)
        self.make_equal()  # before the envs are given a copy
        self._hand_over()
        return metrics

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Envs whose state could not be restored get the network too."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        self._hand_over()
        return different

    def weights_changed(self, other: Mapping[str, Any]) -> list[str]:
        """Hand the network to the envs."""
        self._hand_over()
        return super().weights_changed(other)

    def _hand_over(self) -> None:
        self.source.set_weights(MUSCLE, self.muscle_net.state_dict())
