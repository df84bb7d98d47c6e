"""DQN's iteration."""

from typing import Any

from proxima.algo.dqn import DQNLearner
from proxima.data.replay import Replay
from proxima.nets.q_network import QNetwork
from proxima.training.algorithm import Algorithm, Files, Read
from proxima.training.seeding import stream_seed
from proxima.training.setup import Parts


class DQN(Algorithm):
    """Repeat: collect a few steps into the replay buffer, then do one optimizer step per `train_freq` of them."""

    phases = ("collect", "store", "update")
    collects_whole_rollouts = False
    learns_on_ranks = False

    def __init__(self, parts: Parts):
        super().__init__(parts)
        config, num_envs, dqn = parts.config, parts.share.count, parts.config.dqn
        assert isinstance(self.policy, QNetwork)
        seed = stream_seed(config.run.seed, "minibatches")
        self.dqn = DQNLearner(self.policy, config, device=parts.device, seed=seed)
        self.learners = {"learner": self.dqn}
        self.source = self.make_source(max(1, dqn.train_freq // num_envs))
        rollout = self.source.rollout
        iteration_rows = -(-dqn.iteration_steps // num_envs) + rollout.num_steps
        self.replay = Replay(
            rollout,
            buffer_size=dqn.buffer_size,
            margin=iteration_rows,  # an interrupted iteration must not overwrite rows that the next checkpoint needs
            frames=rollout.stacks,
            return_steps=dqn.return_steps,
            gamma=config.algorithm.gamma,
            smdp=config.algorithm.smdp,
        )
        self.dqn.keep_values(self.replay, actions=parts.spec.action.sizes[0])
        self._unpaid = 0
        """Policy steps since the last optimizer step."""
        self._counted = 0
        """Rows of the replay whose rewards are in the statistics."""

    def iterate(self) -> dict[str, float]:
        """`iteration_steps` policy steps."""
        until = self.source.policy_steps + self.config.dqn.iteration_steps
        while self.source.policy_steps < until:
            self.dqn.set_progress(min(1.0, self.source.global_step / self.config.run.total_timesteps))
            rollout = self.timed("collect", self.source.collect)
            self.timed("store", self.replay.add, rollout)
            self.timed("store", self.policy.normalizer.update, rollout.step_obs())
            if self.replay.size >= self.config.dqn.learning_starts:
                if not self._counted:  # nothing must be learned from rewards that are not scaled
                    self._count_rewards()
                steps, self._unpaid = divmod(self._unpaid + rollout.size, self.config.dqn.train_freq)
                if steps:
                    self.timed("update", self.dqn.update, self.replay, steps)
            self.dqn.copy_target(self.source.policy_steps)
        self._count_rewards()
        self.stop_compiling_without_toolchain()
        return self.dqn.metrics() | {"replay_size": self.replay.size}

    def _count_rewards(self) -> None:
        self.dqn.count_rewards(*self.replay.rewards_since(self._counted))
        self._counted = self.replay.end

    def changed_by_resume(self, progress: float) -> list[str]:
        """Also warn if epsilon goes back up."""
        notices, now = super().changed_by_resume(progress), self.dqn.epsilon_at(progress)
        before = float(self.dqn.policy.epsilon)
        if now <= before + 1e-6:
            return notices
        return [
            *notices,
            f"The share of random actions goes from {before:.3g} back to {now:.3g}: it falls over exploration_fraction "
            "of total_timesteps, which are more now. Give exploration_start the value it had reached to keep it.",
        ]

    def get_state(self) -> tuple[Files, dict[str, Any]]:
        """With the replay as it is now, copied only if it is written."""
        files, state = super().get_state()
        if self.config.checkpoint.save_replay:
            mark = self.replay.end
            files["replay.pt"] = lambda: self.replay.state_at(mark)
            if self.dqn.values is not None:
                files["target_values.pt"] = self.dqn.values.get_state()
        return files, state | {"unpaid": self._unpaid}

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """With the replay, if it was saved."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        self._unpaid = state["unpaid"]
        replay, values = read("replay.pt"), read("target_values.pt")
        if replay is None:
            starts = self.config.dqn.learning_starts
            return [*different, f"its replay was not saved (save_replay); {starts:,} actions fill a new one first"]
        self.replay.load_state(replay)
        self._counted = self.replay.end
        if self.dqn.values is not None and values is not None:
            self.dqn.values.set_state(values)
        if not self.source.in_old_episodes:
            self.replay.cut_episodes()
        return different
