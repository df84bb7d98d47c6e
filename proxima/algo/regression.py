"""Supervised learners: the muscle network learns which activations give the torques that were asked for."""

import copy
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from proxima.algo.learner import Learner, Weights
from proxima.algo.peers import Peers
from proxima.config import Config
from proxima.data.rollout import Rollout

if TYPE_CHECKING:
    from proxima.nets.muscle_net import MuscleNet

_TORQUE_SCALE = 100.0
_GRADIENT_LIMIT = 0.5
_FLOOR_SAMPLES, _FLOOR_STEPS = 64, 300
_INFEASIBLE = 1.0  # Nm
_ADAM_EPS = 1e-5


class Tuples(NamedTuple):
    """Samples of the regression, or a minibatch of them."""

    entries: Tensor  # [B, E], of A, in Nm
    torque: Tensor  # [B, J], asked of the muscles


class MuscleLearner(Learner):
    """Minimises `mean(((A a - tau) / 100)^2) + w_a mean(a^2) + w_z mean(z^2)` with `a = relu(tanh(z))`.

    It has its own Adam at a constant rate, and clamps every element of the gradient (both as in MASS).
    """

    loss_terms = ("loss", "torque_error", "activation")

    def __init__(
        self,
        net: "MuscleNet",
        config: Config,
        *,
        device: torch.device,
        seed: int,
        num_iterations: int,
        peers: Peers | None = None,
    ):
        """`peers`: the ranks, of which this is one."""
        own, self.options = copy.deepcopy(config), config.muscle
        own.optimizer.learning_rate = self.options.muscle_learning_rate
        own.optimizer.optimizer, own.optimizer.weight_decay, own.optimizer.adam_eps = "adam", 0.0, _ADAM_EPS
        own.optimizer.lr_schedule, own.optimizer.max_grad_norm = "constant", None
        own.optimizer.gradient_accumulation, own.optimizer.precision = 1, "fp32"
        self.net = net
        minibatches = -(-config.rollout_size // self.options.muscle_batch_size)
        updates = num_iterations * self.options.muscle_num_epochs * minibatches
        super().__init__(net, own, device=device, seed=seed, num_updates=updates, peers=peers)
        self.limit_gradient = lambda gradient: gradient.clamp(-_GRADIENT_LIMIT, _GRADIENT_LIMIT)

    def prepare(self, rollout: Rollout) -> Tuples:
        """The tuples of a rollout, `[T * N, ...]`."""
        return Tuples(rollout.aux["muscle_entries"].flatten(0, 1), rollout.aux["muscle_torque"].flatten(0, 1))

    def update(self, tuples: Tuples) -> dict[str, float]:
        """All epochs over the tuples; metrics of the tuples before and after them."""
        before, peers, size = self._errors(tuples), self.peers, len(tuples.torque)
        # As many minibatches on every rank, however the tuples are divided: rollouts by envs, a warm start evenly.
        sizes = [size] if peers.sum is None else [size * envs // peers.own_envs for envs in peers.num_envs]
        count = -(-sum(sizes) // self.options.muscle_batch_size)
        total = torch.zeros(len(self.step_metrics), device=self.device)
        epochs = self.options.muscle_num_epochs
        for _ in range(epochs):
            for order in peers.minibatches(sizes, count, self.generator):
                total = total + self.run_epoch(tuples, order) / (count * epochs)
        metrics = dict(zip(self.step_metrics, self.to_host(total), strict=True))
        self.check_finite({"the muscle network's update": metrics})
        after = self._errors(tuples)
        floor, infeasible = self._floor(tuples)
        return {
            "muscle_loss": metrics["loss"],
            "muscle_gradient_norm": metrics["gradient_norm"],
            "muscle_torque_error": after,
            "muscle_torque_floor": floor,
            "muscle_infeasible": infeasible,
            "muscle_activation": metrics["activation"],
            "muscle_improvement": before - after,
        }

    @torch.no_grad()
    def _errors(self, tuples: Tuples) -> float:
        """Mean absolute torque error, Nm."""
        activation = self.net(*tuples).tanh().relu()
        error = (self.net.torque(tuples.entries, activation) - tuples.torque).abs().mean()
        return float(self.peers.mean(error, len(tuples.torque)))

    @torch.no_grad()
    def _floor(self, tuples: Tuples) -> tuple[float, float]:
        """Mean absolute error of the best activations by least squares, in Nm, on some evenly spaced tuples.

        Also the share of these that they miss by more than 1 Nm.
        """
        rows = torch.linspace(0, len(tuples.torque) - 1, min(_FLOOR_SAMPLES, len(tuples.torque)), device=self.device)
        entries, torque = (x[rows.long()] for x in tuples)
        best = bounded_least_squares(self.dense(entries), torque)
        error = (self.net.torque(entries, best) - torque).abs()
        found = torch.stack((error.mean(), (error.amax(1) > _INFEASIBLE).float().mean()))
        floor, infeasible = self.peers.mean(found, len(rows)).tolist()
        return floor, infeasible

    def dense(self, entries: Tensor) -> Tensor:
        """A `[B, J, M]` of its entries `[B, E]`."""
        eye = torch.eye(self.net.num_muscles, device=entries.device)
        return torch.stack([self.net.torque(entries, row.expand(len(entries), -1)) for row in eye], -1)

    def gather(self, data: Tuples, index: Tensor) -> Tuples:
        """The tuples `index`."""
        return Tuples(*(x.index_select(0, index) for x in data))

    def count(self, minibatch: Tuples) -> int:
        """Number of tuples."""
        return len(minibatch.torque)

    def loss(self, weights: Weights, minibatch: Tuples) -> tuple[Tensor, Tensor]:
        """Torque error, activation and size of z."""
        z = self.apply(weights, *minibatch)
        activation = z.tanh().relu()
        error = self.net.torque(minibatch.entries, activation) - minibatch.torque
        fit = (error / _TORQUE_SCALE).square().mean()
        options = self.options
        effort = options.muscle_activation_weight * activation.square().mean()
        loss = fit + effort + options.muscle_output_weight * z.square().mean()
        return loss, torch.stack((loss, error.abs().mean(), activation.mean())).detach()


def bounded_least_squares(matrix: Tensor, target: Tensor, steps: int = _FLOOR_STEPS) -> Tensor:
    """`x` `[B, M]` in [0, 1] with the least `|A x - b|`, for A `[B, J, M]` and b `[B, J]`.

    Accelerated projected gradient descent (FISTA, Beck and Teboulle 2009), in float64.
    """
    a, b = matrix.double(), target.double()
    gram, right = a.mT @ a, (a.mT @ b[..., None])[..., 0]
    rate = 1.0 / torch.linalg.matrix_norm(gram, 2).clamp(min=1e-12)[:, None]
    x = y = torch.zeros_like(right)
    t = 1.0
    for _ in range(steps):
        after = (y - rate * ((gram @ y[..., None])[..., 0] - right)).clamp(0.0, 1.0)
        faster = 0.5 * (1.0 + (1.0 + 4.0 * t * t) ** 0.5)
        y = after + (t - 1.0) / faster * (after - x)
        x, t = after, faster
    return x.to(matrix.dtype)
