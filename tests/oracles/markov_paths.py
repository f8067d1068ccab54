"""A Markov chain by enumeration: the weight of every path, and whatever is asked by summing over all of them."""

from dataclasses import dataclass
from itertools import product

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Answers:
    """What `MarkovChain` gives, in float64; all beyond a sequence's length is 0."""

    log_normalizer: Tensor  # [*b]
    log_increment: Tensor  # [*b, T]
    filtered: Tensor  # [*b, T, K]
    smoothed: Tensor  # [*b, T, K]
    pairs: Tensor  # [*b, T-1, K, K]
    entropy: Tensor  # [*b]
    best: Tensor  # [*b], log-probability of the best path


def path_weights(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Every path [K^T, T] of one sequence and its log-weight [K^T], from [K], [T-1, K, K] and [T, K]."""
    n_steps, n_states = log_likelihood.shape
    paths = torch.tensor(list(product(range(n_states), repeat=n_steps)))
    weight = log_initial[paths[:, 0]]
    for t in range(n_steps):
        weight = weight + log_likelihood[t, paths[:, t]]
    for t in range(n_steps - 1):
        weight = weight + log_transition[t, paths[:, t], paths[:, t + 1]]
    return paths, weight


def _one(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor) -> list[Tensor]:
    n_steps, n_states = log_likelihood.shape
    totals, filtered = [torch.zeros((), dtype=torch.float64)], []
    for t in range(1, n_steps + 1):
        paths, weight = path_weights(log_initial, log_transition, log_likelihood[:t])
        totals.append(weight.logsumexp(0))
        filtered.append(_share(weight - totals[-1], paths[:, -1], n_states))
    posterior = (weight - totals[-1]).exp()
    smoothed = [_share(weight - totals[-1], paths[:, t], n_states) for t in range(n_steps)]
    pairs = [
        _share(weight - totals[-1], paths[:, t] * n_states + paths[:, t + 1], n_states**2).view(n_states, n_states)
        for t in range(n_steps - 1)
    ]
    surprise = torch.where(posterior > 0, totals[-1] - weight, 0.0)
    return [
        totals[-1],
        torch.stack(totals).diff(),
        torch.stack(filtered),
        torch.stack(smoothed),
        torch.stack([*pairs, torch.zeros(n_states, n_states, dtype=torch.float64)])[: n_steps - 1],
        (posterior * surprise).sum(),
        weight.max(),
    ]


def _share(log_weight: Tensor, place: Tensor, n_places: int) -> Tensor:
    return torch.zeros(n_places, dtype=torch.float64).index_add(0, place, log_weight.exp())


def expand(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, batch: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """All tables in float64 with all batch axes, and a transition table for each move."""
    n_steps, n_states = log_likelihood.shape[-2:]
    if log_transition.dim() <= log_likelihood.dim():
        log_transition = log_transition.unsqueeze(-3)
    return (
        log_initial.double().expand(*batch, n_states),
        log_transition.double().expand(*batch, n_steps - 1, n_states, n_states),
        log_likelihood.double().expand(*batch, n_steps, n_states),
    )


def enumerate_paths(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> Answers:
    """The answers for tables as `MarkovChain` takes them, and lengths [*b]."""
    n_steps = log_likelihood.shape[-2]
    tables = expand(log_initial, log_transition, log_likelihood, tuple(lengths.shape))
    rows: list[list[Tensor]] = []
    for index in product(*map(range, lengths.shape)):
        length = int(lengths[index])
        initial, transition, likelihood = (table[index] for table in tables)
        answers = _one(initial, transition[: length - 1], likelihood[:length])
        rows.append([_pad(answer, size) for answer, size in zip(answers, _sizes(n_steps), strict=True)])
    columns = (torch.stack(column) for column in zip(*rows, strict=True))
    return Answers(*(column.reshape((*lengths.shape, *column.shape[1:])) for column in columns))


def _sizes(n_steps: int) -> list[int | None]:
    return [None, n_steps, n_steps, n_steps, n_steps - 1, None, None]


def _pad(answer: Tensor, size: int | None) -> Tensor:
    if size is None:
        return answer
    return torch.cat([answer, answer.new_zeros(size - len(answer), *answer.shape[1:])])


@dataclass(frozen=True)
class Tables:
    """Arguments of `MarkovChain`."""

    log_initial: Tensor
    log_transition: Tensor
    log_likelihood: Tensor
    lengths: Tensor | None


@st.composite
def tables(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (torch.float64,), impossible: float = 0.4) -> Tables:
    """Small chains: none, one or two batch axes, ragged or not, tables shared or not, constant or not, unnormalised.

    Entries are -inf with probability `impossible`, except along one path.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    n_states, n_steps = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    batch, dtype = draw(st.sampled_from([(), (1,), (3,), (2, 2)])), draw(st.sampled_from(dtypes))
    holes = draw(st.sampled_from([0.0, impossible]))
    varies, share = draw(st.booleans()), draw(st.tuples(*[st.booleans()] * 3))
    alike = (1,) * len(batch)

    def table(own: tuple[int, ...], scale: float) -> Tensor:
        values = scale * torch.randn(own, generator=generator, dtype=dtype)
        return values.masked_fill(torch.rand(own, generator=generator) < holes, float("-inf"))

    initial = table((*(() if share[0] else batch), n_states), 1.0)
    moves = (n_steps - 1,) if varies else ()
    transition = table((*((alike if varies else ()) if share[1] else batch), *moves, n_states, n_states), 2.0)
    likelihood = table((*(alike if share[2] else batch), n_steps, n_states), 4.0) - 3.0
    path = torch.randint(n_states, (n_steps,), generator=generator)
    initial[..., path[0]] = 0.1
    for t in range(n_steps):
        likelihood[..., t, path[t]] = -1.0
    for t in range(n_steps - 1):
        (transition[..., t, :, :] if varies else transition)[..., path[t], path[t + 1]] = -0.5
    ragged = draw(st.booleans())
    lengths = torch.randint(1, n_steps + 1, batch, generator=generator) if ragged else None
    return Tables(initial, transition, likelihood, lengths)
