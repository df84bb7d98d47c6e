"""Runs with networks, policies, losses and algorithms of the user's own: trained, resumed, evaluated, exported."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from proxima import load_policy, train
from proxima.cli import main
from proxima.errors import UsageError
from proxima.evaluation.export import export
from proxima.runs import checkpoint
from proxima.runs.metrics import tag
from tests import probes
from tests.nets import own_nets
from tests.training.runs import SMALL, assert_same_end, metrics

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
HERE = "tests.nets.own_nets"
RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 4}
ENCODER = {"obs": {"network": own_nets.Net, "out": 6, "kwargs": {"width": 5}}}
DQN = {"algorithm": "DQN", "save_replay": True, "iteration_steps": 128, "buffer_size": 600, "learning_starts": 100}
CASES: dict[str, dict[str, Any]] = {
    "encoder": {"env": "CartPole-v1", "encoders": ENCODER},
    "encoder, gru": {"env": "CartPole-v1", "encoders": ENCODER, **RECURRENT},
    "encoder of images": {"env": "ProbePixels-v0", "encoders": {"obs": {"network": own_nets.Conv, "out": 6}}},
    "policy": {"env": "InvertedPendulum-v5", "policy": own_nets.Shared, "policy_kwargs": {"width": 6}},
    "recurrent policy": {"env": "CartPole-v1", "policy": own_nets.WithState, **RECURRENT},
    "dqn": {"env": "CartPole-v1", "policy": own_nets.Duelling, "encoders": ENCODER, **DQN},
    "loss": {"env": "CartPole-v1", "loss": own_nets.growing},
    "loss, dqn": {"env": "CartPole-v1", "loss": own_nets.growing, **DQN},
    "algorithm": {"env": "CartPole-v1", "algorithm": own_nets.CountingPPO},
}


@pytest.fixture(autouse=True)
def probe_envs() -> None:
    probes.register()


def whole_and_resumed(options: dict[str, Any]) -> tuple[Any, Any]:
    """A run, and its end once more, resumed after two iterations by the names in the checkpoint."""
    whole = train(**options, checkpoint_freq=1, keep_checkpoints="all")
    return whole, train(resume_from=checkpoint.list_checkpoints(whole.run_dir)[1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resume_ends_with_the_same_bits(case: str) -> None:
    options = SMALL | {"total_timesteps": 512} | CASES[case]
    whole, resumed = whole_and_resumed(options)
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    assert metrics(whole.run_dir)[2:] == metrics(resumed.run_dir)
    first = train(**options | {"total_timesteps": 1}).policy.state_dict()
    last = {name: x for name, x in resumed.policy.state_dict().items() if "normalizer" not in name}
    assert sum(not torch.equal(x, first[name]) for name, x in last.items()) > 3, "it did not learn"


@pytest.mark.slow
def test_encoder_and_loss_in_a_compiled_gru_are_resumed_and_exported(caplog: pytest.LogCaptureFixture) -> None:
    small = {
        "num_envs": 2,
        "num_steps": 8,
        "bptt_length": 2,
        "update_epochs": 1,
        "total_timesteps": 48,
    }  # compiles fast
    options = SMALL | CASES["encoder, gru"] | {"loss": own_nets.growing, "compile": "on"} | small
    whole, resumed = whole_and_resumed(options)
    assert "not compiled" not in caplog.text
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    policy = load_policy(resumed.run_dir)
    session = onnxruntime.InferenceSession(export(resumed.run_dir, format="onnx"), providers=["CPUExecutionProvider"])
    state = np.zeros((3, 8), np.float32)
    for step in range(4):
        obs = np.random.default_rng(step).normal(size=(3, 4)).astype(np.float32)
        action, state = session.run(None, {"obs": obs, "state": state})
        assert np.array_equal(action, policy.act(obs))
    assert policy._state is not None
    np.testing.assert_allclose(state, policy._state.numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["encoder of images", "policy", "dqn"])
def test_evaluation_and_export_act_like_the_policy(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(**SMALL | {"total_timesteps": 256} | CASES[case])
    policy = load_policy(run.run_dir)
    (key, spec), rng = next(iter(policy.spec.obs.items())), np.random.default_rng(0)
    is_image = spec.dtype == "uint8"
    obs = (rng.random((20, *spec.shape)) * (255 if is_image else 1)).astype(np.uint8 if is_image else np.float32)
    expected = policy.act(obs)
    session = onnxruntime.InferenceSession(export(run.run_dir, format="onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {key: obs})[0], expected, atol=1e-5)
    traced = torch.jit.load(export(run.run_dir, format="torchscript"))
    np.testing.assert_allclose(traced({key: torch.as_tensor(obs)}).numpy(), expected, atol=1e-5)
    assert main(["evaluate", str(run.run_dir), "--episodes", "2"]) == 0
    assert "return" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_an_export_for_one_batch_size_is_refused(format: str) -> None:
    encoders = {"obs": {"network": own_nets.OneBatchSize, "out": 6}}
    run = train(**SMALL, env="CartPole-v1", total_timesteps=128, encoders=encoders)
    with pytest.raises(UsageError, match=r"one batch size only.*len"):
        export(run.run_dir, format=format)
    assert not list(run.run_dir.glob("*.onnx")) and not list(run.run_dir.glob("*.pt"))


def test_names_in_a_file_and_in_flags_are_the_same_run(tmp_path: Path) -> None:
    options = SMALL | {"env": "CartPole-v1", "total_timesteps": 128}
    file = tmp_path / "own.yaml"
    file.write_text(
        f'encoders: {{obs: {{network: "{HERE}:Net", out: 6, kwargs: {{width: 5}}}}}}\nloss: {HERE}:growing\n'
        f"policy: {HERE}:Doubled\nalgorithm: {HERE}:CountingPPO\n"
    )
    named = train(file, **options)
    given = {"encoders": ENCODER, "loss": own_nets.growing, "policy": own_nets.Doubled}
    objects = train(**options, **given, algorithm=own_nets.CountingPPO)
    assert_same_end(named.checkpoint, objects.checkpoint)
    (row,) = metrics(named.run_dir)
    assert row["samples"] == 32.0 and row["twice"] == 256.0 and {"extra_loss", "size"} <= row.keys()
    assert [tag(name) for name in ("extra_loss", "size")] == ["losses/extra_loss", "update/size"]  # in TensorBoard


def test_metrics_of_a_loss_have_names_of_their_own() -> None:
    with pytest.raises(UsageError, match="named_like_ours returns 'episode_return', which is a metric already"):
        train(**SMALL, env="CartPole-v1", total_timesteps=128, loss=own_nets.named_like_ours)


def test_an_algorithm_of_ones_own_is_a_subclass() -> None:
    for name, message in {f"{HERE}:Net": "not a subclass of ours", f"{HERE}:Nothing": "has no Nothing"}.items():
        with pytest.raises(UsageError, match=message):
            train(**SMALL, env="CartPole-v1", total_timesteps=128, algorithm=name)


def test_a_network_that_is_gone_is_named_when_its_checkpoint_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(**SMALL, env="CartPole-v1", total_timesteps=128, encoders=ENCODER)
    monkeypatch.delattr(own_nets, "Net")
    monkeypatch.setattr("proxima.own_parts._given", {})
    with pytest.raises(UsageError, match=r"encoders: obs: network is 'tests.nets.own_nets:Net': .* has no Net"):
        load_policy(run.run_dir)
