"""A world for distillation: a point is to be moved to a goal, which `state` always shows and `view` only at first."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.config import load_config
from proxima.envs.catalog import TENSOR_WORLDS
from proxima.envs.contract import Obs
from proxima.envs.tensor_env import TensorVecEnv, World
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.policy import make_policy
from proxima.nets.spec import Spec
from proxima.runs import checkpoint

HIDDEN_GOAL = "toy/HiddenGoal-v0"
LOW, HIGH = (-2.0, -1.0), (2.0, 3.0)


class HiddenGoal(TensorVecEnv):
    """Ends at random steps as well. With `blind`, `view` has no goal at all; with `camera`, `depth` shows it."""

    episode_info = ("distance",)

    def __init__(self, *, blind: bool = False, camera: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.blind, self.camera = blind, camera
        boxes: dict[str, tuple[int, ...]] = {"state": (4,), "view": (4,)}
        boxes |= {"depth": (1, 12, 12)} if camera else {}
        self.observation_space = spaces.Dict({key: spaces.Box(-9, 9, shape) for key, shape in boxes.items()})
        self.action_space = spaces.Box(np.array(LOW, np.float32), np.array(HIGH, np.float32))

    def _first(self) -> World:
        place, goal = (4.0 * self.random(4) - 2.0).split(2, -1)
        return {"place": place, "goal": goal}

    def _next(self, world: World, action: Tensor) -> tuple[World, Tensor, Tensor]:
        place = 0.9 * world["place"] + 0.3 * action
        reward = -(place - world["goal"]).square().sum(-1)
        return {"place": place, "goal": world["goal"]}, reward, self.random(1)[:, 0] < 0.1

    def _observation(self, world: World) -> Obs:
        is_shown = (self.episode_length == 0)[:, None] & (not self.blind)
        goal = torch.where(is_shown, world["goal"], 0.0)
        x, y = world["goal"][:, None, None].unbind(-1)
        picture = (x * torch.ones(12, 1) + y * torch.linspace(-1, 1, 12))[:, None]  # [N, 1, 12, 12]
        return {
            "state": torch.cat((world["place"], world["goal"]), -1),
            "view": torch.cat((world["place"], goal), -1),
            **({"depth": picture} if self.camera else {}),
        }

    def _info(self) -> dict[str, Tensor]:
        return {"distance": (self._world["place"] - self._world["goal"]).norm(dim=-1).double()}


if HIDDEN_GOAL not in gym.registry:
    TENSOR_WORLDS[HIDDEN_GOAL] = "tests.envs.hidden_goal:HiddenGoal"
    gym.register(HIDDEN_GOAL, "proxima.envs.tensor_env:single", max_episode_steps=12, kwargs={"env_id": HIDDEN_GOAL})


def untrained(env: TensorVecEnv | None = None, **options: Any) -> tuple[ActorCritic, Any]:
    """A policy of the world with random weights, and its config."""
    env = env or HiddenGoal(num_envs=1)
    config = load_config(None, {"env": HIDDEN_GOAL, "encoders": {"view": {"use": "none"}}, **options})
    torch.manual_seed(3)
    policy = make_policy(Spec.from_spaces(env.observation_space, env.action_space), config)
    assert isinstance(policy, ActorCritic)
    return policy, config


def straight() -> tuple[ActorCritic, Any]:
    """A policy that moves towards the goal: a linear function of `state`."""
    policy, config = untrained(hidden_sizes=[], normalize_obs=False)
    with torch.no_grad():
        policy.action_head.linear.weight.copy_(0.5 * torch.tensor([[-0.6, 0, 0.8, 0], [0, -0.6, 0, 0.8]]))
    return policy, config


def saved(run: Path, policy: ActorCritic, config: Any) -> Path:
    """A checkpoint of a policy."""
    metadata = {
        "name": "teacher",
        "iteration": 1,
        "global_step": 10,
        "episode_return": 1.0,
        "eval_return": None,
        "lineage": [],
        "spec": policy.spec.to_dict(),
        "config": config.to_dict(),
    }
    run.mkdir(parents=True, exist_ok=True)
    return checkpoint.save(run, name="teacher", iteration=1, files={"agent.pt": policy.state_dict()}, metadata=metadata)
