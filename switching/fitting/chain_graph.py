r"""The graph of a problem of one chain: its parameters in conjugate blocks, and one block of paths.

$$\log p(x, y \mid \theta) = \sum_b \langle t_b(\theta), n_b(y, x) \rangle + \text{const}$$

where y is the path and the missing part of x. One factor joins each block of parameters to the paths. An update of the
paths is an E-step under expected logs. An update of the parameters adds expected counts to the prior.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.chains.contract import Chain
from ...inference.families import PathTables
from ...inference.message_passing.factor_graph import Block, Factor, add_message, fit_message
from ..data.series import Series
from ..dynamics.contract import PATHS, Dynamics
from ..dynamics.factors import named
from ..emissions.by_subject import of_one
from ..emissions.conjugate import ConjugateEmission
from ..emissions.contract import Emission, Part
from ..emissions.driven import rows_read
from ..emissions.generalized import GeneralizedLinear
from ..known import block_beside
from ..parameters import Parameters, prefixed, with_prefix
from ..priors import Conjugate
from ..problem import Problem
from .graph import Earlier, Etas, Points
from .linear_emission import LinearEmission
from .linked_emission import LinkedEmission
from .logit_emission import LogitEmission
from .rate_emission import RateEmission
from .series_graph import SeriesGraph

LINKED: dict[str, type[LinkedEmission]] = {
    "Poisson": RateEmission,
    "Bernoulli": LogitEmission,
    "Categorical": LogitEmission,
    "Normal": LinearEmission,
}  # by the name of the emission without inputs

LEAST = -1e4  # the log weight of an impossible state; its exponential is 0


@dataclass(frozen=True, kw_only=True)
class ChainGraph(SeriesGraph):
    """Blocks and factors of a problem under its prior.

    The data should be in units of their spread, so that second moments lose no digits.

    Attributes:
        problem: a problem of one chain.
        blocks: the blocks of parameters, held where they are fixed.
        counted: [T], 0 at steps that another part of the data counts; None: there are no such steps.
        earlier: the q of earlier data, if there is one; then no prior is a factor alone.
    """

    problem: Problem
    blocks: "Blocks" = field(default_factory=dict)
    counted: Tensor | None = None
    earlier: Earlier | None = None

    @staticmethod
    def of(
        problem: Problem,
        independent: bool = False,
        share: float = 1.0,
        before: Tensor | None = None,
        after: Tensor | None = None,
        earlier: Earlier | None = None,
    ) -> "ChainGraph":
        """The graph of a problem.

        Arguments:
            earlier: in place of the problem's prior.
            before, after: [*r, *b, K], if the series is a part of a longer one: see `Chain.between`. The first step is
                then the last step of the previous part, which counts it.

        Raises:
            TypeError: dynamics or an emission without a conjugate prior.
            ValueError: known noise; independent steps with a gap of 0, which makes two steps one.
        """
        dynamics, series, prior = problem.dynamics, problem.series, problem.prior
        if series.noise is not None:
            raise ValueError(
                'noise: was given, but message passing does not support it; use method="em", "svi" or "nuts".'
            )
        if dynamics.no_messages:
            raise TypeError(
                f"dynamics: {dynamics.no_messages}, so {dynamics.name} has no conjugate family, which message "
                'passing needs; use method="em", "svi" or "nuts".'
            )
        if independent and series.at_once:
            raise ValueError(
                "dt: got a gap of 0, which always holds the state, so steps are not independent; "
                'use factorization="structured".'
            )
        assert prior is not None
        blocks, counted = blocks_of(dynamics, problem.emission, problem.fixed), None
        if before is not None:
            counted = torch.ones(series.n_steps).to(series.like)
            counted[0] = 0.0
        parts = problem.emission.parts
        gated = len(parts) > 1
        known = series.log_states(problem.n_states)
        alike = parts[-1].alike and not independent and known is None
        family, zero = dynamics.paths(series, (), gated, alike=alike)
        if independent and family.base is not None:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(
                'dynamics: some paths are impossible, so steps are not independent; use factorization="structured".'
            )
        cut = {"before": before, "after": after, "independent": independent, "weights": series.weights}
        if known is not None:
            cut["base"] = base_of(known, counted, zero, family.base, independent)  # pyright: ignore[reportAttributeAccessIssue]
        priors = {name: (block, with_prefix(prior, prefix)) for name, (prefix, block) in blocks.items()}
        natural = {name: block.natural(known) for name, (block, known) in priors.items()}
        of_priors = {
            name: block.prior_factor(name, known, share)
            for name, (block, known) in priors.items()
            if block.prior_is_factor
        }
        if earlier is not None:
            natural, of_priors = earlier.before(natural, of_priors)
        return ChainGraph(
            families={name: block.family for name, (_, block) in blocks.items()},
            priors=natural,
            factors=[
                *dynamics.factors(series, counted, gated),
                *of_priors.values(),
                *emissions(problem.emission, PATHS, series, counted),
            ],
            paths=[Block(PATHS, replace(family, **cut), eta=zero)],  # pyright: ignore[reportArgumentType]
            collect=collected(blocks),
            alike=True,
            factor_priors=frozenset(of_priors if earlier is None else ()),
            share=share,
            problem=problem,
            independent=independent,
            blocks=blocks,
            counted=counted,
            earlier=earlier,
        )

    def to(
        self, series: Series, share: float = 1.0, before: Tensor | None = None, after: Tensor | None = None
    ) -> "ChainGraph":
        problem = self.problem.of(series)
        part = ChainGraph.of(problem, self.independent, self.share * share, before, after, self.earlier)
        return replace(part, families=self.families, priors=self.priors)

    @property
    def kept(self) -> Collection[str]:
        return self.families

    @property
    def width(self) -> int:
        return max(block.width for _, block in self.blocks.values())

    def chain(self, etas: Etas) -> Chain:
        """The chain over paths under a q of the parameters: smoothing, draws, the most probable path."""
        engine = self.engine(etas, check=False)
        engine.update(PATHS)
        paths = engine.blocks[PATHS]
        return paths.family.chain(paths.eta)  # type: ignore[attr-defined]

    def near(self, values: Parameters) -> Etas:
        """Natural parameters of all blocks at the start of a fit from these parameters `[R, ...]`: at their priors, or
        near the parameters where the updates of a block are local."""
        etas, series = self.start(len(next(iter(values.values())))), self.problem.series
        for part in self.problem.emission.parts:
            if part.block not in self.blocks:  # its parameters are in the block of the other part
                continue
            prefix, block = self.blocks[part.block]
            eta = block.near(with_prefix(values, prefix), partial(rows_read, part.emission, series))
            etas |= {} if eta is None else {part.block: eta}
        return etas

    def point(self, values: Parameters) -> Etas:
        """Expected statistics of a q that is concentrated on these parameters."""
        return {n: block.statistics(with_prefix(values, prefix)) for n, (prefix, block) in self.blocks.items()}


def base_of(known: Tensor, counted: Tensor | None, zero: Any, base: Any, independent: bool) -> Any:
    """The tables of log h of paths whose states are known, from log weights `[*b, T, K]` of the states.

    Arguments:
        zero: tables of the paths.
        base: other knowledge about the paths; None: there is none.
    """
    if counted is not None:
        known = torch.where(counted.unsqueeze(-1) > 0, known, 0.0)
    if independent:  # 0 times the logarithm of 0 has no value
        known = known.clamp_min(LEAST)
    return add_message(base, fit_message(type(zero).of_steps(known, known), zero), 1.0)


Blocks = dict[str, tuple[str | None, Conjugate]]
"""The blocks of parameters by name, each with the prefix of its parameters' names; None: of those with any prefix."""


def blocks_of(dynamics: Dynamics, emission: Emission, fixed: Parameters | None = None) -> Blocks:
    """The blocks of a model's parameters, held where they are fixed."""
    blocks: Blocks = {name: ("", block) for name, block in dynamics.message_blocks.items()}
    blocks |= emission_blocks(emission)
    return {
        name: (prefix, block_beside(block, with_prefix(fixed or {}, prefix)))
        for name, (prefix, block) in blocks.items()
    }


def check_fixed(problem: Problem) -> None:
    """Raise TypeError if message passing cannot hold the known entries of a problem beside its free ones."""
    if not problem.fixed:
        return
    emission = problem.emission
    if all(isinstance(part.emission, ConjugateEmission | GeneralizedLinear) for part in emission.parts):
        for _, block in blocks_of(problem.dynamics, emission, problem.fixed).values():
            try:
                _ = block.family
            except (TypeError, ValueError) as error:
                if str(error).startswith("fixed"):
                    raise
                if {*block.parameters} == {"loc", "precision"}:
                    raise TypeError(
                        "fixed: message passing cannot hold some features of loc while precision is free; give "
                        'precision too, or use method="em", "svi" or "nuts".'
                    ) from None
                raise TypeError(
                    f"fixed: message passing cannot hold these entries of {', '.join(block.parameters)} beside free "
                    f'ones ({error}); use method="em", "svi" or "nuts", or give whole tables.'
                ) from None


def emission_blocks(emission: Emission) -> Blocks:
    """The blocks of an emission's parameters."""
    parts, joined = emission.parts, emission.joined
    if joined is not None:
        return {parts[0].block: (None, joined)}
    blocks: Blocks = {}
    for part in parts:
        form = message_form(part.emission)
        beside = form.beside(part.block) if isinstance(form, LinkedEmission) else {}
        blocks |= {name: (part.prefix, block) for name, block in ({part.block: form} | beside).items()}
    return blocks


def renumbered(blocks: Blocks, etas: Etas, order: Int[Tensor, "K"]) -> Etas:
    """The same q with state `order[k]` as state k."""
    reordered_etas = dict(etas)
    for name, (_, block) in blocks.items():
        reordered_etas[name] = block.reordered(etas[name], order)
    return reordered_etas


def collected(blocks: Blocks) -> Callable[[Points], Parameters]:
    """From points of the blocks to parameters."""
    return partial(_values_at, blocks)


def _values_at(blocks: Blocks, points: Points) -> Parameters:
    values: Parameters = {}
    for name, (prefix, block) in blocks.items():
        values |= prefixed(block.values(points[name]), prefix or "")
    return values


def message_form(emission: Emission) -> ConjugateEmission | LinkedEmission:
    """The block of an emission's parameters in message passing; TypeError if there is none."""
    driven = of_one(emission)
    if isinstance(driven, GeneralizedLinear) and driven is not emission:
        raise TypeError(
            f'pooled: message passing cannot fit parameters by subject of {driven!r}; use method="em", "svi" or "nuts".'
        )
    plain = driven.plain if isinstance(driven, GeneralizedLinear) else emission
    if not isinstance(plain, ConjugateEmission):
        raise TypeError(
            f"emission: {plain.name} has no conjugate family, which message passing needs; "
            'use method="em", "svi" or "nuts".'
        )
    if plain.not_conjugate:
        raise TypeError(
            f"emission: {plain.not_conjugate}, so {plain.name} has no conjugate family, which message "
            'passing needs; use method="em", "svi" or "nuts".'
        )
    if not plain.is_conjugate:
        raise TypeError(
            f"prior: {plain.name} has priors of {', '.join(sorted(plain.user_priors))} that are not of its "
            'conjugate family, which message passing needs; use method="em", "svi" or "nuts".'
        )
    return plain if plain is emission else LINKED[plain.name](cast(GeneralizedLinear, driven))


def is_curved(emission: Emission) -> bool:
    """Whether a factor of the emission is curved, which takes float64: a variance is a difference of moments."""
    forms = (message_form(part.emission) for part in emission.parts)
    return any(isinstance(form, LinkedEmission) and form.is_curved for form in forms)


def emissions(emission: Emission, chain: str, series: Series, counted: Tensor | None = None) -> list[Factor]:
    """The factors between the blocks of an emission and a chain."""
    parts = emission.parts
    if emission.joined is not None:
        return [emitted(parts[0], chain, series, counted, beside=parts[1])]
    return [emitted(part, chain, series, counted, len(parts) == 1) for part in parts]


def emitted(
    part: Part,
    chain: str,
    series: Series,
    counted: Tensor | None = None,
    alone: bool = True,
    beside: Part | None = None,
) -> Factor:
    """E log p(x_t | s_t) at the steps of a part of an emission: all steps, the redrawn ones, or the held ones.

    Arguments:
        beside: the part of held steps, if its parameters are in the block of the part, after those of redrawn steps.
    """
    emission, form, powers = part.emission, message_form(part.emission), series.powers
    at_drawn, at_held = alone or not part.prefix, alone or bool(part.prefix)

    def rows() -> Tensor:
        return rows_read(emission, series)

    def weights(paths: PathTables) -> Tensor:
        drawn, held = paths.steps
        if held is None:
            return drawn
        if beside is not None:
            return torch.cat([drawn, held.sum(-1, keepdim=True) if beside.alike else held], -1)
        if at_drawn and at_held:
            return drawn + held
        if at_drawn:
            return drawn
        return held.sum(-1, keepdim=True) if part.alike else held

    def elog(paths: PathTables, *statistics: Tensor) -> Tensor:
        used = weights(paths)
        used = used if powers is None else used * powers.unsqueeze(-1)
        return torch.where(used == 0, 0.0, used * form.expected_table(rows(), *statistics)).sum(-1)

    def to_chain(paths: PathTables, *statistics: Tensor) -> PathTables:
        table = form.expected_table(rows(), *statistics)
        table = table if powers is None else table.mul_(powers.unsqueeze(-1))
        table = table if counted is None else table.mul_(counted.unsqueeze(-1))
        if beside is not None:
            k = paths.steps[0].shape[-1]
            return type(paths).of_steps(table[..., :k], table[..., k:])
        return type(paths).of_steps(table if at_drawn else None, table if at_held else None)

    def to_block(paths: PathTables, statistics: Tensor) -> Tensor:
        flat, n_axes = rows().flatten(0, -2), len(series.batch_shape) + 2
        counted_weights = weights(paths) if counted is None else weights(paths) * counted.unsqueeze(-1)
        shape = counted_weights.shape[: counted_weights.ndim - n_axes]
        powered = series.powered(counted_weights.reshape(*shape, len(flat), -1))
        assert isinstance(form, ConjugateEmission)
        return form.expected_message(flat, powered, statistics)

    factor = Factor(named(part.block, elog), (chain, part.block), {chain: to_chain}, mask=counted)
    if isinstance(form, LinkedEmission):
        return form.bounded(replace(factor, blocks=(*factor.blocks, *form.beside(part.block))), part.block)
    return replace(factor, messages={chain: to_chain, part.block: to_block}, convex=(part.block,))
