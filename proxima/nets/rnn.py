"""Recurrent layers between encoders and heads: GRU and LSTM whose state is passed in and out, never kept here.

A state is one row `[S]` an env with all layers in it, so that whoever stores, gathers or zeroes states need not know
what is inside. A row of zeros is the state before an episode's first observation.
"""

import warnings
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxima.nets.encoders import Tanh

# The weights are views of one vector of all parameters; cuDNN copies them into a piece of its own, which is cheap.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

_GATES = {"gru": 3, "lstm": 4}
Parts = tuple[Tensor, ...]
"""What a layer carries from step to step: the hidden state, and for an LSTM the cell as well; each `[B, H]`."""


class RNN(nn.Module):
    """Layers of a GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997), with PyTorch's equations.

    There are two ways through it, with one meaning: `step` for acting, `sequence` for learning.
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
        # The second gate of both kinds is the one that keeps: open at first, so that gradients reach far back
        # (Jozefowicz et al. 2015).
        bias[self.size : 2 * self.size] = 1.0

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Into the gates from the input and from the hidden state, and the two biases: `_ih`, `_hh`, each."""
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
        """`B` sequences of `L` steps: `[L * B, F]` to features `[L * B, H]`, as `step` would give one after another.

        Args:
            x: `[L * B, F]`, time by time.
            state: `[B, S]`, before the first step.
            start: `[L * B]` bool, where an episode begins: the state before that step is zero.
        """
        # In full precision: what is carried over many steps adds up its rounding.
        with torch.autocast(x.device.type, enabled=False):
            x, start = (rows.unflatten(0, (-1, len(state))) for rows in (x.float(), start))
            # Compiled, the loop is unrolled into native code of constant shapes. Elsewhere the library's own fused
            # pass is faster, and as it knows no resets, it is given every episode as a sequence of its own.
            way = self._unrolled if torch.compiler.is_compiling() else self._by_episodes
            return way(x, state, start).flatten(0, 1)

    def _unrolled(self, x: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """`[L, B, F]` to `[L, B, H]`; what the inputs add to the gates is one product for all steps."""
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
        """The same by one call of the native GRU or LSTM.

        The sequences are cut where episodes begin. The pieces stand side by side, as long as the longest of them;
        what is computed beyond the end of a shorter one is not read.
        """
        length, batch, _ = x.shape
        state = state.masked_fill(start[0][:, None], 0.0)
        if not bool(start[1:].any()):
            return self._native(x, state)
        begins = torch.cat((torch.ones_like(start[:1]), start[1:]))  # [L, B]
        env, begin = begins.t().nonzero(as_tuple=True)  # [M], piece by piece, env by env
        piece = begins.t().flatten().cumsum(0).view(batch, length).t() - 1  # [L, B], the piece that a step is in
        place = torch.arange(length, device=x.device)[:, None] - begin[piece]  # [L, B], and where in it
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
        # The switches: biases, layers, dropout, whether gradients may be wanted, both directions, batch first.
        common = (weights, True, self.layers, 0.0, torch.is_grad_enabled(), False, False)
        with _as_precise_as_products():
            if self.kind == "lstm":
                return torch.lstm(x, before, *common)[0]
            return torch.gru(x, before[0], *common)[0]

    def _unpack(self, state: Tensor) -> list[Parts]:
        """The parts of every layer out of states `[B, S]`."""
        parts = state.split(self.size, -1)
        return [parts[layer :: self.layers] for layer in range(self.layers)]

    def _cell(self, gates: Tensor, before: Parts, across: Tensor, bias: Tensor) -> Parts:
        """One step of one layer; `gates` `[B, 3 H or 4 H]` is the input's share of them."""
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


def _as_precise_as_products() -> AbstractContextManager[None]:
    """cuDNN rounds to TF32 unless it is told not to, where matrix products do not: the first ratio would not be 1."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=torch.backends.cuda.matmul.allow_tf32,
    )
