"""The steps of a linear Gaussian chain in plain torch, of one step or of all at once: `plain` has the equations."""

from typing import NamedTuple

import torch
from torch import Tensor

from .factors import beside, compress, rest_of, rotation_of, turn
from .tables import Tables

SCALE = 8.0  # roundings of an innovation's scale, of which nothing is left beside the features before it


class Belief(NamedTuple):
    """Of states: means [M, m], [*b, L, q + 1], and a factor of the covariance, [*b, L, L]."""

    means: Tensor
    factor: Tensor


class Sight(NamedTuple):
    """What a step sees."""

    emission: Tensor  # [*b, F, L]
    gap: Tensor  # [*b, F], x - d
    noise: Tensor  # [*b, F, n], a factor


class Move(NamedTuple):
    """How states move on."""

    transition: Tensor  # [*b, L, L]
    offset: Tensor  # [*b, L]
    noise: Tensor  # [*b, L, L], a factor


class Seen(NamedTuple):
    """What an observation leaves."""

    belief: Belief
    white: Tensor  # [*b, F, q + 1] whitened innovations
    shown: Tensor  # rotations: the observed part,
    free: Tensor  # and the remaining part
    log_det: Tensor  # [*b] of the factor of F_t
    singular: Tensor  # [*b], whether that is


class Forward(NamedTuple):
    """All steps, with the axis T before the axes of matrices."""

    predicted: Belief
    seen: Seen
    moves: Tensor  # [*b, T-1, 2 L, L], rotations between steps


class Backward(NamedTuple):
    """How the whitened state of a step follows from that of the next one: J epsilon + h [delta, 1] + noise."""

    gain: Tensor  # [*b, T-1, L, L]
    drift: Tensor  # [*b, T-1, L, q + 1]
    noise: Tensor  # [*b, T-1, L, L]


def sights(tables: Tables) -> Sight:
    """Of all steps, with missing features replaced; an axis of one entry where all are alike."""
    emission, y, noise = tables.emission, tables.x - tables.emission_offset, tables.observation_factor
    if tables.active is None and tables.seen is None:
        return Sight(emission, y, noise)
    seen = seen_of(tables)
    row = seen.unsqueeze(-1)
    noise = beside(torch.where(row, noise, 0.0), torch.diag_embed((~seen).to(y)))
    return Sight(torch.where(row, emission, 0.0), torch.where(seen, y, 0.0), noise)


def seen_of(tables: Tables) -> Tensor:
    active = tables.active
    seen = torch.ones_like(tables.x, dtype=torch.bool) if tables.seen is None else tables.seen
    return seen if active is None else seen & active.unsqueeze(-1)


def moves(tables: Tables) -> Move:
    """From all steps to the next; at rest where that is beyond the end."""
    a, c, q = tables.transition, tables.transition_offset, tables.state_factor
    active = tables.active
    if active is None:
        return Move(a, c, q)
    goes = active[..., 1:, None]
    still, table = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), goes.unsqueeze(-1)
    return Move(torch.where(table, a, still), torch.where(goes, c, 0.0), torch.where(table, q, 0.0))


def initial(tables: Tables) -> Belief:
    return Belief(beside(tables.directions, tables.initial_mean.unsqueeze(-1)), tables.initial_factor)


def update(belief: Belief, sight: Sight) -> Seen:
    """The belief after an observation."""
    means, factor = belief
    emission, y, noise = sight
    shown = emission @ factor
    spread = beside(shown, noise)
    root = torch.linalg.qr(spread.mT)[1].mT
    gap = torch.nn.functional.pad(y.unsqueeze(-1), (means.shape[-1] - 1, 0)) - emission @ means
    whitened = torch.linalg.solve_triangular(root, gap, upper=False)
    half = torch.linalg.solve_triangular(root, shown, upper=False)
    gain = torch.linalg.solve_triangular(root.mT, half @ factor.mT, upper=True).mT
    seen_part = torch.linalg.solve_triangular(root, spread, upper=False).detach().mT
    padded = torch.nn.functional.pad(factor, (0, noise.shape[-1]))
    free_part = rotation_of(beside(spread.mT, padded.mT).mT)[..., root.shape[-1] :]
    after = Belief(
        means + factor @ (half.mT @ whitened),
        turn(beside(factor - factor @ (half.mT @ half), -gain @ noise), free_part),
    )
    diagonal, least = root.diagonal(dim1=-2, dim2=-1).abs(), SCALE * torch.finfo(root.dtype).eps
    singular = ~(diagonal > least * spread.detach().abs().amax(-1)).all(-1)
    return Seen(after, whitened, seen_part, free_part, diagonal.log().sum(-1), singular)


def predict(belief: Belief, step: Move) -> tuple[Belief, Tensor]:
    """The belief about the next state, and the rotation that keeps its factor square."""
    transition, offset, noise = step
    means = transition @ belief.means
    means = means + torch.nn.functional.pad(offset.unsqueeze(-1), (means.shape[-1] - 1, 0))
    wide = beside(transition @ belief.factor, noise)
    rotation = rotation_of(wide)
    return Belief(means, turn(wide, rotation)), rotation


def backward(forward_pass: Forward) -> Backward:
    """From each step but the first to the previous one, from the rotations of its transition and observation."""
    seen, free, white = (
        table[..., 1:, :, :] for table in (forward_pass.seen.shown, forward_pass.seen.free, forward_pass.seen.white)
    )
    n = free.shape[-1]
    into = forward_pass.moves[..., :n, :]
    noise = compress(into @ rest_of(seen, free, rows=n), rest_of(forward_pass.moves, rows=n))
    return Backward(into @ free[..., :n, :], into @ (seen[..., :n, :] @ white), noise)
