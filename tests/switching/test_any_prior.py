"""Distributions of Pyro as priors of the dynamics: their density, the modes under them, and what refuses them."""

import re

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from torch.distributions import SigmoidTransform, biject_to
from torch.testing import assert_close

DOUBLE = torch.float64
QUIET = {"progress": False}
LOC, SCALE = [[0.0], [3.0]], [[1.0], [1.0]]
KNOWN = {"loc": LOC, "scale": SCALE}


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)


X = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).with_values(redraw_prob=0.3, state_probs=[0.4, 0.6], **KNOWN)
X = X.simulate(60, seed=3).x.double()
ROW = dist.LogisticNormal(double(0.3), double(0.8))
MIXTURE = dist.MixtureSameFamily(
    dist.Categorical(double(0.7, 0.3)), dist.Dirichlet(torch.tensor([[2.0, 5.0], [6.0, 2.0]], dtype=DOUBLE))
)
UNIFORM = dist.Uniform(double(0.0)[0], double(0.1)[0])


def copy(**prior: dist.Distribution) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Copy(2, prior=prior or None), sh.Normal())


def markov(**prior: dist.Distribution) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Markov(2, prior=prior or None), sh.Normal())


def objective(model: sh.SwitchingSSM) -> torch.Tensor:
    return model.log_evidence(X) + model.log_prior(model.values)


def slopes(model: sh.SwitchingSSM, support: dict) -> torch.Tensor:
    """The slopes of the objective in free coordinates of some parameters."""
    to = {name: biject_to(constraint) for name, constraint in support.items()}
    free = {name: transform.inv(model.values[name]).requires_grad_() for name, transform in to.items()}
    values = model.values | {name: to[name](y) for name, y in free.items()}
    height = model.problem(X).objective(values)
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(height, list(free.values()))])


def test_the_density_is_that_of_the_distributions() -> None:
    model = copy(redraw_prob=UNIFORM, state_probs=MIXTURE).with_values(
        redraw_prob=0.05, state_probs=[0.3, 0.7], **KNOWN
    )
    redraw, state = model.values["redraw_prob"], model.values["state_probs"]
    plain = copy().with_values(model.values)
    own = UNIFORM.log_prob(redraw) + MIXTURE.log_prob(state)  # the default priors are flat, with density 1
    expected = plain.log_prior(plain.values) + own
    assert_close(model.log_prior(model.values), expected, rtol=1e-10, atol=1e-10)
    assert_close(model.problem(X).objective(model.values), plain.log_evidence(X) + expected, rtol=1e-10, atol=1e-10)
    conditioned = pyro.poutine.condition(model.without_values().collapsed, model.values)
    total = pyro.poutine.trace(conditioned).get_trace(X).log_prob_sum()
    assert_close(total, plain.log_evidence(X) + expected, rtol=1e-10, atol=1e-10)


def test_rows_of_transitions_are_independent() -> None:
    table = [[0.9, 0.1], [0.3, 0.7]]
    values = {"initial_probs": [0.5, 0.5], "transition_probs": table, **KNOWN}
    model, plain = markov(transition_probs=ROW).with_values(values), markov().with_values(values)
    rows = model.values["transition_probs"]
    expected = plain.log_prior(plain.values) + ROW.log_prob(rows).sum()
    assert_close(model.log_prior(model.values), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "support"),
    [
        (
            copy(redraw_prob=dist.Kumaraswamy(double(2.0)[0], double(9.0)[0])),
            {"redraw_prob": dist.constraints.unit_interval},
        ),
        (copy(redraw_prob=dist.Uniform(0.0, 0.5)), {"redraw_prob": dist.constraints.interval(0.0, 0.5)}),
        (copy(state_probs=MIXTURE), {"state_probs": dist.constraints.simplex}),
        (
            markov(transition_probs=ROW, initial_probs=MIXTURE),
            dict.fromkeys(("transition_probs", "initial_probs"), dist.constraints.simplex),
        ),
    ],
)
def test_em_never_falls_and_ends_where_the_density_is_flat(model: sh.SwitchingSSM, support: dict) -> None:
    fit = model.fit(X, restarts=2, tol=1e-12, **QUIET)
    assert float(fit.objective.diff().min()) > -1e-9
    assert_close(fit.objective[-1], objective(fit.model), rtol=1e-10, atol=1e-10)
    assert float(slopes(fit.model, support).abs().max()) < 1e-4
    assert bool(fit.summary().parameters["standard error"].notna().all())


def test_a_flat_prior_has_the_mode_of_maximum_likelihood() -> None:
    fit = copy(redraw_prob=dist.Uniform(0.0, 1.0)).fit(X, fixed=KNOWN, restarts=2, tol=1e-12, **QUIET)
    likelihood = copy().fit(X, prior=None, fixed=KNOWN, restarts=2, tol=1e-12, **QUIET)
    assert_close(fit.model.values["redraw_prob"], likelihood.model.values["redraw_prob"], rtol=1e-6, atol=0)
    assert_close(fit.model.log_evidence(X), likelihood.model.log_evidence(X), rtol=0, atol=1e-9)


def test_a_beta_and_a_dirichlet_in_other_words_give_the_conjugate_fit() -> None:
    same = [SigmoidTransform().inv, SigmoidTransform()]
    beta, rows = dist.Beta(double(2.0)[0], double(9.0)[0]), dist.Dirichlet(double(3.0, 2.0))
    alone = dist.MixtureSameFamily(dist.Categorical(double(1.0)), dist.Dirichlet(double(3.0, 2.0)[None]))
    pairs = [
        (copy(redraw_prob=dist.TransformedDistribution(beta, same)), copy(redraw_prob=beta)),
        (markov(transition_probs=alone), markov(transition_probs=rows)),
    ]
    for own, conjugate in pairs:
        assert own.dynamics.any_priors
        assert not conjugate.dynamics.any_priors
        one, other = (model.fit(X, restarts=2, fixed=KNOWN, tol=1e-12, **QUIET) for model in (own, conjugate))
        assert_close(one.objective[-1], other.objective[-1], rtol=0, atol=1e-8)
        for name, value in one.model.values.items():
            assert_close(value, other.model.values[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("start", [None, {"redraw_prob": 0.05}])
def test_a_bound_below_the_likelihoods_maximum_is_not_passed(dtype: torch.dtype, start: dict | None) -> None:
    fit = copy(redraw_prob=UNIFORM).fit(X.to(dtype), restarts=2, start=start, **QUIET)
    assert 0.0999 < float(fit.model.values["redraw_prob"]) < 0.1 + 1e-7
    assert bool(fit.objective.isfinite().all())
    assert float(fit.model.log_prior(fit.model.values)) > -torch.inf


@pytest.mark.parametrize("bound", [0.02, 0.1])
def test_svi_stays_inside_the_bounds(bound: float) -> None:
    fit = copy(redraw_prob=dist.Uniform(0.0, bound)).fit(X, "svi", max_steps=60, **QUIET)
    assert 0 < float(fit.model.values["redraw_prob"]) < bound


@pytest.mark.slow
@pytest.mark.parametrize("prior", [UNIFORM, dist.Kumaraswamy(double(2.0)[0], double(9.0)[0])])
def test_nuts_has_the_mean_of_a_grid(prior: dist.Distribution) -> None:
    model = copy(redraw_prob=prior)
    given = {**KNOWN, "state_probs": [0.4, 0.6]}
    fit = model.fit(X, "nuts", fixed=given, num_samples=120, warmup_steps=50, **QUIET)
    ends = (float(prior.support.lower_bound), float(prior.support.upper_bound))
    grid = torch.linspace(*ends, 4001, dtype=DOUBLE)[1:-1]
    wide = {name: value.expand(len(grid), *value.shape) for name, value in fit.model.values.items()}
    weights = torch.softmax(model.problem(X).objective(wide | {"redraw_prob": grid}), 0)
    mean = (weights * grid).sum()
    sd = (weights * (grid - mean).square()).sum().sqrt()
    assert abs(float(fit.model.values["redraw_prob"] - mean)) < 0.25 * float(sd)


def test_later_priors_replace_earlier_ones() -> None:
    model = copy().with_prior({"redraw_prob": dist.Beta(1.0, 50.0)}).with_prior({"redraw_prob": UNIFORM})
    assert model.dynamics.any_priors
    again = model.with_prior({"redraw_prob": dist.Beta(1.0, 50.0)})
    assert not again.dynamics.any_priors
    assert again.prior["redraw_concentration"].tolist() == [1.0, 50.0]
    assert again.fit(X, "vmp", restarts=1, max_steps=3, **QUIET).method == "vmp"


def test_a_fit_keeps_fixed_parameters_and_priors_of_the_fit() -> None:
    table = [[0.9, 0.1], [0.2, 0.8]]
    fit = markov().fit(X, prior={"transition_probs": ROW}, fixed={"transition_probs": table}, restarts=1, **QUIET)
    assert fit.model.values["transition_probs"].tolist() == table
    assert_close(fit.objective[-1], objective(fit.model), rtol=1e-10, atol=1e-10)


def test_files_hold_them(tmp_path) -> None:
    made = [
        copy(redraw_prob=UNIFORM, state_probs=ROW),
        markov(transition_probs=ROW, initial_probs=dist.Dirichlet(double(2.0, 1.0))),
        copy().with_prior({"redraw_prob": dist.Beta(1.0, 9.0)}).with_prior({"redraw_prob": UNIFORM}),
    ]
    for model in made:
        fitted = model.fit(X, restarts=1, max_steps=3, **QUIET).model
        fitted.save(tmp_path / "model")
        again = sh.load(tmp_path / "model")
        assert_close(again.log_prior(again.values), fitted.log_prior(fitted.values), rtol=0, atol=0)
    with pytest.raises(TypeError, match="which cannot be stored"):
        copy(state_probs=MIXTURE).save(tmp_path / "other")


def test_a_prior_replaces_the_hyperparameters_of_the_constructor() -> None:
    sticky = sh.SwitchingSSM(sh.Markov(2, sticky=5.0, initial_prior=3.0), sh.Normal())
    replaced = sticky.with_prior({"transition_probs": ROW})
    assert replaced.dynamics.sticky == 0.0
    assert_close(replaced.prior["initial_concentration"], double(3.0, 3.0), rtol=0, atol=0)
    assert sticky.fit(X, prior={"transition_probs": ROW}, restarts=1, max_steps=2, **QUIET).model.dynamics.sticky == 0.0


def test_dynamics_with_a_prior_are_hashable() -> None:
    for one, other in ((NARROW.dynamics, copy(redraw_prob=UNIFORM).dynamics), (ROWS.dynamics, sh.Markov(2))):
        assert hash(one) == hash(other)
    assert NARROW.dynamics == copy(redraw_prob=UNIFORM).dynamics
    assert ROWS.dynamics != sh.Markov(2)


def test_a_later_change_of_the_dictionary_changes_nothing() -> None:
    prior = {"redraw_prob": UNIFORM}
    made = [sh.Copy(2, prior=prior), sh.Markov(2, prior=(rows := {"transition_probs": ROW}))]
    prior.clear()
    rows.clear()
    assert [list(dynamics.prior) for dynamics in made] == [["redraw_prob"], ["transition_probs"]]


STEEP = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Dirichlet(torch.tensor([[2.0, 0.5], [3.0, 3.0]])))


@pytest.mark.parametrize(
    "model",
    [
        copy(redraw_prob=dist.Kumaraswamy(0.5, 2.0)),
        copy(redraw_prob=dist.Kumaraswamy(2.0, 0.5)),
        copy(state_probs=STEEP),
        markov(transition_probs=STEEP),
    ],
)
def test_an_infinite_density_at_an_end_has_no_mode(model: sh.SwitchingSSM) -> None:
    with pytest.raises(ValueError, match=r"^prior.*with an infinite density at an end of its range"):
        model.fit(X, **QUIET)
    assert bool(torch.isfinite(model.fit(X, "svi", max_steps=3, restarts=1, **QUIET).model.log_evidence(X)))


def test_a_known_probability_needs_no_mode() -> None:
    model = copy(redraw_prob=dist.Kumaraswamy(0.5, 2.0))
    assert float(model.fit(X, fixed={"redraw_prob": 0.2}, restarts=1, **QUIET).model.values["redraw_prob"]) == 0.2


ZERO, PART = [[1.0, 0.0], [0.5, 0.5]], [[0.9, 0.1], [torch.nan, torch.nan]]
WIDE = dist.LogisticNormal(torch.zeros(2), torch.ones(2))
NARROW, ROWS = copy(redraw_prob=UNIFORM), markov(transition_probs=ROW)
LOGISTIC = "prior['transition_probs']: got LogisticNormal"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NARROW.fit(X, "vmp"), "dynamics: the prior of redraw_prob is a Uniform, not a Beta, so"),
        (lambda: ROWS.fit(X, "vmp"), "dynamics: the prior of transition_probs is a LogisticNormal, not a Dirichlet"),
        (
            lambda: copy(redraw_prob=dist.Normal(0.0, 1.0)),
            "prior['redraw_prob']: got Normal, whose support does not fit",
        ),
        (
            lambda: copy(redraw_prob=dist.Uniform(0.0, 1.5)),
            "prior['redraw_prob']: got Uniform, whose support does not fit",
        ),
        (lambda: copy(state_probs=dist.Dirichlet(torch.ones(3))), "prior['state_probs']: got shape (3,)"),
        (lambda: copy(state_probs=WIDE), "prior['state_probs']: got a distribution of shape [3]"),
        (lambda: copy(redraw=UNIFORM), "prior: got 'redraw', expected some of redraw_prob, state_probs"),
        (
            lambda: sh.Copy(2, inputs=1, prior={"state_probs": ROW}),
            "prior['state_probs']: got LogisticNormal, but Copy with inputs supports only a Dirichlet there",
        ),
        (
            lambda: sh.Markov(2, initial="stationary", prior={"transition_probs": ROW}),
            LOGISTIC + ", but Markov with initial=",
        ),
        (
            lambda: sh.Markov(2, mask=[[True, True], [False, True]], prior={"transition_probs": ROW}),
            LOGISTIC + ", but Markov with mask",
        ),
        (lambda: NARROW.fit(X, dt=torch.ones(60)), "prior['redraw_prob']: got Uniform together with dt"),
        (lambda: NARROW.fit(X, fixed={"redraw_prob": 0.5}), "fixed: got redraw_prob 0.5, which is not inside"),
        (lambda: ROWS.fit(X, fixed={"transition_probs": ZERO}), "fixed: got transition_probs [[1.0, 0.0], [0.5, 0.5]]"),
        (lambda: ROWS.fit(X, fixed={"transition_probs": PART}), LOGISTIC + " together with a table in fixed"),
        (lambda: NARROW.fit(torch.stack([X, X]), pooled="none"), "pooled: got 'none', but the prior of redraw_prob is"),
        (
            lambda: sh.Copy(2, redraw_prior=(1, 50), prior={"redraw_prob": UNIFORM}),
            "redraw_prior: got (1, 50) together with prior['redraw_prob']",
        ),
        (
            lambda: sh.Copy(2, state_prior=[1, 2], prior={"state_probs": dist.Dirichlet(torch.ones(2))}),
            "state_prior: got [1, 2] together with prior['state_probs']",
        ),
        (
            lambda: sh.Markov(2, sticky=5, prior={"transition_probs": ROW}),
            "sticky: got 5.0 together with prior['transition_probs']",
        ),
        (
            lambda: NARROW.with_prior({"redraw_concentration": [1.0, 9.0]}),
            "prior: got redraw_concentration, but the prior of redraw_prob is a Uniform",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, said) -> None:
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(said)):
        make()
