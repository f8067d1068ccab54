"""Factor analysis in each state, against scipy, scikit-learn and enumeration."""

import numpy as np
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.models import enumerate_evidence
from samplehold.switching.emissions.factor_analysis import turned
from samplehold.switching.priors import log_prior
from scipy import stats
from sklearn.decomposition import FactorAnalysis
from torch.testing import assert_close

F, Q, K = 6, 2, 2
EMISSION = sh.FactorAnalysis(F, Q)
quiet = {"restarts": 1, "progress": False}
slow = pytest.mark.slow


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(seed: int = 0) -> dict[str, torch.Tensor]:
    made = generator(seed)
    loc, loadings = (torch.randn(K, F, *more, generator=made, dtype=torch.float64) for more in ((), (Q,)))
    return {"loc": 3 * loc, "loadings": loadings, "noise": 0.2 + torch.rand(K, F, generator=made, dtype=torch.float64)}


def known(seed: int = 0) -> sh.SwitchingSSM:
    moves = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.95, 0.05], [0.05, 0.95]]}
    return sh.SwitchingSSM(sh.Markov(K), EMISSION).with_values(**parameters(seed), **moves)


def observations(n: int = 120, missing: float = 0.0) -> torch.Tensor:
    x = known().simulate(n, seed=0).x
    return torch.where(torch.rand(x.shape, generator=generator(1)) < missing, torch.nan, x)


def covariance(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return values["loadings"] @ values["loadings"].mT + torch.diag_embed(values["noise"])


# ---- the density -----------------------------------------------------------------------------------------------------


def test_densities_are_those_of_scipy_also_with_missing_features():
    values, x = parameters(), observations(30, missing=0.3)
    x[4], x[5] = torch.nan, observations(30)[5]
    whole = covariance(values).numpy()
    expected = np.zeros((len(x), K))
    for t, row in enumerate(x.numpy()):
        seen = ~np.isnan(row)
        for k in range(K if seen.any() else 0):
            law = stats.multivariate_normal(values["loc"][k].numpy()[seen], whole[k][np.ix_(seen, seen)])
            expected[t, k] = law.logpdf(row[seen])
    assert_close(EMISSION.table(x, values), torch.from_numpy(expected), rtol=1e-11, atol=1e-11)
    complete = observations(30)
    laws = [stats.multivariate_normal(values["loc"][k].numpy(), whole[k]) for k in range(K)]
    expected = np.stack([law.logpdf(complete.numpy()) for law in laws], -1)
    assert_close(EMISSION.table(complete, values), torch.from_numpy(expected), rtol=1e-11, atol=1e-11)
    mean, variance = EMISSION.moments(values)
    assert_close(variance, torch.from_numpy(whole.diagonal(0, -2, -1).copy()))
    below = EMISSION.marginal_cdf(complete.unsqueeze(-2), values)
    assert_close(below, torch.distributions.Normal(mean, variance.sqrt()).cdf(complete.unsqueeze(-2)))
    assert_close(known().log_evidence(x[:5]), enumerate_evidence(known(), x[:5]), rtol=1e-10, atol=1e-10)


def test_a_density_keeps_its_digits_where_the_noise_is_small():
    """A step that the factors explain, beside the exact value in 50 digits."""
    mpmath = pytest.importorskip("mpmath")
    values = {n: v[:1] for n, v in parameters().items()} | {"noise": torch.full((1, F), 1e-12).double()}
    x = values["loc"] + values["loadings"][0] @ torch.tensor([1.0, -2.0]).double()
    with mpmath.workdps(50):
        loadings = mpmath.matrix(values["loadings"][0].tolist())
        whole = loadings * loadings.T + mpmath.mpf(float(values["noise"][0, 0])) * mpmath.eye(F)
        away = mpmath.matrix(
            [mpmath.mpf(float(a)) - mpmath.mpf(float(b)) for a, b in zip(x[0], values["loc"][0], strict=True)]
        )
        square = (away.T * mpmath.lu_solve(whole, away))[0]
        exact = float(-(square + mpmath.log(mpmath.det(2 * mpmath.pi * whole))) / 2)
    assert float(EMISSION.table(x, values)) == pytest.approx(exact, rel=1e-7)


def test_any_rotation_is_read_and_the_triangular_one_is_kept():
    values = parameters()
    angle = torch.tensor(0.7).double()
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2)
    x = observations(20)
    rotated = known().with_values(**known().describe() | {"loadings": values["loadings"] @ rotation})
    assert_close(rotated.values["loadings"], known().values["loadings"], rtol=1e-12, atol=1e-12)
    assert_close(rotated.log_evidence(x), known().log_evidence(x), rtol=1e-12, atol=0)
    loadings = rotated.values["loadings"]
    assert bool((loadings == loadings.tril()).all())
    assert bool((loadings.diagonal(dim1=-2, dim2=-1) >= 0).all())
    assert_close(covariance(rotated.values), covariance(values), rtol=1e-12, atol=1e-12)
    assert_close(turned(loadings), loadings, rtol=1e-12, atol=1e-12)
    triangular = -loadings  # other signs stay
    assert torch.equal(rotated.with_values(**rotated.values | {"loadings": triangular}).values["loadings"], triangular)


def test_entries_that_are_always_0_are_no_parameters():
    model = known()
    assert model.n_parameters == 1 + 2 + K * (2 * F + F * Q - Q * (Q - 1) // 2)


@slow
def test_a_summary_has_no_entries_that_are_always_0():
    text = str(known().fit(observations(40), max_steps=2, **quiet).summary())
    assert "loadings[0, 0, 0]" in text
    assert "loadings[0, 0, 1]" not in text


@pytest.mark.usefixtures("as_users_call")
def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"n_factors: got 3 for 3 feature\(s\), expected fewer .* MultivariateNormal"):
        sh.FactorAnalysis(3, 3)
    with pytest.raises(ValueError, match="n_factors: got 0"):
        sh.FactorAnalysis(3, 0)
    with pytest.raises(TypeError, match="n_factors: got 'two', expected an integer"):
        sh.FactorAnalysis(3, "two")
    with pytest.raises(TypeError, match=r"has no conjugate family, which message passing needs; use method=\"em\""):
        sh.SwitchingSSM(sh.Markov(2), EMISSION).fit(observations(20), "vmp", progress=False)
    with pytest.raises(TypeError, match="expected one of independent features"):
        sh.ZeroInflated(EMISSION)
    with pytest.raises(ValueError, match=r"prior\['loadings'\]: got Gamma, whose support does not fit"):
        sh.FactorAnalysis(3, 1, prior={"loadings": dist.Gamma(1.0, 1.0)})


# ---- the M-step ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=slow) for seed in (1, 2))])
def test_the_maximum_of_one_state_is_that_of_scikit_learn(seed):
    made = generator(seed)
    loadings, noise = torch.randn(8, 2, generator=made), 0.4 + torch.rand(8, generator=made)
    x = torch.randn(200, 2, generator=made) @ loadings.mT + torch.randn(200, 8, generator=made) * noise
    x = x.double() + 3.0
    fit = sh.SwitchingSSM(sh.Markov(1), sh.FactorAnalysis(8, 2)).fit(x, prior=None, tol=1e-9, **quiet)
    peer = FactorAnalysis(2, tol=1e-10, max_iter=5000, svd_method="lapack").fit(x.numpy())
    assert fit.loglik == pytest.approx(len(x) * peer.score(x.numpy()), abs=1e-5)
    assert_close(covariance(fit.model.values)[0], torch.from_numpy(peer.get_covariance()), rtol=1e-3, atol=1e-3)
    assert_close(fit.model.loc[0], x.mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", [True, pytest.param(False, marks=slow)])
def test_steps_with_missing_features_climb_to_a_stationary_point(prior):
    x, values = observations(missing=0.05), parameters()
    x[3] = torch.nan
    path = known().simulate(120, seed=0).path
    weights = 0.05 + 0.9 * torch.nn.functional.one_hot(path, K).double()
    default, floor, heights = EMISSION.default_prior(K, x), torch.full((F,), 1e-12).double(), []

    def height(values):
        total = (weights * EMISSION.table(x, values)).sum()
        return total + log_prior(EMISSION.sites(default), values) if prior else total

    values["loadings"] = turned(values["loadings"])
    for _ in range(20 if prior else 400):
        heights.append(float(height(values)))
        values = EMISSION.maximize(x, weights, values, default if prior else None, floor).values
    assert min(np.diff(heights)) > -1e-9
    leaves = {n: v.clone().requires_grad_() for n, v in values.items()}
    slopes = dict(zip(leaves, torch.autograd.grad(height(leaves), list(leaves.values())), strict=True))
    slopes["loadings"] = slopes["loadings"].tril()
    assert max(float((slope * values[n]).abs().max()) for n, slope in slopes.items()) < 1e-3


def test_restarts_are_one_more_axis_and_start_without_loadings():
    x = observations(40, missing=0.1)
    weights = torch.rand(3, 40, K, generator=generator(), dtype=torch.float64)
    prior, floor = EMISSION.default_prior(K, x), torch.full((F,), 1e-12).double()
    start = EMISSION.start(prior)
    assert not bool(start["loadings"].any())
    stacked = {n: v.expand(3, *v.shape) for n, v in start.items()}
    whole = EMISSION.maximize(x, weights, stacked, prior, floor).values
    for r in range(3):
        alone = EMISSION.maximize(x, weights[r], start, prior, floor).values
        for n, value in alone.items():
            assert_close(whole[n][r], value, rtol=1e-8, atol=1e-8)
    assert bool((whole["loadings"].square().sum((-2, -1)) > 0.1).all())


def test_a_state_without_weight_keeps_finite_values():
    x, weights = observations(40), torch.ones(40, K, dtype=torch.float64)
    weights[:, 1] = 0
    prior, near = EMISSION.default_prior(K, x), parameters()
    for one in (prior, None):
        best = EMISSION.maximize(x, weights, near, one, torch.full((F,), 1e-12).double())
        assert all(bool(value.isfinite().all()) for value in best.values.values())


def test_float32_has_the_steps_of_float64():
    x, weights = observations(60, missing=0.1), torch.rand(60, K, generator=generator(), dtype=torch.float64)
    prior, near, floor = EMISSION.default_prior(K, x), parameters(), torch.full((F,), 1e-6).double()
    exact = EMISSION.maximize(x, weights, near, prior, floor).values
    single = {name: value.float() for name, value in near.items()}
    hyper = {name: value.float() for name, value in prior.items()}
    found = EMISSION.maximize(x.float(), weights.float(), single, hyper, floor.float()).values
    for name, value in found.items():
        assert value.dtype == torch.float32
        assert_close(value.double(), exact[name], rtol=1e-3, atol=1e-3)


def test_fits_find_the_states_and_their_objective_never_falls():
    truth = known().simulate(120, seed=0)
    x = torch.where(torch.rand(truth.x.shape, generator=generator(1)) < 0.1, torch.nan, truth.x)
    fit = sh.SwitchingSSM(sh.Markov(K), EMISSION).fit(x, **quiet)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    agree = float((fit.viterbi().path == truth.path).double().mean())
    assert max(agree, 1 - agree) > 0.95


# ---- unbounded likelihoods -------------------------------------------------------------------------------------------


def test_a_state_in_a_plane_is_reported_without_a_prior():
    """Its features are combinations of few numbers, so a sum of them never varies."""
    x = observations(80)
    state = torch.arange(80) % 20 < 10
    plane = torch.randn(80, 1, generator=generator(), dtype=torch.float64) @ torch.ones(1, F, dtype=torch.float64)
    x = torch.where(state.unsqueeze(-1), plane, x + 8)
    model, one = sh.SwitchingSSM(sh.Markov(K), EMISSION), [0 if held else 1 for held in state]
    fit = model.fit(x, prior=None, states=one, max_steps=15, **quiet)
    assert fit.collapsed_states.tolist() == [True, False]
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
    weak = model.fit(x, states=one, max_steps=15, **quiet)
    assert not bool(weak.collapsed_states.any())


def test_one_noise_of_0_is_no_collapse():
    """The first factor is the first feature, which has no noise: the likelihood has a maximum there."""
    made = generator()
    factor = torch.randn(100, 1, generator=made, dtype=torch.float64)
    x = factor + torch.randn(100, 4, generator=made, dtype=torch.float64) * torch.tensor([0.0, 1.0, 1.0, 1.0]).double()
    x[:, 1] = x[:, 0] * 0.3 - 0.2 * x[:, 2] + 0.9 * torch.randn(100, generator=made, dtype=torch.float64)
    fit = sh.SwitchingSSM(sh.Markov(1), sh.FactorAnalysis(4, 1)).fit(x, prior=None, max_steps=20, **quiet)
    assert not bool(fit.collapsed_states.any())
    assert bool(fit.objective.isfinite().all())


# ---- beside other parts of a model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "held", ["loadings", "some loadings", *(pytest.param(name, marks=slow) for name in ("loc", "noise"))]
)
def test_fixed_parameters_keep_their_values(held):
    x, values = observations(60), known().describe()
    fixed = {held: values[held]} if held in values else {"loadings": values["loadings"].clone()}
    if held not in values:
        fixed["loadings"][:, 3:] = torch.nan
    fit = sh.SwitchingSSM(sh.Markov(K), EMISSION).fit(x, fixed=fixed, max_steps=4, **quiet)
    name, table = next(iter(fixed.items()))
    kept = ~table.isnan()
    assert_close(fit.model.values[name][kept], table[kept], rtol=1e-12, atol=1e-12)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())


def test_priors_of_loadings_are_those_of_triangular_ones():
    emission = sh.FactorAnalysis(F, Q, prior={"loadings": dist.Normal(0.0, 2.0), "loc": dist.Normal(0.0, 1.0)})
    for one in (emission, EMISSION):
        loadings = {site.name: site for site in one.sites(one.default_prior(K, None))}["loadings"].distribution({})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            drawn = loadings.sample()
        assert torch.equal(drawn, drawn.tril())
        assert bool(drawn[..., 1:, :].abs().gt(0).any())
        assert bool(loadings.log_prob(drawn).isfinite())
    held = -known().values["loadings"]
    held[:, 3:] = torch.nan
    model = sh.SwitchingSSM(sh.Markov(K), emission)
    for fixed in ({}, {"loadings": held}):
        fit = model.fit(observations(40), fixed=fixed, max_steps=2, **quiet)
        assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
        assert bool((fit.model.loadings == fit.model.loadings.tril()).all())
    assert_close(fit.model.loadings[:, :3], held[:, :3], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "outer", ["joint", *(pytest.param(name, marks=slow) for name in ("mixture", "gated", "subjects"))]
)
def test_it_is_a_part_of_other_emissions(outer):
    x = observations(60)
    emission, moves = {
        "mixture": (sh.Mixture(EMISSION, 2), sh.Markov(2)),
        "gated": (sh.Gated(EMISSION, sh.MultivariateNormal(F)), sh.Copy(2)),
        "joint": (sh.Joint(spectrum=EMISSION), sh.Markov(2)),
        "subjects": (EMISSION, sh.Markov(2)),
    }[outer]
    more = {"subjects": ["a", "b"], "pooled": "none"} if outer == "subjects" else {}
    fit = sh.SwitchingSSM(moves, emission).fit([x, x[:30]] if more else x, max_steps=4, **more, **quiet)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert bool(fit.forecast(2).mean.isfinite().all())
    name = next(n for n in fit.model.values if n.endswith("loadings"))
    assert fit.model.values[name].shape[-2:] == (F, Q)
    if outer == "joint":
        values = fit.model.values | {
            name: fit.model.values[name] @ torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
        }
        assert_close(fit.model.with_values(**values).values[name], fit.model.values[name], rtol=1e-9, atol=1e-9)
