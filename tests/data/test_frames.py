"""Stacks rebuilt from single frames are those that a frame stack would have made."""

from collections import deque

import torch

from proxima.data.frames import frame_rows, gather_stacks


def test_rows_by_hand() -> None:
    rows = frame_rows(torch.tensor([7, 7, 7]), torch.tensor([0, 6, 7]), 4)
    assert rows.tolist() == [[4, 5, 6, 7], [6, 6, 6, 7], [7, 7, 7, 7]]
    assert frame_rows(torch.tensor(3), torch.tensor(2), 1).tolist() == [3]


def test_stacks_equal_those_of_a_loop() -> None:
    steps, envs, frames = 30, 3, 4
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (steps, envs, 2, 5, 6), dtype=torch.uint8, generator=generator)
    first = torch.rand(steps, envs, generator=generator) < 0.2
    first[0] = True
    for env in range(envs):
        last: deque[torch.Tensor] = deque(maxlen=frames)
        begun = 0
        for t in range(steps):
            if first[t, env]:
                begun = t
                last.extend([stored[t, env]] * frames)
            else:
                last.append(stored[t, env])
            rows = frame_rows(torch.tensor([t]), torch.tensor([begun]), frames)
            stack = gather_stacks(stored.flatten(0, 1), rows * envs + env)
            assert stack.shape == (1, frames * 2, 5, 6) and stack.dtype == torch.uint8
            assert torch.equal(stack[0], torch.cat(list(last)))
