"""A semi-Markov chain by enumeration: the weight of every path, whose segments are the runs of equal states."""

from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import torch
from hypothesis import strategies as st
from samplehold.face.chains import SemiMarkovChain
from samplehold.inference.chains.semi_markov.chain import equilibrium
from torch import Tensor

NEVER = -torch.inf


@dataclass(frozen=True)
class Answers:
    """What `SemiMarkovChain` gives of one sequence, in float64."""

    log_normalizer: Tensor
    state: Tensor  # [T, K]
    last: Tensor  # [K], P(s_T | x)
    begins: Tensor  # [T, K]
    moves: Tensor  # [T-1, K, K]
    entropy: Tensor
    best: Tensor
    paths: Tensor  # [K^T, T]
    weight: Tensor  # [K^T]


def path_weight(path: tuple[int, ...], tables: tuple[Tensor, ...], *, censored: bool, ends: bool = True) -> Tensor:
    """log P(path, x) of one sequence; `ends` says that its last step is the end, and not a place where it goes on."""
    initial, transition, duration, first, likelihood = tables
    weight, before, begin = likelihood.new_zeros(()), None, 0
    for state, group in groupby(path):
        steps, table = len(list(group)), first if before is None else duration
        last, longest = begin + steps == len(path), table.shape[-1]
        going_on = table[state, steps - 1 :] if last and (censored or not ends) else table[state, steps - 1 : steps]
        into = transition[begin - 1] if before is not None and transition.dim() == 3 else transition
        weight = weight + (initial[state] if before is None else into[before, state])
        weight = weight + (going_on.logsumexp(-1) if steps <= longest else torch.tensor(NEVER))
        weight = weight + likelihood[begin : begin + steps, state].sum()
        before, begin = state, begin + steps
    return weight


def tables_of(chain: SemiMarkovChain, index: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The tables of one sequence in float64, without its padding."""
    first = chain.log_duration if chain.log_first_duration is None else chain.log_first_duration
    given = chain.log_initial, chain.log_transition, chain.log_duration, first, chain.log_likelihood
    sizes = 1, 3 if chain.varies else 2, 2, 2, 2
    whole = (
        x.double().expand(*chain.batch_shape, *x.shape[x.dim() - n :])[index] for x, n in zip(given, sizes, strict=True)
    )
    *tables, likelihood = whole
    return *tables, likelihood[: int(chain.lengths[index])]


def enumerate_segments(chain: SemiMarkovChain, index: tuple[int, ...] = (), ends: bool = True) -> Answers:
    """All that is asked of one sequence of a chain."""
    tables = tables_of(chain, index)
    n_steps, k = tables[-1].shape
    paths = torch.tensor(list(product(range(k), repeat=n_steps)))
    weight = torch.stack([path_weight(tuple(p.tolist()), tables, censored=chain.censored, ends=ends) for p in paths])
    total = weight.logsumexp(0)
    p = (weight - total).exp()
    state = torch.stack([(p.unsqueeze(-1) * (paths == j)).sum(0) for j in range(k)], -1)
    begins_there = torch.cat([torch.ones(len(paths), 1, dtype=torch.bool), paths[:, 1:] != paths[:, :-1]], -1)
    begins = torch.stack([(p.unsqueeze(-1) * ((paths == j) & begins_there)).sum(0) for j in range(k)], -1)
    moves = torch.zeros(n_steps - 1, k, k, dtype=torch.float64)
    for i, j in product(range(k), range(k)):
        if i != j:
            moves[:, i, j] = (p.unsqueeze(-1) * ((paths[:, :-1] == i) & (paths[:, 1:] == j))).sum(0)
    entropy = -(p * torch.where(p > 0, weight - total, 0.0)).sum()
    return Answers(total, state, state[-1], begins, moves, entropy, weight.max(), paths, weight)


@dataclass(frozen=True)
class Tables:
    """Arguments of `SemiMarkovChain`."""

    tables: tuple[Tensor, ...]
    lengths: Tensor | None
    censored: bool
    cut: bool

    def chain(self) -> SemiMarkovChain:
        """The chain; if it is cut out of a long one, its first segment's durations are those of `equilibrium`."""
        options: dict[str, Any] = {"log_first_duration": equilibrium(self.tables[2])} if self.cut else {}
        return SemiMarkovChain(*self.tables, self.lengths, censored=self.censored, **options)


@st.composite
def segment_chains(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (torch.float64,)) -> Tables:
    """Small chains, ragged or not, some of their entries impossible, begun and ended within segments or not."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    k, n_steps, longest = draw(st.integers(2, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    batch, dtype = draw(st.sampled_from([(), (2,)])), draw(st.sampled_from(dtypes))
    hole = draw(st.sampled_from([0.0, 0.3]))
    censored, cut, ragged, shared, varies = (draw(st.booleans()) for _ in range(5))

    def table(*shape: int, scale: float = 1.0) -> Tensor:
        values = scale * torch.randn(shape, generator=generator, dtype=dtype)
        return values.masked_fill(torch.rand(shape, generator=generator) < hole, NEVER)

    own = () if shared else batch
    duration = table(*own, k, longest)
    duration[..., 0] = 0.1  # so that a path remains: states take turns
    duration = duration.log_softmax(-1)
    moves = (*batch, n_steps - 1) if varies else own
    transition, initial, likelihood = table(*moves, k, k), table(k), table(*batch, n_steps, k, scale=3.0)
    path = torch.arange(n_steps) % 2
    initial[0], transition[..., 0, 1], transition[..., 1, 0] = 0.0, -0.5, -0.3
    likelihood[..., torch.arange(n_steps), path] = -1.0
    transition.diagonal(dim1=-2, dim2=-1).fill_(NEVER)
    lengths = torch.randint(1, n_steps + 1, batch, generator=generator) if ragged else None
    return Tables((initial, transition, duration, likelihood), lengths, censored, cut)
