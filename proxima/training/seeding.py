"""Independent random streams from one seed."""

import numpy as np

_STREAMS = (
    "networks",
    "actions",
    "minibatches",
    "resumed envs",
    "evaluation",
    "muscle network",
    "muscle minibatches",
    "warm start",
)


def stream_seed(seed: int, stream: str) -> int:
    """A seed for one named stream, far from those of the other streams and of neighbouring seeds."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAMS.index(stream),))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
