"""Invalid-action masks: an env says in `info` which actions are valid, and PPO takes no others."""

import tempfile
from typing import Any

import gymnasium as gym
import numpy as np

from proxima import evaluate, load_policy, train

VALUES = np.array([1.0, 2.0, 3.0, 4.0])


class Piles(gym.Env):
    """Take 8 coins from four piles, one at a time. To reach into an empty pile ends the game."""

    observation_space = gym.spaces.Box(0, 5, (4,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, *, masked: bool = True):
        self.masked = masked

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Fill the piles."""
        super().reset(seed=seed)
        self.coins, self.taken = self.np_random.integers(2, 6, 4), 0
        return self._observe(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take a coin from the pile `action`."""
        if not self.coins[action]:
            return self._observe(), 0.0, True, False, {"is_success": False}
        self.coins[action] -= 1
        self.taken += 1
        return self._observe(), VALUES[action], self.taken == 8, False, {**self._info(), "is_success": True}

    def _observe(self) -> np.ndarray:
        return self.coins.astype(np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.coins > 0} if self.masked else {}


def main() -> None:
    """Train with and without masks, and act with the trained policy."""
    gym.register("Piles-v0", Piles)
    with tempfile.TemporaryDirectory() as folder:
        for masked in (False, True):
            run = train(
                env="Piles-v0",
                env_kwargs={"masked": masked},
                total_timesteps=8_000,
                num_envs=8,
                num_steps=64,
                minibatch_size=128,
                runs_dir=folder,
                tensorboard=False,
                progress=False,
            )
            done = evaluate(run.run_dir, episodes=200, deterministic=False)
            print(f"masks {masked}: return {done.returns.mean:.1f}, {done.success_rate:.1%} of the games end well")

        policy, env = load_policy(run.run_dir), Piles()
        coins, info = env.reset(seed=0)
        action = policy.act(coins, action_mask=info["action_mask"])
        print(f"coins {env.coins.tolist()}, valid {info['action_mask'].tolist()}: action {action}")
        print(f"with coins in pile 0 only: action {policy.act(coins, action_mask=[True, False, False, False])}")


if __name__ == "__main__":
    main()
