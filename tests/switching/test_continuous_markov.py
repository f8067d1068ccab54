"""Markov chains in continuous time: tables of gaps, exact entries, EM by expected jumps and times, bad input."""

import itertools
import warnings

import numpy as np
import pyro
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.models import enumerated_by_pyro, numbers
from oracles.streams import assert_stream_is_filter
from samplehold.inference.numerics.jumps import transition_probabilities
from samplehold.switching.dynamics.gaps import Entered, Steps
from samplehold.switching.dynamics.rates import generator_of
from samplehold.switching.fitting.units import frame_of
from scipy.linalg import expm, expm_frechet
from scipy.stats import norm
from torch.testing import assert_close


def generator(rates) -> np.ndarray:
    table = np.array(rates, float)
    np.fill_diagonal(table, 0.0)
    return table - np.diag(table.sum(1))


CASES = {
    "dense": generator(np.random.default_rng(0).gamma(1.0, 1.0, (5, 5))),
    "defective": generator([[0, 1, 0], [0, 0, 1], [0, 0, 0]]),
    "complex": generator([[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
    "stiff": generator([[0, 100, 1e-3], [200, 0, 1e-2], [1e-3, 1, 0]]),
    "absorbing": generator([[0, 0.1, 0, 0.05], [0.2, 0, 0.3, 0.05], [0, 0.2, 0, 0.3], [0, 0, 0, 0]]),
    "none": np.zeros((2, 2)),
}
GAPS = [0.0, 1e-9, 1e-3, 0.5, 3.0, 17.0]


@pytest.mark.parametrize("name", CASES)
def test_tables_of_gaps_are_those_of_scipy(name):
    found = transition_probabilities(torch.tensor(CASES[name]), torch.tensor(GAPS, dtype=torch.float64))
    expected = np.stack([expm(CASES[name] * gap) for gap in GAPS])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert bool((found >= 0).all())
    assert_close(found.sum(-1), torch.ones(found.shape[:-1], dtype=torch.float64), rtol=0, atol=1e-15)


def test_small_probabilities_have_all_their_digits_where_scipy_has_them():
    """Three jumps in a short gap: the leading term is (q t)^3, of which differences of larger numbers leave nothing."""
    found = transition_probabilities(
        torch.tensor(generator(np.diag([1.0, 2.0, 3.0], 1))), torch.tensor([1e-20, 1e-100], dtype=torch.float64)
    )
    np.testing.assert_allclose(found[:, 0, 3], [1e-60, 1e-300], rtol=1e-12)


@pytest.mark.parametrize("gap", [1e6, 1e100, 1.7e308])
def test_a_huge_gap_leads_to_the_stationary_distribution(gap):
    rates = torch.tensor(CASES["dense"])
    found = transition_probabilities(rates, torch.tensor([gap], dtype=torch.float64))[0]
    left = np.linalg.svd(CASES["dense"].T)[2][-1]
    np.testing.assert_allclose(found, np.tile(left / left.sum(), (5, 1)), rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_tables_are_those_of_scipy(name):
    """With respect to entries of the generator that are independent, the Fréchet derivatives."""
    rates, k = torch.tensor(CASES[name], requires_grad=True), len(CASES[name])
    weights = numbers(2, k, k)
    total = (weights * transition_probabilities(rates, torch.tensor([0.7, 3.0], dtype=torch.float64))).sum()
    found = torch.autograd.grad(total, rates)[0]
    expected = np.zeros((k, k))
    for i, j in itertools.product(range(k), repeat=2):
        unit = np.zeros((k, k))
        unit[i, j] = 1.0
        for weight, gap in zip(weights.numpy(), (0.7, 3.0), strict=True):
            expected[i, j] += (weight * expm_frechet(CASES[name] * gap, unit * gap, compute_expm=False)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


# ---- models against enumeration --------------------------------------------------------------------------------------

RATES = generator([[0, 0.4, 0.1], [0.3, 0, 0.5], [0, 0, 0]])
START, LOC = [0.5, 0.4, 0.1], [0.0, 1.5, 3.0]
X = numbers(2, 4, seed=1) + 1.0
TIMES = torch.tensor([[0.0, 0.3, 2.0, 2.5], [1.0, 1.7, 2.0, 6.0]], dtype=torch.float64)


def model_of(**options) -> sh.SwitchingSSM:
    model = sh.SwitchingSSM(sh.ContinuousMarkov(3, absorbing=[2], **options), sh.Normal(1))
    own = {} if "initial" in options else {"initial_probs": START}
    return model.with_values(**own, rates=RATES, loc=[[m] for m in LOC], scale=[[1.0]] * 3)


def by_hand(x, times, known=(), exact=()) -> dict[tuple[int, ...], float]:
    """The joint density of every path with x; `known` states -1 are free, entries into `exact` ones are densities."""
    weights, known = {}, known if len(known) else [-1] * len(x)
    for path in itertools.product(range(3), repeat=len(x)):
        if any(state not in (-1, here) for state, here in zip(known, path, strict=True)):
            continue
        weight = START[path[0]]
        for t, state in enumerate(path):
            weight *= norm.pdf(x[t], LOC[state])
            if t:
                moves = expm(RATES * (times[t] - times[t - 1]))
                old = path[t - 1]
                entered = state in exact and known[t] == state and old != state
                alive = [k for k in range(3) if k != state]
                weight *= moves[old, alive] @ RATES[alive, state] if entered else moves[old, state]
        weights[path] = weight
    return weights


KNOWN = torch.tensor([[-1, 0, -1, 2], [-1, 1, 2, 2]])
WAYS = {
    "hidden": ({}, None),
    "in part known": ({}, KNOWN),
    "exact": ({"exact": [2]}, KNOWN),
    "given start": ({"initial": START}, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_verb_is_the_sum_over_all_paths(way):
    options, known = WAYS[way]
    model, given = model_of(**options), {} if known is None else {"states": known}
    given["time"] = TIMES
    x = X.unsqueeze(-1)
    evidence, smoothed, best = (verb(x, **given) for verb in (model.log_evidence, model.smooth, model.viterbi))
    filtered = model.filter(x, **given)
    for b in range(2):
        rows = (X[b].tolist(), TIMES[b].tolist(), [] if known is None else known[b].tolist())
        paths = by_hand(*rows, exact=options.get("exact", ()))
        total = sum(paths.values())
        np.testing.assert_allclose(evidence[b], np.log(total), rtol=1e-12)
        state = np.zeros((4, 3))
        for path, weight in paths.items():
            state[range(4), path] += weight / total
        np.testing.assert_allclose(smoothed.state[b], state, atol=1e-12)
        assert tuple(best.path[b].tolist()) == max(paths, key=paths.get)
        np.testing.assert_allclose(best.log_probability[b], np.log(max(paths.values())), rtol=1e-12)
        np.testing.assert_allclose(filtered.log_increment[b].sum(), np.log(total), rtol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_the_pyro_program_has_the_density_of_the_engine(way):
    options, known = WAYS[way]
    model = model_of(**options)
    given = {"time": TIMES} | ({} if known is None else {"states": known})
    expected = model.log_evidence(X.unsqueeze(-1), **given).sum()
    assert_close(enumerated_by_pyro(model, X.unsqueeze(-1), **given), expected, rtol=1e-10, atol=0)


def test_a_stream_equals_the_filter():
    model = model_of(exact=[2])
    given = {"dt": torch.tensor([0.0, 0.3, 1.7, 0.5], dtype=torch.float64), "states": KNOWN[0]}
    state = assert_stream_is_filter(model, X[0].unsqueeze(-1), "state", **given)
    with pytest.raises(ValueError, match="dt: got 0, expected the time since the previous step, a number above 0"):
        model.update(state, X[0, :1], dt=0)


def test_equal_steps_are_a_markov_chain():
    table = expm(RATES)
    model = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1))
    markov = model.with_values(initial_probs=START, transition_probs=table, loc=[[m] for m in LOC], scale=[[1.0]] * 3)
    continuous = model_of()
    assert_close(continuous.log_evidence(X[0]), markov.log_evidence(X[0]), rtol=1e-12, atol=0)
    dt = torch.ones(4, dtype=torch.float64)
    assert_close(continuous.log_evidence(X[0], dt=dt), markov.log_evidence(X[0]), rtol=1e-12, atol=0)
    assert_close(continuous.forecast(X[0], 3).state, markov.forecast(X[0], 3).state)


def test_forecasts_use_the_gaps_to_come():
    model, gaps = model_of(), torch.tensor([0.0, 0.3, 1.7, 0.5, 2.0, 1.5], dtype=torch.float64)
    last = model.filter(X[0], dt=gaps[:4]).state[-1].numpy()
    ahead = model.forecast(X[0], 2, dt=gaps).state
    np.testing.assert_allclose(ahead[0], last @ expm(2.0 * RATES), rtol=1e-10)
    np.testing.assert_allclose(ahead[1], last @ expm(3.5 * RATES), rtol=1e-10)
    np.testing.assert_allclose(model.transition_table(3.5), expm(3.5 * RATES), atol=1e-14)
    assert model.transition_table([[1.0, 2.0]]).shape == (1, 2, 3, 3)


def test_times_are_read_in_every_form():
    model, ragged = model_of(), [X[0], X[1, :2]]
    expected = [
        model.log_evidence(X[0], dt=TIMES[0].diff(prepend=TIMES[0, :1])),
        model.log_evidence(X[1, :2], dt=[0, 0.7]),
    ]
    times = [TIMES[0], TIMES[1, :2]]
    assert_close(model.log_evidence(ragged, time=times), torch.stack(expected))
    rows = torch.cat(ragged)
    assert_close(model.log_evidence(rows, time=torch.cat(times), lengths=[4, 2]), torch.stack(expected))
    long = [X[0].repeat(5), X[1, :2]]  # of which one is much longer, so that they are packed
    many = [torch.arange(20.0, dtype=torch.float64), TIMES[1, :2]]
    assert_close(model.log_evidence(long, time=many)[1], expected[1])
    single = model.log_evidence(X[0].float(), time=TIMES[0] + 1e9)  # float32 has no digits for these times
    assert_close(single.double(), expected[0], rtol=1e-5, atol=0)


def test_each_distinct_gap_has_one_table():
    gaps = torch.tensor([[0.5, 2.0, 0.5], [2.0, 0.25, 0.5]], dtype=torch.float64)
    steps, ages = Steps.of(gaps, None), torch.tensor([1.0, 1, 0, 1, 1, 1]).reshape(2, 3, 1)
    assert_close(steps.gaps[steps.which], gaps)
    assert len(steps.gaps) == 3
    beside = Steps.of(gaps, ages)
    assert_close(beside.gaps[beside.which], gaps)
    assert_close(beside.inputs[beside.which], ages.double())
    assert len(beside.gaps) == 4
    known = Entered((2,), torch.tensor([[-1, 2, -1], [0, 2, 2]]))
    assert known.distinct(torch.tensor(RATES).unsqueeze(-3), steps).tables.shape == (6, 3, 3)


# ---- fits ------------------------------------------------------------------------------------------------------------

MASK = [[False, True, True], [True, False, True], [False, False, False]]


@pytest.fixture(scope="module")
def panel() -> dict:
    """A panel of states that are seen at irregular times."""
    dynamics = sh.ContinuousMarkov(3, mask=MASK, absorbing=[2])
    truth = sh.SwitchingSSM(dynamics, sh.Categorical(3)).with_values(
        initial_probs=[0.8, 0.2, 0.0], rates=RATES, probs=torch.eye(3).double()
    )
    gaps = torch.tensor([0.25, 0.5, 1.0, 2.0], dtype=torch.float64)
    dt = gaps[torch.randint(4, (150, 8), generator=torch.Generator().manual_seed(0))]
    return {"x": truth.simulate(8, (150,), dt=dt, seed=1).x, "dt": dt}


def of_panel(panel: dict, **options) -> sh.Fit:
    model = sh.SwitchingSSM(sh.ContinuousMarkov(3, mask=MASK, absorbing=[2]), sh.Categorical(3))
    return model.fit(
        **panel, fixed={"probs": torch.eye(3)}, **({"restarts": 1, "progress": False, "tol": 1e-14} | options)
    )


@pytest.fixture(scope="module")
def maximum(panel) -> sh.Fit:
    return of_panel(panel, prior=None, max_steps=300)


def test_em_rises_to_a_stationary_point_near_the_truth(panel, maximum):
    assert maximum.converged
    assert bool((maximum.objective.diff() > -1e-9).all())
    problem = maximum.model.problem(**panel)
    values = {name: table.clone() for name, table in maximum.model.values.items()}
    values["rates"].requires_grad_()
    slope = torch.autograd.grad(problem.evidence(values).sum(), values["rates"])[0]
    free = torch.tensor(MASK)
    assert float(slope[free].abs().max()) < 1e-6 * len(panel["x"])
    table = maximum.summary().parameters.loc[["rates[0, 1]", "rates[0, 2]", "rates[1, 0]", "rates[1, 2]"]]
    assert (np.abs(table["estimate"] - RATES[np.array(MASK)]) < 3 * table["standard error"]).all()


def test_expected_jumps_and_times_are_those_of_integrals(panel, maximum):
    """The integrals of P(u) P(t - u) by Van Loan's blocks, summed over the moves of all sequences."""
    model = maximum.model
    problem, rates = model.problem(**panel), model.values["rates"]
    marginals = problem.marginals({name: table.unsqueeze(0) for name, table in model.values.items()})
    jumps, times = model.dynamics.expected_path(marginals, {"rates": rates.unsqueeze(0)}, problem.series.drive)
    q, pairs, gaps = generator_of(rates).numpy(), marginals.transition[0].numpy(), panel["dt"][:, 1:].numpy()
    expected = np.zeros((3, 3))
    for gap in np.unique(gaps):
        counts = pairs[gaps == gap].sum(0)
        moves = expm(q * gap)
        ratio = np.divide(counts, moves, where=counts > 0, out=np.zeros_like(counts))
        for i, j in itertools.product(range(3), repeat=2):
            unit = np.zeros((3, 3))
            unit[i, j] = 1.0
            block = np.block([[q, unit], [np.zeros((3, 3)), q]])
            expected[i, j] += (ratio * expm(block * gap)[:3, 3:]).sum()
    np.testing.assert_allclose(times[0], expected.diagonal(), rtol=1e-10)
    np.testing.assert_allclose(jumps[0], expected * rates.numpy(), rtol=1e-10)
    np.testing.assert_allclose(times.sum(), gaps.sum(), rtol=1e-12)


def test_an_m_step_with_a_prior_counts_its_jumps_and_times(panel):
    prior = {"rates_shape": torch.full((3, 3), 3.0), "rates_time": torch.full((3, 3), 5.0)}
    fit = of_panel(panel, prior=prior, max_steps=200)
    model = fit.model
    problem = model.problem(**panel)
    marginals = problem.marginals({name: table.unsqueeze(0) for name, table in model.values.items()})
    jumps, times = model.dynamics.expected_path(
        marginals, {"rates": model.values["rates"].unsqueeze(0)}, problem.series.drive
    )
    expected = torch.where(torch.tensor(MASK), (jumps[0] + 2) / (times[0].unsqueeze(-1) + 5), 0.0)
    assert_close(model.values["rates"], expected, rtol=1e-6, atol=1e-9)


def test_known_rates_stay(panel):
    fixed = torch.full((3, 3), torch.nan).double()
    fixed[0, 1] = 0.7
    model = sh.SwitchingSSM(sh.ContinuousMarkov(3, mask=MASK, absorbing=[2]), sh.Categorical(3))
    fit = model.fit(**panel, fixed={"rates": fixed, "probs": torch.eye(3)}, restarts=1, max_steps=20, progress=False)
    assert float(fit.values["rates"][0, 1]) == 0.7
    assert fit.n_parameters == 3 + 2
    assert fit.summary().parameters.loc["rates[0, 1]", "standard error"] != 0.7


def test_tables_and_figures_of_a_fit(maximum):
    table = maximum.sojourn(0.95)
    exits = maximum.values["rates"].sum(-1)
    np.testing.assert_allclose(table["estimate"], 1 / exits)
    assert (table["lower"][:2] < table["estimate"][:2]).all()
    assert table["standard error"].isna().tolist() == [False, False, True]
    names = list(maximum.summary().parameters.index)
    assert [name for name in names if name.startswith("rates")] == [
        "rates[0, 1]",
        "rates[0, 2]",
        "rates[1, 0]",
        "rates[1, 2]",
    ]
    assert_close(maximum.model.durations(maximum.series), 1 / exits)
    figure = maximum.plot_transitions()
    lines = figure.axes[0].lines
    np.testing.assert_allclose(lines[1].get_ydata()[-1], maximum.model.transition_table(lines[1].get_xdata()[-1])[0, 1])
    assert len(maximum.plot_transitions([0.0, 1.0, 3.0]).axes[0].lines[0].get_xdata()) == 3


def test_samplers_take_rates(panel):
    few = {"x": panel["x"][:10], "dt": panel["dt"][:10]}
    fit = of_panel(few, method="svi", max_steps=3, tol=1e-6)
    assert fit.posterior.interval(0.9, n=50, correct=False).lower["rates"].shape == (3, 3)
    assert not bool(fit.posterior.sample(5)["rates"][:, ~torch.tensor(MASK)].any())


@pytest.mark.slow
def test_tables_and_figures_of_a_posterior_have_its_spread(panel):
    few = {"x": panel["x"][:10], "dt": panel["dt"][:10]}
    fit = of_panel(few, method="svi", max_steps=3, tol=1e-6)
    table = fit.sojourn()
    stays = 1 / fit.posterior.refined.sample(10_000)["rates"].sum(-1)[:, :2]
    np.testing.assert_allclose(table["lower"][:2], np.quantile(stays, 0.05, axis=0), rtol=1e-2)
    np.testing.assert_allclose(table["standard error"][:2], stays.std(0), rtol=1e-6)
    vertices = fit.plot_transitions([0.0, 1.0]).axes[0].collections[0].get_paths()[0].vertices
    at_one = vertices[vertices[:, 0] == 1.0, 1]
    drawn = fit.posterior.sample(500, seed=0)["rates"]
    stays = fit.model.dynamics.transition_table({"rates": drawn}, [1.0])[:, 0, 0, 0]
    np.testing.assert_allclose([at_one.min(), at_one.max()], np.quantile(stays, [0.05, 0.95]), rtol=1e-6)


def test_the_prior_of_rates_is_that_of_gammas():
    model = sh.SwitchingSSM(sh.ContinuousMarkov(3, mask=MASK, absorbing=[2], rate_prior=(2.0, 3.0)), sh.Poisson())
    trace = pyro.poutine.trace(model).get_trace(n_steps=2)
    rates = trace.nodes["rates"]["value"]
    free = torch.tensor(MASK)
    gamma = torch.distributions.Gamma(torch.tensor(2.0).double(), 3.0)
    assert not bool(rates[~free].any())
    trace.compute_log_prob()
    assert_close(trace.nodes["rates"]["log_prob_sum"], gamma.log_prob(rates[free].double()).sum())


def test_an_unordered_fit_with_emissions_recovers_its_rates():
    """Of two states whose levels overlap little, at gaps of their own; the states are ordered by location."""
    truth = sh.SwitchingSSM(sh.ContinuousMarkov(2), sh.Normal(1)).with_values(
        initial_probs=[0.5, 0.5], rates=[[0, 0.5], [1.0, 0]], loc=[[0.0], [5.0]], scale=[[1.0], [1.0]]
    )
    dt = torch.rand(60, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    lengths = torch.tensor([10, 3] * 30)
    x = truth.simulate(10, (60,), dt=dt, seed=0).x
    model = sh.SwitchingSSM(sh.ContinuousMarkov(2), sh.Normal(1))
    fit = model.fit(x, dt=dt, lengths=lengths, restarts=1, max_steps=30, progress=False)
    np.testing.assert_allclose(fit.values["loc"].flatten(), [0.0, 5.0], atol=0.4)
    np.testing.assert_allclose(fit.values["rates"], truth.values["rates"], atol=0.3)
    with pytest.raises(
        TypeError, match=r"dynamics: its jumps between two steps are not seen, so ContinuousMarkov has no"
    ):
        model.fit(x, "vmp", dt=dt, progress=False)
    with pytest.raises(TypeError, match="message passing does not support ContinuousMarkov"):
        model.dynamics.factors(fit.series, None, False)
    with pytest.raises(TypeError, match="message passing does not support ContinuousMarkov"):
        model.dynamics.paths(fit.series, (), False, False)
    with pytest.raises(TypeError, match="ContinuousMarkov has no counts"):
        model.dynamics.counts(fit.model.chain(x, dt=dt, lengths=lengths).marginals(), torch.Size())


def test_rates_of_subjects_are_those_of_their_sequences(panel):
    series = {"x": panel["x"][:6], "dt": panel["dt"][:6]}
    model = sh.SwitchingSSM(sh.ContinuousMarkov(3, mask=MASK, absorbing=[2]), sh.Categorical(3))
    fit = model.fit(**series, pooled={"dynamics": "none"}, restarts=1, max_steps=3, progress=False)
    with pytest.raises(TypeError, match=r"model: got .* with 6 subjects, expected a SwitchingSSM of ContinuousMarkov"):
        fit.sojourn()
    one = fit.model.of("1")
    expected = one.log_evidence(series["x"][1], dt=series["dt"][1])
    assert_close(fit.log_evidence()[1], expected)


def test_a_model_is_the_same_after_a_file(tmp_path):
    model = model_of(exact=[2])
    model.save(tmp_path / "model")
    again = sh.load(tmp_path / "model")
    assert again.dynamics == model.dynamics
    assert_close(again.values, model.values)


# ---- inputs of rates -------------------------------------------------------------------------------------------------

WEIGHT = numbers(3, 3, 2, seed=3) * torch.tensor(RATES > 0).unsqueeze(-1)
DRIVE = numbers(2, 4, 2, seed=4)


def driven(**options) -> sh.SwitchingSSM:
    model = sh.SwitchingSSM(sh.ContinuousMarkov(3, absorbing=[2], inputs=2, **options), sh.Normal(1))
    return model.with_values(
        initial_probs=START, rates=RATES, rates_weights=WEIGHT, loc=[[m] for m in LOC], scale=[[1.0]] * 3
    )


def at_inputs(inputs) -> np.ndarray:
    return generator(np.where(RATES > 0, RATES, 0.0) * np.exp(WEIGHT.numpy() @ np.asarray(inputs)))


@pytest.mark.parametrize("timed", [True, False])
def test_inputs_change_rates_in_the_gap_before_their_step(timed):
    given = {"inputs": DRIVE} | ({"time": TIMES} if timed else {})
    model, x = driven(), X.unsqueeze(-1)
    found = model.log_evidence(x, **given)
    for b in range(2):
        belief, total = np.array(START), 1.0
        for t in range(4):
            gap = float(TIMES[b, t] - TIMES[b, t - 1]) if timed else 1.0
            belief = belief if t == 0 else belief @ expm(at_inputs(DRIVE[b, t]) * gap)
            belief = belief * norm.pdf(float(X[b, t]), LOC)
            total, belief = total * belief.sum(), belief / belief.sum()
        np.testing.assert_allclose(found[b], np.log(total), rtol=1e-12)
    assert_close(enumerated_by_pyro(model, x, **given), found.sum(), rtol=1e-10, atol=0)


def test_inputs_beside_exact_entries_are_summed_over_paths():
    model, x, given = driven(exact=[2]), X.unsqueeze(-1), {"inputs": DRIVE, "time": TIMES, "states": KNOWN}
    assert_close(enumerated_by_pyro(model, x, **given), model.log_evidence(x, **given).sum(), rtol=1e-10, atol=0)
    ahead = driven().forecast(X[0], 1, inputs=torch.cat([DRIVE[0], DRIVE[1, :1]]), dt=[0, 0.3, 1.7, 0.5, 2.0]).state
    last = driven().filter(X[0], inputs=DRIVE[0], dt=[0, 0.3, 1.7, 0.5]).state[-1].numpy()
    np.testing.assert_allclose(ahead[0], last @ expm(2.0 * at_inputs(DRIVE[1, 0])), rtol=1e-10)
    exits = np.stack([-at_inputs(row).diagonal() for row in DRIVE[0]]).mean(0)
    np.testing.assert_allclose(driven().durations(X[0], inputs=DRIVE[0])[:2], 1 / exits[:2])


@pytest.mark.parametrize("prior", [slow(None), "weak"])
def test_em_with_inputs_rises_to_a_stationary_point(panel, prior):
    dynamics = sh.ContinuousMarkov(3, mask=MASK, absorbing=[2], inputs=["age"])
    truth = sh.SwitchingSSM(dynamics, sh.Categorical(3)).with_values(
        initial_probs=[0.8, 0.2, 0.0], rates=RATES, rates_weights=WEIGHT[..., :1], probs=torch.eye(3).double()
    )
    given = {"dt": panel["dt"], "inputs": {"age": (numbers(150, 1, seed=5) > 0).double().expand(150, 8)}}
    x = truth.simulate(8, (150,), **given, seed=1).x
    model = sh.SwitchingSSM(dynamics, sh.Categorical(3))
    fixed, options = {"probs": torch.eye(3)}, {"restarts": 1, "max_steps": 150, "tol": 1e-13, "progress": False}
    fit = model.fit(x, **given, fixed=fixed, prior=prior, **options)
    assert bool((fit.objective.diff() > -1e-9).all())
    problem = fit.model.problem(x, **given)
    frame = frame_of(problem)  # the prior is that of rates at the mean inputs
    problem, at = problem.in_frame(frame), frame.into(fit.values)
    values = {name: table.clone().requires_grad_(name.startswith("rates")) for name, table in at.items()}
    height = problem.evidence(values).sum()
    if prior is not None:
        density = {s.name: s for s in problem.dynamics.sites(problem.prior)}
        height = height + sum(density[name].distribution(values).log_prob(values[name]) for name in SLOPED)
    slopes = torch.autograd.grad(height, [values[name] for name in SLOPED])
    for slope in slopes:
        assert float(slope[torch.tensor(MASK)].abs().max()) < 1e-3
    table = fit.summary().parameters.loc[[f"rates_weights[{i}, {j}, age]" for i, j in ((0, 1), (1, 0), (1, 2))]]
    at = WEIGHT[[0, 1, 1], [1, 0, 2], 0].numpy()
    assert (np.abs(table["estimate"] - at) < 3.5 * table["standard error"]).all()
    np.testing.assert_allclose(fit.sojourn()["estimate"], 1 / fit.values["rates"].sum(-1))


SLOPED = "rates", "rates_weights"

# ---- bad input -------------------------------------------------------------------------------------------------------

BAD = {
    "no exit": ({"mask": [[0, 1], [0, 0]]}, r"mask: no jump leaves state 1; .* give absorbing=\[1\]"),
    "no jump at all": ({"mask": np.zeros((2, 2), bool)}, "mask: no jump leaves state 0"),
    "an exit": (
        {"mask": [[0, 1], [1, 0]], "absorbing": [1]},
        "absorbing: got state 1, but mask allows jumps out of it",
    ),
    "not absorbing": ({"exact": [1]}, "exact: got state 1, which is not absorbing"),
    "no such state": ({"absorbing": [2]}, "absorbing: got state 2, expected states from 0 to 1"),
    "shape": ({"mask": np.ones((3, 3), bool)}, r"mask: got shape \(3, 3\), expected \(2, 2\)"),
    "start": ({"initial": [0.5, 0.6]}, "initial: got rows that are not probabilities"),
    "stationary": ({"initial": "stationary"}, "initial: "),
    "prior": ({"rate_prior": (1.0, -1.0)}, "rate_prior: got .* expected positive"),
    "prior of one number": ({"rate_prior": 1.0}, "rate_prior: got 1.0, expected a shape and a rate"),
}


@pytest.mark.parametrize("name", BAD)
def test_dynamics_that_cannot_be_are_refused(name):
    options, message = BAD[name]
    if "mask" in options:
        options = options | {"mask": np.array(options["mask"], bool)}
    with pytest.raises(ValueError, match=message):
        sh.ContinuousMarkov(2, **options)


def test_a_mask_has_truth_values():
    with pytest.raises(TypeError, match=r"mask: got torch\.\w+, expected True where a jump is possible"):
        sh.ContinuousMarkov(2, mask=[[0, 1], [1, 0]])


WRONG = {
    "positive diagonal": (
        [[0.4, 0.4], [0.1, -0.1]],
        r"rates: got 0.4 on the diagonal at \[0, 0\], expected 0, or .* -0.4",
    ),
    "another diagonal": ([[-0.3, 0.4], [0.1, -0.1]], r"rates: got -0.3 on the diagonal"),
    "negative rate": ([[0, -0.4], [0.1, 0]], r"rates: got -0.4 at \[0, 1\], expected a number of at least 0"),
    "impossible": ([[0, 0.4], [0.1, 0]], r"rates: got 0.1 at \[1, 0\], expected 0: mask excludes this jump"),
    "shape": ([[0.4, 0.1, 0.0]] * 2, r"rates: got shape \(2, 3\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rates_that_cannot_be_are_refused(name):
    table, message = WRONG[name]
    dynamics = sh.ContinuousMarkov(2, absorbing=[1]) if name == "impossible" else sh.ContinuousMarkov(2)
    with pytest.raises(ValueError, match=message):
        sh.SwitchingSSM(dynamics, sh.Poisson()).with_values(initial_probs=[0.5, 0.5], rates=table, rate=[[1.0], [2.0]])


TIMES_BAD = {
    "back": ({"time": [0, 2, 1, 3]}, "time: goes back at step 2, where 1 follows 2"),
    "repeat": ({"time": [0, 1, 1, 3]}, "time: repeats at step 2, where 1 follows 1"),
    "missing": ({"time": [0, float("nan"), 1, 3]}, "time: got nan at step 1, expected the time of the step"),
    "both": ({"time": [0, 1, 2, 3], "dt": [1, 1, 1, 1]}, "time: was given with dt"),
    "zero gap": ({"dt": [0, 1, 0, 3]}, "dt: got 0 at step 2, expected .* above 0"),
    "negative gap": ({"dt": [0, 1, -1, 3]}, "dt: got -1 at step 2"),
    "shape": ({"dt": [0, 1]}, r"dt: got shape \(2,\), expected \(4,\)"),
    "shape of times": ({"time": [0, 1]}, r"time: got shape \(2,\), expected \(4,\)"),
    "more times": ({"time": [0, 1, 2, 3, 4]}, r"time: got shape \(5,\), expected \(4,\)"),
    "one time": ({"time": 3.0}, r"time: got shape \(\), expected \(4,\)"),
    "one gap": ({"dt": 3.0}, r"dt: got shape \(\), expected \(4,\)"),
}


@pytest.mark.parametrize("name", TIMES_BAD)
def test_times_that_cannot_be_are_refused(name):
    given, message = TIMES_BAD[name]
    with pytest.raises(ValueError, match=message):
        model_of().log_evidence(X[0], **given)


def test_errors_name_the_sequence():
    with pytest.raises(ValueError, match="time: repeats at step 3 of sequence 1"):
        model_of().log_evidence(X.unsqueeze(-1), time=[[0, 1, 2, 3], [0, 1, 2, 2]])
    with pytest.raises(ValueError, match="dt: got -2 at step 3 of sequence 1"):
        model_of().log_evidence(X.unsqueeze(-1), dt=[[0, 1, 2, 3], [0, 1, 2, -2]])


@pytest.mark.parametrize("n", [1, 30])
def test_sequences_of_one_visit_have_no_gap(n):
    x = np.linspace(-1, 1, n)[:, None, None]
    beside = {"inputs": x + 0.5, "dt": np.ones((n, 1))}
    model = sh.SwitchingSSM(sh.ContinuousMarkov(2, inputs=1), sh.Normal(1))
    known = model.with_values(
        initial_probs=[0.4, 0.6],
        rates=[[0, 1], [2, 0]],
        rates_weights=[[[0.0], [1.0]], [[1.0], [0.0]]],
        loc=[[0.0], [1.0]],
        scale=[[1.0], [1.0]],
    )
    mixture = 0.4 * norm.pdf(x, 0, 1) + 0.6 * norm.pdf(x, 1, 1)
    np.testing.assert_allclose(known.log_evidence(x, **beside), np.log(mixture).ravel(), rtol=1e-12)
    if n > 1:
        fit = model.fit(x, **beside, restarts=1, max_steps=3, progress=False)
        assert np.isfinite(fit.loglik)


def test_nothing_follows_an_absorbing_state():
    seen = sh.SwitchingSSM(sh.ContinuousMarkov(3, absorbing=[2]), sh.Categorical(3)).with_values(
        initial_probs=START, rates=RATES, probs=torch.eye(3).double()
    )
    x = torch.tensor([[0.0, 1, 2, 2], [0, 2, 1, 1]], dtype=torch.float64).unsqueeze(-1)
    with pytest.raises(ValueError, match="step 2 of sequence 1"):
        seen.log_evidence(x)
    with pytest.raises(ValueError, match="states: got 1 at step 2 of sequence 1, but no possible path leads there"):
        seen.log_evidence(x, states=x.squeeze(-1))


def test_exact_entries_have_to_be_known():
    with pytest.raises(ValueError, match="states: got none, but entries into state 2 are exact"):
        model_of(exact=[2]).log_evidence(X[0], time=TIMES[0])


def test_no_entry_at_all_may_be_known():
    model, unknown = model_of(exact=[2]), [-1] * len(X[0])
    other = model_of().log_evidence(X[0], time=TIMES[0])  # log p(x) is then that of entries at any time
    torch.testing.assert_close(model.log_evidence(X[0], time=TIMES[0], states=unknown), other)
    series = model.read(X[0], time=TIMES[0], states=unknown)
    assert model.forecast(series, 1, dt=[1.0]).state.shape == (1, 3)
    with pytest.raises(ValueError, match="time: was given, but a Series has gaps, not times; give dt"):
        model.forecast(series, 1, time=[99.0])


def test_other_dynamics_have_no_times_between_steps():
    markov = sh.SwitchingSSM(sh.Markov(2), sh.Poisson()).fit([0, 1, 9, 8], restarts=1, max_steps=2, progress=False)
    with pytest.raises(TypeError, match="dynamics: Markov dynamics have no continuous time"):
        markov.model.transition_table(1.0)
    with pytest.raises(TypeError, match=r"model: got .*, expected a SwitchingSSM of ContinuousMarkov dynamics"):
        markov.sojourn()
    with pytest.raises(ValueError, match=r"times: got \[-1.0\], expected numbers of at least 0"):
        model_of().transition_table([-1.0])


def test_rates_without_a_maximum_are_said():
    """Where states alternate from step to step, faster rates are always more likely."""
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, quiet = sh.SwitchingSSM(sh.ContinuousMarkov(2), sh.Normal(1)), {"restarts": 1, "progress": False}
    with pytest.warns(UserWarning, match=r"rates: after the shortest gap \(1\) .* has no maximum .*prior='weak'"):
        model.fit(torch.tensor([0.0, 6.0] * 20) + 0.1 * noise, prior=None, **quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(torch.tensor([0.0, 6.0, 0.0, 6.0]).repeat_interleave(10) + 0.1 * noise, prior=None, **quiet)
