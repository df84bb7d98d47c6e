"""What a run chooses before it starts."""

import pytest

from proxima.config import load_config
from proxima.training.setup import choose_threads


@pytest.mark.parametrize(("critic", "learn"), [(None, 1), ([8], 1), ([512, 512], 2)])
def test_a_wide_critic_is_worth_a_second_thread(critic: list[int] | None, learn: int) -> None:
    config = load_config(None, {"hidden_sizes": [8], "critic_hidden_sizes": critic, "minibatch_size": 64})
    assert choose_threads(config, images=False, cores=2) == (1, learn)
