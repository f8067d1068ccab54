r"""How many past observations an exact filter needs: the worst case over all beliefs that may come with them.

Take the filter of a copy chain through w observations up to step t, from any belief about the state before them. Given
the observations, the states that follow are a Markov chain, whose step k holds the old state s with the probability

$$\eta_k(s) = P(z_k{=}0 \mid s_{k-1}{=}s, x_{k:t}) = \frac{held_k(s)\, b_k(s)}{b_{k-1}(s)}, \qquad
b_{k-1}(s) = held_k(s)\, b_k(s) + \textstyle\sum_{s'} fresh_k(s')\, b_k(s'), \quad b_t = 1,$$

and else draws from $\varphi_k(s') \propto fresh_k(s')\, b_k(s')$, which does not depend on s. A filter that is sure of
s ends in row s of

$$Q_{w+1} = (\text{diag}\, \eta_k + (1 - \eta_k)\, \varphi_k^T)\, Q_w, \qquad k = t - w, \quad Q_0 = I,$$

and one that comes with the belief a ends in the mixture of rows with the weights $\bar a \propto a \odot b_{k-1}$.

**Worst case.** Let all beliefs that may come lie in the convex hull of some V. The total variation between the ends of
a and of the restart from state_probs $\pi$ is convex in $\bar a$, and $a \mapsto \bar a$ takes hulls to hulls, so it is
greatest at one of V:

$$\sup_a TV(a_t, \tilde a_t) = e_w = \max_{a \in V} TV(\bar a^T Q_w, \bar\pi^T Q_w).$$

In general V is the filters that are sure of a state, and no smaller bound holds for all beliefs. A step brings rows
nearer by the factor $\max_s \eta_k(s)$ or a smaller one; the product of these is a bound, too, but takes at each step
the state that is held best, for any evidence about others.

**Gated emissions.** There a held step weighs all states alike: the filter is a mean of the belief before and of
$r_x(s) \propto \pi_s\, p(x \mid s)$, as a minGRU is of its candidates. So no observations lead out of the hull of
all $r_x$, with that of nothing observed, $\pi$. Where x has few values these are V.

**Longer windows.** What enters the last w of more observations is a belief in the hull, too, so $e_v$ for v > w is at
most the greatest TV of two ends from there, and that at most $2 e_w$. The search ends where this is within the
tolerance.

**Rounding.** $R(s) \leftarrow \eta_k(s) (R(s) - \varphi_k^T R)$ is Q up to a row that all share, and right relative to
its size: a step errs by $16\, w u \max_s |R(s)|$ at most, u for the weights of one step, and errors of later steps
shrink by $\max \eta$. A filter in floats errs relatively by v a step; that is another belief, by v in total variation,
of which the j observations after it leave $d_j$ at most, twice the $e_j$ of all beliefs: two filters part by
$2 v \sum_{j < w} \min(1, d_j)$. The bound holds both.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from ...switching.data.series import Series
from ...switching.emissions.gated import Gated
from ...switching.model import SwitchingSSM
from .windows import Forgetting, all_inputs, check_rounding

AT_ONCE = 2**22  # numbers in the tables R of the steps that are searched together
MOST_CORNERS = 1024  # of the beliefs that may come


def filter_forgetting(model: SwitchingSSM, x: Any, tol: float) -> Forgetting:
    """The windows of `forgetting` for the exact filter of a model; see there."""
    if not model.dynamics.holds or model.n_inputs:
        raise ValueError(
            f"layer_or_model: the model has dynamics {model.dynamics}; windows are certified for the filter of "
            "Copy(n_states) without inputs."
        )
    series = model.read(x)
    series.check_plain("this study")
    model.filter(series)  # raises an error for impossible observations
    chain: Any = model.chain(series)  # with a gate, as was seen to: it has these two tables
    shape, dtype = chain.log_fresh.shape, chain.log_fresh.dtype
    fresh, held = (
        table.detach().double().expand(shape).reshape(-1, *shape[-2:]) for table in (chain.log_fresh, chain.log_held)
    )
    log_prior = model.values["state_probs"].detach().to(fresh).log()
    corners = _corners(model, series)
    window = torch.where(series.inside, all_inputs(series.observations), 0).reshape(fresh.shape[:-1]).clone()
    bound, least = torch.zeros_like(fresh[..., 0]), 0.0
    cut = (window > 1).nonzero()
    size = shape[-1] * max(shape[-1], 0 if corners is None else len(corners))
    for some in cut.split(max(1, AT_ONCE // size)) if len(cut) else ():
        row, t = some.unbind(-1)
        search = _Search(fresh, held, log_prior, corners, torch.finfo(dtype).eps, row, t)
        window[row, t], bound[row, t], reached = search.run(tol)
        least = max(least, reached)
    check_rounding(tol, least, dtype)
    return Forgetting(window.reshape(shape[:-1]), bound.reshape(shape[:-1]), tol)


def _corners(model: SwitchingSSM, series: Series) -> Tensor | None:
    """Logs [V, K] of beliefs whose convex hull no observations leave; None where that is all beliefs."""
    emission = model.emission
    if not isinstance(emission, Gated):
        return None
    if emission.support is constraints.boolean:
        levels = [0, 1]
    elif isinstance(emission.support, constraints.integer_interval):
        levels = range(emission.support.lower_bound, emission.support.upper_bound + 1)
    else:
        return None
    if (len(levels) + 1) ** emission.n_features > MOST_CORNERS:
        return None
    seen = torch.tensor([*levels, torch.nan]).to(series.observations)
    every = torch.cartesian_prod(*[seen] * emission.n_features).reshape(-1, 1, emission.n_features)
    chain: Any = model.chain(every)
    corners = chain.log_fresh[:, 0].detach().double().log_softmax(-1)
    return corners[~corners.isnan().any(-1)]  # what no state emits is never observed


@dataclass(frozen=True)
class _Rows:
    """The distance between rows of Q for n windows, and its rounding error."""

    log_b: Tensor  # [n, K], up to a constant
    apart: Tensor  # [n, K, K]: R
    error: Tensor  # [n]: of TV between two rows

    def earlier(self, fresh: Tensor, held: Tensor, unit: Tensor) -> "_Rows":
        """The rows of windows with one observation more, whose tables [n, K] are given."""
        weights = fresh + self.log_b
        drawn = weights.logsumexp(-1, keepdim=True)
        kept = held + self.log_b
        log_b = torch.logaddexp(kept, drawn)
        hold = (kept - log_b).nan_to_num(nan=-torch.inf).exp()
        redraw = (weights - drawn).nan_to_num(nan=-torch.inf).exp()
        apart = hold[..., None] * (self.apart - torch.einsum("nk,nks->ns", redraw, self.apart)[:, None])
        size = 0.5 * self.apart.abs().sum(-1).amax(-1)
        error = hold.amax(-1) * (self.error + 16 * unit * size)
        return _Rows(log_b - log_b.amax(-1, keepdim=True), apart, error)

    def worst(self, log_prior: Tensor, unit: Tensor, corners: Tensor | None = None) -> Tensor:
        """Total variation [n] of the filters that came with any belief, or with one in the hull of `corners` [V, K],
        from the one that restarts; 1 where that cannot be.
        """
        size = 0.5 * self.apart.abs().sum(-1).amax(-1)
        restart = (log_prior + self.log_b).softmax(-1)
        ends, possible = self.apart, ~self.log_b.isneginf()
        if corners is not None:
            weights = corners + self.log_b[:, None]
            possible = ~weights.isneginf().all(-1)
            ends = torch.where(possible[..., None], weights.softmax(-1), 0) @ self.apart
        away = 0.5 * (ends - torch.einsum("nk,nks->ns", restart, self.apart)[:, None]).abs().sum(-1)
        away = torch.where(possible, away, 0).amax(-1)
        return (away + self.error + 8 * unit * size).nan_to_num(nan=1).clamp(max=1)

    def part(self, some: Tensor) -> "_Rows":
        return _Rows(self.log_b[some], self.apart[some], self.error[some])


@dataclass(frozen=True)
class _Search:
    """The windows of the steps t [n] of the sequences `row` [n], whose tables are [N, T, K]."""

    fresh: Tensor
    held: Tensor
    log_prior: Tensor
    corners: Tensor | None
    eps: float
    row: Tensor
    t: Tensor

    def run(self, tol: float) -> tuple[Tensor, Tensor, float]:
        """The windows and their bounds [n], and the least tolerance where rounding is beyond `tol`, else 0."""
        window, bound, least = self.t + 1, torch.zeros_like(self.fresh[self.row, 0, 0]), 0.0
        unit, own_rounding = self._roundings()
        rounding, at, rows = 2 * own_rounding, torch.arange(len(self.t), device=self.t.device), self._start()
        for w in range(1, int(self.t.max()) + 1):
            row, t = self.row[at], self.t[at]
            rows = rows.earlier(self.fresh[row, t - w + 1], self.held[row, t - w + 1], w * unit[at])
            anyhow = worst = rows.worst(self.log_prior, w * unit[at])
            if self.corners is not None:
                worst = rows.worst(self.log_prior, w * unit[at], self.corners)
            total = worst + rounding[at]
            fine, first = total <= tol, window[at] > t
            window[at] = torch.where(fine, window[at].clamp(max=w), t + 1)
            bound[at] = torch.where(fine, torch.where(first, total, bound[at]), 0)
            beyond = rounding[at] > tol
            inherited = 2 * own_rounding[at] * (2 * anyhow).clamp(max=1)  # from rounding before the window, per step
            longer = rounding[at] + 2 * worst + inherited * (t - w)  # bounds what any longer window has
            rounding[at] += inherited
            known = longer <= (1.01 * rounding[at]).clamp(min=tol)
            over = beyond & (known | (t == w))
            if over.any():
                least = max(least, float(torch.where(known, longer, rounding[at])[over].max()))
            going = ~known & (t > w)
            at, rows = at[going], rows.part(going)
            if not len(at):
                break
        return window, bound, least

    def _roundings(self) -> tuple[Tensor, Tensor]:
        """What a step of R errs by [n], relative to its size, for each observation of the window; a filter's step."""
        size = torch.zeros_like(self.fresh[:, 0, 0])
        for table in (self.fresh, self.held):
            size = torch.maximum(size, torch.where(table.isinf(), 0, table.abs()).flatten(1).amax(-1))
        unit = torch.finfo(size.dtype).eps * (8 * size + self.fresh.shape[-1] + 8)
        return unit[self.row], (self.eps * (2 * size + 8))[self.row]

    def _start(self) -> _Rows:
        n_states = self.fresh.shape[-1]
        zeros = self.fresh.new_zeros(len(self.t), n_states)
        return _Rows(zeros, torch.eye(n_states).to(zeros).expand(len(self.t), -1, -1), zeros[:, 0])
