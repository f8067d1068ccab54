"""`Result`: the values, posterior and diagnostics of a fit."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..parameters import Parameters
from .climbs import SearchResult
from .report import Report


@dataclass(frozen=True, repr=False, kw_only=True)
class Result:
    """The outcome of a fit.

    Attributes:
        values: the fitted parameters.
        method: the method of the fit, e.g. "em".
        objective: `[steps]`, the objective after each step of the best restart. For minibatches: the estimate of the
            bound in each pass, and at the end the bound itself.
        converged: whether the best restart met the tolerance.
        reason: why the best restart ended, in words; whether few kinds of start have reached this optimum, and how far
            above it a better one may then lie.
        steps: the number of steps of the best restart.
        restarts: a table with one row for each start: its kind, its steps, its last objective, how it ended
            ("converged"; "left behind": stopped, as others were better; "merged": stopped at the same point as a
            better one; "failed": dropped, because it reached impossible numbers; "max_steps"; "interrupted"), whether
            it reached the best objective within 0.01 nats, and whether its start is independent of the ends of others.
            If data are in files or shared by processes, these are the restarts of the search on a sample.
        empty_states: `[K]`, states with less than one expected step. Their parameters have the values of the prior;
            under maximum likelihood, the last values with any support. For a model of several chains: one tensor for
            each.
        collapsed_states: `[K]`, states that have collapsed onto a single point under maximum likelihood. The likelihood
            has no maximum there, so the variance is kept at a floor.
        interrupted: whether Ctrl-C ended the fit; the best so far is kept.
        posterior: the parameters' distribution, and predictions that average over it; None for a fit by EM.
        paths: for a model of several chains, the marginals of each chain under q. If sequences differ in length, each
            access pads them anew.
        fixed: the names of the parameters with fixed entries, all or some.
        held: the tables of these, with NaN where an entry was free.
        updates: the number of batches with which `Fit.update` has continued the fit.
        shared: whether several processes shared the data.
        report: the time that the fit took, and the rows that it went through: see `Report`.
        origin: the inputs at which the constants of `values` are stated, a number for each input of the model; None:
            inputs 0.
        kept: of a fit that was saved without its data, what it knows of them: see `stored_fit.Kept`.
        running: of a continued fit by EM, its statistics of all data so far: see `fitting.streaming`.
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
    posterior: Any = None  # a Posterior; its methods depend on the model
    paths: Any = None
    fixed: tuple[str, ...] = ()
    held: Parameters = field(default_factory=dict)
    updates: int = 0
    shared: bool = False
    report: Report = field(default=Report(), compare=False)
    origin: Any = None
    running: Any = None
    kept: Any = field(default=None, compare=False)

    @property
    def has_all(self) -> bool:
        """Whether the fit still has all its data: it is not continued, and no other process has some."""
        return not self.updates and not self.shared


def result_of(
    search: SearchResult,
    method: str,
    values: Parameters,
    empty: Tensor | tuple[Tensor, ...],
    posterior: Any = None,
    collapsed: Tensor | None = None,
    **more: Any,
) -> Result:
    """The outcome of a search, with the states that are empty or have collapsed."""
    none = tuple(map(torch.zeros_like, empty)) if isinstance(empty, tuple) else torch.zeros_like(empty)
    known = diagnostics(search)
    return Result(
        values=values,
        method=method,
        empty_states=empty,
        collapsed_states=none if collapsed is None else collapsed,
        posterior=posterior if method == "vmp" else None,
        **known | {"reason": known["reason"] + _unused(empty)},
        **more,
    )


def _unused(empty: Tensor | tuple[Tensor, ...]) -> str:
    """The states without steps, and what to try."""
    n = sum(int(some.sum()) for some in (empty if isinstance(empty, tuple) else (empty,)))
    if not n:
        return ""
    states = "1 state has" if n == 1 else f"{n} states have"
    return f"; {states} less than one expected step: try fewer states, or more restarts"


def only_start(cut_off: str, method: str) -> dict[str, Any]:
    """The fields of a fit that was interrupted before its method had a result, so it has the result of another method.

    Arguments:
        cut_off: the method that was interrupted, such as a sampler without a draw.
        method: the method of the fit from which it starts.
    """
    reason = (
        f"not converged: interrupted before the first result of {cut_off}; this is the fit by {method} where it starts"
    )
    return {"method": method, "converged": False, "reason": reason, "interrupted": True}


def diagnostics(search: SearchResult) -> dict[str, Any]:
    """The diagnostics of a search, as fields of a `Result`."""
    return {
        "objective": torch.tensor(search.best.trace, dtype=torch.float64, device="cpu"),
        "converged": search.best.ended == "converged" and not search.interrupted,
        "reason": search.reason,
        "steps": len(search.best.trace),
        "restarts": search.table,
        "interrupted": search.interrupted,
    }
