r"""Draws of the parameters of `StickyHDP` given the counts n of moves and first states, by their auxiliary variables.

With the rows integrated out, the counts $n_{jk}$ are customers of a restaurant j with the concentration $c_{jk}$ for
dish k. They sit at $m_{jk}$ tables, of which $w_j$ of the diagonal come from $\kappa$ and not from the base, and the
others, $\bar m$, are draws from the base:

    m_jk                 sum_i Bernoulli(c_jk / (c_jk + i)), i < n_jk
    w_j                  Binomial(m_jj, kappa / (alpha beta_j + kappa))
    gamma                from tables of tables, with beta integrated out
    beta                 Dir(gamma / L + sum_j mbar_jk)
    alpha + kappa = s    a Gamma density, given u_j ~ Beta(s + 1, n_j) and t_j ~ Bernoulli(n_j / (n_j + s))
    rho                  a Beta density times that of the first states, by slice sampling
    rows                 Dir(c + n)

Together they leave the posterior given the path invariant.

Sources: Fox, Sudderth, Jordan & Willsky 2011, supplement; Teh et al. 2006, appendix A; Escobar & West 1995; Neal 2003.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Beta, Binomial

from ...inference.families import Dirichlet, Gamma
from ..parameters import Parameters
from .hierarchical_rows import LEAST, N_HYPER, HierarchicalRows, concentrations

ROUNDS = 5  # draws of base and concentrations for each draw of the rows
SHRINKS = 200  # of a slice, which then has the width of a rounding
TINY = 1e-12  # distance of a share from 0 and 1


def draw_tables(n: Int[Tensor, "*r"], concentration: Float[Tensor, "*r"]) -> Int[Tensor, "*r"]:
    """The numbers of tables at which n customers of restaurants with these concentrations sit."""
    customers = n.flatten()
    entry = torch.repeat_interleave(torch.arange(len(customers), device=n.device), customers)
    place = torch.arange(len(entry), device=n.device) - (customers.cumsum(0) - customers)[entry]
    known = concentration.flatten()[entry]
    opened = torch.rand(place.shape, dtype=known.dtype, device=n.device) * (known + place) < known
    return torch.zeros_like(customers).index_add_(0, entry, opened.long()).reshape(n.shape)


def draw_normalizer(
    concentration: Float[Tensor, "*r"], n: Int[Tensor, "*r"]
) -> tuple[Float[Tensor, "*r"], Float[Tensor, "*r"]]:
    """Auxiliary variables (t, log u) of c: the normaliser of n customers becomes $c^{-t} u^c$. 0 without customers."""
    some = n > 0
    customers = n.to(concentration).clamp_min(1.0)
    log_u = Beta(concentration + 1, customers).sample().log()
    t = torch.rand_like(concentration) * (customers + concentration) < customers
    return torch.where(some, t.to(concentration), 0.0), torch.where(some, log_u, 0.0)


def draw_concentrations(eta: Float[Tensor, "*r P"], values: Parameters, at: Parameters) -> Parameters:
    """All parameters of a hierarchy, given natural parameters with the counts of paths, and the values before.

    Arguments:
        at: base and concentrations, if they are held.
    """
    n = HierarchicalRows(values["base_probs"].shape[-1]).counts(eta).round().long()
    now = {name: table.double() for name, table in values.items()}
    now |= {name: table.to(now[name]).expand(now[name].shape) for name, table in at.items()}
    for _ in range(0 if at else ROUNDS):
        now |= _draw_hyper(n, eta[..., -N_HYPER:].double(), now)
    rows = concentrations(now["base_probs"], now["row_concentration"], now["stickiness"])
    names = "transition_probs", "initial_probs"
    for name, row, counted in zip(names, rows, (n[..., :-1, :], n[..., -1, :]), strict=True):
        now[name] = Dirichlet().sample(row + counted, 1)[0].clamp_min(LEAST)  # the density is infinite at 0
    return {name: now[name].to(values[name]) for name in values}


def _draw_hyper(n: Int[Tensor, "*r J L"], prior: Float[Tensor, "*r 6"], now: Parameters) -> Parameters:
    """Base and concentrations given the counts, with the rows integrated out."""
    total, share = now["row_concentration"], now["stickiness"]
    moved, first = concentrations(now["base_probs"], total, share)
    tables = draw_tables(n, torch.cat([moved, first.unsqueeze(-2)], -2))
    of_base, override = _split(tables, moved, first)
    gamma = _draw_base(of_base, now["base_concentration"], prior)
    base = Dirichlet().sample((gamma / n.shape[-1]).unsqueeze(-1) + of_base, 1)[0].clamp_min(LEAST)
    counted = n.sum(-1)
    begun, log_begun = draw_normalizer(total * (1 - share), counted[..., -1])
    t, log_u = draw_normalizer(total.unsqueeze(-1).expand(counted[..., :-1].shape), counted[..., :-1])
    shape = prior[..., 2] + tables.sum((-2, -1)) - t.sum(-1) - begun
    rate = -prior[..., 3] - log_u.sum(-1) - (1 - share) * log_begun
    total = Gamma().sample(Gamma().natural(shape, rate), 1)[0]
    ends = prior[..., 4] + override, prior[..., 5] + of_base.sum(-1) - begun
    return {
        "base_concentration": gamma,
        "row_concentration": total,
        "stickiness": _draw_share(*ends, -total * log_begun, share),
        "base_probs": base,
    }


def _split(tables: Int[Tensor, "*r J L"], moved: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of tables of each dish that come from the base, `[*r, L]`, and of those that do not."""
    stay = tables[..., :-1, :].diagonal(dim1=-2, dim2=-1).double()
    from_base = (first / moved.diagonal(dim1=-2, dim2=-1)).clamp(0.0, 1.0)
    override = Binomial(stay, 1 - from_base).sample()
    return tables.sum(-2) - override, override.sum(-1)


def _draw_base(of_base: Float[Tensor, "*r L"], gamma: Float[Tensor, "*r"], prior: Tensor) -> Float[Tensor, "*r"]:
    """gamma given the tables, which are draws from the base."""
    shares = (gamma / of_base.shape[-1]).unsqueeze(-1).expand_as(of_base)
    tables = draw_tables(of_base.long(), shares).sum(-1)
    t, log_u = draw_normalizer(gamma, of_base.sum(-1).long())
    return Gamma().sample(Gamma().natural(prior[..., 0] + tables - t, -prior[..., 1] - log_u), 1)[0]


def _draw_share(a: Tensor, b: Tensor, rise: Tensor, now: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    r"""A draw that leaves $\rho^{a-1} (1-\rho)^{b-1} e^{-rise (1-\rho)}$ invariant, by a slice that shrinks from
    (0, 1)."""

    def height(rho: Tensor) -> Tensor:
        return (a - 1) * rho.log() + (b - 1) * torch.log1p(-rho) - rise * (1 - rho)

    low, high = torch.full_like(now, TINY), torch.full_like(now, 1 - TINY)
    now = now.clamp(TINY, 1 - TINY)
    level = height(now) + torch.rand_like(now).log()
    drawn, found = now, torch.zeros_like(now, dtype=torch.bool)
    for _ in range(SHRINKS):
        tried = low + (high - low) * torch.rand_like(now)
        inside = height(tried) >= level
        drawn, found = torch.where(inside & ~found, tried, drawn), found | inside
        if bool(found.all()):
            break
        low = torch.where(~found & (tried < now), tried, low)
        high = torch.where(~found & (tried >= now), tried, high)
    return drawn
