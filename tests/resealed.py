"""Checkpoints whose content is wrong although every checksum and the seal are right: what an attacker would send."""

import hashlib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import yaml

from proxima.config import load_config
from proxima.envs.gymnasium.spaces import ObservationLayout
from proxima.nets.policy import make_policy
from proxima.nets.spec import Spec
from proxima.runs import checkpoint

VALUES = (None, 5, "x", [], {}, -1, 0, True, float("nan"), float("inf"), 10**400, [None], {"x": "y"}, "1" * 5000)


def tiny(run: Path, env_id: str = "CartPole-v1", **options: Any) -> Path:
    """A checkpoint of an untrained policy, as a run of the env would write it."""
    config = load_config(None, {"env": env_id, "hidden_sizes": [4], **options})
    env = gym.make(env_id)
    spec = Spec.from_spaces(ObservationLayout(env.observation_space).space, env.action_space)
    torch.manual_seed(0)
    metadata = {
        "name": "tiny",
        "iteration": 3,
        "global_step": 30,
        "episode_return": 1.5,
        "eval_return": None,
        "action_hold": {"low": 1, "high": 2, "gamma": 0.99},
        "resumed_from": "/runs/a/tiny-00001-1115_101839",
        "lineage": ["/runs/a/tiny-00001-1115_101839"],
        "spec": spec.to_dict(),
        "config": config.to_dict(),
    }
    files = {"agent.pt": make_policy(spec, config).state_dict()}
    run.mkdir(parents=True, exist_ok=True)
    return checkpoint.save(run, name="tiny", iteration=3, files=files, metadata=metadata)


def reseal(folder: Path, metadata: Any = None, *, state: Any = None, text: str | None = None) -> Path:
    """Write other metadata (or its text) and other weights, with checksums and a seal that fit them."""
    if state is not None:
        torch.save(state, folder / "agent.pt")
    if text is None:
        if metadata is None:
            metadata = checkpoint.read_metadata(folder)
        if state is not None:
            digest = hashlib.sha256((folder / "agent.pt").read_bytes()).hexdigest()
            metadata = {**metadata, "checksums": {"agent.pt": digest}}
        text = yaml.dump(metadata, Dumper=yaml.CSafeDumper, sort_keys=False)
    (folder / "metadata.yaml").write_text(f"{text}sealed: {hashlib.sha256(text.encode()).hexdigest()}\n")
    return folder


def mutations(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with each value, at every depth, deleted or replaced, and a word for what was done."""
    for path in list(_paths(document)):
        for value in ("delete", "add", *VALUES):
            changed = deepcopy(document)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            if value == "delete":
                del holder[path[-1]]
            elif value == "add" and isinstance(holder, dict):
                holder[5] = "extra"
            elif value == "add":
                holder.append("extra")
            else:
                holder[path[-1]] = deepcopy(value)
            yield f"{'.'.join(map(str, path))} = {str(value)[:20]}", changed


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*before, key)
        yield from _paths(value[key], (*before, key))
