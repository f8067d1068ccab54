r"""A linear Gaussian chain in plain torch: all sequences of a step at once, every covariance as a factor.

With $P = Z Z^\top$, $F_t = C_t P C_t^\top + R_t$ and the gain $K_t = P C_t^\top F_t^{-1}$, a step is

$$Z_{t|t} = [(I - K_t C_t) Z_t, \; K_t R_t^{1/2}] \, \Theta, \qquad Z_{t+1} = [A_t Z_{t|t}, \; Q_t^{1/2}] \, \Theta'$$

with rotations that leave square factors. A diffuse start $s_1 = m_1 + B \delta + Z_1 \epsilon$ is carried along: means
are affine in $\delta$, kept as $U_t = [M_t, m_t]$, and so are innovations; whitened, those of all steps are rows
$[\tilde E, \tilde e]$ of a regression whose solution is the posterior of $\delta$ under a flat prior (de Jong 1991,
*The diffuse Kalman filter*). The evidence is the limit for $\delta \sim N(0, \kappa I)$ of
$\log p(x) + \frac q2 \log \kappa$ over q directions:

$$-\tfrac n2 \log 2 \pi - \sum_t \log |F_t^{1/2}| - \tfrac12 \log |\tilde E^\top \tilde E|
- \tfrac12 \min_\delta |\tilde E \delta + \tilde e|^2$$

The smoother goes back in whitened coordinates, $s_t = U_{t|t} [\delta, 1] + Z_{t|t} \epsilon_t$: moves and sights turn
standard normal numbers by $\Theta$, so that $\epsilon_{t-1} = J \epsilon_t + \dots$ with a J of norm at most one, and
nothing is divided by, though states may have no noise.

A missing feature is an observation of pure unit noise that happened to be 0. Beyond its end a sequence stands still.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .factors import beside, compress, covariance_of, rest_of, rotation_of, turn

LOG_2PI = math.log(2 * math.pi)
ROUNDINGS = 64.0  # times the number of directions: what is 0 beside the greatest of singular values
SINGULAR = 8.0  # roundings of an innovation's scale, of which nothing is left beside the features before it


class Tables(NamedTuple):
    """Parameters with an axis of steps, of one entry where one serves all, and factors in the place of covariances."""

    x: Tensor  # [*b, T, F], 0 where nothing is seen
    seen: Tensor | None  # [*b, T, F]; None: all of it
    active: Tensor | None  # [*b, T], whether a sequence has this step; None: all have
    transition: Tensor  # [*b, S, L, L]
    transition_offset: Tensor  # [*b, S, L]
    state_factor: Tensor  # [*b, S, L, L]
    emission: Tensor  # [*b, S, F, L]
    emission_offset: Tensor  # [*b, S, F]
    observation_factor: Tensor  # [*b, S, F, F]
    initial_mean: Tensor  # [*b, L]
    initial_factor: Tensor  # [*b, L, L]
    directions: Tensor  # [L, q], the diffuse ones

    @property
    def n_diffuse(self) -> int:
        return self.directions.shape[-1]

    def move(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """A, c and the factor of Q from step t to the next; at rest where that is beyond the end."""
        a = _at(self.transition, t, 2)
        c, q = _at(self.transition_offset, t, 1), _at(self.state_factor, t, 2)
        if self.active is None:
            return a, c, q
        goes = self.active[..., t + 1, None]
        still = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        table = goes.unsqueeze(-1)
        return torch.where(table, a, still), torch.where(goes, c, 0.0), torch.where(table, q, 0.0)

    def sight(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """C, x - d and the factor of R at step t, with missing features replaced."""
        c, r = _at(self.emission, t, 2), _at(self.observation_factor, t, 2)
        y = self.x[..., t, :] - _at(self.emission_offset, t, 1)
        if self.seen is None:
            return c, y, r
        seen = self.seen[..., t, :]
        row = seen.unsqueeze(-1)
        noise = beside(torch.where(row, r, 0.0), torch.diag_embed((~seen).to(y)))
        return torch.where(row, c, 0.0), torch.where(seen, y, 0.0), noise


class Backward(NamedTuple):
    """How the whitened state of a step follows from that of the next one: J epsilon + h [delta, 1] + noise."""

    gain: Tensor  # [*b, L, L]
    drift: Tensor  # [*b, L, q + 1]
    noise: Tensor  # [*b, L, L]


class Forward(NamedTuple):
    """Means [M, m] and factors of each step, and what the steps say of the evidence and of the diffuse directions."""

    predicted: list[tuple[Tensor, Tensor]]
    filtered: list[tuple[Tensor, Tensor]]
    white: list[Tensor]  # [*b, F, q + 1] whitened innovations
    sights: list[tuple[Tensor, Tensor]]  # rotations of each step: what is seen, and what stays free
    moves: list[Tensor]  # rotations between steps
    log_det: Tensor  # [*b, T] of the factors of F_t
    singular: Tensor  # [*b, T], whether F_t is


class Start(NamedTuple):
    """The diffuse coordinates given some rows: mean and factor, directions left open, and the cost of the rest."""

    weights: Tensor  # [*b, q + 1], the mean and 1
    factor: Tensor  # [*b, q, q]
    left_open: Tensor  # [*b, q, q], a basis beside columns of 0
    log_det: Tensor  # [*b] of the rows' triangular factor, where it has any rank


def _at(table: Tensor, t: int, n_axes: int) -> Tensor:
    steps = table.shape[-n_axes - 1]
    return table.select(-n_axes - 1, t if steps > 1 else 0)


def forward(tables: Tables) -> Forward:
    """Filter all steps, given the diffuse coordinates."""
    means = beside(tables.directions, tables.initial_mean.unsqueeze(-1))
    factor = tables.initial_factor
    q, n_steps = tables.n_diffuse, tables.x.shape[-2]
    predicted, filtered, white, sights, moves, log_dets, singular = [], [], [], [], [], [], []
    for t in range(n_steps):
        predicted.append((means, factor))
        emission, y, noise = tables.sight(t)
        shown = emission @ factor
        spread = beside(shown, noise)
        root = torch.linalg.qr(spread.mT)[1].mT
        gap = torch.nn.functional.pad(y.unsqueeze(-1), (q, 0)) - emission @ means
        whitened = torch.linalg.solve_triangular(root, gap, upper=False)
        half = torch.linalg.solve_triangular(root, shown, upper=False)
        gain = torch.linalg.solve_triangular(root.mT, half @ factor.mT, upper=True).mT
        seen_part = torch.linalg.solve_triangular(root, spread, upper=False).detach().mT
        padded = torch.nn.functional.pad(factor, (0, noise.shape[-1]))
        free_part = rotation_of(beside(spread.mT, padded.mT).mT)[..., root.shape[-1] :]
        sights.append((seen_part, free_part))
        means = means + factor @ (half.mT @ whitened)
        factor = turn(beside(factor - factor @ (half.mT @ half), -gain @ noise), free_part)
        filtered.append((means, factor))
        white.append(whitened)
        diagonal, least = root.diagonal(dim1=-2, dim2=-1).abs(), SINGULAR * torch.finfo(root.dtype).eps
        singular.append(~(diagonal > least * spread.detach().abs().amax(-1)).all(-1))
        log_dets.append(diagonal.log().sum(-1))
        if t + 1 < n_steps:
            transition, offset, noise = tables.move(t)
            means = transition @ means + torch.nn.functional.pad(offset.unsqueeze(-1), (q, 0))
            wide = beside(transition @ factor, noise)
            moves.append(rotation_of(wide))
            factor = turn(wide, moves[-1])
    return Forward(predicted, filtered, white, sights, moves, _stack(log_dets, 0), _stack(singular, 0))


def _stack(tables: list[Tensor], n_axes: int) -> Tensor:
    """One axis more, of steps, before the last n."""
    return torch.stack(torch.broadcast_tensors(*tables), -n_axes - 1)


def evidence(tables: Tables, run: Forward) -> tuple[Tensor, Start, Tensor]:
    """log p(x) [*b], the diffuse coordinates given x, and whether [*b] they are left open."""
    q, rows = tables.n_diffuse, _stack(run.white, 2).flatten(-3, -2)
    design, residual = torch.nn.functional.pad(rows[..., :q], (0, 0, 0, q)), rows[..., q:]
    total = -run.log_det.double().sum(-1) - LOG_2PI / 2 * n_seen(tables).double().sum(-1)
    if not q:
        start = _no_start(rows)
        square = residual.square().double().sum((-2, -1))
        return (total - square / 2).to(rows.dtype), start, rows.new_zeros((), dtype=torch.bool)
    residual = torch.nn.functional.pad(residual, (0, 0, 0, q))
    rotation, triangle = torch.linalg.qr(design)
    reached = rotation.mT @ residual
    square = (residual - rotation @ reached).square().double().sum((-2, -1))
    log_det = triangle.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    weights = torch.linalg.solve_triangular(triangle, -reached, upper=True).squeeze(-1)
    weights = torch.nn.functional.pad(weights, (0, 1), value=1.0)
    unit = torch.eye(q, dtype=rows.dtype, device=rows.device)
    factor = torch.linalg.solve_triangular(triangle, unit, upper=True)
    start = Start(weights, factor, torch.zeros_like(factor), log_det)
    return (total - log_det.double() - square / 2).to(rows.dtype), start, _open(triangle.detach()).any(-1)


def _open(triangle: Tensor) -> Tensor:
    """Which singular values are 0, to rounding."""
    values = torch.linalg.svdvals(triangle)
    least = ROUNDINGS * triangle.shape[-1] * torch.finfo(triangle.dtype).eps
    return values <= least * values[..., :1]


def n_seen(tables: Tables) -> Tensor:
    """How many features are seen, [*b, T]."""
    n_steps, n_features = tables.x.shape[-2:]
    if tables.seen is None:
        return tables.x.new_full((n_steps,), n_features)
    return tables.seen.sum(-1).to(tables.x)


def starts(tables: Tables, run: Forward) -> tuple[list[Start], Tensor]:
    """The diffuse coordinates before and after each step, T + 1 of them, and log p(x_t | x_1..t-1) [*b, T]."""
    q, like = tables.n_diffuse, run.white[0]
    rows = like.new_zeros(q, q + 1)
    found, costs, loose = [_start(rows)[0]], [], like.new_zeros(())
    for white in run.white:
        if q:
            shape = torch.broadcast_shapes(rows.shape[:-2], white.shape[:-2])
            rows = torch.cat([rows.expand(*shape, q, q + 1), white.expand(*shape, *white.shape[-2:])], -2)
            rotation, _ = torch.linalg.qr(rows[..., :q])
            turned = rotation.mT @ rows
            rest = (rows - rotation @ turned)[..., q].square().sum(-1)
            rows = turned
        else:
            rest = white.square().sum((-2, -1))
        start, unexplained = _start(rows)
        costs.append(start.log_det - found[-1].log_det + (rest + unexplained - loose) / 2)
        found.append(start)
        loose = unexplained
    return found, -(_stack(costs, 0) + run.log_det + LOG_2PI / 2 * n_seen(tables))


def _no_start(like: Tensor) -> Start:
    return Start(like.new_ones(1), like.new_zeros(0, 0), like.new_zeros(0, 0), like.new_zeros(()))


def _start(rows: Tensor) -> tuple[Start, Tensor]:
    """From rows [*b, q, q + 1], of any rank; and the square of what no coordinates explain."""
    q = rows.shape[-2]
    if not q:
        return _no_start(rows), rows.new_zeros(())
    left, values, right = torch.linalg.svd(rows[..., :q])
    free = _open(rows[..., :q])
    share = (left.mT @ rows[..., q:]).squeeze(-1)
    safe = torch.where(free, 1.0, values)
    factor = right.mT * torch.where(free, 0.0, 1 / safe).unsqueeze(-2)
    mean = -(factor @ share.unsqueeze(-1)).squeeze(-1)
    weights = torch.nn.functional.pad(mean, (0, 1), value=1.0)
    left_open = right.mT * free.unsqueeze(-2)
    return Start(weights, factor, left_open, safe.log().sum(-1)), torch.where(free, share, 0.0).square().sum(-1)


def moments(means: Tensor, factor: Tensor, start: Start) -> tuple[Tensor, Tensor]:
    """Mean [*b, L] and factor [*b, L, L] over the diffuse coordinates as well."""
    mean = (means @ start.weights.unsqueeze(-1)).squeeze(-1)
    if not len(start.factor):
        return mean, factor
    return mean, compress(factor, means[..., :-1] @ start.factor)


def backward(run: Forward) -> list[Backward]:
    """From each step but the first to the one before."""
    later = zip(run.moves, run.sights[1:], run.white[1:], strict=True)
    return [_back(move, *sight, white) for move, sight, white in later]


def _back(moved: Tensor, seen: Tensor, free: Tensor, white: Tensor) -> Backward:
    """From what a move and a sight turned into each other, numbers of standard normal distribution all of them."""
    n = free.shape[-1]
    into = moved[..., :n, :]
    noise = compress(into @ rest_of(seen, free, rows=n), rest_of(moved, rows=n))
    return Backward(into @ free[..., :n, :], into @ (seen[..., :n, :] @ white), noise)


def smooth(run: Forward, start: Start) -> tuple[Tensor, Tensor, Tensor]:
    """Means [*b, T, L], covariances [*b, T, L, L], and those [*b, T-1, L, L] of each state with the one before."""
    means, factor = run.filtered[-1]
    found, crosses = [moments(means, factor, start)], []
    white, spread = torch.zeros_like(means), torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    for (here, root), back in zip(run.filtered[-2::-1], backward(run)[::-1], strict=True):
        later = means
        ahead = covariance_of(spread) @ back.gain.mT
        white, spread = back.gain @ white + back.drift, compress(back.gain @ spread, back.noise)
        cross = run.filtered[len(run.filtered) - len(found)][1] @ ahead @ root.mT
        means, factor = here + root @ white, root @ spread
        if len(start.factor):
            cross = cross + (later[..., :-1] @ start.factor) @ (means[..., :-1] @ start.factor).mT
        crosses.append(cross)
        found.append(moments(means, factor, start))
    mean = _stack([mean for mean, _ in reversed(found)], 1)
    covariance = _stack([covariance_of(z) for _, z in reversed(found)], 2)
    return mean, covariance, _stack(crosses[::-1], 2) if crosses else covariance[..., :0, :, :]


def sample(run: Forward, start: Start, noise: Tensor, diffuse_noise: Tensor) -> Tensor:
    """Paths [n, *b, T, L], backward in time, from normal numbers [n, *b, T, L] and [n, *b, q]."""
    weights = start.weights.expand(*diffuse_noise.shape[:-1], -1)
    if len(start.factor):
        drawn = (start.factor @ diffuse_noise.unsqueeze(-1)).squeeze(-1)
        weights = weights + torch.nn.functional.pad(drawn, (0, 1))
    weights, numbers = weights.unsqueeze(-1), noise.unsqueeze(-1).unbind(-3)
    path, white, back = [], numbers[-1], backward(run)
    for t in reversed(range(len(run.filtered))):
        means, factor = run.filtered[t]
        path.append(means @ weights + factor @ white)
        if t:
            gain, drift, spread = back[t - 1]
            white = gain @ white + drift @ weights + spread @ numbers[t - 1]
    return torch.stack([state.squeeze(-1) for state in reversed(path)], -2)
