"""Acting compiled ahead of time against the policy itself."""

from typing import Any

import pytest
import torch

from proxima.algo.flat import FlatParameters
from proxima.config import load_config
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import ActionSpec, ObsSpec, Spec
from proxima.training import actor as actor_module
from proxima.training.actor import Actor, compile_actor, make_record

BOX = ActionSpec("box", (2,), (-1.0, -3.0), (1.0, 5.0))
VECTOR = {"obs": ObsSpec((5,), "float64")}
TWO = {"image": ObsSpec((12, 12, 3), "uint8"), "state": ObsSpec((4,), "float32")}
CASES: dict[str, tuple[dict[str, ObsSpec], ActionSpec, dict[str, Any]]] = {
    "gaussian": (VECTOR, BOX, {}),
    "fixed std": (VECTOR, BOX, {"std_mode": "fixed", "share_trunk": "on"}),
    "beta": (VECTOR, BOX, {"distribution": "beta"}),
    "images and more": (TWO, ActionSpec("multi_discrete", (3, 2)), {}),
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
    raw, _ = policy.act(dict(zip(obs, stored, strict=True)))
    arguments = (seen, torch.randn(3, policy.noise_size), stored, torch.zeros_like(raw))
    return Actor(policy, torch.device("cpu")), FlatParameters(policy), arguments


@pytest.mark.parametrize("case", CASES)
def test_compiled_acts_and_stores_as_the_policy_does(case: str) -> None:
    actor, flat, (seen, noise, obs, action) = make(*CASES[case])
    compiled = compile_actor(actor, flat, seen, noise, obs, action)
    with torch.no_grad():
        for _ in range(2):
            found = compiled(seen, noise, obs, action)
            for stored, x in zip(obs, seen, strict=True):
                assert torch.equal(stored, x.to(stored.dtype))
            found_raw = action.clone()
            expected = actor(seen, noise, obs, action)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found_raw, action, rtol=1e-4, atol=1e-5)
            # It must follow the learner's steps and the normaliser, which change in place.
            flat.vector.mul_(1.5)
            actor.policy.normalizer.update(
                {key: 9 * torch.randn(64, *x.shape[1:]) for key, x in zip(actor.keys, obs, strict=True)}
            )


def test_without_a_compiler_acting_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no working C++ compiler found\nmore")

    actor, flat, arguments = make(*CASES["gaussian"])
    monkeypatch.setattr(actor_module, "_compile", broken)
    assert make_record(actor, flat, *arguments) is actor
    assert "not compiled (no working C++ compiler found)" in caplog.text
