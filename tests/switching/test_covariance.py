"""Structures of a normal emission's covariance: full, diagonal, spherical and tied."""

import copy
import pickle

import numpy as np
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from hmmlearn.hmm import GaussianHMM
from oracles.models import COVARIANCE, SCALE
from scipy import stats
from torch.testing import assert_close

STRUCTURES = {"full": "full", "diagonal": "diag", "spherical": "spherical", "tied": "tied"}  # hmmlearn's names
BALL = sh.Normal(2, covariance="spherical")
quiet = {"restarts": 1, "progress": False}
slow = pytest.mark.slow


def observations(n_features: int = 3, missing: float = 0.0) -> torch.Tensor:
    """Two states that last for 15 steps, whose features are correlated."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(90, n_features, generator=generator, dtype=torch.float64)
    state = (torch.arange(90) // 15 % 2).double().unsqueeze(-1)
    x = (1 + state) * (normal + 0.6 * normal[:, :1]) + 5 * state
    return torch.where(torch.rand(x.shape, generator=generator) < missing, torch.nan, x)


def covariances(model: sh.SwitchingSSM) -> np.ndarray:
    """The covariance of each state `[K, F, F]`."""
    shown, k, n = model.describe(), model.n_states, model.n_features
    if "covariance" in shown:
        return shown["covariance"].expand(k, n, n).numpy()
    return torch.diag_embed(shown["scale"].square().expand(k, n)).numpy()


def in_form(covariance: np.ndarray, kind: str) -> np.ndarray:
    """Covariances `[K, F, F]` as hmmlearn holds them."""
    forms = {"full": covariance, "tied": covariance[0], "diag": covariance.diagonal(0, -2, -1)}
    return covariance[:, 0, 0] if kind == "spherical" else forms[kind]


def peer_of(model: sh.SwitchingSSM, kind: str) -> GaussianHMM:
    """The model of hmmlearn at the same parameters, whose steps of EM maximise the likelihood."""
    exact = {"covars_prior": 0, "covars_weight": 0, "min_covar": 0}
    peer = GaussianHMM(model.n_states, kind, init_params="", n_iter=1, tol=0, **exact)
    peer.startprob_, peer.transmat_ = (model.values[n].numpy() for n in ("initial_probs", "transition_probs"))
    peer.n_features, peer.means_ = model.n_features, model.values["loc"].numpy()
    peer.covars_ = in_form(covariances(model), kind)
    return peer


# ---- what is made ----------------------------------------------------------------------------------------------------


def test_structures_have_one_form_each():
    assert sh.MultivariateNormal(2, covariance="diagonal") == sh.Normal(2) == sh.Normal(2, covariance="diagonal")
    assert sh.MultivariateNormal(2, covariance="tied") == sh.MultivariateNormal(2, tied=COVARIANCE)
    assert sh.MultivariateNormal(2, covariance="tied", tied=COVARIANCE).tied == COVARIANCE
    assert sh.MultivariateNormal(2, covariance="spherical") == BALL != sh.Normal(2)
    shared = sh.MultivariateNormal(2, covariance="spherical", tied=COVARIANCE)
    assert shared == sh.Normal(2, covariance="spherical", tied=SCALE)
    assert sh.MultivariateNormal(2, covariance="diagonal", tied=COVARIANCE) == sh.Normal(2, tied=SCALE)
    assert repr(shared) == "Normal(n_features=2, tied={'scale': 'all states'}, covariance='spherical')"
    for emission in (BALL, shared, sh.Normal(2), sh.MultivariateNormal(2, covariance="tied")):
        assert pickle.loads(pickle.dumps(emission)) == copy.deepcopy(emission) == emission
    with_prior = sh.MultivariateNormal(2, covariance="spherical", prior={"scale": dist.HalfNormal(1.0)})
    assert with_prior.user_priors.keys() == {"precision"}


@pytest.mark.usefixtures("as_users_call")
def test_other_structures_are_refused_with_the_class_that_has_them():
    with pytest.raises(ValueError, match=r"covariance: got 'full', but .* use MultivariateNormal\(.*'full'\)"):
        sh.Normal(2, covariance="full")
    with pytest.raises(ValueError, match=r"covariance: got 'tied', but .* or tied=\{\"scale\": \"all states\"\}"):
        sh.Normal(2, covariance="tied")
    with pytest.raises(ValueError, match="covariance: got 'diag', expected one of 'full', 'diagonal'"):
        sh.MultivariateNormal(2, covariance="diag")
    for structure in ("tied", "diagonal"):
        with pytest.raises(ValueError, match=r"tied: got \{'scale'.*expected \{'covariance'"):
            sh.MultivariateNormal(2, covariance=structure, tied=SCALE)
    with pytest.raises(TypeError, match="expected one of independent features, each with parameters of its own"):
        sh.ZeroInflated(BALL)
    with pytest.raises(
        ValueError, match=r"plain_emission: got Normal.*spherical.*which supports no inputs; expected Poisson"
    ):
        sh.GeneralizedLinear(BALL, 1)


# ---- densities and maxima --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
def test_densities_are_those_of_scipy_and_the_likelihood_that_of_hmmlearn(structure):
    x, emission = observations(), sh.MultivariateNormal(3, covariance=structure)
    model = sh.SwitchingSSM(sh.Markov(2), emission).fit(x, max_steps=3, **quiet).model
    matrices, loc = covariances(model), model.values["loc"].numpy()
    laws = [stats.multivariate_normal(loc[k], matrices[k]) for k in range(2)]
    expected = np.stack([law.logpdf(x.numpy()) for law in laws], -1)
    assert_close(emission.table(x, model.values), torch.from_numpy(expected), rtol=1e-11, atol=1e-11)
    seen = x.clone()
    seen[:, 1] = torch.nan
    some = [stats.multivariate_normal(loc[k][[0, 2]], matrices[k][np.ix_([0, 2], [0, 2])]) for k in range(2)]
    expected = np.stack([law.logpdf(x.numpy()[:, [0, 2]]) for law in some], -1)
    assert_close(emission.table(seen, model.values), torch.from_numpy(expected), rtol=1e-11, atol=1e-11)
    assert abs(peer_of(model, STRUCTURES[structure]).score(x.numpy()) - float(model.log_evidence(x))) < 1e-9


@pytest.mark.parametrize(
    "structure", ["diagonal", "spherical", *(pytest.param(n, marks=slow) for n in ("full", "tied"))]
)
def test_the_maximum_is_that_of_hmmlearn(structure):
    """A step of EM there moves nothing, and from starts of its own it reaches the same height."""
    x, kind = observations(), STRUCTURES[structure]
    emission = sh.MultivariateNormal(3, covariance=structure)
    fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(x, prior=None, tol=1e-13, max_steps=2000, **quiet)
    peer, loc, matrices = peer_of(fit.model, kind), fit.model.values["loc"].numpy(), covariances(fit.model)
    peer.fit(x.numpy())
    assert_close(peer.means_, loc, rtol=1e-6, atol=1e-6)
    found = peer._covars_[:, 0] if structure == "spherical" else peer._covars_
    assert_close(found, in_form(matrices, kind), rtol=1e-5, atol=1e-6)
    alone = GaussianHMM(2, kind, n_iter=500, tol=1e-10, random_state=0, covars_prior=0, covars_weight=0, min_covar=0)
    assert abs(alone.fit(x.numpy()).score(x.numpy()) - fit.loglik) < 1e-2


# ---- one scale of all features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_prior", [True, False])
@pytest.mark.parametrize("tied", [None, SCALE])
def test_the_spherical_m_step_is_the_sum_over_features(with_prior, tied):
    """The textbook's posterior, feature by feature and state by state, with missing features."""
    x, emission = observations(2, missing=0.2), sh.Normal(2, covariance="spherical", tied=tied)
    weights = torch.rand(len(x), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    prior = emission.default_prior(2, x)
    best = emission.maximize(x, weights, emission.start(prior), prior if with_prior else None, torch.zeros(2)).values
    totals, counts, means, most = torch.zeros(2), torch.zeros(2), torch.zeros(2, 2), torch.zeros(2)
    totals, counts, means, most = (table.double() for table in (totals, counts, means, most))
    for k in range(2):
        for f in range(2):
            seen = ~x[:, f].isnan()
            w, rest = weights[seen, k], x[seen, f]
            mean = (w * rest).sum() / w.sum()
            kappa, middle = (prior["count"][k, f], prior["loc"][k, f]) if with_prior else (0.0, 0.0)
            means[k, f] = (kappa * middle + w.sum() * mean) / (kappa + w.sum())
            totals[k] += (w * (rest - mean).square()).sum() / 2
            totals[k] += kappa * w.sum() * (mean - middle) ** 2 / (kappa + w.sum()) / 2
            counts[k] += w.sum() / 2
            most[k] += 0.5 if with_prior else 0.0  # of the location's density
    totals, counts, most = (t if tied is None else t.sum(0, keepdim=True) for t in (totals, counts, most))
    if with_prior:
        totals, counts = totals + prior["rate"][:, 0], counts + prior["shape"][:, 0] - 1 + most
    assert_close(best["loc"], means, rtol=1e-11, atol=1e-11)
    assert_close(best["precision"].flatten(), counts / totals, rtol=1e-11, atol=0)


@pytest.mark.parametrize("method", ["em", pytest.param("vmp", marks=slow)])
def test_a_common_unit_changes_nothing_else(method):
    """Also beside a feature that never changes, whose spread says nothing of the unit."""
    x = torch.cat([observations(2, missing=0.1), torch.full((90, 1), 2.0).double()], -1)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(3, covariance="spherical"))
    fit, n = model.fit(x, method, seed=1, **quiet), (~x.isnan()).sum()
    for factor, shift in ((1e-7, 0.0), (1e6, -3e7)):
        other = model.fit(factor * x + shift, method, seed=1, **quiet)
        assert other.steps == fit.steps
        assert_close(other.model.describe()["scale"], factor * fit.model.describe()["scale"], rtol=1e-6, atol=0)
        assert_close(other.model.loc, factor * fit.model.loc + shift, rtol=1e-6, atol=1e-6 * factor)
        moved = float(fit.loglik) - float(n) * np.log(factor)
        assert other.loglik == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize("outer", [sh.Gated, lambda a, b: sh.Gated(b, a)])
def test_parts_of_a_gated_emission_agree_on_one_unit(outer):
    emission, scale = outer(BALL, sh.Normal(2)), torch.tensor([3.0, 4.0]).double()
    unit = emission.units(torch.zeros(2).double(), scale, [])[1]
    assert_close(unit, torch.full((2,), 12.5**0.5).double())
    x = observations(2)
    fits = [
        sh.SwitchingSSM(sh.Copy(2), emission).fit(c * x, max_steps=4, restarts=1, progress=False) for c in (1.0, 1e6)
    ]
    assert fits[1].loglik == pytest.approx(fits[0].loglik - x.numel() * np.log(1e6), rel=1e-6)


def test_a_spherical_state_on_one_point_is_reported_without_a_prior():
    x = observations(2)
    known = [0 if t % 30 < 15 else -1 for t in range(90)]
    x[torch.tensor(known) == 0] = 0.75
    fit = sh.SwitchingSSM(sh.Markov(2), BALL).fit(x, prior=None, states=known, max_steps=30, **quiet)
    assert fit.collapsed_states.tolist() == [True, False]
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


@pytest.mark.parametrize("tied", [None, SCALE])
@pytest.mark.parametrize("name", ["loc", "scale"])
@pytest.mark.parametrize("method", [pytest.param("em", marks=slow), "vmp"])
def test_fixed_spherical_parameters_keep_their_values(tied, name, method):
    emission, n = sh.Normal(2, covariance="spherical", tied=tied), 2 if tied is None else 1
    fixed = {"loc": [[0.0, 0.0], [5.0, 5.5]], "scale": [[1.5]] * n}[name]
    x = observations(2, missing=0.1)
    fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(x, method, fixed={name: fixed}, max_steps=6, **quiet)
    assert_close(fit.model.describe()[name], torch.tensor(fixed).double(), rtol=1e-12, atol=1e-12)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())


@pytest.mark.parametrize(("tied", "axes"), [(None, ("state",)), (SCALE, ())])
def test_exports_have_no_axis_of_length_one(tied, axes):
    emission = sh.Normal(2, covariance="spherical", tied=tied)
    fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(observations(2), max_steps=2, **quiet)
    data = fit.to_arviz(draws=2)
    dims = data["posterior" if "posterior" in data.groups() else "estimates"]["scale"].dims
    assert tuple(name for name in dims if name not in ("chain", "draw")) == axes


def test_a_part_of_spherical_locations_is_held_by_em_and_refused_by_messages():
    x, fixed = observations(2), {"loc": [[0.0, torch.nan], [torch.nan, 5.0]]}
    model = sh.SwitchingSSM(sh.Markov(2), BALL)
    fit = model.fit(x, fixed=fixed, max_steps=4, **quiet)
    assert fit.model.loc.diagonal().tolist() == pytest.approx([0.0, 5.0])
    with pytest.raises(TypeError, match="fixed: got loc in part, but message passing holds locations with one"):
        model.fit(x, "vmp", fixed=fixed, **quiet)


def test_known_noise_of_a_spherical_emission_is_subtracted():
    x = observations(2)
    noise = torch.full_like(x, 0.5)
    fit = sh.SwitchingSSM(sh.Markov(1), BALL).fit(x, noise=noise, prior=None, tol=1e-12, **quiet)
    whole = (x - x.mean(0)).square().mean()
    assert float(fit.model.describe()["scale"].square()) == pytest.approx(float(whole) - 0.5, rel=1e-5)


def test_a_tied_spherical_gated_model_is_a_network():
    x = observations(2)
    gated = sh.Gated(BALL, BALL, tied=SCALE)
    fit = sh.SwitchingSSM(sh.Copy(2), gated).fit(x, max_steps=6, **quiet)
    assert gated.background.tied == SCALE
    wide = fit.model.describe() | {"scale": fit.model.describe()["scale"].expand(1, 2)}
    plain = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2), tied=SCALE)).with_values(**wide)
    ours, theirs = (sh.as_rnn(model).state_dict() for model in (fit.model, plain))
    assert all(torch.allclose(ours[name], theirs[name]) for name in theirs)
    messages = sh.SwitchingSSM(sh.Copy(2), gated).fit(x, "vmp", max_steps=6, **quiet)
    assert float(messages.objective.diff().min()) > -1e-9 * float(messages.objective.abs().max())


def test_subjects_have_spherical_scales_of_their_own():
    x, model = [observations(2), 3 * observations(2)], sh.SwitchingSSM(sh.Markov(2), BALL)
    fit = model.fit(x, subjects=["a", "b"], pooled="none", prior=None, **quiet)
    scale = fit.model.describe()["scale"]
    assert scale.shape == (2, 2, 1)
    assert_close(scale[1] / scale[0], torch.full((2, 1), 3.0).double(), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="the prior of loc, precision has no population"):
        model.fit(x, "vmp", subjects=["a", "b"], pooled="partial", **quiet)


def test_parts_of_two_covariances_are_named_as_they_are():
    parts = sh.Normal(2, covariance="spherical"), sh.Normal(2)
    with pytest.raises(ValueError, match=r"tied: got Normal\(n_features=2, covariance='spherical'\) and Normal\("):
        sh.Gated(*parts, tied={"scale": "all states"})
