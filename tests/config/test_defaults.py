"""Defaults that suit an env: by kind and size, and never in place of a value that somebody gave."""

from typing import Any

import pytest

from proxima.config import Config, Traits, load_config, settle
from proxima.errors import UsageError

VECTOR = Traits(discrete=False, images=False, time_limit=1000)


def settled(traits: Traits = VECTOR, **options: Any) -> tuple[Config, list[str]]:
    config = load_config(None, options)
    _, notices = settle(config, traits)
    return config, notices


@pytest.mark.parametrize(("num_envs", "num_steps"), [(1, 2048), (8, 256), (64, 32), (256, 16), (4096, 24)])
def test_a_rollout_has_about_2048_samples_but_never_short_episodes_only(num_envs: int, num_steps: int) -> None:
    assert settled(num_envs=num_envs)[0].ppo.num_steps == num_steps


@pytest.mark.parametrize(
    ("time_limit", "gamma"), [(None, 0.99), (50, 0.95), (200, 0.95), (500, 0.98), (1000, 0.99), (27_000, 0.99)]
)
def test_the_horizon_follows_the_time_limit(time_limit: int | None, gamma: float) -> None:
    config, _ = settled(Traits(discrete=True, images=False, time_limit=time_limit))
    assert config.algorithm.gamma == pytest.approx(gamma)


def test_kinds_of_envs_have_their_own_settings() -> None:
    assert settled()[0].ppo.entropy_coef == 0.0
    assert settled(Traits(discrete=True, images=False, time_limit=500))[0].ppo.entropy_coef == 0.01
    pixels, _ = settled(Traits(discrete=True, images=True, time_limit=None))
    assert (pixels.ppo.num_steps, pixels.ppo.update_epochs, pixels.algorithm.minibatch_size) == (128, 4, 256)
    assert pixels.policy.hidden_sizes == [] and pixels.policy.cnn_features == 512
    dqn, _ = settled(Traits(discrete=True, images=False, time_limit=500), algorithm="DQN")
    assert dqn.dqn.learning_starts == 1000 and dqn.policy.hidden_sizes == [128, 128]


def test_recurrent_minibatches_are_counted_in_sequences() -> None:
    config, _ = settled(rnn="gru", bptt_length=32)
    assert config.algorithm.minibatch_size * config.sequence_length == 256


def test_massively_parallel_envs_have_four_minibatches() -> None:
    config, _ = settled(num_envs=4096)
    assert (config.num_minibatches, config.ppo.update_epochs) == (4, 5)


def test_what_was_given_stays_even_at_the_default_value() -> None:
    config, _ = settled(
        Traits(discrete=True, images=True, time_limit=200), gamma=0.99, num_steps=256, hidden_sizes=[64, 64]
    )
    assert (config.algorithm.gamma, config.ppo.num_steps, config.policy.hidden_sizes) == (0.99, 256, [64, 64])


def test_what_was_set_in_python_stays() -> None:
    config = Config()
    config.ppo.num_steps, config.algorithm.gamma = 7, 0.5
    settle(config, Traits(discrete=True, images=False, time_limit=200))
    assert (config.ppo.num_steps, config.algorithm.gamma) == (7, 0.5)


def test_a_minibatch_larger_than_the_rollout_is_the_rollout() -> None:
    config, notices = settled(minibatch_size=20_000)
    assert config.algorithm.minibatch_size == 2048
    (notice,) = notices
    assert notice.startswith(
        "minibatch_size is 20000, but a rollout has only 2048 samples (num_envs 8 x num_steps 256)"
    )


@pytest.mark.parametrize("sizes", [{"num_steps": 64}, {"num_envs": 2, "num_steps": 4}])
def test_a_contradiction_on_one_command_line_is_an_error(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="minibatch_size is 20000, but a rollout has only"):
        settled(minibatch_size=20_000, **sizes)


def test_a_preset_and_a_flag_do_not_contradict_each_other() -> None:
    config, notices = settled(preset="halfcheetah", num_envs=1)
    assert config.algorithm.minibatch_size == 32 and "all of them are one minibatch" in notices[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_accumulation": 33}, "an epoch has only 32 minibatches"),
        ({"algorithm": "DQN", "learning_starts": 200_000}, "never has more than 49984"),
        ({"algorithm": "DQN", "rnn": "gru"}, "DQN has no recurrent policy"),
        ({"algorithm": "DQN", "buffer_size": 1001, "learning_starts": 1001, "return_steps": 1}, "more than 1000"),
        ({"algorithm": "DQN", "buffer_size": 800, "learning_starts": 800, "return_steps": 3}, "more than 784"),
        ({"algorithm": "DQN", "lr_schedule": "adaptive"}, "no KL"),
        (
            {"rnn": "gru", "num_steps": 24, "num_envs": 8, "minibatch_size": 9},
            r"only 8 sequences \(num_envs 8 x num_steps 24, cut into",
        ),
    ],
)
def test_contradictions_within_an_algorithm_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settled(**options)


def test_a_rollout_that_does_not_divide_is_announced() -> None:
    _, notices = settled(num_envs=1, num_steps=100)
    assert notices == ["100 samples cannot be divided evenly into minibatches of 64: each epoch has 2 of at most 50."]
