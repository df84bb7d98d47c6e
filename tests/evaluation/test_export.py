"""An exported file acts like the policy, for every kind of observation and action."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from proxima import load_policy, train
from proxima.cli import main
from proxima.config import load_config
from proxima.errors import UsageError
from proxima.evaluation.export import export, signature
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import Spec
from proxima.runs import checkpoint

Arrays = dict[str, NDArray]
VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float64)
IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
CASES: dict[str, tuple[dict[str, spaces.Box], spaces.Space, dict[str, Any]]] = {
    "gaussian": ({"obs": VECTOR}, spaces.Box(-2.0, 3.0, (2,)), {"std_mode": "state"}),
    "gaussian without bounds": (
        {"obs": spaces.Box(-1.0, 1.0, (2, 3))},
        spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        {"normalize_obs": False, "activation": "relu"},
    ),
    "tanh_gaussian": (
        {"obs": VECTOR},
        spaces.Box(-0.7, 0.1, (3,), np.float64),
        {"distribution": "tanh_gaussian", "share_trunk": "on", "activation": "gelu"},
    ),
    "beta": ({"obs": VECTOR}, spaces.Box(-2.0, 3.0, ()), {"distribution": "beta", "activation": "elu"}),
    "whole numbers": ({"obs": VECTOR}, spaces.Box(-3, 9, (2,), np.int16), {"activation": "silu"}),
    "multi_discrete": ({"obs": VECTOR}, spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[1, 0], [-5, 2]]), {}),
    "discrete, of an image with channels last": ({"obs": IMAGE}, spaces.Discrete(4, start=-3), {}),
    "multi_binary, of an image with channels first": (
        {"obs": spaces.Box(0, 255, (2, 36, 40), np.uint8)},
        spaces.MultiBinary((2, 2)),
        {"share_trunk": "off"},
    ),
    "depth, with an encoder of its own": (
        {"depth": spaces.Box(0.0, 1.0, (1, 29, 43)), "state": VECTOR},
        spaces.Box(-1.0, 1.0, (2,)),
        {
            "encoders": {
                "depth": {"kernels": [5, 3], "strides": [1, 2], "channels": [4, 8], "pool": 2, "activation": "tanh"}
            }
        },
    ),
    # Names that the exporter gives to parts of the graph, and that of the output.
    "dictionary": (
        {
            "tanh": VECTOR,
            "camera/left": IMAGE,
            "action": spaces.Box(0, 9, (3,), np.uint8),
            "depth": spaces.Box(0.0, 1.0, (9, 9, 1)),
        },
        spaces.Box(-1.0, 1.0, (2,)),
        {},
    ),
}


def save(folder: Path, obs: dict[str, spaces.Box], action: spaces.Space, options: dict[str, Any]) -> Path:
    """A checkpoint of an untrained policy, with normaliser statistics and large action weights."""
    config = load_config(None, {"hidden_sizes": [8], "cnn_features": 8, **options})
    spec = Spec.from_spaces(spaces.Dict(obs), action)
    torch.manual_seed(0)
    policy = ActorCritic(spec, config.policy, config.normalize)
    policy.normalizer.update({key: torch.as_tensor(x).float() for key, x in observations(spec, 64).items()})
    with torch.no_grad():
        policy.action_head.linear.weight *= 60.0
    metadata = {"config": config.to_dict(), "spec": spec.to_dict(), "iteration": 1, "global_step": 0, "lineage": []}
    return checkpoint.save(folder, name="tiny", iteration=1, files={"agent.pt": policy.state_dict()}, metadata=metadata)


def observations(spec: Spec, count: int) -> Arrays:
    rng = np.random.default_rng(count)
    return {
        key: rng.integers(0, 256, (count, *o.shape), np.uint8)
        if o.dtype == "uint8"
        else rng.normal(1.0, 3.0, (count, *o.shape)).astype(np.float32)
        for key, o in spec.obs.items()
    }


def in_onnxruntime(file: Path) -> Callable[[Arrays], NDArray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda obs: session.run(None, obs)[0]


def in_torchscript(file: Path) -> Callable[[Arrays], NDArray]:
    module = torch.jit.load(file)
    return lambda obs: module({key: torch.as_tensor(x) for key, x in obs.items()}).numpy()


pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
RUNTIMES = {"onnx": in_onnxruntime, "torchscript": in_torchscript}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save(tmp_path, *CASES["gaussian"])


@pytest.mark.slow
@pytest.mark.parametrize("format", RUNTIMES)
@pytest.mark.parametrize("case", CASES)
def test_the_same_actions_for_a_thousand_observations(case: str, format: str, tmp_path: Path) -> None:
    folder = save(tmp_path, *CASES[case])
    policy, act = load_policy(folder), RUNTIMES[format](export(folder, format=format))
    for count in (1, 3, 1000):
        obs = observations(policy.spec, count)
        expected, actions = policy.act(obs), act(obs)
        assert actions.dtype == expected.dtype and actions.shape == expected.shape
        np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    assert all(len(np.unique(column)) > 1 for column in expected.reshape(1000, -1).T), "a test of constants"


@pytest.mark.slow
@pytest.mark.parametrize(("format", "suffix"), [("onnx", ".onnx"), ("torchscript", ".pt")])
def test_the_command_exports_a_real_run_quietly(
    format: str, suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16, "total_timesteps": 64}
    run = train(env="CartPole-v1", compile="off", progress=False, tensorboard=False, **sizes)
    capfd.readouterr()
    assert main(["export", str(run.run_dir), "--format", format]) == 0
    file = Path(f"{run.checkpoint}{suffix}")
    expected = [f"exported  {file}", "input     obs     float32  [batch, 4]", "output    action  int64    [batch]"]
    shown, chatter = capfd.readouterr()
    assert shown.splitlines() == expected and not chatter
    obs = observations(load_policy(run.run_dir).spec, 50)
    assert np.array_equal(RUNTIMES[format](file)(obs), load_policy(run.run_dir).act(obs))
    assert checkpoint.find(run.run_dir) == run.checkpoint, "the file is not taken for a checkpoint"
    if format == "onnx":
        session = onnxruntime.InferenceSession(file)
        described = [(x.name, x.shape, x.type) for x in (*session.get_inputs(), *session.get_outputs())]
        assert described == [("obs", ["batch", 4], "tensor(float)"), ("action", ["batch"], "tensor(int64)")]
        assert str(Path(torch.__file__).parent).encode() not in file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("format", RUNTIMES)
@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_the_recurrent_state_goes_in_and_out(rnn: str, format: str, tmp_path: Path) -> None:
    obs = {"state": VECTOR, "mass": spaces.Box(0.0, 1.0, (2,))}  # a key with the default name of the state
    options = {"rnn": rnn, "rnn_size": 6, "rnn_layers": 2, "share_trunk": "off"}
    options |= {"encoders": {"state": {"widths": [8]}, "mass": {"use": "critic"}}}
    folder = save(tmp_path, obs, spaces.Box(-2.0, 3.0, (2,)), options)
    policy, file = load_policy(folder), export(folder, format=format)
    size = 24 if rnn == "lstm" else 12
    shown = [line.split() for line in signature(folder).splitlines()]
    assert [(row[0], row[1]) for row in shown] == [
        ("input", "state"),
        ("input", "state_"),
        ("output", "action"),
        ("output", "next_state"),
    ]
    for count in (1, 50):
        state = np.zeros((count, size), np.float32)
        policy.reset()
        for step in range(5):
            seen = {"state": np.random.default_rng(step).normal(size=(count, 5)).astype(np.float32)}
            if format == "onnx":
                session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
                action, state = session.run(None, {**seen, "state_": state})
            else:
                action, after = torch.jit.load(file)({"state": torch.tensor(seen["state"])}, torch.tensor(state))
                action, state = action.numpy(), after.numpy()
            np.testing.assert_allclose(action, policy.act(seen), rtol=0, atol=1e-5)
        assert state.shape == (count, size) and state.any()


def test_bad_input_is_one_line(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(message: str, path: Path = tiny, **arguments: Any) -> None:
        with pytest.raises(UsageError, match=message) as error:
            export(path, **{"format": "torchscript", **arguments})
        assert "\n" not in str(error.value)

    (tmp_path / "empty").mkdir()
    refuses("format is 'onyx', but it must be one of onnx, torchscript", format="onyx")
    refuses("nowhere does not exist", tmp_path / "nowhere")
    refuses("holds no complete checkpoint", tmp_path / "empty")
    refuses("empty is a folder, and only a regular file is replaced: choose another name", out=tmp_path / "empty")
    refuses(
        r"cannot write .* \(No such file or directory\): choose another place", out=tmp_path / "nowhere" / "policy.pt"
    )
    refuses("cannot write .*File name too long", out=tmp_path / ("x" * 300))
    refuses("cannot write .*Not a directory", out=tiny / "agent.pt" / "policy.pt")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refuses(r'onnx needs the package onnxscript: pip install "proxima-rl\[export\]"', format="onnx")
    assert {path.name for path in tmp_path.iterdir()} == {tiny.name, "empty"}


def test_a_failed_export_leaves_what_was_there(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "policy.pt"
    target.write_text("the old one")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        export(tiny, format="torchscript", out=target)
    assert target.read_text() == "the old one" and not list(tmp_path.glob(".*"))


def test_only_a_regular_file_is_replaced(tiny: Path, tmp_path: Path) -> None:
    precious, places = tmp_path / "precious", [tmp_path / name for name in ("link", "dangling", "fifo", "socket")]
    precious.write_text("kept")
    places[0].symlink_to(precious)
    places[1].symlink_to(tmp_path / "nowhere")
    os.mkfifo(places[2])
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(places[3]))
    modes = [path.lstat().st_mode for path in places]
    for place in places:
        with pytest.raises(
            UsageError, match=r"is (a symbolic link|a special file), and only a regular file is replaced"
        ) as error:
            export(tiny, format="torchscript", out=place)
        assert "\n" not in str(error.value)
    assert precious.read_text() == "kept" and [path.lstat().st_mode for path in places] == modes
    assert export(tiny, format="torchscript", out=precious) == precious and torch.jit.load(precious)


def test_a_file_that_another_program_left_is_not_written_through(tiny: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / ".policy.pt.tmp").symlink_to(precious)
    export(tiny, format="torchscript", out=tmp_path / "policy.pt")
    assert precious.read_text() == "kept"


def test_an_unknown_format_is_one_line_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run", "--format", "onyx"]) == 2
    error = capsys.readouterr().err
    assert "invalid choice: 'onyx'" in error and error.count("\n") == 1
