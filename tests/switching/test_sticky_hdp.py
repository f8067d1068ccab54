"""Sticky HDP dynamics: the family of their rows, message passing, the program, and the number of states in use."""

import itertools

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.models import enumerated_by_pyro, trace_log_prob
from samplehold.switching.dynamics.hierarchical_rows import HierarchicalRows
from samplehold.switching.fitting import ChainGraph
from torch.testing import assert_close

HYPER = "base_concentration", "row_concentration", "stickiness", "base_probs"
TABLE = [[0.95, 0.03, 0.02], [0.04, 0.94, 0.02], [0.02, 0.03, 0.95]]


def series(n_steps: int = 300, seed: int = 1) -> torch.Tensor:
    """Three states that last, well apart."""
    chain = sh.Markov(3)
    values = {"initial_probs": [1 / 3] * 3, "transition_probs": TABLE}
    model = sh.SwitchingSSM(chain, sh.Normal()).with_values(
        **values, loc=[[-3.0], [0.0], [3.0]], scale=[[0.7], [0.7], [0.7]]
    )
    return model.simulate(n_steps, seed=seed).x


def rows(n_states: int = 3, seed: int = 0) -> tuple[HierarchicalRows, torch.Tensor]:
    """The family and natural parameters of four restarts with counts of which some are tiny."""
    family = HierarchicalRows(n_states)
    pairs = (torch.tensor(pair, dtype=torch.float64) for pair in ([1.5, 0.7], [2.0, 0.1], [5.0, 1.5]))
    counts = torch.rand(4, n_states + 1, n_states, generator=torch.Generator().manual_seed(seed)).double() ** 6 * 20
    eta = family.natural(*pairs).repeat(4, 1)
    eta[:, :-6] += counts.flatten(1)
    return family, eta


@pytest.fixture(scope="module")
def by_messages():
    return sh.SwitchingSSM(sh.StickyHDP(8), sh.Normal()).fit(series(), "vmp", restarts=1, progress=False)


# ---- the family ------------------------------------------------------------------------------------------------------


def test_expected_statistics_are_the_gradient_of_the_normaliser():
    family, eta = rows()
    leaf = eta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(family.log_normalizer(leaf).sum(), leaf)
    assert_close(family.mean(eta), slope, rtol=1e-10, atol=1e-10)
    step = 1e-4 * torch.randn(eta.shape, generator=torch.Generator().manual_seed(0)).double()
    step[:, :-6] = step[:, :-6].abs()
    rise = (family.log_normalizer(eta + step) - family.log_normalizer(eta)).double()
    middle = family.mean(eta + step / 2)
    assert_close(rise, (middle * step).sum(-1), rtol=1e-5, atol=1e-9)


def test_the_mode_of_base_and_concentrations_is_one_in_its_neighbourhood():
    family, eta = rows()
    best = family._best(eta)
    phi = torch.cat([best.x, best.kappa[:, None], best.gamma[:, None]], -1).log()
    slope, curvature = family._slopes(phi, eta)
    assert float(slope.abs().max()) < 1e-5
    assert bool((torch.linalg.eigvalsh(curvature) < 0).all())
    by_autograd = torch.autograd.functional.hessian(lambda at: family._at(at[None], eta[:1]).sum(), phi[0])
    assert_close(curvature[0], by_autograd, rtol=1e-9, atol=1e-9)


def test_divergences_are_positive_and_zero_at_the_prior():
    family, eta = rows()
    other = eta.roll(1, 0)
    assert bool((family.kl(eta, other) > 0).all())
    assert_close(family.kl(eta, eta), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("change", [-1.0, torch.nan])
def test_counts_below_zero_are_refused(change):
    family, eta = rows()
    eta[0, 0] = change
    with pytest.raises(ValueError, match="counts: got"):
        family.check(eta)
    with pytest.raises(ValueError, match="no mode"):
        family.mode(eta)


def test_concentrations_of_a_prior_are_checked():
    family, eta = rows()
    eta[0, -1] = 0.0
    with pytest.raises(ValueError, match="not positive"):
        family.check(eta)


# ---- message passing -------------------------------------------------------------------------------------------------


def test_with_known_concentrations_message_passing_is_that_of_markov():
    base, total, share = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 4.0, 0.6
    x = series(60)
    known = {"base_probs": base, "base_concentration": 2.0, "row_concentration": total, "stickiness": share}
    alpha = total * (1 - share) * base
    options = {"method": "vmp", "restarts": 1, "progress": False, "start": torch.arange(60) % 3, "max_steps": 30}
    ours = sh.SwitchingSSM(sh.StickyHDP(3), sh.Normal()).fit(x, fixed=known, **options)
    markov = sh.Markov(3, initial_prior=alpha.tolist(), transition_prior=alpha.tolist(), sticky=total * share)
    plain = sh.SwitchingSSM(markov, sh.Normal()).fit(x, **options)
    # known entries keep the numbers of states, so compare what does not depend on them
    assert_close(ours.objective[-1], plain.objective[-1], rtol=1e-10, atol=1e-8)
    for name in ("initial_probs", "transition_probs", "loc"):
        assert_close(ours.values[name].flatten().sort().values, plain.values[name].flatten().sort().values)


def test_the_bound_never_falls():
    model = sh.SwitchingSSM(sh.StickyHDP(5), sh.Normal())
    problem = model.problem(series(80))
    graph = ChainGraph.of(problem)
    guess = problem.dynamics.start(torch.arange(80)[None] % 4, problem.series)
    values = problem.emission.start(problem.prior) | {name: table[0] for name, table in guess.items()}
    values |= {"loc": torch.linspace(-3, 3, 5).double()[:, None]}
    engine = graph.engine(graph.start(1))
    under = {name: table[None] for name, table in graph.point(values).items()}
    engine.update("paths", under=under)
    bounds = []
    for _ in range(25):
        engine.sweep()  # raises an error where an update lowers the bound
        bounds.append(float(engine.elbo()))
    assert all(later >= before - 1e-9 * abs(before) for before, later in itertools.pairwise(bounds))
    assert bounds[-1] > bounds[0] + 1.0


def test_three_states_of_eight_are_used(by_messages):
    assert int((~by_messages.empty_states).sum()) == 3
    used = by_messages.n_states_used(draws=50, seed=0)
    assert used.mode == 3
    assert float(used.probability.sum()) == pytest.approx(1.0)
    assert used.interval(0.9) == (3, 3)
    assert used.mean == pytest.approx(float((used.probability * torch.arange(1, 9)).sum()))
    assert by_messages.n_states_used(draws=20, least_steps=301).numbers.tolist() == [0] * 20
    seeds = [by_messages.n_states_used(draws=20, seed=seed).numbers for seed in (3, 3)]
    assert torch.equal(*seeds)
    levels = by_messages.values["loc"][~by_messages.empty_states].flatten()
    assert_close(levels, torch.tensor([-3.0, 0.0, 3.0], dtype=levels.dtype), rtol=0, atol=0.3)


def test_a_fit_has_intervals_files_and_tables(by_messages, tmp_path):
    low, high = by_messages.posterior.interval(n=500)
    used = ~by_messages.empty_states
    estimate = by_messages.values["transition_probs"][used][:, used]
    assert bool((low["transition_probs"][used][:, used] < estimate).all())
    assert bool((high["transition_probs"][used][:, used] > estimate).all())
    assert_close(low["stickiness"], by_messages.values["stickiness"])  # a point
    by_messages.model.save(tmp_path / "model")
    again = sh.load(tmp_path / "model")
    assert again.dynamics == sh.StickyHDP(8)
    assert_close(again.log_evidence(series()), by_messages.log_evidence(), rtol=1e-12, atol=0)
    assert "base_concentration" in str(by_messages.summary())
    assert by_messages.posterior.refined is by_messages.posterior
    assert by_messages.forecast(3).state.shape == (3, 8)


def test_missing_steps_and_ragged_sequences_count_what_they_have():
    x = series(60)
    model = sh.SwitchingSSM(sh.StickyHDP(4), sh.Normal())
    options = {"method": "vmp", "restarts": 1, "progress": False, "seed": 0}
    padded = torch.full((2, 60, 1), torch.nan)
    padded[0], padded[1, :25] = x, x[:25]
    ragged = model.fit([x, x[:25]], **options)
    lengths = model.fit(padded, lengths=[60, 25], **options)
    assert_close(ragged.objective[-1], lengths.objective[-1], rtol=1e-6, atol=1e-4)
    assert ragged.n_states_used(draws=10).numbers.shape == (10,)
    hole = x.clone()
    hole[20:30] = torch.nan
    assert bool(torch.isfinite(model.fit(hole, **options).objective).all())


def test_batches_and_updates_take_the_same_rows():
    x = series(120).reshape(6, 20, 1)
    model = sh.SwitchingSSM(sh.StickyHDP(4), sh.Normal())
    fit = model.fit(x, "vmp", restarts=1, progress=False, batch_size=3, max_steps=10)
    assert bool(torch.isfinite(fit.objective).all())
    later = fit.update(series(40, seed=2), max_steps=10)
    assert bool((later.values["transition_probs"] > 0).all())


def test_the_same_q_with_other_numbers_has_the_same_values_in_another_order(by_messages):
    (block,) = by_messages.model.dynamics.blocks.values()
    eta, order = by_messages.posterior.blocks["transition"], torch.tensor([3, 0, 2, 1, 7, 6, 5, 4])
    moved, plain = block.expected(block.reordered(eta, order)), block.expected(eta)
    for name in ("initial_probs", "base_probs"):
        assert_close(moved[name], plain[name][order], rtol=1e-6, atol=1e-9)
    assert_close(moved["transition_probs"], plain["transition_probs"][order][:, order], rtol=1e-6, atol=1e-9)


# ---- the program -----------------------------------------------------------------------------------------------------


def test_the_program_has_the_density_of_the_model():
    model = sh.SwitchingSSM(sh.StickyHDP(2, (1.5, 0.5), (2.0, 0.2), (3.0, 1.0)), sh.Poisson())
    p = {"base_probs": [0.6, 0.4], "initial_probs": [0.3, 0.7], "transition_probs": [[0.8, 0.2], [0.3, 0.7]]}
    model = model.with_values(**p, base_concentration=1.2, row_concentration=5.0, stickiness=0.7, rate=[[1.0], [6.0]])
    x = torch.tensor([[0.0], [5.0], [7.0], [torch.nan], [2.0]], dtype=torch.float64)
    assert_close(model.log_evidence(x), enumerated_by_pyro(model, x), rtol=1e-10, atol=0)
    t = {name: torch.tensor(table, dtype=torch.float64) for name, table in p.items()}
    alpha = 5.0 * 0.3 * t["base_probs"]
    expected = (
        dist.Gamma(1.5, 0.5).log_prob(torch.tensor(1.2).double())
        + dist.Gamma(2.0, 0.2).log_prob(torch.tensor(5.0).double())
        + dist.Beta(3.0, 1.0).log_prob(torch.tensor(0.7).double())
        + dist.Dirichlet(torch.full((2,), 0.6).double()).log_prob(t["base_probs"])
        + dist.Dirichlet(alpha).log_prob(t["initial_probs"])
        + dist.Dirichlet(alpha + 3.5 * torch.eye(2).double()).log_prob(t["transition_probs"]).sum()
        + model.emission.sites(model.prior)[0].log_prob(model.values, False)
    )
    assert_close(model.log_prior(model.values), expected, rtol=1e-6, atol=0)
    joint = trace_log_prob(model.without_values().collapsed, x, data=model.values)
    assert_close(joint, model.log_evidence(x) + model.log_prior(model.values), rtol=1e-10, atol=0)
    many = {name: table.expand(3, *table.shape) for name, table in model.values.items()}
    assert_close(model.log_prior(many), model.log_prior(model.values).expand(3))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_pyro_fits_the_same_program(method):
    options = {"num_samples": 10} if method == "nuts" else {"max_steps": 50}
    fit = sh.SwitchingSSM(sh.StickyHDP(3), sh.Normal()).fit(series(60), method, restarts=1, progress=False, **options)
    assert all(bool(table.isfinite().all()) for table in fit.values.values())
    assert 1 <= fit.n_states_used(draws=20).mode <= 3


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((1,), ValueError, "max_states: got 1"),
        ((0,), ValueError, "max_states: got 0"),
        ((2.5,), TypeError, "max_states: got 2.5"),
        ((3, (-1.0, 1.0)), ValueError, "base_prior: got"),
        ((3, (1.0, 1.0), (1.0, 0.0)), ValueError, "row_prior: got"),
        ((3, (1.0, 1.0), (1.0, 1.0), (1.0, 2.0, 3.0)), ValueError, "sticky_prior: got shape"),
        ((3, (1.0, float("nan"))), ValueError, "base_prior"),
    ],
)
def test_bad_arguments_are_named(arguments, error, said):
    with pytest.raises(error, match=said):
        sh.StickyHDP(*arguments)


def test_distributions_of_pyro_are_priors_of_the_concentrations():
    model = sh.SwitchingSSM(sh.StickyHDP(4), sh.Normal())
    given = model.with_prior({"row_concentration": dist.Gamma(3.0, 0.5), "stickiness": dist.Beta(4.0, 2.0)})
    assert given.prior["row_shape_rate"].tolist() == [3.0, 0.5]
    assert given.prior["stickiness_concentration"].tolist() == [4.0, 2.0]
    assert given.prior["base_shape_rate"].tolist() == [1.0, 1.0]
    for name, wrong in (("stickiness", dist.Gamma(1.0, 1.0)), ("base_probs", dist.Dirichlet(torch.ones(4)))):
        with pytest.raises(ValueError, match=f"prior\\['{name}'\\]"):
            model.with_prior({name: wrong})


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"method": "em"}, TypeError, 'use method="vmp" or "gibbs"'),
        ({"fixed": {"stickiness": 0.5}}, ValueError, "holds base_concentration, base_probs"),
        ({"fixed": {"base_probs": [0.5, float("nan"), float("nan")]}}, ValueError, "known in part"),
        ({"pooled": "none"}, ValueError, "pooled: got 'none', but StickyHDP"),
    ],
)
def test_fits_that_are_not_possible_say_what_is(options, error, said):
    with pytest.raises(error, match=said):
        sh.SwitchingSSM(sh.StickyHDP(3), sh.Normal()).fit(series(40), **{"method": "vmp", "progress": False} | options)


def test_known_states_keep_their_numbers():
    x = series(40)
    states = torch.full((40,), -1)
    states[0] = 2
    fit = sh.SwitchingSSM(sh.StickyHDP(4), sh.Normal()).fit(x, "vmp", states=states, restarts=1, progress=False)
    assert fit.smooth().state[0].argmax() == 2


def test_numbers_of_states_need_a_model_of_states():
    fit = sh.LinearSSM(sh.LocalLevel()).fit(series(20), max_steps=3, restarts=1, progress=False)
    with pytest.raises(TypeError, match="expected a SwitchingSSM"):
        fit.n_states_used()
    with pytest.raises(ValueError, match="least_steps: got 0"):
        fit.n_states_used(least_steps=0)


def test_an_em_fit_of_any_dynamics_has_a_number_of_states():
    fit = sh.SwitchingSSM(sh.Copy(3), sh.Normal()).fit(series(60), restarts=1, progress=False)
    assert fit.n_states_used(draws=30).numbers.max() <= 3
