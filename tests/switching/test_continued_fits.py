"""Fits that go on with new batches: stepwise EM by plain sums, the posterior as prior, forgetting, memory, refusals."""

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.models import CONJUGATE, drive, random_model
from samplehold.inference.numerics.ranks import Ranks
from samplehold.switching.fitting import EM, ChainGraph, ChunkedVMP, Units, chunked, engine_of
from samplehold.switching.fitting.chain_graph import Earlier
from torch import Tensor
from torch.testing import assert_close

QUICK = {"restarts": 1, "progress": False}
TRUTH = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.9, 0.1], [0.2, 0.8]], "scale": [[1.0], [1.0]]}
CLOSED = [kind for kind in CONJUGATE if kind[0] in ("copy", "markov")]  # with an M-step in closed form


def model() -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))


def simulated(n_steps: int, n: int, seed: int = 0, locs: tuple[float, float] = (0.0, 4.0)) -> Tensor:
    truth = model().with_values(TRUTH | {"loc": [[loc] for loc in locs]})
    return torch.tensor(truth.simulate(n_steps, (n,), seed=seed).x.tolist(), dtype=torch.float64)


def small_fit(method: str = "em", x: Any = None, **keywords: Any) -> Any:
    return model().fit(simulated(12, 4) if x is None else x, method, **QUICK | keywords)


def data_of(dynamics: str, emission: str, seed: int = 0) -> tuple[sh.SwitchingSSM, Tensor, dict[str, Any]]:
    """A model with values, data drawn from it with values missing, and what the model reads beside them."""
    made, keywords = random_model(dynamics, emission, seed=2), drive(dynamics, (3,), 12, seed=seed)
    x = made.simulate(12, (3,), seed=seed, **keywords).x
    x[0, 2, 0] = x[1, 3:5] = torch.nan
    return made, x, keywords | {"lengths": torch.tensor([12, 5, 1])}


# ---- stepwise EM -----------------------------------------------------------------------------------------------------


def sums_of(x: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
    """Expected counts of first states [K], of moves [K K], of steps, sums and squares [3 K], and the number of steps,
    by enumeration of all paths of each sequence; as one vector."""
    k, total, loc, scale = 2, 0.0, values["loc"].squeeze(-1), values["scale"].squeeze(-1)
    for row in x:
        weights, counts = [], []
        for path in itertools.product(range(k), repeat=len(row)):
            first, moves, moments = np.zeros(k), np.zeros((k, k)), np.zeros((3, k))
            first[path[0]] = 1
            density = values["initial_probs"][path[0]]
            for old, new in itertools.pairwise(path):
                moves[old, new] += 1
                density *= values["transition_probs"][old, new]
            for state, number in zip(path, row, strict=True):
                density *= np.exp(-0.5 * ((number - loc[state]) / scale[state]) ** 2) / scale[state]
                moments[:, state] += 1, number, number**2
            weights.append(density)
            counts.append(np.concatenate([first, moves.flatten(), moments.flatten(), [len(row)]]))
        total = total + np.array(weights) @ np.array(counts) / sum(weights)
    return np.asarray(total)


def mode_of(sums: np.ndarray, prior: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    first, moves, (steps, of_x, of_squares) = sums[:2], sums[2:6].reshape(2, 2), sums[6:12].reshape(3, 2)
    loc0, kappa0, shape, rate = (prior[name].squeeze(-1) for name in ("loc", "count", "shape", "rate"))
    start, rows = prior["initial_concentration"] + first - 1, prior["transition_concentration"] + moves - 1
    kappa = kappa0 + steps
    loc = (kappa0 * loc0 + of_x) / kappa
    rate = rate + (kappa0 * loc0**2 + of_squares - kappa * loc**2) / 2
    return {
        "initial_probs": start / start.sum(),
        "transition_probs": rows / rows.sum(-1, keepdims=True),
        "loc": loc[:, None],
        "scale": np.sqrt(rate / (shape + steps / 2 - 0.5))[:, None],
    }


@pytest.mark.parametrize(("forgetting", "exponent"), [(1.0, 1.0), (0.8, 1.0), (1.0, 0.6), (0.7, 0.8)])
def test_stepwise_em_equals_plain_sums_over_all_paths(forgetting, exponent):
    x = simulated(4, 9)
    fit = small_fit(x=x[:3], max_steps=3)
    prior = {name: table.numpy() for name, table in fit.model.prior.items()}
    values = {name: table.numpy() for name, table in fit.model.describe().items()}
    sums = sums_of(x[:3].squeeze(-1).numpy(), values)
    n, mean = sums[-1], sums / sums[-1]
    for batch in (x[3:5], x[5:]):
        fit = fit.update(batch, forgetting=forgetting, exponent=exponent)
        new = sums_of(batch.squeeze(-1).numpy(), values)
        n = forgetting * n + new[-1]
        step = (new[-1] / n) ** exponent
        mean = (1 - step) * mean + step * new / new[-1]
        values = mode_of(n * mean, prior)
        for name, table in fit.model.describe().items():
            np.testing.assert_allclose(table.numpy(), values[name], rtol=1e-10, atol=1e-12, err_msg=name)
    assert f"{step:.3g}" in fit.reason


@pytest.mark.few(4)
@pytest.mark.parametrize(("dynamics", "emission"), CLOSED)
def test_an_update_that_forgets_all_earlier_data_is_a_step_of_em(dynamics, emission):
    start, x, keywords = data_of(dynamics, emission)
    fit = start.fit(x, start=start, max_steps=1, prior=start.prior, **QUICK, **keywords)
    _, batch, keywords = data_of(dynamics, emission, seed=1)
    em = EM(start.problem(batch, **keywords), {name: value.unsqueeze(0) for name, value in fit.values.items()})
    em.run(1)
    after = fit.update(batch, forgetting=1e-13, **keywords)
    for name, value in em.tables.items():
        assert_close(after.values[name], value[0], rtol=1e-8, atol=1e-9)
    expected = fit.model.log_evidence(batch, **keywords).sum()
    assert_close(after.objective[-1], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("prior", ["weak", None])
def test_updates_with_the_same_data_end_at_the_mode_of_data_of_that_weight(prior):
    """With forgetting 1/2 equal batches count twice."""
    x, others = simulated(15, 4, locs=(0.0, 5.0)), simulated(15, 4, seed=1)
    first = small_fit(x=others, prior=prior)
    kept = {} if prior is None else first.model.prior
    fit = first
    for _ in range(45):
        fit = fit.update(x, forgetting=0.5)
    best = model().fit(x, start=fit, weights=[2.0] * 4, prior=kept or None, tol=1e-14, max_steps=2000, **QUICK)
    assert_close(fit.values, best.values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("passes", [5, slow(40)])
def test_passes_over_batches_end_near_the_maximum_of_the_likelihood(passes):
    """Means of batches vary about that of all data. The steps average over about 2 / step of them, so that each
    parameter loses about a quarter of step times the number of batches, in nats."""
    x, exponent = simulated(20, 24), 0.7
    fit = small_fit(x=x[:4], prior=None)
    best = model().fit(x, prior=None, start=fit, tol=1e-12, **QUICK)
    first = best.loglik - float(fit.model.log_evidence(x).sum())
    for batch in x.split(4) * passes:
        fit = fit.update(batch, exponent=exponent)
    step = (passes * 6 + 1) ** -exponent
    gap = best.loglik - float(fit.model.log_evidence(x).sum())
    assert -1e-6 <= gap <= fit.n_parameters * step * 6 / 4 < first
    assert f"{step:.3g}" in fit.reason


def test_known_parameters_stay_and_the_others_take_their_step():
    x, fixed = simulated(12, 8), {"loc": [[0.0], [4.0]], "transition_probs": [[0.9, 0.1], [float("nan")] * 2]}
    for method in ("em", "vmp"):
        fit = small_fit(method, x=x[:4], fixed=fixed)
        after = fit.update(x[4:])
        assert after.values["loc"].tolist() == fixed["loc"]
        assert_close(after.values["transition_probs"][0], torch.tensor([0.9, 0.1]).double())
        assert not torch.equal(after.values["transition_probs"][1], fit.values["transition_probs"][1])
        assert after.fixed == fit.fixed


# ---- message passing -------------------------------------------------------------------------------------------------


def at_prior(fit: Any) -> Any:
    """The fit with the prior as its q."""
    posterior = fit.posterior
    graph = ChainGraph.of(posterior.units.problem(posterior.problem))
    return replace(fit, posterior=replace(posterior, blocks=graph.priors))


def test_an_update_of_the_prior_with_all_data_is_the_fit_of_all_data():
    x = simulated(12, 6, locs=(0.0, 30.0))
    made = model().with_prior({"loc": [[0.0], [30.0]], "count": [[0.1], [0.1]]})
    fit = made.fit(x, "vmp", start={"loc": [[0.0], [30.0]]}, tol=0.0, **QUICK)
    again = at_prior(fit).update(x, tol=0.0)
    for name, eta in fit.posterior.blocks.items():
        assert_close(again.posterior.blocks[name], eta, rtol=1e-10, atol=1e-10)
    assert_close(again.values, fit.values, rtol=1e-10, atol=1e-10)
    assert_close(again.objective[-1], fit.objective[-1], rtol=1e-12, atol=1e-10)


def test_batches_in_turn_are_near_the_fit_of_all_of_them():
    x = simulated(20, 40)
    whole, fit = small_fit("vmp", x=x), small_fit("vmp", x=x[:10])
    apart = (fit.values["loc"] - whole.values["loc"]).abs().max()
    for batch in x[10:].split(10):
        fit = fit.update(batch)
    draws = whole.posterior.sample(500)["loc"].std(0)
    assert bool(((fit.values["loc"] - whole.values["loc"]).abs() < draws / 2).all())
    assert (fit.values["loc"] - whole.values["loc"]).abs().max() < apart
    after = fit.posterior.sample(500)["loc"].std(0)
    assert bool(((after / draws).log().abs() < 0.2).all())  # it is as certain
    assert fit.posterior.refined is fit.posterior
    assert_close(fit.posterior.smooth(x).state, fit.model.smooth(x).state, rtol=0, atol=0.05)


@pytest.mark.few(4)
@pytest.mark.parametrize(("dynamics", "emission"), CONJUGATE)
def test_the_prior_of_a_batch_is_that_of_the_model_to_one_power_and_the_earlier_q_to_the_other(dynamics, emission):
    """Up to a constant: so differences of the bound are means. The earlier q has no divergence from itself."""
    made, x, keywords = data_of(dynamics, emission)
    problem = made.problem(x, **keywords)
    plain = ChainGraph.of(problem)
    engine = engine_of(plain, plain.start(1))
    engine.run(2, 0.0)
    q = {name: engine.blocks[name].eta for name in plain.families}
    engine.run(2, 0.0)
    later = {name: engine.blocks[name].eta for name in plain.families}
    earlier = {name: eta[0] for name, eta in q.items()}

    def rise(graph: ChainGraph) -> Tensor:
        return engine_of(graph, later).elbo() - engine_of(graph, q).elbo()

    mixed, whole = (ChainGraph.of(problem, earlier=Earlier(earlier, power)) for power in (0.3, 1.0))
    assert_close(rise(mixed), 0.7 * rise(plain) + 0.3 * rise(whole), rtol=1e-8, atol=1e-8)
    assert_close(engine_of(whole, q).elbo(), engine_of(whole, q).normalizer("paths"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dynamics", ["markov", "inputs"])
def test_an_update_in_chunks_is_the_same(dynamics, monkeypatch):
    made, x, keywords = data_of(dynamics, "normal")
    fit = made.fit(x, "vmp", start=made, max_steps=3, **QUICK, **keywords)
    _, batch, keywords = data_of(dynamics, "normal", seed=1)
    whole = fit.update(batch, forgetting=0.7, max_steps=8, **keywords)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 24)
    graph = ChainGraph.of(fit.posterior.units.problem(fit.posterior.problem))
    assert isinstance(engine_of(graph, graph.start(1)), ChunkedVMP)
    parts = fit.update(batch, forgetting=0.7, max_steps=8, **keywords)
    assert_close(parts.values, whole.values, rtol=1e-9, atol=1e-9)
    assert_close(parts.objective, whole.objective, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["MAX_NUMBERS", "LONG"])  # of a chunk; of a sequence that is not cut
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_an_update_in_chunks_or_stretches_is_the_same(method, name, monkeypatch):
    fit, batch = small_fit(method), simulated(30, 3, seed=1)
    whole = fit.update(batch)
    monkeypatch.setattr(chunked, name, 24)
    if name == "LONG":
        monkeypatch.setattr(chunked, "MAX_NUMBERS", 24)
    parts = fit.update(batch)
    assert_close(parts.values, whole.values, rtol=1e-8, atol=1e-8)
    assert_close(parts.objective[-1], whole.objective[-1], rtol=1e-9, atol=1e-9)


# ---- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "seed"),
    [("em", 0), ("vmp", 0), *(slow(method, seed) for method in ("em", "vmp") for seed in range(1, 5))],
)
def test_forgetting_follows_parameters_that_drift(method, seed):
    """Locations rise by 3 while batches come in, of which the last two count most; the fit of all is between."""
    batches = [simulated(20, 4, seed=10 * seed + i, locs=(i / 3, 5 + i / 3)) for i in range(10)]
    fit = still = small_fit(method, x=batches[0])
    for batch in batches[1:]:
        fit, still = fit.update(batch, forgetting=0.5), still.update(batch)
    whole = small_fit(method, x=torch.cat(batches))
    end = torch.tensor([[3.0], [8.0]]).double()
    error, *others = (float((one.values["loc"] - end).abs().max()) for one in (fit, still, whole))
    assert error < min(others) / 2


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_continued_fit_does_not_grow_and_the_old_one_does_not_change(method):
    batch = simulated(12, 4, seed=1)
    fit = small_fit(method)
    before = {name: value.clone() for name, value in fit.values.items()}
    later, sizes = fit, []
    for _ in range(8):
        later = later.update(batch, max_steps=2) if method == "vmp" else later.update(batch)
        sizes.append(len(pickle.dumps(later)))
    assert max(sizes[1:]) - min(sizes[1:]) < 100, sizes  # numbers of steps have one digit more
    assert (later.updates, fit.updates) == (8, 0)
    assert_close(fit.values, before, rtol=0, atol=0)
    assert fit.running is None


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_sequences_without_observations_say_nothing(method):
    fit, batch = small_fit(method), simulated(12, 3, seed=1)
    nothing = torch.full_like(batch, torch.nan)
    assert fit.update(nothing) is fit
    assert fit.update(batch[:0]) is fit
    alone, beside = fit.update(batch), fit.update(torch.cat([nothing, batch]))
    assert_close(beside.values, alone.values, rtol=1e-12, atol=1e-12)
    unweighted = fit.update(torch.cat([batch + 9, batch]), weights=[0.0] * 3 + [1.0] * 3)
    assert_close(unweighted.values, alone.values, rtol=1e-12, atol=1e-12)
    few = {"max_steps": 5} if method == "vmp" else {}
    labelled = fit.update(nothing, states=torch.zeros(3, 12, dtype=torch.long), **few)  # known states do
    assert labelled.values["transition_probs"][0, 0] > fit.values["transition_probs"][0, 0]


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_weights_lists_frames_and_labels_are_read_as_in_a_fit(method):
    fit, batch = small_fit(method), simulated(12, 2, seed=1)
    twice = fit.update(torch.cat([batch, batch]))
    assert_close(fit.update(batch, weights=[2.0, 2.0]).values, twice.values, rtol=1e-8, atol=1e-9)
    ragged = fit.update([batch[0], batch[1, :5]])
    lengths = fit.update(batch, lengths=[12, 5])
    assert_close(ragged.values, lengths.values, rtol=1e-9, atol=1e-9)
    frame = fit.update(pd.DataFrame({"y": batch[0].flatten().numpy()}))
    assert_close(frame.values, fit.update(batch[0]).values, rtol=1e-12, atol=1e-12)
    assert list(frame.states().columns) == list(fit.states().columns)
    named = model().fit(batch[0], method, states=["low", *[None] * 10, "high"], **QUICK)
    later = named.update(batch[1], states=["high", *[None] * 11])
    assert later.state_names == ("high", "low")
    last = later.update(batch[0])
    known = last.smooth(batch[0], states=["low", *[None] * 11]).state[0, 1]
    assert float(known) == pytest.approx(1.0, rel=0, abs=1e-12)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_single_precision_fits_go_on_in_double_precision(method):
    x = simulated(12, 8)
    fit, wide = small_fit(method, x=x[:4].float()), small_fit(method, x=x[:4].float().double())
    after, expected = fit.update(x[4:].float()), wide.update(x[4:].float())
    assert after.values["loc"].dtype == torch.float32
    assert expected.values["loc"].dtype == torch.float64
    for name, value in expected.values.items():
        assert_close(after.values[name].double(), value, rtol=2e-3, atol=2e-3)
    offset = small_fit(method, x=x[:4] + 1e6).update(x[4:] + 1e6)
    assert_close(offset.values["loc"] - 1e6, small_fit(method, x=x[:4]).update(x[4:]).values["loc"], rtol=0, atol=1e-4)


def test_units_stay_those_of_the_first_fit():
    fit = small_fit().update(simulated(12, 4, seed=1) + 100)
    assert_close(fit.running.units.about, Units.of(fit.model.emission, small_fit().series).about)
    assert bool((fit.values["loc"] > 20).any())


# ---- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_views_of_a_continued_fit_say_that_they_show_the_last_batch(method, tmp_path):
    batch = simulated(12, 4, seed=1)
    fit = small_fit(method).update(batch)
    text = str(fit.summary())
    assert "continued by update" in " ".join(text.split())
    assert ("standard errors, for which" in " ".join(text.split())) == (method == "em")
    assert "aic" not in text
    assert fit.summary().parameters["standard error"].isna().all() == (method == "em")
    diagnosis = fit.diagnose()
    assert "the last batch" in str(diagnosis)
    assert not {"parameters", "rare states", "boundaries", "durations"} & {line.subject for line in diagnosis.concerns}
    assert_close(torch.tensor(fit.loglik).double(), fit.model.log_evidence(batch).sum())
    assert len(fit.restarts) == len(small_fit(method).restarts)
    fit.save(tmp_path / "model")
    assert_close(sh.load(tmp_path / "model").values, fit.values)
    assert fit.to_arviz(draws=3).posterior_predictive.sizes["draw"] == 3
    for name in ("aic", "bic", "icl"):
        with pytest.raises(ValueError, match=f"{name}: .*continued by update and holds only the last batch"):
            getattr(fit, name)


def test_effects_of_inputs_have_no_bands_after_an_update():
    made = sh.SwitchingSSM(sh.Copy(2), sh.LinearRegression(1, ["dose"]))
    x, inputs = simulated(12, 1)[0], pd.DataFrame({"dose": torch.arange(12.0).numpy()})
    fit = made.fit(x, inputs=inputs, **QUICK).update(x, inputs=inputs)
    assert not any(axis.collections for axis in fit.plot_effect("dose").axes)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "keywords", "error", "words"),
    [
        ("em", {"forgetting": 0.0}, ValueError, "forgetting: got 0.0, .*greater than 0"),
        ("vmp", {"forgetting": 1.2}, ValueError, "forgetting: got 1.2, expected a number above 0 and at most 1"),
        ("em", {"forgetting": "all"}, TypeError, "forgetting: got 'all'"),
        ("em", {"forgetting": float("nan")}, ValueError, "forgetting: got nan"),
        ("em", {"exponent": 0.5}, ValueError, "exponent: got 0.5, .*greater than 0.5"),
        ("em", {"exponent": 1.1}, ValueError, "exponent: got 1.1, expected a number above 0.5 and at most 1"),
        ("vmp", {"exponent": 0.7}, ValueError, "exponent: got 0.7, but message passing has no steps; use forgetting"),
        ("em", {"max_steps": 5}, ValueError, 'max_steps: got 5, but an update by "em" is one step'),
        ("em", {"tol": 1e-3}, ValueError, 'tol: got 0.001, but an update by "em" is one step'),
        ("vmp", {"max_steps": 0}, ValueError, "max_steps: got 0"),
        ("vmp", {"tol": -1.0}, ValueError, "tol: got -1.0"),
        (
            "em",
            {"noise": torch.ones(12)},
            ValueError,
            "noise: was given to update or to its fit, but update does not support it",
        ),
        ("em", {"colour": 1}, TypeError, "read: has no option 'colour'"),
    ],
)
def test_options_out_of_range_or_of_the_other_method_are_refused(method, keywords, error, words):
    with pytest.raises(error, match=words):
        small_fit(method).update(simulated(12, 1)[0], **keywords)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_a_batch_of_other_columns_is_refused(method):
    with pytest.raises(ValueError, match=r"x: got shape .*feature"):
        small_fit(method).update(torch.zeros(2, 12, 3))


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_columns_of_the_fit_in_another_order_are_refused(method):
    x = simulated(12, 1)[0].flatten().numpy()
    frame = pd.DataFrame({"up": x, "down": -x})
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).fit(frame, method, **QUICK)
    with pytest.raises(ValueError, match="x: got the columns down, up, but the fit has up, down; give them"):
        fit.update(frame[["down", "up"]])
    same = fit.update(frame)
    for other in (frame.rename(columns={"up": "rise"}), frame.to_numpy()):
        assert_close(fit.update(other).values, same.values, rtol=0, atol=0)
    with pytest.raises(ValueError, match="got the columns down, up"):
        same.update(frame[["down", "up"]])


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_labels_are_refused_if_the_states_of_the_fit_have_numbers(method):
    with pytest.raises(ValueError, match="states: got label 'high', but the states of this fit have numbers"):
        small_fit(method).update(simulated(12, 1)[0], states=["high", *[None] * 11])


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_observations_whose_squares_are_out_of_range_are_refused(method):
    fit, batch = small_fit(method, x=simulated(12, 4).float()), simulated(12, 1)[0]
    batch[3] = 1e25
    with pytest.raises(ValueError, match=r"x: feature 0 \(x\) reaches 1e\+25, and float32 only represents the squares"):
        fit.update(batch)


def refused(fit: Any, *arguments: Any, match: str, **keywords: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        fit.update(*arguments, **keywords)
    assert "fit all data again" in str(caught.value)


def test_fits_whose_statistics_do_not_add_up_are_refused_with_a_cure():
    x, inputs = simulated(12, 3).abs(), simulated(12, 3, seed=1)
    gamma = sh.SwitchingSSM(sh.Copy(2), sh.Gamma(1)).fit(x, max_steps=2, **QUICK)
    refused(gamma, x, match="emission: Gamma has no conjugate family, which message passing needs, as does update")
    driven = sh.SwitchingSSM(sh.Markov(2, inputs=1), sh.Normal(1))
    by_em = driven.fit(x, inputs=inputs, max_steps=2, **QUICK)
    refused(by_em, x, inputs=inputs, match='no closed form for transition_probs, transition_weights; .*method="vmp"')
    by_vmp = driven.fit(x, "vmp", inputs=inputs, max_steps=2, **QUICK)
    assert by_vmp.update(x, inputs=inputs, max_steps=2).updates == 1
    stationary = sh.SwitchingSSM(sh.Markov(2, initial="stationary"), sh.Normal(1)).fit(x, max_steps=2, **QUICK)
    refused(stationary, x, match="no closed form for transition_probs")
    refused(
        replace(by_vmp, method="svi"), x, match='got a fit by "svi", but only fits by "em" and "vmp" can be updated'
    )


def test_a_fit_of_several_chains_is_refused():
    x = simulated(12, 1)[0]
    layered = sh.LayeredSSM([2, 2], sh.Normal(1)).fit(x, max_steps=2, **QUICK)
    refused(layered, x, match="got a fit of a LayeredSSM, but only fits of a SwitchingSSM can be updated")


def test_a_fit_that_knows_one_share_of_the_data_has_no_number_of_all():
    x = simulated(12, 4)
    fit = replace(small_fit(x=x), shared=True)  # as in one of several processes, after their group has ended
    assert not fit.has_all
    refused(
        fit, x, match='got a fit by "em" whose data several processes shared, but this process has no statistics of'
    )
    for name in ("aic", "bic", "icl"):
        with pytest.raises(ValueError, match=f"{name}: several processes shared .*sum of fit.loglik over"):
            getattr(fit, name)
    text = " ".join(str(fit.summary()).split())
    assert "Several processes shared the data." in text
    assert "no standard errors, for which all data are needed" in text
    assert fit.summary().parameters["standard error"].isna().all()
    assert "those of this process of several" in str(fit.diagnose())
    assert replace(small_fit("vmp", x=x), shared=True).update(x).updates == 1


def test_processes_that_share_data_do_not_update(monkeypatch):
    fit = small_fit()
    monkeypatch.setattr(Ranks, "alone", property(lambda self: False))
    refused(fit, simulated(12, 1), match="group: update runs in one process")


@pytest.mark.slow
def test_fits_of_other_models_and_by_other_methods_are_refused_with_a_cure():
    x = simulated(12, 3)
    linear = sh.LinearSSM(sh.LocalLevel()).fit(x[0])
    refused(linear, x[0], match="got a fit of a LinearSSM, but only fits of a SwitchingSSM can be updated")
    subjects = model().fit(x, pooled="none", max_steps=2, **QUICK)
    refused(subjects, x, match="got a fit with parameters by subject")
    assert subjects.subject("0").update(x[0]).updates == 1
    sampled = small_fit("svi", x=x, max_steps=2)
    refused(sampled, x, match='got a fit by "svi", but only fits by "em" and "vmp" can be updated')
    noisy = small_fit(x=x, noise=torch.ones(3, 12), max_steps=2)
    refused(noisy, x, match="noise: was given")
