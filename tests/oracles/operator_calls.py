"""A valid call of every operator with a kernel, of any size."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from samplehold.inference import families
from samplehold.inference.chains.copy import op as copy
from samplehold.inference.chains.factored_copy import op as factored
from samplehold.inference.chains.gaussian_paths import op as paths
from samplehold.inference.chains.linear_gaussian import op as linear
from samplehold.inference.chains.linear_gaussian.parameters import root
from samplehold.inference.chains.markov import op as markov
from samplehold.inference.chains.one_series import op as one_series
from samplehold.inference.chains.segment import op as segment
from samplehold.inference.chains.segment import plain_stream
from samplehold.inference.chains.segment.tables import Tables as Segments
from samplehold.inference.chains.semi_markov import op as semi_markov
from samplehold.inference.chains.switching_gaussian import op as switching
from samplehold.inference.chains.switching_gaussian.plain import Belief
from samplehold.inference.chains.switching_gaussian.tables import Tables as Regimes
from samplehold.inference.families.family import relative
from samplehold.inference.families.normal import expected_normal, mean_point
from samplehold.inference.families.peak import peak
from samplehold.inference.gaussian import op as gaussian
from samplehold.inference.message_passing.stepwise import op as stepwise
from samplehold.inference.scans.gated import op as gated
from samplehold.inference.scans.linear import op as scans
from samplehold.inference.stacks.automaton import op as automaton
from samplehold.inference.stacks.stratification import op as stratification
from samplehold.inference.stacks.superposition import op as superposition
from samplehold.models.networks.stack_lstm import op as stack_lstm
from torch import Tensor


class Size(NamedTuple):
    """Sequences, steps and states."""

    n: int
    t: int
    k: int
    dtype: torch.dtype
    seed: int

    def draws(self, *shape: int, wide: bool = False) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + sum(shape))
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn if wide else drawn.to(self.dtype)

    def logs(self, *shape: int) -> Tensor:
        return self.draws(*shape).log_softmax(-1)

    def uniform(self, *shape: int) -> Tensor:
        return self.draws(*shape, wide=True).sigmoid()

    def shares(self, *shape: int) -> Tensor:
        return self.uniform(*shape).to(self.dtype)

    def spread(self, *shape: int, wide: bool = False) -> Tensor:
        """A positive definite matrix for each entry."""
        size = shape[-1]
        return (torch.eye(size, dtype=torch.float64 if wide else self.dtype) + 0.1).expand(*shape, size).clone()

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([max(1, self.t - i % 3) for i in range(self.n)], dtype=torch.int64)

    @property
    def moves(self) -> int:
        return max(self.t - 1, 0)


Call = tuple[Callable[..., Any], tuple[Any, ...]]
CALLS: dict[str, Callable[[Size], Call]] = {}


def call(of: Callable[[Size], Call]) -> Callable[[Size], Call]:
    CALLS[of.__name__] = of
    return of


def several(function: Callable[..., Any], name: str, arguments: Callable[[Size], tuple[Any, ...]]) -> None:
    CALLS[name] = lambda s: (function, arguments(s))


def of_copy(s: Size) -> tuple[Any, ...]:
    return s.logs(s.n, s.k), s.logs(s.n, s.t, s.k), s.logs(s.n, s.t, s.k if s.seed % 2 else 1), s.lengths


def of_factored(s: Size) -> tuple[Any, ...]:
    rates = s.t if s.seed % 2 else 1
    return s.logs(s.n, rates), s.logs(s.n, rates), s.logs(s.k), s.logs(s.n, s.t, s.k), s.lengths


def of_markov(s: Size) -> tuple[Any, ...]:
    return s.logs(s.k), s.logs(s.moves if s.seed % 2 else 1, s.k, s.k), s.logs(s.n, s.t, s.k), s.lengths


def of_rows(s: Size) -> tuple[Any, ...]:
    driven = s.logs(s.k, s.k), s.draws(s.k, s.k, 2), s.draws(s.n, s.moves, 2)
    return s.logs(s.k), *driven, s.logs(s.n, s.t, s.k), s.lengths


def of_semi_markov(s: Size) -> tuple[Any, ...]:
    moves = s.logs(s.moves if s.seed % 2 else 1, s.k, s.k)
    return s.logs(s.k), moves, s.logs(4, s.k, 3), s.logs(s.n, s.t, s.k), s.lengths


def of_linear(s: Size) -> tuple[Any, ...]:
    (moves, steps), k = ((s.moves, s.t) if s.seed % 2 else (1, 1)), min(s.k, 4)
    return (
        s.draws(s.n, s.t, 2), s.draws(s.n, s.t, 2) < 1, s.lengths, s.spread(moves, k) / 2, s.draws(moves, k),
        s.spread(moves, k), s.draws(steps, 2, k), s.draws(steps, 2), s.spread(steps, 2), s.draws(k), s.spread(k),
        s.draws(k, s.seed % 3),
    )  # fmt: skip


def of_paths(s: Size) -> tuple[Any, ...]:
    k = min(s.k, 20)
    return s.draws(s.n, s.t, k), -s.spread(s.n, s.t, k), s.draws(s.n, s.moves, k, k) / 9, s.lengths


def of_segments(s: Size) -> Segments:
    s = s._replace(t=max(s.t, 1))
    kinds = families.NormalGamma(), families.Gamma(), families.Dirichlet()
    usual = torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.ones(3)
    kind = s.seed % 3
    prior = usual[kind].double().expand(s.n, 2, -1).clone()
    if kind == 0:
        prior = torch.tensor([1.0, -1.0, -0.5, 0.5], dtype=torch.float64).expand(s.n, 2, 4).clone()
    statistics = s.draws(s.n, s.t, 2, prior.shape[-1], wide=True).abs()
    by_run, rate = s.seed % 2 == 0, torch.tensor(0.1, dtype=torch.float64)
    change, hold = (x.log().expand(s.n, 2 if by_run else s.t).clone() for x in (rate, 1 - rate))
    base = s.draws(s.n, s.t, wide=True)
    return Segments((kinds[kind],), (prior,), (statistics,), base, change, hold, by_run, s.lengths, 0.01)


def of_regimes(s: Size) -> Regimes:
    k, n = min(s.k, 3), 2
    model = s.draws(k, wide=True).log_softmax(-1), s.draws(k, k, wide=True).log_softmax(-1), s.draws(k, n, wide=True)
    square = s.spread(k, n, wide=True)
    moves = square, square / 2, s.draws(k, n, wide=True), square
    seen = s.draws(k, 2, n, wide=True), s.draws(k, 2, wide=True), s.spread(k, 2, wide=True)
    driven = (s.draws(k - 1, n, wide=True), s.draws(k, k - 1, wide=True)) if s.seed % 2 else (None, None)
    return Regimes(*model, *moves, *seen, *driven)


def drawn_path(s: Size) -> Tensor:
    return torch.arange(s.n * s.t).reshape(s.n, s.t) % min(s.k, 3)


def of_pushdown(s: Size) -> tuple[Any, ...]:
    n, t, k, q = min(s.n, 2), min(s.t, 4), 2 * min(s.k, 2), 2
    evidence = s.draws(n, t, t + 1, k, wide=True) if s.seed % 2 else None
    pairs = s.draws(3, n, t, k, k, wide=True).unbind()
    return s.draws(n, k, wide=True), *pairs, s.draws(n, t, k, q, wide=True), evidence, s.seed % 3 == 0


def wishart(s: Size) -> Tensor:
    one = torch.ones(s.n, dtype=s.dtype)
    return families.NormalWishart().natural(s.draws(s.n, 2), one, one + 2, s.spread(s.n, 2))


for name in ("evidence", "filter", "smooth", "marginals", "viterbi"):
    several(getattr(copy, name), f"copy {name}", of_copy)
several(copy.sample, "copy sample", lambda s: (*of_copy(s), s.uniform(2, s.n, s.t, 2)))
several(factored.filter, "factored filter", of_factored)
several(factored.posterior, "factored posterior", of_factored)
for name in ("filter", "posterior", "viterbi"):
    several(getattr(markov, name), f"markov {name}", of_markov)
    several(getattr(semi_markov, name), f"semi-markov {name}", of_semi_markov)
several(markov.sample, "markov sample", lambda s: (*of_markov(s), s.uniform(2, s.n, s.t)))
several(semi_markov.sample, "semi-markov sample", lambda s: (*of_semi_markov(s), s.uniform(2, s.n, s.t, 2)))
several(markov.rows_filter, "rows filter", of_rows)
several(markov.rows_posterior, "rows posterior", of_rows)
for name in ("evidence", "filter", "smooth"):
    several(getattr(linear, name), f"linear {name}", of_linear)
several(paths.moments, "paths moments", of_paths)
several(paths.sample, "paths sample", lambda s: (*of_paths(s), s.draws(2, s.n, s.t, min(s.k, 20))))
several(scans.scan, "linear scan", lambda s: (*s.draws(2, s.n, s.t, s.k).unbind(), s.draws(s.n, s.k), s.seed % 2 == 0))
several(stratification.step, "stratified", lambda s: (s.draws(s.n, 4), s.shares(s.n, s.t), s.draws(s.n, s.t, 2)))
several(superposition.step, "superposed", lambda s: (s.draws(s.n, 6), s.draws(s.n, s.t, 2), s.t + 1, 2, 0.1))
several(automaton.pushdown, "pushdown", of_pushdown)
several(lambda covariance: root(covariance)[0], "root", lambda s: (s.spread(s.n, min(s.k, 9)),))
several(expected_normal, "expected normal", lambda s: (families.NormalWishart().mean(wishart(s)),))
several(mean_point, "mean point", lambda s: (wishart(s),))
several(peak, "peak", lambda s: (-s.draws(s.n, 8).abs(), s.draws(2).abs()))
several(switching.polya_gamma, "polya-gamma", lambda s: (s.draws(s.n, s.k), torch.arange(s.n)))


@call
def linear_sample(s: Size) -> Call:
    tables = of_linear(s)
    noise = s.draws(2, s.n, s.t, tables[9].shape[-1]), s.draws(2, s.n, tables[-1].shape[-1])
    return linear.sample, (*tables, *noise)


@call
def row_sums(s: Size) -> Call:
    k = min(s.k, 5)
    tables = s.draws(s.n, 2, k), s.draws(s.n, 2, k, 3), s.draws(s.t, 3), s.shares(s.n, s.t, 2)
    return markov.row_sums, tables


@call
def gated_scan(s: Size) -> Call:
    gate = ("redraw", "hold", "ratio", "free")[s.seed % 4]
    candidate = ("linear", "tanh", "positive", "simplex")[s.seed // 4 % 4]
    pre = s.draws(s.n, s.t, (2 if s.seed % 4 < 2 else 3) * s.k)
    return gated.scan, (pre, s.draws(s.n, s.k), gate, candidate, s.k)


@call
def filter_vmp(s: Size) -> Call:
    tables = s.draws(s.n, s.t, s.k), s.draws(s.n, s.t, s.k if s.seed % 2 else 1), s.logs(s.n, s.k), s.draws(s.n, s.t)
    gate = s.shares(s.n, s.t) if s.seed % 3 else None
    return stepwise.filter, (*tables, s.logs(s.n, s.k), gate, s.lengths, 2, s.seed % 2 == 0)


@call
def series_evidence(s: Size) -> Call:
    n, each = min(s.k, 20), s.n if s.seed % 2 else 1
    tables = s.spread(n, 3, wide=True) / 2, s.uniform(n, 3), s.draws(each, s.t if s.seed % 3 else 1, 3, wide=True)
    x, start = s.draws(s.n, s.t, wide=True), s.spread(n, 3, wide=True)
    return one_series.evidence, (x, *tables, s.uniform(n), start, torch.tensor([True, False, False]))


for full in (False, True):

    def densities(s: Size, full: bool = full) -> tuple[Any, ...]:
        loc = s.draws(2, s.k, 2)
        spread = s.spread(2, s.k, 2) if full else s.shares(2, s.k, 2)
        return s.draws(s.t, 2), loc, spread, s.draws(2, s.k) if full else s.draws(2, s.k, 2)

    def moments(s: Size) -> tuple[Any, ...]:
        return s.draws(s.t, 2), s.shares(2, s.t, s.k), s.draws(2, s.k, 2)

    several(gaussian.full_density if full else gaussian.diagonal_density, f"density, {full=}", densities)
    several(gaussian.full_moments if full else gaussian.diagonal_moments, f"moments, {full=}", moments)


@call
def relative_to(s: Size) -> Call:
    kinds = families.Beta(), families.Dirichlet(), families.Gamma(), families.NormalGamma(), families.NormalWishart()
    kind, width = kinds[s.seed % 5], (2, 3, 2, 4, 8)[s.seed % 5]
    return relative, (s.draws(s.n, s.k, width).abs(), s.draws(s.k, width).abs(), kind)


@call
def segments_forward(s: Size) -> Call:
    tables = of_segments(s)
    return lambda tables: segment.forwards(tables.log_base, tables, segment.means(tables)), (tables,)


@call
def segments_smooth(s: Size) -> Call:
    tables = of_segments(s)
    found = segment.forward(tables)
    return lambda tables, found: segment.smooths(tables.log_base, tables, found, segment.means(tables)), (tables, found)


@call
def segments_viterbi(s: Size) -> Call:
    return lambda tables: segment.viterbis(tables.log_base, tables), (of_segments(s),)


@call
def segments_update(s: Size) -> Call:
    tables = of_segments(s._replace(n=1))
    prior, rate = tables.priors[0], torch.full((1, 2), -1.0, dtype=torch.float64)
    rows, found = torch.zeros(1, 3 + prior[0].numel(), 0, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.float64)
    x = s.draws(1, s.t, prior[0].numel() + 1, wide=True).abs()

    def update(x: Tensor, rows: Tensor, found: Tensor, prior: Tensor, rate: Tensor, most: int, by_run: bool) -> Any:
        rules = plain_stream.rules_of(tables.families, (prior,), rate, by_run, 0.01, most)
        memory, first = segment.update(x, plain_stream.Memory(rows, found), rules)
        return first, *segment.update(x, memory, rules)

    return update, (x, rows, found, prior, rate[:, : 1 + s.seed % 2], 3, s.seed % 2 == 1)


@call
def switching_filter(s: Size) -> Call:
    return switching.filter, (s.draws(s.n, s.t, 2, wide=True), s.lengths, of_regimes(s), 2, None)


@call
def switching_goes_on(s: Size) -> Call:
    k = min(s.k, 3)
    belief = Belief(torch.zeros(s.n, k).double(), s.draws(s.n, k, 2, wide=True), s.spread(s.n, k, 2, wide=True))
    return switching.filter, (s.draws(s.n, s.t, 2, wide=True), s.lengths, of_regimes(s), 2, belief)


@call
def switching_smooth(s: Size) -> Call:
    return switching.smooth, (s.draws(s.n, s.t, 2, wide=True), s.lengths, of_regimes(s))


@call
def gibbs_latents(s: Size) -> Call:
    tables = of_regimes(s)
    j = 0 if tables.recurrence is None else len(tables.recurrence)
    numbers = s.uniform(s.n, s.t, j), s.draws(s.n, s.t, 2, wide=True), s.draws(s.n, s.t, 2 + j, wide=True)
    return switching.latents, (s.draws(s.n, s.t, 2, wide=True), s.lengths, tables, drawn_path(s), *numbers)


@call
def gibbs_collapsed(s: Size) -> Call:
    given = s.draws(s.n, s.t, 2, wide=True), s.lengths, of_regimes(s._replace(seed=0)), drawn_path(s)
    return switching.collapsed, (*given, s.uniform(s.n, s.t))


@call
def gibbs_redrawn(s: Size) -> Call:
    given = s.draws(s.n, s.t, 2, wide=True), s.lengths, of_regimes(s._replace(seed=0)), drawn_path(s)
    return switching.redrawn, (*given, 4, torch.arange(s.n))


@call
def tapes(s: Size) -> Call:
    k, t = 2 * min(s.k, 2), min(s.t, 20)
    weights = s.draws(s.n, k, k), s.draws(s.n, k, k), s.draws(s.n, k, 2)

    def run(start: Tensor, n_states: int, push: Tensor, replace: Tensor, pop: Tensor) -> list[Tensor]:
        tape, tops = automaton.start(start, n_states, 2), []
        for _ in range(t):
            top, tape = automaton.advance(tape, push, replace, pop)
            tops.append(top)
        return tops

    return run, (s.draws(s.n, k), 2, *weights)


@call
def stack_network(s: Size) -> Call:
    layered, h, stacks, v, n_read = s.seed % 2 == 1, min(s.k, 9), 2, 2, 1 + (s.seed + 1) % 2
    raw, reading = stacks * ((2 if layered else 3) + v), stacks * v * (1 if layered else n_read)
    start = s.draws(s.n, h), s.draws(s.n, h), s.draws(s.n, reading), s.draws(s.n * stacks, 2, v + layered)
    weights = s.draws(4 * h, 3 + reading + h), s.draws(4 * h), s.draws(raw, h), s.draws(raw)
    ends = (s.draws(s.t, s.n) > 0, s.draws(raw)) if s.seed % 3 else (None, None)
    settings = stack_lstm.Settings(stacks, v, n_read, 0.1, None if layered else 3, layered, *ends)
    return stack_lstm.passes, (s.draws(s.t, s.n, 3), *start, *weights, settings)
