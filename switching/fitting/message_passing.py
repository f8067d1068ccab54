r"""Variational fits: q(parameters) q(paths) by message passing.

Each block of parameters is of its conjugate family; what lies between the parameters and the data is one more block
(`trajectories`), in which the chain over paths is exact, or has independent steps (`mean_field`). The two meet in one
factor a block of parameters, the product of its expected statistics and of how often the paths use them. So an update
of the paths is an E-step under expected logs, and one of the parameters adds expected counts to the prior.

All restarts run as one batch for a while, then the better ones go on until they have settled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...inference.families import tree_map
from ...inference.message_passing.engine import VMP, Block, Factor
from ..data.series import Sequences
from ..dynamics import Drive, Dynamics
from ..emissions import Emission
from ..parameters import Parameters
from .conjugate import Piece, RedrawWeights, emitters
from .in_turns import LONG, ROOM, InTurns, Stretches
from .mean_field import IndependentSteps
from .posterior import VariationalPosterior, moved
from .progress import Progress
from .starts import first_labels
from .trajectories import Trajectories, pieces

if TYPE_CHECKING:
    from ..model import SwitchingSSM
    from .fit import Fit

PATHS = "paths"
TRIAL = 30  # steps after which the worse restarts are dropped
KEPT = 3  # of how many restarts one goes on
AT_ONCE = 10  # steps between two looks at the progress
SAMPLE = 2**18  # steps that a start looks at
STRETCH = 2**12  # steps of each stretch that is looked at of a longer sequence


class Use:
    """The factor of a block of parameters: its expected statistics times how often the paths use them."""

    def __init__(self, name: str, fields: tuple[str, ...]) -> None:
        self.__name__ = self.name = name
        self.fields = fields

    def __call__(self, paths: tuple[Tensor, ...], statistics: Tensor) -> Tensor:
        return (getattr(paths, self.name) * statistics).sum(-1)

    def factor(self, make: Callable[..., tuple], scale: float = 1.0) -> Factor:
        nothing = dict.fromkeys(self.fields)
        to_paths = lambda paths, statistics: make(**nothing | {self.name: statistics})
        to_parameters = lambda paths, statistics: getattr(paths, self.name)
        return Factor(self, (PATHS, self.name), {PATHS: to_paths, self.name: to_parameters}, scale=scale)


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
    share: float = 1.0  # the part that this series is of all data

    @staticmethod
    def of(model: "SwitchingSSM", series: Sequences, drive: Drive, factorization: str = "structured") -> "Structure":
        about = center(model.emission, series.values)
        prior = moved(model.prior_like(series.values), -about)
        shifted = Sequences(series.values - about, series.lengths)
        return Structure(model.dynamics, model.emission, prior, shifted, drive, about, factorization)

    def trajectories(self, restarts: int = 1) -> Trajectories:
        """The family of the paths: all at once, or in turns where tables of so many restarts would be large."""
        whole = (self.dynamics, self.emission, self.prior, self.series, self.drive, self.share)
        kind = IndependentSteps if self.factorization == "mean_field" else Trajectories
        n_steps = self.series.values.shape[-2]
        n_sequences = self.series.batch_shape.numel()
        numbers = restarts * n_steps * self.dynamics.n_states  # in the table of one sequence
        if n_sequences * numbers > ROOM and n_sequences > 1:
            parts = [self.part(some) for some in torch.arange(n_sequences).split(max(1, ROOM // numbers))]
            return InTurns([part.trajectories(restarts) for part in parts], *whole)
        if numbers > LONG and kind is Trajectories:
            return Stretches(max(1, ROOM * n_steps // numbers), *whole)
        return kind(*whole)

    def part(self, which: Tensor) -> "Structure":
        """The same of some of the sequences, given by their numbers."""

        def some(table: Tensor | None) -> Tensor | None:
            if table is None:
                return None
            flat = table.reshape(n_sequences, *table.shape[n_batch:])
            first, last = int(which[0]), int(which[-1])
            in_order = last - first + 1 == len(which) and bool((which.diff() == 1).all())
            return flat[first : last + 1] if in_order else flat[which.to(flat.device)]  # a view where there is one

        n_batch, n_sequences = len(self.series.batch_shape), self.series.batch_shape.numel()
        values = some(self.series.values)
        assert values is not None
        series = Sequences(values, some(self.series.lengths))
        drive = Drive(some(self.drive.covariates), some(self.drive.dt))
        return replace(self, series=series, drive=drive, share=self.share * len(which) / n_sequences)

    def engine(self, start: dict[str, Tensor]) -> VMP:
        """The engine whose paths start at these expected statistics of the parameters, `[R, ...]` each."""
        priors = {name: piece.prior(self._own(prefix)) for name, (prefix, piece) in self._pieces.items()}
        return self._engine(start, {name: prior.expand(start[name].shape) for name, prior in priors.items()})

    def resumed(self, etas: dict[str, Tensor], step: float = 1.0, scale: float = 1.0) -> VMP:
        """The engine with these natural parameters `[R, ...]`, and their best paths, each counted `scale` times.

        Other blocks go a fraction `step` of the way to their optimum.
        """
        statistics = {name: self._pieces[name][1].family.mean(eta) for name, eta in etas.items()}
        return self._engine(statistics, etas, step, scale, check=False)

    def _engine(
        self,
        start: dict[str, Tensor],
        etas: dict[str, Tensor],
        step: float = 1.0,
        scale: float = 1.0,
        check: bool = True,
    ) -> VMP:
        restarts = len(next(iter(start.values())))
        family, blocks = self.trajectories(restarts), []
        for name, (prefix, piece) in self._pieces.items():
            # the prior of the redraw's weights is a part of the trajectories
            prior = None if isinstance(piece, RedrawWeights) else piece.prior(self._own(prefix))
            blocks.append(Block(name, piece.family, prior, etas[name], step=step))
        paths = Block(PATHS, family, eta=family.make(**start), scale=scale)
        factors = [Use(name, tuple(start)).factor(family.make, scale) for name in start]
        return VMP([*blocks, paths], factors, restarts, check)

    def sample(self, seed: int) -> "Structure":
        """All data or, of many, about `SAMPLE` steps: some of the sequences, or stretches of a long one."""
        n_sequences, n_steps = self.series.batch_shape.numel(), self.series.values.shape[-2]
        if n_sequences * n_steps <= SAMPLE:
            return self
        order = torch.randperm(n_sequences, generator=torch.Generator().manual_seed(seed))
        few = replace(self.part(order[: max(1, SAMPLE // n_steps)].sort().values), share=self.share)
        if n_steps <= SAMPLE:
            return few
        length = n_steps if few.series.lengths is None else int(few.series.lengths[0])
        size = min(length, STRETCH)
        firsts = torch.linspace(0, length - size, min(SAMPLE // STRETCH, -(-length // size))).long().tolist()
        values = torch.cat([few.series.values[:, first : first + size] for first in firsts])
        drives = [few.drive.at(slice(first, first + size)) for first in firsts]
        covariates = [d.covariates for d in drives if d.covariates is not None]
        dt = [d.dt for d in drives if d.dt is not None]
        drive = Drive(torch.cat(covariates) if covariates else None, torch.cat(dt) if dt else None)
        return replace(few, series=Sequences(values), drive=drive)

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
        for name, (prefix, piece) in self._pieces.items():
            if name in emitted:
                own = {n.removeprefix(prefix): m for n, m in moments.items() if n.startswith(prefix)}
                eta = piece.prior(self._own(prefix)) + emitted[name].piece.message(own)
                found[name] = piece.family.mean(eta)
            else:
                found[name] = piece.statistics({n: v.to(x) for n, v in values.items()})
        return found

    @cached_property
    def _pieces(self) -> dict[str, tuple[str, Piece]]:
        return pieces(self.dynamics, self.emission)

    def point(self, values: Parameters) -> dict[str, Tensor]:
        """Statistics of given parameters: those that an engine has whose q is one point."""
        values = moved(values, -self.about)
        return {
            name: piece.statistics({n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)})
            for name, (prefix, piece) in self._pieces.items()
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
    batch_size: int | None = None,
) -> "Fit":
    """See `SwitchingSSM.fit`; the model's prior is the one to use."""
    from .minibatches import climb_in_batches

    structure = Structure.of(model, series, drive, factorization)
    check_factorization(factorization, drive)
    with Progress(f"VMP, {restarts} restarts", max_steps, progress) as shown:
        if batch_size is not None and batch_size < series.batch_shape.numel():
            ended = climb_in_batches(structure, batch_size, restarts, max_steps, tol, seed, shown)
        else:
            sample = structure.sample(seed)
            labels = first_labels(model.emission, sample.series, model.n_states, restarts, seed)
            ended = climb(structure.engine(sample.start(labels)), restarts, max_steps, tol, shown)
    return _record(model, structure, ended)


def _record(model: "SwitchingSSM", structure: Structure, ended: "Climb") -> "Fit":
    from .fit import Fit

    etas = {name: block.eta[ended.best] for name, block in ended.engine.blocks.items() if name != PATHS}
    posterior = VariationalPosterior(model, etas, structure.about)
    paths = tree_map(lambda part: part[ended.best : ended.best + 1], ended.engine.blocks[PATHS].eta)
    empty = structure.trajectories().occupancy(paths)[0] < 1.0
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
