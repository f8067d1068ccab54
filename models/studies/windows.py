"""How many past inputs each step needs: the record, and how it is found from bounds for ever longer windows."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.records import Record


@dataclass(frozen=True, repr=False)
class Forgetting(Record):
    """For each step the least number of last inputs, itself among them, that certify the output to `tol`.

    Both tables are 0 beyond the end of a sequence.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.9, state_probs=[0.5, 0.5], loc=[[-3], [3]], scale=[[1], [1]])
        >>> found = sh.forgetting(model, [-3.1, -2.8, 3.2, 0.1, 3.0, -3.2], tol=0.05)
        >>> found.window, found.longest  # a redraw forgets, and most steps redraw
        (tensor([1, 2, 2, 2, 2, 2]), 2)
    """

    window: Int[Tensor, "*b T"]
    bound: Float[Tensor, "*b T"]  # proved, with that window: of any unit's error, or a filter's total variation
    tol: float

    @property
    def longest(self) -> int:
        """The window that serves every step."""
        return int(self.window.max()) if self.window.numel() else 0


def all_inputs(x: Float[Tensor, "*b T F"]) -> Int[Tensor, "*b T"]:
    """1, 2, ..., T for each sequence."""
    return torch.arange(1, x.shape[-2] + 1, device=x.device).expand(x.shape[:-1])


def first_windows(bounds: Iterable[Tensor], x: Tensor, tol: float) -> Forgetting:
    """The least window of each step, from the bounds of windows 1, 2, .."""
    window, bound = all_inputs(x).clone(), x.new_zeros(x.shape[:-1])
    found = torch.zeros_like(window, dtype=torch.bool)
    for j, errors in enumerate(bounds, 1):
        here = (errors <= tol) & ~found[..., j - 1 :]
        window[..., j - 1 :][here] = j
        bound[..., j - 1 :][here] = errors[here]
        found[..., j - 1 :] |= here
        if found.all():
            break
    return Forgetting(window, bound, tol)
