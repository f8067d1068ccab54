"""The message-passing engine on small models built from plain functions, against closed forms and enumeration."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import conjugate
from samplehold.inference.families import (
    Beta,
    Categorical,
    CopyPaths,
    CopyTables,
    Dirichlet,
    Gamma,
    Gaussian,
    LocPrecision,
    MarkovPaths,
    MarkovTables,
    NormalGamma,
    NormalWishart,
    tree_parts,
)
from samplehold.inference.message_passing import VMP, Block, Factor
from torch import Generator, Tensor
from torch.testing import assert_close

LOG_2PI = math.log(2 * math.pi)


# Small models, each factor one function.


def normal_features(x: Tensor) -> Tensor:
    """With E[t] of a NormalWishart (or, for one feature, a NormalGamma): E log N(x) = features . E[t]. [n, P]."""
    half = torch.full_like(x[..., :1], 0.5)
    outer = x[..., :, None] * x[..., None, :]
    return torch.cat([x, -half, half, -outer.flatten(-2) / 2], -1)


def normal_prior(dim: int, dtype=torch.float64) -> dict[str, Tensor]:
    return {
        "loc": torch.full((dim,), 0.2, dtype=dtype),
        "kappa": torch.tensor(0.5, dtype=dtype),
        "df": torch.tensor(dim + 1.5, dtype=dtype),
        "scale_matrix": torch.eye(dim, dtype=dtype) * 0.4,
    }


def clustered(n: int, dim: int, seed: int, dtype=torch.float64) -> Tensor:
    generator = Generator().manual_seed(seed)
    which = torch.randint(2, (n, 1), generator=generator)
    return (3.0 * which + torch.randn(n, dim, generator=generator, dtype=torch.float64)).to(dtype)


def emission_factor(x: Tensor, states: str, closed: bool = False, mask: Tensor | None = None) -> Factor:
    """x [*b, T, D] given states [*b, T, K] (of paths: their last table) and normal parameters [*r, K, P]."""
    features = normal_features(x)
    weights = torch.ones_like(x[..., 0]) if mask is None else mask.to(x.dtype)

    def occupation(stats):
        return stats if isinstance(stats, Tensor) else stats.likelihood

    def emission(stats, theta):
        table = features @ theta.mT - x.shape[-1] / 2 * LOG_2PI
        return (occupation(stats) * table).sum(-1)

    def to_states(stats, theta):
        table = (features @ theta.mT - x.shape[-1] / 2 * LOG_2PI) * weights[..., None]
        return table if isinstance(stats, Tensor) else MarkovTables(None, None, table)

    def to_theta(stats, theta):
        return ((occupation(stats) * weights[..., None]).mT @ features).reshape(-1, *theta.shape).sum(0)

    return Factor(
        emission,
        (states, "theta"),
        {states: to_states, "theta": to_theta} if closed else {},
        None if mask is None else mask,
    )


def choice(states, weights):
    return (states * weights).sum(-1)


def mixture(x: Tensor, n_states: int, seed: int = 0, mask: Tensor | None = None, closed: bool = False) -> VMP:
    prior = NormalWishart().natural(**normal_prior(x.shape[-1], x.dtype))
    start = torch.randn(len(x), n_states, generator=Generator().manual_seed(seed), dtype=torch.float64).to(x.dtype)
    return VMP(
        [
            Block("theta", NormalWishart(), prior, eta=prior.expand(n_states, -1)),
            Block("weights", Dirichlet(), torch.full((n_states,), 0.8, dtype=x.dtype)),
            Block("states", Categorical(), eta=start),
        ],
        [emission_factor(x, "states", closed, mask), Factor(choice, ("states", "weights"), mask=mask)],
    )


def first_state(paths, initial):
    return (paths.initial * initial).sum(-1)


def moves(paths, rows):
    return (paths.transition * rows).sum((-2, -1))


def hidden_markov(x: Tensor, n_states: int, seed: int = 0, closed: bool = False, lengths: Tensor | None = None) -> VMP:
    """x [B, T, D]."""
    n, n_steps, dim = x.shape
    prior = NormalWishart().natural(**normal_prior(dim, x.dtype))
    start = prior + 0.1 * normal_features(x[0, :n_states])
    tables = MarkovTables(
        x.new_zeros(n, n_states), x.new_zeros(n, n_states, n_states), x.new_zeros(n, n_steps, n_states)
    )
    return VMP(
        [
            Block("paths", MarkovPaths(lengths), eta=tables),
            Block("initial", Dirichlet(), x.new_full((n_states,), 0.7)),
            Block("rows", Dirichlet(), torch.eye(n_states, dtype=x.dtype) + 0.6),
            Block("theta", NormalWishart(), prior, eta=start),
        ],
        [
            Factor(first_state, ("paths", "initial")),
            Factor(moves, ("paths", "rows")),
            emission_factor(x, "paths", closed),
        ],
    )


def sample_hold(x: Tensor, n_states: int, restarts: int | None = None, seed: int = 0) -> VMP:
    """A copy chain with unknown redraw rate, state table and normal emissions: x [B, T]; the first step redraws."""
    lead = () if restarts is None else (restarts,)
    shape = (*lead, *x.shape, n_states)
    generator = Generator().manual_seed(seed)
    later = torch.ones_like(x[0])
    later[0] = 0
    one = x.new_tensor
    prior = NormalGamma().natural(one(0.2), one(0.5), one(1.5), one(1.0))
    means = x.flatten()[torch.randint(x.numel(), (*lead, n_states), generator=generator)]
    theta = NormalGamma().natural(means, one(0.5), one(1.5), one(1.0))
    features = torch.stack([x, torch.full_like(x, -0.5), torch.full_like(x, 0.5), -x.square() / 2], -1)

    def redraws(paths, rate):
        log_open, log_shut = rate[..., None, None, None, :].unbind(-1)
        return ((paths.fresh * log_open + paths.held * log_shut) * later[:, None]).sum((-2, -1))

    def drawn(paths, table):
        return (paths.fresh * table[..., None, None, :]).sum((-2, -1))

    def emitted(paths, theta):
        table = features @ theta.mT[..., None, :, :] - LOG_2PI / 2
        return ((paths.fresh + paths.held) * table).sum((-2, -1))

    return VMP(
        [
            Block("paths", CopyPaths(), eta=CopyTables(x.new_zeros(shape), x.new_zeros(shape))),
            Block("rate", Beta(), one([1.0, 2.0]), eta=one([1.0, 2.0]).expand(*lead, 2)),
            Block("table", Dirichlet(), x.new_ones(n_states), eta=x.new_ones(*lead, n_states)),
            Block("theta", NormalGamma(), prior, eta=theta),
        ],
        [Factor(redraws, ("paths", "rate")), Factor(drawn, ("paths", "table")), Factor(emitted, ("paths", "theta"))],
        restarts,
    )


def series(n: int, n_steps: int, seed: int) -> Tensor:
    """[B, T, 1]: a level that jumps now and then, and noise."""
    generator = Generator().manual_seed(seed)
    jumps = (torch.rand(n, n_steps, generator=generator) < 0.2).cumsum(-1) % 2
    return (3.0 * jumps + torch.randn(n, n_steps, generator=generator, dtype=torch.float64))[..., None]


MODELS = {
    "mixture": lambda seed: mixture(clustered(12, 2, seed), 3, seed),
    "hidden Markov": lambda seed: hidden_markov(series(2, 7, seed), 3),
    "sample and hold": lambda seed: sample_hold(series(2, 7, seed)[..., 0], 3, seed=seed),
}
each_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def random_direction(eta, seed: int):
    generator = Generator().manual_seed(seed)

    def draw(part):
        return torch.randn(part.shape, generator=generator, dtype=part.dtype)

    return tree(draw, eta)


def tree(function, *trees):
    if isinstance(trees[0], Tensor):
        return function(*trees)
    return type(trees[0])(*(function(*parts) for parts in zip(*trees, strict=True)))


def inner(a, b) -> Tensor:
    pairs = [(a, b)] if isinstance(a, Tensor) else zip(a, b, strict=True)
    return torch.stack([(p * q).sum() for p, q in pairs]).sum()


def moved(vmp: VMP, name: str, direction, step: float) -> VMP:
    blocks = dict(vmp.blocks)
    blocks[name] = replace(blocks[name], eta=tree(lambda eta, d: eta + step * d, blocks[name].eta, direction))
    return VMP(blocks.values(), vmp.factors, vmp.restarts, check=False)


# Conjugate models: one step is exact.


def test_one_step_is_the_posterior_of_a_normal_wishart():
    x, usual = clustered(9, 3, 1), normal_prior(3)
    features = normal_features(x)

    def likelihood(theta):
        return features @ theta - 3 / 2 * LOG_2PI

    vmp = VMP([Block("theta", NormalWishart(), NormalWishart().natural(**usual))], [Factor(likelihood, ("theta",))])
    vmp.step()
    found = NormalWishart().usual(vmp.blocks["theta"].eta)
    for name, expected in conjugate.normal_wishart_posterior(usual, x).items():
        assert_close(getattr(found, name), expected, rtol=1e-12, atol=1e-12)
    assert_close(vmp.elbo(), conjugate.normal_wishart_log_evidence(usual, x), rtol=1e-12, atol=0)
    assert vmp.run().converged


def test_one_step_is_the_posterior_of_a_normal_gamma():
    x = clustered(8, 1, 2)[:, 0]
    one = torch.tensor(1.0, dtype=torch.float64)
    usual = {"loc": 0.3 * one, "kappa": 0.7 * one, "shape": 1.2 * one, "rate": 0.8 * one}
    features = normal_features(x[:, None])

    def likelihood(theta):
        return features @ theta - LOG_2PI / 2

    vmp = VMP([Block("theta", NormalGamma(), NormalGamma().natural(**usual))], [Factor(likelihood, ("theta",))])
    vmp.step()
    found = NormalGamma().usual(vmp.blocks["theta"].eta)
    for name, expected in conjugate.normal_gamma_posterior(usual, x).items():
        assert_close(getattr(found, name), expected, rtol=1e-12, atol=1e-12)


def test_one_step_counts_coins_categories_and_events():
    heads = torch.tensor([1.0, 0, 0, 1, 1], dtype=torch.float64)
    letters = torch.nn.functional.one_hot(torch.tensor([0, 2, 2, 1, 2]), 4).double()
    events = torch.tensor([3.0, 0, 5], dtype=torch.float64)
    beta, dirichlet = (torch.tensor(a, dtype=torch.float64) for a in ([0.5, 2.0], [0.1, 1.0, 2.0, 0.3]))
    gamma = Gamma().natural(torch.tensor(1.5).double(), torch.tensor(0.5).double())
    vmp = VMP(
        [Block("coin", Beta(), beta), Block("word", Dirichlet(), dirichlet), Block("rate", Gamma(), gamma)],
        [
            Factor(lambda coin: heads * coin[0] + (1 - heads) * coin[1], ("coin",)),
            Factor(lambda word: letters @ word, ("word",)),
            Factor(lambda rate: events * rate[0] - rate[1] - torch.lgamma(events + 1), ("rate",)),
        ],
    )
    vmp.step()
    assert_close(vmp.blocks["coin"].eta, torch.tensor([3.5, 4.0]).double(), rtol=1e-15, atol=0)
    assert_close(vmp.blocks["word"].eta, torch.tensor([1.1, 2.0, 5.0, 0.3], dtype=torch.float64), rtol=1e-15, atol=0)
    assert_close(vmp.blocks["rate"].eta, torch.tensor([9.5, -3.5]).double(), rtol=1e-15, atol=0)
    of_coins = torch.lgamma(torch.tensor([3.5, 4.0, 2.5]).double()).sum()
    of_coins = of_coins - torch.lgamma(torch.tensor([0.5, 2.0, 7.5]).double()).sum()
    of_words = (torch.lgamma(dirichlet + letters.sum(0)) - torch.lgamma(dirichlet)).sum()
    of_words = of_words + torch.lgamma(dirichlet.sum()) - torch.lgamma(dirichlet.sum() + 5)
    of_events = torch.lgamma(gamma.new_tensor(9.5)) - torch.lgamma(gamma.new_tensor(1.5))
    of_events = of_events + 1.5 * math.log(0.5) - 9.5 * math.log(3.5) - torch.lgamma(events + 1).sum()
    assert_close(vmp.elbo(), of_coins + of_words + of_events, rtol=1e-12, atol=0)


# The bound.


def test_the_bound_is_tight_for_known_parameters():
    """q over paths holds the posterior, so the ELBO is the evidence, whatever the start."""
    generator = Generator().manual_seed(4)
    log_initial, log_rows = (torch.randn(*s, generator=generator).double().log_softmax(-1) for s in ((3,), (3, 3)))
    log_likelihood = torch.randn(1, 6, 3, generator=generator, dtype=torch.float64)

    def known(paths):
        return (
            (paths.initial * log_initial).sum(-1)
            + (paths.transition * log_rows).sum((-2, -1))
            + (paths.likelihood * log_likelihood).sum((-2, -1))
        )

    start = MarkovTables(*(torch.randn(1, *s, generator=generator).double() for s in ((3,), (3, 3), (6, 3))))
    vmp = VMP([Block("paths", MarkovPaths(), eta=start)], [Factor(known, ("paths",))])
    evidence = conjugate.paths_log_evidence(log_initial, log_rows, log_likelihood[0])
    assert vmp.elbo() < evidence
    vmp.step()
    assert_close(vmp.elbo(), evidence, rtol=1e-12, atol=1e-12)


def assert_below_the_evidence(bound: Tensor, x: Tensor, n_states: int, log_weight: Callable[[Tensor], Tensor]) -> None:
    """A sum over assignments of the steps of x [T, D], each of which is conjugate. Of one component it is the bound."""
    total, usual = [], normal_prior(x.shape[-1])
    for assignment in product(range(n_states), repeat=len(x)):
        which = torch.tensor(assignment)
        members = [x[which == k] for k in range(n_states)]
        of_data = sum(conjugate.normal_wishart_log_evidence(usual, m) for m in members if len(m))
        total.append(log_weight(which) + of_data)
    evidence = torch.logsumexp(torch.stack(total), 0)
    if n_states == 1:
        assert_close(bound, evidence, rtol=1e-12, atol=1e-12)
    else:
        assert bound < evidence


@given(seed=st.integers(0, 10**6), n_states=st.integers(1, 3))
@examples(8)
def test_the_bound_is_below_the_evidence_of_a_mixture(seed, n_states):
    x = clustered(4, 2, seed)

    def log_weight(which: Tensor) -> Tensor:
        counts = torch.bincount(which, minlength=n_states).double()
        return conjugate.log_dirichlet_multinomial(torch.full((n_states,), 0.8).double(), counts)

    assert_below_the_evidence(mixture(x, n_states, seed).run(50).elbo[-1], x, n_states, log_weight)


@pytest.mark.parametrize("n_states", [1, 2])
def test_the_bound_is_below_the_evidence_of_a_hidden_markov_model(n_states):
    x = series(1, 6, 5)

    def log_weight(which: Tensor) -> Tensor:
        moves = torch.zeros(n_states, n_states).double().index_put_((which[:-1], which[1:]), one(1.0), accumulate=True)
        first = torch.nn.functional.one_hot(which[0], n_states).double()
        of_first = conjugate.log_dirichlet_multinomial(torch.full((n_states,), 0.7).double(), first)
        return of_first + conjugate.log_dirichlet_multinomial(torch.eye(n_states).double() + 0.6, moves).sum()

    assert_below_the_evidence(hidden_markov(x, n_states).run(100).elbo[-1], x[0], n_states, log_weight)


# Messages and updates are gradients.


@each_model
@given(seed=st.integers(0, 10**6))
@examples(5)
def test_every_message_is_the_numerical_derivative_of_the_elbo(model, seed):
    """With respect to a block's expected statistics, in which the factors' part is affine: exact for any step."""
    vmp = model(seed % 100)
    vmp.step()
    for factor in vmp.factors:
        stats = [vmp.stats(name) for name in factor.blocks]
        for i, name in enumerate(factor.blocks):
            direction = random_direction(stats[i], seed)
            up, down = (
                factor.value(*stats[:i], tree(lambda a, b, s=s: a + s * b, stats[i], direction), *stats[i + 1 :]).sum()
                for s in (0.5, -0.5)
            )
            assert_close(inner(factor.message(name, *stats), direction), up - down, rtol=1e-9, atol=1e-9)


@each_model
def test_the_elbo_moves_as_the_natural_gradient_says(model):
    """dL / d eta = A''(eta) (optimum - eta): numerical derivatives of the whole bound, off the optimum."""
    vmp = model(6)
    vmp.step()
    for seed, (name, block) in enumerate(vmp.blocks.items()):
        optimum = VMP(vmp.blocks.values(), vmp.factors, check=False)
        optimum.update(name)
        direction = tree(lambda d, eta: d * 0.1 * eta.abs().clamp(min=1), random_direction(block.eta, seed), block.eta)
        if isinstance(block.family, NormalWishart):
            direction = block.eta * 0.3  # keeps the matrix symmetric
        up, down = moved(vmp, name, direction, 1e-5), moved(vmp, name, direction, -1e-5)
        rise = up.elbo() - down.elbo()
        change = tree(torch.sub, up.stats(name), down.stats(name))
        to_go = tree(torch.sub, optimum.blocks[name].eta, block.eta)
        assert_close(rise, inner(change, to_go), rtol=1e-5, atol=1e-11)


@each_model
def test_every_update_reaches_a_stationary_point(model):
    vmp = model(7)
    vmp.step()
    for name, block in vmp.blocks.items():
        vmp.update(name)
        reached, best = vmp.elbo(), vmp.blocks[name].eta
        for seed in range(3):
            direction = tree(lambda d, eta: d * 0.1 * eta.abs().clamp(min=1), random_direction(best, seed), best)
            if isinstance(block.family, NormalWishart):
                direction = best * 0.1 * (seed - 0.5)
            up, down = (moved(vmp, name, direction, step).elbo() for step in (1e-4, -1e-4))
            assert up < reached
            assert down < reached
            assert abs(up - down) < 1e-3 * (2 * reached - up - down)


@each_model
def test_no_update_lowers_the_elbo_and_the_changes_die_out(model):
    vmp = model(8)
    start = vmp.elbo()
    run = vmp.run(2000, tol=1e-13, record=True)
    assert run.converged
    assert run.elbo.shape == (run.steps,) == (len(run.sweeps),)
    trace = torch.stack([start, *(elbo for sweep in run.sweeps for elbo in sweep.elbo.values())])
    assert (trace.diff() >= -1e-10 * trace.abs().max()).all()
    assert trace[-1] > trace[0] + 1
    assert [set(sweep.change) for sweep in run.sweeps] == [set(vmp.blocks)] * run.steps
    assert max(run.sweeps[-1].change.values()) < 1e-3 < max(run.sweeps[0].change.values())
    assert_close(trace[-1], vmp.elbo(), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_just_after_its_update_the_bound_of_a_latent_block_is_its_normalizer(scale):
    """The same number without an evaluation of its factors; and with one, as soon as another block moves."""
    evaluations = []
    vmp = mixture(clustered(12, 2, 24), 3)

    def counted(states, weights):
        evaluations.append(1)
        return choice(states, weights)

    blocks = [replace(b, scale=scale) if b.name == "states" else b for b in vmp.blocks.values()]
    factors = [replace(vmp.factors[0], scale=scale), Factor(counted, ("states", "weights"), scale=scale)]
    engine = VMP(blocks, factors)
    for name, expected in (("theta", 1), ("states", 0), ("weights", 1)):
        engine.update(name)
        evaluations.clear()
        bound = engine.elbo()
        assert len(evaluations) == expected
        assert_close(bound, VMP(engine.blocks.values(), factors, check=False).elbo(), rtol=1e-13, atol=0)


def test_recording_changes_nothing():
    plain, recorded = (MODELS["hidden Markov"](9).run(20, tol=0, record=record) for record in (False, True))
    assert not plain.converged
    assert_close(plain.elbo, recorded.elbo, rtol=0, atol=0)


# Closed forms, masks, dtypes.


@pytest.mark.parametrize("build", [mixture, hidden_markov])
def test_closed_forms_and_gradients_give_the_same_run(build):
    x = clustered(12, 2, 10) if build is mixture else torch.stack([clustered(7, 2, seed) for seed in (10, 11)])
    slow, fast = build(x, 3), build(x, 3, closed=True)
    assert_close(slow.run(10, tol=0).elbo, fast.run(10, tol=0).elbo, rtol=1e-12, atol=0)
    for name in slow.blocks:
        assert_close(slow.blocks[name].eta, fast.blocks[name].eta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("closed", [False, True])
def test_masked_data_are_data_that_are_not_there(closed):
    """Given the same start, up to the entropy of the assignments that are left free."""
    x = clustered(12, 2, 11)
    seen = torch.arange(12) % 3 != 0
    spoiled = torch.where(seen[:, None], x, 1e3)
    whole, part = mixture(spoiled, 2, mask=seen, closed=closed), mixture(x[seen], 2)
    start = whole.blocks["states"].eta[seen]
    part = VMP([replace(b, eta=start) if b.name == "states" else b for b in part.blocks.values()], part.factors)
    free = math.log(2) * int((~seen).sum())
    whole.run(10, tol=0), part.run(10, tol=0)
    assert_close(whole.elbo(), part.elbo() + free, rtol=1e-12, atol=0)
    assert_close(whole.blocks["theta"].eta, part.blocks["theta"].eta, rtol=1e-10, atol=1e-10)


def test_ragged_sequences_are_their_own_lengths():
    x, lengths = series(2, 8, 12), torch.tensor([8, 5])
    inside = torch.arange(8) < lengths[:, None]
    padded = hidden_markov(torch.where(inside[..., None], x, 99.0), 2, lengths=lengths)
    first, second = hidden_markov(x[:1], 2), hidden_markov(x[1:, :5], 2)
    for vmp in (first, second):
        vmp.put(padded.blocks["theta"])
    added = []
    for vmp in (padded, first, second):
        vmp.update("paths")
        for name in ("initial", "rows", "theta"):
            vmp.update(name)
        added.append([vmp.blocks[name].eta - vmp.blocks[name].prior for name in ("initial", "rows", "theta")])
    for both, one, other in zip(*added, strict=True):
        assert_close(both, one + other, rtol=1e-11, atol=1e-11)


def test_float32_follows_float64():
    x = clustered(40, 2, 13)
    double, single = mixture(x, 2), mixture(x.float(), 2)
    run, run32 = double.run(50), single.run(50, tol=1e-6)
    assert run32.elbo.dtype == torch.float64  # a sum over all data
    assert single.blocks["theta"].eta.dtype == torch.float32
    assert_close(run32.elbo[-1], run.elbo[-1], rtol=1e-4, atol=0)


# One line, many methods.


def test_streaming_over_two_halves_is_one_batch():
    x, usual = clustered(10, 2, 14), normal_prior(2)

    def fitted(prior, data):
        features = normal_features(data)
        vmp = VMP([Block("theta", NormalWishart(), prior)], [Factor(lambda theta: features @ theta, ("theta",))])
        vmp.step()
        return vmp.blocks["theta"].eta

    prior = NormalWishart().natural(**usual)
    assert_close(fitted(fitted(prior, x[:4]), x[4:]), fitted(prior, x), rtol=1e-12, atol=1e-12)


def minibatch(x: Tensor, members: slice, scale: float, start: dict[str, Tensor], step: float = 1.0) -> VMP:
    """A mixture of some of the data, standing for all: what is local counts `scale` times."""
    vmp = mixture(x[members], 2)
    blocks = [
        replace(b, scale=scale) if b.name == "states" else replace(b, eta=start[b.name], step=step)
        for b in vmp.blocks.values()
    ]
    order = sorted(blocks, key=lambda b: b.name != "states")
    return VMP(order, [replace(f, scale=scale) for f in vmp.factors], check=False)


def test_minibatches_average_to_the_batch():
    """Update of the shared blocks, and the ELBO, over a partition into equal minibatches."""
    x = clustered(12, 2, 15)
    whole = mixture(x, 2)
    whole.run(3)
    start = {name: whole.blocks[name].eta for name in ("theta", "weights")}
    whole.update("states")
    parts = [minibatch(x, slice(i, i + 4), 3.0, start) for i in (0, 4, 8)]
    for part in parts:
        part.update("states")
    assert_close(torch.stack([part.elbo() for part in parts]).mean(), whole.elbo(), rtol=1e-12, atol=0)
    for name in start:
        for vmp in (whole, *parts):
            vmp.update(name)
        mean = torch.stack([part.blocks[name].eta for part in parts]).mean(0)
        assert_close(mean, whole.blocks[name].eta, rtol=1e-11, atol=1e-11)
        for vmp in (whole, *parts):
            vmp.put(replace(vmp.blocks[name], eta=start[name]))


def test_stochastic_steps_find_the_optimum_of_the_batch():
    x = clustered(150, 2, 16)
    whole = mixture(x, 2, seed=1)
    best = whole.run(500, tol=1e-12).elbo[-1]
    shared = {name: mixture(x, 2, seed=1).blocks[name].eta for name in ("theta", "weights")}
    shared["theta"] = shared["theta"] + normal_features(torch.tensor([[0.0, 0.0], [2.0, 2.0]]).double())
    for i in range(18):
        members = slice((i % 3) * 50, (i % 3) * 50 + 50)
        vmp = minibatch(x, members, 3.0, shared, step=(i + 2) ** -0.7)
        vmp.step()
        shared = {name: vmp.blocks[name].eta for name in shared}
    final = minibatch(x, slice(None), 1.0, shared)
    final.update("states")
    assert best - 2 < final.elbo() < best + 1e-6


def test_a_partial_step_goes_part_of_the_way():
    x = clustered(9, 2, 17)
    full, half = mixture(x, 2), mixture(x, 2)
    half.put(replace(half.blocks["theta"], step=0.25))
    start = half.blocks["theta"].eta
    full.update("theta"), half.update("theta")
    assert_close(half.blocks["theta"].eta, 0.75 * start + 0.25 * full.blocks["theta"].eta, rtol=1e-13, atol=1e-13)


def test_a_tempered_factor_counts_for_less():
    heads = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    factor = Factor(lambda coin: heads * coin[0] + (1 - heads) * coin[1], ("coin",), scale=0.25)
    vmp = VMP([Block("coin", Beta(), torch.tensor([1.0, 1.0]).double())], [factor])
    vmp.step()
    assert_close(vmp.blocks["coin"].eta, torch.tensor([1.75, 1.25]).double())


def test_a_statistic_may_broadcast_over_plates():
    """One coin a row, one prior for all: the message sums over the axes that the prior lacks."""
    heads = torch.tensor([[1.0, 0, 1], [1, 1, 1]], dtype=torch.float64)

    def tosses(coin):
        return heads * coin[..., 0] + (1 - heads) * coin[..., 1]

    prior = torch.tensor([1.0, 1.0]).double()
    shared = VMP([Block("coin", Beta(), prior)], [Factor(tosses, ("coin",))])
    each = VMP([Block("coin", Beta(), prior, eta=prior.expand(2, 1, 2))], [Factor(tosses, ("coin",))])
    shared.step(), each.step()
    assert_close(shared.blocks["coin"].eta, torch.tensor([6.0, 2.0]).double())
    assert_close(each.blocks["coin"].eta, torch.tensor([[[3.0, 2.0]], [[4.0, 1.0]]]).double())


def test_restarts_are_a_loop_over_restarts():
    x = series(2, 9, 18)[..., 0]
    together = sample_hold(x, 3, restarts=4, seed=2)
    run = together.run(15, tol=0)
    assert run.elbo.shape == (15, 4)
    assert run.elbo[-1].unique().numel() == 4
    for i in range(4):
        alone = sample_hold(x, 3, seed=2)
        theta = sample_hold(x, 3, restarts=4, seed=2).blocks["theta"].eta[i]
        alone.put(replace(alone.blocks["theta"], eta=theta))
        assert_close(alone.run(15, tol=0).elbo, run.elbo[:, i], rtol=1e-11, atol=0)
        assert_close(alone.blocks["theta"].eta, together.blocks["theta"].eta[i], rtol=1e-9, atol=1e-9)
    kept = together.select(run.elbo[-1].topk(2).indices)
    assert_close(kept.elbo(), run.elbo[-1].topk(2).values, rtol=1e-13, atol=0)
    kept.run(200)
    assert (kept.elbo() >= run.elbo[-1].topk(2).values).all()


def test_the_log_joint_at_a_point_is_the_sum_of_log_densities():
    x = series(1, 4, 19)
    vmp = hidden_markov(x, 2)
    path, generator = torch.tensor([0, 1, 1, 0]), Generator().manual_seed(20)
    points = {
        name: vmp.blocks[name].family.sample(vmp.blocks[name].eta, 1, generator)
        for name in ("initial", "rows", "theta")
    }
    initial, rows, theta = points["initial"][0], points["rows"][0], points["theta"]
    chain = MarkovTables(
        torch.nn.functional.one_hot(path[:1], 2).double(),
        torch.zeros(1, 2, 2).double().index_put_((torch.tensor(0), path[:-1], path[1:]), one(1.0), accumulate=True),
        torch.nn.functional.one_hot(path[None], 2).double(),
    )
    point = LocPrecision(theta.loc[0], theta.precision[0])
    statistics = {
        "paths": chain,
        "initial": initial.log(),
        "rows": rows.log(),
        "theta": vmp.blocks["theta"].family.statistics(point),
    }
    expected = initial.log()[path[0]] + rows.log()[path[:-1], path[1:]].sum()
    expected = expected + conjugate.log_density("Dirichlet", {"concentration": vmp.blocks["initial"].prior}, initial)
    expected = expected + conjugate.log_density("Dirichlet", {"concentration": vmp.blocks["rows"].prior}, rows).sum()
    prior = {name: value.expand(2, *value.shape) for name, value in normal_prior(1).items()}
    expected = expected + conjugate.log_density("NormalWishart", prior, point).sum()
    usual = {"loc": point.loc[path], "precision": point.precision[path]}
    expected = expected + conjugate.log_density("Gaussian", usual, x[0]).sum()
    assert_close(vmp.log_joint(statistics), expected, rtol=1e-11, atol=0)


# Errors.


def coin_block(**changes) -> Block:
    return replace(Block("coin", Beta(), torch.tensor([1.0, 1.0]).double()), **changes)


def heads(coin):
    return coin[..., 0]


def side(s, coin):
    return s[..., 0] * coin[..., 0]


SIDE = Block("side", Categorical(), eta=torch.zeros(2).double())

BROKEN = {
    "not affine": (
        [coin_block()],
        [Factor(lambda coin: coin[0] ** 2, ("coin",))],
        "not affine in the statistics of block 'coin'",
    ),
    "a product of two statistics": ([coin_block()], [Factor(lambda coin: coin[0] * coin[1], ("coin",))], "not affine"),
    "not affine in the second": (
        [coin_block(), SIDE],
        [Factor(lambda s, coin: s[0] * coin[0].exp(), ("side", "coin"))],
        "factor '<lambda>': elog is not affine in the statistics of block 'coin'",
    ),
    "not a number": ([coin_block()], [Factor(lambda coin: coin[0].log() + coin[1], ("coin",))], "not affine"),
    "detached": (
        [coin_block()],
        [Factor(lambda coin: coin[0].detach() + coin[1], ("coin",))],
        "message to block 'coin' is not the gradient",
    ),
    "wrong closed form": (
        [coin_block()],
        [Factor(heads, ("coin",), {"coin": lambda coin: torch.tensor([2.0, 0.0]).double()})],
        "factor 'heads': its message to block 'coin' is not the gradient",
    ),
    "closed form without the mask": (
        [coin_block()],
        [Factor(heads, ("coin",), {"coin": lambda coin: torch.tensor([1.0, 0.0]).double()}, mask=torch.tensor(0.0))],
        "not the gradient of the masked elog",
    ),
    "message of another shape": (
        [coin_block()],
        [Factor(heads, ("coin",), {"coin": lambda coin: torch.zeros(3).double()})],
        r"message to block 'coin' has shape \[\[3\]\], expected that of eta, \[\[2\]\]",
    ),
    "message of too many parts": (
        [coin_block()],
        [Factor(heads, ("coin",), {"coin": lambda coin: (coin, coin)})],
        "message to block 'coin' has shape",
    ),
    "unknown block": ([coin_block()], [Factor(heads, ("con",))], "factor 'heads': got block 'con', expected one of"),
    "block named twice": ([coin_block()], [Factor(side, ("coin", "coin"))], "factor 'side': .* name each block once"),
    "message to a stranger": (
        [coin_block(), SIDE],
        [Factor(heads, ("coin",), {"side": heads}), Factor(side, ("side", "coin"))],
        "factor 'heads': .* messages to",
    ),
    "block without a factor": ([coin_block(), SIDE], [Factor(heads, ("coin",))], "block 'side': no factor names it"),
    "two blocks of one name": (
        [coin_block(), coin_block()],
        [Factor(heads, ("coin",))],
        "blocks: got two named 'coin'",
    ),
    "improper prior": (
        [coin_block(prior=torch.tensor([1.0, 0.0]).double())],
        [Factor(heads, ("coin",))],
        r"block 'coin': its prior is improper: concentration of Beta: got 0 at \[1\]",
    ),
    "prior of more plates than eta": (
        [coin_block(prior=torch.ones(3, 2).double(), eta=torch.ones(2).double())],
        [Factor(heads, ("coin",))],
        r"block 'coin': prior has shape \[3, 2\] and torch.float64, expected those of eta, \[2\]",
    ),
    "prior of another dtype": (
        [coin_block(prior=torch.ones(2), eta=torch.ones(2).double())],
        [Factor(heads, ("coin",))],
        r"block 'coin': prior has shape \[2\] and torch.float32, expected those of eta, \[2\] and torch.float64",
    ),
    "improper start": (
        [coin_block(eta=torch.tensor([-1.0, 1.0]).double())],
        [Factor(heads, ("coin",))],
        "block 'coin': its eta is improper",
    ),
    "no prior": (
        [coin_block(prior=None)],
        [Factor(heads, ("coin",))],
        "block 'coin': got no prior, but a Beta needs one",
    ),
    "neither prior nor start": (
        [coin_block(), replace(SIDE, eta=None)],
        [Factor(side, ("side", "coin"))],
        "block 'side': got neither prior nor eta",
    ),
}


@pytest.mark.parametrize(("blocks", "factors", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_structure_that_cannot_work_is_refused_by_name(blocks, factors, message):
    with pytest.raises(ValueError, match=message):
        VMP(blocks, factors)


def test_restarts_must_be_in_front():
    eta = torch.ones(3, 2).double()
    with pytest.raises(
        ValueError, match=r"block 'coin': eta has shape \[3, 2\], expected restarts = 4 as its first axis"
    ):
        VMP([coin_block(eta=eta)], [Factor(heads, ("coin",))], restarts=4)
    with pytest.raises(ValueError, match=r"factor '<lambda>': elog has shape \[\], expected restarts = 3"):
        VMP([coin_block(eta=eta)], [Factor(lambda coin: coin.sum(), ("coin",))], restarts=3)


def test_a_function_that_fails_is_named():
    with pytest.raises(RuntimeError) as error:
        VMP([coin_block()], [Factor(lambda coin: coin @ torch.ones(3).double(), ("coin",))])
    assert error.value.__notes__ == ["raised by factor '<lambda>', given statistics of shapes {'coin': [[2]]}"]


@pytest.mark.parametrize("record", [False, True])
def test_an_update_that_lowers_the_elbo_is_named(record):
    """A message of the wrong sign, let through by check=False."""
    x = clustered(12, 2, 21)
    vmp = mixture(x, 2)
    vmp.run(3)
    wrong = replace(vmp.factors[1], messages={"weights": lambda s, w: -0.05 * s.sum(0)})
    broken = VMP(vmp.blocks.values(), [vmp.factors[0], wrong], check=False)
    with pytest.raises(ValueError, match=r"block 'weights': its update lowered the ELBO from .* to "):
        broken.run(5, record=record)


def test_nan_in_the_data_is_named():
    x = clustered(6, 2, 22)
    vmp = mixture(x, 2)
    x_bad = x.clone()
    x_bad[2, 0] = math.nan
    broken = VMP(vmp.blocks.values(), [emission_factor(x_bad, "states"), vmp.factors[1]], check=False)
    with pytest.raises(ValueError, match="factor 'emission': its part of the ELBO is nan"):
        broken.elbo()


def test_a_step_out_of_the_family_is_named():
    vmp = VMP(
        [Block("x", Gaussian(), eta=Gaussian().natural(torch.zeros(2).double(), torch.eye(2).double()))],
        [Factor(lambda x: x[2] + x[5], ("x",))],
    )
    vmp.update("x")
    with pytest.raises(ValueError, match="block 'x': its eta is improper: precision of Gaussian: got -2"):
        vmp.elbo()


# ---- factors with something summed out -------------------------------------------------------------------------------


def logistic(z: Tensor, sign: float = 1.0):
    """The bound on E log sigma(z w) of a normal weight, convex in the mean of its square (Jaakkola & Jordan 2000)."""

    def bound(weight):
        mean, square = weight[..., 0], weight[..., 1]
        root = (z.square() * square.unsqueeze(-1) + 1e-30).sqrt()
        return sign * (z * mean.unsqueeze(-1) / 2 - root / 2 - torch.nn.functional.softplus(-root))

    return bound


def test_a_convex_factor_raises_the_bound_through_its_tangent():
    z = torch.tensor([1.0, 2.0, -0.5, 3.0], dtype=torch.float64)
    prior = Gaussian().natural(torch.zeros(1).double(), torch.eye(1).double())
    vmp = VMP([Block("weight", Gaussian(), prior)], [Factor(logistic(z), ("weight",), convex=("weight",))])
    bounds = torch.stack([vmp.sweep().elbo["weight"] for _ in range(30)])
    assert float(bounds.diff().min()) >= -1e-12
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    log_joint = torch.nn.functional.logsigmoid(grid[:, None] * z).sum(-1) - grid**2 / 2 - 0.5 * math.log(2 * math.pi)
    exact = log_joint.logsumexp(0) + math.log(float(grid[1] - grid[0]))
    assert exact - 0.3 < bounds[-1] < exact


def test_what_is_said_to_be_convex_and_is_not_is_named():
    z = torch.tensor([1.0, 2.0, -0.5, 3.0], dtype=torch.float64)
    prior = Gaussian().natural(torch.zeros(1).double(), torch.eye(1).double())
    with pytest.raises(ValueError, match=r"factor 'bound': elog is declared convex in .* but lies below its tangent"):
        VMP([Block("weight", Gaussian(), prior)], [Factor(logistic(z, -1.0), ("weight",), convex=("weight",))])


def counted(u: Tensor, x: Tensor, sign: float = 1.0):
    """E log Poisson(x; exp(u w)) of a normal weight, without constants."""

    def expected(weight):
        mean, variance = weight[..., 0, None], (weight[..., 1] - weight[..., 0].square()).unsqueeze(-1)
        return x * u * mean - sign * (u * mean + u.square() * variance / 2).exp()

    return expected


def test_steps_of_a_curved_factor_are_halved_until_the_bound_rises_to_its_maximum():
    u, x = torch.tensor([1.0, 2.0, -0.5, 1.5]).double(), torch.tensor([3.0, 60.0, 0.0, 20.0]).double()
    prior = Gaussian().natural(torch.zeros(2, 1).double(), torch.eye(1).double())  # two plates
    start = Gaussian().natural(torch.tensor([[-3.0], [4.0]]).double(), torch.eye(1).double())
    ends = []
    for eta in start:
        curved = Factor(counted(u, x), ("weight",), curved=("weight",))
        vmp = VMP([Block("weight", Gaussian(), prior[0], eta=eta)], [curved])
        bounds = [vmp.elbo(), *(vmp.sweep().elbo["weight"] for _ in range(60))]
        assert float(torch.stack(bounds).diff().min()) >= -1e-9
        ends.append((bounds[-1], vmp.stats("weight")))
    assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-10)
    grid = torch.linspace(1, 3, 100_001, dtype=torch.float64)
    log_joint = (x * u * grid[:, None] - (u * grid[:, None]).exp()).sum(-1) - grid**2 / 2 - 0.5 * LOG_2PI
    exact = log_joint.logsumexp(0) + math.log(float(grid[1] - grid[0]))
    assert exact - 0.01 < ends[0][0] < exact
    mean, square = ends[0][1].clone().requires_grad_().unbind()  # the maximum: no slope in mean and variance
    variance = square - mean.square()
    fit = counted(u, x)(torch.stack([mean, square])).sum() - (mean.square() + variance - variance.log()) / 2
    assert_close(torch.stack(torch.autograd.grad(fit, (mean, square))), torch.zeros(2).double(), rtol=0, atol=1e-8)


def test_restarts_halve_their_steps_by_themselves():
    u, x = torch.tensor([1.0, 2.0, -0.5, 1.5]).double(), torch.tensor([3.0, 60.0, 0.0, 20.0]).double()
    prior = Gaussian().natural(torch.zeros(1).double(), torch.eye(1).double())
    starts = Gaussian().natural(torch.tensor([[-3.0], [1.9], [4.0]]).double(), torch.eye(1).double())
    factor = Factor(counted(u, x), ("weight",), curved=("weight",))

    def run(etas: Tensor) -> Tensor:
        vmp = VMP([Block("weight", Gaussian(), prior, eta=etas)], [factor], len(etas))
        vmp.run(3, tol=0.0)
        return vmp.blocks["weight"].eta

    assert_close(run(starts), torch.cat([run(start.unsqueeze(0)) for start in starts]), rtol=1e-12, atol=1e-12)


def test_a_wrong_message_of_a_curved_factor_is_named():
    u, x = torch.tensor([1.0]).double(), torch.tensor([3.0]).double()
    prior = Gaussian().natural(torch.zeros(1).double(), torch.eye(1).double())
    wrong = Factor(counted(u, x), ("weight",), {"weight": torch.ones_like}, curved=("weight",))
    with pytest.raises(ValueError, match="factor 'expected': its message to block 'weight' is not the gradient"):
        VMP([Block("weight", Gaussian(), prior)], [wrong])


def test_blocks_are_read_as_a_mapping_and_set_by_put():
    x = series(2, 9, 18)[..., 0]
    vmp = sample_hold(x, 3, seed=2)
    with pytest.raises(TypeError, match="does not support item assignment"):
        vmp.blocks["theta"] = vmp.blocks["theta"]
    with pytest.raises(ValueError, match="block: got 'nobody', expected one of"):
        vmp.put(replace(vmp.blocks["theta"], name="nobody"))
    vmp.run(5)
    before = vmp.elbo()
    vmp.put(vmp.blocks["theta"])  # which changes nothing, and nothing is known to be at its optimum any more
    assert_close(vmp.elbo(), before, rtol=1e-12, atol=0)


def test_an_update_under_other_statistics_is_that_of_an_engine_which_has_them():
    x = series(2, 9, 18)[..., 0]
    vmp, other = sample_hold(x, 3, seed=2), sample_hold(x, 3, seed=2)
    other.run(3)
    under = {name: other.stats(name) for name in other.blocks if name != "path"}
    name = next(n for n, block in vmp.blocks.items() if block.prior is None)
    vmp.update(name, under=under)
    other.update(name)
    for ours, theirs in zip(tree_parts(vmp.blocks[name].eta), tree_parts(other.blocks[name].eta), strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
