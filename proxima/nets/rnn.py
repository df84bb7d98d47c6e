"""Recurrent layers between encoders and heads: GRU and LSTM, whose state is passed in and out.

The state of an env is one row `[S]` for all layers and parts, so that it can be stored, gathered and reset as one
tensor. Zeros are the state at the start of an episode.
"""

import warnings
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxima.nets.encoders import Tanh

# The weights are views of one vector of all parameters; cuDNN copies them, which is cheap.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

_GATES = {"gru": 3, "lstm": 4}
Parts = tuple[Tensor, ...]
"""The state of a layer: hidden state, and cell of an LSTM; `[B, H]` each."""


class RNN(nn.Module):
    """Layers of a GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997), with PyTorch's equations.

    `step` is for acting, `sequence` for learning; both compute the same.
    """

    def __init__(self, inputs: int, *, kind: str, size: int, layers: int, orthogonal: bool):
        super().__init__()
        self.kind, self.size, self.layers = kind, size, layers
        self.parts = 2 if kind == "lstm" else 1
        self.state_size = self.parts * layers * size
        self.out_features = size
        self.tanh = Tanh()
        rows = _GATES[kind] * size
        for layer in range(layers):
            columns = inputs if layer == 0 else size
            shapes = {"weight_ih": (rows, columns), "weight_hh": (rows, size), "bias_ih": (rows,), "bias_hh": (rows,)}
            for name, shape in shapes.items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
            self._init_layer(layer, orthogonal=orthogonal)

    @torch.no_grad()
    def _init_layer(self, layer: int, *, orthogonal: bool) -> None:
        weights = self._weights(layer)
        if not orthogonal:
            for weight in weights:
                nn.init.uniform_(weight, -(self.size**-0.5), self.size**-0.5)
            return
        into, across, bias, _ = weights
        for weight in (into, across):
            for gate in weight.split(self.size):
                nn.init.orthogonal_(gate)
        for weight in weights[2:]:
            nn.init.zeros_(weight)
        # The second gate of both kinds is the one that keeps the state: biased to be open, so that gradients reach
        # far back (Jozefowicz et al. 2015).
        bias[self.size : 2 * self.size] = 1.0

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights from input and hidden state to the gates, and their biases."""
        into, across, bias, hidden_bias = (
            getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        return into, across, bias, hidden_bias

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of every env: `[B, F]` and `[B, S]` to features `[B, H]` and the next state `[B, S]`."""
        after: list[Parts] = []
        for layer, before in enumerate(self._unpack(state)):
            into, across, bias, hidden_bias = self._weights(layer)
            after.append(self._cell(F.linear(x, into, bias), before, across, hidden_bias))
            x = after[-1][0]
        return x, torch.cat([layer[part] for part in range(self.parts) for layer in after], -1)

    def sequence(self, x: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """`B` sequences of `L` steps, time-major: `[L * B, F]` to features `[L * B, H]`.

        `state` `[B, S]` is before the first step; where `start` `[L * B]` is True, an episode begins and it is zero.
        """
        # In full precision, because rounding errors add up over many steps.
        with torch.autocast(x.device.type, enabled=False):
            x, start = (rows.unflatten(0, (-1, len(state))) for rows in (x.float(), start))
            # Compiled, the loop is unrolled. Eagerly, PyTorch's fused kernel is faster; as it cannot reset the state,
            # every episode is a sequence of its own.
            run = self._unrolled if torch.compiler.is_compiling() else self._by_episodes
            return run(x, state, start).flatten(0, 1)

    def _unrolled(self, x: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """`[L, B, F]` to `[L, B, H]`; the products of the inputs are one for all steps."""
        keeps = (~start)[..., None].to(x.dtype).unbind()
        for layer, parts in enumerate(self._unpack(state)):
            into, across, bias, hidden_bias = self._weights(layer)
            outputs = []
            for gates, keep in zip(F.linear(x, into, bias).unbind(), keeps, strict=True):
                parts = self._cell(gates, tuple([part * keep for part in parts]), across, hidden_bias)
                outputs.append(parts[0])
            x = torch.stack(outputs)
        return x

    def _by_episodes(self, x: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """The same as `_unrolled`, in one call of PyTorch's GRU or LSTM.

        The sequences are divided where episodes begin, and the pieces padded to the longest; the outputs of the
        padding are not used.
        """
        length, batch, _ = x.shape
        state = state.masked_fill(start[0][:, None], 0.0)
        if not bool(start[1:].any()):
            return self._native(x, state)
        begins = torch.cat((torch.ones_like(start[:1]), start[1:]))  # [L, B]
        env, begin = begins.t().nonzero(as_tuple=True)  # [M], of each piece
        piece = begins.t().flatten().cumsum(0).view(batch, length).t() - 1  # [L, B], the piece of each step
        place = torch.arange(length, device=x.device)[:, None] - begin[piece]  # [L, B], its position in the piece
        longest = int(place.max()) + 1
        time = (begin + torch.arange(longest, device=x.device)[:, None]).clamp(max=length - 1)  # [longest, M]
        pieces = x.flatten(0, 1).index_select(0, (time * batch + env).flatten()).view(longest, len(env), -1)
        states = state.index_select(0, env).masked_fill((begin > 0)[:, None], 0.0)
        out = self._native(pieces, states).flatten(0, 1)
        return out.index_select(0, (place * len(env) + piece).flatten()).view(length, batch, -1)

    def _native(self, x: Tensor, state: Tensor) -> Tensor:
        layers = self._unpack(state)
        before = [torch.stack([layer[part] for layer in layers]) for part in range(self.parts)]  # [layers, B, H]
        weights = [weight for layer in range(self.layers) for weight in self._weights(layer)]
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        common = (weights, True, self.layers, 0.0, torch.is_grad_enabled(), False, False)
        with _tf32_as_in_products():
            if self.kind == "lstm":
                return torch.lstm(x, before, *common)[0]
            return torch.gru(x, before[0], *common)[0]

    def _unpack(self, state: Tensor) -> list[Parts]:
        """The parts of every layer of states `[B, S]`."""
        parts = state.split(self.size, -1)
        return [parts[layer :: self.layers] for layer in range(self.layers)]

    def _cell(self, gates: Tensor, before: Parts, across: Tensor, bias: Tensor) -> Parts:
        """One step of one layer; `gates` `[B, 3 H or 4 H]` is the contribution of the input."""
        hidden = F.linear(before[0], across, bias)
        if self.kind == "lstm":
            take, keep, new, give = (gates + hidden).chunk(4, -1)
            cell = keep.sigmoid() * before[1] + take.sigmoid() * self.tanh(new)
            return give.sigmoid() * self.tanh(cell), cell
        split = [2 * self.size, self.size]
        (both, new), (hidden_both, hidden_new) = gates.split(split, -1), hidden.split(split, -1)
        reset, keep = (both + hidden_both).sigmoid().chunk(2, -1)
        candidate = self.tanh(new + reset * hidden_new)
        return (candidate + keep * (before[0] - candidate),)


def _tf32_as_in_products() -> AbstractContextManager[None]:
    """Let cuDNN use TF32 only where matrix products do: by default it always does, and the first ratio is not 1."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=torch.backends.cuda.matmul.allow_tf32,
    )
