"""Action distributions as dataclasses of tensors, which compile.

Log-probabilities are those of the *raw* action, which `nets/actor_critic.py` transforms to the env's range; the
constant Jacobian of that scaling cancels in every probability ratio and is left out.

A sample is a function of standard normal noise, which the caller draws, possibly for a complete rollout at once.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
# 16-point Gauss-Hermite quadrature for expectations under a normal; the nodes are symmetric, so half are enough.
_NODES, _WEIGHTS = (half[8:].tolist() for half in np.polynomial.hermite.hermgauss(16))

# Of an invalid choice: its probability is exactly 0, and unlike with minus infinity, products with it are not NaN.
LOWEST = -1e30
# Noise per dimension of Beta: two gamma samples of six candidates with two numbers each.
BETA_NOISE = 24


class Distribution(Protocol):
    """A batch of `B` joint action distributions."""

    def sample(self, noise: Tensor) -> Tensor:
        """Raw actions `[B, A]`, or `[B]` for one discrete choice.

        `noise` `[B, K]` is standard normal: one number per dimension or choice, `BETA_NOISE` per dimension of Beta.
        """

    def mode(self) -> Tensor:
        """The most likely raw action (for a squashed Gaussian, the squashed mean)."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density or log-probability `[B]` of raw actions."""

    def entropy(self) -> Tensor:
        """Entropy, `[B]`."""


@dataclass(slots=True)
class Gaussian:
    """Diagonal Gaussian."""

    mean: Tensor  # [B, A]
    log_std: Tensor  # [B, A] or [A]

    def sample(self, noise: Tensor) -> Tensor:
        """Mean plus scaled noise."""
        return torch.addcmul(self.mean, noise, self.log_std.exp())

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum of the dimensions' log-densities."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std - _LOG_SQRT_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Closed form."""
        return (self.log_std + (0.5 + _LOG_SQRT_2PI)).expand_as(self.mean).sum(-1)


@dataclass(slots=True)
class TanhGaussian(Gaussian):
    """A diagonal Gaussian squashed into (-1, 1). The raw action is the one before tanh, so tanh is never inverted."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Gaussian log-density minus the log-derivative of tanh."""
        return Gaussian.log_prob(self, action) - _log_tanh_slope(action).sum(-1)

    def entropy(self) -> Tensor:
        """Gaussian entropy plus E[log tanh'] by Gauss-Hermite quadrature: the bonus has no sampling noise."""
        std = self.log_std.exp()
        expected = torch.zeros_like(self.mean)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            offset = math.sqrt(2.0) * node * std
            slope = _log_tanh_slope(self.mean + offset) + _log_tanh_slope(self.mean - offset)
            expected = expected + (weight / math.sqrt(math.pi)) * slope
        return Gaussian.entropy(self) + expected.sum(-1)


@dataclass(slots=True)
class Beta:
    """Independent Beta distributions on (0, 1), unimodal: both parameters are above 1."""

    alpha: Tensor  # [B, A]
    beta: Tensor  # [B, A]

    def sample(self, noise: Tensor) -> Tensor:
        """A ratio of gamma samples, clamped away from the ends, where the log-density is infinite."""
        first, second = noise.unflatten(-1, (self.alpha.shape[-1], BETA_NOISE)).chunk(2, -1)
        a, b = _gamma(self.alpha, first), _gamma(self.beta, second)
        return (a / (a + b)).clamp(1e-6, 1 - 1e-6)

    def mode(self) -> Tensor:
        """The peak."""
        return (self.alpha - 1) / (self.alpha + self.beta - 2)

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum of the dimensions' log-densities."""
        kernel = (self.alpha - 1) * action.log() + (self.beta - 1) * torch.log1p(-action)
        return (kernel - self._log_norm()).sum(-1)

    def entropy(self) -> Tensor:
        """Closed form."""
        total = self.alpha + self.beta
        terms = (self.alpha - 1) * torch.digamma(self.alpha) + (self.beta - 1) * torch.digamma(self.beta)
        return (self._log_norm() - terms + (total - 2) * torch.digamma(total)).sum(-1)

    def _log_norm(self) -> Tensor:
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)


@dataclass(slots=True)
class Categorical:
    """One choice out of K."""

    logits: Tensor  # [B, K], normalised: log-probabilities

    def sample(self, noise: Tensor) -> Tensor:
        """By the Gumbel-max trick: an argmax, which does not raise even for invalid logits."""
        exponential = -torch.special.log_ndtr(noise)
        return (self.logits - exponential.log()).argmax(-1)

    def mode(self) -> Tensor:
        """The most likely choice."""
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """The logit of the choice."""
        return self.logits.gather(-1, action[..., None]).squeeze(-1)

    def entropy(self) -> Tensor:
        """Closed form."""
        return -(self.logits.exp() * self.logits).sum(-1)


@dataclass(slots=True)
class MultiCategorical:
    """Several independent Categoricals of different sizes."""

    parts: list[Categorical]

    def sample(self, noise: Tensor) -> Tensor:
        """`[B, A]`, one choice per column."""
        noises = noise.split([part.logits.shape[-1] for part in self.parts], -1)
        return torch.stack([part.sample(x) for part, x in zip(self.parts, noises, strict=True)], -1)

    def mode(self) -> Tensor:
        """The most likely choice per column."""
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the choices."""
        return torch.stack([part.log_prob(action[..., i]) for i, part in enumerate(self.parts)]).sum(0)

    def entropy(self) -> Tensor:
        """Sum over the choices."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


@dataclass(slots=True)
class Bernoulli:
    """Independent Bernoulli variables."""

    logits: Tensor  # [B, A]

    def sample(self, noise: Tensor) -> Tensor:
        """0 or 1 per column."""
        return (torch.special.ndtr(noise) < self.logits.sigmoid()).long()

    def mode(self) -> Tensor:
        """1 where its probability is above 1/2."""
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the columns."""
        return -F.softplus(torch.where(action.bool(), -self.logits, self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        """Closed form."""
        return (F.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(-1)


@dataclass(slots=True)
class EpsilonGreedy:
    """The choice with the highest Q; with probability epsilon, a uniformly random one."""

    q: Tensor  # [B, A]; of invalid choices `LOWEST`
    epsilon: Tensor  # []
    mask: Tensor | None = None  # [B, A] bool, the valid choices; None if all are

    def sample(self, noise: Tensor) -> Tensor:
        """`noise` `[B, 2]`: the first number decides whether to explore, the second is the random choice."""
        share, choices = torch.special.ndtr(noise).unbind(-1), self.q.shape[-1]
        if self.mask is None:
            explored = (share[1] * choices).long().clamp(max=choices - 1)
        else:
            count = self.mask.sum(-1)
            rank = torch.minimum((share[1] * count).long(), count - 1)
            explored = (self.mask.cumsum(-1) <= rank[..., None]).sum(-1)  # the valid choice of this rank
        return torch.where(share[0] < self.epsilon, explored, self.mode())

    def mode(self) -> Tensor:
        """The greedy choice."""
        return self.q.argmax(-1)

    def _probability(self) -> Tensor:
        choices = self.q.shape[-1]
        random = self.epsilon / choices
        if self.mask is not None:
            random = self.mask * (self.epsilon / self.mask.sum(-1, keepdim=True))
        return random + (1.0 - self.epsilon) * F.one_hot(self.mode(), choices)

    def log_prob(self, action: Tensor) -> Tensor:
        """Minus infinity for a choice of probability 0."""
        return self._probability().gather(-1, action[..., None]).squeeze(-1).log()

    def entropy(self) -> Tensor:
        """Closed form."""
        return torch.special.entr(self._probability()).sum(-1)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Logits or values `[B, K]` with `LOWEST` where the mask is false; None leaves them unchanged."""
    return x if mask is None else x.masked_fill(~mask, LOWEST)


def valid_choices(mask: Tensor) -> Tensor:
    """The mask `[B, K]`; all true in a row that allows nothing, as that of a final observation may."""
    return mask | ~mask.any(-1, keepdim=True)


def _gamma(shape: Tensor, noise: Tensor) -> Tensor:
    """Gamma samples for shapes `[B, A]` of at least 1 (Marsaglia and Tsang 2000): the first accepted candidate.

    At most 1 in 20 is rejected, and so all six once in 64 million samples; the last one is used then.
    """
    normal, other = noise.chunk(2, -1)  # [B, A, candidates] each
    d = (shape - 1.0 / 3.0)[..., None]
    root = 1.0 + normal / (9.0 * d).sqrt()
    v = root**3
    bound = 0.5 * normal**2 + d * (1.0 - v + v.clamp(min=1e-30).log())
    accepted = (root > 0) & (torch.special.log_ndtr(other) < bound)
    result = (d * v.clamp(min=1e-30))[..., -1]
    for i in reversed(range(normal.shape[-1] - 1)):
        result = torch.where(accepted[..., i], (d * v)[..., i], result)
    return result


def _log_tanh_slope(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2), without cancellation."""
    return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))
