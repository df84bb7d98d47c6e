"""Rollouts that are recorded as CUDA graphs are those that are taken step by step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from proxima.config import load_config
from proxima.training import collector
from proxima.training.endings import EndingBuffer
from proxima.training.trainer import Trainer
from tests.envs.synthetic_quadruped import SYNTHETIC

STEPS = 24
OPTIONS = {
    "rnn": "gru",
    "rnn_size": 16,
    "num_envs": 8,
    "num_steps": STEPS,
    "bptt_length": 8,
    "minibatch_size": 4,
    "max_episode_steps": 10,
    "save_checkpoint": False,
    "compile": "off",
}
ENVS: dict[str, dict[str, Any]] = {
    "tensors": {"env": SYNTHETIC},
    "quadruped": {"env": "proxima/Quadruped-v0", "env_kwargs": {"ground": {"curriculum": "success", "episodes": 5}}},
}


def rollouts(trainer: Trainer, *, recorded: bool) -> list[Any]:
    found = []
    for _ in range(4):
        trainer.source._rehearsed = trainer.source._rehearsed and recorded
        rollout = trainer.source.collect()
        found += [x.clone() for x in (rollout.reward, rollout.terminated, rollout.truncated, *rollout.obs.values())]
        found += [rollout.final_time, rollout.state.clone(), torch.tensor(trainer.source.episodes.returns)]
    return found


class TakenAtOnce:
    """Stands in for the tape where there is no GPU: what is recorded is done at once, and a replay does nothing."""

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        yield

    def replay(self) -> None:
        return


@pytest.mark.parametrize("name", ENVS)
def test_the_last_state_of_a_recorded_rollout_is_the_first_of_the_next(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "Tape", TakenAtOnce)
    found = []
    for recorded in (False, True):
        trainer = Trainer(load_config(None, OPTIONS | ENVS[name]))
        source, env = trainer.source, trainer.source.env
        env._on_cpu, env._clock = False, torch.zeros((), dtype=torch.int64) + env._clock
        source._ending_buffer = EndingBuffer(STEPS)
        take = source._record_steps

        def again(*args: Any, source: Any = source, take: Any = take) -> Any:
            tape = take(*args)
            source._tape = None  # so that the next rollout is recorded, that is, taken, too
            return tape

        monkeypatch.setattr(source, "_run_steps", lambda s=source, t=again: _record_always(s, t))
        found.append(rollouts(trainer, recorded=recorded))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def _record_always(source: Any, record: Any) -> None:
    if source._rehearsed:
        env = source.env
        before = {name: x for name, x in vars(env).items() if isinstance(x, torch.Tensor)}
        record(env, env.tensors())
        carried = {id(x) for x in env.tensors().values()}
        for name, x in before.items():  # a recording begins again with what it does not carry over
            if id(getattr(env, name)) not in carried:
                setattr(env, name, x)
    else:
        source._take_steps()
        source._rehearsed = True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replayed_rollout_is_the_one_that_is_taken_step_by_step() -> None:
    found = []
    for recorded in (False, True):
        trainer = Trainer(load_config(None, OPTIONS | ENVS["tensors"] | {"device": "cuda"}))
        found.append(rollouts(trainer, recorded=recorded))
        assert (trainer.source._tape is not None) == recorded
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_envs_whose_steps_cannot_be_recorded_say_so() -> None:
    trainer = Trainer(load_config(None, OPTIONS | ENVS["tensors"]))
    assert trainer.source.env.tensors() is None  # on the CPU
    trainer.source.env._on_cpu = False
    assert trainer.source.env.tensors() is not None
    held = Trainer(load_config(None, OPTIONS | ENVS["tensors"] | {"action_hold_seconds": 0.04}))
    held.source.env._on_cpu = False
    assert held.source.env.tensors() is None
