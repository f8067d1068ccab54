"""Learning in models of several chains: the bound rises and stays below the exact evidence, and finds what is there."""

import itertools

import pytest
import torch
from oracles.conjugate import log_dirichlet_multinomial, normal_wishart_log_evidence, normal_wishart_posterior
from oracles.coupled import factorial_of, layered_of
from oracles.linear_models import draw
from samplehold import Categorical, FactorialSSM, Gated, LayeredSSM, MultivariateNormal, Normal, Poisson
from samplehold.inference.families import CopyTables, MatrixNormalWishart
from samplehold.switching.coupled.factors import joint_counts, joint_normal
from samplehold.switching.coupled.noise import CountNoise, NormalNoise
from samplehold.switching.fitting import Options
from torch.testing import assert_close

FLOAT = torch.float64


def factorial(counts: bool = False) -> FactorialSSM:
    """Two chains, each of which moves a feature of its own."""
    low, high = (0.5, 2.0) if counts else (0.0, 3.0)
    first, second = torch.full((2, 2), low if counts else 0.0).to(FLOAT), torch.full((2, 2), low).to(FLOAT)
    first[1, 0] = second[1, 1] = high
    precision = None if counts else 4 * torch.eye(2, dtype=FLOAT)
    even = torch.tensor([0.5, 0.5], dtype=FLOAT)
    return factorial_of(torch.tensor([0.2, 0.1], dtype=FLOAT), [even, even], [first, second], precision)


def layered(emission: str = "normal") -> LayeredSSM:
    """A slow layer of two states that chooses among three of a fast one."""
    values = {
        "normal": {"loc": torch.tensor([[0.0], [4.0], [8.0]], dtype=FLOAT), "precision": torch.ones(3, 1).to(FLOAT)},
        "full": {"loc": 4 * draw(1, 3, 2), "precision": torch.eye(2, dtype=FLOAT).expand(3, 2, 2)},
        "categorical": {"probs": torch.softmax(3 * draw(1, 3, 3), -1)},
        "poisson": {"rate": torch.tensor([[1.0], [6.0], [20.0]], dtype=FLOAT)},
        "gated": {
            "loc": torch.tensor([[0.0], [4.0], [8.0]], dtype=FLOAT),
            "precision": torch.ones(3, 1).to(FLOAT),
            "background_loc": torch.full((1, 1), -4.0).to(FLOAT),
            "background_precision": torch.ones(1, 1).to(FLOAT),
        },
    }[emission]
    kind = {
        "normal": Normal(1),
        "full": MultivariateNormal(2),
        "categorical": Categorical(3),
        "poisson": Poisson(1),
        "gated": Gated(Normal(1), Normal(1)),
    }[emission]
    table = torch.tensor([[0.85, 0.1, 0.05], [0.05, 0.1, 0.85]], dtype=FLOAT)
    rho, top = torch.tensor([0.6, 0.03], dtype=FLOAT), torch.tensor([0.5, 0.5], dtype=FLOAT)
    return layered_of(kind, values, rho, [table], top)


# ---- the bound -------------------------------------------------------------------------------------------------------


def holed(x: torch.Tensor) -> torch.Tensor:
    x[0, 3:5] = torch.nan
    return x


@pytest.mark.parametrize("counts", [False, True])
def test_no_block_of_a_factorial_model_lowers_the_bound(counts):
    model = factorial(counts)
    x = holed(model.simulate(30, (2,), seed=1).x)
    graph = model.graph(model.read(x, lengths=[30, 12]), Options("vmp", 3))
    engine = graph.engine(graph.start(3))
    run = engine.run(8, tol=0, record=True)  # raises where a block does; before that, checks messages and linearity
    assert bool((run.elbo[-1] > run.elbo[0]).all())
    assert len(run.sweeps[0].elbo) == len(engine.blocks) == (8 if counts else 7)


@pytest.mark.few(2)
@pytest.mark.parametrize("emission", ["normal", "full", "categorical", "poisson", "gated"])
def test_no_block_of_a_layered_model_lowers_the_bound(emission):
    model = layered(emission)
    x = holed(model.simulate(30, (2,), seed=1).x)
    graph = model.graph(model.read(x, lengths=[30, 12]), Options("vmp", 3))
    engine = graph.engine(graph.start(3))
    run = engine.run(8, tol=0, record=True)
    assert bool((run.elbo[-1] > run.elbo[0]).all())


@pytest.mark.parametrize("emission", ["normal", "full", "categorical", "poisson"])
def test_observations_are_linear_in_the_statistics_of_their_parameters(emission):
    model = layered(emission)
    x = model.simulate(20, seed=2).x
    x[4] = torch.nan
    emission = model.emission
    points = emission.default_prior(3, x)
    both = [emission.statistics(model.values), emission.statistics(emission.start(points))]
    tables = [emission.expected_table(x, statistics) for statistics in (*both, (both[0] + both[1]) / 2)]
    assert_close(tables[0], emission.log_likelihood(x, model.values).redrawn, rtol=1e-9, atol=1e-9)
    assert_close(tables[2], (tables[0] + tables[1]) / 2, rtol=1e-9, atol=1e-9)
    assert not tables[0][4].any()


@pytest.mark.parametrize("counts", [False, True])
def test_the_joint_emission_at_points_is_the_expected_log_likelihood_of_the_model(counts):
    model = factorial(counts)
    x = model.simulate(9, (2,), seed=3).x
    x[1, 4] = torch.nan
    states = [torch.softmax(draw(d, 1, 2, 9, 2), -1) for d in range(2)]
    paths = [CopyTables(state / 3, state * 2 / 3) for state in states]
    if counts:
        factor, noise = joint_counts(x, ["chain_1", "chain_2"]), CountNoise.of(x)
        rates = [torch.stack([loc, loc.exp()], -1)[None] for loc in model.loc]
        found = factor.value(*paths, *rates)
    else:
        family, noise = MatrixNormalWishart(4), NormalNoise.of(x, model.precision)
        factor = joint_normal(x, family, (2, 2), ["chain_1", "chain_2"])
        point = family.sample(
            family.natural(torch.cat(model.loc), torch.eye(4).to(FLOAT), torch.tensor(5.0).to(FLOAT), model.precision),
            1,
        )
        point = type(point)(torch.cat(model.loc)[None], model.precision[None])
        found = factor.value(family.statistics(point), *paths)
    assert_close(found[0], noise.expected(model.loc, [state[0] for state in states]), rtol=1e-10, atol=1e-10)
    assert not found[0, 1, 4].any()


def test_the_bound_of_a_layered_model_lies_below_the_exact_evidence():
    """Of symbols: all paths summed, and every table integrated out of each."""
    x, sizes = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=FLOAT), (2, 2)
    terms, ones = [], torch.ones(2, dtype=FLOAT)
    for gates in itertools.product(itertools.product((0, 1), repeat=3), repeat=2):
        for lower, upper in itertools.product(itertools.product((0, 1), repeat=4), repeat=2):
            z = [(1, *g) for g in gates]
            if any(not z[i][t] and s[t] != s[t - 1] for i, s in enumerate((lower, upper)) for t in range(1, 4)):
                continue
            table, top, emitted = torch.zeros(2, 2).to(FLOAT), torch.zeros(2).to(FLOAT), torch.zeros(2, 2).to(FLOAT)
            for t in range(4):
                emitted[lower[t], int(x[t])] += 1
                table[upper[t], lower[t]] += z[0][t]
                top[upper[t]] += z[1][t]
            gate = [torch.tensor([sum(g), 3 - sum(g)], dtype=FLOAT) for g in gates]
            counts = [*table, top, *emitted, *gate]
            terms.append(torch.stack([log_dirichlet_multinomial(ones, n) for n in counts]).sum())
    exact = torch.stack(terms).logsumexp(0)
    model = layered_of(
        Categorical(2, prior=1.0),
        {"probs": torch.full((2, 2), 0.5, dtype=FLOAT)},
        torch.full((2,), 0.5, dtype=FLOAT),
        [torch.full(sizes, 0.5, dtype=FLOAT)],
        torch.full((2,), 0.5, dtype=FLOAT),
    )
    fit = model.fit(x[:, None], "vmp", restarts=6, tol=1e-10, progress=False)
    assert float(exact) - 3.0 < float(fit.objective[-1]) < float(exact)
    assert bool((fit.restarts.objective <= float(exact)).all())


@pytest.mark.slow
def test_one_state_and_one_step_have_the_conjugate_evidence():
    x = draw(0, 6, 1, 2)
    one = torch.ones(1, dtype=FLOAT)
    model = factorial_of(torch.full((1,), 0.3).to(FLOAT), [one], [torch.zeros(1, 2).to(FLOAT)], torch.eye(2).to(FLOAT))
    fit = model.fit(x, "vmp", restarts=1, progress=False)
    rows = x[:, 0]
    graph = model.graph(model.read(x), Options("vmp", 1))
    block = graph.engine(graph.start(1)).blocks["noise"]
    prior = block.family.usual(block.prior)
    known = {"loc": rows.mean(0), "kappa": prior.weight[0, 0], "df": prior.df, "scale_matrix": prior.scale_matrix}
    assert_close(fit.objective[-1], normal_wishart_log_evidence(known, rows), rtol=1e-12, atol=0)
    expected = normal_wishart_posterior(known, rows)
    assert_close(fit.posterior.mean["precision"], expected["df"] * expected["scale_matrix"], rtol=1e-12, atol=0)
    assert_close(fit.posterior.mean["loc_1"][0], expected["loc"], rtol=1e-12, atol=1e-14)


# ---- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.slow
def test_a_factorial_fit_finds_the_chains(counts):
    truth = factorial(counts)
    sample = truth.simulate(250, (3,), seed=3)
    x = holed(sample.x.clone())
    fit = truth.fit(x, "vmp", tol=1e-5, progress=False)
    assert fit.converged
    assert fit.method == "vmp"
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective[-1].abs())
    assert float(fit.objective[-1]) >= fit.restarts.objective.max() - 1e-3
    evidence = fit.model.log_evidence(x).sum()
    assert fit.objective[-1] < evidence
    assert evidence > truth.log_evidence(x).sum() - 10
    steps = [loc[1] - loc[0] for loc in fit.model.loc]
    moves = {0: 0, 1: 1} if steps[0][0].abs() > steps[0][1].abs() else {0: 1, 1: 0}
    for found, planted in moves.items():
        own = steps[found].abs()
        assert_close(own, (truth.loc[planted][1] - truth.loc[planted][0]).abs(), rtol=0, atol=0.2)
        interval = fit.posterior.interval(0.99)
        lower, upper = interval.lower["redraw_prob"][found], interval.upper["redraw_prob"][found]
        assert lower < truth.redraw_prob[planted] < upper
        state = fit.paths.state[found].argmax(-1)
        agree = (state == sample.path[..., planted]).double().mean()
        assert max(float(agree), 1 - float(agree)) > 0.9


@pytest.mark.slow
def test_a_layered_fit_finds_the_layers():
    truth = layered()
    sample = truth.simulate(400, (4,), seed=3)
    fit = truth.fit(sample.x, "vmp", progress=False)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective[-1].abs())
    assert fit.objective[-1] < fit.model.log_evidence(sample.x).sum()
    order = fit.model.values["loc"][:, 0].argsort()
    assert_close(fit.model.values["loc"][order, 0], truth.values["loc"][:, 0], rtol=0, atol=0.2)
    rows = fit.model.tables[0][:, order]
    rows = rows[rows[:, 2].argsort()]
    assert_close(rows, truth.tables[0], rtol=0, atol=0.15)
    assert_close(fit.model.redraw_prob, truth.redraw_prob, rtol=0, atol=0.1)
    upper = fit.paths.state[1].argmax(-1)
    agree = float((upper == sample.path[..., 1]).double().mean())
    assert max(agree, 1 - agree) > 0.9


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["factorial", "counts", "layered", "gated"])
def test_posteriors_have_means_intervals_and_draws_by_the_model_names(kind):
    model = (
        factorial(kind == "counts")
        if kind in ("factorial", "counts")
        else layered("gated" if kind == "gated" else "normal")
    )
    x = model.simulate(60, (2,), seed=1).x + (0.0 if kind == "counts" else 100.0)
    fit = model.fit(x, "vmp", restarts=2, max_steps=20, progress=False)
    draws, interval = fit.posterior.sample(4000), fit.posterior.interval(0.9)
    assert draws.keys() == fit.posterior.mean.keys() == interval.lower.keys()
    for name, mean in fit.posterior.mean.items():
        error = draws[name].std(0) / 4000**0.5
        assert bool(((draws[name].mean(0) - mean).abs() <= 5 * error + 1e-12).all()), name
        assert bool((interval.lower[name] <= interval.upper[name]).all())
    again = fit.posterior.sample(4000)
    assert all(torch.equal(draws[name], again[name]) for name in draws)
    if kind != "counts":
        assert float(fit.model.simulate(200, seed=0).x.mean()) > 80  # locations are where the data are


def test_fits_are_repeatable_and_ragged_data_end_where_they_end():
    truth = factorial()
    x = truth.simulate(50, (3,), seed=1).x
    junk = x.clone()
    junk[1, 20:] = 1e6
    first, second = (
        truth.fit(data, restarts=2, max_steps=5, lengths=[50, 20, 50], progress=False) for data in (x, junk)
    )
    assert torch.equal(first.objective, second.objective)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="prior: got 'own'"):
        layered().fit(torch.zeros(5, 1), prior="own")
    with pytest.raises(ValueError, match="method: got 'svi'"):
        layered().fit(torch.zeros(5, 1), "svi")
    with pytest.raises(ValueError, match="restarts: got 0"):
        layered().fit(torch.zeros(5, 1), restarts=0)
    with pytest.raises(ValueError, match="max_steps: got -1"):
        factorial().fit(torch.zeros(5, 2), max_steps=-1)


def test_data_that_leave_no_covariance_are_named():
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)).double()
    x[3, 1] = 1e300
    for method in ("em", "vmp"):
        with pytest.raises(ValueError, match=r"^x: "):
            factorial().fit(x, method, restarts=1, max_steps=2, progress=False)


def test_observations_that_some_state_rules_out_are_named_by_infer():
    half, table = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    symbols = layered_of(Categorical(3), {"probs": torch.tensor([[0.5, 0.5, 0], [0, 0.5, 0.5]])}, half, [table], half)
    assert symbols.infer([1, 1]).redraw.shape == (2, 2)
    with pytest.raises(ValueError, match=r"^x: the observation at step 1 is impossible under some state"):
        symbols.infer([1, 2, 1])
    normal = factorial_of(half, [half, half], [torch.zeros(2, 1), torch.ones(2, 1)], torch.eye(1))
    for x in (torch.tensor([[0.0], [1e30]]), torch.tensor([[[0.0], [1.0]], [[0.0], [1e30]]])):
        with pytest.raises(ValueError, match=r"^x: the observation at (sequence 1, )?step 1 is impossible"):
            normal.infer(x)


def test_a_value_far_from_all_others_is_rounded_and_not_refused():
    half = torch.tensor([0.5, 0.5], dtype=FLOAT)
    eye, one = torch.eye(1, dtype=FLOAT), torch.ones(2, 1, dtype=FLOAT)
    x = torch.tensor([[1e30], [1.0], [-0.9], [-0.8]], dtype=FLOAT)
    for step in range(1, 6):
        model = factorial_of(half, [half, half], [0.3 * step * one.cumsum(0), -one.cumsum(0)], eye)
        assert model.infer(x, max_steps=2).elbo.isfinite().all()


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_constant_far_from_0_is_a_constant(method):
    x = torch.full((2, 12, 2), -1e30)
    model = factorial()
    found, expected = (
        model.with_values({n: v.float() for n, v in model.values.items()}).fit(
            data, method, restarts=1, max_steps=2, progress=False
        )
        for data in (x, torch.zeros_like(x))
    )
    assert_close(found.objective, expected.objective)


@pytest.mark.parametrize("prior", ["weak", None])
def test_counts_of_which_all_are_zero_have_locations_that_the_dtype_holds(prior):
    half = torch.tensor([0.5, 0.5])
    model = factorial_of(half / 5, [half, half], [torch.zeros(2, 1), torch.ones(2, 1)])
    fitted = model.fit(torch.zeros(2, 12, 1), progress=False, prior=prior, restarts=2, max_steps=60).model
    assert all(bool(part.isfinite().all()) for part in fitted.loc)
    assert bool(fitted.log_evidence(torch.zeros(2, 12, 1)).isfinite().all())
