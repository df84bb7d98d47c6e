"""The network that turns desired torques into muscle activations."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from proxima.config.muscle_settings import INPUT_SCALE, LEAK


class MuscleNet(nn.Module):
    """Activations `relu(tanh(z))` of `M` muscles from their moments and the torques asked of them.

    The moments are the entries of A `[J, M]` that can differ from zero, `[E]`: entry e is of joint `joint[e]` and
    muscle `muscle[e]`. MASS (Lee et al. 2019) has this network; the env runs a copy of it in every substep.
    """

    by_joint: Tensor
    muscle: Tensor

    def __init__(
        self,
        *,
        joint: Sequence[int],
        muscle: Sequence[int],
        num_joints: int,
        num_muscles: int,
        hidden_sizes: Sequence[int],
    ):
        super().__init__()
        sizes = [len(joint) + num_joints, *hidden_sizes, num_muscles]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for name, parameter in self.layers.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.num_muscles = num_muscles
        by_joint = torch.zeros(len(joint), num_joints)
        by_joint[torch.arange(len(joint)), torch.tensor(joint)] = 1.0
        self.register_buffer("by_joint", by_joint, persistent=False)
        self.register_buffer("muscle", torch.tensor(muscle), persistent=False)

    def forward(self, entries: Tensor, torque: Tensor) -> Tensor:
        """`z` `[B, M]`, of entries of A `[B, E]` and torques `[B, J]`."""
        x = torch.cat((entries, torque), -1) / INPUT_SCALE
        for layer in self.layers[:-1]:
            x = nn.functional.leaky_relu(layer(x), LEAK)
        z: Tensor = self.layers[-1](x)
        return z

    def torque(self, entries: Tensor, activation: Tensor) -> Tensor:
        """`A a` `[B, J]`."""
        return (entries * activation.index_select(-1, self.muscle)) @ self.by_joint
