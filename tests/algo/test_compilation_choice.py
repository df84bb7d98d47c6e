"""When `--compile auto` compiles the learner: long runs, and shorter ones whose code is in the cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, Dict

from proxima.algo import learner as module
from proxima.algo.ppo import PPOLearner
from proxima.config import load_config
from proxima.nets.policy import make_policy
from proxima.nets.spec import Spec

SPEC = Spec.from_spaces(Dict({"obs": Box(-1, 1, (3,))}), Box(-1, 1, (2,)))


def compiles(num_updates: int, **options: Any) -> bool:
    """Of a run with this many optimizer steps: iterations of one minibatch and one epoch."""
    config = load_config(None, {"num_envs": 8, "num_steps": 8, "minibatch_size": 64, "update_epochs": 1, **options})
    policy = make_policy(SPEC, config)
    learner = PPOLearner(policy, config, device=torch.device("cpu"), seed=0, num_iterations=num_updates)
    return learner.epochs.compiled


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "compiled_note", lambda *settings: tmp_path / "cache" / "note")
    return tmp_path / "cache" / "note"


def test_a_short_run_compiles_only_what_is_in_the_cache(note: Path) -> None:
    assert [compiles(n) for n in (7_999, 10_000, 20_000)] == [False, False, True]
    module.write_note(note)
    assert [compiles(n) for n in (7_999, 10_000, 20_000)] == [False, True, True]


def test_recurrent_learners_take_as_long_from_the_cache(note: Path) -> None:
    module.write_note(note)
    recurrent = {"rnn": "gru", "rnn_size": 4, "bptt_length": 4, "minibatch_size": 16}
    assert [compiles(n, **recurrent) for n in (10_000, 39_999, 40_000)] == [False, False, True]


@pytest.mark.parametrize(("wish", "expected"), [("on", True), ("off", False)])
def test_a_wish_is_followed(wish: str, expected: bool, note: Path) -> None:
    module.write_note(note)
    assert compiles(1, compile=wish) is expected and compiles(100_000, compile=wish) is expected


def test_the_note_depends_on_what_is_compiled_and_is_written_after_the_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    from proxima.compiling import compiled_note

    one, same, other = compiled_note("a", 1), compiled_note("a", 1), compiled_note("a", 2)
    assert one == same != other and one.is_relative_to(tmp_path)
    assert not one.exists()
    module.write_note(one)
    assert one.exists()
