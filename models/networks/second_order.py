r"""Second-order networks: a step multiplies the input and the state.

$$h' = \phi\Big(\sum_{i,j} W_{\cdot i j}\, x_i h_j + b\Big)$$

For one-hot inputs each symbol has its own matrix on the state. If $\phi$ is the identity and b = 0, **this is a
weighted automaton**: $A_x^\top = W_{\cdot x \cdot}$, and its initial vector is the state before the first step, a
parameter here (Rabusseau, Li & Precup 2019). `samplehold.models.automata.second_order` converts one into the other.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...inference.numerics.checks import check_dtype
from ...inference.numerics.scalars import check_choice
from .inputs import Observed, check_state, weight_of
from .recurrent import Reading, Recurrent, name_of


class SecondOrder(Recurrent):
    r"""A second-order recurrent layer, which multiplies input and state, with a trained state before the first step.

    Arguments:
        input_size, hidden_size, num_layers, batch_first, dropout, bidirectional, device, dtype: as of `GRU`.
        bias: whether there are offsets; without them a linear layer is a weighted automaton.
        nonlinearity: "linear", or "tanh" (Giles et al. 1992 take a sigmoid).

    Parameters: `weight_l<k>` [D, inputs, D], indexed [new, input, old], `bias_l<k>` [D], `start_l<k>` [D]. States are
    [num_layers, *batch, D].

    Raises:
        TypeError, ValueError: as for `MinGRU`; an unknown nonlinearity.

    Rabusseau, Li & Precup 2019, *Connecting weighted automata and recurrent neural networks through spectral learning*;
    Giles et al. 1992, *Learning and extracting finite state automata with second-order recurrent neural networks*.

    See Also:
        `as_second_order`, which makes it of an automaton; `Elman`, which adds input and state;
        docs/background/automata.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.automata.SecondOrder(input_size=3, hidden_size=4), torch.randn(2, 9, 3)
    >>> out, h = layer(x, lengths=[9, 5])
    >>> out.shape, h.shape, torch.equal(h[0, 1], out[1, 4])
    (torch.Size([2, 9, 4]), torch.Size([1, 2, 4]), True)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = False,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        nonlinearity: str = "linear",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_dtype("dtype", dtype)
        self.nonlinearity: str = check_choice("nonlinearity", nonlinearity, ("linear", "tanh"))
        for layer, reverse in self._each():
            start = nn.Parameter(torch.empty(self.hidden_size, device=device, dtype=dtype))
            self.register_parameter(name_of("start", layer, reverse), start)
        self._make_parameters(device, dtype)

    def reset_parameters(self) -> None:
        """Draw weights and offsets as other layers do, and the first states uniformly within 1."""
        super().reset_parameters()
        for layer, reverse in self._each():
            nn.init.uniform_(getattr(self, name_of("start", layer, reverse)), -1.0, 1.0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, nonlinearity={self.nonlinearity!r}"

    def _shape(self, layer: int) -> tuple[int, ...]:
        return self.hidden_size, self.layer_inputs(layer), self.hidden_size

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> Tensor:
        starts = [getattr(self, name_of("start", *each)).expand(*batch, -1) for each in self._each()]
        return torch.stack(starts)

    def _started(self, hx: Any, x: Tensor, batch: torch.Size, name: str = "hx") -> list[Tensor]:
        if hx is None:
            return list(self._initial(batch, x).unbind())
        expected = (self.num_layers * self._directions, *batch, self.hidden_size)
        return list(check_state(name, hx, expected, weight_of(self, hx)).unbind())

    def _sweep(self, rows: Tensor, start: Tensor, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Tensor]:
        if not rows.shape[-2]:
            return rows.new_zeros(*rows.shape[:-1], self.hidden_size), start
        weights = self._weights(rows, layer, reverse)
        out, (end,) = Reading(rows, lambda x, state: (self._after(weights, x, *state),)).sweep((start,), some)
        return out, end

    def _step(self, x: Tensor, start: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        state = self._after(self._weights(x, layer), x, start)
        return state, state

    def _after(self, weights: tuple[Tensor, Tensor | None], x: Tensor, state: Tensor) -> Tensor:
        weight, bias = weights
        total = torch.einsum("nij,...i,...j->...n", weight, x, state)
        total = total if bias is None else total + bias
        return total.tanh() if self.nonlinearity == "tanh" else total
