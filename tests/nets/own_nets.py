"""Networks, policies and losses as users write them, good ones and bad ones."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxima.algo.distributions import Distribution, EpsilonGreedy, masked
from proxima.algo.extra_loss import Outputs
from proxima.nets.actor_critic import ActionHead, ActorCritic
from proxima.nets.policy import Acted, Policy
from proxima.nets.q_network import QNetwork
from proxima.training.ppo import PPO

Obs = dict[str, Tensor]


class Net(nn.Module):
    """Two layers, and a buffer."""

    angles: Tensor

    def __init__(self, shape: tuple[int, ...], out: int, *, width: int = 8):
        super().__init__()
        self.shape = shape
        inputs = math.prod(shape)
        self.memory = nn.Linear(inputs, width)  # a name that old checkpoints have for something else
        self.out = nn.Linear(width, out)
        self.register_buffer("angles", torch.linspace(0.5, 1.5, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.elu(self.memory(x.flatten(1) * self.angles)))


class Conv(nn.Module):
    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3, 2)
        self.linear = nn.Linear(self.conv(torch.zeros(1, *shape)).numel(), out)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).relu().view(x.shape[0], -1))


class OneBatchSize(Net):
    """Export takes `len` for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(len(x), -1))


class Seen(nn.Module):
    """Returns its input: what arrives?"""

    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32 and x.shape[1:] == self.shape and x.is_contiguous()
        return x.flatten(1)


class Wider(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((super().forward(x), x), -1)


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class WrongInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class BatchNorm(Net):
    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__(shape, out)
        self.norm = nn.BatchNorm1d(out)


class Dropout(Net):
    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__(shape, out)
        self.inner = nn.Sequential(nn.Dropout(0.25))


class RandomOutputs(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5)


class OnlyInTraining(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if self.training else 1.0)


class Counts(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.angles += 0.0 * x.sum() + 1.0
        return super().forward(x)


class MixesRows(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Tied(Net):
    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__(shape, out)
        self.second = nn.Linear(self.out.in_features, out)
        self.second.weight = self.out.weight


class Double(Net):
    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__(shape, out)
        self.double()


class ReadsItsWeights(Net):
    """Which tensors without storage could not."""

    def __init__(self, shape: tuple[int, ...], out: int):
        super().__init__(shape, out)
        with torch.no_grad():
            self.out.weight /= float(self.out.weight.norm())


# Policies ------------------------------------------------------------------------------------------------------------


class Shared(Policy):
    """The least that a policy is."""

    def __init__(self, *arguments: Any, width: int = 8):
        super().__init__(*arguments)
        spec, options, _ = arguments
        self.body = nn.Linear(sum(math.prod(o.shape) for o in self.obs_specs.values()), width)
        self.action_head = ActionHead(width, spec.action, options)
        self.value_head = nn.Linear(width, 1)
        self.noise_size = self.action_head.noise_size

    def features(self, obs: Obs) -> Tensor:
        return torch.tanh(self.body(torch.cat([obs[key].flatten(1) for key in self.obs_specs], -1)))

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        features = self.features(obs)
        return self.action_head(features, self.action_mask(obs)), self.value_head(features).squeeze(-1)

    def to_env(self, action: Tensor) -> Tensor:
        return self.action_head.to_env(action)


class Deeper(Shared):
    """With one more layer."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.second = nn.Linear(8, 8)

    def features(self, obs: Obs) -> Tensor:
        return torch.tanh(self.second(super().features(obs)))


class WithState(Shared):
    """The state is a running mean of the features."""

    def __init__(self, *arguments: Any, width: int = 8):
        super().__init__(*arguments, width=width)
        self.state_size = self.actor_state_size = width

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        features = self.features(obs)
        state = torch.zeros_like(features) if state is None else state
        start = torch.zeros(len(features), dtype=torch.bool, device=features.device) if start is None else start
        means = []
        rows = zip(*(x.unflatten(0, (-1, len(state))) for x in (features, start)), strict=True)
        for now, begins in rows:
            state = 0.5 * state.masked_fill(begins[:, None], 0.0) + 0.5 * now
            means.append(state)
        mean = torch.cat(means)
        return self.action_head(mean, self.action_mask(obs)), self.value_head(mean).squeeze(-1)

    @torch.no_grad()
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        features = self.features(self.normalizer(obs))
        state = 0.5 * (torch.zeros_like(features) if state is None else state) + 0.5 * features
        distribution = self.action_head(state, self.action_mask(obs))
        action = distribution.mode() if noise is None else distribution.sample(noise)
        value = self.value_head(state).squeeze(-1)
        return Acted(action, self.to_env(action), state, distribution.log_prob(action), value)


class ForgetsItsState(WithState):
    act = Policy.act


class WithoutMasks(Shared):
    def action_mask(self, obs: Obs) -> None:
        return None


class ValueOfOneColumn(Shared):
    def forward(self, *inputs: Any) -> tuple[Distribution, Tensor]:
        distribution, value = super().forward(*inputs)
        return distribution, value[:, None]


class WithoutNoise(Shared):
    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        del self.noise_size


class DroppingOut(Shared):
    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.drop = nn.Dropout(0.1)


class Duelling(QNetwork):
    """Q as a value and advantages."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.level = nn.Linear(self.actor_trunk.out_features, 1)

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[EpsilonGreedy, Tensor]:
        features, mask = self.actor_trunk(obs), self.action_mask(obs)
        advantage = self.action_head(features).q
        q = masked(self.level(features) + advantage - advantage.mean(-1, keepdim=True), mask)
        return EpsilonGreedy(q, self.epsilon, mask), q.amax(-1)


class DuellingWithoutMasks(Duelling):
    """Explores within the mask, but its greedy action is any."""

    def forward(self, *inputs: Any) -> tuple[EpsilonGreedy, Tensor]:
        distribution = super().forward({**inputs[0], "action_mask": torch.ones_like(inputs[0]["action_mask"])})[0]
        return EpsilonGreedy(distribution.q, self.epsilon, self.action_mask(inputs[0])), distribution.q.amax(-1)


class Doubled(ActorCritic):
    """Ours, with another value."""

    def _value(self, features: Tensor, obs: Obs) -> Tensor:
        return 2.0 * super()._value(features, obs)


class CountingPPO(PPO):
    """Ours, with a metric."""

    def iterate(self) -> dict[str, float]:
        return super().iterate() | {"twice": 2.0 * self.source.global_step}


# Losses --------------------------------------------------------------------------------------------------------------

SCALE = torch.tensor(1.0)
FACTOR = 1.0


def square_value(minibatch: Any, outputs: Outputs) -> Tensor:
    return 0.3 * outputs.value.square().mean()


def growing(minibatch: Any, outputs: Outputs) -> dict[str, Tensor]:
    size = outputs.value.square().mean()
    return {"loss": FACTOR * SCALE * outputs.progress * size, "size": size, "samples": torch.tensor(len(outputs.value))}


def per_sample(minibatch: Any, outputs: Outputs) -> Tensor:
    return outputs.value


def a_number(minibatch: Any, outputs: Outputs) -> float:
    return 1.0


def without_loss(minibatch: Any, outputs: Outputs) -> dict[str, Tensor]:
    return {"size": outputs.value.mean()}


def a_list_of_metrics(minibatch: Any, outputs: Outputs) -> dict[str, Any]:
    return {"loss": outputs.value.mean(), "size": 3.0}


def of_the_rollout_alone(minibatch: Any, outputs: Outputs) -> Tensor:
    return minibatch.return_.mean()


def broken(minibatch: Any, outputs: Outputs) -> Tensor:
    return minibatch.nothing


def named_like_ours(minibatch: Any, outputs: Outputs) -> dict[str, Tensor]:
    return {"loss": outputs.value.mean(), "episode_return": outputs.value.mean()}
