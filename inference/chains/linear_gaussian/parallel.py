r"""Parallel forms in time, in plain torch: associative scans, of about $2 \log_2 T$ launches instead of T.

A stretch of steps is summed up by $p(s_j, x_{i+1..j} \mid s_i)$, normal in $s_j$ with mean $A s_i + b$ and factor U,
times a likelihood of $s_i$ with information $Z Z^\top$ and vector $\eta$ (Särkkä & García-Fernández 2021; in factors,
Yaghoobi, Corenflos, Hassan & Särkkä 2022). Two of them come to, with $M = U_i^\top Z_j$ and
$G = (I + M M^\top)^{-1/2} U_i^\top$,

$$A = A_j (I - G^\top G Z_j Z_j^\top) A_i, \quad U = [A_j G^\top, U_j] \Theta, \quad
Z = [A_i^\top Z_j (I + M^\top M)^{-1/2}, Z_i] \Theta'$$

The smoother meets the filtered beliefs with the likelihoods of all that comes after. Nothing is divided by a noise of
states. What a step sees must have noise given the state before it, though, and where
it has none the chain goes step by step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.checks import broadcast_shapes
from ...numerics.prefixes import Elements, prefixes
from .factors import beside, compress, covariance_of
from .steps import Belief, Seen, Sight, initial, moves, predict, sights, update
from .tables import Tables


class StepProduct(NamedTuple):
    """Of steps, with the time axis first."""

    transition: Tensor  # A [T, *b, L, L]
    means: Tensor  # b [T, *b, L, q + 1]
    factor: Tensor  # U [T, *b, L, L]
    vector: Tensor  # eta [T, *b, L, q + 1]
    information: Tensor  # Z [T, *b, L, L]


class Scan(NamedTuple):
    """Beliefs before each observation, [*b, T, ...], and each step but the first as a function of the state before
    it."""

    predicted: Belief
    steps: StepProduct


def meet(factor: Tensor, information: Tensor) -> tuple[Tensor, Tensor]:
    """G and M of a belief and of information on the same state."""
    met = factor.mT @ information
    return torch.linalg.solve_triangular(_root(met), factor.mT, upper=False), met


def condense(factor: Tensor, information: Tensor) -> Tensor:
    """A factor of the information on a state that the belief about it leaves, Z (I + Z' P Z)^-1/2."""
    met = information.mT @ factor
    return torch.linalg.solve_triangular(_root(met), information.mT, upper=False).mT


def _root(met: Tensor) -> Tensor:
    """The lower factor of I + met met'."""
    unit = torch.eye(met.shape[-2], dtype=met.dtype, device=met.device)
    return torch.linalg.qr(beside(met, unit).mT)[1].mT


def _correct(gain: Tensor, information: Tensor, means: Tensor) -> Tensor:
    return means - gain.mT @ (gain @ (information @ (information.mT @ means)))


def _join(earlier: Elements, later: Elements) -> Elements:
    i, j = StepProduct(*earlier), StepProduct(*later)
    gain, _ = meet(i.factor, j.information)
    kept = condense(i.factor, j.information)
    vector = j.vector - j.information @ (j.information.mT @ i.means)
    return StepProduct(
        j.transition @ _correct(gain, j.information, i.transition),
        j.transition @ _correct(gain, j.information, i.means + i.factor @ (i.factor.mT @ j.vector)) + j.means,
        compress(j.transition @ gain.mT, j.factor),
        i.transition.mT @ (vector - j.information @ (j.information.mT @ (gain.mT @ (gain @ vector)))) + i.vector,
        compress(i.transition.mT @ kept, i.information),
    )


def steps_of(tables: Tables) -> tuple[Seen, StepProduct, Tensor]:
    """The first observation, all later steps given the state before, and which of these [*b, T-1] have no noise."""
    first = initial(tables)
    sight, step = sights(tables), moves(tables)
    n_columns, n_states = first.means.shape[-1], first.factor.shape[-1]
    start = update(first, Sight(sight.emission[..., 0, :, :], sight.gap[..., 0, :], sight.noise[..., 0, :, :]))
    later = Sight(_after(sight.emission, 3), _after(sight.gap, 2), _after(sight.noise, 3))
    # the state before counts as unknown coordinates, of which means are affine functions
    seen = update(Belief(beside(step.transition, step.offset.unsqueeze(-1)), step.noise), later)
    effect, white = seen.white[..., :n_states], seen.white[..., n_states:]
    pad = (n_columns - 1, 0)
    steps = (
        seen.belief.means[..., :n_states],
        torch.nn.functional.pad(seen.belief.means[..., n_states:], pad),
        seen.belief.factor,
        torch.nn.functional.pad(-effect.mT @ white, pad),
        compress(torch.nn.functional.pad(-effect.mT, (0, max(0, n_states - effect.shape[-2])))),
    )
    blank = torch.zeros_like(start.belief.factor)
    opening = blank, *start.belief, torch.zeros_like(start.belief.means), blank
    parts = [_before(a, b, tables.n_steps - 1) for a, b in zip(opening, steps, strict=True)]
    n_axes = max(part.dim() for part in parts)
    by_time = (part[(None,) * (n_axes - part.dim())].movedim(-3, 0) for part in parts)
    return start, StepProduct(*by_time), seen.singular


def scan(tables: Tables) -> Scan | None:
    """Filter all steps, two at least; None where an observation has no noise given the state before, or on overflow."""
    start, steps, singular = steps_of(tables)
    if bool(start.singular.any()) or bool(singular.any()):
        return None
    joined = StepProduct(*prefixes(_join, steps))
    after = Belief(joined.means.movedim(0, -3)[..., :-1, :, :], joined.factor.movedim(0, -3)[..., :-1, :, :])
    ahead, _ = predict(after, moves(tables))
    first = initial(tables)
    predicted = Belief(*(_before(a, b, tables.n_steps - 1) for a, b in zip(first, ahead, strict=True)))
    if not all(bool(part.isfinite().all()) for part in predicted):
        return None  # products of moves that no observation holds back
    return Scan(predicted, StepProduct(*(part[1:] for part in steps)))


def future(steps: StepProduct) -> tuple[Tensor, Tensor]:
    """What all later steps say of each state: a vector [*b, T, L, q + 1] and information [*b, T, L, L]."""
    reverse = tuple(part.flip(0) for part in steps)
    later = StepProduct(*prefixes(lambda later, earlier: _join(earlier, later), reverse))
    nothing = torch.zeros_like(steps.vector[:1]), torch.zeros_like(steps.information[:1])
    pairs = zip((later.vector, later.information), nothing, strict=True)
    vector, information = (torch.cat([part.flip(0), none]).movedim(0, -3) for part, none in pairs)
    return vector, information


def smooth(filtered: Belief, vector: Tensor, information: Tensor) -> Belief:
    """The beliefs given all observations, from the filtered ones and later observations."""
    gain, _ = meet(filtered.factor, information)
    means = filtered.means + filtered.factor @ (filtered.factor.mT @ vector)
    return Belief(_correct(gain, information, means), gain.mT)


def neighbours(smoothed: Belief, steps: StepProduct, information: Tensor) -> Tensor:
    """The covariances of states with the states before them, given all observations."""
    ahead = information[..., 1:, :, :]
    gain, _ = meet(steps.factor.movedim(0, -3), ahead)
    moved = _correct(gain, ahead, steps.transition.movedim(0, -3))
    return moved @ covariance_of(smoothed.factor)[..., :-1, :, :]


def _after(table: Tensor, n_own: int) -> Tensor:
    """All steps but the first, of a table whose own axes begin with that of steps."""
    axis = table.dim() - n_own
    return table if table.shape[axis] == 1 else table.narrow(axis, 1, table.shape[axis] - 1)


def _before(first: Tensor, rest: Tensor, n: int) -> Tensor:
    """One more step before n others [*b, n, ...], or before one that is repeated."""
    shape = broadcast_shapes(first.shape[:-2], rest.shape[:-3])
    axes = rest.shape[-2:]
    return torch.cat([first.expand(*shape, *axes).unsqueeze(-3), rest.expand(*shape, n, *axes)], -3)


def prefix_rows(white: Tensor) -> Tensor:
    """The triangle [*b, T + 1, q, q + 1] of the rows [*b, T, F, q + 1] of all steps before each, and of all."""
    q = white.shape[-1] - 1

    def reduced(rows: Tensor) -> Tensor:
        rotation, _ = torch.linalg.qr(rows[..., :q])
        return rotation.mT @ rows

    def join(earlier: Elements, later: Elements) -> Elements:
        return (reduced(torch.cat([earlier[0], later[0]], -2)),)

    rows = torch.nn.functional.pad(white, (0, 0, 0, max(0, q - white.shape[-2])))
    (factors,) = prefixes(join, (reduced(rows).movedim(-3, 0),))
    return torch.cat([torch.zeros_like(factors[:1]), factors]).movedim(0, -3)
