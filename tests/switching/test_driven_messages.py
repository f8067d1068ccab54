"""Message passing for Markov chains whose rows and start depend on inputs: bounds on expected logarithms of rows."""

import math

import pytest
import samplehold as sh
import torch
from oracles.models import numbers
from samplehold.switching.dynamics.logits import LogitRows
from samplehold.switching.parameters import reordered
from torch import Tensor
from torch.testing import assert_close

C = 2
MASK = [[True, True, False], [True, True, True], [False, False, True]]
FORMS = {
    "free": sh.Markov(3, inputs=C),
    "two states": sh.Markov(2, inputs=C),
    "mask": sh.Markov(3, inputs=C, mask=MASK),
    "start": sh.Markov(3, initial_inputs=C),
}
each = pytest.mark.parametrize("dynamics", FORMS.values(), ids=FORMS)


def rows_of(dynamics: sh.Markov) -> tuple[str, LogitRows]:
    """The block of logits, and its name."""
    (found,) = [(n, block) for n, block in dynamics.message_blocks.items() if isinstance(block, LogitRows)]
    return found


def drawn(rows: LogitRows, n: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A q of the numbers, and draws of them."""
    shape = rows.natural({"prior": numbers(1)}).shape[0], *rows._sizes[1:]
    size = shape[1] * shape[2]
    root = 0.6 * numbers(shape[0], size, size, seed=seed + 1)
    precision = torch.linalg.inv(root @ root.mT + 0.2 * torch.eye(size).double())
    eta = rows.family.natural(numbers(shape[0], size, seed=seed), precision)
    return eta, rows.family.sample(eta, n, torch.Generator().manual_seed(seed))


def log_rows(rows: LogitRows, points: Tensor, design: Tensor) -> Tensor:
    """[*r, N, I, K]: the logarithm of each row at each input."""
    values = list(rows.values(points).values())
    probs, weights = (x.unsqueeze(-2 - i) for i, x in enumerate(values)) if rows._one_row else values
    logits = probs.log().unsqueeze(-3) + torch.einsum("nc,...ikc->...nik", design[:, 1:], weights)
    return logits.log_softmax(-1)


@each
def test_bounds_are_equal_at_a_point_and_below_the_mean_of_draws(dynamics):
    _, rows = rows_of(dynamics)
    design = torch.cat([torch.ones(5, 1).double(), numbers(5, C, seed=3)], -1)
    eta, points = drawn(rows, 20_000)
    exact = log_rows(rows, points, design)
    possible = rows.possible.expand_as(exact[0])
    at_points = rows.expected_logs(rows.family.statistics(points[:50]), design)
    assert_close(at_points[:, possible], exact[:50][:, possible], rtol=1e-9, atol=1e-9)
    bound, mean = rows.expected_logs(rows.family.mean(eta), design), exact.mean(0)
    spread = exact.std(0) / math.sqrt(len(points))
    assert bool((bound <= mean + 4 * spread)[possible].all())
    assert float(bound[~possible].abs().sum()) == 0


@each
def test_points_are_the_parameters(dynamics):
    _, rows = rows_of(dynamics)
    _, points = drawn(rows, 4)
    values = rows.values(points)
    known = dynamics.parameters
    for name, value in values.items():
        assert bool(known[name].support.check(value[0]).all()), name
    assert_close(rows.values(rows.point(values)), values, rtol=1e-12, atol=1e-12)


def test_states_change_their_numbers():
    _, rows = rows_of(FORMS["free"])
    eta, _ = drawn(rows)
    order = torch.tensor([2, 0, 1])
    mean = rows.values(rows.family.expected(eta))
    found = rows.values(rows.family.expected(rows.reordered(eta, order)))
    assert_close(found, reordered(FORMS["free"].parameters, mean, order), rtol=1e-12, atol=1e-12)
    covariances = [rows.family.usual(e).precision for e in (eta, rows.reordered(eta, order))]
    assert_close(covariances[0].logdet()[order], covariances[1].logdet(), rtol=1e-10, atol=0)


def made(dynamics: sh.Markov, n: int = 80, steps: int = 12) -> tuple[sh.SwitchingSSM, Tensor, Tensor]:
    """A model with well separated states, series and inputs."""
    k = dynamics.n_states
    model = sh.SwitchingSSM(dynamics, sh.Normal(1))
    possible = torch.tensor(dynamics.mask or [[True] * k] * k)
    table = torch.where(possible, 0.1 + torch.eye(k).double(), 0.0)
    values = {
        "initial_probs": torch.full((k,), 1 / k),
        "transition_probs": table / table.sum(-1, keepdim=True),
        "transition_weights": 0.8 * numbers(k, k, C, seed=2),
        "initial_weights": numbers(k, C, seed=4),
        "loc": 4 * torch.arange(k).double().unsqueeze(-1),
        "scale": torch.ones(k, 1).double(),
    }
    free = {n: p.support.free for n, p in model.known.items() if n.endswith("_weights")}
    values |= {n: values[n] * free.to(values[n]) for n, free in free.items()}
    model = model.with_values({name: values[name] for name in (*dynamics.parameters, "loc", "scale")})
    inputs = numbers(n, steps, C, seed=1)
    return model, model.simulate(steps, (n,), seed=0, inputs=inputs).x, inputs


@pytest.mark.few(1)
@each
def test_fits_raise_the_bound_and_come_near_the_mode(dynamics):
    model, x, inputs = made(dynamics)
    fit = model.fit(x, "vmp", inputs=inputs, restarts=1, progress=False)
    assert fit.converged
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    mode = model.fit(x, inputs=inputs, restarts=1, progress=False)
    assert abs(fit.loglik - mode.loglik) < 3
    assert float(fit.objective[-1]) < fit.loglik
    for name in ("transition_probs", "transition_weights", "initial_weights"):
        if name in mode.model.values:
            assert_close(fit.model.values[name], mode.model.values[name], rtol=0, atol=0.25)


KNOWN = {"loc": torch.tensor([[0.0], [1.5]]).double(), "scale": torch.ones(2, 1).double()}
ROW, NOT_KNOWN = torch.tensor([0.8, 0.2]).double(), torch.tensor([torch.nan, torch.nan]).double()
EACH_KNOWN = pytest.mark.parametrize(("weight", "row"), [(0.5, False), (None, False), (None, True), (0.5, True)])


def partly_known(weight: float | None, row: bool) -> tuple[sh.SwitchingSSM, Tensor, Tensor, dict[str, Tensor]]:
    """A model of two states, a series, inputs, and what is known: the emission, and maybe one of the weights or the row
    of one state."""
    fixed = dict(KNOWN)
    if weight is not None:
        fixed["transition_weights"] = torch.full((2, 2, 1), torch.nan, dtype=torch.float64)
        fixed["transition_weights"][0, 1] = weight
    if row:
        fixed["transition_probs"] = torch.stack([ROW, NOT_KNOWN])
    x = KNOWN["loc"][torch.tensor([0, 0, 1, 1, 1, 0, 0, 0, 1])] + 0.7 * numbers(9, 1, seed=1)
    return sh.SwitchingSSM(sh.Markov(2, inputs=1, sticky=2.0), sh.Normal(1)), x, numbers(9, 1), fixed


@pytest.mark.few(2)
@EACH_KNOWN
def test_the_bound_is_the_sum_of_its_parts(weight, row):
    """Of the chain under bounds of its tables, the expected log priors of what is free, and its entropy."""
    model, x, inputs, fixed = partly_known(weight, row)
    fit = model.fit(x, "vmp", inputs=inputs, fixed=fixed, restarts=1, tol=1e-10, progress=False)
    prior, rows = model.scaled_to(x, inputs=inputs).prior, dict(model.dynamics.message_blocks)["transition"]
    units = fit.posterior.units  # in which inputs have the spread 1, or the size 1 about 0 beside a known constant
    inputs = (inputs - units.frame.center) / units.frame.scale
    vague = float(fit.model.prior["transition_weights_scale"].mean() * units.frame.scale)
    known = units.values({name: table for name, table in fixed.items() if name in rows.parameters})
    family = rows.given(known) if known else rows.family
    statistics = family.mean(fit.posterior.blocks["transition"])
    mean, square = statistics[:, :2], statistics[:, 2:].unflatten(-1, (2, 2))
    covariance = square - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    alpha, at_zero = prior["transition_concentration"], rows.expected_logs(statistics, torch.eye(2).double()[0])
    total = torch.zeros(())
    for state in range(2):
        free = [d for d in range(2) if float(covariance[state, d, d]) > 1e-12]
        expected = [0] * (not (row and state == 0)) + [1] * (not (weight is not None and state == 0))
        assert free == expected
        if free:
            spread = covariance[state][free][:, free]
            total = total + (spread.logdet() + len(free) * (1 + math.log(2 * math.pi))) / 2
        if 0 in free:
            normalizer = torch.lgamma(alpha[state]).sum() - torch.lgamma(alpha[state].sum())
            total = total + (alpha[state] * at_zero[state]).sum() - normalizer
        if 1 in free:
            total = total - square[state, 1, 1] / 2 / vague**2 - math.log(vague * math.sqrt(2 * math.pi))
    start, dirichlet = fit.posterior.blocks["initial"], torch.distributions.Dirichlet
    divergence = torch.distributions.kl_divergence(dirichlet(start), dirichlet(prior["initial_concentration"]))
    table = rows.expected_logs(statistics, torch.cat([torch.ones(9, 1).double(), inputs], -1))[1:]
    likelihood = model.emission.table(x, {"loc": KNOWN["loc"], "precision": KNOWN["scale"]})
    chain = sh.chains.MarkovChain(torch.digamma(start) - torch.digamma(start.sum()), table, likelihood)
    assert_close(fit.objective[-1], chain.log_normalizer() + total - divergence, rtol=0, atol=1e-7)


@pytest.mark.few(1)
@EACH_KNOWN
def test_the_bound_lies_below_the_evidence(weight, row):
    """The evidence is the mean over draws from the prior."""
    model, x, inputs, fixed = partly_known(weight, row)
    fit, n = model.fit(x, "vmp", inputs=inputs, fixed=fixed, restarts=1, progress=False), 60_000
    prior, generator = model.scaled_to(x, inputs=inputs).prior, torch.Generator().manual_seed(0)
    values = {
        name: torch._sample_dirichlet(prior[f"{name.split('_')[0]}_concentration"].expand(n, *shape), generator)
        for name, shape in (("initial_probs", (2,)), ("transition_probs", (2, 2)))
    }
    if row:
        values["transition_probs"][:, 0] = ROW
    weights = 2.5 * numbers(n, 2)
    if weight is not None:
        weights[:, 0] = weight
    values["transition_weights"] = torch.diag_embed(weights).flip(-1).unsqueeze(-1)  # those of staying are 0
    tables = {"loc": KNOWN["loc"], "precision": KNOWN["scale"]}  # which are 1
    values |= {name: table.expand(n, *table.shape) for name, table in tables.items()}
    terms = model.problem(x, inputs=inputs).evidence(values)
    evidence = float(terms.logsumexp(0)) - math.log(n)
    assert evidence - 2.2 < float(fit.objective[-1]) < evidence + 0.05


@pytest.mark.parametrize("mask", [None, MASK, [[True, True, False], [False, True, True], [False, False, True]]])
def test_with_weights_of_0_a_known_table_has_the_bound_of_a_chain_without_inputs(mask):
    possible = torch.ones(3, 3) if mask is None else torch.tensor(mask).double()
    table = (possible * (0.2 + torch.eye(3))).double()
    fixed = {"transition_probs": table / table.sum(-1, keepdim=True)}
    x, few = 2 * numbers(30, 1), {"restarts": 1, "progress": False}
    plain = sh.SwitchingSSM(sh.Markov(3, mask=mask), sh.Normal(1)).fit(x, "vmp", fixed=fixed, **few)
    fixed["transition_weights"] = torch.zeros(3, 3, C).double()
    driven = sh.SwitchingSSM(sh.Markov(3, mask=mask, inputs=C), sh.Normal(1))
    fit = driven.fit(x, "vmp", fixed=fixed, inputs=numbers(30, C), **few)
    assert_close(fit.objective[-1], plain.objective[-1], rtol=0, atol=1e-6)


def test_a_known_move_of_probability_0_is_not_made():
    model, x, inputs = made(FORMS["two states"], 2, 40)
    fixed = {"transition_probs": torch.tensor([[1.0, 0.0], [0.3, 0.7]]).double()}
    fit = model.fit(x, "vmp", inputs=inputs, fixed=fixed, restarts=1, progress=False)
    assert float(fit.objective.diff().min()) > -1e-7
    path = fit.viterbi().path
    assert not bool(((path[:, :-1] == 0) & (path[:, 1:] == 1)).any())


@pytest.mark.slow
def test_minibatches_end_near_the_whole():
    model, x, inputs = made(FORMS["two states"], 60)
    whole = model.fit(x, "vmp", inputs=inputs, restarts=1, progress=False)
    parts = model.fit(x, "vmp", inputs=inputs, restarts=1, batch_size=20, max_steps=100, progress=False)
    assert abs(float(parts.objective[-1]) - float(whole.objective[-1])) < 0.5


def test_parameters_by_subject_are_refused_in_their_own_words():
    model, x, inputs = made(FORMS["two states"], 2, 20)
    given = {"inputs": inputs, "subjects": ["a", "b"], "progress": False}
    said = r"^pooled: got parameters by subject, but its transitions depend on inputs"
    for method, pooled in (("vmp", "none"), ("vmp", {"emission": "none"}), ("svi", {"emission": "partial"})):
        with pytest.raises(ValueError, match=said):
            model.fit(x, method, pooled=pooled, **given)


def test_weights_or_rows_or_all_of_it_may_be_known_and_a_part_of_a_row_not():
    model, x, inputs = made(FORMS["free"], 2, 60)
    weights, probs = model.values["transition_weights"], model.values["transition_probs"]
    few = {"inputs": inputs, "restarts": 1, "max_steps": 5, "progress": False}
    for fixed in ({"transition_weights": weights}, {"transition_probs": probs, "transition_weights": weights}):
        fit = model.fit(x, "vmp", fixed=fixed, **few)
        for name, table in fixed.items():
            assert_close(fit.model.values[name], table, rtol=1e-9, atol=1e-9)
        assert float(fit.objective.diff().min()) > -1e-8
    rows = probs.clone()
    rows[1] = torch.nan
    fit = model.fit(x, "vmp", fixed={"transition_probs": rows}, **few)
    assert_close(fit.model.values["transition_probs"][[0, 2]], probs[[0, 2]], rtol=1e-9, atol=1e-9)
    assert float(fit.objective.diff().min()) > -1e-8
    part = probs.clone()
    part[0, 1:] = torch.nan
    with pytest.raises(TypeError, match=r'^fixed: message passing cannot hold .* use method="em", "svi" or "nuts"'):
        model.fit(x, "vmp", fixed={"transition_probs": part}, **few)


def test_everything_of_a_fit_works():
    model, x, inputs = made(FORMS["two states"], 2, 60)
    fit = model.fit(x, "vmp", inputs=inputs, restarts=1, progress=False)
    low, high = (ends["transition_weights"] for ends in fit.posterior.interval(0.9))
    assert bool((low[0, 1] < high[0, 1]).all())
    assert "transition_weights[0, 1, 0]" in str(fit.summary())
    assert set(fit.to_arviz(draws=4).posterior) >= {"transition_probs", "transition_weights"}
    bound = fit.posterior.smooth(x, inputs=inputs)
    assert_close(bound.state.sum(-1), torch.ones(2, 60).double(), rtol=1e-10, atol=0)
