"""Untrusted checkpoints: a policy that works, or a one-line error."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxima import load_policy, train
from proxima.cli import main
from proxima.errors import ProximaError, UsageError
from proxima.evaluation.episodes import evaluate
from proxima.evaluation.export import export, signature
from proxima.evaluation.restored import restore_policy
from proxima.runs import checkpoint
from proxima.training.resume import resumed_config
from tests.resealed import mutations, reseal, tiny

RECURRENT = {"rnn": "gru", "rnn_size": 4, "share_trunk": "off"}


def acts(folder: Path) -> None:
    """Load the policy and act on zeros, deterministic and sampled."""
    policy = load_policy(folder)
    obs = {key: np.zeros(o.shape, o.dtype) for key, o in policy.spec.obs.items()}
    for deterministic in (True, False):
        action = policy.act(obs, deterministic=deterministic)
        assert action.shape == policy.spec.action.shape and np.isfinite(action).all()


def works_or_is_refused(use: Callable[[Path], Any], folder: Path, what: str) -> bool:
    try:
        use(folder)
    except ProximaError as error:
        assert "\n" not in str(error), what
        return False
    except BaseException as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("env", "options"), [("CartPole-v1", {}), ("Pendulum-v1", RECURRENT)])
def test_any_metadata_gives_a_policy_that_works_or_one_line(env: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run", env, **options)
    document = checkpoint.read_metadata(folder)
    changed = random.Random(0).sample(list(mutations(document)), 300)
    worked = [works_or_is_refused(acts, reseal(folder, other), what) for what, other in changed]
    assert 40 < sum(worked) < 250
    reseal(folder, document)
    acts(folder)


def broken_states(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    nan = {name: torch.full_like(x, torch.nan) for name, x in state.items()}
    states: dict[str, Any] = {
        "a list": list(state.values()),
        "a tensor": torch.zeros(3),
        "empty": {},
        "numbers": 5,
        "one more": state | {"extra": torch.zeros(2)},
        "a key that is no name": state | {7: torch.zeros(2)},
    }
    for name, x in state.items():
        states |= {
            f"without {name}": {key: value for key, value in state.items() if key != name},
            f"{name} NaN": state | {name: nan[name]},
            f"{name} infinite": state | {name: torch.full_like(x, -torch.inf)},
            f"{name} reshaped": state | {name: x[None]},
            f"{name} longer": state | {name: torch.cat([x.flatten(), x.flatten()])},
            f"{name} whole": state | {name: x.to(torch.int32)},
            f"{name} complex": state | {name: x.to(torch.complex64)},
            f"{name} half": state | {name: x.half()},
            f"{name} text": state | {name: "x"},
            f"{name} None": state | {name: None},
            f"{name} nested": state | {name: {"weight": x}},
            f"{name} sparse": state | {name: x.to_sparse() if x.ndim else x[None].to_sparse()},
            f"{name} on no device": state | {name: x.to("meta")},
            f"{name} repeated": state | {name: torch.zeros((), dtype=x.dtype).expand(x.shape)},
            f"{name} huge": state | {name: torch.full_like(x, 3e38)},
        }
    return states


@pytest.mark.slow
@pytest.mark.parametrize(("env", "options"), [("CartPole-v1", {}), ("Pendulum-v1", RECURRENT)])
@pytest.mark.filterwarnings("ignore")
def test_any_weights_give_a_policy_that_works_or_one_line(env: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run", env, **options)
    state = checkpoint.read(folder, "agent.pt")
    for what, other in random.Random(0).sample(list(broken_states(state).items()), 120):
        worked = works_or_is_refused(load_policy, reseal(folder, state=other), what)
        assert not worked or what.endswith(("huge", "repeated")), what
    reseal(folder, state=state)
    acts(folder)


@pytest.mark.slow
def test_what_an_evaluation_reads_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    document = checkpoint.read_metadata(folder)

    def use(path: Path) -> None:
        assert evaluate(path, episodes=2).episodes

    kept = ("config.env", "config.run", "action_hold", "spec", "global_step", "lineage", "episode_return")
    changed = [item for item in mutations(document) if item[0].startswith(kept)]
    worked = [
        works_or_is_refused(use, reseal(folder, other), what) for what, other in random.Random(1).sample(changed, 150)
    ]
    assert any(worked) and not all(worked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": {}}, r"cannot be loaded \(KeyError: 'obs'\)"),
        ({"spec": []}, "spec is missing or is not a mapping"),
        ({"iteration": -1}, "iteration is missing or is not a whole number >= 0"),
        ({"global_step": "x"}, "global_step is missing or is not a whole number >= 0"),
        ({"lineage": [5]}, "lineage is missing or is not a list of paths"),
        ({"checksums": {"../x": "y"}}, "checksums is missing or is not checksums by file name"),
        ({"action_hold": None}, r"cannot be loaded \(TypeError"),
        ({"action_hold": {"low": 0, "high": 0}}, "a hold of 0 to 0 env steps"),
        (
            {"config": {"policy": {"hidden_sizes": [65_536]}}},
            r"'actor_trunk.mlp.0.weight' in agent.pt is .*\[4, 4\]",
        ),
        (
            {"config": {"policy": {"rnn": "gru", "rnn_layers": 10**12}}},
            "rnn_layers is .*, but it must be <= 16",
        ),
        ({"config": {"policy": {"hidden_sizes": [1] * 1000}}}, "tensors for 1000 layers"),
        ({"config": {"policy": {"critic_hidden_sizes": [1] * 1000}}}, "tensors for 1000 layers"),
    ],
)
def test_the_line_says_what_is_wrong(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    reseal(folder, checkpoint.read_metadata(folder) | change)
    for use in (load_policy, evaluate, signature, restore_policy, lambda path: export(path, format="torchscript")):
        with pytest.raises(UsageError, match=message):
            use(folder)


def test_weights_that_are_not_finite_are_refused_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny(tmp_path / "run")
    state = checkpoint.read(folder, "agent.pt")
    name = next(name for name, x in state.items() if x.ndim == 2)
    state[name][0, 0] = torch.nan
    reseal(folder, state=state)
    for command in (["evaluate"], ["evaluate", "--record"], ["export", "--format", "torchscript"]):
        assert main([command[0], str(folder), *command[1:]]) == 2
        error = capsys.readouterr().err
        assert f"'{name}' in agent.pt has weights that are NaN or infinite" in error and error.count("\n") == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == [folder.name]


@pytest.mark.parametrize("call", ["subprocess:check_output", "subprocess:Popen", "mine:subprocess.run"])
@pytest.mark.parametrize("option", ["env", "wrappers", "loggers", "nested"])
@pytest.mark.parametrize("here", ["project", "root"])
def test_a_checkpoint_calls_no_function_of_its_choice(
    call: str, option: str, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if here == "project" else "/")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("import subprocess\n")
    folder, mark = tiny(tmp_path / "run"), tmp_path / "called"
    metadata = checkpoint.read_metadata(folder)
    keywords = {"args": ["touch", str(mark)]}
    if option == "env":
        metadata["config"]["env"] |= {"env": call, "env_kwargs": keywords}
    elif option == "nested":
        nested = {"env": call, "env_kwargs": keywords}
        metadata["config"]["env"] |= {"env": "proxima.training.train:train", "env_kwargs": nested}
    else:
        metadata["config"]["env" if option == "wrappers" else "track"][option] = [{call: keywords}]
    reseal(folder, metadata)
    uses = [lambda: train(resume_from=folder, total_timesteps=10**6)]
    uses += [lambda: evaluate(folder, episodes=1), lambda: main(["evaluate", str(folder), "--record"])]
    for use in uses[: 1 if option == "loggers" else 3]:
        try:
            assert use() == 2
        except ProximaError as error:
            assert "if you trust it, name it too" in str(error)
    assert not mark.exists()


def test_a_missing_hold_is_none(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    metadata = checkpoint.read_metadata(folder)
    del metadata["action_hold"]
    assert load_policy(reseal(folder, metadata)).hold.steps == 1


BOMB = "format_version: 3\na: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(15)
)


@pytest.mark.parametrize("text", [BOMB, "[" * 50_000, "a: " + "{b: " * 5000, "format_version: [" + "[" * 5000])
def test_metadata_that_nests_or_expands_without_end_is_one_line(text: str, tmp_path: Path) -> None:
    folder = reseal(tiny(tmp_path / "run"), text=text)
    for use in (checkpoint.read_metadata, load_policy, evaluate):
        with pytest.raises(
            UsageError, match=r"is not the metadata of a Proxima checkpoint: it (nests|has more)"
        ) as error:
            use(folder)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="holds no complete checkpoint"):
        load_policy(tmp_path / "run")
    (tmp_path / "run" / "lineage.yaml").write_text(text)
    with pytest.raises(UsageError, match="holds no complete checkpoint"):
        load_policy(tmp_path / "run")


def test_metadata_that_is_not_a_text_file_is_one_line(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    (folder / "metadata.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not the metadata"):
        load_policy(folder)
    (folder / "metadata.yaml").unlink()
    os.mkfifo(folder / "metadata.yaml")
    with pytest.raises(UsageError, match="is not the metadata"):
        checkpoint.read_metadata(folder)


@pytest.mark.slow
def test_a_resume_refuses_hostile_options_in_one_line(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    document = checkpoint.read_metadata(folder)
    changed = [item for item in mutations(document) if item[0].startswith("config")]
    for what, other in random.Random(2).sample(changed, 100):
        works_or_is_refused(lambda path: resumed_config(path, None, {}), reseal(folder, other), what)


def test_loading_does_not_move_the_callers_generator(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    load_policy(folder)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_that_its_run_deletes_is_replaced_by_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16, "compile": "off", "tensorboard": False}
    run = train(env="CartPole-v1", total_timesteps=96, checkpoint_freq=32, progress=False, **options)
    older, newer = checkpoint.list_checkpoints(run.run_dir)[-2:]
    hidden, original, asked = tmp_path / "hidden", checkpoint.find, []
    newer.rename(hidden)

    def find(path: Path) -> Path:
        asked.append(path)
        if len(asked) == 1:
            found = original(path)
            found.rename(tmp_path / "deleted")
            hidden.rename(newer)
            return found
        return original(path)

    monkeypatch.setattr(checkpoint, "find", find)
    assert restore_policy(run.run_dir).checkpoint.path == newer and not older.exists()
