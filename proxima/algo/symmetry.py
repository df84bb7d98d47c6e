"""Left-right symmetry (Mittal et al. 2024; the loss is that of Yu et al. 2018), also for recurrent policies.

Observations are mirrored before they are normalised, since statistics need not be symmetric. A mirrored sequence begins
with the recurrent state that the policy has in the mirrored world: a second state `[N, S]`, advanced here by acting on
the mirrored observations of every rollout.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proxima.algo.losses import weighted_mean
from proxima.config import Config
from proxima.data.batch import Minibatch, MirroredInputs
from proxima.data.frames import gather_stacks
from proxima.data.rollout import Rollout
from proxima.errors import UsageError

if TYPE_CHECKING:
    from proxima.envs.contract import Mirror, Reflection
    from proxima.nets.policy import Policy

Tensors = dict[str, Tensor]


class Symmetry:
    """The mirror of an env as tensors, and the recurrent state of the mirrored world."""

    state: Tensor | None
    """`[N, S]`, zero where an episode begins; None without recurrence."""

    def __init__(self, mirror: "Mirror", policy: "Policy", config: Config, *, num_envs: int, device: torch.device):
        check_mirror(mirror, policy, config)
        self.policy, self.length = policy, config.sequence_length
        self.state = policy.first_state(num_envs)
        self._obs = {key: _Map(mirror.obs[key], policy.spec.obs[key].shape, device) for key in policy.keys}
        self._images = [key for key in policy.keys if key in policy.image_keys]
        self._vectors = [key for key in policy.keys if key not in policy.image_keys]
        # Beta's raw actions are between 0 and 1: a change of sign is x -> 1 - x.
        half = config.policy.distribution == "beta"
        self._action = _Map(mirror.action, policy.spec.action.sizes, device, centre=0.5 if half else 0.0)

    def action(self, action: Tensor) -> Tensor:
        """Mirrored raw actions `[B, A]`."""
        return self._action(action)

    def obs(self, obs: Tensors) -> Tensors:
        """Mirrored observations, complete frame stacks if images; not normalised."""
        return {key: self._obs[key](x) for key, x in obs.items()}

    def vectors(self, rollout: Rollout) -> Tensors:
        """`[T, N, ...]`: mirrored observations of the rollout without images, not normalised."""
        return {key: self._obs[key](rollout.obs[key][:-1]) for key in self._vectors}

    # From a rollout to a minibatch -----------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> MirroredInputs:
        """The inputs of the mirrored rollout. Advances the recurrent state: to be called once per rollout."""
        vectors = self.vectors(rollout)
        state = None if self.state is None else self._unroll(rollout, vectors)
        return MirroredInputs({key: x.flatten(0, 1) for key, x in self.policy.normalizer(vectors).items()}, state)

    def _unroll(self, rollout: Rollout, vectors: Tensors) -> Tensor:
        """The recurrent state before every sequence `[Q, S]`, by acting on the mirrored observations."""
        assert self.state is not None
        state, before, ended = self.state, [], rollout.ended[..., None]  # [T, N, 1]
        stacks = {key: x.unflatten(0, (rollout.num_steps, -1)) for key, x in rollout.stack_rows().items()}
        for t in range(rollout.num_steps):
            if t % self.length == 0:
                before.append(state)
            images = {key: rollout.obs[key][t] for key in self._images if key not in stacks}
            images |= {key: gather_stacks(rollout.frames[key].flatten(0, 1), rows[t]) for key, rows in stacks.items()}
            now = {key: x[t] for key, x in vectors.items()} | self.obs(images)
            after = self.policy.act(now, None, state).state
            assert after is not None
            state = after.masked_fill(ended[t], 0.0)
        self.state = state
        return torch.cat(before)

    def gather(self, minibatch: Minibatch) -> Minibatch:
        """The minibatch with mirrored images added."""
        assert minibatch.mirrored is not None
        images = self.obs({key: minibatch.obs[key] for key in self._images})
        mirrored = minibatch.mirrored._replace(obs=minibatch.mirrored.obs | images)
        return minibatch._replace(mirrored=mirrored)

    # The loss --------------------------------------------------------------------------------------------------------

    def augment(self, minibatch: Minibatch) -> Minibatch:
        """The minibatch together with its mirror image: B sequences become 2 B, the mirrored ones last.

        A mirrored sample has the advantage, return, old log-probability and old value of the original, as if a
        symmetric policy had collected it. KL and clip fraction are measured on the originals only, because the first
        ratio of a mirrored sample is 1 only if the policy is symmetric.
        """
        mirrored, original = minibatch.mirrored, minibatch
        assert mirrored is not None
        ones = torch.ones_like(original.advantage) if original.weight is None else original.weight
        state = None
        if original.state is not None and mirrored.state is not None:
            state = torch.cat((original.state, mirrored.state))
        twice = {name: self._pair(x, x) for name, x in original._asdict().items() if name in _SAME and x is not None}
        return original._replace(
            obs={key: self._pair(x, mirrored.obs[key]) for key, x in original.obs.items()},
            state=state,
            action=self._pair(original.action, self.action(original.action)),
            measured=self._pair(ones, torch.zeros_like(ones)),
            mirrored=None,
            **twice,
        )

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows `[L * B, ...]` of the original and of the mirrored sequences in those of an augmented minibatch."""
        original, mirrored = x.unflatten(0, (self.length, 2, -1)).unbind(1)
        return original.flatten(0, 1), mirrored.flatten(0, 1)

    def _pair(self, original: Tensor, mirrored: Tensor) -> Tensor:
        """`[L * B, ...]` twice to `[L * 2 B, ...]`, time-major."""
        both = [x.unflatten(0, (self.length, -1)) for x in (original, mirrored)]
        return torch.cat(both, 1).flatten(0, 1)

    def error(self, mean: Tensor, mirrored_mean: Tensor, weight: Tensor | None) -> Tensor:
        """Mean squared difference between mean actions `[L * B, A]` in mirrored states and those that are mirrored.

        Only the former have a gradient: the policy's actions in the states that it visits, which PPO improves, are the
        target of those in their mirror images, which it may never visit, and are not pulled towards them.
        """
        return weighted_mean((mirrored_mean - self.action(mean).detach()).square().mean(-1), weight)


_SAME = ("start", "old_log_prob", "old_value", "advantage", "return_", "weight")
"""Fields of a minibatch that are the same for a mirrored sample."""


class _Map:
    """A reflection as tensors."""

    def __init__(
        self, reflection: "Reflection", shape: tuple[int, ...], device: torch.device, *, centre: float = 0.0
    ) -> None:
        self._axes = len(shape)
        self._index = torch.tensor(reflection.index, device=device)
        sign = torch.tensor(reflection.sign, dtype=torch.float32, device=device)
        self._sign = sign if -1 in reflection.sign else None  # images of bytes are only permuted
        self._shift = centre * (1.0 - sign) if centre else None

    def __call__(self, x: Tensor) -> Tensor:
        """The mirror image of `[..., *shape]`."""
        flat = x.flatten(x.ndim - self._axes) if self._axes else x[..., None]
        image = flat.index_select(-1, self._index)
        if self._sign is not None:
            image = image * self._sign
        if self._shift is not None:
            image = image + self._shift
        return image.view(x.shape)


def check_mirror(mirror: "Mirror", policy: "Policy", config: Config) -> None:
    """Raise a UsageError if the mirror does not fit the policy's observations and actions."""
    where, action = f"symmetry is {config.ppo.symmetry}, but", policy.spec.action
    if action.kind != "box":
        raise UsageError(f"{where} actions of kind {action.kind} cannot be mirrored, only Box: use symmetry none.")
    sizes = {f"observation {key!r}": math.prod(policy.spec.obs[key].shape) for key in policy.keys}
    found = {f"observation {key!r}": len(reflection.index) for key, reflection in mirror.obs.items()}
    for name, size in {**sizes, "action": action.sizes[0]}.items():
        given = len(mirror.action.index) if name == "action" else found.get(name)
        if given is None:
            raise UsageError(
                f"{where} the env's mirror does not have the {name}: add it there, give the key the use none in "
                "encoders, or use symmetry none."
            )
        if given != size:
            raise UsageError(f"{where} the env's mirror has {given} numbers for the {name}, which has {size}.")
    for key in policy.keys:
        if policy.spec.obs[key].dtype == "uint8" and -1 in mirror.obs[key].sign:
            raise UsageError(
                f"{where} the env's mirror changes signs of {key!r}, whose bytes have none: only move them."
            )
    for i, (j, sign) in enumerate(zip(mirror.action.index, mirror.action.sign, strict=True)):
        low, high = sorted((sign * action.low[j], sign * action.high[j]))
        if (low, high) != (action.low[i], action.high[i]):
            raise UsageError(
                f"{where} the bounds of action {i}, {action.low[i]:g} to {action.high[i]:g}, are not the mirror image "
                f"of those of action {j}, {action.low[j]:g} to {action.high[j]:g}: use symmetry none."
            )
