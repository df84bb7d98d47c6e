"""What a run chooses before it starts."""

import pytest
import torch

from proxima.config import load_config
from proxima.training.setup import choose_threads


@pytest.mark.parametrize(("critic", "learn"), [(None, 1), ([8], 1), ([512, 512], 2)])
def test_a_wide_critic_is_worth_a_second_thread(critic: list[int] | None, learn: int) -> None:
    config = load_config(None, {"hidden_sizes": [8], "critic_hidden_sizes": critic, "minibatch_size": 64})
    assert choose_threads(config, torch.device("cpu"), images=False, cores=2) == (1, learn, 1)


@pytest.mark.parametrize(
    ("device", "num_threads", "expected"),
    [("cpu", None, (16, 16, 16)), ("cuda", None, (1, 1, 16)), ("cuda", 4, (4, 4, 4)), ("cpu", 32, (16, 16, 16))],
)
def test_cores_are_left_to_the_envs_if_a_gpu_computes_and_evaluations_on_the_cpu_have_them(
    device: str, num_threads: int | None, expected: tuple[int, int, int]
) -> None:
    config = load_config(None, {"num_threads": num_threads})
    assert choose_threads(config, torch.device(device), images=True, cores=16) == expected
