"""The muscle learner: its loss by hand, clamped gradients, the bounded least squares, and how fast it learns."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxima.algo.regression import MuscleLearner, Tuples, bounded_least_squares
from proxima.config import load_config
from proxima.config.env_file import read_env_file, to_dict
from proxima.envs.muscle.env import MUSCLE, MuscleVecEnv
from proxima.errors import NonFiniteError
from proxima.nets.muscle_net import MuscleNet

CPU = torch.device("cpu")
METRICS = {
    "muscle_loss",
    "muscle_gradient_norm",
    "muscle_torque_error",
    "muscle_torque_floor",
    "muscle_infeasible",
    "muscle_activation",
    "muscle_improvement",
}


def learner_of(net: MuscleNet, **options: Any) -> MuscleLearner:
    config = load_config(None, {"preset": "none", "compile": "off", **options})
    return MuscleLearner(net, config, device=CPU, seed=1, num_iterations=10)


def tiny(**options: Any) -> MuscleLearner:
    """Two joints, three muscles, no hidden layer: A = [[e0, e1, 0], [0, e2, e3]], z a linear map of the inputs."""
    net = MuscleNet(joint=[0, 0, 1, 1], muscle=[0, 1, 1, 2], num_joints=2, num_muscles=3, hidden_sizes=[])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    return learner_of(net, **options)


ENTRIES, TORQUE = torch.tensor([[50.0, -20.0, 40.0, -10.0]]), torch.tensor([[30.0, -15.0]])


def set_bias(learner: MuscleLearner, z: list[float]) -> dict[str, Tensor]:
    views = {name: x.clone() for name, x in learner.flat.views(learner.state.param).items()}
    views["layers.0.bias"] = torch.tensor(z)
    return views


def test_the_loss_by_hand() -> None:
    """z = (0.5, -1, 2): a = (tanh 0.5, 0, tanh 2); torques (50 a0, -10 a2) against (30, -15)."""
    learner = tiny(muscle_activation_weight=0.3, muscle_output_weight=0.7)
    loss, terms = learner.loss(set_bias(learner, [0.5, -1.0, 2.0]), Tuples(ENTRIES, TORQUE))
    a0, a2 = np.tanh(0.5), np.tanh(2.0)
    errors = 50 * a0 - 30, -10 * a2 + 15
    fit = ((errors[0] / 100) ** 2 + (errors[1] / 100) ** 2) / 2
    wanted = fit + 0.3 * (a0**2 + a2**2) / 3 + 0.7 * (0.25 + 1 + 4) / 3
    assert float(loss) == pytest.approx(wanted, rel=1e-6)
    assert terms.tolist() == pytest.approx([wanted, (abs(errors[0]) + abs(errors[1])) / 2, (a0 + a2) / 3], rel=1e-6)
    plain, _ = tiny(muscle_activation_weight=0, muscle_output_weight=0).loss(
        set_bias(learner, [0.5, -1.0, 2.0]), Tuples(ENTRIES, TORQUE)
    )
    assert float(plain) == pytest.approx(fit, rel=1e-6)


def test_torques_and_the_dense_matrix() -> None:
    learner = tiny()
    matrix = learner.dense(ENTRIES)
    assert matrix.tolist() == [[[50.0, -20.0, 0.0], [0.0, 40.0, -10.0]]]
    a = torch.tensor([[0.5, 0.25, 1.0]])
    torch.testing.assert_close(learner.net.torque(ENTRIES, a), (matrix @ a[..., None])[..., 0])


def test_inputs_are_scaled_by_200_nm() -> None:
    net = MuscleNet(joint=[0], muscle=[0], num_joints=1, num_muscles=1, hidden_sizes=[1])
    with torch.no_grad():
        for layer, weight in zip(net.layers, ([[1.0, 2.0]], [[3.0]]), strict=True):
            layer.weight.copy_(torch.tensor(weight))  # type: ignore[operator, union-attr]
            layer.bias.fill_(0.25)  # type: ignore[operator, union-attr]
        z = net(torch.tensor([[100.0], [-100.0]]), torch.tensor([[50.0], [-50.0]])).flatten().tolist()
    assert z == pytest.approx([3 * (0.5 + 0.5 + 0.25) + 0.25, 3 * 0.2 * -0.75 + 0.25])  # below 0 the leak is 0.2


def test_every_element_of_the_gradient_is_clamped() -> None:
    """The output weight alone gives gradients `w_z 2 z_m / M`: 400, 0.4 and -400 here."""
    learner = tiny(muscle_output_weight=600.0, muscle_activation_weight=0.0, muscle_learning_rate=1.0)
    weights = set_bias(learner, [1.0, 0.001, -1.0])
    learner.state.param.copy_(torch.cat([x.flatten() for x in weights.values()]))
    entries, torque = torch.zeros(1, 4), torch.zeros(1, 2)
    after, metrics = learner._step(learner.state, learner.learning_rate, [Tuples(entries, torque)])
    # Adam's first moment is (1 - 0.9) times the gradient.
    gradient = learner.flat.views(10.0 * after.mean)["layers.0.bias"]
    assert gradient.tolist() == pytest.approx([0.5, 0.4, -0.5], rel=1e-5)
    assert metrics[-1].item() == pytest.approx((0.5**2 + 0.4**2 + 0.5**2) ** 0.5, rel=1e-5)  # no clipping by norm
    assert learner.config.optimizer.max_grad_norm is None


def test_its_rate_is_its_own_and_constant() -> None:
    learner = tiny(muscle_learning_rate=3e-3, learning_rate=1.0, lr_schedule="linear")
    learner.set_progress(0.9)
    assert float(learner.learning_rate) == pytest.approx(3e-3)


def brute_force(matrix: np.ndarray, target: np.ndarray) -> float:
    """The least `|A x - b|` over the box, from all sets of variables at 0, at 1 and free (an optimum has one)."""
    best, size = np.inf, matrix.shape[1]
    for kinds in itertools.product((0.0, 1.0, None), repeat=size):
        x = np.array([0.0 if kind is None else kind for kind in kinds])
        free = [i for i, kind in enumerate(kinds) if kind is None]
        if free:
            x[free] = np.linalg.lstsq(matrix[:, free], target - matrix @ x, rcond=None)[0]
            if (x < -1e-9).any() or (x > 1 + 1e-9).any():
                continue
        best = min(best, float(np.linalg.norm(matrix @ x - target)))
    return best


def test_bounded_least_squares_against_all_active_sets() -> None:
    rng = np.random.default_rng(3)
    matrix, target = rng.normal(0.0, 50.0, (40, 2, 4)), rng.normal(0.0, 60.0, (40, 2))
    x = bounded_least_squares(torch.from_numpy(matrix), torch.from_numpy(target), steps=3000).numpy()
    assert x.min() >= 0.0 and x.max() <= 1.0
    found = np.linalg.norm((matrix @ x[..., None])[..., 0] - target, axis=1)
    wanted = [brute_force(a, b) for a, b in zip(matrix, target, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert 5 < sum(w < 1e-6 for w in wanted) < 35  # some demands are feasible, some are not


def test_bounded_least_squares_of_nothing_is_finite() -> None:
    x = bounded_least_squares(torch.zeros(2, 3, 4), torch.ones(2, 3))
    assert x.dtype == torch.float32 and not x.any()


# Learning ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def env() -> MuscleVecEnv:
    return MuscleVecEnv(num_envs=64, num_threads=1, **to_dict(read_env_file("base_lonly")))


def tuples(env: MuscleVecEnv, count: int, seed: int) -> Tuples:
    return Tuples(*env.random_tuples(count, seed).values())


def test_random_demands_are_feasible(env: MuscleVecEnv) -> None:
    data = tuples(env, 64, 0)
    learner = learner_of(MuscleNet(**env.network_shape(MUSCLE)))
    best = bounded_least_squares(learner.dense(data.entries), data.torque)
    assert float((learner.net.torque(data.entries, best) - data.torque).abs().mean()) < 0.5


def test_metrics_of_an_update(env: MuscleVecEnv) -> None:
    torch.manual_seed(0)
    learner = learner_of(MuscleNet(**env.network_shape(MUSCLE) | {"hidden_sizes": [32]}), muscle_batch_size=64)
    data = tuples(env, 200, 0)
    before, weights = learner._errors(data), learner.state.param.clone()
    metrics = learner.update(data)
    assert set(metrics) == METRICS and all(np.isfinite(list(metrics.values())))
    assert metrics["muscle_torque_error"] == learner._errors(data)
    assert metrics["muscle_improvement"] == pytest.approx(before - learner._errors(data)) and before > 1.0
    assert metrics["muscle_torque_floor"] < 0.5 and metrics["muscle_infeasible"] < 0.2
    assert 0.0 < metrics["muscle_activation"] < 1.0 and not torch.equal(weights, learner.state.param)
    # 10 epochs of ceil(200 / 64) minibatches.
    assert int(learner.state.steps) == 40


def test_infeasible_demands_are_reported(env: MuscleVecEnv) -> None:
    learner = learner_of(MuscleNet(**env.network_shape(MUSCLE) | {"hidden_sizes": [8]}))
    data = tuples(env, 64, 0)
    floor, share = learner._floor(Tuples(data.entries, 1e4 * data.torque.sign()))
    assert share == 1.0 and floor > 1000.0


def test_a_nan_is_reported(env: MuscleVecEnv) -> None:
    learner = learner_of(MuscleNet(**env.network_shape(MUSCLE) | {"hidden_sizes": [8]}))
    data = tuples(env, 64, 0)
    with pytest.raises(NonFiniteError, match="in the muscle network's update"):
        learner.update(Tuples(data.entries, data.torque * float("nan")))


def test_the_same_seed_learns_the_same(env: MuscleVecEnv) -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        learner = learner_of(MuscleNet(**env.network_shape(MUSCLE) | {"hidden_sizes": [16]}), muscle_batch_size=32)
        data = tuples(env, 128, 0)
        learner.update(data)
        middle = learner.state_dict()
        weights = learner.state.param.clone()
        learner.update(data)
        found.append(learner.state.param.clone())
    assert torch.equal(*found)
    learner.state.param.copy_(weights)
    learner.load_state_dict(middle)
    learner.update(data)
    assert torch.equal(learner.state.param, found[0])  # a resume


@pytest.mark.slow
def test_torques_of_fresh_demands_are_right_within_5_nm_after_10_iterations(env: MuscleVecEnv) -> None:
    torch.manual_seed(0)
    learner = learner_of(MuscleNet(**env.network_shape(MUSCLE)), muscle_learning_rate=1e-3, num_envs=16, num_steps=512)
    test = tuples(env, 1024, 10_000)
    before = learner._errors(test)
    for seed in range(10):
        learner.update(tuples(env, 8192, seed))
    assert before > 20.0 and learner._errors(test) < 5.0
