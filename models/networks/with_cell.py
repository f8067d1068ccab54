"""The base of layers with a cell beside the hidden state, which run step by step."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ...inference.numerics.checks import check_dtype
from .inputs import Observed, check_pair
from .recurrent import Reading, Recurrent

Pair = tuple[Tensor, Tensor]


class WithCell(Recurrent):
    """States are pairs (h, c) [num_layers, *batch, D], whose h is the output; zeros at the start."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_dtype("dtype", dtype)
        self._make_parameters(device, dtype)

    @abstractmethod
    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        """See `Reading`."""

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> Pair:
        zeros = like.new_zeros(self.num_layers * self._directions, *batch, self.hidden_size)
        return zeros, zeros

    def _started(self, hx: Any, x: Tensor, batch: torch.Size, name: str = "hx") -> list[Pair]:
        if hx is None:
            hx = self._initial(batch, self._like(x))
        expected = (self.num_layers * self._directions, *batch, self.hidden_size)
        h, c = check_pair(name, hx, expected, self)
        return list(zip(h.unbind(), c.unbind(), strict=True))

    def _joined(self, ends: list[Pair]) -> Pair:
        h, c = zip(*ends, strict=True)
        return torch.stack(h), torch.stack(c)

    def _sweep(self, rows: Tensor, start: Pair, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Pair]:
        if not rows.shape[-2]:
            return rows.new_zeros(*rows.shape[:-1], self.hidden_size), start
        out, (h, c) = self.reading(rows, layer, reverse).sweep(start, some)
        return out, (h, c)

    def _step(self, x: Tensor, start: Pair, layer: int) -> tuple[Tensor, Pair]:
        reading = self.reading(x, layer)
        state = reading.after(reading.seen, start)
        return state[0], state
