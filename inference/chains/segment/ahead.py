"""The belief about the segment in force at each step, given the steps before it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ...numerics.logs import log_sum_exp
from .plain import EVERY, Bound, empty, grown, without
from .tables import Tables


def before_each(tables: Tables) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """At each step the probabilities [N, R] of the beginnings of its segment, the last of them that of a change, and by
    block the natural parameters [N, R, F, D] under each. `tol` leaves beginnings out, as in `plain.forward`."""
    T, device = tables.n_steps, tables.lengths.device
    live, spent = empty(tables), torch.zeros_like(tables.log_base[:, 0])
    a, hold, prior = spent, live.weight, tables.prior_evidence()
    bound, death = None if tables.tol == 0 else Bound(tables), torch.full_like(tables.log_base, T, dtype=torch.int64)
    for t in range(T):
        if t:
            change, hold = tables.change(torch.tensor(t, device=device), t - live.start)
            a = log_sum_exp(live.weight + change, -1)
        weight = torch.cat([live.weight + hold, a.unsqueeze(-1)], -1).exp()
        natural = tuple(
            torch.cat([eta.unsqueeze(1) + part, eta.unsqueeze(1)], 1)
            for eta, part in zip(tables.priors, live.sums, strict=True)
        )
        yield weight, natural
        live = grown(tables, live, t, a, hold, prior)
        live = live._replace(weight=live.weight - log_sum_exp(live.weight, -1).unsqueeze(-1))
        live = without(live, live.weight == -torch.inf)
        if bound is not None and t % EVERY == EVERY - 1 and t + 1 < T:
            live, spent = bound.shortened(live, t, spent, death)
