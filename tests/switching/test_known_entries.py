"""Tables of which some entries are known and others free: `fixed` with NaN."""

import math
from dataclasses import replace

import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.effort import effort
from samplehold.switching.fitting.density import Density
from samplehold.switching.known import KnownEntries
from torch.distributions import Dirichlet, biject_to, constraints
from torch.testing import assert_close

N = math.nan
MOVES = [[0.8, N, N], [N, N, 0.05], [N, N, N]]
TRUTH = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).with_values(
    initial_probs=[0.2, 0.3, 0.5],
    transition_probs=[[0.8, 0.15, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]],
    loc=[[3.0], [0.0], [-3.0]],
    scale=[[1.0], [1.0], [1.0]],
)
X = TRUTH.simulate(120, seed=1).x
QUIET = {"progress": False, "restarts": 1}
INPUTS = torch.linspace(-1.5, 1.5, 120, dtype=torch.float64).unsqueeze(-1)


def known(fixed: dict) -> dict:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in fixed.items()}


# ---- every method holds them -----------------------------------------------------------------------------------------

MODELS = {
    "markov": (
        TRUTH.without_values(),
        {"transition_probs": MOVES, "initial_probs": [0.5, N, N], "loc": [[3.0], [N], [N]], "scale": [[1.0], [N], [N]]},
        1 + 4 + 2 + 2,
    ),
    "banded": (
        sh.SwitchingSSM(sh.Markov.banded(3), sh.Normal(1)),
        {"transition_probs": [[0.7, N, 0.0], [0.2, N, N], [N, 0.3, N]]},
        2 + 1 + 6,
    ),
    "copy": (sh.SwitchingSSM(sh.Copy(3), sh.Normal(1)), {"state_probs": [0.5, N, N]}, 1 + 1 + 6),
    "gated": (
        sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Normal(1), sh.Normal(1))),
        {"loc": [[1.0], [N]], "background_scale": [[0.5]]},
        1 + 1 + 1 + 2 + 1,
    ),
    "full": (
        sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(1)),
        {"covariance": [[[1.0]], [[N]]], "loc": [[N], [0.0]]},
        3 + 1 + 1,
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("method", ["em", "vmp", "svi", "nuts"])
@pytest.mark.parametrize("kind", MODELS)
def test_known_entries_stay_and_free_ones_move(monkeypatch, kind, method):
    from samplehold.switching.fitting import sampling

    monkeypatch.setattr(sampling, "CHAINS", 1)
    model, fixed, size = MODELS[kind]
    fit = model.fit(X, method, fixed=fixed, **QUIET, **effort(method, 60 if method in ("em", "vmp") else 3))
    values = fit.model.describe()
    draws = None if fit.posterior is None else fit.posterior.sample(4)
    for name, table in known(fixed).items():
        free = table.isnan()
        assert_close(values[name][~free], table[~free], rtol=1e-12, atol=1e-14)
        if name.endswith("probs"):
            assert_close(values[name].sum(-1), torch.ones(table.shape[:-1], dtype=torch.float64))
        if draws is not None and name in draws:
            assert_close(draws[name][:, ~free], table[~free].expand(4, -1), rtol=1e-12, atol=1e-14)
            assert not bool(free.any()) or float(draws[name][:, free].std(0).max()) > 0
    assert fit.n_parameters == size
    assert {name.replace("precision", "scale") for name in fit.fixed} == {
        n.replace("covariance", "scale") for n in fixed
    }
    if method in ("em", "vmp"):
        assert float(fit.objective.diff().min()) > -1e-8


def test_a_summary_tells_which_entries_were_held():
    fit = TRUTH.fit(X, fixed={"transition_probs": MOVES}, **QUIET)
    errors = fit.summary().parameters["standard error"]
    assert math.isnan(errors["transition_probs[0, 0]"])
    assert errors["transition_probs[0, 1]"] > 0
    assert "Held as given: transition_probs in part." in str(fit.summary())


def test_intervals_of_free_probabilities_stay_within_the_rest():
    fit = TRUTH.fit(X[:60], fixed={"transition_probs": [[0.5, N, N], [N, N, 0.4], [N, N, N]]}, **QUIET)
    ends = fit.summary(level=0.99).parameters[["lower", "upper"]]
    for row, (first, second), rest in ((0, (1, 2), 0.5), (1, (0, 1), 0.6)):
        low, high = ends.loc[f"transition_probs[{row}, {first}]"]
        other_low, other_high = ends.loc[f"transition_probs[{row}, {second}]"]
        assert 0 < low < high < rest
        assert high + other_low == pytest.approx(rest, abs=1e-9)
        assert low + other_high == pytest.approx(rest, abs=1e-9)


# ---- against closed forms: the states are known, so counts are exact ------------------------------------------------

PATH = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 1, 0, 0, 2, 1, 1, 0, 1, 2, 0, 0, 1])
COUNTS = torch.zeros(3, 3, dtype=torch.float64).index_put((PATH[:-1], PATH[1:]), torch.ones(19).double(), True)
REST = {"loc": TRUTH.loc, "scale": [[1.0]] * 3, "initial_probs": [0.2, 0.3, 0.5]}


def by_hand(alpha: float) -> torch.Tensor:
    """Means of the rows, or without prior (alpha 0) the maximum."""
    table, free = known({"a": MOVES})["a"], known({"a": MOVES})["a"].isnan()
    part = torch.where(free, COUNTS + alpha, 0.0)
    rest = 1 - table.nan_to_num(0.0).sum(-1, keepdim=True)
    return torch.where(free, rest * part / part.sum(-1, keepdim=True), table)


@pytest.mark.slow
def test_free_probabilities_share_the_rest_by_their_counts():
    given = {"fixed": REST | {"transition_probs": MOVES}, "states": PATH} | QUIET
    x = X[:20]
    assert_close(TRUTH.fit(x, prior=None, **given).model.transition_probs, by_hand(0.0), rtol=1e-8, atol=1e-10)
    fit = TRUTH.fit(x, "vmp", **given)
    assert_close(fit.model.transition_probs, by_hand(1.0), rtol=1e-8, atol=1e-10)
    # q is the posterior, so the bound is the evidence: Dirichlet-multinomial rows, known moves at their probabilities
    table = known({"a": MOVES})["a"]
    exact = math.log(0.2) + float(torch.distributions.Normal(TRUTH.loc[PATH, 0], 1.0).log_prob(x[:, 0]).sum())
    for row, counts in zip(table, COUNTS, strict=True):
        free = row.isnan()
        exact += float((counts[~free] * row[~free].log()).sum())
        n, k, rest = counts[free], int(free.sum()), 1 - float(row[~free].sum())
        exact += float(n.sum()) * math.log(rest) + math.lgamma(k) - math.lgamma(k + float(n.sum()))
        exact += float(torch.lgamma(n + 1).sum())
    assert float(fit.objective[-1]) == pytest.approx(exact, abs=1e-8)


@pytest.mark.slow
def test_numbers_of_single_states_are_known_in_message_passing():
    model, counts = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(2)), torch.arange(24).reshape(12, 2) % 5
    path = torch.arange(12) % 2
    fit = model.fit(counts, "vmp", states=path, fixed={"rate": [[2.5, N], [N, N]]}, **QUIET)
    shape, rate = (fit.model.prior[name] for name in ("shape", "rate"))
    totals = torch.stack([counts[path == k].sum(0) for k in range(2)]).double()
    expected = (shape + totals) / (rate + 6)
    expected[0, 0] = 2.5
    assert_close(fit.model.rate, expected, rtol=1e-8, atol=0)


# ---- at its optimum --------------------------------------------------------------------------------------------------


def slopes(fit: sh.Fit, fixed: dict, **given: torch.Tensor) -> torch.Tensor:
    """The slope of the log-likelihood in the logarithms of the free probabilities, along their simplex."""
    problem = fit.model.problem(X, **given)
    values = {name: value.clone().requires_grad_() for name, value in fit.model.values.items()}
    (slope,) = torch.autograd.grad(problem.chain(values).log_normalizer(), values["transition_probs"])
    free = known(fixed)["transition_probs"].isnan()
    probs = torch.where(free, values["transition_probs"].detach(), 0.0)
    total = probs.sum(-1, keepdim=True).clamp_min(1e-300)
    return probs * (slope - (probs * slope).sum(-1, keepdim=True) / total)


@pytest.mark.parametrize("options", [{}, slow({"initial": "stationary"}), slow({"inputs": 1})], ids=str)
def test_free_probabilities_are_at_the_maximum(options):
    model, fixed = sh.SwitchingSSM(sh.Markov(3, **options), sh.Normal(1)), {"transition_probs": MOVES}
    given = {"inputs": INPUTS} if "inputs" in options else {}
    start = {"loc": TRUTH.loc, "transition_probs": TRUTH.transition_probs}
    fit = model.fit(X, fixed=fixed, prior=None, start=start, tol=1e-10, **QUIET, **given)
    free = known(fixed)["transition_probs"].isnan()
    assert_close(fit.model.transition_probs[~free], known(fixed)["transition_probs"][~free], rtol=1e-12, atol=0)
    assert float(slopes(fit, fixed, **given).abs().max()) < 2e-3  # nats
    assert float(fit.objective.diff().min()) > -1e-8


@pytest.mark.parametrize("weight", [[[[0.0], [N], [0.4]], [[N], [0.0], [N]], [[N], [N], [0.0]]]])
def test_weights_of_single_moves_are_known(weight):
    model = sh.SwitchingSSM(sh.Markov(3, inputs=1), sh.Normal(1))
    fit = model.fit(X, fixed={"transition_weights": weight}, inputs=INPUTS, max_steps=30, **QUIET)
    assert float(fit.model.transition_weights[0, 2, 0]) == 0.4
    assert fit.n_parameters == 2 + 6 + 5 + 6


# ---- free coordinates ------------------------------------------------------------------------------------------------


def test_the_density_of_free_entries_is_a_dirichlet_of_their_shares():
    problem = TRUTH.problem(X)
    table = known({"a": MOVES})["a"]
    near = TRUTH.values | {"transition_probs": by_hand(1.0)}
    density = Density(replace(problem, fixed={"transition_probs": table}), near)
    values = density.values(density.start)
    assert_close(values["transition_probs"], near["transition_probs"], rtol=1e-12, atol=0)
    free = table.isnan()
    rest = 1 - table.nan_to_num(0.0).sum(-1)
    shares = [row[some] / r for row, some, r in zip(near["transition_probs"], free, rest, strict=True)]
    # log p of the shares and the volume of their logits
    exact = sum(float(Dirichlet(torch.ones(len(q)).double()).log_prob(q) + q.log().sum()) for q in shares)
    whole = Density(replace(problem, fixed={"transition_probs": near["transition_probs"]}), near)
    rows = [Dirichlet(torch.ones(3).double()).log_prob(row) for row in near["transition_probs"]]
    others = float(whole.log_prob(whole.start)) - float(torch.stack(rows).sum())
    assert float(density.log_prob(density.start)) == pytest.approx(others + exact, abs=1e-9)


@pytest.mark.parametrize(
    ("base", "table"),
    [
        (constraints.positive, [[1.0, N], [N, 3.0]]),
        (constraints.independent(constraints.real, 2), [[1.0, N], [N, 3.0]]),
        (constraints.unit_interval, [0.5, N, N]),
        (constraints.positive_definite, [[[1.0, 0.0], [0.0, 1.0]], [[N, N], [N, N]]]),
    ],
    ids=["positive", "real", "unit", "definite"],
)
def test_free_coordinates_of_known_entries_are_one_to_one(base, table):
    support = KnownEntries(base, torch.tensor(table, dtype=torch.float64))
    to = biject_to(support)
    y = torch.linspace(-1, 1, 2 * to.inverse_shape(support.table.shape)[-1], dtype=torch.float64).reshape(2, -1)
    values = to(y)
    assert bool(support.check(values).all())
    assert not bool(support.check(values + 1).any())
    assert_close(to.inv(values), y, rtol=1e-12, atol=1e-12)
    if base is not constraints.positive_definite:
        jacobian = torch.autograd.functional.jacobian(lambda one: to(one)[support.free], y[0])
        assert_close(to.log_abs_det_jacobian(y, values)[0], torch.linalg.slogdet(jacobian).logabsdet)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"transition_probs": [[0.9, 0.3, N], [N] * 3, [N] * 3]}, r"^fixed: transition_probs: .*sum to.*less beside"),
        ({"transition_probs": [[0.5, 0.3, 0.1], [N] * 3, [N] * 3]}, r"^fixed: transition_probs: .*sum to"),
        ({"initial_probs": [-0.1, N, N]}, r"^fixed: initial_probs: .*expected probabilities"),
        ({"scale": [[-1.0], [N], [N]]}, r"^fixed: scale: got -1.0, expected a number greater than 0"),
        ({"loc": [[math.inf], [N], [N]]}, r"^fixed: loc: got values that are not finite"),
        ({"transition_probs": [[0.9, N], [N, N]]}, r"^fixed: transition_probs: got shape \(2, 2\).*needs \[3, 3\]"),
        ({"loc": "a"}, r"^fixed\['loc'\]: "),
    ],
)
def test_entries_outside_their_space_are_named(fixed, said):
    with pytest.raises((ValueError, TypeError), match=said):
        TRUTH.fit(X, fixed=fixed, **QUIET)


def test_what_cannot_be_known_in_part_is_named():
    full = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2))
    y = torch.cat([X, X.flip(0)], -1)
    with pytest.raises(ValueError, match=r"^fixed: covariance: .*all of its entries, or none"):
        full.fit(y, fixed={"covariance": [[[1.0, N], [N, 1.0]]] * 2}, **QUIET)
    with pytest.raises(
        TypeError, match=r"^fixed: message passing cannot hold some features of loc .*give precision too"
    ):
        full.fit(y, "vmp", fixed={"loc": [[1.0, N], [N, N]]}, **QUIET)
    tied = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1, tied={"scale": "all states"}))
    with pytest.raises(TypeError, match=r'^fixed: got loc in part, .*use method="em"'):
        tied.fit(X, "vmp", fixed={"loc": [[1.0], [N]]}, **QUIET)
    with pytest.raises(ValueError, match=r"^fixed: transition_probs: got 0.1 at \[0, 2\], expected 0: the mask"):
        sh.SwitchingSSM(sh.Markov.banded(3), sh.Normal(1)).fit(
            X, fixed={"transition_probs": [[0.5, N, 0.1], [N] * 3, [N] * 3]}, **QUIET
        )


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["em", "vmp", pytest.param("svi", marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", [0.0, 1.0])
def test_known_probabilities_of_0_and_1_have_no_density_of_their_own(end, method):
    """The prior, which excludes them, says nothing of the others: the fit is that of a categorical emission."""
    x = torch.tensor([end, 1, 1, 0, 0, 1, 0, 1 - end] * 5, dtype=torch.float64)
    other = 0.3
    coins = sh.SwitchingSSM(sh.Copy(2), sh.Bernoulli(1))
    symbols = sh.SwitchingSSM(sh.Copy(2), sh.Categorical(2))
    options = {"method": method, "progress": False, "seed": 1, "restarts": 2}
    options |= {"max_steps": 10} if method == "svi" else {}
    fit = coins.fit(x, fixed={"probs": [[1 - end], [other]]}, **options)
    twin = symbols.fit(x, fixed={"probs": [[end, 1 - end], [1 - other, other]]}, **options)
    if method == "svi":  # whose bound is an estimate
        assert bool(fit.objective.isfinite().all())
        return
    known = math.log(6 * other * (1 - other)) if method == "em" else 0.0  # density of the other one, Beta(2, 2)
    assert_close(fit.objective[-1] - known, twin.objective[-1], rtol=0, atol=1e-6)
