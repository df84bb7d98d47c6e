"""DQN's iteration."""

from collections.abc import Callable
from typing import Any

import torch

from proxima.algo.dqn import DQNLearner
from proxima.config import Config
from proxima.data.replay import Replay
from proxima.envs.contract import VecEnv
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import Spec
from proxima.training import setup
from proxima.training.algorithm import Algorithm, Files
from proxima.training.collector import Collector
from proxima.training.seeding import stream_seed


class DQN(Algorithm):
    """A few steps of the envs into the replay, the optimizer steps that they are due, and again."""

    phases = ("collect", "store", "update")
    learner: DQNLearner

    def __init__(
        self, env: VecEnv, spec: Spec, config: Config, *, device: torch.device, threads: setup.Threads, decisions: int
    ):
        """`decisions` is how many the run will have, over all envs."""
        super().__init__(env, config, device=device, threads=threads)
        seed, dqn = config.run.seed, config.dqn
        self.policy = policy = setup.build_policy(spec, config, device)
        assert isinstance(policy, QNetwork)
        self.learner = DQNLearner(policy, config, device=device, seed=stream_seed(seed, "minibatches"))
        self.collector = Collector(
            env,
            self.policy,
            num_steps=max(1, dqn.train_freq // env.num_envs),
            device=device,
            env_seed=seed,
            seed=stream_seed(seed, "actions"),
            holds_actions=config.env.holds_actions,
            flat=self.learner.flat if setup.compiles_actor(config, device, decisions // env.num_envs) else None,
        )
        rollout = self.collector.rollout
        iteration_rows = -(-dqn.iteration_steps // env.num_envs) + rollout.num_steps
        self.replay = Replay(
            rollout,
            buffer_size=dqn.buffer_size,
            margin=iteration_rows,  # an interrupted iteration must leave what the last boundary had
            frames=rollout.stacks,
            return_steps=dqn.return_steps,
            gamma=config.algorithm.gamma,
            smdp=config.algorithm.smdp,
        )
        self.learner.keep_values(self.replay, actions=spec.action.sizes[0])
        self._unpaid = 0
        """Decisions since the last optimizer step."""

    def iterate(self) -> dict[str, float]:
        """As many decisions as an iteration has."""
        until = self.collector.decisions + self.config.dqn.iteration_steps
        while self.collector.decisions < until:
            self.learner.set_progress(min(1.0, self.collector.global_step / self.config.run.total_timesteps))
            rollout = self.timed("collect", self.collector.collect)
            self.timed("store", self.replay.add, rollout)
            self.timed("store", self.policy.normalizer.update, rollout.step_obs())
            if self.replay.size >= self.config.dqn.learning_starts:
                steps, self._unpaid = divmod(self._unpaid + rollout.size, self.config.dqn.train_freq)
                if steps:
                    self.timed("update", self.learner.update, self.replay, steps)
            self.learner.copy_target(self.collector.decisions)
        if self.collector.no_toolchain and self.learner.compiled:
            self.learner.give_up_compiling()
        return self.learner.metrics() | {"replay_size": self.replay.size}

    def changed_by_resume(self, progress: float) -> list[str]:
        """Where a run goes on for longer than it was planned for, its exploration goes back as well."""
        told, before, now = super().changed_by_resume(progress), self.learner.epsilon, self.learner.epsilon_at(progress)
        if now <= before + 1e-6:
            return told
        return [
            *told,
            f"The share of random actions goes from {before:.3g} back to {now:.3g}: it falls over exploration_fraction "
            "of total_timesteps, which are more now. Give exploration_start the value it had reached to go on there.",
        ]

    def get_state(self) -> tuple[Files, dict[str, Any]]:
        """With the replay as it is now, copied only if it is written."""
        files, state = super().get_state()
        if self.config.checkpoint.save_replay:
            mark = self.replay.mark()
            files["replay.pt"] = lambda: self.replay.state_at(mark)
            if self.learner.values is not None:
                files["target_values.pt"] = self.learner.values.get_state()
        return files, state | {"unpaid": self._unpaid}

    def set_state(
        self, read: Callable[[str], Any | None], state: dict[str, Any], *, new_episodes_seed: int | None
    ) -> list[str]:
        """With the replay, if it was saved."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        self._unpaid = state["unpaid"]
        replay = read("replay.pt")
        if replay is None:
            starts = self.config.dqn.learning_starts
            return [*different, f"its replay was not saved (save_replay); {starts:,} decisions fill a new one first"]
        self.replay.load_state(replay)
        values = read("target_values.pt")
        if self.learner.values is not None and values is not None:
            self.learner.values.set_state(values)
        if new_episodes_seed is not None:
            self.replay.cut_episodes()
        return different
