"""The trained parameters of a module as views of one vector."""

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves the parameters into one storage: what runs over all of them is then one operation, not one a layer."""

    def __init__(self, module: nn.Module):
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._shapes = {name: p.shape for name, p in trained.items()}
        self.vector = torch.cat([p.detach().flatten() for p in trained.values()])
        for p, view in zip(trained.values(), self.views(self.vector).values(), strict=True):
            p.data = view

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters by name out of a vector like this one."""
        parts = vector.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
