"""Starts a run with the weights and normalisers of another one (`init_from`), as far as they fit.

This is not a resume: the run begins at step 0 with a new optimizer, and env, options and action bounds may differ.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxima.errors import UsageError
from proxima.evaluation.restored import Restored, restore_policy
from proxima.nets.policy import Policy
from proxima.nets.trunk import Encoders
from proxima.runs import checkpoint
from proxima.runs.layout import TRAINING_STATE
from proxima.training.algorithm import Algorithm

_MOST_NAMED = 12


def start_from(algorithm: Algorithm, path: str | Path) -> tuple[Path, str]:
    """Load what fits from a checkpoint or run folder; returns the checkpoint, and a notice about what fits.

    Raises:
        UsageError: there is no such checkpoint, or none of its weights fit.
    """
    saved = restore_policy(path)
    found = saved.checkpoint.path.resolve()
    with checkpoint.explained(found):
        own, theirs = by_observation_key(algorithm.policy), by_observation_key(saved.policy)
        layers = _layers({name: x for name, x in own.items() if x.requires_grad})
        fits = {layer: params for layer, params in layers.items() if _differing(params, theirs) is None}
        if not fits:
            nets = saved.config.policy
            built = f"policy_class {nets.policy_class}" if nets.policy_class else f"hidden_sizes {nets.hidden_sizes}"
            if nets.critic_hidden_sizes is not None:
                built += f" and critic_hidden_sizes {nets.critic_hidden_sizes}"
            raise UsageError(
                f"init_from is {path}, but none of its weights fit this run: it was trained on "
                f"{saved.config.env.env} with {saved.config.algorithm.algorithm} and {built}."
            )
        with torch.no_grad():
            for params in fits.values():
                for name, x in params.items():
                    x.copy_(theirs[name])
        fresh = [what for params in layers.values() if (what := _differing(params, theirs)) is not None]
        fresh += [f"statistics of {key}" for key in algorithm.policy.normalizer.copy_known(saved.policy.normalizer)]
        fresh += _start_networks(algorithm.networks, saved)
        fresh += algorithm.weights_changed(_learner_states(saved))
    text = f"Starting from {found}: {len(fits)} of {len(layers)} layers of the policy fit"
    more = f" and {len(fresh) - _MOST_NAMED} more" * (len(fresh) > _MOST_NAMED)
    return found, f"{text}; fresh: {', '.join(fresh[:_MOST_NAMED])}{more}." if fresh else f"{text}."


def by_observation_key(policy: Policy) -> dict[str, nn.Parameter]:
    """The parameters by name, those of encoders by their observation key in place of their position."""
    renamed = {
        f"{path}.{position}.": f"{path}.{key}."
        for path, module in policy.named_modules()
        if isinstance(module, Encoders)
        for position, key in enumerate(module.keys_taken)
    }
    found = {}
    for name, parameter in policy.named_parameters():
        prefix = next((prefix for prefix in renamed if name.startswith(prefix)), "")
        found[renamed.get(prefix, "") + name.removeprefix(prefix)] = parameter
    return found


def _layers(parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Parameters by layer: a bias without its weights would be of no use."""
    layers: dict[str, dict[str, Tensor]] = {}
    for name, x in parameters.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = x
    return layers


def _differing(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str | None:
    """The first parameter of a layer that does not fit, in words; None if all do."""
    for name, x in own.items():
        other = theirs.get(name)
        if other is None or other.shape != x.shape:
            return f"{name} {list(x.shape)} ({'not there' if other is None else f'there {list(other.shape)}'})"
    return None


def _start_networks(networks: Mapping[str, nn.Module], saved: Restored) -> list[str]:
    """Load the networks besides the policy that fit; returns the names of the others."""
    fresh = []
    for name, network in networks.items():
        own, theirs = network.state_dict(), saved.networks.get(name, {})
        if {key: x.shape for key, x in own.items()} == {key: x.shape for key, x in theirs.items()}:
            network.load_state_dict(theirs)
        else:
            fresh.append(f"network {name}")
    return fresh


def _learner_states(saved: Restored) -> dict[str, Any]:
    """The states of the learners by name, if the checkpoint was saved with them."""
    return saved.checkpoint.state(TRAINING_STATE) if saved.checkpoint.has(TRAINING_STATE) else {}
