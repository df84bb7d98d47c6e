"""Symmetry in a run: on the quadruped, resumed, and refused at the start."""

from pathlib import Path
from typing import Any

import pytest
import torch

from proxima import train
from proxima.config import load_config
from proxima.errors import UsageError
from tests.training.runs import FILES, SMALL, metrics, same

RUN = SMALL | {
    "env": "proxima/Quadruped-v0",
    "env_kwargs": {"ground": {"kind": "plane"}},
    "max_episode_steps": 20,
    "num_steps": 12,
    "lr_schedule": "constant",
    "rnn": "gru",
    "rnn_size": 8,
    "hidden_sizes": [8],
    "bptt_length": 5,
    "minibatch_size": 6,
    "encoders": {"scandots": {"widths": [8]}},
}


def loaded(folder: Path, name: str) -> Any:
    return torch.load(folder / name, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("symmetry", ["augment", "loss"])
def test_a_resume_with_a_gru_is_exact(symmetry: str) -> None:
    whole = train(**RUN, symmetry=symmetry, total_timesteps=192)
    first = train(**RUN, symmetry=symmetry, total_timesteps=96)
    second = train(resume_from=first.run_dir, total_timesteps=192)
    for name in FILES:
        assert same(loaded(whole.checkpoint, name), loaded(second.checkpoint, name)), name
    assert bool(loaded(whole.checkpoint, "training_state.pt")["learner"]["mirrored_state"]["state"].any())
    assert [row["symmetry_loss"] for row in metrics(whole.run_dir)[2:]] == [
        row["symmetry_loss"] for row in metrics(second.run_dir)
    ]


def test_an_env_without_a_mirror_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"symmetry is augment, but Pendulum-v1 has no mirror .* use symmetry none"):
        train(**SMALL, env="Pendulum-v1", symmetry="augment", total_timesteps=96)


def test_a_weight_without_the_loss_is_noticed() -> None:
    config = load_config(None, {"symmetry": "augment", "symmetry_coef": 2.0})
    assert any("symmetry_coef has no effect with symmetry augment" in notice for notice in config.validate_algorithm())
    config = load_config(None, {"symmetry": "loss", "symmetry_coef": 2.0})
    assert not config.validate_algorithm()
