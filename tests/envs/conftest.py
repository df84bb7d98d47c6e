"""Fixtures for tests of vector envs."""

from collections.abc import Iterator

import pytest

from proxima.envs.contract import VecEnv


@pytest.fixture
def opened() -> Iterator[list[VecEnv]]:
    """A list for vector envs that are closed after the test."""
    envs: list[VecEnv] = []
    yield envs
    for env in envs:
        env.close()
