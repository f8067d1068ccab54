"""`Result`: what a fit returns, values, posterior and diagnostics."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..parameters import Parameters
from .search import Found


@dataclass(frozen=True, repr=False, kw_only=True)
class Result:
    """The outcome of a fit.

    Attributes:
        values: the fitted parameters.
        method: how it was fitted, e.g. "em".
        objective: `[steps]`, what was maximised, after each step of the best restart. Of minibatches: the estimate of
            the bound in each pass, and at the end the bound itself.
        converged: whether the best restart met the tolerance.
        reason: why it ended, in words.
        steps: how many steps the best restart took.
        restarts: a table of one row a start: its kind, its steps, its last objective, how it ended ("converged",
            "left behind" by better ones, "max_steps", "interrupted"), and whether that is within 0.01 nats of the best.
        empty_states: `[K]`, states left with less than one expected step: their parameters are those of the prior, or
            under maximum likelihood the last that had any support. Of a model of several chains: one tensor for each.
        collapsed_states: `[K]`, states that sit on a single point under maximum likelihood; the likelihood has no
            maximum there and the variance is held at a floor.
        interrupted: whether Ctrl-C ended the fit; the best so far is kept.
        posterior: the parameters' distribution, and predictions that average over it; None of a fit by EM.
        paths: of a model of several chains, each chain's marginals under q.
        fixed: the names of the parameters that were held.
    """

    values: Parameters
    method: str
    objective: Float[Tensor, "S"]
    converged: bool
    steps: int
    restarts: pd.DataFrame
    empty_states: Bool[Tensor, "K"] | tuple[Tensor, ...]
    collapsed_states: Bool[Tensor, "K"] | tuple[Tensor, ...]
    interrupted: bool = False
    reason: str = ""
    posterior: Any = None  # a Posterior, whose methods differ with the model
    paths: Any = None
    fixed: tuple[str, ...] = ()


def result_of(
    search: Found,
    method: str,
    values: Parameters,
    empty: Tensor | tuple[Tensor, ...],
    posterior: Any = None,
    collapsed: Tensor | None = None,
    **more: Any,
) -> Result:
    """The outcome of a search, at whose end some states are empty or have collapsed."""
    none = tuple(map(torch.zeros_like, empty)) if isinstance(empty, tuple) else torch.zeros_like(empty)
    return Result(
        values=values,
        method=method,
        empty_states=empty,
        collapsed_states=none if collapsed is None else collapsed,
        posterior=posterior if method == "vmp" else None,
        **diagnostics(search),
        **more,
    )


def diagnostics(search: Found) -> dict[str, Any]:
    """How a search went, as fields of a `Result`."""
    return {
        "objective": torch.tensor(search.best.trace, dtype=torch.float64, device="cpu"),
        "converged": search.best.ended == "converged" and not search.interrupted,
        "reason": search.reason,
        "steps": len(search.best.trace),
        "restarts": search.table,
        "interrupted": search.interrupted,
    }
