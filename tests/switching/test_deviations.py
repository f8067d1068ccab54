"""Hamilton's autoregression in deviations from a switching mean."""

import ast
import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from samplehold.switching.ascent import Ascent
from samplehold.switching.emissions.ascent import ascend
from torch.testing import assert_close

MODULE = "statsmodels.tsa.regime_switching.tests.test_markov_autoregression"
SWITCHING = [(), ("coefficients",), ("scale",), ("coefficients", "scale")]


@pytest.fixture(scope="module")
def growth() -> np.ndarray:
    """Hamilton's 135 quarters of the growth of GNP, as they stand in statsmodels' own tests."""
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None
    assert spec.origin is not None
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "rgnp":
            return np.asarray(ast.literal_eval(statement.value), dtype=float)
    raise AssertionError("the installed statsmodels has no such series")


def values_of(n_states: int, order: int, switching: tuple, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draws(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = {part: n_states if part in switching else 1 for part in ("coefficients", "scale")}
    return {
        "transition_probs": draws(n_states, n_states).softmax(-1),
        "loc": 2 * draws(n_states, 1),
        "coefficients": 0.4 * draws(rows["coefficients"], 1, order) / order,
        "precision": draws(rows["scale"], 1).exp(),
    }


def naive_evidence(values: dict[str, torch.Tensor], x: torch.Tensor, order: int) -> torch.Tensor:
    """log p(x) as the sum over all paths of the formula of Hamilton's form."""
    moves, loc = values["transition_probs"], values["loc"][:, 0]
    start = torch.linalg.matrix_power(moves, 2**20)[0]  # the stationary distribution
    terms = []
    for path in itertools.product(range(len(moves)), repeat=len(x)):
        term = start[path[0]].log() + sum(moves[i, j].log() for i, j in itertools.pairwise(path))
        for t in range(order, len(x)):
            row = {n: values[n][min(path[t], len(values[n]) - 1), 0] for n in ("coefficients", "precision")}
            lags = torch.stack([x[t - lag] - loc[path[t - lag]] for lag in range(1, order + 1)])
            mean = loc[path[t]] + row["coefficients"] @ lags
            term = term + torch.distributions.Normal(mean, row["precision"].rsqrt()).log_prob(x[t])
        terms.append(term)
    return torch.stack(terms).logsumexp(0)


@pytest.mark.parametrize(("n_states", "order", "switching"), [(2, 1, ()), (2, 2, SWITCHING[-1]), (3, 1, ("scale",))])
def test_the_evidence_is_the_sum_over_all_paths(n_states, order, switching):
    values = values_of(n_states, order, switching)
    form = sh.DeviationAR(n_states, order, switching)
    model = form.model(**values)
    x = model.simulate(6, seed=0).x[:, 0]
    assert_close(model.log_evidence(x), naive_evidence(values, x, order), rtol=1e-10, atol=0)


@pytest.mark.peer
@pytest.mark.parametrize("switching", SWITCHING)
def test_likelihood_and_smoothing_are_those_of_statsmodels(growth, switching):
    from statsmodels.tsa.regime_switching.markov_autoregression import MarkovAutoregression

    order = 1 if "scale" in switching else 3  # beyond one lag statsmodels 0.14 takes the scale of an earlier state
    values, form = values_of(2, order, switching), sh.DeviationAR(2, order, switching)
    theirs = MarkovAutoregression(
        growth,
        k_regimes=2,
        order=order,
        switching_ar="coefficients" in switching,
        switching_variance="scale" in switching,
    )
    moves, lags = values["transition_probs"].numpy(), values["coefficients"][:, 0].numpy()
    variance = 1 / values["precision"][:, 0].numpy()
    parameters = np.concatenate([moves[:, 0], values["loc"][:, 0].numpy(), variance, lags.T.ravel()])
    ours = form.model(**values)
    assert float(ours.log_evidence(growth)) == pytest.approx(theirs.loglike(parameters), abs=1e-8)
    smoothed = theirs.smooth(parameters).smoothed_marginal_probabilities
    np.testing.assert_allclose(form.beliefs(ours.smooth(growth).state)[order:], smoothed, atol=1e-10)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_fit_reaches_the_maximum_of_hamilton(growth, seed):
    with sh.kernels("plain"):
        fit = sh.DeviationAR(2, 4).fit(growth, restarts=2, seed=seed)
    assert fit.log_evidence == pytest.approx(-181.26339, abs=0.01)
    assert float(fit.heights.max()) == pytest.approx(fit.log_evidence, abs=1e-6)
    assert_close(fit.values["loc"][:, 0], torch.tensor([-0.359, 1.164]).double(), rtol=0, atol=2e-3)


def test_a_fit_does_not_depend_on_unit_and_origin(growth):
    with sh.kernels("plain"):
        one = sh.DeviationAR(2, 1).fit(growth, restarts=1)
        other = sh.DeviationAR(2, 1).fit(1e6 + 100 * growth, restarts=1)
    assert one.log_evidence - other.log_evidence == pytest.approx(134 * np.log(100), abs=1e-3)
    assert_close(other.values["loc"], 1e6 + 100 * one.values["loc"], rtol=1e-6, atol=0)


def test_fits_take_gaps_and_several_sequences(growth):
    gap = growth.copy()
    gap[50:52] = np.nan
    form = sh.DeviationAR(2, 1, "scale")
    with sh.kernels("plain"):
        fit = form.fit([gap[:60], growth[60:]], restarts=1, max_steps=60)
    assert fit.values["precision"].shape == (2, 1)
    assert fit.model.forecast(growth, 3).mean.shape == (3, 1)
    assert fit.log_evidence == pytest.approx(float(fit.model.log_evidence([gap[:60], growth[60:]]).sum()))


def test_a_simulation_begins_at_the_means_of_its_states(tmp_path):
    values = {"transition_probs": [[0.9, 0.1], [0.1, 0.9]], "loc": [[0.0], [50.0]], "scale": [[1e-3]]}
    form = sh.DeviationAR(2, 2)
    model = form.model(coefficients=[[[0.6, 0.3]]], **values)
    drawn = model.simulate(4, (40,), seed=0)
    means = 50.0 * form.tuples[drawn.path][..., 0]
    assert_close(drawn.x[..., 0], means.double(), rtol=0, atol=0.1)
    texts = [text.get_text() for axis in model.plot(drawn.x[0]).axes for text in axis.texts]
    assert {text.split(": ")[1] for text in texts if text.startswith("state")} == {"0", "50"}
    model.save(tmp_path)
    again = sh.load(tmp_path)
    assert again.emission == model.emission
    assert_close(again.simulate(4, (40,), seed=0).x, drawn.x, rtol=0, atol=0)
    assert type(model.emission).__module__ == sh.AutoRegressive.__module__  # so that files find its class


@pytest.mark.parametrize("form", [list, np.asarray, torch.tensor])
def test_beliefs_about_tuples_add_up_to_those_about_states(form):
    ours = sh.DeviationAR(2, 1).beliefs(form([[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]]))
    assert_close(ours.double(), torch.tensor([[0.3, 0.7], [1.0, 0.0]]).double(), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"table: got shape \(2,\), expected \[..., 4\]"):
        sh.DeviationAR(2, 1).beliefs(form([0.5, 0.5]))


def test_the_evidence_of_a_fit_is_weighted():
    form = sh.DeviationAR(2, 1)
    x = torch.arange(30.0).double().sin()
    fit = form.fit([x[:14], x[14:]], restarts=1, max_steps=3, weights=[2.0, 0.5])
    each = fit.model.log_evidence([x[:14], x[14:]])
    assert fit.log_evidence == pytest.approx(float(2 * each[0] + 0.5 * each[1]))


@pytest.mark.parametrize("max_steps", [3, 41, 60])
def test_a_fit_runs_no_more_steps_than_it_may(max_steps, monkeypatch):
    steps, run = [], Ascent.run
    monkeypatch.setattr(Ascent, "run", lambda self, n: (steps.append(n), run(self, min(n, 1)))[1])
    sh.DeviationAR(2, 1).fit(torch.arange(30.0).double().sin(), restarts=1, max_steps=max_steps)
    assert sum(steps) == max_steps


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n_states": 1, "order": 1}, "n_states: got 1"),
        ({"n_states": 2, "order": 0}, "order: got 0"),
        ({"n_states": 3, "order": 8}, "order: got 8 with 3 states, which makes 19683 tuples"),
        ({"n_states": 2, "order": 1, "switching": ["intercept"]}, "switching: got 'intercept'"),
    ],
)
def test_bad_input_is_named(given, text):
    with pytest.raises(ValueError, match=text):
        sh.DeviationAR(**given)
    form = sh.DeviationAR(2, 2)
    with pytest.raises(ValueError, match=r"order: got 2 lags, but x has 2 step"):
        form.fit([1.0, 2.0])
    with pytest.raises(ValueError, match=r"states: was given, but DeviationAR\.fit orders states by their means"):
        form.fit([1.0, 2.0, 0.0, 1.0], states=[0, 1, 0, 0])
    with pytest.raises(ValueError, match=r"values: got unknown parameter\(s\) \['mean'\]"):
        form.model(mean=[0.0, 1.0])
    with pytest.raises(ValueError, match="loc: got shape"):
        form.model(**values_of(2, 2, ()) | {"loc": [0.0, 1.0]})


def of(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


PRIOR = {
    "transition_probs": dist.Dirichlet(torch.tensor([[9.0, 1.0], [1.0, 9.0]], dtype=torch.float64)),
    "loc": dist.Normal(of(2.0), of(2.0)),
    "coefficients": dist.Normal(of(0.3), of(0.1)),
    "scale": dist.LogNormal(of(0.0), of(0.5)),
}


def own_density(values: dict[str, torch.Tensor]) -> torch.Tensor:
    total = torch.distributions.Normal(of(2.0), of(2.0)).log_prob(values["loc"]).sum()
    total = total + torch.distributions.Normal(of(0.3), of(0.1)).log_prob(values["coefficients"]).sum()
    scale = values["precision"].rsqrt()
    total = total + torch.distributions.LogNormal(of(0.0), of(0.5)).log_prob(scale).sum()
    total = total - (2 * values["precision"] ** 1.5).log().sum()
    rows = torch.distributions.Dirichlet(torch.tensor([[9.0, 1.0], [1.0, 9.0]], dtype=torch.float64))
    return total + rows.log_prob(values["transition_probs"]).sum()


@pytest.mark.parametrize("switching", SWITCHING)
def test_a_prior_is_the_density_of_its_distributions(switching):
    form = sh.DeviationAR(2, 1, switching=switching, prior=PRIOR)
    values = values_of(2, 1, switching)
    assert_close(form.log_prior(values), own_density(values), rtol=1e-10, atol=1e-10)
    several = {name: torch.stack([value, value]) for name, value in values.items()}
    assert_close(form.log_prior(several), own_density(values).expand(2), rtol=1e-10, atol=1e-10)
    assert_close(sh.DeviationAR(2, 1).log_prior(values), of(0.0))


@pytest.mark.slow
def test_a_fit_under_priors_is_at_the_mode():
    form = sh.DeviationAR(2, 1, prior=PRIOR)
    x = (
        form.model(**values_of(2, 1, ()) | {"loc": torch.tensor([[0.0], [4.0]], dtype=torch.float64)})
        .simulate(120, seed=0)
        .x
    )
    fit = form.fit(x, restarts=2)
    assert fit.log_prior == pytest.approx(float(own_density(fit.values)), rel=1e-9)
    assert float(fit.heights.max()) == pytest.approx(fit.log_evidence + fit.log_prior, abs=1e-6)
    assert fit.values["loc"][0] < fit.values["loc"][1]

    def height(some: dict) -> torch.Tensor:
        return form.model(**some).log_evidence(x) + own_density(some)

    best = ascend(height, fit.values, {n: p.support for n, p in form.parameters.items()})
    assert float(height(best)) - float(height(fit.values)) < 1e-4
    free = sh.DeviationAR(2, 1).fit(x, restarts=2)
    assert free.log_evidence > fit.log_evidence
    assert free.log_prior == 0.0


@pytest.mark.slow
def test_a_fit_under_priors_does_not_depend_on_the_unit():
    x = sh.DeviationAR(2, 1).model(**values_of(2, 1, ())).simulate(80, seed=1).x
    fits = []
    for unit, about in ((1.0, 0.0), (1e3, 5e4)):
        prior = {
            "loc": dist.Normal(of(about), of(2.0 * unit)),
            "scale": dist.LogNormal(of(float(np.log(unit))), of(0.5)),
            "coefficients": PRIOR["coefficients"],
        }
        fits.append(sh.DeviationAR(2, 1, prior=prior).fit(unit * x + about, restarts=2).values)
    assert_close((fits[1]["loc"] - 5e4) / 1e3, fits[0]["loc"], rtol=1e-3, atol=1e-3)
    assert_close(fits[1]["coefficients"], fits[0]["coefficients"], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_states_keep_the_places_that_priors_give_them():
    high_first = {"loc": dist.Normal(torch.tensor([[4.0], [0.0]], dtype=torch.float64), of(0.3))}
    form = sh.DeviationAR(2, 1, prior=high_first)
    values = values_of(2, 1, ()) | {"loc": torch.tensor([[4.0], [0.0]], dtype=torch.float64)}
    x = form.model(**values).simulate(150, seed=0).x
    loc = form.fit(x, restarts=4).values["loc"][:, 0]
    assert loc[0] > 2 > loc[1]


@pytest.mark.parametrize(
    ("prior", "text"),
    [
        ({"mean": dist.Normal(0.0, 1.0)}, "prior: got 'mean', expected some of transition_probs, loc, coefficients"),
        ({"scale": dist.Normal(0.0, 1.0)}, r"prior\['scale'\]: got Normal"),
        ({"loc": dist.Normal(torch.zeros(3), 1.0)}, r"prior\['loc'\]: got a distribution of shape \[3\]"),
        ({"transition_probs": dist.Beta(1.0, 1.0)}, r"prior\['transition_probs'\]: got Beta"),
    ],
)
def test_priors_that_do_not_fit_are_named(prior, text):
    with pytest.raises(ValueError, match=text):
        sh.DeviationAR(2, 1, prior=prior)
