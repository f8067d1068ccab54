r"""Transition tables of a chain in continuous time after gaps between steps.

If the time of entry into an absorbing state d is known exactly, the chain was in another state immediately before, and
the step has the density

$$p(\text{entry into } d \mid s_{t-1} = i) = \sum_{k \ne d} (e^{Q d_t})_{ik}\, q_{kd}, \qquad i \ne d.$$
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.jumps import transition_probabilities
from ...inference.numerics.logs import log_probability
from ..data.series import Drive, Series


class Steps(NamedTuple):
    """Distinct gaps, each with the inputs that hold in it, and which of them each step has.

    Attributes:
        gaps: [U].
        inputs: [U, C]; None: there are none.
        which: [*n], the number of each step's.
    """

    gaps: Float[Tensor, "U"]
    inputs: Float[Tensor, "U C"] | None
    which: Int[Tensor, "*n"]

    @staticmethod
    def of(gaps: Float[Tensor, "*n"], inputs: Float[Tensor, "*#n C"] | None) -> "Steps":
        """The distinct ones among those of all steps."""
        if inputs is None:
            distinct, which = torch.unique(gaps, return_inverse=True)
            return Steps(distinct, None, which)
        both = torch.cat([gaps.unsqueeze(-1), inputs.to(gaps).expand(*gaps.shape, -1)], -1)
        rows, which = torch.unique(both.flatten(0, -2), dim=0, return_inverse=True)
        return Steps(rows[:, 0], rows[:, 1:], which.reshape(gaps.shape))


class Moves(NamedTuple):
    """The logarithms of distinct transition tables, and which of them each step has.

    Attributes:
        tables: [*r, M, K, K] in float64.
        which: [*n], the number of the table of each step.
    """

    tables: Float[Tensor, "*r M K K"]
    which: Int[Tensor, "*n"]

    def by_step(self) -> Float[Tensor, "*rn K K"]:
        """The table of each step."""
        return self.tables.index_select(-3, self.which.flatten()).unflatten(-3, self.which.shape)


@dataclass(frozen=True)
class Entered:
    """Known entries into states.

    Attributes:
        exact: the states whose times of entry are known.
        states: the known state of each step, -1 where unknown; None: no entries are known.
    """

    exact: tuple[int, ...]
    states: Int[Tensor, "*n"] | None

    @property
    def kinds(self) -> tuple[int, ...]:
        """The states whose tables differ from those of other steps."""
        return () if self.states is None else self.exact

    def distinct(self, generator: Float[Tensor, "*r #U K K"], steps: Steps) -> Moves:
        """The tables of the steps, once for each distinct gap with its inputs."""
        probs = after_gaps(generator, steps.gaps)
        tables, kind = [log_probability(probs)], torch.zeros_like(steps.which)
        for state in self.kinds:
            kind = torch.where(self.states == state, len(tables), kind)
            tables.append(log_entering(probs, generator, state))
        return Moves(torch.cat(tables, -3), steps.which + kind * len(steps.gaps))

    def tables(self, generator: Float[Tensor, "*b #S K K"], gaps: Float[Tensor, "*#b S"]) -> Float[Tensor, "*b S K K"]:
        """The logarithm of the table of each step, where each sequence has its own generator."""
        probs = after_gaps(generator, gaps)
        tables = log_probability(probs)
        for state in self.kinds:
            here = (self.states == state)[..., None, None]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]
            tables = torch.where(here, log_entering(probs, generator, state), tables)
        return tables


def after_gaps(generator: Float[Tensor, "*b #S K K"], gaps: Float[Tensor, "*#b S"]) -> Float[Tensor, "*b S K K"]:
    """The transition table of each gap; all gaps have one generator, or each has its own."""
    if generator.shape[-3] == 1:
        return transition_probabilities(generator.squeeze(-3), gaps)
    return transition_probabilities(generator, gaps.unsqueeze(-1)).squeeze(-3)


def log_entering(
    probs: Float[Tensor, "*b S K K"], generator: Float[Tensor, "*b #S K K"], state: int
) -> Float[Tensor, "*b S K K"]:
    """The logarithms of tables whose column of an absorbing state has the density of entering it at the end of the
    gap."""
    column = torch.arange(probs.shape[-1], device=probs.device) == state
    into = torch.where(column, 0.0, generator[..., :, state])
    density = log_probability((probs @ into.unsqueeze(-1)).squeeze(-1))
    density = torch.where(column, 0.0, density)  # from the state itself
    return torch.where(column, density.unsqueeze(-1), log_probability(probs))


def sane(gaps: Tensor) -> Tensor:
    """Gaps without what stands before the first step, or after the end, of a sequence."""
    return gaps.double().nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)


def gaps_of(drive: Drive, like: Tensor | None = None) -> Float[Tensor, "*n"]:
    """The gaps before the steps of a drive; without them 1, of the shape of another table."""
    if drive.gaps is not None:
        return sane(drive.gaps)
    assert like is not None
    return torch.ones_like(like, dtype=torch.float64)


def mean_gap(series: Series | None) -> float:
    """The mean gap between steps of a series; 1 without gaps."""
    if series is None or series.dt is None:
        return 1.0
    total, n = 0.0, 0
    for part in series.parts():
        later = part.inside[..., 1:]
        total += float(torch.where(later, gaps_of(part.drive.at(slice(1, None))), 0.0).sum())
        n += int(later.sum())
    return total / n if total > 0 else 1.0


def check_gaps(series: Series) -> None:
    """Raise ValueError with the place if the gap before a step, but the first of a sequence, is not above 0."""
    if series.dt is None:
        return
    if not len(series.dt.shape) or series.dt.shape[:-1] != series.batch_shape or series.dt.shape[-1] < series.n_steps:
        return  # another shape has its own error
    for first, step, part in series.turns():
        gaps = part.drive.gaps
        assert gaps is not None
        wrong = ~(gaps[..., 1:] > 0) & part.inside[..., 1:]
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            number = first + int(wrong.flatten(0, -2).any(-1).nonzero()[0]) if series.batch_shape else first
            of = f" of sequence {number}" if series.batch_shape else ""
            raise ValueError(
                f"dt: got {float(gaps[..., 1:][place]):g} at step {step + place[-1] + 1}{of}, expected the time since "
                "the step before, a number above 0; leave one step at each time."
            )
