"""How many past inputs each step needs: the record, and its search by bounds for longer and longer windows."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.records import Record


@dataclass(frozen=True, repr=False)
class Forgetting(Record):
    """For each step, how many last inputs determine the output to `tol`, its own included, with a proved bound.

    Both tables are 0 beyond the end of a sequence.

    Attributes:
        window: `[*b, T]`, that number of inputs.
        bound: `[*b, T]`, proved with that window: of the error of any unit, or of the total variation of a filter.
        tol: the error that is allowed.

    See Also:
        `forgetting`, which makes it; `truncation_bound`, for one window; docs/background/forgetting.md, with results.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-3], [3]], scale=[[1], [1]])
        >>> found = sh.studies.forgetting(model, [-3.1, 0.1, 0.0, -0.1, 3.2, 0.2], tol=0.01)
        >>> found.window, found.longest  # what is near 0 tells nothing, and 3.2 all
        (tensor([1, 2, 3, 4, 1, 2]), 4)
    """

    window: Int[Tensor, "*b T"]
    bound: Float[Tensor, "*b T"]
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
    done = torch.zeros_like(window, dtype=torch.bool)
    for j, errors in enumerate(bounds, 1):
        here = (errors <= tol) & ~done[..., j - 1 :]
        window[..., j - 1 :][here] = j
        bound[..., j - 1 :][here] = errors[here]
        done[..., j - 1 :] |= here
        if done.all():
            break
    return Forgetting(window, bound, tol)


def check_rounding(tol: float, least: float, dtype: torch.dtype) -> None:
    """Refuse a tolerance below the least one that rounding allows, `least`."""
    if least > tol:
        digits = 10.0 ** (math.floor(math.log10(least)) - 1)
        least = math.ceil(least / digits) * digits
        cure = "" if dtype == torch.float64 else ", or everything in float64"
        raise ValueError(
            f"tol: got {tol:g}, but rounding in {str(dtype).removeprefix('torch.')} is bounded by {least:.2g} only; "
            f"give a tol of at least {least:.2g}{cure}."
        )
