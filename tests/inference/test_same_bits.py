"""Kernels give the same bits whatever the number of threads: threads decide who computes a part, never what it is.

Calls from several threads of Python have each the bits that they have alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.regime_paths import random_regimes
from oracles.segments import block_of, hazards
from samplehold.inference.chains.markov.driven import DrivenMarkovChain
from samplehold.inference.chains.markov.op import row_sums
from samplehold.inference.chains.switching_gaussian import op as switching_gaussian
from samplehold.inference.families import GaussianPaths, GaussianTables
from samplehold.inference.gaussian import op as gaussian
from samplehold.inference.message_passing.stepwise.op import filter_steps
from samplehold.inference.numerics.products import with_ones
from samplehold.inference.scans.gated.op import gated_scan
from samplehold.models.networks.stack_lstm.op import Settings, passes
from torch import Tensor

pytestmark = pytest.mark.cpu("threads of its kernels")

THREADS = (1, 2, 4)
LONG = 66_000  # steps, of which every kernel for one sequence makes several parts


def draws(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def uniform(*shape: int, dtype: torch.dtype) -> Tensor:
    """Sigmoids and the like of normal numbers would follow torch's threads."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def records(*found: object) -> list[Tensor]:
    """All tensors of some records."""
    values = [value for record in found for value in (vars(record).values() if hasattr(record, "__dict__") else record)]
    return [value for value in values if isinstance(value, Tensor)]


def with_gradient(value: Callable[..., Tensor], *tables: Tensor) -> list[Tensor]:
    leaves = [table.clone().requires_grad_() for table in tables]
    found = value(*leaves)
    weights = torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype).view_as(found)
    return [found.detach(), *torch.autograd.grad((found * weights).sum(), leaves)]


def chain_results(kind: type, tables: list[Tensor], lengths: Tensor | None) -> list[Tensor]:
    chain = kind(*tables, lengths=lengths)
    drawn = chain.sample(2, torch.Generator().manual_seed(0))
    return [
        *records(chain.smooth(), chain.filter(), chain.viterbi(), drawn),
        *with_gradient(lambda *leaves: kind(*leaves, lengths=lengths).log_normalizer(), *tables),
    ]


def batch_of(n: int) -> tuple[int, ...]:
    return () if n == 1 else (n,)


def ragged(n: int, steps: int) -> Tensor | None:
    return None if n == 1 else torch.tensor([steps - 7 * (i % 3) for i in range(n)])


def markov(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    stay = 3 * torch.eye(states, dtype=dtype)
    initial, moves = draws(states, dtype=dtype).log_softmax(-1), (stay + draws(states, states, dtype=dtype))
    tables = [initial, moves.log_softmax(-1), draws(*batch_of(n), steps, states, dtype=dtype)]
    return chain_results(sh.chains.MarkovChain, tables, ragged(n, steps))


def driven(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    initial, base = draws(states, dtype=dtype).log_softmax(-1), draws(states, states, dtype=dtype)
    weights = draws(states, states, 2, dtype=dtype, seed=1)
    inputs = draws(*batch_of(n), steps - 1, 2, dtype=dtype, seed=2)
    tables = [initial, base, weights, inputs, draws(*batch_of(n), steps, states, dtype=dtype, seed=3)]
    design, wide = with_ones(inputs.double().reshape(-1, 2)), torch.float64
    leaving, changes = draws(1, len(design), states, dtype=wide).abs(), draws(1, states, states, 3, dtype=wide)
    sums = row_sums(base.double().unsqueeze(0), changes, design, leaving)
    return [*records(DrivenMarkovChain(*tables, lengths=ragged(n, steps)).sums()), *sums]


def copies(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    rate, shape = torch.tensor(0.1), (*batch_of(n), steps, states)
    start = torch.zeros(states, dtype=dtype).log_softmax(-1)
    tables = [start.expand(*batch_of(n), states), rate.log() + draws(*shape, dtype=dtype)]
    return chain_results(
        sh.chains.CopyChain, [*tables, (1 - rate).log() + draws(*shape, dtype=dtype, seed=1)], ragged(n, steps)
    )


def factored(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    rate = torch.full((*batch_of(n), 1), 0.2, dtype=dtype)
    state = draws(states, dtype=dtype).log_softmax(-1).expand(*batch_of(n), states)
    tables = [rate.log(), (1 - rate).log(), state, draws(*batch_of(n), steps, states, dtype=dtype)]
    return chain_results(sh.chains.FactoredCopyChain, tables, ragged(n, steps))


def semi_markov(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    never = torch.eye(states, dtype=torch.bool)
    moves = draws(states, states, dtype=dtype).masked_fill(never, -torch.inf).log_softmax(-1)
    duration = draws(states, 60, dtype=dtype).log_softmax(-1)
    tables = [draws(states, dtype=dtype), moves, duration, draws(*batch_of(n), steps, states, dtype=dtype)]
    return chain_results(sh.chains.SemiMarkovChain, tables, ragged(n, steps))


def segments(n: int, steps: int, features: int, dtype: torch.dtype) -> list[Tensor]:
    (first, *_), *_ = parts = [block_of("normal", steps, seed, features) for seed in range(n)]
    statistics, base = (
        torch.stack(tables).to(dtype)
        for tables in zip(*((block.statistics, base) for block, base in parts), strict=True)
    )
    block, hazard = sh.chains.Block(first.family, first.prior.to(dtype), statistics), hazards("run", steps, 1).log() - 3
    chain = sh.chains.SegmentChain(block, hazard.to(dtype), base, "run", tol=1e-6)
    drawn = chain.sample(2, torch.Generator().manual_seed(0))
    return [*records(chain.filter(), chain.smooth(), chain.viterbi(), drawn), chain.entropy()]


def linear(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    one = torch.eye(states, dtype=dtype)
    x = draws(*batch_of(n), steps, states, dtype=dtype)
    x[..., ::7, 0] = torch.nan

    def chain(x: Tensor, transition: Tensor, *others: Tensor) -> sh.chains.LinearGaussianChain:
        return sh.chains.LinearGaussianChain(x, transition, *others, initial_covariance=one, lengths=ragged(n, steps))

    tables = [0.9 * one, one, one, one]
    whole = chain(x, *tables)
    drawn = whole.sample(2, torch.Generator().manual_seed(0))
    gradients = with_gradient(lambda *leaves: chain(x, *leaves).log_normalizer(), *tables)
    return [*records(whole.smooth(), whole.filter(), [drawn]), *gradients]


def gaussian_paths(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    square = -torch.eye(states, dtype=dtype).expand(n, steps, states, states)
    cross = 0.6 * uniform(n, steps - 1, states, states, dtype=dtype) - 0.3
    tables = draws(n, steps, states, dtype=dtype), square.contiguous(), cross

    def value(*tables: Tensor) -> Tensor:
        return GaussianPaths(torch.full((n,), steps)).evaluate(GaussianTables(*tables))[0]

    return with_gradient(value, *tables)


def moments(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    x, weights = draws(steps, 2, dtype=dtype), draws(*batch_of(n), steps, states, dtype=dtype).softmax(-1)
    loc = draws(*batch_of(n), states, 2, dtype=dtype)
    chol = (torch.eye(2, dtype=dtype) + 0.1).tril().expand(*loc.shape, 2)
    return [
        *gaussian.normal_moments(x, weights, loc),
        *gaussian.multivariate_normal_moments(x, weights, loc),
        *with_gradient(lambda loc: gaussian.normal_log_density(x, loc, torch.ones_like(loc)), loc),
        *with_gradient(lambda *leaves: gaussian.multivariate_normal_log_density(x, *leaves), loc, chol.contiguous()),
    ]


def scans(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    pre, start = draws(n, steps, 2 * states, dtype=dtype), draws(n, states, dtype=dtype)
    gate, value = uniform(n, steps, 2 * states, dtype=dtype).chunk(2, -1)
    return [
        *with_gradient(sh.linear_scan, gate, value),
        *with_gradient(sh.lerp_scan, gate, value),
        *with_gradient(lambda *leaves: gated_scan(*leaves, candidate="tanh"), pre, start),
        *with_gradient(lambda *leaves: gated_scan(*leaves, candidate="simplex", block=4), pre, start),
    ]


def stepwise(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    redrawn, held = (draws(n, steps, states, dtype=dtype, seed=seed) for seed in (0, 1))
    odds, state = draws(n, steps, dtype=dtype), draws(n, states, dtype=dtype).log_softmax(-1)
    found = filter_steps(redrawn, held, state, odds)
    gradients = with_gradient(lambda *leaves: filter_steps(*leaves).bound, redrawn, held, state, odds)
    return [*records(found), *gradients]


def regimes(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    """In float64, the only dtype of these kernels."""
    model = random_regimes(1, regimes=states, latent=3)
    x, ends = model.simulate(steps, (n,), seed=2).x, torch.tensor([steps - i for i in range(n)])
    filtered = switching_gaussian.filter(x, ends, model.tables(), 2, None)
    return records(filtered, filtered.belief, switching_gaussian.smooth(x, ends, model.tables()))


def stack_networks(n: int, steps: int, stacks: int, dtype: torch.dtype) -> list[Tensor]:
    """In float64: torch sums gradients of weights over steps, in float32 in an order that depends on the threads."""
    units, width = 20, 5
    reading, raw = stacks * width, stacks * (3 + width)
    start = (n, units), (n, units), (n, reading), (n * stacks, 0, width)
    weights = (4 * units, 4 + reading + units), (4 * units,), (raw, units), (raw,)
    tables = [draws(*shape, dtype=torch.float64, seed=i) for i, shape in enumerate(((steps, n, 4), *start, *weights))]
    return with_gradient(lambda *leaves: passes(*leaves, Settings(stacks, width, 1, 0.0, None))[0], *tables)


def stacks(n: int, steps: int, states: int, dtype: torch.dtype) -> list[Tensor]:
    actions, values = draws(n, steps, 3, dtype=dtype), draws(n, steps, states, dtype=dtype)

    def reading(actions: Tensor, values: Tensor) -> Tensor:
        return sh.stacks.StackMixture(actions.log_softmax(-1), values).superposition(depth=8)

    return with_gradient(reading, actions, values)


SIZES = {
    markov: [(1, LONG, 3), slow(1, LONG, 20), (2, 34_000, 3), (3, 900, 5), (5, 400, 20), (9, 400, 20)],
    driven: [(3, 900, 5), (9, 400, 3)],
    copies: [(1, LONG, 3), (5, 2000, 4)],
    factored: [(1, LONG, 3), (2, 34_000, 3), (3, 900, 5), (5, 400, 20), (40, 400, 4)],
    semi_markov: [(7, 200, 3)],
    segments: [(5, 300, 2)],
    linear: [(1, 3000, 2), (2, 900, 2), (5, 300, 3), (9, 300, 3), (40, 100, 2)],
    gaussian_paths: [(1, 4000, 3), (7, 700, 4)],
    moments: [(1, 200_000, 3), (3, 100_000, 3)],
    scans: [(1, 3000, 48), (5, 700, 16), (2, 100, 1300)],
    stepwise: [(1, 200, 3), (7, 300, 4)],
    regimes: [(8, 300, 3)],
    stack_networks: [(13, 40, 1), (13, 40, 8)],
    stacks: [(1, 300, 40), (8, 100, 8)],
}


def cases() -> list[object]:
    """Each kernel with each of its sizes."""
    flat = []
    for kernel, sizes in SIZES.items():
        for size in sizes:
            marks = getattr(size, "marks", ())
            values = getattr(size, "values", size)
            flat.append(pytest.param(kernel, *values, marks=marks, id=f"{kernel.__name__} {values}"))
    return flat


@pytest.mark.few(8)
@pytest.mark.parametrize(("kernel", "n", "steps", "states"), cases())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_the_same_bits(kernel, n, steps, states, dtype, n_threads):
    found = []
    for number in THREADS:
        n_threads(number)
        found.append(kernel(n, steps, states, dtype))
    assert len(found[0]) > 1
    for other in found[1:]:
        for i, (one, two) in enumerate(zip(found[0], other, strict=True)):
            assert torch.equal(one, two), (i, one.shape, float((one - two).abs().max()))


@pytest.mark.parametrize("kernel", [markov, copies, semi_markov, linear, scans, stacks])
def test_calls_from_two_threads_at_once_do_not_disturb_each_other(kernel):
    calls = [(kernel, 6, 120, 8, torch.float64), (kernel, 5, 100, 4, torch.float64)] * 4
    expected = [call(*given) for call, *given in calls[:2]] * 4
    with ThreadPoolExecutor(2) as pool:
        found = [each.result() for each in [pool.submit(*call) for call in calls]]
    for tables in zip(found, expected, strict=True):
        assert all(map(torch.equal, *tables))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize(("n", "steps"), [(1, 40_000), (20, 700)])
def test_a_fit_is_the_same_bits(n, steps, method, n_threads):
    """Of tables so large that torch and the kernels use all threads."""
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    x = draws(*batch_of(n), steps, 1, dtype=torch.float64).cumsum(-2) / 9 + draws(steps, 1, dtype=torch.float64, seed=1)
    found = []
    for number in THREADS:
        n_threads(number)
        fit = model.fit(x, method=method, restarts=2, max_steps=3, seed=0)
        found.append([*fit.model.values.values(), *records(fit.smooth()), fit.model.log_evidence(x)])
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
