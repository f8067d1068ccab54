"""Steps of training."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Descent:
    """Steps of Adam at a rate that falls to 0 as a cosine does.

    Arguments:
        clipped: whether gradients have a norm of 1 at most.
    """

    def __init__(self, parameters: Iterable[Tensor], rate: float, n_steps: int, clipped: bool = True) -> None:
        self._parameters, self._clipped = list(parameters), clipped
        self._optimizer = torch.optim.Adam(self._parameters, rate)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, n_steps)

    def step(self, loss: Tensor) -> None:
        """Change the parameters by the gradient of a loss."""
        self._optimizer.zero_grad()
        loss.backward()
        if self._clipped:
            nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._schedule.step()
