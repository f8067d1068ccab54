"""A diagnosis of a fit: what a careful statistician looks at before trusting it, a line each.

A line asks for attention, and has a "!", if

- the search did not converge, or fewer than two independent kinds of start reached the best optimum;
- there are fewer than `VALUES` observed values for each free parameter;
- a state is expected at fewer than `STEPS` steps, or sits on a single point;
- an estimate is at the end of its range, so it has no standard error, except probabilities of the first state, which
  few sequences always put there;
- a state's expected duration is longer than the longest sequence, or shorter than `SHORTEST` steps;
- the mean probability of the most probable state is below `CERTAIN`;
- residuals fail the test of normality of Jarque & Bera 1980, or the test of Ljung & Box of their autocorrelations or of
  those of their squares, at the level `LEVEL`, or one is more than `FAR` standard deviations out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import jarque_bera

from ...inference.numerics.randomness import Seed
from ..data.series import Series
from ..data.timeline import label_text
from ..views.summary import on_points, states_table
from .residuals import LAGS, Residuals, has_residuals, residuals

VALUES, STEPS, SHORTEST, CERTAIN, LEVEL, FAR = 10, 5.0, 1.5, 0.8, 0.01, 4.0
FEWEST = 8  # residuals that can be tested
NAMED = 3  # parameters that are named


class Finding(NamedTuple):
    """A line of a diagnosis."""

    subject: str
    text: str
    good: bool


LAST = Finding("data", "the last batch with which the fit was continued; lines about their amount are left out", True)
SHARE = Finding("data", "those of this process of several; lines about their amount are left out", True)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The findings about a fit; printed, a line for each."""

    findings: tuple[Finding, ...]

    @property
    def concerns(self) -> tuple[Finding, ...]:
        """The findings that ask for attention."""
        return tuple(finding for finding in self.findings if not finding.good)

    def __str__(self) -> str:
        width = max(len(finding.subject) for finding in self.findings)
        return "\n".join(f"{' ' if good else '!'} {subject:<{width}}  {text}" for subject, text, good in self.findings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"


def diagnose(fit: Any, series: Series, seed: Seed = 0) -> Diagnosis:
    """The diagnosis of a fit: see `Fit.diagnose`."""
    of_states, has_all = bool(fit.model.chain_sizes) and not fit.model.latents, fit.has_all
    findings = [*_search(fit), _size(fit, series) if has_all else LAST if fit.updates else SHARE]
    if of_states and has_all:
        findings.append(_rare(fit, series))
    findings.append(_boundaries(fit))
    if of_states and has_all:
        findings.append(_durations(fit, series))
    if of_states:
        findings.append(_certainty(fit, series))
    if has_residuals(fit.model.problem(series)):
        findings += _tests(residuals(fit.model, series, seed))
    return Diagnosis(tuple(findings))


def _search(fit: Any) -> Iterator[Finding]:
    steps = f"{fit.method} {'converged' if fit.converged else 'did not converge'} after {fit.steps} steps"
    yield Finding("search", steps, fit.converged)
    of_starts = f"{int(fit.restarts.agrees.sum())} of {len(fit.restarts)} starts"
    kinds = f"{fit.agreeing} of {fit.n_kinds} independent kinds of start, {of_starts}, reached the best optimum"
    yield Finding("starts", kinds, bool(fit.agreeing >= 2))


def _size(fit: Any, series: Series) -> Finding:
    values = int((~torch.isnan(series.rows)).sum())
    n = fit.n_parameters
    return Finding("parameters", f"{n} free, for {values} observed values", values >= VALUES * n)


def _rare(fit: Any, series: Series) -> Finding:
    table, n_steps = states_table(fit, series), int((series.last + 1).sum())
    share = table["share of steps"]
    text = f"{share.idxmin()} is rarest, expected at {share.min() * n_steps:.1f} of {n_steps} steps"
    single = [f"{name}{where}" for name, where in on_points(fit).items()]
    text += f'; on a single point: {", ".join(single)} (prior="weak" bounds the likelihood)' if single else ""
    return Finding("rare states", text, bool(share.min() * n_steps >= STEPS) and not single)


def _boundaries(fit: Any) -> Finding:
    table = fit.summary().parameters
    skipped = {*fit.fixed, "initial_probs"}
    if fit.model.chain_sizes == (1,):  # no moves
        skipped |= {*fit.model.dynamics.parameters}
    names = [name for name in table.index[table["standard error"].isna()] if name.partition("[")[0] not in skipped]
    without = not fit.model.differentiable or (not fit.has_all and fit.posterior is None)
    if without or len(names) == len(table):
        return Finding("boundaries", "unknown, because there are no standard errors", True)
    others = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    at_ends = f"at the end of their range, or undetermined: {', '.join(names[:NAMED])}{others}"
    return Finding("boundaries", at_ends if names else "no estimate is at the end of its range", not names)


def _durations(fit: Any, series: Series) -> Finding:
    durations, longest = states_table(fit, series)["expected duration"], int(series.last.max()) + 1
    text = f"expected to last {durations.min():.3g} to {durations.max():.3g} steps; the longest sequence has {longest}"
    within = durations.min() >= SHORTEST and durations.max() <= longest
    return Finding("durations", text, len(durations) == 1 or bool(within))


@torch.no_grad()
def _certainty(fit: Any, series: Series) -> Finding:
    model, problem = fit.model, fit.model.problem(series)
    values = model.values_like(series.like)

    def best(part: Any) -> dict[str, Any]:
        tables = model.probabilities(part.chain(model.product_of(values)), values)
        return {n: table.amax(-1) for n, (table, _) in tables.items() if n.startswith("state_probability")}

    mean = min(float(table.mean()) for table in problem.steps(best).values())
    return Finding("certainty", f"the most probable state has probability {mean:.2f} on average", mean >= CERTAIN)


def _tests(found: Residuals) -> Iterator[Finding]:
    n = int(found.n_observed.min())
    lags = found.lags_with_pairs(min(LAGS, max(map(len, found.sequences)) // 5))
    if n < FEWEST:
        yield Finding("residuals", f"{n}, too few for tests", True)
        return
    tested = {name: _normality(found.table[name].dropna().to_numpy()) for name in found.table}
    worst = min(tested, key=tested.__getitem__)
    sizes = found.table.abs().max(axis=1)
    where = sizes.index[int(np.nanargmax(sizes))]
    at = ", ".join(map(label_text, where)) if isinstance(where, tuple) else label_text(where)
    text = f"normality p = {tested[worst]:.2g}{_of(worst, found)}; the largest is {sizes.max():.1f} at {at}"
    yield Finding("residuals", text, tested[worst] >= LEVEL and float(sizes.max()) <= FAR)
    if not lags:
        yield Finding("autocorrelation", "unknown, because too few residuals follow each other", True)
        return
    squared = replace(found, table=found.table**2, sequences=tuple(one**2 for one in found.sequences))
    for subject, series in (("autocorrelation", found), ("of squares", squared)):
        p = series.ljung_box(lags)["p_value"]
        yield Finding(
            subject, f"Ljung-Box at {lags} lags p = {p.min():.2g}{_of(p.idxmin(), found)}", bool(p.min() >= LEVEL)
        )


def _normality(values: np.ndarray) -> float:
    """The p-value of the test of Jarque and Bera."""
    test: Any = jarque_bera(values)
    return float(test.pvalue)


def _of(name: Any, found: Residuals) -> str:
    """The feature with the least p, if there are several."""
    return f" ({name})" if found.table.shape[1] > 1 else ""
