"""Acting compiled ahead of time against the policy itself."""

from pathlib import Path
from typing import Any

import pytest
import torch

from proxima.algo.adam import FlatParameters
from proxima.config import load_config
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import ActionSpec, ObsSpec, Spec
from proxima.training import actor as actor_module
from proxima.training import collector as collector_module
from proxima.training.actor import Actor, cache_key, compile_actor
from proxima.training.trainer import Trainer

BOX = ActionSpec("box", (2,), (-1.0, -3.0), (1.0, 5.0))
VECTOR = {"obs": ObsSpec((5,), "float64")}
TWO = {"image": ObsSpec((12, 12, 3), "uint8"), "state": ObsSpec((4,), "float32")}
CASES: dict[str, tuple[dict[str, ObsSpec], ActionSpec, dict[str, Any]]] = {
    "gaussian": (VECTOR, BOX, {}),
    "fixed std": (VECTOR, BOX, {"std_mode": "fixed", "share_trunk": "on"}),
    "state std, tanh": (VECTOR, BOX, {"std_mode": "state", "distribution": "tanh_gaussian"}),
    "beta": (VECTOR, BOX, {"distribution": "beta"}),
    "multi_binary": (VECTOR, ActionSpec("multi_binary", (3,)), {}),
    "images and more": (TWO, ActionSpec("multi_discrete", (3, 2)), {}),
    "depth, pooled, gru": (
        {"depth": ObsSpec((1, 20, 24), "float32"), "state": ObsSpec((4,), "float32")},
        BOX,
        {
            "rnn": "gru",
            "rnn_size": 8,
            "encoders": {"depth": {"kernels": [5, 3], "strides": [1, 1], "channels": [4, 8], "pool": 2}},
        },
    ),
    "gru": (VECTOR, BOX, {"rnn": "gru", "rnn_size": 8}),
    "two lstms, discrete": (
        VECTOR,
        ActionSpec("discrete", (4,)),
        {"rnn": "lstm", "rnn_size": 8, "rnn_layers": 2, "share_trunk": "off"},
    ),
}


def make(obs: dict[str, ObsSpec], action: ActionSpec, options: dict[str, Any]) -> tuple[Actor, FlatParameters, tuple]:
    """An actor, its weights, and what it is called with."""
    config = load_config(None, options)
    torch.manual_seed(0)
    policy = ActorCritic(Spec(obs, action), config.policy, config.normalize)
    policy.normalizer.update({key: torch.randn(64, *o.shape) * 3 + 1 for key, o in obs.items() if o.dtype != "uint8"})
    seen = tuple(
        torch.randint(0, 256, (3, *o.shape), dtype=torch.uint8)
        if o.dtype == "uint8"
        else torch.randn(3, *o.shape, dtype=getattr(torch, o.dtype))
        for o in obs.values()
    )
    stored = tuple(torch.zeros(x.shape, dtype=torch.uint8 if x.dtype == torch.uint8 else torch.float32) for x in seen)
    raw = policy.act(dict(zip(obs, stored, strict=True)))[0]
    state = (torch.randn(3, policy.state_size),) if policy.state_size else ()
    arguments = (seen, torch.randn(3, policy.noise_size), stored, torch.zeros_like(raw), state)
    return Actor(policy, torch.device("cpu")), FlatParameters(policy), arguments


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_compiled_acts_and_stores_as_the_policy_does(case: str) -> None:
    actor, flat, (seen, noise, obs, action, state) = make(*CASES[case])
    compiled = compile_actor(actor, flat, seen, noise, obs, action, state)
    other = tuple(x.clone() for x in state)
    with torch.no_grad():
        for _ in range(2):
            found = compiled(seen, noise, obs, action, state)
            for stored, x in zip(obs, seen, strict=True):
                assert torch.equal(stored, x.to(stored.dtype))
            found_raw = action.clone()
            expected = actor(seen, noise, obs, action, other)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(state, other, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found_raw, action, rtol=1e-4, atol=1e-5)
            # It must follow the learner's steps and the normaliser, which change in place.
            flat.vector.mul_(1.5)
            actor.policy.normalizer.update(
                {key: 9 * torch.randn(64, *x.shape[1:]) for key, x in zip(actor.keys, obs, strict=True)}
            )


@pytest.mark.slow
def test_an_observation_in_another_form_is_understood() -> None:
    actor, flat, (seen, noise, obs, action, state) = make(*CASES["gaussian"])
    compiled = compile_actor(actor, flat, seen, noise, obs, action, state)
    with torch.no_grad():
        expected = compiled(seen, noise, obs, action, state).clone()
        for other in (seen[0].float().double().t().contiguous().t(), seen[0].to(torch.float32)):
            found = compiled((other,), noise, obs, action, state)
            torch.testing.assert_close(obs[0], seen[0].float())
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_the_code_depends_on_is_in_the_key() -> None:
    keys = set()
    cases = [{}, {"activation": "relu"}, {"clip_obs": 3.0}, {"distribution": "tanh_gaussian"}, {"min_std": 0.9}]
    for options in cases:
        found: list[str] = []
        actor, flat, arguments = make(VECTOR, BOX, options)

        def only_key(module: Any, inputs: list[torch.Tensor], found: list[str] = found) -> Any:
            found.append(cache_key(torch.export.export(module, tuple(inputs)), inputs))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(actor_module, "_compile", only_key)
            compile_actor(actor, flat, *arguments)
        keys.update(found)
    assert len(keys) == len(cases)


@pytest.mark.slow
def test_a_damaged_package_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    actor, flat, arguments = make(*CASES["gaussian"])
    compile_actor(actor, flat, *arguments)
    (package,) = (tmp_path / "proxima").glob("*.pt2")
    package.write_bytes(package.read_bytes()[:1000])
    compiled = compile_actor(actor, flat, *arguments)
    with torch.no_grad():
        found = compiled(*arguments)
        torch.testing.assert_close(found, actor(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("error", [RuntimeError("no such op\nmore"), OSError("no room")])
def test_without_a_compiler_the_run_goes_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(collector_module, "compile_actor", broken)
    options = {"env": "InvertedPendulum-v5", "num_envs": 2, "num_steps": 8, "minibatch_size": 8, "compile": "on"}
    trainer = Trainer(load_config(None, options))
    # Where nothing can be compiled the learner does not try; where only this could not, it does.
    tried: list[bool] = []
    epochs = trainer.algorithm.learner.epochs
    monkeypatch.setattr(epochs, "_compile", lambda _function: tried.append(True) or epochs._eager)
    trainer.iterate()
    trainer.close()
    assert tried == ([] if isinstance(error, OSError) else [True])
    assert [r.message for r in caplog.records] == [
        f"The policy is not compiled ({str(error).splitlines()[0]}): the run continues, but slower."
    ]
