"""Training with invalid-action masks: nothing invalid is taken, and a mask that allows everything changes no bit."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima import load_policy, train
from proxima.config import load_config
from proxima.envs.action_hold import Hold
from proxima.envs.contract import Obs
from proxima.envs.tensor_env import TensorVecEnv, World
from proxima.errors import EnvFailure, UsageError
from proxima.evaluation.episodes import evaluate
from proxima.nets.policy import Policy, make_policy
from proxima.nets.spec import Spec
from proxima.runs import checkpoint
from proxima.training.collector import Collector
from proxima.training.trainer import Trainer, TrainResult
from tests.masked_envs import ENV, SPACES, Maze
from tests.training.runs import SMALL, metrics, same

CPU = torch.device("cpu")
DQN = {"algorithm": "DQN", "learning_starts": 64, "buffer_size": 1000, "iteration_steps": 128, "hidden_sizes": [16]}
RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 4}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mlp": ({}, {}),
    "multi_discrete": ({"kind": "multi_discrete"}, {}),
    "rnn": ({"kind": "shifted"}, RECURRENT),
    "cnn": ({"image": True}, {"cnn_features": 8, "num_steps": 8}),
    "dqn": ({}, DQN),
    "dqn, images": ({"image": True}, DQN | {"cnn_features": 8}),
}


def run(env_kwargs: dict[str, Any], options: dict[str, Any], *, total: int = 256) -> TrainResult:
    kwargs = {"truncates": True} | env_kwargs
    given: dict[str, Any] = SMALL | {"lr_schedule": "constant"} | options
    return train(env=ENV, env_kwargs=kwargs, total_timesteps=total, **given)


def assert_same_policy(one: TrainResult, two: TrainResult) -> None:
    weights = [result.policy.state_dict() for result in (one, two)]
    # The normaliser's moments are numbered by key, and there is one key in both.
    assert same(*weights)
    assert metrics(one.run_dir) == metrics(two.run_dir)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if "dqn" in kind else []) for kind in KINDS]
)
def test_a_mask_that_allows_everything_changes_no_bit(kind: str) -> None:
    env_kwargs, options = KINDS[kind]
    ways = ("none", "info")
    assert_same_policy(*[run(env_kwargs | {"way": way, "all_valid": True}, options) for way in ways])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "multi_discrete", "cnn", "dqn"])
def test_compiled_a_mask_that_allows_everything_changes_no_bit(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    env_kwargs, options = KINDS[kind]
    options = options | {"compile": "on"}
    ways = ("none", "info")
    assert_same_policy(*[run(env_kwargs | {"way": way, "all_valid": True}, options) for way in ways])
    assert "not compiled" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_no_invalid_action_is_taken_in_training_and_evaluation(kind: str) -> None:
    env_kwargs, options = KINDS[kind]
    Maze.invalid_actions = 0
    result = run(env_kwargs, options)
    for deterministic in (True, False):
        evaluate(result.run_dir, episodes=4, deterministic=deterministic)
    assert Maze.invalid_actions == 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_a_masked_task_is_learned_without_an_invalid_action(algorithm: str) -> None:
    """The best valid choices are worth 16.6 of 20 on average; random valid ones 10."""
    Maze.invalid_actions = 0
    options: dict[str, Any] = {
        "num_steps": 128,
        "minibatch_size": 128,
        "learning_rate": 1e-3,
        "num_envs": 8,
        "gamma": 0.5,
    }
    if algorithm == "DQN":
        options = DQN | {"learning_rate": 1e-3, "num_envs": 8, "train_freq": 16, "gamma": 0.5, "iteration_steps": 5000}
    result = run({}, options, total=20_000 if algorithm == "DQN" else 30_000)
    done = evaluate(result.run_dir, episodes=50)
    assert Maze.invalid_actions == 0
    assert done.returns.mean > 15.8


@pytest.mark.parametrize("algorithm", ["PPO", pytest.param("DQN", marks=pytest.mark.slow)])
def test_the_three_ways_in_train_the_same_policy(algorithm: str) -> None:
    options = DQN if algorithm == "DQN" else {}
    first, *others = [run({"way": way}, options, total=256) for way in ("observation", "method", "info")]
    for other in others:
        assert same(first.policy.state_dict(), other.policy.state_dict())


def test_the_mask_is_no_input_unless_it_is_given_an_encoder() -> None:
    plain, fed = (run({}, options, total=128) for options in ({}, {"encoders": {"action_mask": {"use": "all"}}}))
    widths = [result.policy.actor_trunk.encoders.out_features for result in (plain, fed)]  # type: ignore[attr-defined, union-attr]
    assert widths == [3, 3 + 5]
    for result in (plain, fed):  # the mask has no statistics
        assert [tuple(m.mean.shape) for m in result.policy.normalizer.moments.values()] == [(3,)]  # type: ignore[operator, union-attr]


def test_the_first_line_says_that_actions_are_masked() -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": ENV}))
    trainer.close()
    assert "invalid actions masked" in trainer.source.text()


def test_a_loaded_policy_needs_the_mask() -> None:
    policy = load_policy(run({"kind": "multi_discrete", "way": "info"}, {}, total=128).run_dir)
    obs = np.array([1.0, 0.0, 0.0], np.float32)
    mask = np.array([0, 0, 1, 0, 1, 0, 0], bool)
    for given in (mask, mask.tolist(), (mask[:3], mask[3:])):
        assert policy.act(obs, action_mask=given).tolist() == [2, 1]
    assert policy.act({"obs": obs, "action_mask": mask}, deterministic=False).tolist() == [2, 1]
    batch = policy.act(np.stack([obs] * 4), action_mask=np.stack([mask] * 4), deterministic=False)
    assert batch.tolist() == [[2, 1]] * 4
    with pytest.raises(UsageError, match="give act\\(obs, action_mask=mask\\)"):
        policy.act(obs)
    with pytest.raises(UsageError, match="allows no action"):
        policy.act(obs, action_mask=np.array([1, 1, 1, 0, 0, 0, 0]))
    with pytest.raises(UsageError, match="shape"):
        policy.act(obs, action_mask=mask[:5])


def test_a_policy_without_masks_is_evaluated_on_an_env_with_masks() -> None:
    """Such as one that was trained before masks were supported."""
    result = run({"way": "none", "all_valid": True}, {}, total=128)
    assert len(evaluate(result.run_dir, env_kwargs={"way": "info"}, episodes=2).episodes) == 2


class Doors(TensorVecEnv):
    """Tensor env: the door of the last step is locked in the next, in every third step all are, if `broken`."""

    def __init__(self, *, broken: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.broken = broken
        box = spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({"obs": box, "action_mask": spaces.Box(0, 1, (3,), np.uint8)})
        self.action_space = spaces.Discrete(3)
        self.wrong = 0

    def _first(self) -> World:
        return {"locked": torch.zeros(self.num_envs, dtype=torch.int64)}

    def _next(self, world: World, action: torch.Tensor) -> tuple[World, torch.Tensor, torch.Tensor | None]:
        self.wrong += int((action == world["locked"]).sum())
        return {"locked": action}, torch.ones(self.num_envs), None

    def _observation(self, world: World) -> Obs:
        mask = (world["locked"][:, None] != torch.arange(3)).to(torch.uint8)
        if self.broken:
            mask = mask * (self.episode_length % 3 != 2)[:, None]
        return {"obs": world["locked"][:, None].float(), "action_mask": mask}


def collector(env: Doors) -> Collector:
    config = load_config(None, {"env": "CartPole-v1", "hidden_sizes": [8]})
    policy: Policy = make_policy(Spec.from_spaces(env.observation_space, env.action_space), config)
    return Collector(env, policy, num_steps=10, device=CPU, env_seed=0, seed=0)


def test_masks_of_envs_on_tensors_are_respected() -> None:
    env = Doors(num_envs=4)
    source = collector(env)
    source.collect()
    assert env.wrong == 0


def test_a_mask_of_a_tensor_env_that_allows_nothing_is_reported_with_its_env_and_step() -> None:
    with pytest.raises(EnvFailure, match=r"env 0 gave an action_mask that allows no action at global step 8 \(step 2 "):
        collector(Doors(num_envs=4, broken=True)).collect()


def test_a_hold_ends_in_a_tensor_env_when_the_action_becomes_invalid() -> None:
    env = Doors(num_envs=4)
    env.hold = Hold(3, 3, gamma=1.0)
    env.reset(0)
    step = env.step(torch.tensor([1, 2, 1, 2]))
    assert step.duration is not None and step.duration.tolist() == [1, 1, 1, 1] and env.wrong == 0


def test_checkpoints_keep_the_mask() -> None:
    result = run({}, {}, total=128)
    state = checkpoint.read(result.checkpoint, "training_state.pt")
    assert state["collector"]["obs"]["action_mask"].shape == (4, int(SPACES["discrete"].n))  # type: ignore[attr-defined]
