r"""Variational fits: q(parameters) q(paths) by message passing.

Each block of parameters is of its conjugate family; what lies between the parameters and the data is one more block
(`trajectories`), in which the chain over paths is exact, or has independent steps (`mean_field`). The two meet in one
factor a block of parameters, the product of its expected statistics and of how often the paths use them. So an update
of the paths is an E-step under expected logs, and one of the parameters adds expected counts to the prior.

All restarts run as one batch for a while, then the better ones go on until they have settled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..inference.families import tree_map
from ..inference.vmp import VMP, Block, Factor
from .conjugate import RedrawWeights, emitters
from .dynamics import Drive, Dynamics
from .emissions import Emission
from .mean_field import IndependentSteps
from .posterior import VariationalPosterior, moved
from .progress import Progress
from .sequences import Sequences
from .sites import Parameters
from .starts import first_labels
from .trajectories import Trajectories, pieces

if TYPE_CHECKING:
    from .fit import Fit
    from .model import SwitchingSSM

PATHS = "paths"
TRIAL = 30  # steps after which the worse restarts are dropped
KEPT = 3  # of how many restarts one goes on
AT_ONCE = 10  # steps between two looks at the progress


class Use:
    """The factor of a block of parameters: its expected statistics times how often the paths use them."""

    def __init__(self, name: str, fields: tuple[str, ...]) -> None:
        self.__name__ = self.name = name
        self.fields = fields

    def __call__(self, paths: tuple[Tensor, ...], statistics: Tensor) -> Tensor:
        return (getattr(paths, self.name) * statistics).sum(-1)

    def factor(self, make: Callable[..., tuple]) -> Factor:
        nothing = dict.fromkeys(self.fields)
        to_paths = lambda paths, statistics: make(**nothing | {self.name: statistics})
        to_parameters = lambda paths, statistics: getattr(paths, self.name)
        return Factor(self, (PATHS, self.name), {PATHS: to_paths, self.name: to_parameters})


@dataclass(frozen=True)
class Structure:
    """A model, its prior and a series, as blocks and factors. Locations are counted from `about` [F]."""

    dynamics: Dynamics
    emission: Emission
    prior: Parameters
    series: Sequences
    drive: Drive
    about: Tensor
    factorization: str = "structured"

    @staticmethod
    def of(model: "SwitchingSSM", series: Sequences, drive: Drive, factorization: str = "structured") -> "Structure":
        about = center(model.emission, series.values)
        prior = moved(model.prior_like(series.values), -about)
        shifted = Sequences(series.values - about, series.lengths)
        return Structure(model.dynamics, model.emission, prior, shifted, drive, about, factorization)

    def trajectories(self) -> Trajectories:
        kind = IndependentSteps if self.factorization == "mean_field" else Trajectories
        return kind(self.dynamics, self.emission, self.prior, self.series, self.drive)

    def engine(self, start: dict[str, Tensor]) -> VMP:
        """The engine whose paths start at these expected statistics of the parameters, `[R, ...]` each."""
        family = self.trajectories()
        blocks = []
        for name, (prefix, piece) in pieces(self.dynamics, self.emission).items():
            prior = piece.prior(self._own(prefix))
            eta = prior.expand(start[name].shape)
            known = None if isinstance(piece, RedrawWeights) else prior  # that prior is a part of the trajectories
            blocks.append(Block(name, piece.family, known, eta))
        fields = tuple(start)
        factors = [Use(name, fields).factor(family.make) for name in fields]
        paths = Block(PATHS, family, eta=family.make(**start))
        return VMP([*blocks, paths], factors, restarts=next(iter(start.values())).shape[0])

    def start(self, labels: Tensor) -> dict[str, Tensor]:
        """Expected statistics of the parameters from labellings `[R, *b, T]` of the steps."""
        x, inside, n_states = self.series.values, self.series.inside, self.dynamics.n_states
        one_hot = torch.nn.functional.one_hot(labels, n_states).to(x) * inside.unsqueeze(-1)
        # every state gets a little of every step, so that none starts on a single point
        soft = (0.9 * one_hot + 0.1 / n_states * inside.unsqueeze(-1)).reshape(len(labels), -1, n_states)
        values = self.dynamics.start(labels, len(self.series.batch_shape), inside)
        moments = self.emission.gather(x.reshape(-1, x.shape[-1]), soft, 0.1 * soft, None)
        emitted = {e.block: e for e in emitters(self.emission)}
        found = {}
        for name, (prefix, piece) in pieces(self.dynamics, self.emission).items():
            if name in emitted:
                own = {n.removeprefix(prefix): m for n, m in moments.items() if n.startswith(prefix)}
                eta = piece.prior(self._own(prefix)) + emitted[name].piece.message(own)
                found[name] = piece.family.mean(eta)
            else:
                found[name] = piece.statistics({n: v.to(x) for n, v in values.items()})
        return found

    def point(self, values: Parameters) -> dict[str, Tensor]:
        """Statistics of given parameters: those that an engine has whose q is one point."""
        values = moved(values, -self.about)
        return {
            name: piece.statistics({n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)})
            for name, (prefix, piece) in pieces(self.dynamics, self.emission).items()
        }

    def _own(self, prefix: str) -> Parameters:
        return {name.removeprefix(prefix): table for name, table in self.prior.items() if name.startswith(prefix)}


def center(emission: Emission, x: Tensor) -> Tensor:
    """Means of the features where the emission has locations, so that second moments lose no digits; else 0."""
    rows = x.reshape(-1, x.shape[-1])
    if all("loc" in e.emission.event_dims for e in emitters(emission)):
        return rows.nanmean(0)
    return torch.zeros_like(rows[0])


def fit_vmp(
    model: "SwitchingSSM",
    series: Sequences,
    drive: Drive,
    factorization: str,
    restarts: int,
    max_steps: int,
    tol: float,
    seed: int,
    progress: bool,
) -> "Fit":
    """See `SwitchingSSM.fit`; the model's prior is the one to use."""
    from .fit import Fit

    structure = Structure.of(model, series, drive, factorization)
    check_factorization(factorization, drive)
    labels = first_labels(model.emission, series, model.n_states, restarts, seed)
    engine = structure.engine(structure.start(labels))
    with Progress(f"VMP, {restarts} restarts", max_steps, progress) as shown:
        ended = climb(engine, restarts, max_steps, tol, shown)
    etas = {name: block.eta[ended.best] for name, block in ended.engine.blocks.items() if name != PATHS}
    posterior = VariationalPosterior(model, etas, structure.about)
    family = structure.trajectories()
    paths = tree_map(lambda part: part[ended.best : ended.best + 1], ended.engine.blocks[PATHS].eta)
    empty = occupancy(*family.moves.weights(family.marginals(paths))) < 1.0
    return Fit(
        model=model._copy(posterior.mean, model.prior),
        method="vmp",
        objective=ended.objective,
        converged=ended.converged,
        steps=len(ended.objective),
        restarts=ended.final,
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        interrupted=ended.interrupted,
        posterior=posterior,
    )


def check_factorization(factorization: str, drive: Drive) -> None:
    if factorization not in ("structured", "mean_field"):
        raise ValueError(f'factorization: got {factorization!r}, expected "structured" or "mean_field".')
    if factorization == "mean_field" and drive.dt is not None and bool((drive.dt[..., 1:] == 0).any()):
        raise ValueError(
            "dt: got a gap of 0, which holds the state for certain, so that no two steps are independent; "
            'use factorization="structured".'
        )


def occupancy(redrawn: Tensor, held: Tensor | None) -> Tensor:
    """Expected number of steps in each state, `[K]`; a held step of a gated emission does not tell its state."""
    mass = redrawn if held is None or held.shape[-1] < redrawn.shape[-1] else redrawn + held
    return mass.reshape(-1, redrawn.shape[-1]).sum(0)


@dataclass(frozen=True)
class Climb:
    """Where the restarts ended: the engine of those that were kept, the best of which is number `best`."""

    engine: VMP
    best: int
    objective: Tensor  # [steps], of the best
    final: Tensor  # [R]
    converged: bool
    interrupted: bool


def climb(
    engine: VMP,
    restarts: int,
    max_steps: int,
    tol: float,
    report: Callable[[int, float], None] = lambda step, best: None,
) -> Climb:
    """Run all restarts for some steps, then the best third of them until they have settled, or `max_steps`."""
    kept = torch.arange(restarts)
    final, traces = engine.elbo().double(), []
    converged = interrupted = False
    steps = 0
    try:
        while steps < max_steps and not converged:
            until = TRIAL if len(kept) == restarts and restarts > 1 and steps < TRIAL else max_steps
            run = engine.run(min(AT_ONCE, until - steps), tol)
            steps, converged = steps + run.steps, run.converged
            row = torch.full((run.steps, restarts), torch.nan, dtype=torch.float64)
            row[:, kept] = run.elbo.double().cpu()
            traces.append(row)
            final[kept] = run.elbo[-1].double()
            report(steps, float(final.max()))
            if steps == TRIAL and len(kept) > 1 and not converged:
                better = run.elbo[-1].argsort(descending=True)[: math.ceil(len(kept) / KEPT)]
                kept, engine = kept[better.cpu()], engine.select(better)
    except KeyboardInterrupt:
        if not traces:
            raise  # nothing has been reached yet
        interrupted = True
    best = int(final[kept].argmax())
    trace = torch.cat(traces)[:, kept[best]]
    return Climb(engine, best, trace, final, converged, interrupted)
